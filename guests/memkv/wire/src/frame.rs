//! The first 32 bytes of a frame, and the codes in it.

use crate::HEADER_BYTES;

const MAGIC: [u8; 4] = *b"MKVF";
/// Set in the code of an answer.
const ANSWER: u8 = 0x80;
/// The code of the last frame before the server closes the connection.
const REFUSAL: u8 = 0xff;

/// An enum of codes on the wire, with all of them in order, and the one that a byte is.
macro_rules! codes {
    ($(#[$about:meta])* pub enum $name:ident { $($(#[$doc:meta])* $code:ident = $byte:literal,)* }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub enum $name { $($(#[$doc])* $code = $byte,)* }

        impl $name {
            pub const ALL: [$name; [$($byte as u8),*].len()] = [$($name::$code),*];

            pub(crate) fn from_code(code: u8) -> Option<Self> {
                match code {
                    $($byte => Some($name::$code),)*
                    _ => None,
                }
            }
        }
    };
}

codes! {
    /// What a frame is laid out as. The header is the same in both.
    #[derive(PartialOrd, Ord)]
    pub enum Version {
        /// As of 0.1 and 0.2: a change says nothing of time.
        One = 1,
        /// A session has a name, and can take the place of another; a change carries its end.
        Two = 2,
    }
}

impl Version {
    pub const LATEST: Self = Version::Two;
}

codes! {
    /// What is asked. The codes of [`Op::Connect`], [`Op::Put`], [`Op::Get`] and [`Op::Delete`] are MemKV's published ones.
    pub enum Op {
        Connect = 0x06,
        Put = 0x20,
        Get = 0x21,
        Delete = 0x22,
        Exists = 0x30,
        BatchGet = 0x31,
        List = 0x32,
        Usage = 0x33,
        Evict = 0x34,
        /// In version 2 only.
        Commit = 0x35,
    }
}

codes! {
    /// What an answer says. Up to 0x1f the session goes on; from 0x20 the connection is closed.
    pub enum Status {
        /// Found, stored or deleted. 0 in requests too.
        Ok = 0x00,
        /// There is nothing under this key.
        Missing = 0x01,
        /// Not stored, because something was there.
        Existed = 0x02,
        /// No room: nothing was stored.
        Full = 0x10,
        /// The manifest names a chunk that is not there: it was not published.
        Gone = 0x11,
        /// The server's own trouble.
        Failed = 0x12,
        /// Its end had passed: nothing was changed. In version 2 only.
        TooLate = 0x13,
        /// The header has a version that the server does not speak; that of the refusal is one that it does.
        UnsupportedVersion = 0x20,
        /// The tag is wrong: another key, or bytes that were changed on the way.
        NotAuthentic = 0x21,
        /// The sequence number is not the next one: a frame was repeated or lost.
        OutOfSequence = 0x22,
        /// Longer than the server takes.
        TooLarge = 0x23,
        /// Not laid out as a frame of this version, or not what may come now.
        Malformed = 0x24,
        /// The server has as many connections, or receives as much, as it can.
        Busy = 0x25,
    }
}

/// What makes a frame one that cannot be read on from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Of a version that is none of [`Version`].
    Version(u8),
    /// Of another version than the first frame of its side.
    OtherVersion {
        session: Version,
        came: Version,
    },
    OutOfSequence {
        expected: u64,
        came: u64,
    },
    TooLarge {
        limit: u64,
        came: u64,
    },
    /// What is wrong with it, in words.
    Malformed(&'static str),
    NotAuthentic,
}

impl Fault {
    /// What a server answers to it.
    pub fn status(self) -> Status {
        match self {
            Fault::Version(_) | Fault::OtherVersion { .. } => Status::UnsupportedVersion,
            Fault::OutOfSequence { .. } => Status::OutOfSequence,
            Fault::TooLarge { .. } => Status::TooLarge,
            Fault::Malformed(_) => Status::Malformed,
            Fault::NotAuthentic => Status::NotAuthentic,
        }
    }
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Fault::Version(came) => {
                let (first, last) = (Version::One as u8, Version::LATEST as u8);
                write!(f, "version {came} is not spoken here, only {first} and {last}")
            }
            Fault::OtherVersion { session, came } => {
                write!(
                    f,
                    "a frame of version {} came where those before it were of version {}",
                    *came as u8, *session as u8
                )
            }
            Fault::OutOfSequence { expected, came } => write!(f, "frame {came} came where frame {expected} was due"),
            Fault::TooLarge { limit, came } => write!(f, "{came} bytes are more than {limit}"),
            Fault::Malformed(what) => f.write_str(what),
            Fault::NotAuthentic => f.write_str("the tag is wrong"),
        }
    }
}

impl std::error::Error for Fault {}

