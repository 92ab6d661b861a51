//! A client for memkv-server that does what a save needs and no more: one question for what is there, all chunks pipelined
//! straight from the caller's memory, each frame tagged once. While one group of frames travels, the next is tagged.

use std::io::{IoSlice, Read, Write};
use std::net::TcpStream;

use anyhow::{Result, bail, ensure};
use memkv_wire::fields::{Connect, Connected, Exists, Kind, Put};
use memkv_wire::{
    HEADER_BYTES, Header, Incoming, Key, MAX_BATCH_KEYS, MAX_SMALL_FIELDS_BYTES, Op, Outgoing, SessionKeys, Status,
    TAG_BYTES, Version,
};

use super::{Saver, write_all};

pub struct MemkvClient {
    stream: TcpStream,
    outgoing: Outgoing,
    incoming: Incoming,
}

/// Bytes of values that are sent at once.
const SEND_BYTES: usize = 256 << 10;

impl MemkvClient {
    pub fn connect(port: u16, namespace: &str, key: &str) -> Result<Self> {
        let mut stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_nodelay(true)?;
        let key = Key::from_hex(key).map_err(anyhow::Error::msg)?;
        let nonce = [7; 32];
        let mut outgoing = Outgoing::new(key.connect(), Version::LATEST);
        let incoming = Incoming::new(key.connected(&nonce), MAX_SMALL_FIELDS_BYTES, 0);
        let asked = Connect { nonce, namespace, replaces: None }.encode(Version::LATEST);
        let header = outgoing.request(Op::Connect, asked.len(), 0);
        stream.write_all(&outgoing.small(header, &asked))?;
        let mut client = MemkvClient { stream, outgoing, incoming };
        let (_, fields) = client.answer(Op::Connect)?;
        let agreed = Connected::decode(&fields, Version::LATEST)?;
        let keys = SessionKeys::derive(&key, &nonce, &agreed.nonce);
        client.outgoing.rekey(keys.client);
        client.incoming.rekey(keys.server, MAX_SMALL_FIELDS_BYTES.max(MAX_BATCH_KEYS), agreed.max_value);
        Ok(client)
    }

    fn answer(&mut self, op: Op) -> Result<(Status, Vec<u8>)> {
        let mut bytes = [0; HEADER_BYTES];
        self.stream.read_exact(&mut bytes)?;
        let header: Header = self.incoming.open(&bytes)?;
        ensure!(header.answers() == Some(op), "memkv-server refused: {:?}", header.status);
        let mut rest = vec![0; header.fields as usize + TAG_BYTES];
        self.stream.read_exact(&mut rest)?;
        let tag = rest.split_off(header.fields as usize);
        ensure!(self.incoming.key().tag(&[&bytes, &rest]).matches(&tag), "a wrong tag");
        Ok((header.status, rest))
    }

    fn put_all(&mut self, kind: Kind, items: &[(Vec<u8>, &[u8])], chunks: &[&[u8]]) -> Result<()> {
        let mut frames = Vec::new();
        let mut bytes = 0;
        for (at, (key, data)) in items.iter().enumerate() {
            let (replace, chunks) = (kind == Kind::Manifest, chunks.to_vec());
            let fields = Put { kind, replace, generation: false, end: 0, key, chunks }.encode(Version::LATEST);
            let mut head = self.outgoing.request(Op::Put, fields.len(), data.len() as u64).to_vec();
            head.extend(fields);
            let tag = self.outgoing.key().tag(&[&head, data]).0;
            frames.push((head, *data, tag));
            bytes += data.len();
            if bytes >= SEND_BYTES || at + 1 == items.len() {
                let slices = frames.iter().flat_map(|(head, data, tag)| [&head[..], data, &tag[..]]);
                write_all(&mut self.stream, &mut slices.map(IoSlice::new).collect::<Vec<_>>())?;
                frames.clear();
                bytes = 0;
            }
        }
        for _ in items {
            match self.answer(Op::Put)? {
                (Status::Ok | Status::Existed, _) => {}
                (status, _) => bail!("PUT was answered {status:?}"),
            }
        }
        Ok(())
    }
}

impl Saver for MemkvClient {
    fn exists(&mut self, keys: &[Vec<u8>]) -> Result<Vec<bool>> {
        let fields = Exists { keys: keys.iter().map(Vec::as_slice).collect() }.encode();
        let header = self.outgoing.request(Op::Exists, fields.len(), 0);
        let frame = self.outgoing.small(header, &fields);
        self.stream.write_all(&frame)?;
        let (status, there) = self.answer(Op::Exists)?;
        ensure!(status == Status::Ok && there.len() == keys.len(), "EXISTS was answered {status:?}");
        Ok(there.iter().map(|there| *there == 1).collect())
    }

    fn put(&mut self, items: &[(Vec<u8>, &[u8])]) -> Result<()> {
        self.put_all(Kind::Chunk, items, &[])
    }

    fn publish(&mut self, name: &str, data: &[u8], chunks: &[Vec<u8>]) -> Result<()> {
        let chunks: Vec<&[u8]> = chunks.iter().map(Vec::as_slice).collect();
        self.put_all(Kind::Manifest, &[([b"n", name.as_bytes()].concat(), data)], &chunks)
    }
}
