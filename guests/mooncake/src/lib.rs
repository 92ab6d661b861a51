//! `mooncake://MASTER[:PORT]/NAMESPACE`: chunks and manifests as objects of a Mooncake Store, spoken natively over TCP.
//!
//! A chunk is the object `NAMESPACE/c/<hash in hex>`: its bytes and one more, because Mooncake has no empty objects. The master places
//! and evicts objects; the bytes go straight between the host and the nodes. A manifest is in [`manifest`]. Options: `replicas`
//! (default 1) for each object, `soft_pin` (`off` or `on`): evict other objects first.
//!
//! An object is visible once all its replicas are written. What is read counts only if it was read before its lease ended, since the
//! memory may then hold another object. Mooncake authenticates nobody: who reaches the nodes' ports reads and overwrites any object.

mod calls;
mod change;
mod maintenance;
mod manifest;
mod master;
mod node;
mod uri;
mod wire;

use std::cell::Cell;

use kv_store_sdk::payloads::Part;
use kv_store_sdk::{
    Backend, Chunk, CommitOutcome, DeleteOutcome, Error, ErrorKind, Features, GetOutcome, Hashes, Manifest, Options,
    Payload, Presence, Properties, PutOutcome, Result, absent, changes, export, get_outcomes, key, system,
};

use change::{Begun, Change};
use master::{
    ALREADY_EXISTS, Answer, Client, Located, MAX_OBJECTS, Master, NOT_FOUND, NOT_READY, Placement, Replica, explain,
    known,
};
use node::{Nodes, Read, Write};

/// What suits the nodes in one batch.
const BATCH_BYTES: u64 = 128 << 20;
/// What follows the bytes of a chunk.
const END: u8 = b'.';
/// How often an object is placed whose nodes turn out to be gone, and read whose lease ends too early.
const ATTEMPTS: usize = 2;
/// How often one is placed on a single node after that, where several were asked for: while the master lists a node that is dead, each
/// placement on two of two nodes has it, and every second one on one of them. Of a whole batch of objects none is left then, mostly.
const ATTEMPTS_ALONE: usize = 16;
/// Between two lines about objects on fewer nodes than were asked for, in nanoseconds.
const SAY_FEWER: u64 = 60_000_000_000;
const MAX_REPLICAS: u64 = 8;
/// The length of a key that is the hash of its chunk's content: such a chunk is the same whenever it comes.
const CONTENT_KEY_BYTES: usize = 8;

struct Mooncake {
    store: Store,
    namespace: String,
}

/// Objects by key, all that is known of Mooncake here.
struct Store {
    master: Master,
    nodes: Nodes,
    placement: Placement,
    /// Objects on one node only that no line tells of yet, and when the last line was written.
    fewer: Cell<(u64, Option<u64>)>,
}

/// An object to write.
struct Object<'a> {
    key: String,
    parts: Vec<Part<'a>>,
    /// Bytes.
    len: u64,
}

/// What became of a write.
enum Put {
    Stored,
    /// There is an object under this key, or one that is being written.
    Taken,
    /// The master began none: nothing was written.
    Refused(Error),
}

impl Store {
    /// Say that the manifest of the running call is about to be changed, and make sure that no former change of it is still done: what
    /// those have begun and not ended is given back, as the clients that they were.
    fn begin(&self, keys: &[String]) -> Result<Begun> {
        let change = Change::new();
        let former = changes::begin(&[0], &change.token());
        self.give_back(change.client, &former, keys)
    }

    /// Wait until the deadline of former changes of these items. A removal that was sent is by key, and nothing stops it.
    fn wait_until(&self, end: u64, items: &[u32]) -> Result<()> {
        // The time of day, for another instance has another monotonic clock.
        match end.saturating_sub(system::now()) {
            0 => Ok(()),
            wait => system::sleep(wait).map_err(|_| {
                changes::not_done(items);
                Error::busy(
                    "a former change of the same key ended unknown, and may still be carried out: try again later",
                )
            }),
        }
    }

