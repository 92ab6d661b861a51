//! What the contract asks of single calls and of what lies between two of them, asked of the instances themselves ([`Instances`]).

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use kv_store_conformance::Held;
use kv_store_wasm::Put;

use super::CaseResult;
use super::names;
use super::tap::{Chunk, Instances};

pub struct CallCase {
    pub name: &'static str,
    /// What the contract asks for, in a sentence.
    pub asks: &'static str,
    needs: Needs,
    run: fn(&CallSubject) -> CaseResult,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Needs {
    Nothing,
    /// `commit` is told what is fresh.
    Fresh,
    /// It outlives an instance.
    Lasting,
}

pub const CASES: &[CallCase] = &[
    CallCase {
        name: "calls-batch",
        asks: "in a batch of any width, answer i belongs to item i: putting, asking, fetching and removing",
        needs: Needs::Nothing,
        run: batch,
    },
    CallCase {
        name: "calls-keys",
        asks: "hashes that differ in one byte, in its digits or in bytes that are no text are different chunks",
        needs: Needs::Nothing,
        run: keys,
    },
    CallCase {
        name: "calls-apart",
        asks: "chunks and manifests never meet, and a manifest that is removed takes nothing else along",
        needs: Needs::Nothing,
        run: apart,
    },
    CallCase {
        name: "calls-names",
        asks: "manifests whose names differ in an end or a character that means something elsewhere are different ones",
        needs: Needs::Nothing,
        run: |subject| names::run(subject.instances, subject.salt),
    },
    CallCase {
        name: "calls-replace",
        asks: "with `replace` what exists is written again and is not `existed`; unless the store `replaces-in-steps`, a reader meanwhile gets the former bytes or the new ones",
        needs: Needs::Nothing,
        run: replace,
    },
    CallCase {
        name: "calls-fresh",
        asks: "commit takes `fresh` of any width and number, answers those that are gone, and no others, and removes none",
        needs: Needs::Fresh,
        run: fresh,
    },
    CallCase {
        name: "calls-kept",
        asks: "what was answered holds when the instance is dropped",
        needs: Needs::Lasting,
        run: kept,
    },
    CallCase {
        name: "calls-growth",
        asks: "10,000 puts, and commits, over the same keys need no more memory than 2,000",
        needs: Needs::Nothing,
        run: growth,
    },
];

/// The instances of a store, and numbers that nobody else uses in it.
pub struct CallSubject<'a> {
    pub instances: &'a Instances,
    pub salt: u64,
    /// What the instances of this process hold.
    pub held: fn() -> Held,
}

/// Run a case. The outer `Err`: why it makes no sense here.
pub fn run(case: &CallCase, subject: &CallSubject) -> Result<CaseResult, String> {
    if case.needs == Needs::Fresh && !subject.instances.store.info().wants_fresh {
        return Err(
            "it is not `durable`, `evicts` or `wants-fresh`, so commit is not told which chunks are fresh".into()
        );
    }
    let info = subject.instances.store.info();
    if case.needs == Needs::Lasting && !info.durable && !info.shared {
        return Err("the backend keeps nothing after its last handle".into());
    }
    let verdict = (case.run)(subject);
    subject.clean();
    Ok(verdict)
}

/// Items of a batch: more than any guest answers at once by mistake.
const COUNT: u64 = 20;
/// Widths of hashes: of consumers, and odd ones.
const WIDTHS: [usize; 4] = [16, 33, 24, 64];
/// The number of `calls-fresh` in one list.
const FRESH: u64 = 150;

