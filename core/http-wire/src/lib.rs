//! HTTP/1.1 messages of a client, as pure functions over bytes.
//!
//! [`Request`] checks and writes the head of a request; [`parse_head`] reads the head of a response and says how its body is
//! framed; [`Chunks`] reads a chunked body. Nothing here does I/O or allocates more than a head.
//!
//! Invariant: where two readers of the same bytes could disagree on where a message ends, it is refused (RFC 9112, sections 2.2,
//! 5.1, 6 and 7.1). A request that somebody else would read as two is never written, and a response that somebody else would read
//! as two is never accepted.

mod chunks;
mod request;
mod response;

pub use chunks::{Chunks, Step};
pub use request::{BadRequest, Request, host_value, is_idempotent};
pub use response::{BadResponse, Body, Head, parse_head};

/// The longest head of a message, in bytes, its empty line included; of the trailers of a chunked body too.
pub const MAX_HEAD_BYTES: usize = 64 << 10;
/// The most headers of a message.
pub const MAX_HEADERS: usize = 128;

/// Characters of methods and of names of headers (RFC 9110, section 5.6.2).
fn is_token(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !text.is_empty() && text.bytes().all(allowed)
}

// The programs of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
