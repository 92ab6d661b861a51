//! Faults at the boundary to a component, for tests of what stands on either side: calls that fail, wait, trap or kill the
//! process, answers that are short, damaged or made up. [`install`] has the table `fault` of a backend's config obeyed.
//!
//! The fault injected into a call is a deterministic function of the seed, the operation, the hashes or the name that it is
//! about, and how often that was asked before: neither the order of threads nor that of a batch changes it, so a seed replays
//! a run.

mod config;
mod dice;

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime};

use kv_store_wasm::raw::backend::{
    Answers, Backend, BackendLayer, ChunkHash, ChunkToPut, Committed, Got, Opening, Target, Wrap, contract_violation,
    expect_some,
};
use kv_store_wasm::raw::log::{Level, line};
use kv_store_wasm::raw::{Clock, Time, Until};
use kv_store_wasm::{Buffer, Error, ErrorKind, Host, HostBuilder, Presence, Put};

pub use config::{Chance, Fault};
use dice::{Dice, digest};

/// Calls that are told apart when it is counted how often each was made; others share a count.
const COUNTS: usize = 1024;

/// When the clock of the stores was stopped, and the milliseconds that have passed on it since.
static STOPPED: OnceLock<Instant> = OnceLock::new();
static PASSED: AtomicU64 = AtomicU64::new(0);

/// Have faults injected into the stores that this process opens, where the config has a table `fault`, and let [`pass`] stop their
/// clock.
pub fn install() {
    make_default(Host::builder());
}

/// The same, with a further layer next to the instances, inside the faults.
pub fn install_with(layer: impl BackendLayer + 'static) {
    make_default(Host::builder().layer(layer));
}

fn make_default(builder: HostBuilder) {
    let host = builder.layer(Injector).clock(Clock::of(Arc::new(Stoppable))).build();
    // The first host of the process stays: a second call changes nothing.
    let _ = host.is_ok_and(|host| host.make_default());
}

/// Let time pass on the clock by which stores know how long ago a backend said something. From the first call on it stands still
/// but for this. Deadlines go by the real time.
pub fn pass(time: Duration) {
    STOPPED.get_or_init(Instant::now);
    PASSED.fetch_add(time.as_millis() as u64, Relaxed);
}

/// The machine's time until [`pass`] stops it.
struct Stoppable;

impl Time for Stoppable {
    fn now(&self) -> Instant {
        match STOPPED.get() {
            Some(stopped) => *stopped + Duration::from_millis(PASSED.load(Relaxed)),
            None => Instant::now(),
        }
    }

    fn wall(&self) -> SystemTime {
        SystemTime::now()
    }
}

/// The faults of one store.
struct Faults {
    fault: Fault,
    seed: u64,
    counts: [AtomicU32; COUNTS],
}

#[derive(Clone, Copy)]
enum Operation {
    Open,
    Exists,
    PutChunks,
    GetChunks,
    Commit,
    GetManifest,
    DeleteManifest,
    DeleteChunks,
}

/// Whether the component has done its work when the fault comes.
#[derive(Clone, Copy)]
enum When {
    Before,
    After,
}

impl When {
    fn text(self) -> &'static str {
        match self {
            When::Before => "before the call",
            When::After => "after the call",
        }
    }
}

enum Fate {
    Well,
    Crash(When),
    Trap(When),
    Fail(When),
    Lie,
}

impl Faults {
    fn parse(table: &str) -> Result<Self, Error> {
        let fault: Fault = toml::from_str(table).map_err(|error| Error::invalid(error.message().to_owned()))?;
        let seed = match fault.seed {
            Some(seed) => seed,
            None => {
                let mut bytes = [0; 8];
                getrandom::fill(&mut bytes).map_err(|error| Error::invalid(format!("no random bytes: {error}")))?;
                // What TOML can hold.
                u64::from_le_bytes(bytes) >> 1
            }
        };
        Ok(Faults { fault, seed, counts: [const { AtomicU32::new(0) }; COUNTS] })
    }

