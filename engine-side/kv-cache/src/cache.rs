//! The cache of a process.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use kv_platform::sync::{Condvar, Mutex};

use crate::clock::{Clock, SystemClock};
use crate::config::{Config, PressureConfig, PressureKind};
use crate::counters::{Counters, Stats, add};
use crate::error::{Error, ErrorKind, Result};
use crate::key::Key;
use crate::kind::TierKind;
use crate::lane::Lane;
use crate::limits;
use crate::log;
use crate::policy::Policy;
use crate::pressure::{self, Pressure, Sample, SystemMemory};
use crate::tier::{Gc, Shared, StepHook, Tier};

/// A cache over the tiers that its config names. Clones are the same cache; any thread may use any of them at any time.
///
/// When the last clone and the last [`Hit`](crate::Hit) are gone, queued saves are waited for as [`Cache::shutdown`] does.
#[derive(Clone)]
pub struct Cache(Arc<Inner>);

struct Inner {
    policy: Policy,
    pressure: PressureConfig,
    save_to: TierKind,
    /// Tiers that could not be opened.
    failed: Vec<TierKind>,
    lanes: Vec<Arc<Lane>>,
    shared: Arc<Shared>,
    host: Arc<str>,
    end: Arc<End>,
    /// How long closing took so far, in nanoseconds.
    closing: AtomicU64,
    /// Disconnected when the threads of the lanes have let go of them.
    workers: Vec<Mutex<Receiver<()>>>,
    process: u32,
}

/// Whether the cache is closed, for threads that wait for something else.
#[derive(Default)]
struct End {
    closed: AtomicBool,
    waiting: Mutex<()>,
    changed: Condvar,
}

impl End {
    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    fn close(&self) {
        let _waiting = self.waiting.lock();
        self.closed.store(true, Ordering::Release);
        self.changed.notify_all();
    }

    /// Wait; false once the cache is closed.
    fn wait(&self, time: Duration) -> bool {
        let waiting = self.waiting.lock();
        drop(self.changed.wait_timeout_while(waiting, time, |_| !self.is_closed()));
        !self.is_closed()
    }
}

/// What a cache can be opened with besides its config.
#[derive(Default)]
pub struct Options {
    /// Where the time comes from; the system by default.
    pub clock: Option<Arc<dyn Clock>>,
    /// Who says how much memory is used; it is asked as often as the config says, whatever source that names.
    pub pressure: Option<Arc<dyn Pressure>>,
    /// Called after each step of the publish protocol, for tests.
    #[doc(hidden)]
    pub hook: Option<StepHook>,
}

impl Cache {
    /// Open a cache: take the directories' locks, and index what is in them. Headers and sections of row files are checked,
    /// payloads are when they are loaded; damaged files are set aside and counted.
    ///
    /// # Errors
    /// `InvalidArgument`: the config makes no sense. `Busy`: a directory belongs to another cache. `Io`, `Full`: no tier is left.
    /// A tier whose directory cannot be used is left out, counted ([`Stats::tiers_failed`]) and said on standard error.
    pub fn open(config: Config) -> Result<Cache> {
        Cache::open_with(config, Options::default())
    }

