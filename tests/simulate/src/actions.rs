//! What an engine does with its handles and saves, and what the model is told of it.

use kv_store_core::{Error, Fetch, Fetched, Memory, NewChunk, Presence, Put, SaveOutcome};

use crate::engine::Engine;
use crate::names::{self, Key, Kind};
use crate::oracle::{Ledger, Operation, Told};
use crate::plan::{Action, Backend, How, Step};
use crate::threads::{MILLISECOND, Moment};
use crate::world::World;

/// Whether an error tells that a change was not made and will not be.
fn told(error: &Error) -> Told {
    if error.to_string().contains("not done:") { Told::NotDone } else { Told::Unknown }
}

/// Whether an operation may fail so though nothing is wrong with what it asks for.
fn is_held_up(error: &Error) -> bool {
    let text = error.to_string();
    ["circuit breaker", "not done:", "cancelled", "timeout_ms"].iter().any(|cause| text.contains(cause))
}

impl Engine {
    /// Carry out a step.
    pub fn act(&self, step: &Step) {
        self.sim.say(|| format!("process {} begins {}: {:?}", self.process, step.number, step.action));
        let handle = self.handle(step.handle);
        let ledger = Ledger::Handle { process: self.process, handle: handle.number };
        let of_save = |save: &usize| Ledger::Save { process: self.process, save: *save };
        let number = step.number;
        let begin = |ledger| self.begin(number, ledger, false);
        match &step.action {
            Action::PutChunk(key) => self.put_chunk(&begin(ledger), step.handle, *key),
            Action::GetChunk(key) => self.get_chunk(&begin(ledger), step.handle, *key),
            Action::PutManifest(key) => self.put_manifest(&begin(ledger), step.handle, *key),
            Action::GetManifest(key) => {
                let op = begin(ledger);
                self.read_manifest(&op, step.handle, *key);
                self.end(&op, How::default(), true);
            }
            Action::DeleteManifest(key) => self.delete_manifest(&begin(ledger), step.handle, *key),
            Action::Prefetch(keys) => self.prefetch(&begin(ledger), step.handle, keys),
            Action::Flush => {
                let op = begin(ledger);
                if handle.store.flush().is_err() {
                    let now = self.now();
                    self.sim.world().oracle.told_losses(ledger, now);
                }
                self.end(&op, How::default(), true);
            }
            Action::PutMany { keys, save, how } => {
                let op = begin(save.as_ref().map_or(ledger, of_save));
                self.put_many(&op, step.handle, keys, *save, *how);
            }
            Action::GetMany(keys, how) => {
                let op = begin(ledger);
                self.get_many(&op, step.handle, keys, *how);
                self.end(&op, *how, true);
            }
            Action::ExistsMany(keys) => self.exists_many(&begin(ledger), step.handle, keys),
            Action::DeleteMany(keys, how) => self.delete_many(&begin(ledger), step.handle, keys, *how),
            Action::Commit { save, manifest } => self.commit(&begin(of_save(save)), *save, *manifest),
            Action::Reopen => self.reopen(step.handle),
            _ => self.act_by_queue(step),
        }
        self.sim.say(|| format!("process {} has ended {number}", self.process));
    }

    /// Tell the model what an answer promises, unless the process ended before it.
    pub fn tell(&self, what: impl FnOnce(&mut World, Moment)) {
        let now = self.now();
        let mut world = self.sim.world();
        if !world.dead.get(self.process).copied().unwrap_or(true) {
            what(&mut world, now);
        }
    }

    /// When a change that begins now may be carried out at the latest.
    fn latest(&self, op: &Operation) -> Moment {
        op.start + self.sim.plan.shape.deadline + if self.sim.plan.shape.lengths.big { 1_000_000_000 } else { 0 }
    }

    pub fn is_changed(key: Key) -> bool {
        matches!(key.kind, Kind::Register | Kind::Manifest)
    }

    /// A change of some keys is about to be made. `removes`: it takes them away.
    pub fn change(&self, op: &Operation, keys: &[Key], removes: bool, durable: bool) {
        let latest = if op.queued { Moment::MAX } else { self.latest(op) };
        let mut world = self.sim.world();
        for key in keys {
            if removes {
                world.oracle.touches(*key);
            } else {
                world.oracle.offers(op.ledger, *key);
                world.oracle.puts(op.process, *key, op.start);
            }
            if Self::is_changed(*key) {
                let version = (!removes).then(|| Self::version(*key, op.number));
                let durable = durable || key.kind == Kind::Manifest;
                world.oracle.changes(op, *key, version, latest, durable);
            }
        }
    }

