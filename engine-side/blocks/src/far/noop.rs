//! A far level that keeps nothing, for measuring what the cache itself takes.

use super::{Far, Features, Outcome, Request, Work};

/// Says that everything was stored and removed, and that nothing is there.
#[derive(Clone, Copy, Debug, Default)]
pub struct Noop;

impl Far for Noop {
    fn features(&self) -> Features {
        Features::default()
    }

    fn submit(&self, mut request: Request) {
        let Some(work) = request.work() else { return };
        let outcome = match work {
            Work::Put(_) | Work::Delete(_) => Outcome::Done,
            Work::Get(_) | Work::Exists(_) | Work::Damaged(_) => Outcome::Missing,
        };
        let outcomes = vec![outcome; work.len()];
        request.complete(outcomes);
    }
}
