//! What must outlive the process that stored it.

use super::{bytes, expect};
use crate::{Restart, Subject, Verdict};

pub const RESTARTS: &[Restart] = &[Restart {
    name: "restart",
    asks: "what a manifest published is there for another process, when the first has ended",
    before: store,
    after: fetch,
}];

const CHUNKS: u64 = 20;

fn store(subject: &Subject) -> Verdict {
    let store = subject.fresh()?;
    for n in 0..CHUNKS {
        expect("put_chunk", store.put_chunk(&subject.hash(n), &bytes(n, 5000))?, 0)?;
    }
    expect("put_manifest", store.put_manifest(&subject.name("kept"), b"manifest")?, 0)
}

fn fetch(subject: &Subject) -> Verdict {
    let store = subject.fresh()?;
    let found = store.get_manifest(&subject.name("kept"))?;
    expect("get_manifest in another process", found, Ok(b"manifest".to_vec()))?;
    for n in 0..CHUNKS {
        let found = store.get_chunk(&subject.hash(n))?;
        expect("get_chunk in another process", found, Ok(bytes(n, 5000)))?;
    }
    // A library that buffers may learn only at the manifest that the backend has it.
    let again = || store.put_chunk(&subject.hash(0), &bytes(0, 5000));
    let first = again()?;
    if first != 0 && first != 1 {
        return Err(format!("put_chunk in another process of what is there answered {first}"));
    }
    expect("put_manifest in another process", store.put_manifest(&subject.name("kept"), b"other")?, 0)?;
    expect("put_chunk of what is there, after a manifest", again()?, 1)
}