    fn put_chunk(&self, op: &Operation, handle: usize, key: Key) {
        self.change(op, &[key], false, false);
        let outcome = self.handle(handle).store.put_chunk(self.hash(key), &self.value(key, op.number));
        self.tell(|world, now| {
            world.oracle.put_over(op.process, key, op.start, now);
            match &outcome {
                Ok(_) => world.oracle.owes(op.ledger, key, now),
                Err(_) => {
                    world.oracle.refused(op.ledger, key);
                    world.oracle.told_losses(op.ledger, now);
                }
            }
        });
        self.end(op, How::default(), true);
    }

    fn get_chunk(&self, op: &Operation, handle: usize, key: Key) {
        self.sim.world().unchecked.insert(op.number);
        let found = self.handle(handle).store.get_chunk(self.hash(key));
        self.tell(|world, now| match &found {
            Ok(found) => got(world, op, key, found.as_deref(), now),
            Err(error) => failed(world, op, key, error, now),
        });
        self.end(op, How::default(), true);
    }

    fn put_manifest(&self, op: &Operation, handle: usize, key: Key) {
        self.change(op, &[key], false, false);
        let outcome = self.handle(handle).store.put_manifest(&names::name(key), &self.value(key, op.number));
        self.tell(|world, now| match &outcome {
            Ok(()) => {
                world.oracle.changed(op, key, Told::Done, now);
                world.acknowledged_save(op, now);
                world.acknowledged_change(op, key, now);
            }
            Err(error) => {
                world.oracle.changed(op, key, told(error), now);
                world.oracle.told_losses(op.ledger, now);
            }
        });
        self.end(op, How::default(), true);
    }

    pub fn read_manifest(&self, op: &Operation, handle: usize, key: Key) {
        let found = self.handle(handle).store.get_manifest(&names::name(key));
        self.tell(|world, now| match &found {
            Ok(found) => got(world, op, key, found.as_deref(), now),
            Err(error) => failed(world, op, key, error, now),
        });
    }

    fn delete_manifest(&self, op: &Operation, handle: usize, key: Key) {
        self.change(op, &[key], true, false);
        let outcome = self.handle(handle).store.delete_manifest(&names::name(key));
        self.tell(|world, now| match &outcome {
            Ok(()) => {
                world.oracle.changed(op, key, Told::Done, now);
                world.acknowledged_change(op, key, now);
            }
            Err(error) => world.oracle.changed(op, key, told(error), now),
        });
        self.end(op, How::default(), true);
    }

    fn prefetch(&self, op: &Operation, handle: usize, keys: &[Key]) {
        let content = keys.iter().filter(|key| key.kind == Kind::Content);
        let opaque = keys.iter().filter(|key| key.kind == Kind::Opaque);
        self.tell(|world, _| keys.iter().for_each(|key| world.oracle.prefetched(op, *key)));
        let store = self.handle(handle).store;
        let hashes: Vec<u8> = content.flat_map(|key| self.hash(*key)).copied().collect();
        let _ = store.prefetch_chunks(&hashes, 8);
        self.end(op, How::default(), true);
        let hashes: Vec<u8> = opaque.flat_map(|key| self.hash(*key)).copied().collect();
        if !hashes.is_empty() {
            let op = self.begin(op.number, op.ledger, false);
            let _ = store.prefetch_chunks(&hashes, 32);
            self.end(&op, How::default(), true);
        }
    }

    fn put_many(&self, op: &Operation, handle: usize, keys: &[Key], save: Option<usize>, how: How) {
        self.change(op, keys, false, how.durable);
        let values: Vec<(&[u8], Vec<u8>)> =
            keys.iter().map(|key| (self.hash(*key), self.value(*key, op.number))).collect();
        let pieces: Vec<[&[u8]; 2]> = values.iter().map(|(_, value)| value.split_at(value.len() / 3).into()).collect();
        let chunks: Vec<NewChunk<'_>> =
            values.iter().zip(&pieces).map(|((hash, _), pieces)| NewChunk::new(hash, pieces)).collect();
        let save = save.and_then(|save| self.saves.get(save));
        let outcome = self.handle(handle).store.put_many(&chunks, &self.options(how), save);
        self.tell(|world, now| put_ended(world, op, keys, &outcome, save.is_some(), how, now));
        self.end(op, how, true);
    }

