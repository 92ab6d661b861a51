//! How long a batch may go on: until its deadline, or until it is cancelled. Looked at between the calls of the guest.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::error::{Error, ErrorKind};

#[derive(Clone, Default)]
pub(crate) struct Until {
    deadline: Option<Instant>,
    cancelled: Option<Arc<AtomicBool>>,
}

impl Until {
    /// Until so much time has passed; `None`: without an end of its own.
    pub(crate) fn timeout(timeout: Option<Duration>) -> Self {
        Until { deadline: timeout.and_then(|timeout| Instant::now().checked_add(timeout)), cancelled: None }
    }

    /// As this one, or until the flag is set.
    pub(crate) fn or_cancelled(self, cancelled: Arc<AtomicBool>) -> Self {
        Until { cancelled: Some(cancelled), ..self }
    }

    /// Whether the batch may go on.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.cancelled.as_ref().is_some_and(|cancelled| cancelled.load(Relaxed)) {
            return Err(Error::new(ErrorKind::Cancelled, "the request was cancelled"));
        }
        if self.deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            return Err(Error::new(ErrorKind::Unavailable, "the time for the batch is over"));
        }
        Ok(())
    }
}