    /// The dice for a call about some items, in whatever order.
    fn dice<'a>(&self, operation: Operation, items: impl Iterator<Item = &'a [u8]>) -> Dice {
        // Opens are counted in the process: a store that did not open is another one when it is tried again.
        static OPENS: AtomicU32 = AtomicU32::new(0);
        let start = self.seed ^ operation as u64;
        let key = items.fold(start, |key, item| key.wrapping_add(digest(item, start)));
        let count = match operation {
            Operation::Open => OPENS.fetch_add(1, Relaxed),
            _ => self.counts.get(key as usize % COUNTS).map_or(0, |count| count.fetch_add(1, Relaxed)),
        };
        Dice::new(digest(&count.to_le_bytes(), key))
    }

    fn fate(&self, dice: &mut Dice) -> Fate {
        let Fault { crash, trap, fail, lie, .. } = self.fault;
        // Each is thrown for, so that one chance that is changed leaves the others' throws where they were.
        let [crash, trap, fail, lie] = [crash, trap, fail, lie].map(|chance| dice.met(chance));
        let when = if dice.below(2) == 0 { When::Before } else { When::After };
        match () {
            () if crash => Fate::Crash(when),
            () if trap => Fate::Trap(when),
            () if fail => Fate::Fail(when),
            () if lie => Fate::Lie,
            () => Fate::Well,
        }
    }

    /// Hold a call up, on the thread that makes it; no longer than the call may take.
    fn delay(&self, dice: &mut Dice, until: &Until) {
        let delayed = dice.met(self.fault.delay);
        let wanted = Duration::from_millis(dice.below(u64::from(self.fault.delay_ms) + 1));
        if delayed {
            std::thread::sleep(wanted.min(until.stop_at().saturating_duration_since(Instant::now())));
        }
    }

    /// How many of a batch's answers are given.
    fn answered(&self, dice: &mut Dice, len: usize) -> usize {
        let short = dice.met(self.fault.short);
        let fewer = 1 + dice.below((len as u64).saturating_sub(1).max(1)) as usize;
        if short { fewer.min(len) } else { len }
    }

    /// Which bit of fetched bytes is another, and how many of them are answered.
    fn damage(&self, dice: &mut Dice, len: usize) -> (Option<u64>, usize) {
        let (flip, cut) = (dice.met(self.fault.flip), dice.met(self.fault.cut));
        if !flip && !cut {
            return (None, len);
        }
        let bit = dice.below((len as u64 * 8).max(1));
        let left = if cut { dice.below((len as u64).max(1)) as usize } else { len };
        ((flip && len > 0).then_some(bit), left)
    }

    /// Fetched bytes in memory of the host's own, perhaps damaged.
    fn damage_buffer(&self, dice: &mut Dice, data: Arc<Buffer>) -> Result<Arc<Buffer>, Error> {
        let (flipped, left) = self.damage(dice, data.len());
        if flipped.is_none() && left == data.len() {
            return Ok(data);
        }
        let mut bytes = data.to_vec();
        if let Some(bit) = flipped
            && let Some(byte) = bytes.get_mut((bit / 8) as usize)
        {
            *byte ^= 1 << (bit % 8);
        }
        bytes.truncate(left);
        Buffer::concat(&[&bytes]).map(Arc::new)
    }

    /// Fetched bytes in the caller's memory, perhaps damaged. Returns how many are answered.
    fn damage_placed(&self, dice: &mut Dice, target: &mut Target<'_>, len: usize) -> usize {
        let (flipped, left) = self.damage(dice, len);
        let Some(bit) = flipped else { return left };
        let mut at = (bit / 8) as usize;
        for piece in target.pieces().unwrap_or_default() {
            if at < piece.iov_len {
                // SAFETY: the target's memory is valid and nobody else's, and the call has initialised its first `len` bytes.
                unsafe { *piece.iov_base.cast::<u8>().add(at) ^= 1 << (bit % 8) };
                break;
            }
            at -= piece.iov_len;
        }
        left
    }
}

/// Injects what the table `fault` of a backend's config asks for.
struct Injector;

impl BackendLayer for Injector {
    fn open(&self, store: &Opening<'_>) -> Result<Option<Wrap>, Error> {
        let Some(table) = store.fault else { return Ok(None) };
        let faults = Faults::parse(table)?;
        let (uri, seed) = (store.uri, faults.seed);
        line(Level::Warn, format_args!("{uri}: faults are injected, as the config says; their seed is {seed}"));
        let mut dice = faults.dice(Operation::Open, std::iter::empty());
        faults.delay(&mut dice, store.until);
        match faults.fate(&mut dice) {
            // Made-up features would be another backend.
            Fate::Well | Fate::Lie | Fate::Crash(_) => Ok(Some(Box::new(|inner| Arc::new(Faulty { faults, inner })))),
            Fate::Trap(_) => Err(Error::new(ErrorKind::Component, "trapped: injected, at the open")),
            Fate::Fail(_) => Err(failure(&mut dice, "at the open")),
        }
    }

