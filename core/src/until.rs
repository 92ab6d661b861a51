//! The time of one call of the consumer, however many calls of a guest it takes: `deadline_ms`, and the time that the bytes
//! justify which it moves. Nothing renews it. A caller's own timeout and a cancellation end it earlier.
//!
//! What is to be stored is known, and its time is granted at once ([`Until::grant`]). What is fetched is not: the time grows with
//! each byte that arrives ([`Until::moved`]), so a slow server is given up when it falls behind
//! [`DEADLINE_BYTES_PER_SECOND`](crate::limits::DEADLINE_BYTES_PER_SECOND), and a guest that moves bytes in a circle when it has
//! moved more than the call can answer ([`Until::expect`]).
//!
//! However much a call moves, it ends after the operator's maximum (`call_ms`), which nothing extends.
//!
//! Once a server has been waited for as long as the operator's patience, in vain, what is left of the call may take as long again
//! ([`Until::note_timeout`]): a call that meets servers that hang ends within twice the patience, however many items lie there and
//! however many calls of a guest it takes.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use kv_platform::sync::{Mutex, MutexGuard};

use crate::backend::{Change, ChunkHash, ChunkMap, Layout};
use crate::counters::Unanswered;
use crate::descriptor::{Described, DescriptorDigest};
use crate::error::{Error, ErrorKind};
use crate::limits::{self, Limits};
use crate::process::{Clock, Condition};

/// When one call of the consumer must be over. Clones are of the same call.
#[derive(Clone)]
pub struct Until {
    inner: Arc<Inner>,
    change: Option<Arc<Change>>,
    /// What the caller's manifests are.
    described: Described,
    /// Under which descriptors values lie is noted.
    notes_descriptors: bool,
}

struct Inner {
    clock: Clock,
    begun: Instant,
    allowed: Duration,
    /// The operator's maximum.
    longest: Duration,
    patience: Duration,
    /// When the call ends because a server hangs.
    given_up: OnceLock<Instant>,
    /// Bytes that are sure to be moved.
    granted: AtomicU64,
    /// Bytes that have arrived, and the most that count.
    moved: AtomicU64,
    expected: AtomicU64,
    /// The caller's own deadline.
    own: Option<Instant>,
    cancelled: Option<Arc<AtomicBool>>,
    /// The first [`limits::MAX_SERVERS_OF_A_CALL`] servers that answered or failed.
    servers: Mutex<Vec<MetServer>>,
    dropped: Mutex<Dropped>,
}

/// Why what was found is not answered, and what is noted of what is.
#[derive(Default)]
struct Dropped {
    chunks: ChunkMap<Unanswered>,
    manifest: Option<Unanswered>,
    /// Under which descriptors values lie, where that is noted.
    chunk_descriptors: ChunkMap<DescriptorDigest>,
    manifest_descriptor: Option<DescriptorDigest>,
}

/// A server that a call met.
struct MetServer {
    authority: String,
    /// What it did last.
    answered: bool,
}

impl Until {
    /// A call that begins now, by the machine's time.
    pub fn new(limits: &Limits) -> Self {
        Until::with(&Clock::default(), limits, None, None)
    }

    /// A call that begins now, and ends at the caller's own deadline too, or when the flag is set.
    pub fn with(clock: &Clock, limits: &Limits, own: Option<Instant>, cancelled: Option<Arc<AtomicBool>>) -> Self {
        let inner = Inner {
            begun: clock.now(),
            clock: clock.clone(),
            allowed: limits.deadline(),
            longest: limits.longest_call(),
            patience: limits.patience(),
            given_up: OnceLock::new(),
            granted: AtomicU64::new(0),
            moved: AtomicU64::new(0),
            expected: AtomicU64::new(0),
            own,
            cancelled,
            servers: Mutex::default(),
            dropped: Mutex::default(),
        };
        Until { inner: Arc::new(inner), change: None, described: Described::NOT, notes_descriptors: false }
    }

    /// By which it is over.
    pub fn clock(&self) -> &Clock {
        &self.inner.clock
    }

    /// The call moves these bytes for sure.
    pub fn grant(&self, bytes: u64) {
        self.inner.granted.fetch_add(bytes, Relaxed);
    }

    /// The call may answer so many bytes more.
    pub fn expect(&self, bytes: u64) {
        self.inner.expected.fetch_add(bytes, Relaxed);
    }

    /// Bytes have arrived.
    pub fn moved(&self, bytes: u64) {
        self.inner.moved.fetch_add(bytes, Relaxed);
    }

