//! A client written from `docs/memkv-wire.md` alone, which can say anything. It shares no code with what it tests.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use hmac::{Hmac, Mac};
use sha2::Sha256;

pub const CONNECT: u8 = 0x06;
pub const PUT: u8 = 0x20;
pub const GET: u8 = 0x21;
pub const DELETE: u8 = 0x22;
pub const EXISTS: u8 = 0x30;
pub const BATCH_GET: u8 = 0x31;
pub const REFUSAL: u8 = 0xff;

pub const OK: u8 = 0x00;
pub const MISSING: u8 = 0x01;
pub const TOO_LATE: u8 = 0x13;
pub const UNSUPPORTED_VERSION: u8 = 0x20;
pub const NOT_AUTHENTIC: u8 = 0x21;
pub const OUT_OF_SEQUENCE: u8 = 0x22;
pub const TOO_LARGE: u8 = 0x23;
pub const MALFORMED: u8 = 0x24;
pub const BUSY: u8 = 0x25;

/// The key of the servers of these tests: 00 01 ... 1f.
pub fn key() -> [u8; 32] {
    std::array::from_fn(|n| n as u8)
}

pub fn hmac(key: &[u8], parts: &[&[u8]]) -> [u8; 32] {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).unwrap();
    parts.iter().for_each(|part| mac.update(part));
    mac.finalize().into_bytes().into()
}

pub fn derive(key: &[u8], purpose: &str, nonces: &[&[u8]]) -> [u8; 32] {
    hmac(key, &[b"memkv 1 ", purpose.as_bytes(), &[0], &nonces.concat()])
}

/// A frame to be sent, whose parts a test may spoil.
#[derive(Clone)]
pub struct Frame {
    pub version: u8,
    pub code: u8,
    pub status: u8,
    pub left: u32,
    pub sequence: u64,
    pub fields: Vec<u8>,
    pub value: Vec<u8>,
}

impl Frame {
    pub fn new(code: u8, sequence: u64, fields: Vec<u8>, value: &[u8]) -> Self {
        Frame { version: 1, code, status: 0, left: 0, sequence, fields, value: value.to_vec() }
    }

    /// Without its tag.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = b"MKVF".to_vec();
        bytes.extend([self.version, self.code, self.status, 0]);
        bytes.extend((self.fields.len() as u32).to_le_bytes());
        bytes.extend(self.left.to_le_bytes());
        bytes.extend((self.value.len() as u64).to_le_bytes());
        bytes.extend(self.sequence.to_le_bytes());
        bytes.extend(&self.fields);
        bytes.extend(&self.value);
        bytes
    }

    pub fn signed(&self, key: &[u8]) -> Vec<u8> {
        let bytes = self.bytes();
        let tag = hmac(key, &[&bytes]);
        [bytes, tag.to_vec()].concat()
    }
}

/// A frame that came.
#[derive(Debug)]
pub struct Came {
    pub version: u8,
    pub code: u8,
    pub status: u8,
    pub left: u32,
    pub sequence: u64,
    pub fields: Vec<u8>,
    pub value: Vec<u8>,
    /// All of it, as it came.
    pub bytes: Vec<u8>,
}

impl Came {
    pub fn is_signed_with(&self, key: &[u8]) -> bool {
        let (signed, tag) = self.bytes.split_at(self.bytes.len() - 32);
        hmac(key, &[signed]) == tag
    }
}

/// The next frame; none: the other side has closed.
pub fn read_frame(stream: &mut TcpStream) -> Option<Came> {
    let mut header = [0; 32];
    stream.read_exact(&mut header).ok()?;
    assert_eq!(&header[..4], b"MKVF");
    assert_eq!(header[7], 0);
    let number = |range: std::ops::Range<usize>| {
        header[range].iter().rev().fold(0_u64, |number, byte| number << 8 | u64::from(*byte))
    };
    let (fields, value) = (number(8..12) as usize, number(16..24) as usize);
    let mut rest = vec![0; fields + value + 32];
    stream.read_exact(&mut rest).ok()?;
    Some(Came {
        version: header[4],
        code: header[5],
        status: header[6],
        left: number(12..16) as u32,
        sequence: number(24..32),
        fields: rest[..fields].to_vec(),
        value: rest[fields..fields + value].to_vec(),
        bytes: [&header[..], &rest].concat(),
    })
}

pub fn short(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u16).to_le_bytes()[..], bytes].concat()
}

