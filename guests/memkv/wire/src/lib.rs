//! The frames between the memkv backend and memkv-server, as `docs/memkv-wire.md` has them. Pure functions over bytes: no
//! sockets, no clocks, no randomness, so that the guest, the server and a native client share them, and another layout
//! can take their place here.
//!
//! A frame is a [`Header`], fields, a value and a tag. The value is never looked at: it can be sent from, and received into,
//! the memory where it lives. The tag covers all that comes before it, so a receiver reads the value where it is to stay,
//! computes the tag over it once, and shows it to nobody before the tag is right.
//!
//! ```
//! use memkv_wire::{Incoming, Key, Op, Outgoing, SessionKeys, Version, fields};
//!
//! let keys = SessionKeys::derive(&Key::new([7; 32]), &[1; 32], &[2; 32]);
//! let mut client = Outgoing::new(keys.client.clone(), Version::LATEST);
//! let mut server = Incoming::new(keys.client, 1 << 20, 1 << 20);
//! let asked = fields::Lookup { kind: fields::Kind::Manifest, key: b"prompt-1" }.encode();
//! let header = client.request(Op::Get, asked.len(), 0);
//! let tag = client.key().tag(&[&header, &asked]);
//!
//! let seen = server.open(&header).unwrap();
//! assert_eq!((seen.op(), seen.fields as usize), (Some(Op::Get), asked.len()));
//! assert!(server.key().tag(&[&header, &asked]).matches(&tag.0));
//! ```

pub mod fields;
mod frame;
mod mac;
mod session;

pub use frame::{Fault, Header, Op, Status, Version};
pub use mac::{Key, SessionKeys, Tag, Tagger};
pub use session::{Incoming, Outgoing};

/// The length of a [`Header`] in bytes.
pub const HEADER_BYTES: usize = 32;
/// The length of a [`Tag`] in bytes.
pub const TAG_BYTES: usize = 32;
/// The length of what each side adds to a session so that no two are alike, in bytes.
pub const NONCE_BYTES: usize = 32;
/// The longest key, in bytes.
pub const MAX_KEY_BYTES: usize = 512;
/// The longest namespace, in bytes. It has at least one.
pub const MAX_NAMESPACE_BYTES: usize = 255;
/// The longest text in an answer, in bytes.
pub const MAX_TEXT_BYTES: usize = 1024;
/// The longest fields of a frame that comes before the session is agreed, and of any answer but that to EXISTS.
pub const MAX_SMALL_FIELDS_BYTES: usize = 2048;
/// The longest fields of any frame.
pub const MAX_FIELDS_BYTES: usize = 32 << 20;
/// The most keys in one EXISTS or batch get.
pub const MAX_BATCH_KEYS: usize = 4096;
/// The most keys that one LIST answers.
pub const MAX_LISTED_KEYS: usize = 4096;
/// The most chunks that one manifest names.
pub const MAX_MANIFEST_CHUNKS: usize = 262_144;
/// The port of the data connection. That of the admin endpoints is one more.
pub const DEFAULT_PORT: u16 = 9900;

/// The length of what names a session of version 2, in bytes.
pub const SESSION_BYTES: usize = 16;
/// The length of a generation, in bytes: microseconds since 1970-01-01 UTC (8 bytes), and 8 random bytes.
pub const GENERATION_BYTES: usize = 16;

/// What each side of a new connection may count on.
pub type Nonce = [u8; NONCE_BYTES];
/// Names a session of version 2 for as long as its server lives.
pub type SessionId = [u8; SESSION_BYTES];

// The programs of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