    fn check_fault(&self, table: &str) -> Option<Result<(), Error>> {
        Some(Faults::parse(table).map(drop))
    }
}

/// A backend with its faults.
struct Faulty {
    faults: Faults,
    inner: Arc<dyn Backend>,
}

impl Faulty {
    /// One call. `lie` makes an answer up.
    fn call<T>(
        &self,
        dice: &mut Dice,
        until: &Until,
        ask: impl FnOnce(&dyn Backend) -> Result<T, Error>,
        lie: impl FnOnce(&mut Dice) -> Result<T, Error>,
    ) -> Result<T, Error> {
        self.faults.delay(dice, until);
        match self.faults.fate(dice) {
            Fate::Well => ask(&*self.inner),
            // An answer that cannot be ends the instance, as a component's own does.
            Fate::Lie => lie(dice).inspect_err(|_| self.inner.retire()),
            Fate::Fail(when) => {
                let error = failure(dice, when.text());
                if matches!(when, When::After) {
                    drop(ask(&*self.inner));
                }
                Err(error)
            }
            Fate::Trap(when) => {
                if matches!(when, When::After) {
                    ask(&*self.inner)?;
                }
                self.inner.retire();
                Err(Error::new(ErrorKind::Component, format!("trapped: injected, {}", when.text())))
            }
            Fate::Crash(When::Before) => die(),
            Fate::Crash(When::After) => {
                let _lost = ask(&*self.inner)?;
                die()
            }
        }
    }

    /// A list that is made up, of about as many items as were asked for.
    fn made_up<T>(dice: &mut Dice, asked: usize, item: impl Fn(&mut Dice) -> Result<T, Error>) -> Answers<T> {
        let count = dice.miscount(asked);
        expect_some((0..count).map(|_| item(dice)).collect(), asked)
    }
}

impl Backend for Faulty {
    fn exists(&self, hashes: &[ChunkHash], until: &Until) -> Answers<Presence> {
        let mut dice = self.faults.dice(Operation::Exists, each(hashes));
        let item = |dice: &mut Dice| Ok(if dice.below(2) == 0 { Presence::Present(None) } else { Presence::Absent });
        let lie = |dice: &mut Dice| Faulty::made_up(dice, hashes.len(), item);
        let mut answers = self.call(&mut dice, until, |inner| inner.exists(hashes, until), lie)?;
        answers.truncate(self.faults.answered(&mut dice, answers.len()));
        Ok(answers)
    }

