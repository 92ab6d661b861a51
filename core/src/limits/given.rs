//! Numbers as the config file gives them, each within its bounds.

use kv_size::Bytes;

/// A number that must lie between two others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Deserialize)]
#[serde(try_from = "u64")]
pub struct Bounded<const LEAST: u64, const MOST: u64>(pub u64);

/// The same of bytes, which may be written as `"512 MiB"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Deserialize)]
#[serde(try_from = "Bytes")]
pub struct BoundedBytes<const LEAST: u64, const MOST: u64>(pub u64);

impl<const LEAST: u64, const MOST: u64> TryFrom<u64> for Bounded<LEAST, MOST> {
    type Error = String;

    fn try_from(number: u64) -> Result<Self, String> {
        within(number, LEAST, MOST).map(Bounded)
    }
}

impl<const LEAST: u64, const MOST: u64> TryFrom<Bytes> for BoundedBytes<LEAST, MOST> {
    type Error = String;

    fn try_from(Bytes(number): Bytes) -> Result<Self, String> {
        within(number, LEAST, MOST).map(BoundedBytes)
    }
}

fn within(number: u64, least: u64, most: u64) -> Result<u64, String> {
    match number {
        within if (least..=most).contains(&within) => Ok(within),
        _ => Err(format!("{number} is not between {least} and {most}")),
    }
}