    /// The same of chunks, by their items. Nothing stops a removal that was sent, nor bytes on their way to memory that was given back,
    /// where this change may be placed next: until the former one's deadline this one waits. As whom this change is made.
    fn begin_chunks(&self, items: &[u32], keys: &[String]) -> Result<Client> {
        let change = Change::new();
        let former = changes::begin(items, &change.token());
        self.wait_until(Change::latest(&former), items)?;
        self.give_back(change.client, &former, keys).map(|begun| begun.client)
    }

    fn give_back(&self, client: Client, former: &[Vec<u8>], keys: &[String]) -> Result<Begun> {
        let mut given_back = Vec::new();
        for former in former.iter().filter_map(|token| Change::parse(token)) {
            let answers = self.master.put_revoke(former.client, keys)?;
            given_back.extend((0..).zip(answers).filter(|(_, answer)| answer.is_ok()).map(|(key, _)| key));
        }
        Ok(Begun { client, given_back, former: former.len(), end: Change::latest(former) })
    }

    /// Write new objects as a client of this change's own, all their replicas side by side.
    fn put(&self, client: Client, objects: &[Object]) -> Result<Vec<Result<Put>>> {
        let mut outcomes: Vec<Result<Put>> = objects.iter().map(|_| Ok(Put::Taken)).collect();
        let mut todo: Vec<usize> = (0..objects.len()).collect();
        for _ in 0..ATTEMPTS {
            todo = self.place_and_write(client, self.placement, objects, todo, &mut outcomes)?;
            if todo.is_empty() {
                return Ok(outcomes);
            }
        }
        let alone = Placement { replicas: 1, ..self.placement };
        for _ in (0..ATTEMPTS_ALONE).take_while(|_| self.placement.replicas > 1) {
            let before = todo.len();
            todo = self.place_and_write(client, alone, objects, todo, &mut outcomes)?;
            self.say_fewer(before - todo.len());
            if todo.is_empty() {
                break;
            }
        }
        Ok(outcomes)
    }

    /// Say that objects are on fewer nodes than they should be: once a minute at most.
    fn say_fewer(&self, more: usize) {
        let (count, last) = self.fewer.get();
        let (count, now) = (count + more as u64, system::monotonic());
        self.fewer.set((count, last));
        if count > 0 && last.is_none_or(|last| now.saturating_sub(last) >= SAY_FEWER) {
            let wanted = self.placement.replicas;
            let line = format!(
                "{count} objects are on 1 node of {wanted}: the master lists nodes that cannot be reached, and forgets them after a while"
            );
            system::log(system::Level::Warn, &line);
            self.fewer.set((0, Some(now)));
        }
    }

    /// Comes back with those whose nodes failed: the master may have others for them.
    fn place_and_write(
        &self,
        client: Client,
        placement: Placement,
        objects: &[Object],
        todo: Vec<usize>,
        outcomes: &mut [Result<Put>],
    ) -> Result<Vec<usize>> {
        let asked: Vec<&Object> = todo.iter().filter_map(|number| objects.get(*number)).collect();
        let (keys, lens): (Vec<String>, Vec<u64>) = asked.iter().map(|object| (object.key.clone(), object.len)).unzip();
        let placed = self.master.put_start(client, &keys, &lens, placement)?;
        let mut writes = Vec::new();
        let mut of_object = Vec::new();
        for (place, (placed, object)) in placed.iter().zip(&asked).enumerate() {
            for replica in placed.iter().flatten() {
                writes.push(Write { replica, parts: object.parts.clone() });
                of_object.push(place);
            }
        }
        let written = self.nodes.write(&writes);
        let mut failures: Vec<Option<Error>> = asked.iter().map(|_| None).collect();
        for (place, written) in of_object.into_iter().zip(written) {
            if let (Err(error), Some(failure)) = (written, failures.get_mut(place)) {
                *failure = Some(error);
            }
        }
        let (mut whole, mut broken) = (Vec::new(), Vec::new());
        for ((number, placed), failure) in todo.iter().zip(placed).zip(failures) {
            let Some((outcome, object)) = outcomes.get_mut(*number).zip(objects.get(*number)) else { continue };
            match (placed, failure) {
                (Err(ALREADY_EXISTS), _) => *outcome = Ok(Put::Taken),
                (Err(code), _) => *outcome = Ok(Put::Refused(explain(code))),
                (Ok(replicas), None) if !replicas.is_empty() => whole.push((*number, object.key.clone())),
                (Ok(_), failure) => {
                    let none = || Error::unsupported("the master has no memory that is reached over TCP");
                    *outcome = Err(failure.unwrap_or_else(none));
                    broken.push((*number, object.key.clone()));
                }
            }
        }
        let (numbers, keys): (Vec<usize>, Vec<String>) = whole.into_iter().unzip();
        for (number, ended) in numbers.into_iter().zip(self.master.put_end(client, &keys)?) {
            if let Some(outcome) = outcomes.get_mut(number) {
                *outcome = ended.map(|()| Put::Stored).map_err(explain);
            }
        }
        let (numbers, keys): (Vec<usize>, Vec<String>) = broken.into_iter().unzip();
        self.master.put_revoke(client, &keys)?;
        Ok(numbers)
    }

