//! Keeps the log short while a server is away: a line that says again what was said is counted in place of being written, and
//! what the process writes in an hour is bounded.
//!
//! Atomics only: a lock that is held while another thread forks would stay locked in the child.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use crate::limits;

/// Places of which one line may take one.
const PROBED: usize = 8;
/// The upper half of a place tells its line from others, the lower half is the second of its last writing, from 1.
const SECOND: u64 = 0xffff_ffff;

/// Lines that were written of late, each with how often it was not written since.
pub(super) struct Repeats {
    places: [Cause; limits::LOG_CAUSES],
}

struct Cause {
    line: AtomicU64,
    more: AtomicU64,
}

impl Repeats {
    pub(super) const fn new() -> Self {
        Repeats { places: [const { Cause { line: AtomicU64::new(0), more: AtomicU64::new(0) } }; limits::LOG_CAUSES] }
    }

    /// Whether a line may be written now, and how often it was not since it last was. `which` tells lines apart, and is the hash of
    /// what does. Where there are more different lines than places, the one that was written longest ago is forgotten.
    pub(super) fn admit(&self, which: u64, now: Duration) -> Option<u64> {
        let second = (now.as_secs() + 1).min(SECOND);
        let written = (which & !SECOND) | second;
        loop {
            let near =
                (0..PROBED).filter_map(|n| self.places.get((which as usize).wrapping_add(n) % limits::LOG_CAUSES));
            let seen: Vec<(&Cause, u64)> = near.map(|place| (place, place.line.load(Relaxed))).collect();
            let own = seen.iter().find(|(_, line)| *line != 0 && line & !SECOND == which & !SECOND);
            if let Some((place, line)) = own {
                if second.saturating_sub(line & SECOND) < limits::LOG_REPEATED.as_secs() {
                    place.more.fetch_add(1, Relaxed);
                    return None;
                }
                if place.line.compare_exchange(*line, written, Relaxed, Relaxed).is_ok() {
                    return Some(place.more.swap(0, Relaxed));
                }
                continue;
            }
            let (place, line) = seen.into_iter().min_by_key(|(_, line)| line & SECOND)?;
            if place.line.compare_exchange(line, written, Relaxed, Relaxed).is_ok() {
                place.more.store(0, Relaxed);
                return Some(0);
            }
        }
    }
}

/// What some lines may have in an hour, in bytes. In no hour twice that is passed, and nothing is refused before half of it is used.
pub(super) struct Hour {
    /// Half of what an hour may have at most.
    bytes: u64,
    /// When all that was written is paid for, in nanoseconds of the clock that never goes back.
    paid: AtomicU64,
    dropped: AtomicU32,
}

impl Hour {
    /// At most so many bytes in any hour.
    pub(super) const fn of(most: u64) -> Self {
        Hour { bytes: most / 2, paid: AtomicU64::new(0), dropped: AtomicU32::new(0) }
    }

    /// How many lines were dropped before this one. None: this one is, too.
    pub(super) fn take(&self, bytes: usize, now: Duration) -> Option<u32> {
        const HOUR: u64 = 3600 * 1_000_000_000;
        let now = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
        // Where lines were dropped, one more says so.
        let told = if self.dropped.load(Relaxed) > 0 { 128 } else { 0 };
        let cost = (HOUR / self.bytes.max(1)).saturating_mul(bytes as u64 + told);
        let pay = |paid: u64| Some(paid.max(now).saturating_add(cost)).filter(|paid| paid - now <= HOUR);
        match self.paid.try_update(Relaxed, Relaxed, pay) {
            Ok(_) => Some(self.dropped.swap(0, Relaxed)),
            Err(_) => {
                self.dropped.fetch_add(1, Relaxed);
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_line_is_written_once_and_then_each_minute_with_its_count() {
        let repeats = Repeats::new();
        let (one, other) = (0x1111_0000_0000_0001, 0x2222_0000_0000_0001);
        assert_eq!(repeats.admit(one, at(0)), Some(0));
        (0..1000).for_each(|n| assert_eq!(repeats.admit(one, at(n * 59 / 1000)), None));
        assert_eq!(repeats.admit(other, at(59)), Some(0), "of another cause");
        assert_eq!(repeats.admit(one, at(60)), Some(1000));
        assert_eq!(repeats.admit(one, at(61)), None);
        assert_eq!(repeats.admit(one, at(10_000)), Some(1));
        assert_eq!(repeats.admit(0, at(0)), Some(0), "a hash may be 0");
        assert_eq!(repeats.admit(0, at(0)), None);
    }

    #[test]
    fn threads_that_fail_at_once_write_one_line() {
        let repeats = Repeats::new();
        let written = AtomicU32::new(0);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..10_000 {
                        let admitted = repeats.admit(0x77_0000_0000_0005, at(5));
                        written.fetch_add(u32::from(admitted.is_some()), Relaxed);
                    }
                });
            }
        });
        assert_eq!(written.into_inner(), 1);
        assert_eq!(repeats.admit(0x77_0000_0000_0005, at(65)), Some(79_999));
    }

    #[test]
    fn any_number_of_causes_takes_bounded_memory() {
        let repeats = Repeats::new();
        let new = (0..100_000u64).filter(|n| repeats.admit(n.wrapping_mul(0x9e37_79b9_7f4a_7c15), at(*n)).is_some());
        assert_eq!(new.count(), 100_000);
        assert!(size_of::<Repeats>() < 8192);
    }

    #[test]
    fn an_hour_has_what_it_may_and_tells_what_was_dropped() {
        const MOST: u64 = 1 << 20;
        let hour = Hour::of(MOST);
        // As fast as lines come for five hours: whichever hour is looked at, it has no more.
        let mut written = std::collections::VecDeque::new();
        let (mut most, mut said, mut told) = (0, 0, 0);
        for tenth in 0..5 * 36_000u64 {
            let now = Duration::from_millis(tenth * 100);
            for _ in 0..5 {
                if let Some(dropped) = hour.take(200, now) {
                    (said, told) = (said + 1, told + u64::from(dropped));
                    written.push_back(tenth);
                }
            }
            while written.front().is_some_and(|then| tenth - then >= 36_000) {
                written.pop_front();
            }
            most = most.max(200 * written.len() as u64);
        }
        assert!(most <= MOST && most > MOST * 8 / 10, "{most} of {MOST}");
        told += u64::from(hour.take(200, at(6 * 3600)).unwrap_or_default());
        assert_eq!(said + told, 5 * 5 * 36_000, "each is written or counted");
    }
}
