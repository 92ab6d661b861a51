//! What the contract asks of whole batches, of misses and of commits. The C ABI `kv_store_v1` puts chunks one by one and has one answer for
//! a miss and a failure, so these cases go through the library's own interface. They run against components only.

use kv_store_wasm::{BatchOptions, ErrorKind, Fetch, Fetched, Memory, NewChunk, Put, SaveOutcome, Store};

use super::CaseResult;

pub struct ItemCase {
    pub name: &'static str,
    /// What the contract asks for, in a sentence.
    pub asks: &'static str,
    /// It is for backends whose `commit` is told what is fresh.
    told_fresh: bool,
    run: fn(&ItemSubject) -> CaseResult,
}

/// A store, and numbers that nobody else uses in it.
struct ItemSubject<'a> {
    store: &'a Store,
    case: &'static str,
    salt: u64,
}

pub const CASES: &[ItemCase] = &[
    ItemCase {
        name: "batch-items",
        asks: "each item of a batch is stored, answered and removed under its own hash",
        told_fresh: false,
        run: items,
    },
    ItemCase {
        name: "batch-existed",
        asks: "in a batch that is put, `existed` is answered for what is there, and for nothing that was removed",
        told_fresh: false,
        run: existed,
    },
    ItemCase {
        name: "misses",
        asks: "what is not there is `missing`, absent or none, and no failure; removing it succeeds",
        told_fresh: false,
        run: misses,
    },
    ItemCase {
        name: "commit-alone",
        asks: "a commit without a manifest succeeds, and changes no manifest",
        told_fresh: false,
        run: commit_alone,
    },
    ItemCase {
        name: "commit-absent",
        asks: "commit publishes nothing when a chunk of its `fresh` is gone, and answers `absent` with that chunk",
        told_fresh: true,
        run: commit_absent,
    },
];

/// Run a case. The outer `Err`: why it makes no sense here.
pub fn run(case: &ItemCase, store: &Store, salt: u64) -> Result<CaseResult, String> {
    if case.told_fresh && !store.info().wants_fresh {
        return Err(
            "it is not `durable`, `evicts` or `wants-fresh`, so commit is not told which chunks are fresh".into()
        );
    }
    let subject = ItemSubject { store, case: case.name, salt };
    if case.told_fresh && !subject.removes()? {
        return Err("the backend removes no chunks".into());
    }
    let verdict = (case.run)(&subject);
    subject.clean();
    Ok(verdict)
}

/// Chunks of a batch.
const COUNT: u64 = 6;

