//! What a process gives to what runs in it: a clock, threads, randomness, and whether it is still the same process after a fork.
//!
//! These are values that are handed on: but for the log, nothing in this crate reads a clock, starts a thread or draws a random number by
//! itself, so that a simulation can hand in its own (`store::Process`).

mod clock;
mod condition;
mod fork;

use std::sync::Arc;
use std::thread;

pub use clock::{Clock, Time};
pub use condition::{Condition, WaitAddress};
#[cfg(test)]
pub(crate) use fork::holds_in_a_child;
pub(crate) use fork::watch_forks;
pub use fork::{Fork, PerProcess, generation};

use crate::error::Error;
use crate::signals::with_signals_blocked;

/// Fills memory with bytes that nobody can foretell, or that follow from a seed.
#[derive(Clone)]
pub struct Random(Arc<FillRandom>);

type FillRandom = dyn Fn(&mut [u8]) -> Result<(), Error> + Send + Sync;

/// Starts threads. What it starts runs until the process ends, and nobody joins it.
#[derive(Clone)]
pub struct Spawn {
    start: Arc<Start>,
    cores: usize,
}

type Start = dyn Fn(&str, Job) -> bool + Send + Sync;

/// What a thread is to do.
pub type Job = Box<dyn FnOnce() + Send>;

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

impl Spawn {
    /// What `start` starts: it is told the thread's name and what to do, and answers whether it will be done.
    pub fn of(start: impl Fn(&str, Job) -> bool + Send + Sync + 'static) -> Self {
        Spawn { start: Arc::new(start), cores: thread::available_parallelism().map_or(1, usize::from) }
    }

    /// The same, on so many cores.
    #[must_use]
    pub fn on_cores(self, cores: usize) -> Self {
        Spawn { cores, ..self }
    }

    /// Start a thread. False: none can be had.
    pub fn start(&self, name: &str, job: impl FnOnce() + Send + 'static) -> bool {
        (self.start)(name, Box::new(job))
    }

    /// How many threads can run at once.
    pub fn cores(&self) -> usize {
        self.cores
    }
}

impl Default for Spawn {
    /// Threads of the machine, which take no signals.
    fn default() -> Self {
        Spawn::of(|name, job| {
            let builder = thread::Builder::new().name(name.to_owned());
            let run = move || {
                crate::panics::own_thread();
                job();
            };
            with_signals_blocked(|| builder.spawn(run)).is_ok()
        })
    }
}
