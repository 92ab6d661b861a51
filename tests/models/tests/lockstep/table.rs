//! The host's table of changes that may still be carried out, the shipped one, as a process of a walk has it.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant, SystemTime};

use kv_store_core::backend::{Change, ChangeKey, Changes, End};
use kv_store_core::limits::Limits;
use kv_store_core::process::{Clock, Time};
use kv_store_core::until::Until;
use kv_store_models::history::Phase;
use kv_store_sdk::Result;

/// The time of the walk, in nanoseconds.
struct OfWalk(Arc<AtomicU64>);

impl Time for OfWalk {
    fn now(&self) -> Instant {
        static BEGAN: LazyLock<Instant> = LazyLock::new(Instant::now);
        *BEGAN + Duration::from_nanos(self.0.load(Relaxed))
    }

    fn wall(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH
    }
}

pub struct Table {
    now: Arc<AtomicU64>,
    changes: Arc<Changes>,
    settles: bool,
    /// The change that runs, and its time.
    change: RefCell<Option<(Arc<Change>, Until)>>,
}

impl Table {
    /// `settles`: the component settles former changes that ended unknown.
    pub fn new(now: &Arc<AtomicU64>, settles: bool) -> Self {
        let changes = Arc::new(Changes::new(Clock::of(Arc::new(OfWalk(now.clone())))));
        Table { now: now.clone(), changes, settles, change: RefCell::default() }
    }

    fn until(&self, left: u64) -> Until {
        let time = OfWalk(self.now.clone());
        let end = time.now() + Duration::from_nanos(left);
        Until::with(&Clock::of(Arc::new(time)), &Limits::default(), Some(end), None)
    }

    /// Have a change that must be over after so many nanoseconds take its place. False: a former one may still be carried out. A call would
    /// wait for that.
    pub fn take(&self, key: ChangeKey, left: u64) -> bool {
        // With no time to wait.
        let Ok(taken) = self.changes.take(vec![key], self.settles, &self.until(0)) else { return false };
        self.change.replace(Some((taken, self.until(left))));
        true
    }

    pub fn begin(&self, items: &[u32], token: &[u8]) -> Vec<Vec<u8>> {
        self.change.borrow().as_ref().map(|(change, _)| change.begin(items, token)).unwrap_or_default()
    }

    pub fn not_done(&self, items: &[u32]) {
        if let Some((change, _)) = &*self.change.borrow() {
            change.not_done(items);
        }
    }

    /// What a caller is told of a change that was answered so.
    pub fn told(&self, made: Result<Phase>) -> Phase {
        let (change, until) = self.change.take().expect("it is being made");
        let lost = change.end(|_| if made.is_ok() { End::Done } else { End::Lost }, &until);
        match made {
            Ok(told) => told,
            Err(_) if lost > 0 => Phase::Unknown,
            Err(_) => Phase::Refused,
        }
    }
}
