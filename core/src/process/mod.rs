//! What a process gives to what runs in it: a clock, threads, randomness, and whether it is still the same process after a fork.
//!
//! These are values that are handed on: but for the log, nothing in this crate reads a clock, starts a thread or draws a random number by
//! itself, so that a simulation can hand in its own (`store::Process`).

mod clock;
mod condition;
mod fork;
mod spawn;

use std::sync::Arc;

pub use clock::{Clock, Time};
pub use condition::{Condition, WaitAddress};
#[cfg(test)]
pub(crate) use fork::holds_in_a_child;
pub(crate) use fork::watch_forks;
pub use fork::{Fork, PerProcess, generation};
pub use spawn::{Job, Spawn};

use crate::error::Error;

/// Fills memory with bytes that nobody can foretell, or that follow from a seed.
#[derive(Clone)]
pub struct Random(Arc<FillRandom>);

type FillRandom = dyn Fn(&mut [u8]) -> Result<(), Error> + Send + Sync;

impl Random {
    /// What `fill` fills memory with.
    pub fn of(fill: impl Fn(&mut [u8]) -> Result<(), Error> + Send + Sync + 'static) -> Self {
        Random(Arc::new(fill))
    }

    /// Fill memory.
    pub fn fill(&self, bytes: &mut [u8]) -> Result<(), Error> {
        (self.0)(bytes)
    }
}

impl Default for Random {
    /// The kernel's.
    fn default() -> Self {
        Random::of(|bytes| getrandom::fill(bytes).map_err(|error| Error::invalid(format!("no random bytes: {error}"))))
    }
}