/// A header whose form is right. Nothing in it is to be trusted before the tag is checked, but to know where the tag is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    pub version: Version,
    pub(crate) code: u8,
    pub status: Status,
    /// Length of the fields in bytes.
    pub fields: u32,
    /// How many more answers to the same request follow.
    pub left: u32,
    /// Length of the value in bytes.
    pub value: u64,
    pub sequence: u64,
}

impl Header {
    pub(crate) fn request(op: Op, fields: usize, value: u64) -> Self {
        Self::of(op as u8, Status::Ok, 0, fields, value)
    }

    pub(crate) fn answer(op: Op, status: Status, left: u32, fields: usize, value: u64) -> Self {
        Self::of(op as u8 | ANSWER, status, left, fields, value)
    }

    pub(crate) fn refusal(status: Status, fields: usize) -> Self {
        Self::of(REFUSAL, status, 0, fields, 0)
    }

    fn of(code: u8, status: Status, left: u32, fields: usize, value: u64) -> Self {
        Header { version: Version::One, code, status, fields: length(fields), left, value, sequence: 0 }
    }

    /// What is asked; none: this is no request.
    pub fn op(&self) -> Option<Op> {
        Op::from_code(self.code).filter(|_| self.status == Status::Ok && self.left == 0)
    }

    /// Which request this answers; none: this is no answer, or a refusal.
    pub fn answers(&self) -> Option<Op> {
        (self.code & ANSWER != 0).then(|| Op::from_code(self.code & !ANSWER)).flatten()
    }

    /// Whether the server closes the connection after this.
    pub fn is_refusal(&self) -> bool {
        self.code == REFUSAL
    }

    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let [m0, m1, m2, m3] = MAGIC;
        let begin = u64::from_le_bytes([m0, m1, m2, m3, self.version as u8, self.code, self.status as u8, 0]);
        let lengths = u64::from(self.fields) | u64::from(self.left) << 32;
        let mut bytes = [0; HEADER_BYTES];
        // By words: byte by byte a component takes fifteen times as long.
        let words = bytes.as_chunks_mut().0.iter_mut().zip([begin, lengths, self.value, self.sequence]);
        words.for_each(|(place, word)| *place = word.to_le_bytes());
        bytes
    }

    /// Take a header apart. Lengths are the caller's to bound.
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Self, Fault> {
        let mut words = [0; HEADER_BYTES / 8];
        words.iter_mut().zip(bytes.as_chunks().0).for_each(|(word, eight)| *word = u64::from_le_bytes(*eight));
        let [begin, lengths, value, sequence] = words;
        let [m0, m1, m2, m3, version, code, status, zero] = begin.to_le_bytes();
        if [m0, m1, m2, m3] != MAGIC {
            return Err(Fault::Malformed("the frame does not begin with MKVF"));
        }
        let version = Version::from_code(version).ok_or(Fault::Version(version))?;
        let status = Status::from_code(status).filter(|_| zero == 0);
        let known = code == REFUSAL || Op::from_code(code & !ANSWER).is_some();
        let (Some(status), true) = (status, known) else {
            return Err(Fault::Malformed("the header holds a code that this version does not have"));
        };
        Ok(Header { version, code, status, fields: lengths as u32, left: (lengths >> 32) as u32, value, sequence })
    }
}

/// Fields are made here and checked against far smaller bounds.
fn length(fields: usize) -> u32 {
    u32::try_from(fields).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Headers and codes, as clients and servers of other versions have them.
    #[test]
    fn golden_header() {
        let mut header = Header::answer(Op::Get, Status::Full, 0x0102, 0x0304, 0x0506);
        header.sequence = 0x0708;
        let hex = |header: Header| hex::encode(header.encode());
        assert_eq!(hex(header), "4d4b564601a110000403000002010000".to_owned() + "06050000000000000807000000000000");
        header.version = Version::Two;
        assert_eq!(hex(header), "4d4b564602a110000403000002010000".to_owned() + "06050000000000000807000000000000");
        assert_eq!(Header::refusal(Status::Busy, 0).encode()[4..8], [1, 0xff, 0x25, 0]);
        assert_eq!(Op::ALL.map(|op| op as u8), [0x06, 0x20, 0x21, 0x22, 0x30, 0x31, 0x32, 0x33, 0x34, 0x35]);
        let statuses = [0x00, 0x01, 0x02, 0x10, 0x11, 0x12, 0x13, 0x20, 0x21, 0x22, 0x23, 0x24, 0x25];
        assert_eq!(Status::ALL.map(|status| status as u8), statuses);
        assert_eq!(
            format!("{:?}", Op::ALL),
            "[Connect, Put, Get, Delete, Exists, BatchGet, List, Usage, Evict, Commit]",
            "each keeps its number"
        );
        assert_eq!(
            format!("{:?}", Status::ALL),
            "[Ok, Missing, Existed, Full, Gone, Failed, TooLate, UnsupportedVersion, NotAuthentic, OutOfSequence, TooLarge, Malformed, Busy]"
        );
    }
}
