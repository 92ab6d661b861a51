//! Faults at the boundary to a component, for tests of what stands on either side: calls that fail, wait, trap or kill the
//! process, answers that are short, damaged or made up. [`Guest`] has the calls of the generated one and goes in its place.
//!
//! What befalls a call is drawn from the seed, the operation, the hashes or the name that it is about, and how often that
//! was asked before: neither the order of threads nor that of a batch changes it, so a seed replays a run.

mod config;
mod dice;

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

use wasmtime::Store;
use wasmtime::component::Resource;

pub use config::{Chance, Fault};
use dice::{Dice, digest};

use crate::bindings::exports::kv_store::backend::store::{
    self, CommitOutcome, DeleteOutcome, Features, GetOutcome, Hashes, Manifest, Presence, PutOutcome,
};
use crate::bindings::kv_store::backend::payload::HostPayload;
use crate::bindings::kv_store::backend::types::{Error, ErrorKind};
use crate::guest::State;
use crate::payload::Payload;

type Answer<T> = wasmtime::Result<Result<T, Error>>;

/// Calls that are told apart when it is counted how often each was made; others share a count.
const COUNTS: usize = 1024;

/// The faults of one store.
pub(crate) struct Faults {
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
enum When {
    Before,
    After,
}

enum Fate {
    Well,
    Crash(When),
    Trap(When),
    Fail(When),
    Lie,
}

impl Faults {
    pub(crate) fn new(fault: Fault) -> Result<Self, crate::Error> {
        let seed = match fault.seed {
            Some(seed) => seed,
            None => {
                let mut bytes = [0; 8];
                getrandom::fill(&mut bytes)
                    .map_err(|error| crate::Error::invalid(format!("no random bytes: {error}")))?;
                // What TOML can hold.
                u64::from_le_bytes(bytes) >> 1
            }
        };
        Ok(Faults { fault, seed, counts: [const { AtomicU32::new(0) }; COUNTS] })
    }

    /// What replays this run.
    pub(crate) fn seed(&self) -> u64 {
        self.seed
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

    /// Hold a call up, on the thread that makes it; as long as it has at most.
    fn delay(&self, dice: &mut Dice, store: &Store<State>) {
        let delayed = dice.met(self.fault.delay);
        let wanted = Duration::from_millis(dice.below(u64::from(self.fault.delay_ms) + 1));
        if delayed {
            std::thread::sleep(wanted.min(store.data().stop_at().saturating_duration_since(Instant::now())));
        }
    }

    /// One call. `lie` makes an answer up.
    async fn call<T: Discard>(
        &self,
        dice: &mut Dice,
        store: &mut Store<State>,
        ask: impl AsyncFnOnce(&mut Store<State>) -> Answer<T>,
        lie: impl FnOnce(&mut Dice) -> T,
    ) -> Answer<T> {
        self.delay(dice, store);
        let fate = self.fate(dice);
        let mut error = failure(dice);
        match fate {
            Fate::Well => ask(store).await,
            Fate::Lie => Ok(Ok(lie(dice))),
            Fate::Fail(When::Before) => {
                error.message += ", before the call";
                Ok(Err(error))
            }
            Fate::Fail(When::After) => {
                if let Ok(answer) = ask(store).await? {
                    answer.discard(store.data_mut());
                }
                error.message += ", after the call";
                Ok(Err(error))
            }
            Fate::Trap(When::Before) => Err(wasmtime::Error::msg("injected, before the call")),
            Fate::Trap(When::After) => {
                let _lost = ask(store).await?;
                Err(wasmtime::Error::msg("injected, after the call"))
            }
            Fate::Crash(When::Before) => die(),
            Fate::Crash(When::After) => {
                let _lost = ask(store).await?;
                die()
            }
        }
    }

    /// How many of a batch's answers are given.
    fn answered(&self, dice: &mut Dice, len: usize) -> usize {
        let short = dice.met(self.fault.short);
        let fewer = 1 + dice.below((len as u64).saturating_sub(1).max(1)) as usize;
        if short { fewer.min(len) } else { len }
    }

    /// Fetched bytes, perhaps damaged.
    fn damage(&self, dice: &mut Dice, state: &mut State, payload: Resource<Payload>) -> Answer<Resource<Payload>> {
        let (flip, cut) = (dice.met(self.fault.flip), dice.met(self.fault.cut));
        if !flip && !cut {
            return Ok(Ok(payload));
        }
        let mut bytes = match state.take_bytes(payload) {
            Ok(bytes) => bytes,
            Err(lie) => return Ok(Err(lie.into())),
        };
        let bit = dice.below((bytes.len() as u64 * 8).max(1));
        if flip && let Some(byte) = bytes.get_mut((bit / 8) as usize) {
            *byte ^= 1 << (bit % 8);
        }
        if cut {
            bytes.truncate(dice.below((bytes.len() as u64).max(1)) as usize);
        }
        HostPayload::from_bytes(state, bytes)
    }
}

/// An answer that nobody gets: what the component handed over with it is dropped.
trait Discard: Sized {
    fn discard(self, _state: &mut State) {}
}

impl Discard for () {}
impl Discard for CommitOutcome {}
impl Discard for Vec<Presence> {}
impl Discard for Vec<PutOutcome> {}
impl Discard for Vec<DeleteOutcome> {}

impl Discard for Option<Resource<Payload>> {
    fn discard(self, state: &mut State) {
        let _unanswered = self.map(|payload| HostPayload::drop(state, payload));
    }
}

impl Discard for Vec<GetOutcome> {
    fn discard(self, state: &mut State) {
        for outcome in self {
            if let GetOutcome::Found(payload) = outcome {
                Some(payload).discard(state);
            }
        }
    }
}

/// A component with its faults.
#[derive(Clone, Copy)]
pub(crate) struct Guest<'a> {
    pub guest: &'a store::Guest,
    /// None: it is left alone.
    pub faults: Option<&'a Faults>,
}

impl Guest<'_> {
    pub(crate) async fn call_open(
        &self,
        store: &mut Store<State>,
        uri: &str,
        options: &[(String, String)],
    ) -> Answer<Features> {
        let Some(faults) = self.faults else { return self.guest.call_open(store, uri, options).await };
        let mut dice = faults.dice(Operation::Open, std::iter::empty());
        faults.delay(&mut dice, store);
        match faults.fate(&mut dice) {
            // Made-up features would be another backend.
            Fate::Well | Fate::Lie | Fate::Crash(_) => self.guest.call_open(store, uri, options).await,
            Fate::Trap(_) => Err(wasmtime::Error::msg("injected, at the open")),
            Fate::Fail(_) => Ok(Err(failure(&mut dice))),
        }
    }