    /// The same, with a clock and a memory source of the caller's.
    pub fn open_with(config: Config, options: Options) -> Result<Cache> {
        config.check()?;
        let Some(save_to) = config.target() else { return Err(Error::invalid("the config has no tier")) };
        let shared = Arc::new(Shared {
            clock: options.clock.unwrap_or_else(|| Arc::new(SystemClock::default())),
            counters: Counters::default(),
            uses: AtomicU64::new(1),
            reservation_time_to_live: Duration::from_millis(config.policy.reservation_ms),
            hook: options.hook,
            warned_of_quant: AtomicBool::new(false),
            descriptor: config.descriptor.digest(),
        });
        let (mut tiers, mut failed, mut last_error) = (Vec::new(), Vec::new(), None);
        if let Some(ram) = &config.ram {
            tiers.push(Tier::memory(ram.budget.0, shared.clone()));
        }
        for (kind, files) in [(TierKind::RamFile, &config.ram_file), (TierKind::Disk, &config.disk)] {
            if let Some(files) = files {
                match Tier::files(kind, &files.path, files.exclusive, files.budget.0, shared.clone()) {
                    Ok(tier) => tiers.push(tier),
                    Err(error) if matches!(error.kind(), ErrorKind::Io | ErrorKind::Full) => {
                        log::warn(format_args!("the cache runs without the tier {kind:?}: {error}"));
                        add(&shared.counters.tiers_failed, 1);
                        failed.push(kind);
                        last_error = Some(error);
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        if let (true, Some(error)) = (tiers.is_empty(), last_error) {
            return Err(error);
        }
        // For people; a row without it is as good.
        let host: Arc<str> = kv_platform::system::host_name().into();
        let no_thread = |error| Error::io("cannot start a thread", error);
        let note_uses = Duration::from_millis(config.policy.note_uses_ms).min(limits::FOREVER);
        let (mut lanes, mut workers) = (Vec::new(), Vec::new());
        for tier in tiers {
            let started = Lane::start(tier, config.queue.clone(), note_uses, shared.clone(), host.clone());
            let (lane, worker) = started.map_err(no_thread)?;
            lanes.push(lane);
            workers.push(Mutex::new(worker));
        }
        let cache = Cache(Arc::new(Inner {
            policy: config.policy,
            pressure: config.pressure.clone(),
            save_to,
            failed,
            lanes,
            shared,
            host,
            end: Arc::default(),
            closing: AtomicU64::new(0),
            workers,
            process: std::process::id(),
        }));
        let source: Option<Arc<dyn Pressure>> = match (options.pressure, config.pressure.source) {
            (Some(source), _) => Some(source),
            (None, PressureKind::System) => Some(Arc::new(SystemMemory)),
            (None, PressureKind::None) => None,
        };
        if let Some(source) = source {
            let (weak, end) = (Arc::downgrade(&cache.0), cache.0.end.clone());
            let interval = Duration::from_millis(config.pressure.interval_ms);
            let seen = move |sample| {
                if let Some(cache) = weak.upgrade() {
                    Cache(cache).relieve(sample);
                }
            };
            pressure::watch(source, move || end.wait(interval), seen).map_err(no_thread)?;
        }
        Ok(cache)
    }

    /// What is worth saving.
    pub fn policy(&self) -> &Policy {
        &self.0.policy
    }

    /// What a look at memory asks for: from `high` on, evict the oldest rows of `ram`, then of `ram_file`, until less than `low`
    /// would be used. Rows in use stay. How many bytes were freed.
    pub fn relieve(&self, sample: Sample) -> u64 {
        let wanted = pressure::excess(sample, &self.0.pressure);
        let mut freed = 0;
        for lane in self.own_lanes().filter(|lane| lane.tier.kind.is_memory()) {
            if freed < wanted {
                let (rows, bytes) = lane.tier.evict_bytes(wanted - freed);
                add(&self.shared().counters.pressure_evictions, rows);
                freed += bytes;
            }
        }
        freed
    }

    /// Evict the row of this key from all tiers. How many tiers had it; rows in use stay.
    pub fn evict(&self, key: &Key) -> usize {
        self.own_lanes().filter(|lane| lane.tier.evict(key)).count()
    }

    /// Evict the oldest rows of a tier until `bytes` were freed or only rows in use are left. How many bytes were.
    pub fn evict_bytes(&self, tier: TierKind, bytes: u64) -> u64 {
        self.own_lanes().find(|lane| lane.tier.kind == tier).map_or(0, |lane| lane.tier.evict_bytes(bytes).1)
    }

    /// Bring all tiers in order: budgets, reservations whose time is over, files without a row and rows without a file,
    /// temporary files of dead writers, damaged files that were set aside. Payloads are not read: their damage is found by the
    /// load, or by [`tool::gc`](crate::tool::gc). Saves wait meanwhile, lookups do not.
    ///
    /// # Errors
    /// `Io`: a directory cannot be used. The other tiers are in order then.
    pub fn gc(&self) -> Result<Gc> {
        self.check_process()?;
        let mut gc = Gc::default();
        let mut failed = None;
        for lane in self.lanes() {
            match lane.tier.gc() {
                Ok(tier) => gc += tier,
                Err(error) => failed = Some(error),
            }
        }
        failed.map_or(Ok(gc), Err)
    }

    /// Read every row of files to its end, and set the damaged ones aside.
    pub(crate) fn check_rows(&self) {
        self.own_lanes().for_each(|lane| lane.tier.check_rows());
    }

    /// What happened since the cache was opened, and what it holds.
    pub fn stats(&self) -> Stats {
        let tiers = self.own_lanes().map(|lane| lane.tier.stats(lane.queued())).collect();
        self.shared().counters.stats(tiers)
    }

    /// Wait until all queued saves are stored or have failed. False where they are not after `timeout`.
    pub fn flush(&self, timeout: Duration) -> bool {
        self.0.flush(timeout)
    }

    /// Close the cache: wait for queued saves, drop those that are left after `timeout` (how many is answered, and counted),
    /// and note the order of use for the next process. Returns within `timeout` even if a disk stalls; the stalled write may
    /// still succeed later. Lookups and saves fail from now on; hits stay good. The directories' locks are released when the last
    /// clone and the last hit are gone.
    pub fn shutdown(&self, timeout: Duration) -> u64 {
        self.0.shutdown(timeout)
    }

    pub(crate) fn shared(&self) -> &Shared {
        &self.0.shared
    }

    pub(crate) fn host(&self) -> &str {
        &self.0.host
    }

    pub(crate) fn evict_save_timeout(&self) -> Duration {
        self.0.evict_save_timeout()
    }

    pub(crate) fn lanes(&self) -> impl Iterator<Item = &Arc<Lane>> {
        self.0.lanes.iter()
    }

    /// None in a forked child, where a lock of a lane may be held for ever.
    pub(crate) fn own_lanes(&self) -> impl Iterator<Item = &Arc<Lane>> {
        let ours = self.check_process().is_ok();
        self.lanes().filter(move |_| ours)
    }

    fn lane(&self, tier: TierKind) -> Option<&Arc<Lane>> {
        self.lanes().find(|lane| lane.tier.kind == tier)
    }

    pub(crate) fn lane_for_saves(&self, tier: Option<TierKind>) -> Result<&Arc<Lane>> {
        self.check_open()?;
        let tier = tier.unwrap_or(self.0.save_to);
        self.lane(tier).ok_or_else(|| match self.0.failed.contains(&tier) {
            true => Error::new(
                ErrorKind::Io,
                format!(
                    "the tier {tier:?} could not be used when the cache was opened; the log line of the open says why"
                ),
            ),
            false => Error::invalid(format!("the config has no tier {tier:?}")),
        })
    }

    pub(crate) fn check_open(&self) -> Result<()> {
        self.check_process()?;
        match self.0.end.is_closed() {
            true => Err(Error::new(ErrorKind::Closed, "the cache is closed")),
            false => Ok(()),
        }
    }

    /// In a forked child there are none of our threads, and a lock may be held for ever by one that is not there.
    pub(crate) fn check_process(&self) -> Result<()> {
        match std::process::id() == self.0.process {
            true => Ok(()),
            false => {
                Err(Error::new(ErrorKind::Closed, "the cache was opened before a fork; open another in the child"))
            }
        }
    }
}

impl Inner {
    fn flush(&self, timeout: Duration) -> bool {
        if std::process::id() != self.process {
            return false;
        }
        let deadline = Instant::now() + timeout.min(limits::FOREVER);
        self.lanes.iter().all(|lane| lane.flush(deadline))
    }

    fn shutdown(&self, timeout: Duration) -> u64 {
        if std::process::id() != self.process {
            return 0;
        }
        let start = Instant::now();
        self.flush(timeout);
        self.end.close();
        let dropped = self.lanes.iter().map(|lane| lane.close()).sum();
        self.wait_for_workers(start + timeout.min(limits::FOREVER));
        self.closing.fetch_add(start.elapsed().as_nanos() as u64, Ordering::Relaxed);
        dropped
    }

    /// Wait until the threads of the lanes are done: with the save that one is at, and with noting the order of use.
    fn wait_for_workers(&self, deadline: Instant) {
        for worker in &self.workers {
            let worker = worker.lock();
            let _ = worker.recv_timeout(deadline.saturating_duration_since(Instant::now()));
        }
    }

    fn evict_save_timeout(&self) -> Duration {
        Duration::from_millis(self.policy.evict_save_timeout_ms).min(limits::FOREVER)
    }

    /// What is left of the time that closing may take in all: a shutdown that came before has had its share.
    fn time_to_close(&self) -> Duration {
        self.evict_save_timeout().saturating_sub(Duration::from_nanos(self.closing.load(Ordering::Relaxed)))
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if std::process::id() != self.process {
            return;
        }
        let deadline = Instant::now() + self.time_to_close();
        if !self.end.is_closed() {
            self.shutdown(self.time_to_close());
        }
        // So that who opens the directories next finds their locks free; but a disk that hangs holds nobody up for ever.
        self.wait_for_workers(deadline);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Fingerprint, FingerprintMode, Identity, Reason, Save};

    #[test]
    fn a_shutdown_uses_up_the_time_that_the_end_may_take() {
        let (go_on, gate) = std::sync::mpsc::channel::<()>();
        let (comes, has_come) = std::sync::mpsc::channel();
        let gate = Mutex::new(gate);
        let hook: StepHook = Arc::new(move |_| {
            let _ = comes.send(());
            let _ = gate.lock().recv();
            Ok(())
        });
        let config =
            Config::parse("[ram]\nbudget = 100000\n[policy]\nevict_save_timeout_ms = 100\nmin_tokens = 1\n").unwrap();
        let cache = Cache::open_with(config, Options { hook: Some(hook), ..Options::default() }).unwrap();
        let fingerprint = Fingerprint { bytes: [1; 32], mode: FingerprintMode::Safe };
        let identity = Identity { fingerprint, quant: 1, context_hash: [2; 32] };
        cache.save(Save::new(&identity, &[1], b"x").reason(Reason::Finish)).unwrap();
        // One that was not begun yet is dropped, and nothing is waited for.
        has_come.recv().unwrap();
        assert_eq!(cache.0.time_to_close(), Duration::from_millis(100));
        cache.shutdown(Duration::from_millis(30));
        assert!(cache.0.time_to_close() <= Duration::from_millis(70));
        cache.shutdown(Duration::from_millis(70));
        assert_eq!(cache.0.time_to_close(), Duration::ZERO, "the drop waits no more");
        drop(go_on);
    }
}