    /// Read objects, each from the first of its replicas that answers. `len` and `item` say how much of an object is wanted, and for
    /// which item. None: there is no such object.
    fn get(
        &self,
        keys: &[String],
        len: impl Fn(&Replica) -> Option<u64>,
        item: impl Fn(usize) -> Option<u32>,
    ) -> Result<Vec<Result<Option<Payload>>>> {
        let mut outcomes: Vec<Result<Option<Payload>>> = keys.iter().map(|_| Ok(None)).collect();
        let mut todo: Vec<usize> = (0..keys.len()).collect();
        for _ in 0..ATTEMPTS {
            let asked: Vec<String> = todo.iter().filter_map(|number| keys.get(*number).cloned()).collect();
            let begun = system::monotonic();
            let located = self.master.locate(&asked)?;
            todo = self.read(&todo, located, begun, &mut outcomes, &len, &item);
            if todo.is_empty() {
                break;
            }
        }
        Ok(outcomes)
    }

    /// Comes back with those whose lease ended before they were read.
    fn read(
        &self,
        todo: &[usize],
        located: Vec<Answer<Located>>,
        begun: u64,
        outcomes: &mut [Result<Option<Payload>>],
        len: &impl Fn(&Replica) -> Option<u64>,
        item: &impl Fn(usize) -> Option<u32>,
    ) -> Vec<usize> {
        /// An object, and the replicas that have not failed yet.
        struct Rest<'a> {
            number: usize,
            lease: u64,
            replicas: std::slice::Iter<'a, Replica>,
        }
        let mut rest = Vec::new();
        for (number, located) in todo.iter().zip(&located) {
            match located {
                Ok(Located { replicas, lease }) => {
                    rest.push(Rest { number: *number, lease: *lease, replicas: replicas.iter() });
                }
                // What is being written is not there yet.
                Err(NOT_FOUND | NOT_READY) => {}
                Err(code) => {
                    if let Some(outcome) = outcomes.get_mut(*number) {
                        *outcome = Err(explain(*code));
                    }
                }
            }
        }
        let mut late = Vec::new();
        while !rest.is_empty() {
            let mut asked = Vec::new();
            let mut reads = Vec::new();
            for mut object in rest {
                // None is left: the last failure stands.
                let Some(replica) = object.replicas.next() else { continue };
                let Some(len) = len(replica) else {
                    if let Some(outcome) = outcomes.get_mut(object.number) {
                        *outcome = Err(Error::corrupt("an object of this store is too short: who else writes it?"));
                    }
                    continue;
                };
                if len == 0 {
                    // Nodes send nothing of nothing, and need not be asked for it.
                    if let Some(outcome) = outcomes.get_mut(object.number) {
                        *outcome = Payload::from_bytes(&[]).map(Some);
                    }
                    continue;
                }
                reads.push(Read { replica, len, item: item(object.number) });
                asked.push(object);
            }
            rest = Vec::new();
            for (object, read) in asked.into_iter().zip(self.nodes.read(&reads)) {
                let is_late = system::monotonic().saturating_sub(begun) >= object.lease;
                let Some(outcome) = outcomes.get_mut(object.number) else { continue };
                *outcome = match read {
                    // The memory may hold another object since.
                    Ok(_) if is_late => {
                        late.push(object.number);
                        Err(Error::unavailable("the object was not read before its lease ended"))
                    }
                    Ok(payload) => Ok(Some(payload)),
                    Err(error) => {
                        if error.kind != ErrorKind::Exhausted {
                            rest.push(object);
                        }
                        Err(error)
                    }
                };
            }
        }
        late
    }
}