    /// A server was waited for so long, without a byte. A guest that waits for less than the operator lets it has its reasons.
    pub fn note_timeout(&self, patience: Duration) {
        if patience >= self.inner.patience {
            self.inner.given_up.get_or_init(|| self.inner.clock.now() + self.inner.patience);
        }
    }

    /// A server answered, or could not be reached or waited for.
    pub fn met(&self, authority: &str, answered: bool) {
        let mut servers = self.servers();
        if let Some(server) = servers.iter_mut().find(|server| server.authority == authority) {
            server.answered = answered;
        } else if servers.len() < limits::MAX_SERVERS_OF_A_CALL {
            servers.push(MetServer { authority: authority.to_owned(), answered });
        }
    }

    /// Whether some servers failed and others answered: what failed says nothing of the store as a whole.
    pub fn some_servers_unreachable(&self) -> bool {
        let servers = self.servers();
        servers.iter().any(|server| server.answered) && servers.iter().any(|server| !server.answered)
    }

    /// A chunk was found, and is not answered.
    pub fn dropped_chunk(&self, hash: &ChunkHash, why: Unanswered) {
        self.dropped().chunks.insert(hash.lying(Layout::Plain), why);
    }

    /// A manifest was found, and is not answered.
    pub fn dropped_manifest(&self, why: Unanswered) {
        self.dropped().manifest = Some(why);
    }

    /// Why a chunk is not answered of which nothing failed.
    pub fn why_no_chunk(&self, hash: &ChunkHash) -> Unanswered {
        self.dropped().chunks.get(&hash.lying(Layout::Plain)).copied().unwrap_or(Unanswered::Absent)
    }

    /// Whether a chunk lies under another descriptor: it is not looked for elsewhere.
    pub fn is_others(&self, hash: &ChunkHash) -> bool {
        self.why_no_chunk(hash) == Unanswered::Descriptor
    }

    /// The same for the manifest of the call.
    pub fn why_no_manifest(&self) -> Unanswered {
        self.dropped().manifest.unwrap_or(Unanswered::Absent)
    }

