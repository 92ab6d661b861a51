//! What bounds a store in a directory, as its backend says in the features' `more`, and how much is to be evicted for it. Pure.

use std::time::Duration;

use crate::limits;

/// The bounds of a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Bound {
    pub max_bytes: Option<u64>,
    /// The most chunks and manifests.
    pub max_entries: Option<u64>,
    /// What was not used for so long goes.
    pub ttl: Option<Duration>,
    /// Bytes of the file system that stay free.
    pub keep_free: u64,
    /// Chunks that were stored or used within this stay.
    pub save_grace: Duration,
    /// The store evicts for `keep_free`, too.
    pub evicts: bool,
    /// What its owner may store. Nothing is evicted for it.
    pub quota: Option<u64>,
}

/// The facts in `more` that make a bound: whole numbers of bytes and seconds.
pub(super) const FACTS: [&str; 6] = ["max-bytes", "ttl-s", "keep-free", "save-grace-s", "evict", "max-entries"];

impl Bound {
    /// None: the backend asks for none.
    pub(super) fn parse(more: &[(String, String)]) -> Option<Self> {
        let number = |name: &str| {
            let (_, value) = more.iter().find(|(key, _)| key == name)?;
            value.parse::<u64>().ok()
        };
        let seconds = |name: &str| number(name).map(|seconds| Duration::from_secs(seconds.min(u32::MAX.into())));
        let [max_bytes, ttl, keep_free, save_grace, evict, max_entries] = FACTS;
        let bound = Bound {
            max_bytes: number(max_bytes).filter(|bytes| *bytes > 0),
            max_entries: number(max_entries).filter(|entries| *entries > 0),
            ttl: seconds(ttl),
            keep_free: number(keep_free).unwrap_or(0),
            save_grace: seconds(save_grace).unwrap_or(limits::SAVE_GRACE),
            evicts: number(evict) == Some(1),
            quota: None,
        };
        let bounded = bound.max_bytes.is_some() || bound.max_entries.is_some() || bound.ttl.is_some();
        let bound = Bound { evicts: bound.evicts || bounded, ..bound };
        (bound.evicts || bound.keep_free > 0).then_some(bound)
    }

    /// With what the operator lets its owner store. None: nothing bounds it.
    pub(super) fn with_quota(self, stored_bytes: Option<u64>) -> Option<Self> {
        let bound = Bound { quota: stored_bytes, ..self };
        (bound.evicts || bound.keep_free > 0 || bound.quota.is_some()).then_some(bound)
    }

    /// Bytes to evict so that the store is well below what it may have.
    pub(super) fn over(&self, used: u64) -> u64 {
        let Some(max) = self.max_bytes else { return 0 };
        let (high, low) = (max - max / 20, max - max / 10);
        if used > high { used - low } else { 0 }
    }

    /// How often the store is looked after though nobody asks for it. None: only then.
    pub(super) fn period(&self) -> Option<Duration> {
        let ttl = self.ttl.map(|ttl| (ttl / 10).clamp(Duration::from_secs(1), limits::UPKEEP_PERIOD));
        ttl.or_else(|| self.evicts.then_some(limits::UPKEEP_PERIOD))
    }
}

/// A disk that others may fill: what the store has evicted for it, and how far it may go.
#[derive(Debug, Default)]
pub(super) struct Pressure {
    /// What the store used when the space first fell short.
    began_at: Option<u64>,
    /// The same of files that could not be made, and what was left when it last was.
    ran_out_at: Option<(u64, u64)>,
}

impl Pressure {
    /// Bytes to evict because the file system had no room for a file: a twentieth. Half of what the store used at first stays, unless
    /// it has grown since: then what was freed served it, and not others.
    pub(super) fn ran_out(&mut self, used: u64) -> u64 {
        let first = match self.ran_out_at {
            Some((first, left)) if used <= left => first,
            _ => used,
        };
        let bytes = used.div_ceil(20).min(used.saturating_sub(first / 2));
        self.ran_out_at = Some((first, used - bytes));
        bytes
    }