impl Store {
    /// Whether the nodes can be reached: the operator should learn here what is not granted. An object is placed, written, and given back.
    fn check_nodes(&self, namespace: &str) -> Result<()> {
        let key = format!("{namespace}/probe/{:016x}", system::random());
        let client = Client::new();
        let placed = self.master.put_start(client, std::slice::from_ref(&key), &[1], self.placement)?.pop();
        let Some(Ok(replicas)) = placed else {
            system::log(system::Level::Warn, "no node lends memory to Mooncake's master now: puts fail until one does");
            return Ok(());
        };
        let writes: Vec<Write> =
            replicas.iter().map(|replica| Write { replica, parts: vec![Part::Bytes(vec![END])] }).collect();
        let written = self.nodes.write(&writes);
        self.master.put_revoke(client, &[key])?;
        // A node that is gone is the master's business.
        let refused = |error: &Error| matches!(error.kind, ErrorKind::Denied | ErrorKind::Unsupported);
        written.into_iter().filter_map(Result::err).find(refused).map_or(Ok(()), Err)
    }
}

impl Mooncake {
    fn chunk_key(&self, hash: &[u8]) -> String {
        chunk_key(&self.namespace, hash)
    }

    fn chunk_keys(&self, hashes: Hashes) -> Vec<String> {
        hashes.iter().map(|hash| self.chunk_key(hash)).collect()
    }
}

fn chunk_key(namespace: &str, hash: &[u8]) -> String {
    key::hex_behind(&[namespace, "/c/"].concat(), hash)
}

impl Backend for Mooncake {
    fn open(uri: &str, mut options: Options) -> Result<(Self, Features)> {
        let replicas = options.take("replicas").unwrap_or_else(|| "1".to_owned());
        let soft_pin = options.take_choice("soft_pin", &["off", "on"])? == "on";
        options.finish()?;
        let replicas =
            replicas.parse().ok().filter(|replicas| (1..=MAX_REPLICAS).contains(replicas)).ok_or_else(|| {
                Error::invalid(format!("option replicas = {replicas:?}: must be a number from 1 to {MAX_REPLICAS}"))
            })?;
        let uri::Target { master, namespace } = uri::parse(uri)?;
        let label = format!("{} at {master}, namespace {namespace}", calls::VERSIONS);
        let placement = Placement { replicas, soft_pin };
        let (nodes, fewer) = (Nodes::default(), Cell::default());
        let store = Store { master: Master::new(&master)?, nodes, placement, fewer };
        store.master.check_version()?;
        store.check_nodes(&namespace)?;
        let features = Features {
            label,
            properties: Properties::SHARED | Properties::EVICTS | Properties::WANTS_FRESH | Properties::SETTLES,
            batch_items: Some(MAX_OBJECTS as u32),
            batch_bytes: Some(BATCH_BYTES),
            more: vec![("replaces-in-steps".to_owned(), "1".to_owned())],
            ..Default::default()
        };
        Ok((Mooncake { store, namespace }, features))
    }

    fn exists(&mut self, hashes: Hashes) -> Result<Vec<Presence>> {
        let answers = self.store.master.exist(&self.chunk_keys(hashes.first(MAX_OBJECTS)))?;
        Ok(known(answers)?.into_iter().map(Presence::from).collect())
    }