    fn put(&self, chunks: &[ChunkToPut<'_>], replace: bool, until: &Until) -> Answers<Put> {
        let mut dice = self.faults.dice(Operation::PutChunks, chunks.iter().map(|(hash, _)| hash.as_slice()));
        let item = |dice: &mut Dice| match dice.below(2) {
            0 => Ok(Put::New),
            _ if replace => Err(contract_violation("answered `existed` to a chunk that it was to replace")),
            _ => Ok(Put::Existed),
        };
        let lie = |dice: &mut Dice| Faulty::made_up(dice, chunks.len(), item);
        let mut answers = self.call(&mut dice, until, |inner| inner.put(chunks, replace, until), lie)?;
        for ((hash, _), answer) in chunks.iter().zip(&mut answers) {
            let mut dice = dice.of_item(hash.as_slice());
            if dice.met(self.faults.fault.fail) {
                *answer = Err(failure(&mut dice, "one item"));
            }
        }
        answers.truncate(self.faults.answered(&mut dice, answers.len()));
        Ok(answers)
    }

    fn get(&self, hashes: &[ChunkHash], targets: &mut [Target<'_>], until: &Until) -> Answers<Option<Got>> {
        let mut dice = self.faults.dice(Operation::GetChunks, each(hashes));
        let lie = |dice: &mut Dice| Faulty::made_up(dice, hashes.len(), |_| Ok(None));
        let mut answers = self.call(&mut dice, until, |inner| inner.get(hashes, &mut *targets, until), lie)?;
        answers.truncate(self.faults.answered(&mut dice, answers.len()));
        let mut targets = targets.iter_mut();
        for (hash, answer) in hashes.iter().zip(&mut answers) {
            let target = targets.next();
            let mut dice = dice.of_item(hash.as_slice());
            let fails = dice.met(self.faults.fault.fail);
            let found = match answer {
                Ok(found @ Some(_)) => found,
                Ok(None) | Err(_) => continue,
            };
            if fails {
                *answer = Err(failure(&mut dice, "one item"));
                continue;
            }
            match (found.take(), target) {
                (Some(Got::Buffer(data)), _) => {
                    *answer = self.faults.damage_buffer(&mut dice, data).map(|data| Some(Got::Buffer(data)));
                }
                (Some(Got::Placed(len)), Some(target)) => {
                    *found = Some(Got::Placed(self.faults.damage_placed(&mut dice, target, len)));
                }
                (other, _) => *found = other,
            }
        }
        Ok(answers)
    }

    fn delete(&self, hashes: &[ChunkHash], until: &Until) -> Answers<()> {
        let mut dice = self.faults.dice(Operation::DeleteChunks, each(hashes));
        let lie = |dice: &mut Dice| Faulty::made_up(dice, hashes.len(), |_| Ok(()));
        let mut answers = self.call(&mut dice, until, |inner| inner.delete(hashes, until), lie)?;
        answers.truncate(self.faults.answered(&mut dice, answers.len()));
        Ok(answers)
    }

    fn commit(
        &self,
        manifest: Option<(&str, &[u8])>,
        fresh: &[ChunkHash],
        bytes: u64,
        until: &Until,
    ) -> Result<Committed, Error> {
        let name = manifest.map(|(name, _)| name.as_bytes());
        let unnamed = each(fresh).filter(|_| name.is_none());
        let mut dice = self.faults.dice(Operation::Commit, name.into_iter().chain(unnamed));
        let ask = |inner: &dyn Backend| inner.commit(manifest, fresh, bytes, until);
        self.call(&mut dice, until, ask, |_| Ok(Committed::Published))
    }

    fn get_manifest(&self, name: &str, until: &Until) -> Result<Option<Arc<Buffer>>, Error> {
        let mut dice = self.faults.dice(Operation::GetManifest, std::iter::once(name.as_bytes()));
        match self.call(&mut dice, until, |inner| inner.get_manifest(name, until), |_| Ok(None))? {
            Some(data) => self.faults.damage_buffer(&mut dice, data).map(Some),
            None => Ok(None),
        }
    }

    fn delete_manifest(&self, name: &str, until: &Until) -> Result<(), Error> {
        let mut dice = self.faults.dice(Operation::DeleteManifest, std::iter::once(name.as_bytes()));
        self.call(&mut dice, until, |inner| inner.delete_manifest(name, until), |_| Ok(()))
    }

    fn retire(&self) {
        self.inner.retire();
    }

    fn drop_connections(&self) {
        self.inner.drop_connections();
    }
}

fn each(hashes: &[ChunkHash]) -> impl Iterator<Item = &[u8]> {
    hashes.iter().map(ChunkHash::as_slice)
}

fn failure(dice: &mut Dice, when: &str) -> Error {
    // Most of them pass.
    let kinds =
        [ErrorKind::Unavailable, ErrorKind::Unavailable, ErrorKind::Exhausted, ErrorKind::Other, ErrorKind::Denied];
    let kind = kinds.get(dice.below(kinds.len() as u64) as usize).copied().unwrap_or(ErrorKind::Other);
    Error::new(kind, format!("injected fault, {when}"))
}

fn die() -> ! {
    let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    std::process::abort()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_parsed_and_what_makes_no_sense_is_refused() {
        assert_eq!(Faults::parse("seed = 7\nflip = 0.5").unwrap().seed, 7);
        for (table, said) in [("flips = 0.1", "unknown field `flips`"), ("lie = 1.5", "probability")] {
            let error = Faults::parse(table).err().unwrap();
            assert!(error.to_string().contains(said), "{error}");
        }
    }

    #[test]
    fn bytes_in_the_memory_of_a_caller_are_damaged_there() {
        let faults = Faults::parse("seed = 1\nflip = 1.0").unwrap();
        let mut memory = [0_u8; 10];
        let (head, tail) = memory.split_at_mut(3);
        let pieces = [head, tail].map(iovec);
        // SAFETY: the pieces do not overlap, and nobody else uses them while the target is.
        let mut target = unsafe { Target::memory(&pieces) };
        assert_eq!(faults.damage_placed(&mut Dice::new(3), &mut target, 10), 10);
        assert_eq!(memory.iter().map(|byte| byte.count_ones()).sum::<u32>(), 1, "one bit: {memory:?}");
    }

    fn iovec(piece: &mut [u8]) -> libc::iovec {
        libc::iovec { iov_base: piece.as_mut_ptr().cast(), iov_len: piece.len() }
    }
}
