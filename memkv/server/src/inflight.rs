//! What all connections together hold of frames that are being received: the bound of the store does not count them yet.

use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Instant;

pub struct Inflight {
    bound: u64,
    used: Mutex<u64>,
    freed: Condvar,
}

/// A part of it, given back when it is dropped.
pub struct Share<'a> {
    of: &'a Inflight,
    bytes: u64,
}

impl Inflight {
    pub fn new(bound: u64) -> Self {
        Inflight { bound, used: Mutex::new(0), freed: Condvar::new() }
    }

    /// Wait until there is room for so many bytes, which there is at once where nobody else has any. None: not in time.
    pub fn take(&self, bytes: u64, deadline: Instant) -> Option<Share<'_>> {
        let mut used = self.lock();
        while *used > 0 && used.saturating_add(bytes) > self.bound {
            let left = deadline.checked_duration_since(Instant::now())?;
            used = self.freed.wait_timeout(used, left).unwrap_or_else(|poisoned| poisoned.into_inner()).0;
        }
        *used = used.saturating_add(bytes);
        Some(Share { of: self, bytes })
    }

    fn lock(&self) -> MutexGuard<'_, u64> {
        self.used.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Drop for Share<'_> {
    fn drop(&mut self) {
        let mut used = self.of.lock();
        *used = used.saturating_sub(self.bytes);
        drop(used);
        self.of.freed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn what_does_not_fit_waits_for_what_is_given_back() {
        let inflight = Inflight::new(100);
        let now = Instant::now();
        let large = inflight.take(1000, now).expect("alone, anything fits");
        assert!(inflight.take(1, now).is_none());
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| inflight.take(60, now + Duration::from_secs(30)).map(|share| share.bytes));
            drop(large);
            assert_eq!(waiting.join().unwrap(), Some(60));
        });
        let _some = inflight.take(60, now).unwrap();
        assert!(inflight.take(40, now).is_some() && inflight.take(41, now).is_none());
    }
}