    fn put_chunks(&mut self, chunks: &[Chunk], replace: bool) -> Result<Vec<PutOutcome>> {
        let chunks = chunks.get(..MAX_OBJECTS).unwrap_or(chunks);
        let objects: Vec<Object> = chunks
            .iter()
            .map(|chunk| Object {
                key: self.chunk_key(chunk.hash),
                parts: vec![chunk.part(), Part::Bytes(vec![END])],
                len: chunk.len + 1,
            })
            .collect();
        let keys: Vec<String> = objects.iter().map(|object| object.key.clone()).collect();
        let is_change = |chunk: &&Chunk| replace || chunk.hash.len() != CONTENT_KEY_BYTES;
        let items: Vec<u32> = (0..).zip(chunks).filter(|(_, chunk)| is_change(chunk)).map(|(item, _)| item).collect();
        let client = if items.is_empty() { Client::new() } else { self.store.begin_chunks(&items, &keys)? };
        if replace {
            self.store.master.remove(&keys)?;
        }
        let outcomes = self.store.put(client, &objects)?;
        // One that is being written by somebody who may be dead is not there.
        let taken = |(key, outcome): (&String, &Result<Put>)| matches!(outcome, Ok(Put::Taken)).then(|| key.clone());
        let taken: Vec<String> = keys.iter().zip(&outcomes).filter_map(taken).collect();
        let mut whole = self.store.master.exist(&taken)?.into_iter();
        let mut refused = Vec::new();
        let mut refuse = |item, error| {
            refused.push(item);
            PutOutcome::Failed(error)
        };
        let outcome = |(item, outcome)| match outcome {
            Ok(Put::Stored) => PutOutcome::Stored,
            Ok(Put::Taken) if whole.next() == Some(Ok(true)) && !replace => PutOutcome::Existed,
            Ok(Put::Taken) => refuse(item, explain(NOT_READY)),
            Ok(Put::Refused(error)) => refuse(item, error),
            Err(error) => PutOutcome::Failed(error),
        };
        let outcomes = (0..).zip(outcomes).map(outcome).collect();
        changes::not_done(&refused);
        Ok(outcomes)
    }

    fn get_chunks(&mut self, hashes: Hashes) -> Result<Vec<GetOutcome>> {
        let keys = self.chunk_keys(hashes.first(MAX_OBJECTS));
        let outcomes = self.store.get(&keys, |replica| replica.size.checked_sub(1), |number| Some(number as u32))?;
        Ok(get_outcomes(outcomes))
    }

    fn delete_chunks(&mut self, hashes: Hashes) -> Result<Vec<DeleteOutcome>> {
        let keys = self.chunk_keys(hashes.first(MAX_OBJECTS));
        let items: Vec<u32> = (0..keys.len() as u32).collect();
        self.store.begin_chunks(&items, &keys)?;
        let answers = self.store.master.remove(&keys)?;
        let outcome = |answer| match answer {
            Ok(()) | Err(NOT_FOUND) => DeleteOutcome::Gone,
            Err(code) => DeleteOutcome::Failed(explain(code)),
        };
        Ok(answers.into_iter().map(outcome).collect())
    }

    fn commit(&mut self, fresh: &[Hashes], manifest: Option<Manifest>) -> Result<CommitOutcome> {
        let mut gone = Vec::new();
        for batch in fresh.iter().flat_map(|hashes| hashes.batches(MAX_OBJECTS)) {
            // To ask renews the lease of those that are there.
            let answers = known(self.store.master.exist(&self.chunk_keys(batch))?)?;
            gone.extend(batch.iter().zip(answers).filter(|(_, exists)| !exists).map(|(hash, _)| hash));
        }
        if let Some(gone) = absent(gone) {
            return Ok(gone);
        }
        if let Some(manifest) = manifest {
            self.store.publish(&self.namespace, &manifest)?;
        }
        Ok(CommitOutcome::Published)
    }

    fn get_manifest(&mut self, name: &str) -> Result<Option<Payload>> {
        self.store.newest(&self.namespace, name)
    }

    fn delete_manifest(&mut self, name: &str) -> Result<()> {
        self.store.forget(&self.namespace, name)
    }
}

export!(Mooncake, maintenance, schemes: ["mooncake"], port: 50051,
    wishes: ["the master in the URI", "the nodes that it names, on any port: connect patterns"],
    options: ["replicas", "soft_pin"], secrets: []);