impl ItemSubject<'_> {
    /// 24 bytes that nobody else puts, other ones for each case.
    fn hash(&self, number: u64) -> Vec<u8> {
        let case = self.case.bytes().fold(0_u64, |all, byte| all.rotate_left(8) ^ u64::from(byte));
        [number.to_le_bytes(), self.salt.to_le_bytes(), case.to_le_bytes()].concat()
    }

    /// Of another length for each number.
    fn data(&self, number: u64) -> Vec<u8> {
        (0..1000 + 100 * number).map(|at| (at ^ number.wrapping_mul(31) ^ self.salt) as u8).collect()
    }

    fn name(&self) -> String {
        format!("{}~{:016x}", self.case, self.salt)
    }

    fn put(&self, numbers: &[u64]) -> Result<Vec<Put>, String> {
        let made: Vec<(Vec<u8>, Vec<u8>)> = numbers.iter().map(|n| (self.hash(*n), self.data(*n))).collect();
        let values: Vec<[&[u8]; 1]> = made.iter().map(|(_, data)| [data.as_slice()]).collect();
        let chunks: Vec<NewChunk> =
            made.iter().zip(&values).map(|((hash, _), value)| NewChunk::new(hash, value)).collect();
        let answers = self.store.put_many(&chunks, &BatchOptions::default(), None);
        let answers = answers.map_err(|error| format!("put-chunks: {error}"))?;
        answers.into_iter().map(|answer| answer.map_err(|error| format!("put-chunks: {error}"))).collect()
    }

    /// What `get-chunks` answers for each.
    fn get(&self, numbers: &[u64]) -> Result<Vec<Option<Vec<u8>>>, String> {
        let hashes: Vec<Vec<u8>> = numbers.iter().map(|number| self.hash(*number)).collect();
        let mut wanted: Vec<Fetch> = hashes.iter().map(|hash| Fetch::new(hash, Memory::Allocate)).collect();
        let answers = self.store.get_many(&mut wanted, &BatchOptions::default());
        let found = |answer| match answer {
            Ok(Some(Fetched::Buffer(data))) => Ok(Some(data.to_vec())),
            Ok(None) => Ok(None),
            Ok(Some(_)) => Err("get-chunks: answered into memory that was not given".to_owned()),
            Err(error) => Err(format!("get-chunks: {error}")),
        };
        answers.map_err(|error| format!("get-chunks: {error}"))?.into_iter().map(found).collect()
    }

    /// Remove chunks. False: this backend removes none.
    fn delete(&self, numbers: &[u64]) -> Result<bool, String> {
        let hashes: Vec<Vec<u8>> = numbers.iter().map(|number| self.hash(*number)).collect();
        let hashes: Vec<&[u8]> = hashes.iter().map(Vec::as_slice).collect();
        let answers = self.store.delete_many(&hashes).map_err(|error| format!("delete-chunks: {error}"))?;
        let mut removes = true;
        for answer in answers {
            match answer {
                Err(error) if error.kind() == ErrorKind::Unsupported => removes = false,
                answer => answer.map_err(|error| format!("delete-chunks: {error}"))?,
            }
        }
        Ok(removes)
    }

    fn removes(&self) -> Result<bool, String> {
        self.put(&[COUNT + 2])?;
        self.delete(&[COUNT + 2])
    }

    /// These chunks are there as they were put, and the others are not.
    fn expect(&self, there: &[u64], after: &str) -> CaseResult {
        // Not in the order in which they were put.
        let asked: Vec<u64> = (0..COUNT).rev().collect();
        for (number, found) in asked.iter().zip(self.get(&asked)?) {
            match found {
                None if there.contains(number) => {
                    return Err(format!("after {after}, chunk {number} of {COUNT} is missing"));
                }
                Some(_) if !there.contains(number) => {
                    return Err(format!("after {after}, chunk {number} of {COUNT} is still there"));
                }
                Some(data) if data != self.data(*number) => {
                    return Err(format!("after {after}, chunk {number} of {COUNT} has other bytes"));
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn clean(&self) {
        let _ = self.delete(&(0..COUNT + 3).collect::<Vec<_>>());
        let _ = self.store.delete_manifest(&self.name());
    }
}

fn items(subject: &ItemSubject) -> CaseResult {
    let all: Vec<u64> = (0..COUNT).collect();
    subject.put(&all)?;
    subject.expect(&all, "a batch was put")?;
    if subject.delete(&[0, 2, 4])? {
        subject.expect(&[1, 3, 5], "0, 2 and 4 were removed")?;
    }
    Ok(())
}

fn existed(subject: &ItemSubject) -> CaseResult {
    let put = |numbers: &[u64], there: &[u64], after: &str| {
        for (number, answer) in numbers.iter().zip(subject.put(numbers)?) {
            let expected = if there.contains(number) { Put::Existed } else { Put::New };
            if answer != expected {
                let (expected, answer) =
                    if expected == Put::New { ("stored", "existed") } else { ("existed", "stored") };
                return Err(format!("{after}, item {number} is answered `{answer}`: expected `{expected}`"));
            }
        }
        Ok(())
    };
    let all: Vec<u64> = (0..COUNT).collect();
    // Other answers in another order.
    put(&[0, 1], &[], "of an empty store")?;
    put(&all, &[0, 1], "after items 0 and 1 were put")?;
    if subject.delete(&[2, 3])? {
        put(&all, &[0, 1, 4, 5], "after items 2 and 3 were removed")?;
    }
    subject.expect(&all, "all were put again")
}

fn misses(subject: &ItemSubject) -> CaseResult {
    let ItemSubject { store, .. } = subject;
    subject.put(&[0])?;
    let asked = [COUNT, 0, COUNT + 1];
    if subject.get(&asked)?.iter().map(Option::is_some).ne([false, true, false]) {
        return Err("get-chunks: what was put is missing, or what was never put is found".into());
    }
    match store.get_manifest(&subject.name()) {
        Ok(None) => {}
        Ok(Some(_)) => return Err("get-manifest: found what was never put".into()),
        Err(error) => return Err(format!("get-manifest of what was never put failed: answer none: {error}")),
    }
    subject.delete(&[COUNT, COUNT + 1])?;
    store.delete_manifest(&subject.name()).map_err(|error| format!("delete-manifest of what was never put: {error}"))
}

fn commit_alone(subject: &ItemSubject) -> CaseResult {
    let ItemSubject { store, .. } = subject;
    let failed = |error: kv_store_wasm::Error| format!("commit: {error}");
    let (name, data, hash) = (subject.name(), subject.data(0), subject.hash(0));
    store.put_manifest(&name, b"before").map_err(failed)?;
    let save = store.begin_save().map_err(failed)?;
    let answers = store.put_many(&[NewChunk::new(&hash, &[&data])], &BatchOptions::default(), Some(&save));
    answers
        .and_then(|answers| answers.into_iter().collect::<Result<Vec<_>, _>>())
        .map_err(|error| format!("put-chunks: {error}"))?;
    match save.commit(None) {
        Ok(SaveOutcome::Published) => {}
        Ok(_) => return Err("a commit without a manifest answered that chunks are gone, and they are there".into()),
        Err(error) => return Err(format!("a commit without a manifest failed: {error}")),
    }
    if store.get_manifest(&name).map_err(|error| error.to_string())?.as_deref() != Some(b"before") {
        return Err("a commit without a manifest changed one".into());
    }
    Ok(())
}

fn commit_absent(subject: &ItemSubject) -> CaseResult {
    let ItemSubject { store, .. } = subject;
    let failed = |error: kv_store_wasm::Error| error.to_string();
    let name = subject.name();
    store.put_manifest(&name, b"before").map_err(failed)?;
    for number in 0..2 {
        store.put_chunk(&subject.hash(number), &subject.data(number)).map_err(failed)?;
    }
    store.flush().map_err(failed)?;
    subject.delete(&[1])?;
    if store.put_manifest(&name, b"after").is_ok() {
        return Err("a manifest was published, and a chunk of `fresh` was gone: answer `absent` with that chunk".into());
    }
    if store.get_manifest(&name).map_err(failed)?.as_deref() != Some(b"before") {
        return Err("commit answered that chunks are gone, and the manifest was changed all the same".into());
    }
    Ok(())
}