impl CallSubject<'_> {
    /// A hash that nobody else puts.
    fn hash(&self, width: usize, number: u64) -> Vec<u8> {
        let mut hash = [&number.to_le_bytes()[..], &self.salt.to_le_bytes()].concat();
        hash.resize(width.max(16), number as u8 ^ 0x5a);
        hash
    }

    /// Of another length for each number; some are empty, or shorter than a word.
    fn data(&self, number: u64) -> Vec<u8> {
        let len = match number % 10 {
            3 => 0,
            5 => 3,
            _ => 1000 + 37 * (number % 50),
        };
        (0..len).map(|at| (at ^ number.wrapping_mul(31) ^ self.salt) as u8).collect()
    }

    fn chunk(&self, width: usize, number: u64) -> Chunk {
        (self.hash(width, number), self.data(number))
    }

    fn name(&self, name: &str) -> String {
        format!("{name}~{:016x}", self.salt)
    }

    fn clean(&self) {
        for width in WIDTHS {
            let hashes: Vec<Vec<u8>> = (0..FRESH).map(|number| self.hash(width, number)).collect();
            if !self.instances.delete(&hashes).unwrap_or(false) {
                break;
            }
        }
        for name in NAMES {
            let _ = self.instances.delete_manifest(&self.name(name));
        }
    }
}

/// Names of manifests that these cases use.
const NAMES: [&str; 5] = ["calls", "calls/below", "calls-beside", "call", "CALLS"];

fn batch(subject: &CallSubject) -> CaseResult {
    let instances = subject.instances;
    for width in WIDTHS {
        let all: Vec<Chunk> = (0..COUNT).map(|number| subject.chunk(width, number)).collect();
        let never: Vec<Vec<u8>> = (COUNT..2 * COUNT).map(|number| subject.hash(width, number)).collect();
        let (early, late): (Vec<_>, Vec<_>) = all.iter().cloned().enumerate().partition(|(at, _)| at % 3 == 0);
        let early: Vec<Chunk> = early.into_iter().map(|(_, chunk)| chunk).collect();
        instances.put(&early, false)?;
        for (at, answer) in instances.put(&all, false)?.into_iter().enumerate() {
            if answer == Put::Existed && late.iter().any(|(new, _)| *new == at) {
                return Err(format!(
                    "put-chunks: item {at} of {COUNT} is `existed`, and it was never put (hashes of {width} bytes)"
                ));
            }
        }
        // What is there beside what is not.
        let asked: Vec<Vec<u8>> =
            all.iter().rev().zip(&never).flat_map(|((hash, _), never)| [hash.clone(), never.clone()]).collect();
        let expect = |gone: &[usize], after: &str| -> CaseResult {
            let (there, found) = (instances.exists(&asked)?, instances.get(&asked)?);
            for (at, (there, found)) in there.into_iter().zip(found).enumerate() {
                let place = all.len() - 1 - at / 2;
                let put = all.get(place).filter(|_| at % 2 == 0 && !gone.contains(&place));
                let wrong = match (put, there, found) {
                    (Some(_), None, _) => "exists: answered `absent`, and it is there",
                    (None, Some(_), _) => "exists: answered `present`, and it is not there",
                    (Some((_, data)), Some(Some(len)), _) if len != data.len() as u64 => {
                        "exists: answered another length"
                    }
                    (Some(_), _, None) => "get-chunks: answered `missing`, and it is there",
                    (None, _, Some(_)) => "get-chunks: found, and it is not there",
                    (Some((_, data)), _, Some(found)) if *data != found => "get-chunks: answered other bytes",
                    _ => continue,
                };
                return Err(format!("{after}, item {at} of {} (hashes of {width} bytes): {wrong}", asked.len()));
            }
            Ok(())
        };
        expect(&[], "after a batch was put")?;
        let gone = [0, 1, 7, 13, 19];
        let hashes: Vec<Vec<u8>> = gone
            .iter()
            .filter_map(|at| all.get(*at))
            .map(|(hash, _)| hash.clone())
            .chain(never.first().cloned())
            .collect();
        if !instances.delete(&hashes)? {
            continue;
        }
        expect(&gone, "after some were removed")?;
        for (at, answer) in instances.put(&all, false)?.into_iter().enumerate() {
            if answer == Put::Existed && gone.contains(&at) {
                return Err(format!("put-chunks: item {at} of {COUNT} is `existed`, and it was removed"));
            }
        }
        expect(&[], "after all were put again")?;
    }
    Ok(())
}

