//! Threads of the process, or a simulation's.

use std::sync::{Arc, OnceLock};
use std::thread;

use crate::signals::with_signals_blocked;

/// Starts threads. What it starts runs until the process ends, and nobody joins it.
#[derive(Clone)]
pub struct Spawn {
    start: Arc<Start>,
    /// Looked up when it is first asked for, once for all copies: that reads files.
    cores: Arc<OnceLock<usize>>,
}

type Start = dyn Fn(&str, Job) -> bool + Send + Sync;

/// What a thread is to do.
pub type Job = Box<dyn FnOnce() + Send>;

impl Spawn {
    /// What `start` starts: it is told the thread's name and what to do, and answers whether it will be done.
    pub fn of(start: impl Fn(&str, Job) -> bool + Send + Sync + 'static) -> Self {
        Spawn { start: Arc::new(start), cores: Arc::default() }
    }

    /// The same, on so many cores.
    #[must_use]
    pub fn on_cores(self, cores: usize) -> Self {
        Spawn { cores: Arc::new(cores.into()), ..self }
    }

    /// Start a thread. False: none can be had.
    pub fn start(&self, name: &str, job: impl FnOnce() + Send + 'static) -> bool {
        (self.start)(name, Box::new(job))
    }

    /// How many threads can run at once.
    pub fn cores(&self) -> usize {
        *self.cores.get_or_init(|| thread::available_parallelism().map_or(1, usize::from))
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