    pub(crate) async fn call_exists(&self, store: &mut Store<State>, hashes: &Hashes) -> Answer<Vec<Presence>> {
        let Some(faults) = self.faults else { return self.guest.call_exists(store, hashes).await };
        let mut dice = faults.dice(Operation::Exists, each(hashes));
        let ask = async |store: &mut Store<State>| self.guest.call_exists(store, hashes).await;
        let presence = |dice: &mut Dice| if dice.below(2) == 0 { Presence::Present(None) } else { Presence::Absent };
        let lie = |dice: &mut Dice| (0..dice.miscount(each(hashes).len())).map(|_| presence(dice)).collect();
        let answer = faults.call(&mut dice, store, ask, lie).await?;
        Ok(answer.map(|mut answers: Vec<Presence>| {
            answers.truncate(faults.answered(&mut dice, answers.len()));
            answers
        }))
    }

    pub(crate) async fn call_put_chunks(
        &self,
        store: &mut Store<State>,
        hashes: &Hashes,
        lens: &[u64],
        replace: bool,
    ) -> Answer<Vec<PutOutcome>> {
        let Some(faults) = self.faults else { return self.guest.call_put_chunks(store, hashes, lens, replace).await };
        let mut dice = faults.dice(Operation::PutChunks, each(hashes));
        let ask = async |store: &mut Store<State>| self.guest.call_put_chunks(store, hashes, lens, replace).await;
        let lie = |dice: &mut Dice| {
            let outcome = |dice: &mut Dice| if dice.below(2) == 0 { PutOutcome::Stored } else { PutOutcome::Existed };
            (0..dice.miscount(lens.len())).map(|_| outcome(dice)).collect()
        };
        let mut answers = match faults.call(&mut dice, store, ask, lie).await? {
            Ok(answers) => answers,
            Err(error) => return Ok(Err(error)),
        };
        for (hash, outcome) in each(hashes).zip(&mut answers) {
            let mut dice = dice.of_item(hash);
            if dice.met(faults.fault.fail) {
                *outcome = PutOutcome::Failed(failure(&mut dice));
            }
        }
        answers.truncate(faults.answered(&mut dice, answers.len()));
        Ok(Ok(answers))
    }

