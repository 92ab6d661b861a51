//! The cases, in groups.

mod arguments;
mod chunks;
mod concurrency;
mod descriptors;
mod manifests;
mod outputs;
mod processes;
mod restart;
mod upkeep;

use crate::{Case, Verdict};

pub use processes::{KILLED, PAIRS};
pub use restart::RESTARTS;

/// Every case.
pub const CASES: &[&[Case]] = &[
    chunks::CASES,
    manifests::CASES,
    outputs::CASES,
    arguments::CASES,
    concurrency::CASES,
    upkeep::CASES,
    descriptors::CASES,
];

/// Fails with what was expected and what came.
fn expect<T: PartialEq + std::fmt::Debug>(what: &str, got: T, expected: T) -> Verdict {
    if got == expected {
        return Ok(());
    }
    Err(format!("{what}: expected {}, got {}", shorten(&expected), shorten(&got)))
}

/// Any negative answer is the same failure.
fn expect_failure(what: &str, answer: i32) -> Verdict {
    if answer < 0 { Ok(()) } else { Err(format!("{what}: expected a negative answer, got {answer}")) }
}

fn shorten(value: &impl std::fmt::Debug) -> String {
    let text = format!("{value:?}");
    if text.len() <= 120 {
        text
    } else {
        format!("{}… ({} characters)", text.chars().take(100).collect::<String>(), text.len())
    }
}

/// Bytes that no other seed gives, of any length.
pub(crate) fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        bytes.extend_from_slice(&next().to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}