    pub fn get_many(&self, op: &Operation, handle: usize, keys: &[Key], how: How) {
        let hashes: Vec<&[u8]> = keys.iter().map(|key| self.hash(*key)).collect();
        let longest = self.sim.plan.shape.lengths.longest();
        // Every other into memory of its own.
        let mut memory: Vec<Vec<u8>> =
            (0..keys.len()).map(|at| vec![0; if at % 2 == 0 { longest } else { 0 }]).collect();
        let mut pieces: Vec<[&mut [u8]; 1]> = memory.iter_mut().map(|memory| [memory.as_mut_slice()]).collect();
        let fetch = |(at, (hash, pieces))| {
            let hash: &&[u8] = hash;
            let pieces: &mut [&mut [u8]; 1] = pieces;
            Fetch::new(hash, if at % 2 == 0 { Memory::Pieces(pieces) } else { Memory::Allocate })
        };
        let mut items: Vec<Fetch<'_>> = hashes.iter().zip(&mut pieces).enumerate().map(fetch).collect();
        let outcome = self.handle(handle).store.get_many(&mut items, &self.options(how));
        drop(items);
        self.tell(|world, now| {
            let Ok(answers) = &outcome else { return };
            for ((key, answer), memory) in keys.iter().zip(answers).zip(&memory) {
                got_item(world, op, *key, answer, memory, now);
            }
        });
    }

    fn exists_many(&self, op: &Operation, handle: usize, keys: &[Key]) {
        let hashes: Vec<&[u8]> = keys.iter().map(|key| self.hash(*key)).collect();
        let outcome = self.handle(handle).store.exists_many(&hashes, &self.options(How::default()));
        self.tell(|world, now| {
            let Ok(answers) = &outcome else { return };
            keys.iter().zip(answers).for_each(|(key, answer)| existed(world, op, *key, answer, now));
        });
        self.end(op, How::default(), true);
    }

    fn delete_many(&self, op: &Operation, handle: usize, keys: &[Key], how: How) {
        self.change(op, keys, true, false);
        let hashes: Vec<&[u8]> = keys.iter().map(|key| self.hash(*key)).collect();
        let outcome = self.handle(handle).store.delete_many_with(&hashes, &self.options(how));
        self.tell(|world, now| deleted(world, op, keys, &outcome, now));
        self.end(op, how, true);
    }

    fn commit(&self, op: &Operation, save: usize, manifest: Option<Key>) {
        let Some(of) = self.saves.get(save) else { return };
        if let Some(key) = manifest {
            self.change(op, &[key], false, false);
        }
        let puts_wait = !self.queued.lock().is_empty();
        let named = manifest.map(|key| (names::name(key), self.value(key, op.number)));
        let outcome = of.commit(named.as_ref().map(|(name, data)| (name.as_str(), data.as_slice())));
        self.tell(|world, now| {
            if let Some(key) = manifest {
                let told = match &outcome {
                    Ok(SaveOutcome::Published) => Told::Done,
                    Ok(SaveOutcome::Lost(_)) => Told::NotDone,
                    Err(error) => told(error),
                };
                world.oracle.changed(op, key, told, now);
            }
            match &outcome {
                Ok(SaveOutcome::Published) => {
                    world.acknowledged_save(op, now);
                    manifest.into_iter().for_each(|key| world.acknowledged_change(op, key, now));
                }
                Ok(SaveOutcome::Lost(lost)) => {
                    let lost = lost.iter().filter_map(|hash| self.key_of(hash));
                    lost.for_each(|key| world.oracle.told_loss(op, key, now));
                }
                Err(_) => {}
            }
        });
        self.end(op, How::default(), !puts_wait);
    }
}