    pub(crate) async fn call_get_chunks(&self, store: &mut Store<State>, hashes: &Hashes) -> Answer<Vec<GetOutcome>> {
        let Some(faults) = self.faults else { return self.guest.call_get_chunks(store, hashes).await };
        let mut dice = faults.dice(Operation::GetChunks, each(hashes));
        let ask = async |store: &mut Store<State>| self.guest.call_get_chunks(store, hashes).await;
        let lie = |dice: &mut Dice| (0..dice.miscount(each(hashes).len())).map(|_| GetOutcome::Missing).collect();
        let answers = match faults.call(&mut dice, store, ask, lie).await? {
            Ok(answers) => answers,
            Err(error) => return Ok(Err(error)),
        };
        let given = faults.answered(&mut dice, answers.len());
        let (state, mut outcomes) = (store.data_mut(), Vec::with_capacity(given));
        for (at, outcome) in answers.into_iter().enumerate() {
            let mut dice = dice.of_item(each(hashes).nth(at).unwrap_or_default());
            let fails = dice.met(faults.fault.fail);
            outcomes.push(match outcome {
                GetOutcome::Found(payload) if fails || at >= given => {
                    Some(payload).discard(state);
                    GetOutcome::Failed(failure(&mut dice))
                }
                GetOutcome::Found(payload) => match faults.damage(&mut dice, state, payload)? {
                    Ok(payload) => GetOutcome::Found(payload),
                    Err(error) => GetOutcome::Failed(error),
                },
                other => other,
            });
        }
        outcomes.truncate(given);
        Ok(Ok(outcomes))
    }

    pub(crate) async fn call_delete_chunks(
        &self,
        store: &mut Store<State>,
        hashes: &Hashes,
    ) -> Answer<Vec<DeleteOutcome>> {
        let Some(faults) = self.faults else { return self.guest.call_delete_chunks(store, hashes).await };
        let mut dice = faults.dice(Operation::DeleteChunks, each(hashes));
        let ask = async |store: &mut Store<State>| self.guest.call_delete_chunks(store, hashes).await;
        let lie = |dice: &mut Dice| (0..dice.miscount(each(hashes).len())).map(|_| DeleteOutcome::Gone).collect();
        let answer = faults.call(&mut dice, store, ask, lie).await?;
        Ok(answer.map(|mut answers: Vec<DeleteOutcome>| {
            answers.truncate(faults.answered(&mut dice, answers.len()));
            answers
        }))
    }

    pub(crate) async fn call_commit(
        &self,
        store: &mut Store<State>,
        fresh: &[Hashes],
        manifest: Option<&Manifest>,
    ) -> Answer<CommitOutcome> {
        let Some(faults) = self.faults else { return self.guest.call_commit(store, fresh, manifest).await };
        let name = manifest.map(|manifest| manifest.name.as_bytes());
        let unnamed = fresh.iter().filter(|_| name.is_none()).map(|hashes| hashes.bytes.as_slice());
        let mut dice = faults.dice(Operation::Commit, name.into_iter().chain(unnamed));
        let ask = async |store: &mut Store<State>| self.guest.call_commit(store, fresh, manifest).await;
        faults.call(&mut dice, store, ask, |_| CommitOutcome::Published).await
    }

    pub(crate) async fn call_get_manifest(
        &self,
        store: &mut Store<State>,
        name: &str,
    ) -> Answer<Option<Resource<Payload>>> {
        let Some(faults) = self.faults else { return self.guest.call_get_manifest(store, name).await };
        let mut dice = faults.dice(Operation::GetManifest, [name.as_bytes()].into_iter());
        let ask = async |store: &mut Store<State>| self.guest.call_get_manifest(store, name).await;
        match faults.call(&mut dice, &mut *store, ask, |_| None).await? {
            Ok(Some(payload)) => Ok(faults.damage(&mut dice, store.data_mut(), payload)?.map(Some)),
            other => Ok(other),
        }
    }

    pub(crate) async fn call_delete_manifest(&self, store: &mut Store<State>, name: &str) -> Answer<()> {
        let Some(faults) = self.faults else { return self.guest.call_delete_manifest(store, name).await };
        let mut dice = faults.dice(Operation::DeleteManifest, [name.as_bytes()].into_iter());
        let ask = async |store: &mut Store<State>| self.guest.call_delete_manifest(store, name).await;
        faults.call(&mut dice, store, ask, |_| ()).await
    }
}

/// The hashes of a batch, one by one.
fn each(hashes: &Hashes) -> std::slice::ChunksExact<'_, u8> {
    hashes.bytes.chunks_exact((hashes.width as usize).max(1))
}

fn failure(dice: &mut Dice) -> Error {
    // Most of them pass.
    let kinds =
        [ErrorKind::Unavailable, ErrorKind::Unavailable, ErrorKind::Exhausted, ErrorKind::Other, ErrorKind::Denied];
    let kind = kinds.get(dice.below(kinds.len() as u64) as usize).copied().unwrap_or(ErrorKind::Other);
    Error { kind, message: "injected fault".to_owned() }
}

fn die() -> ! {
    let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    std::process::abort()
}