    /// Bytes to evict so that `keep_free` is free again. Half of what the store used at first stays, whatever others do.
    pub(super) fn over(&mut self, bound: &Bound, used: u64, available: u64) -> u64 {
        let wanted = bound.keep_free.saturating_add(bound.keep_free / 20);
        if !bound.evicts || available >= wanted {
            self.began_at = None;
            return 0;
        }
        if available >= bound.keep_free && self.began_at.is_none() {
            return 0;
        }
        let began_at = *self.began_at.get_or_insert(used);
        (wanted - available).min(used.saturating_sub(began_at / 2))
    }

    /// Whether all that may go for the disk is gone.
    pub(super) fn is_spent(&self, used: u64) -> bool {
        self.began_at.is_some_and(|began_at| used <= began_at / 2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bound(facts: &[(&str, &str)]) -> Option<Bound> {
        Bound::parse(&facts.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect::<Vec<_>>())
    }

    #[test]
    fn a_bound_is_made_of_known_facts() {
        assert_eq!(bound(&[]), None);
        assert_eq!(bound(&[("fresh", "wanted"), ("max-bytes", "many")]), None);
        let kept = bound(&[("keep-free", "1000")]).unwrap();
        assert!(!kept.evicts && kept.period().is_none() && kept.over(u64::MAX) == 0);
        let bounded = bound(&[("max-bytes", "1000"), ("ttl-s", "60"), ("save-grace-s", "5")]).unwrap();
        assert!(bounded.evicts && bounded.period() == Some(Duration::from_secs(6)));
        assert_eq!(bounded.save_grace, Duration::from_secs(5));
        assert!(bound(&[("evict", "1")]).unwrap().evicts);
    }

    #[test]
    fn a_quota_bounds_a_store_that_asks_for_nothing() {
        assert_eq!(Bound::default().with_quota(None), None);
        assert_eq!(Bound::default().with_quota(Some(5)), Some(Bound { quota: Some(5), ..Bound::default() }));
        let kept = bound(&[("keep-free", "1000")]).unwrap();
        assert_eq!(kept.with_quota(None), Some(kept));
    }

    #[test]
    fn it_is_evicted_from_95_percent_on_to_90() {
        let bound = bound(&[("max-bytes", "1000")]).unwrap();
        assert_eq!((bound.over(950), bound.over(951), bound.over(2000)), (0, 51, 1100));
    }

    #[test]
    fn others_that_take_all_inodes_do_not_empty_the_store() {
        let mut pressure = Pressure::default();
        let mut used = 1000;
        for _ in 0..100 {
            used -= pressure.ran_out(used);
        }
        assert_eq!(used, 500);
        // What was freed serves the store itself.
        let mut pressure = Pressure::default();
        for _ in 0..100 {
            let freed = pressure.ran_out(1000);
            assert_eq!(freed, 50);
        }
        assert_eq!(Pressure::default().ran_out(0), 0);
        assert_eq!(
            bound(&[("max-entries", "1000")]).map(|bound| (bound.evicts, bound.max_entries)),
            Some((true, Some(1000)))
        );
    }

    #[test]
    fn others_that_fill_the_disk_do_not_empty_the_store() {
        let bound = bound(&[("keep-free", "100"), ("evict", "1")]).unwrap();
        let mut pressure = Pressure::default();
        assert_eq!(pressure.over(&bound, 1000, 100), 0, "there is enough");
        assert_eq!(pressure.over(&bound, 1000, 90), 15);
        let mut used = 1000;
        for _ in 0..100 {
            // Whatever is freed, others take.
            used -= pressure.over(&bound, used, 0);
        }
        assert_eq!(used, 500);
        assert!(pressure.is_spent(used));
        assert_eq!(pressure.over(&bound, used, 200), 0);
        assert!(!pressure.is_spent(used));
        assert_eq!(pressure.over(&bound, used, 0), 105, "it begins anew");
        let kept = Bound { evicts: false, ..bound };
        assert_eq!(pressure.over(&kept, 1000, 0), 0);
    }
}
