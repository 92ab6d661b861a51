//! A node: memory that whoever reaches its port reads and writes, and that is used again for other objects (Transfer Engine over TCP, protocol
//! version 2).

use crate::Moment;

pub const READ: u8 = 0;
pub const WRITE: u8 = 1;
const FLAG: u8 = 0x80;
/// Size, address, and what to do.
pub const HEAD: usize = 24;
pub const DONE: [u8; 8] = 0x4d43_5456_0000_0000_u64.to_le_bytes();
pub const REFUSED: [u8; 8] = 0x4d43_5456_0000_0001_u64.to_le_bytes();
/// A handshake that asks for the description.
const METADATA: u8 = 1;
/// Apart from each other, so that no address is of two.
const NODE_SHIFT: u32 = 36;
const LIFE_SHIFT: u32 = 28;

pub struct Node {
    pub number: usize,
    /// How often it has come back elsewhere.
    life: u64,
    memory: Vec<u8>,
    pub size: u64,
    /// It is gone until then.
    pub down_until: Moment,
    /// Its data port.
    data: u16,
}

/// What a head asks for.
pub struct Head {
    pub size: u64,
    pub address: u64,
    pub operation: u8,
}

impl Head {
    /// Take one out of what has come.
    pub fn take(came: &mut Vec<u8>) -> Option<Self> {
        let head: Vec<u8> = if came.len() < HEAD { return None } else { came.drain(..HEAD).collect() };
        let number = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().expect("eight bytes"));
        assert!(head[16] & FLAG != 0 && head[17..] == [0; 7], "the backend asks a node for {}", hex::encode(&head));
        Some(Head { size: number(0), address: number(8), operation: head[16] & !FLAG })
    }
}

impl Node {
    pub fn new(number: usize, size: u64) -> Self {
        Node { number, life: 0, memory: Vec::new(), size, down_until: 0, data: 15_000 }
    }

    pub fn base(&self) -> u64 {
        0x7f00_0000_0000 + ((self.number as u64) << NODE_SHIFT) + (self.life << LIFE_SHIFT)
    }

    /// Where it tells what it speaks.
    pub fn endpoint(&self) -> String {
        format!("node-{}:{}", self.number, 13_000 + self.life)
    }

    /// Where its memory is read and written.
    pub fn data(&self) -> String {
        format!("node-{}:{}", self.number, self.data)
    }

    pub fn lives(&self, now: Moment) -> bool {
        now >= self.down_until
    }

    /// It is gone, and what it had.
    pub fn dies(&mut self, until: Moment) {
        self.down_until = self.down_until.max(until);
        self.memory.clear();
    }

    /// It has begun anew. `elsewhere`: at another endpoint, with other addresses.
    pub fn comes_back(&mut self, elsewhere: bool) {
        self.life += u64::from(elsewhere);
        self.data += u16::from(elsewhere);
    }

    /// Where in its memory these bytes are. None: it has no such memory.
    fn range(&self, address: u64, size: u64) -> Option<std::ops::Range<usize>> {
        let at = address.checked_sub(self.base())?;
        let is_there = size > 0 && at.checked_add(size).is_some_and(|end| end <= self.size);
        is_there.then(|| at as usize..(at + size) as usize)
    }

    pub fn has(&self, address: u64, size: u64) -> bool {
        self.range(address, size).is_some()
    }

    pub fn read(&self, address: u64, size: u64) -> Option<Vec<u8>> {
        let range = self.range(address, size)?;
        let mut bytes = vec![0; range.len()];
        if let Some(there) = self.memory.get(range.start..range.end.min(self.memory.len())) {
            bytes[..there.len()].copy_from_slice(there);
        }
        Some(bytes)
    }

    pub fn write(&mut self, address: u64, bytes: &[u8]) {
        let Some(range) = self.range(address, bytes.len() as u64) else { return };
        if self.memory.len() < range.end {
            self.memory.resize(range.end, 0);
        }
        self.memory[range].copy_from_slice(bytes);
    }

    /// The answer to a handshake that has come whole. None: more must come first.
    pub fn described(&self, came: &mut Vec<u8>) -> Option<Vec<u8>> {
        let len = came.first_chunk::<8>().map(|len| u64::from_le_bytes(*len) as usize)?;
        if came.len() < 8 + len {
            return None;
        }
        let question: Vec<u8> = came.drain(..8 + len).skip(8).collect();
        assert!(question.first() == Some(&METADATA), "the backend shakes hands with {}", hex::encode(&question));
        let (endpoint, base, size, data) = (self.endpoint(), self.base(), self.size, self.data);
        let json = format!(
            "{{\"buffers\":[{{\"addr\":{base},\"length\":{size},\"name\":\"{endpoint}\"}}],\"name\":\"{endpoint}\",\"protocol\":\"tcp\",\
             \"rdma_server_name\":\"\",\"tcp_data_host\":\"node-{}\",\"tcp_data_port\":{data},\"tcp_proto_version\":2}}\n",
            self.number
        );
        let said = [&[METADATA][..], json.as_bytes()].concat();
        Some([&(said.len() as u64).to_le_bytes()[..], &said].concat())
    }
}
