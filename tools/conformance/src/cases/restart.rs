//! What must outlive the process that stored it.

use xxhash_rust::xxh3::xxh3_64;

use super::{bytes, expect};
use crate::{Handle, Restart, Subject, Verdict};

pub const RESTARTS: &[Restart] = &[
    Restart {
        name: "restart",
        asks: "what a manifest published is there for another process, when the first has ended",
        before: store,
        after: fetch,
    },
    Restart {
        name: "restart-damaged",
        asks: "a chunk that one process found damaged is stored again by the next put of another process (delete-chunks)",
        before: meet_damage,
        after: heal,
    },
    super::descriptors::RESTART,
];

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

/// A chunk under the digest of its content, as today's consumers key them.
fn keyed(content: &[u8]) -> [u8; 8] {
    xxh3_64(content).to_be_bytes()
}

/// Put a chunk whose key is the digest of its content: from then on a library that verifies chunks knows what the keys are.
fn show_keys(subject: &Subject, store: &Handle) -> Verdict {
    let content = bytes(1 ^ subject.salt(), 3000);
    let put = store.put_chunk(&keyed(&content), &content)?;
    if put < 0 { Err(format!("put_chunk answered {put}")) } else { Ok(()) }
}

/// What stands for damage: other bytes, of the same length, under the digest of this content.
fn damaged(subject: &Subject) -> (Vec<u8>, Vec<u8>) {
    (bytes(2 ^ subject.salt(), 3000), bytes(3 ^ subject.salt(), 3000))
}

fn meet_damage(subject: &Subject) -> Verdict {
    let (store, (content, other)) = (subject.fresh()?, damaged(subject));
    show_keys(subject, &store)?;
    expect("put_chunk", store.put_chunk(&keyed(&content), &other)?, 0)?;
    expect("put_manifest", store.put_manifest(&subject.name("damaged"), b"m")?, 0)?;
    match store.get_chunk(&keyed(&content))? {
        Ok(found) => expect("get_chunk of a library that does not verify chunks", found, other),
        Err(_) => {
            // A library may want to find it so once more, seconds later, before it removes anything.
            std::thread::sleep(FOUND_AGAIN_AFTER);
            store.get_chunk(&keyed(&content)).map(drop)
        }
    }
}

/// More than the 5 s that `kv_store_abi.h` speaks of.
const FOUND_AGAIN_AFTER: std::time::Duration = std::time::Duration::from_millis(5500);

fn heal(subject: &Subject) -> Verdict {
    let (store, (content, other)) = (subject.fresh()?, damaged(subject));
    show_keys(subject, &store)?;
    let put = store.put_chunk(&keyed(&content), &content)?;
    expect("put_manifest", store.put_manifest(&subject.name("damaged"), b"m")?, 0)?;
    match store.get_chunk(&keyed(&content))? {
        Ok(found) if found == content || found == other => Ok(()),
        Ok(_) => Err("get_chunk answered bytes that were never put".into()),
        Err(_) => Err(format!(
            "put_chunk answered {put} to what another process had found damaged, and the chunk is still not there"
        )),
    }
}
