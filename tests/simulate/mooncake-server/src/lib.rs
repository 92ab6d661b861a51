//! A Mooncake Store of histories and walks: what its master says ([`coro`]) and does ([`master`]), and the memory of its nodes ([`node`]). When that
//! happens is for the program that has it.

pub mod coro;
pub mod master;
pub mod node;
#[cfg(test)]
mod tests;

/// Nanoseconds of simulated time.
pub type Moment = u64;

const MILLISECOND: Moment = 1_000_000;
const SECOND: Moment = 1000 * MILLISECOND;