    fn dropped(&self) -> MutexGuard<'_, Dropped> {
        self.inner.dropped.lock()
    }

    fn servers(&self) -> MutexGuard<'_, Vec<MetServer>> {
        self.inner.servers.lock()
    }

    /// When the call ends, as far as is known now.
    pub fn deadline(&self) -> Instant {
        let latest = self.latest();
        self.inner.given_up.get().map_or(latest, |given_up| latest.min(*given_up))
    }

    /// How long it is until then.
    pub fn left(&self) -> Duration {
        self.deadline().saturating_duration_since(self.inner.clock.now())
    }

    /// The latest that the call may end, as far as is known now: of what was told before as its deadline nothing is later.
    pub fn latest(&self) -> Instant {
        let Inner { begun, longest, own, .. } = &*self.inner;
        let latest = *begun + self.extended().min(*longest);
        own.map_or(latest, |own| own.min(latest))
    }

    /// `deadline_ms`, and the time that bytes justify.
    fn extended(&self) -> Duration {
        let Inner { allowed, granted, moved, expected, .. } = &*self.inner;
        let bytes = granted.load(Relaxed).saturating_add(moved.load(Relaxed).min(expected.load(Relaxed)));
        allowed.saturating_add(limits::time_to_move(bytes))
    }

    /// What ends the call, as far as is known now: the setting, and whose it is.
    pub fn ended_by(&self) -> &'static str {
        match () {
            () if self.is_cut_short() => "timeout_ms, which the caller gave",
            () if self.ends_by_patience() => "patience_ms in the config: a server hangs",
            () if self.extended() > self.inner.longest => "call_ms in the config, which no byte extends",
            () => "deadline_ms in the config",
        }
    }

    /// The time of the same call, of which this part makes a change.
    pub fn changing(&self, change: Arc<Change>) -> Self {
        Until { change: Some(change), ..self.clone() }
    }

    /// The time of the same call, whose manifest is one of this descriptor.
    pub fn describing(&self, described: Described) -> Self {
        Until { described, ..self.clone() }
    }

    /// The same call, which notes under which descriptors the values lie that it reads.
    pub fn noting_descriptors(&self) -> Self {
        Until { notes_descriptors: true, ..self.clone() }
    }

    /// A chunk lies under a descriptor.
    pub fn note_chunk(&self, hash: &ChunkHash, descriptor: Option<DescriptorDigest>) {
        if let Some(descriptor) = descriptor.filter(|_| self.notes_descriptors) {
            self.dropped().chunk_descriptors.insert(hash.lying(Layout::Plain), descriptor);
        }
    }

    /// The manifest of the call lies under a descriptor.
    pub fn note_manifest(&self, descriptor: Option<DescriptorDigest>) {
        if self.notes_descriptors {
            self.dropped().manifest_descriptor = descriptor;
        }
    }

    /// Under which descriptor a chunk lies that was read.
    pub fn descriptor_of_chunk(&self, hash: &ChunkHash) -> Option<DescriptorDigest> {
        self.dropped().chunk_descriptors.get(&hash.lying(Layout::Plain)).copied()
    }

    /// The same for the manifest of the call.
    pub fn descriptor_of_manifest(&self) -> Option<DescriptorDigest> {
        self.dropped().manifest_descriptor
    }

    /// What the manifest of the call is.
    pub fn described(&self) -> Described {
        self.described
    }

    /// The change that the running call of the component makes.
    pub fn change(&self) -> Option<&Arc<Change>> {
        self.change.as_ref()
    }

    /// Bytes go out during the running call of the component.
    pub fn sending(&self) {
        if let Some(change) = &self.change {
            change.sending();
        }
    }

    /// The caller's own deadline.
    pub fn end(&self) -> Option<Instant> {
        self.inner.own
    }

    /// The time that the bytes justify which are moved for sure.
    pub fn time_to_move(&self) -> Duration {
        limits::time_to_move(self.inner.granted.load(Relaxed))
    }

    /// Whether the caller's own deadline comes before that of the limits.
    pub fn is_cut_short(&self) -> bool {
        self.inner.own.is_some_and(|own| own <= self.deadline())
    }

    /// Whether the call ends because a server was waited for in vain, and not at its deadline.
    pub fn ends_by_patience(&self) -> bool {
        self.inner.given_up.get().is_some_and(|given_up| *given_up <= self.deadline())
    }

    /// When guest code is stopped.
    pub fn stop_at(&self) -> Instant {
        self.deadline() + limits::DEADLINE_GRACE
    }

    /// Whether the time that the limits give is over, which is the backend's doing and not its caller's.
    pub fn is_over(&self) -> bool {
        !self.is_cancelled() && !self.is_cut_short() && self.inner.clock.now() >= self.deadline()
    }

    fn is_cancelled(&self) -> bool {
        self.inner.cancelled.as_ref().is_some_and(|cancelled| cancelled.load(Relaxed))
    }

    /// Wait for others to change what is under this lock, for a while and within the time of the call. What it waits for may not be true then.
    pub fn wait<'a, T>(
        &self,
        condition: &Condition,
        lock: &'a Mutex<T>,
        guard: MutexGuard<'a, T>,
    ) -> Result<MutexGuard<'a, T>, Error> {
        self.check()?;
        // A caller that cancels wakes nobody.
        Ok(condition.wait_timeout(lock, guard, self.left().min(limits::HELD_CHANGE_LOOK)))
    }

    /// Whether another call of the guest may begin.
    pub fn check(&self) -> Result<(), Error> {
        if self.is_cancelled() {
            return Err(Error::new(ErrorKind::Cancelled, "the request was cancelled"));
        }
        if self.inner.clock.now() >= self.deadline() {
            let message = match self.is_cut_short() {
                true => "the time that the caller gave (timeout_ms) is over",
                false if self.ends_by_patience() => {
                    "a server hangs, and what was left of the call has had as much time again (patience_ms in the config)"
                }
                false if self.extended() > self.inner.longest => {
                    "the call has moved bytes for as long as any call may take (call_ms in the config)"
                }
                false => "the time of the call is over, and not every item was answered (deadline_ms in the config)",
            };
            return Err(Error::new(ErrorKind::Unavailable, message));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(until: &Until) -> f64 {
        until.deadline().duration_since(until.inner.begun).as_secs_f64()
    }

    #[test]
    fn time_grows_with_bytes_that_count_and_with_no_others() {
        let limits = Limits { deadline_ms: 1000, ..Limits::default() };
        let until = Until::new(&limits);
        assert_eq!(seconds(&until), 1.0);
        until.grant(16 << 20);
        assert_eq!(seconds(&until), 3.0);
        until.moved(80 << 20);
        assert_eq!(seconds(&until), 3.0, "nothing was expected");
        until.expect(8 << 20);
        assert_eq!(seconds(&until), 4.0, "and no more than was expected counts");
        assert!(until.check().is_ok());
    }

    #[test]
    fn descriptors_are_noted_for_those_who_ask() {
        let (until, hash) = (Until::new(&Limits::default()), ChunkHash::new(b"a chunk").unwrap());
        let descriptor = DescriptorDigest::read(&[7; 16]).unwrap();
        for (until, noted) in [(until.clone(), None), (until.noting_descriptors(), Some(descriptor))] {
            until.note_chunk(&hash, Some(descriptor));
            until.note_manifest(Some(descriptor));
            assert_eq!((until.descriptor_of_chunk(&hash), until.descriptor_of_manifest()), (noted, noted));
        }
    }

    #[test]
    fn no_byte_extends_the_operators_maximum() {
        let limits = Limits { deadline_ms: 2000, call_ms: 5000, ..Limits::default() };
        let until = Until::new(&limits);
        until.expect(1 << 30);
        until.moved(8 << 20);
        assert_eq!((seconds(&until), until.ended_by()), (3.0, "deadline_ms in the config"));
        until.moved(1 << 30);
        assert_eq!(seconds(&until), 5.0, "and not 130");
        until.grant(1 << 40);
        assert_eq!((seconds(&until), until.ended_by()), (5.0, "call_ms in the config, which no byte extends"));
        let late = Until::with(&Clock::default(), &limits, Some(Instant::now()), None);
        assert!(late.ended_by().starts_with("timeout_ms"));
        assert_eq!(seconds(&Until::new(&Limits { deadline_ms: 9000, ..limits })), 9.0, "a longer deadline stays");
        let over = Until::new(&Limits { deadline_ms: 1, call_ms: 1, ..Limits::default() });
        over.grant(1 << 30);
        std::thread::sleep(Duration::from_millis(5));
        assert!(over.check().is_err_and(|error| error.to_string().contains("call_ms")));
    }

    #[test]
    fn a_wait_in_vain_leaves_as_much_time_again_once() {
        let limits = Limits { deadline_ms: 60_000, patience_ms: 1000, ..Limits::default() };
        let until = Until::new(&limits);
        until.note_timeout(Duration::from_millis(999));
        assert_eq!(seconds(&until), 60.0, "a guest's own patience is its own");
        assert!(!until.ends_by_patience());
        until.note_timeout(Duration::from_millis(1000));
        let first = seconds(&until);
        assert!((1.0..2.0).contains(&first), "{first}");
        std::thread::sleep(Duration::from_millis(5));
        until.clone().note_timeout(Duration::from_millis(1500));
        until.grant(1 << 30);
        assert_eq!(seconds(&until), first);
        let soon = Until::new(&Limits { patience_ms: 1, ..limits });
        soon.note_timeout(Duration::from_millis(1));
        std::thread::sleep(Duration::from_millis(5));
        assert!(soon.ends_by_patience());
        assert!(soon.check().is_err_and(|error| error.to_string().contains("patience_ms")));
    }

    #[test]
    fn some_servers_are_lost_while_others_answer() {
        let until = Until::new(&Limits::default());
        assert!(!until.some_servers_unreachable());
        until.met("a:1", false);
        assert!(!until.some_servers_unreachable(), "no other server answered");
        until.clone().met("b:1", true);
        assert!(until.some_servers_unreachable());
        // A kept connection was closed, and a new one serves.
        until.met("a:1", true);
        assert!(!until.some_servers_unreachable());
        ["a:1", "b:1"].iter().for_each(|server| until.met(server, false));
        assert!(!until.some_servers_unreachable(), "all are lost");
        (0..2 * limits::MAX_SERVERS_OF_A_CALL).for_each(|port| until.met(&format!("c:{port}"), false));
        assert_eq!(until.servers().len(), limits::MAX_SERVERS_OF_A_CALL);
    }

    #[test]
    fn a_timeout_or_a_cancellation_ends_it() {
        let now = Instant::now();
        let late = Until::with(&Clock::default(), &Limits::default(), Some(now), None);
        assert!(late.deadline() <= now && late.check().is_err_and(|error| error.kind() == ErrorKind::Unavailable));
        let flag = Arc::new(AtomicBool::new(false));
        let until = Until::with(&Clock::default(), &Limits::default(), None, Some(flag.clone()));
        assert!(until.check().is_ok());
        flag.store(true, Relaxed);
        assert!(until.check().is_err_and(|error| error.kind() == ErrorKind::Cancelled));
    }
}
