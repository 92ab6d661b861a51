//! Chunks that were accepted and then lost, and who has yet to hear of it.
//!
//! A loss fails the next manifest of the handle, whoever publishes that, and the next manifest of each thread that has put
//! chunks since its own last one: two saves on one handle are told apart by their threads, and neither may count on a
//! chunk whose loss only the other was told.

use crate::error::Error;

#[derive(Default)]
pub(super) struct Losses {
    /// Threads that have put since their last manifest.
    putting: Vec<Thread>,
    /// Of which no manifest has told yet.
    news: Option<Error>,
    owed: Vec<(Thread, Error)>,
}

/// A thread of the process. That of one which has ended may become another's: there are never more than were alive at once.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Thread(usize);

impl Thread {
    fn current() -> Self {
        thread_local!(static PLACE: u8 = const { 0 });
        Thread(PLACE.with(|place| std::ptr::from_ref(place).addr()))
    }
}

impl Losses {
    /// The calling thread has put a chunk.
    pub(super) fn saw_put(&mut self) {
        let thread = Thread::current();
        if !self.putting.contains(&thread) {
            self.putting.push(thread);
        }
    }

    /// A chunk that somebody has put is lost.
    pub(super) fn add(&mut self, error: Error) {
        for thread in &self.putting {
            if !self.owed.iter().any(|(owed, _)| owed == thread) {
                self.owed.push((*thread, error.clone()));
            }
        }
        self.news = Some(error);
    }

    /// A loss of which no manifest has told yet.
    pub(super) fn news(&self) -> Option<Error> {
        self.news.clone()
    }

    /// Why a manifest that the calling thread is about to publish must not be.
    pub(super) fn tell(&mut self) -> Option<Error> {
        let thread = Thread::current();
        self.putting.retain(|putting| *putting != thread);
        let owed = self.owed.iter().position(|(owed, _)| *owed == thread).map(|at| self.owed.swap_remove(at).1);
        let news = self.news.take();
        owed.or(news)
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
        std::thread::scope(|scope| scope.spawn(run).join().unwrap())
    }

    #[test]
    fn one_save_hears_of_a_loss_once() {
        let mut losses = Losses::default();
        losses.saw_put();
        losses.add(loss());
        losses.add(loss());
        assert!(losses.tell().is_some());
        assert!(losses.tell().is_none());
    }

    #[test]
    fn a_manifest_of_a_thread_that_put_nothing_hears_of_what_nobody_was_told() {
        let mut losses = Losses::default();
        losses.add(loss());
        assert!(elsewhere(|| losses.tell()).is_some());
        assert!(losses.tell().is_none());
    }

    #[test]
    fn each_thread_that_was_putting_hears_of_it() {
        let mut losses = Losses::default();
        losses.saw_put();
        elsewhere(|| {
            losses.saw_put();
            losses.add(loss());
            assert!(losses.tell().is_some());
            assert!(losses.tell().is_none());
        });
        assert!(losses.tell().is_some(), "the other thread's manifest took the news");
        assert!(losses.tell().is_none());
        losses.add(loss());
        elsewhere(|| assert!(losses.tell().is_some()));
        assert!(losses.tell().is_none(), "it had put nothing since");
    }
}