fn keys(subject: &CallSubject) -> CaseResult {
    let instances = subject.instances;
    // Ends of hashes that some ways to write a key take for the same.
    let ends: [&[u8]; 10] = [
        &[0x01, 0x23, 0x00, 0x00],
        &[0x12, 0x03, 0x00, 0x00],
        &[0x01, 0x23, 0x00, 0x01],
        &[0xff, 0xfe, 0x80, 0x00],
        &[0xfe, 0xff, 0x81, 0x00],
        b"abcd",
        b"ABCD",
        b"a/b.",
        b"a\\b.",
        &[0x20, 0x20, 0x09, 0x0a],
    ];
    let hash = |end: &[u8], first: bool| match first {
        true => [end, &subject.salt.to_le_bytes(), &[0x77; 4]].concat(),
        false => [&subject.salt.to_le_bytes()[..], &[0x77; 4], end].concat(),
    };
    let chunks: Vec<Chunk> = (0..)
        .zip(ends.iter().flat_map(|end| [hash(end, true), hash(end, false)]))
        .map(|(number, hash)| (hash, subject.data(number)))
        .collect();
    let hashes: Vec<Vec<u8>> = chunks.iter().map(|(hash, _)| hash.clone()).collect();
    let verdict = (|| {
        for chunk in &chunks {
            if instances.put(std::slice::from_ref(chunk), false)?.contains(&Put::Existed) {
                return Err(format!("put-chunks: {} is `existed`, and was never put", hex::encode(&chunk.0)));
            }
        }
        for ((hash, data), found) in chunks.iter().zip(instances.get(&hashes)?) {
            if found.as_ref() != Some(data) {
                return Err(format!("get-chunks: {} has not the bytes that were put", hex::encode(hash)));
            }
        }
        Ok(())
    })();
    let _ = instances.delete(&hashes);
    verdict
}

fn apart(subject: &CallSubject) -> CaseResult {
    let instances = subject.instances;
    let (hash, data) = subject.chunk(16, 1);
    let digits = hex::encode(&hash);
    instances.put(&[(hash.clone(), data.clone())], false)?;
    // Names as a store may write the key of the chunk.
    let named = [digits.clone(), digits.to_uppercase(), format!("chunks/{digits}"), format!("c:{digits}")];
    let verdict = (|| {
        for name in &named {
            if instances.manifest_as_is(name)?.is_some() {
                return Err(format!("get-manifest: {name:?} is found, and only a chunk of this hash was put"));
            }
            instances.commit(&[], Some((name, &[0; 40])))?;
            if instances.get(std::slice::from_ref(&hash))? != [Some(data.clone())] {
                return Err(format!("a manifest of the name {name:?} took the place of the chunk of this hash"));
            }
            instances.delete_manifest(name)?;
            instances.delete_manifest_as_is(name)?;
            if instances.get(std::slice::from_ref(&hash))? != [Some(data.clone())] {
                return Err(format!("the chunk is gone after the manifest {name:?} was removed"));
            }
        }
        for name in NAMES {
            instances.commit(&[], Some((&subject.name(name), subject.name(name).as_bytes())))?;
        }
        let bare: Vec<String> = NAMES.iter().map(|name| format!("{}-{name}", subject.name("p"))).collect();
        for name in bare.iter().chain([&subject.name("p")]) {
            instances.commit(&[], Some((name, name.as_bytes())))?;
        }
        instances.delete_manifest(&subject.name("p"))?;
        if instances.manifest(&subject.name("p"))?.is_some() {
            return Err("delete-manifest: the manifest is still there".into());
        }
        for name in &bare {
            if instances.manifest(name)?.as_deref() != Some(name.as_bytes()) {
                return Err(format!("delete-manifest: {name:?} went along with another whose name it begins with"));
            }
        }
        for name in NAMES {
            if instances.manifest(&subject.name(name))?.as_deref() != Some(subject.name(name).as_bytes()) {
                return Err(format!("get-manifest: {name:?} is not what was published"));
            }
        }
        Ok(())
    })();
    let names = NAMES.iter().map(|name| format!("{}-{name}", subject.name("p")));
    for name in names.chain(named).chain([subject.name("p")]) {
        let _ = instances.delete_manifest(&name);
    }
    verdict
}

