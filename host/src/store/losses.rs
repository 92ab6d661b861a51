//! Chunks that were accepted and then lost, and who has heard of it.
//!
//! Who publishes need not be who put, and several saves may share a handle. So a loss fails the next manifest of the handle,
//! and for a while after that the first manifest of each other thread: any of them may count on the chunk.

use std::collections::HashSet;
use std::thread::{self, ThreadId};
use std::time::Instant;

use crate::error::Error;
use crate::limits::LOSS_TOLD_FOR;

#[derive(Default)]
pub(super) struct Losses {
    last: Option<Error>,
    /// When it was told for the first time.
    since: Option<Instant>,
    told: HashSet<ThreadId>,
}

impl Losses {
    pub(super) fn add(&mut self, error: Error) {
        *self = Losses { last: Some(error), ..Losses::default() };
    }

    /// A loss of which nobody was told yet.
    pub(super) fn news(&self) -> Option<Error> {
        self.last.clone().filter(|_| self.since.is_none())
    }

    /// Why a manifest that the calling thread is about to publish must not be.
    pub(super) fn tell(&mut self) -> Option<Error> {
        self.last.as_ref()?;
        if self.since.get_or_insert_with(Instant::now).elapsed() >= LOSS_TOLD_FOR {
            *self = Losses::default();
        }
        self.last.clone().filter(|_| self.told.insert(thread::current().id()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    fn loss() -> Error {
        Error::new(ErrorKind::Denied, "lost")
    }

    fn elsewhere<T: Send>(run: impl FnOnce() -> T + Send) -> T {
        thread::scope(|scope| scope.spawn(run).join().unwrap())
    }

    #[test]
    fn a_thread_hears_of_a_loss_once_and_of_the_next_one_again() {
        let mut losses = Losses::default();
        assert!(losses.tell().is_none());
        for _ in 0..2 {
            losses.add(loss());
            losses.add(loss());
            assert!(losses.news().is_some());
            assert!(losses.tell().is_some());
            assert!(losses.tell().is_none() && losses.news().is_none());
        }
    }

    #[test]
    fn each_thread_hears_of_it() {
        let mut losses = Losses::default();
        losses.add(loss());
        assert!(elsewhere(|| losses.tell().is_some() && losses.tell().is_none()));
        assert!(losses.tell().is_some(), "the other thread's manifest took the news");
        assert!(losses.tell().is_none());
    }

    #[test]
    fn it_is_forgotten_a_while_after_it_was_told() {
        let mut losses = Losses::default();
        losses.add(loss());
        assert!(losses.tell().is_some());
        losses.since = Instant::now().checked_sub(LOSS_TOLD_FOR);
        assert!(elsewhere(|| losses.tell()).is_none());
        assert!(losses.told.is_empty());
    }
}
