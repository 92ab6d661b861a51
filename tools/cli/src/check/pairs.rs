//! What two processes see of each other's chunks, through the calls of the contract: the C ABI removes and replaces none.

use std::time::{Duration, Instant};

use kv_store_wasm::Put;

use super::CaseResult;
use super::tap::{Chunk, Instances};

pub const NAME: &str = "shared-chunks";
pub const ASKS: &str =
    "a chunk that one process stores, replaces or removes is so for another that has looked at it before";

/// How long one process waits for the other.
const PATIENCE: Duration = Duration::from_secs(20);

pub struct PairSubject<'a> {
    pub instances: &'a Instances,
    pub salt: u64,
}

/// Run the part of one process. The outer `Err`: why it makes no sense here.
pub fn run(subject: &PairSubject, is_second: bool) -> Result<CaseResult, String> {
    if !subject.instances.store.info().shared {
        return Err("the backend is not shared by processes".into());
    }
    let verdict = if is_second { second(subject) } else { first(subject) };
    if !is_second {
        let _ = subject.instances.delete(&(1..4).map(|number| subject.hash(number)).collect::<Vec<_>>());
        let _ = subject.instances.delete_manifest(&subject.name());
    }
    Ok(verdict)
}

impl PairSubject<'_> {
    fn hash(&self, number: u64) -> Vec<u8> {
        [&self.salt.to_le_bytes()[..], b"shared-c", &number.to_le_bytes()].concat()
    }

    fn chunk(&self, number: u64, content: u8) -> Chunk {
        (self.hash(number), vec![content; 3000])
    }

    fn name(&self) -> String {
        format!("shared-chunks~{:016x}", self.salt)
    }

    fn say(&self, turn: u8) -> CaseResult {
        self.instances.commit(&[], Some((&self.name(), &[turn; 40]))).map(drop)
    }

    fn wait(&self, turn: u8) -> CaseResult {
        let begun = Instant::now();
        while self.instances.manifest(&self.name())?.is_none_or(|found| found != [turn; 40]) {
            if begun.elapsed() > PATIENCE {
                return Err(format!("for {} s a manifest of the other process is not seen", PATIENCE.as_secs()));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    fn expect(&self, number: u64, content: Option<u8>, after: &str) -> CaseResult {
        let hash = [self.hash(number)];
        let there = self.instances.exists(&hash)?.iter().any(Option::is_some);
        let found = self.instances.get(&hash)?.pop().flatten();
        let wanted = content.map(|content| vec![content; 3000]);
        match (there == wanted.is_some(), found == wanted) {
            (true, true) => Ok(()),
            (false, _) => Err(format!("after {after}, exists answers {}", if there { "present" } else { "absent" })),
            (true, false) => {
                let what = match (&found, &wanted) {
                    (None, _) => "missing",
                    (Some(_), None) => "found",
                    (Some(_), Some(_)) => "the former bytes",
                };
                Err(format!("after {after}, get-chunks answers {what}"))
            }
        }
    }
}

fn first(subject: &PairSubject) -> CaseResult {
    let instances = subject.instances;
    instances.put(&[subject.chunk(1, 1)], false)?;
    subject.say(1)?;
    subject.wait(2)?;
    let removed = instances.delete(&[subject.hash(1)])?;
    instances.put(&[subject.chunk(2, 2)], false)?;
    instances.put(&[subject.chunk(3, 3)], false)?;
    subject.say(if removed { 3 } else { 13 })?;
    subject.wait(4)?;
    subject.expect(3, Some(33), "another process has replaced a chunk")?;
    if removed {
        subject.expect(1, Some(11), "another process has put a chunk again that was removed")?;
    }
    Ok(())
}

fn second(subject: &PairSubject) -> CaseResult {
    let instances = subject.instances;
    subject.wait(1)?;
    // What an instance might remember of each.
    subject.expect(1, Some(1), "another process has put a chunk")?;
    if instances.put(&[subject.chunk(1, 1)], false)?.is_empty() {
        return Err("put-chunks: answered nothing".into());
    }
    for number in [2, 3] {
        subject.expect(number, None, "nobody has put a chunk")?;
    }
    subject.say(2)?;
    let begun = Instant::now();
    let removed = loop {
        match instances.manifest(&subject.name())?.as_deref() {
            Some([3, ..]) => break true,
            Some([13, ..]) => break false,
            _ if begun.elapsed() > PATIENCE => {
                return Err(format!("for {} s a manifest of the other process is not seen", PATIENCE.as_secs()));
            }
            _ => std::thread::sleep(Duration::from_millis(10)),
        }
    };
    for number in [2, 3] {
        subject.expect(number, Some(number as u8), "another process has put a chunk that was absent")?;
    }
    if removed {
        subject.expect(1, None, "another process has removed a chunk")?;
        if instances.put(&[subject.chunk(1, 11)], false)? != [Put::New] {
            return Err("put-chunks: `existed`, and another process has removed the chunk".into());
        }
    }
    instances.put(&[subject.chunk(3, 33)], true)?;
    subject.say(4)
}
