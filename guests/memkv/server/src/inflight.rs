//! What all connections together hold of frames that are being received: the bound of the store does not count them yet.
//!
//! A share grows as bytes come. One share at a time may grow past the bound, to the size of its frame, so that frames
//! which each have a part of what they need do not wait for each other: together they hold the bound and one frame.

use crate::os::{Condvar, Instant, Mutex};

/// What a frame may hold, or its names may take, without a share: however much others receive, this gets through.
pub const SMALL_BYTES: u64 = 64 << 10;

pub struct Inflight {
    bound: u64,
    state: Mutex<InflightState>,
    freed: Condvar,
}

#[derive(Default)]
struct InflightState {
    used: u64,
    /// A share has grown past the bound.
    overdrawn: bool,
    waiting: usize,
}

/// A part of it, given back when it is dropped.
pub struct Share<'a> {
    of: &'a Inflight,
    bytes: u64,
    overdrawn: bool,
}

impl Inflight {
    pub fn new(bound: u64) -> Self {
        Inflight { bound, state: Mutex::default(), freed: Condvar::new() }
    }

    /// A share of nothing yet.
    pub fn share(&self) -> Share<'_> {
        Share { of: self, bytes: 0, overdrawn: false }
    }
}

impl Share<'_> {
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether another share cannot grow now.
    pub fn is_wanted(&self) -> bool {
        self.of.state.lock().waiting > 0
    }

    /// Wait until there is room for so many bytes more. False: not in time.
    pub fn grow(&mut self, bytes: u64, deadline: Instant) -> bool {
        if bytes == 0 {
            return true;
        }
        let mut state = self.of.state.lock();
        while !self.overdrawn && state.used.saturating_add(bytes) > self.of.bound {
            if !state.overdrawn {
                state.overdrawn = true;
                self.overdrawn = true;
                break;
            }
            let Some(left) = deadline.checked_duration_since(Instant::now()) else { return false };
            state.waiting += 1;
            state = self.of.freed.wait_timeout(state, left);
            state.waiting -= 1;
        }
        state.used = state.used.saturating_add(bytes);
        self.bytes = self.bytes.saturating_add(bytes);
        true
    }
}

impl Drop for Share<'_> {
    fn drop(&mut self) {
        if self.bytes == 0 {
            return;
        }
        let mut state = self.of.state.lock();
        state.used = state.used.saturating_sub(self.bytes);
        if self.overdrawn {
            state.overdrawn = false;
        }
        drop(state);
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
        let mut large = inflight.share();
        assert!(large.grow(1000, now), "alone, anything fits");
        assert!(!inflight.share().grow(1, now));
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| inflight.share().grow(60, now + Duration::from_secs(30)));
            while !large.is_wanted() {
                std::thread::yield_now();
            }
            drop(large);
            assert!(waiting.join().unwrap());
        });
        assert_eq!(inflight.state.lock().used, 0);
    }

    #[test]
    fn shares_that_fill_the_bound_together_do_not_wait_for_each_other() {
        let inflight = Inflight::new(100);
        let now = Instant::now();
        let (mut a, mut b) = (inflight.share(), inflight.share());
        assert!(a.grow(50, now) && b.grow(50, now));
        assert!(a.grow(10, now), "one goes on");
        assert!(!b.grow(10, now), "the other waits for it");
        assert!(a.grow(40, now));
        drop(a);
        assert!(b.grow(50, now));
    }
}
