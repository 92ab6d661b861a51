//! What a tenant may use: bytes and operations a second, and guest CPU. Over it a put is refused with one line, and a get is a miss;
//! nobody waits. What others use is not touched.
//!
//! Each resource is counted in whole seconds; what was used beyond a second's worth is carried over, so that one large value is paid
//! for by the seconds after it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use kv_platform::sync::Mutex;

use crate::error::{Error, ErrorKind};
use crate::limits;

/// What a tenant, or a backend without tenants, may use. None: no bound.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Quota {
    /// Bytes of chunks and manifests in each store of a directory.
    #[serde(deserialize_with = "size")]
    pub stored_bytes: Option<u64>,
    /// Bytes of chunks and manifests that are put, and that are got, in a second.
    #[serde(deserialize_with = "size")]
    pub bytes_in_per_s: Option<u64>,
    #[serde(deserialize_with = "size")]
    pub bytes_out_per_s: Option<u64>,
    /// Calls of the consumer in a second.
    pub operations_per_s: Option<u64>,
    /// CPU time of the component in a second, in milliseconds.
    pub cpu_ms_per_s: Option<u64>,
}

/// A number of bytes, which may be written as `"512 MiB"`.
fn size<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    serde::Deserialize::deserialize(deserializer).map(|kv_size::Bytes(bytes)| Some(bytes))
}

/// What was used of one resource.
#[derive(Default)]
struct Meter {
    /// The last second that was paid for.
    second: AtomicU64,
    used: AtomicU64,
}

/// What one tenant has used of each.
#[derive(Default)]
pub struct Meters {
    bytes_in: Meter,
    bytes_out: Meter,
    operations: Meter,
    cpu_us: Meter,
    /// When the first call was metered.
    begun: OnceLock<Instant>,
}

/// What each backend and tenant of a process has used. Those without an open store are kept too, so that a quota is not evaded by
/// opening a store again.
#[derive(Default)]
pub struct Metered(Mutex<All>);

#[derive(Default)]
struct All {
    meters: HashMap<(String, Option<String>), Arc<Meters>>,
    /// How many there were left when those without an open store were last forgotten.
    in_use: usize,
}

impl Metered {
    /// The meters of a backend and a tenant.
    pub fn of(&self, backend: &str, tenant: Option<&str>) -> Arc<Meters> {
        let mut all = self.0.lock();
        let key = (backend.to_owned(), tenant.map(str::to_owned));
        if !all.meters.contains_key(&key) && all.meters.len() >= all.in_use.saturating_mul(2).max(limits::KEPT_METERS) {
            all.meters.retain(|_, meters| Arc::strong_count(meters) > 1);
            all.in_use = all.meters.len();
        }
        all.meters.entry(key).or_default().clone()
    }
}

impl Meter {
    fn charge(&self, amount: u64) {
        self.used.fetch_add(amount, Relaxed);
    }

    /// Whether nothing is left in this second.
    fn is_over(&self, limit: u64, second: u64) -> bool {
        let last = self.second.load(Relaxed);
        if last < second && self.second.compare_exchange(last, second, Relaxed, Relaxed).is_ok() {
            let paid = limit.saturating_mul(second - last);
            let _ = self.used.try_update(Relaxed, Relaxed, |used| Some(used.saturating_sub(paid)));
        }
        self.used.load(Relaxed) >= limit
    }
}

impl Quota {
    /// Whether what is used in a second is bounded.
    pub fn is_metered(&self) -> bool {
        [self.bytes_in_per_s, self.bytes_out_per_s, self.operations_per_s, self.cpu_ms_per_s]
            .iter()
            .any(Option::is_some)
    }

