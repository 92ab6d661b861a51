//! The time that a caller gives a whole operation, of which each call into a component gets no more than what is left.
//!
//! It belongs to the thread that runs the operation, and goes with the work that the thread hands to others.

use std::cell::Cell;
use std::time::Instant;

thread_local! {
    static UNTIL: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// When the operation that this thread works on must be over; none: nobody said.
pub(crate) fn until() -> Option<Instant> {
    UNTIL.get()
}

/// Run work that must be over at a moment, or at the one that was set before if that is earlier.
pub(crate) fn with_until<T>(until: Option<Instant>, work: impl FnOnce() -> T) -> T {
    struct Restore(Option<Instant>);
    impl Drop for Restore {
        fn drop(&mut self) {
            UNTIL.set(self.0);
        }
    }
    let before = UNTIL.get();
    let _restore = Restore(before);
    UNTIL.set(before.into_iter().chain(until).min());
    work()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn the_earlier_end_counts_and_the_former_one_is_back_afterwards() {
        let (early, late) = (Instant::now(), Instant::now() + Duration::from_secs(60));
        with_until(Some(early), || {
            with_until(Some(late), || assert_eq!(until(), Some(early)));
            with_until(None, || assert_eq!(until(), Some(early)));
        });
        assert_eq!(until(), None);
        let panicked = std::panic::catch_unwind(|| with_until(Some(late), || panic!("on purpose")));
        assert!(panicked.is_err() && until().is_none());
    }
}