fn replace(subject: &CallSubject) -> CaseResult {
    let instances = subject.instances;
    let hashes: Vec<Vec<u8>> = (0..4).map(|number| subject.hash(16, number)).collect();
    // The same length, a shorter and a longer one.
    let versions = [[7_u8; 3000].to_vec(), vec![8; 3000], vec![9; 100], vec![10; 5000]];
    let chunks = |version: &Vec<u8>| hashes.iter().map(|hash| (hash.clone(), version.clone())).collect::<Vec<Chunk>>();
    let stop = AtomicBool::new(false);
    let in_steps = instances.store.info().replaces_in_steps;
    let mut former = None;
    for version in &versions {
        let put = |replace| instances.put(&chunks(version), replace);
        let read = || -> CaseResult {
            while !stop.load(Relaxed) {
                for found in instances.get(&hashes)? {
                    match found {
                        // It was removed meanwhile, and its place may have been given to another.
                        _ if in_steps => {}
                        None => return Err("while a chunk was replaced, a reader found none".into()),
                        Some(found) if found == *version || Some(&found) == former => {}
                        Some(_) => return Err("while a chunk was replaced, a reader found other bytes".into()),
                    }
                }
            }
            Ok(())
        };
        let answers = match former {
            None => put(false)?,
            // A reader beside the writer: in another instance, where there are several.
            Some(_) => std::thread::scope(|scope| {
                stop.store(false, Relaxed);
                let reader = scope.spawn(read);
                let answers = put(true);
                stop.store(true, Relaxed);
                let read = reader.join().unwrap_or_else(|_| Err("a thread panicked".into()));
                read.and(answers)
            })?,
        };
        if former.is_some() && answers.contains(&Put::Existed) {
            return Err("put-chunks with `replace`: `existed` is no answer".into());
        }
        if instances.get(&hashes)?.iter().any(|found| found.as_ref() != Some(version)) {
            return Err("put-chunks with `replace`: the former bytes are still there".into());
        }
        former = Some(version);
    }
    Ok(())
}

fn fresh(subject: &CallSubject) -> CaseResult {
    let instances = subject.instances;
    let name = subject.name("calls");
    let other = subject.chunk(24, 1);
    instances.put(std::slice::from_ref(&other), false)?;
    instances.commit(std::slice::from_ref(&other.0), Some((&name, b"first")))?;
    instances.commit(&[], Some((&name, b"none is fresh")))?;
    let chunks: Vec<Vec<Chunk>> =
        [16, 33].iter().map(|width| (0..FRESH).map(|number| subject.chunk(*width, number)).collect()).collect();
    let size = usize::try_from(COUNT).unwrap_or(1);
    for batch in chunks.iter().flat_map(|chunks| chunks.chunks(size)) {
        instances.put(batch, false)?;
    }
    let all: Vec<Vec<u8>> = chunks.iter().flatten().map(|(hash, _)| hash.clone()).collect();
    let gone = instances.commit(&all, Some((&name, b"all are there")))?;
    if !gone.is_empty() {
        return Err(format!("commit of {} fresh chunks answers {} as gone, and all are there", all.len(), gone.len()));
    }
    for (what, kept) in [("that was fresh before", &other.0), ("of `fresh`", all.last().unwrap_or(&other.0))] {
        if instances.exists(std::slice::from_ref(kept))? == [None] {
            return Err(format!("after a commit a chunk {what} is gone"));
        }
    }
    // Over a chunk that stays: a backend may miss a manifest from when a chunk that it names is gone.
    let kept = b"names what stays";
    instances.commit(std::slice::from_ref(&other.0), Some((&name, kept)))?;
    // The first and the last of each list, and one in the middle.
    let last = all.len() - 1;
    let middle = last / 2;
    for at in [0, middle, middle + 1, last - 1, last] {
        let Some(victim) = all.get(at).cloned() else { continue };
        if !instances.delete(std::slice::from_ref(&victim))? {
            return Ok(());
        }
        let answer = instances.commit(&all, Some((&name, b"one is gone")))?;
        if answer.is_empty() {
            return Err(format!("commit published over a chunk that is gone: number {at} of {} fresh", all.len()));
        }
        if answer != [victim.clone()] {
            return Err(format!("commit answers {} chunks as gone, and one is", answer.len()));
        }
        if instances.manifest(&name)?.as_deref() != Some(kept) {
            return Err("commit answered `absent`, and changed the manifest all the same".into());
        }
        let alone = instances.commit(std::slice::from_ref(&victim), None)?;
        if alone != [victim.clone()] {
            return Err("a commit without a manifest did not answer the chunk that is gone".into());
        }
        let put = chunks.iter().flatten().find(|(hash, _)| *hash == victim);
        instances.put(put.cloned().as_slice(), false)?;
    }
    Ok(())
}

