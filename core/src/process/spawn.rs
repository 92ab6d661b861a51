//! Threads of the process, or a simulation's.

use std::sync::Arc;
use std::thread;

use crate::signals::with_signals_blocked;

/// Starts threads. What it starts runs until the process ends, and nobody joins it.
#[derive(Clone)]
pub struct Spawn {
    start: Arc<Start>,
    cores: usize,
}

type Start = dyn Fn(&str, Job) -> bool + Send + Sync;

/// What a thread is to do.
pub type Job = Box<dyn FnOnce() + Send>;

impl Spawn {
    /// What `start` starts: it is told the thread's name and what to do, and answers whether it will be done.
    pub fn of(start: impl Fn(&str, Job) -> bool + Send + Sync + 'static) -> Self {
        Spawn::with_cores(thread::available_parallelism().map_or(1, usize::from), start)
    }

    /// The same, on so many cores, without a look at how many the machine has.
    pub fn with_cores(cores: usize, start: impl Fn(&str, Job) -> bool + Send + Sync + 'static) -> Self {
        Spawn { start: Arc::new(start), cores }
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