pub fn keys(keys: &[&[u8]]) -> Vec<u8> {
    let mut bytes = (keys.len() as u32).to_le_bytes().to_vec();
    keys.iter().for_each(|key| bytes.extend(short(key)));
    bytes
}

pub fn connect_fields(nonce: &[u8; 32], namespace: &str) -> Vec<u8> {
    [&nonce[..], &short(namespace.as_bytes())].concat()
}

/// Of version 2: `replaces` is a session, or nothing.
pub fn connect_fields_2(nonce: &[u8; 32], replaces: &[u8]) -> Vec<u8> {
    [connect_fields(nonce, "test"), short(replaces)].concat()
}

/// Put a chunk or a manifest, in version 2.
pub fn put_fields_2(kind: u8, flags: u8, end: u64, key: &[u8]) -> Vec<u8> {
    [&[kind, flags][..], &end.to_le_bytes(), &short(key), &keys(&[])].concat()
}

/// Delete a chunk or a manifest, in version 2.
pub fn delete_fields_2(kind: u8, end: u64, key: &[u8]) -> Vec<u8> {
    [&[kind][..], &end.to_le_bytes(), &short(key)].concat()
}

/// Put a chunk.
pub fn put_fields(key: &[u8]) -> Vec<u8> {
    [&[1, 0][..], &short(key), &keys(&[])].concat()
}

/// Get a chunk.
pub fn get_fields(key: &[u8]) -> Vec<u8> {
    [&[1][..], &short(key)].concat()
}

pub struct Client {
    pub stream: TcpStream,
    pub version: u8,
    /// Of version 2: the session, and the server's time when it answered, in nanoseconds.
    pub session: Vec<u8>,
    pub time: u64,
    /// The keys of the session.
    pub ours: [u8; 32],
    pub theirs: [u8; 32],
    pub sent: u64,
    pub received: u64,
}

pub fn dial(port: u16) -> TcpStream {
    let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream
}

impl Client {
    /// A session of version 1, checked on the way.
    pub fn connect(port: u16, nonce: [u8; 32]) -> Self {
        Self::agree(dial(port), 1, nonce, connect_fields(&nonce, "test"))
    }

    /// One of version 2, in the place of another.
    pub fn connect_2(port: u16, nonce: [u8; 32], replaces: &[u8]) -> Self {
        Self::agree(dial(port), 2, nonce, connect_fields_2(&nonce, replaces))
    }

    fn agree(mut stream: TcpStream, version: u8, nonce: [u8; 32], fields: Vec<u8>) -> Self {
        let frame = Frame { version, ..Frame::new(CONNECT, 0, fields, b"") };
        stream.write_all(&frame.signed(&derive(&key(), "connect", &[]))).unwrap();
        Self::agreed(stream, version, nonce)
    }

    /// The session, when CONNECT is answered.
    pub fn agreed(mut stream: TcpStream, version: u8, nonce: [u8; 32]) -> Self {
        let came = read_frame(&mut stream).expect("an answer");
        assert_eq!((came.version, came.code, came.status, came.sequence), (version, CONNECT | 0x80, OK, 0), "{came:?}");
        assert!(came.is_signed_with(&derive(&key(), "connected", &[&nonce])));
        let theirs = &came.fields[..32];
        let (ours, theirs) = (derive(&key(), "client", &[&nonce, theirs]), derive(&key(), "server", &[&nonce, theirs]));
        let (session, time) = match version {
            1 => (Vec::new(), 0),
            _ => {
                let (rest, time) = came.fields.split_last_chunk().unwrap();
                (rest[rest.len() - 16..].to_vec(), u64::from_le_bytes(*time))
            }
        };
        Client { stream, version, session, time, ours, theirs, sent: 1, received: 1 }
    }

    pub fn frame(&mut self, code: u8, fields: Vec<u8>, value: &[u8]) -> Frame {
        self.sent += 1;
        Frame { version: self.version, ..Frame::new(code, self.sent - 1, fields, value) }
    }

    /// What a frame is answered, which must be signed and numbered as it should.
    pub fn ask(&mut self, code: u8, fields: Vec<u8>, value: &[u8]) -> Came {
        let frame = self.frame(code, fields, value).signed(&self.ours);
        self.stream.write_all(&frame).unwrap();
        self.answer().expect("an answer")
    }

    pub fn answer(&mut self) -> Option<Came> {
        let came = read_frame(&mut self.stream)?;
        assert!(came.is_signed_with(&self.theirs), "{came:?}");
        assert_eq!((came.version, came.sequence), (self.version, self.received));
        self.received += 1;
        Some(came)
    }
}