fn kept(subject: &CallSubject) -> CaseResult {
    let instances = subject.instances;
    let (name, hashes) = (subject.name("calls"), |numbers: std::ops::Range<u64>| -> Vec<Vec<u8>> {
        numbers.map(|number| subject.hash(16, number)).collect()
    });
    for round in 0..3 {
        // One call, and then the instance is dropped.
        let numbers = round * 5..round * 5 + 1 + round;
        let chunks: Vec<Chunk> = numbers.clone().map(|number| subject.chunk(16, number)).collect();
        instances.put(&chunks, false)?;
        instances.retire();
        for (number, found) in numbers.clone().zip(instances.get(&hashes(numbers.clone()))?) {
            if found != Some(subject.data(number)) {
                return Err("a chunk was answered `stored`, and is gone with the instance".into());
            }
        }
        let manifest = [round as u8; 100];
        let fresh = if subject.instances.store.info().wants_fresh { hashes(numbers) } else { Vec::new() };
        instances.commit(&fresh, Some((&name, &manifest)))?;
        instances.retire();
        if instances.manifest(&name)?.as_deref() != Some(&manifest) {
            return Err("a manifest was answered `published`, and is gone with the instance".into());
        }
    }
    instances.delete_manifest(&name)?;
    instances.retire();
    if instances.manifest(&name)?.is_some() {
        return Err("a manifest was removed, and is back with the next instance".into());
    }
    Ok(())
}

/// Puts of a round, and commits.
const PUTS: u64 = 2000;
const COMMITS: u64 = 50;
/// Rounds that are made at least: 10,000 puts, and at most. The heap of a language that collects grows until it is first collected.
const ROUNDS: std::ops::Range<u64> = 5..40;
/// What a round may add: the host's bookkeeping, and the allocator of a component.
const SLACK: Held = Held { payload_bytes: 1 << 20, memory_bytes: 256 << 10 };

fn growth(subject: &CallSubject) -> CaseResult {
    let instances = subject.instances;
    let name = subject.name("calls");
    let chunks: Vec<Chunk> = (0..8).map(|number| subject.chunk(16, number)).collect();
    let fresh: Vec<Vec<u8>> = match instances.store.info().wants_fresh {
        true => chunks.iter().map(|(hash, _)| hash.clone()).collect(),
        false => Vec::new(),
    };
    let mut grown = None;
    for round in 0..ROUNDS.end {
        let before = (subject.held)();
        for n in 0..PUTS / chunks.len() as u64 {
            instances.put(&chunks, true).map_err(|why| format!("after {} puts: {why}", round * PUTS + n * 8))?;
            if n % (PUTS / 8 / COMMITS) == 0 {
                instances
                    .commit(&fresh, Some((&name, &[n as u8; 1000])))
                    .map_err(|why| format!("after {} puts: {why}", round * PUTS))?;
            }
        }
        let after = (subject.held)();
        // The host replaces an instance that holds too much: less than before is no sign that nothing grows.
        let changed = |before: Held, after: Held| {
            after.payload_bytes > before.payload_bytes + SLACK.payload_bytes
                || after.memory_bytes > before.memory_bytes + SLACK.memory_bytes
        };
        if !changed(before, after) && !changed(after, before) {
            if round + 1 >= ROUNDS.start {
                return Ok(());
            }
        } else {
            grown = Some((before, after));
        }
    }
    let Some((before, after)) = grown else { return Ok(()) };
    Err(format!(
        "{PUTS} puts over the same 8 hashes and {COMMITS} commits take its instances from {} to {} bytes of payloads, and from {} to {} of \
         memory and handles, round after round: free what a call took, and drop each payload",
        before.payload_bytes, after.payload_bytes, before.memory_bytes, after.memory_bytes
    ))
}