    /// Leave for one call that puts or gets.
    pub fn admit(&self, meters: &Meters, puts: bool, now: Instant) -> Result<(), Error> {
        let begun = *meters.begun.get_or_init(|| now);
        let second = now.saturating_duration_since(begun).as_secs();
        let bytes = match puts {
            true => ("bytes_in_per_s", self.bytes_in_per_s, &meters.bytes_in),
            false => ("bytes_out_per_s", self.bytes_out_per_s, &meters.bytes_out),
        };
        let operations = ("operations_per_s", self.operations_per_s, &meters.operations);
        let cpu = ("cpu_ms_per_s", self.cpu_ms_per_s, &meters.cpu_us);
        for ((name, limit, meter), units) in [(bytes, 1), (operations, 1), (cpu, 1000)] {
            if let Some(limit) = limit
                && meter.is_over(limit.saturating_mul(units), second)
            {
                let message = format!("over the quota {name} = {limit} of the config; try again in a second");
                return Err(Error::new(ErrorKind::Exhausted, message));
            }
        }
        meters.operations.charge(1);
        Ok(())
    }
}

impl Meters {
    pub fn put(&self, bytes: u64) {
        self.bytes_in.charge(bytes);
    }

    pub fn got(&self, bytes: u64) {
        self.bytes_out.charge(bytes);
    }

    /// A call of the component has taken so much processor time, in microseconds.
    pub fn ran(&self, microseconds: u64) {
        self.cpu_us.charge(microseconds);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_is_paid_for_and_what_is_over_is_carried_on() {
        let meter = Meter::default();
        assert!(!meter.is_over(100, 1));
        meter.charge(99);
        assert!(!meter.is_over(100, 1));
        meter.charge(250);
        assert!(meter.is_over(100, 1));
        assert!(meter.is_over(100, 2) && meter.is_over(100, 3));
        assert!(!meter.is_over(100, 4));
        assert!(!meter.is_over(100, 1000));
        assert!(Meter::default().is_over(0, 5), "nothing is allowed");
    }

    #[test]
    fn each_tenant_has_meters_of_its_own_however_many_there_are() {
        let (metered, quota) = (Metered::default(), Quota { operations_per_s: Some(1), ..Quota::default() });
        let now = Instant::now();
        let tenants: Vec<_> = (0..4 * limits::MAX_SERIES).map(|n| metered.of("b", Some(&n.to_string()))).collect();
        assert!(tenants.iter().all(|meters| quota.admit(meters, true, now).is_ok()), "it pays for another");
        let again = |n: usize| quota.admit(&metered.of("b", Some(&n.to_string())), true, now);
        assert!((0..tenants.len()).all(|n| again(n).is_err()), "opened once more it has what it had");
        let first = metered.of("b", Some("0"));
        drop(tenants);
        for n in 0..100 * limits::KEPT_METERS {
            metered.of("others", Some(&n.to_string()));
        }
        let kept = metered.0.lock().meters.len();
        assert!(kept <= 16 * limits::MAX_SERIES, "{kept}");
        assert!(Arc::ptr_eq(&first, &metered.of("b", Some("0"))), "what is in use stays");
    }

    #[test]
    fn each_quota_is_its_own_and_says_its_name() {
        let now = Instant::now();
        let meters = Meters::default();
        let quota = Quota { bytes_in_per_s: Some(10), ..Quota::default() };
        assert!(quota.is_metered() && !Quota { stored_bytes: Some(1), ..Quota::default() }.is_metered());
        meters.put(1 << 40);
        let refused = quota.admit(&meters, true, now).unwrap_err();
        assert!(refused.kind() == ErrorKind::Exhausted && refused.to_string().contains("bytes_in_per_s = 10"));
        assert!(quota.admit(&meters, false, now).is_ok(), "a get puts nothing");
        let quota = Quota { operations_per_s: Some(3), ..Quota::default() };
        let meters = Meters::default();
        let admitted = (0..1000).filter(|_| quota.admit(&meters, false, now).is_ok()).count();
        assert_eq!(admitted, 3);
        assert!(Quota::default().admit(&meters, true, now).is_ok());
        let quota = Quota { cpu_ms_per_s: Some(50), ..Quota::default() };
        (0..499).for_each(|_| meters.ran(100));
        assert!(quota.admit(&meters, false, now).is_ok(), "49.9 ms");
        meters.ran(100);
        let refused = quota.admit(&meters, false, now).unwrap_err().to_string();
        assert!(refused.contains("cpu_ms_per_s = 50"), "many short calls count as one long one: {refused}");
    }
}