/// Something was read.
pub fn got(world: &mut World, op: &Operation, key: Key, found: Option<&[u8]>, now: Moment) {
    let Some(bytes) = found else {
        world.found_damaged(op, key, now);
        world.check_answered(op, key, "nothing", now);
        return;
    };
    let Some(version) = names::version(world.shape.lengths, key, bytes) else {
        if world.may_be_unchecked(op, key) {
            return;
        }
        let text = format!("{key}: operation {} is answered {} bytes that nobody put under it", op.number, bytes.len());
        world.oracle.violated("wrong-bytes", text, now);
        return;
    };
    match key.kind {
        Kind::Content | Kind::Opaque => world.check_not_gone(op, key, now),
        Kind::Register => world.check_value(op, key, version, op.start, now),
        Kind::Manifest => {
            world.check_value(op, key, version, op.start, now);
            world.check_order(op, key, version, now);
        }
    }
}

pub fn failed(world: &mut World, op: &Operation, key: Key, error: &Error, now: Moment) {
    // Who reads by a lease of a few round trips may come too late each time.
    let is_short = matches!(world.shape.backend, Backend::Mooncake(setup) if setup.lease <= 20 * MILLISECOND);
    let is_late = is_short && error.to_string().contains("before its lease ended");
    // One that waited in a queue may have had no time left.
    if !is_held_up(error) && !op.queued && !is_late {
        world.check_answered(op, key, &error.to_string(), now);
    }
}

/// An item of a get. `memory`: where its bytes are, unless they are in memory of their own.
pub fn got_item(
    world: &mut World,
    op: &Operation,
    key: Key,
    answer: &Result<Option<Fetched>, Error>,
    memory: &[u8],
    now: Moment,
) {
    match answer {
        Ok(Some(Fetched::Placed(len))) => got(world, op, key, memory.get(..*len), now),
        Ok(Some(Fetched::Buffer(data))) => got(world, op, key, Some(data), now),
        Ok(Some(Fetched::TooLong(len))) => {
            let text = format!("{key}: operation {} is told of {len} bytes, more than any value has", op.number);
            world.oracle.violated("wrong-bytes", text, now);
        }
        Ok(None) => got(world, op, key, None, now),
        Err(error) => failed(world, op, key, error, now),
    }
}

/// An item of a question.
pub fn existed(world: &mut World, op: &Operation, key: Key, answer: &Result<Presence, Error>, now: Moment) {
    match answer {
        Ok(Presence::Absent) => world.check_answered(op, key, "that it does not exist", now),
        Ok(_) => world.check_exists(op, key, now),
        Err(error) => failed(world, op, key, error, now),
    }
}

/// A put of a batch has ended.
pub fn put_ended(
    world: &mut World,
    op: &Operation,
    keys: &[Key],
    outcome: &Result<Vec<Result<Put, Error>>, Error>,
    saved: bool,
    how: How,
    now: Moment,
) {
    world.oracle.told_put(op);
    for (at, key) in keys.iter().enumerate() {
        world.oracle.put_over(op.process, *key, op.start, now);
        let stored = outcome.as_ref().is_ok_and(|items| items.get(at).is_some_and(Result::is_ok));
        if Engine::is_changed(*key) {
            world.oracle.changed(op, *key, if stored { Told::Done } else { Told::Unknown }, now);
        }
        if !stored {
            continue;
        }
        if saved && op.queued {
            world.oracle.check_waited_for(op, *key, now);
        }
        world.acknowledged_put(op, *key, how.durable, now);
        if Engine::is_changed(*key) {
            world.acknowledged_change(op, *key, now);
        }
        match (saved, op.queued) {
            (true, false) => world.oracle.owes(op.ledger, *key, now),
            (true, true) => world.oracle.owes_since(op.ledger, *key, op.start, now),
            (false, _) => {}
        }
    }
}

/// A removal of a batch has ended.
pub fn deleted(
    world: &mut World,
    op: &Operation,
    keys: &[Key],
    outcome: &Result<Vec<Result<(), Error>>, Error>,
    now: Moment,
) {
    world.oracle.told_removals.insert(op.number, now);
    for (at, key) in keys.iter().enumerate() {
        let done = outcome.as_ref().is_ok_and(|items| items.get(at).is_some_and(Result::is_ok));
        if Engine::is_changed(*key) {
            world.oracle.changed(op, *key, if done { Told::Done } else { Told::Unknown }, now);
            if done {
                world.acknowledged_change(op, *key, now);
            }
        } else if done {
            world.acknowledged_removal(op, *key, now);
        }
    }
}
