//! Chunks: immutable bytes under a hash.

use super::{bytes, expect, expect_failure};
use crate::{Case, Needs, Subject, Verdict};

pub const CASES: &[Case] = &[
    Case {
        name: "chunk-roundtrip",
        asks: "get_chunk answers exactly what put_chunk was given",
        needs: Needs::Nothing,
        run: roundtrip,
    },
    Case {
        name: "chunk-empty",
        asks: "a chunk of 0 bytes is legal and comes back empty, not NULL",
        needs: Needs::Nothing,
        run: empty,
    },
    Case {
        name: "chunk-huge",
        asks: "a chunk of 256 MiB comes back whole",
        needs: Needs::Values(256 << 20),
        run: huge,
    },
    Case {
        name: "chunk-duplicate",
        asks: "putting a hash again answers 1 and changes nothing",
        needs: Needs::Nothing,
        run: duplicate,
    },
    Case {
        name: "chunk-missing",
        asks: "a missing chunk is a negative answer with NULL and 0",
        needs: Needs::Nothing,
        run: missing,
    },
    Case {
        name: "chunk-hash-lengths",
        asks: "a hash is 1 to 64 bytes of any value, and two hashes never collide",
        needs: Needs::Nothing,
        run: hash_lengths,
    },
    Case {
        name: "chunk-borrowed",
        asks: "input is only borrowed: the caller may overwrite it after the call",
        needs: Needs::Nothing,
        run: borrowed,
    },
    Case {
        name: "chunk-content-keyed",
        asks: "8-byte keys that are no digest of the content work like any other",
        needs: Needs::Nothing,
        run: opaque_8_byte_keys,
    },
    Case {
        name: "chunk-reopened",
        asks: "what a manifest published is there for a handle opened later",
        needs: Needs::Lasting,
        run: reopened,
    },
    Case {
        name: "prefetch",
        asks: "prefetch_chunks changes no answer, also for missing and repeated hashes",
        needs: Needs::Prefetch,
        run: prefetch,
    },
];

fn roundtrip(subject: &Subject) -> Verdict {
    let store = subject.fresh()?;
    let lengths = [1, 15, 16, 17, 4095, 4096, 4097, 65_536, 1 << 20, (1 << 20) + 1];
    let chunks: Vec<_> = lengths.iter().map(|len| (subject.hash(*len as u64), bytes(*len as u64, *len))).collect();
    for (hash, data) in &chunks {
        expect("put_chunk", store.put_chunk(hash, data)?, 0)?;
    }
    expect("put_manifest", store.put_manifest(&subject.name("m"), b"m")?, 0)?;
    for (hash, data) in &chunks {
        expect("get_chunk", store.get_chunk(hash)?.as_ref(), Ok(data))?;
    }
    Ok(())
}

fn empty(subject: &Subject) -> Verdict {
    let (store, key) = (subject.fresh()?, subject.hash(1));
    expect("put_chunk", store.put_chunk(&key, b"")?, 0)?;
    expect("put_manifest", store.put_manifest(&subject.name("m"), b"")?, 0)?;
    expect("get_chunk", store.get_chunk(&key)?, Ok(vec![]))?;
    expect("get_manifest", store.get_manifest(&subject.name("m"))?, Ok(vec![]))
}

fn huge(subject: &Subject) -> Verdict {
    let (store, key) = (subject.fresh()?, subject.hash(1));
    let data = bytes(1, 256 << 20);
    expect("put_chunk", store.put_chunk(&key, &data)?, 0)?;
    expect("put_manifest", store.put_manifest(&subject.name("m"), b"m")?, 0)?;
    match store.get_chunk(&key)? {
        Ok(found) if found == data => Ok(()),
        Ok(found) => Err(format!("256 MiB came back as {} other bytes", found.len())),
        Err(answer) => Err(format!("get_chunk of 256 MiB that were stored answered {answer}")),
    }
}

fn duplicate(subject: &Subject) -> Verdict {
    let (store, key) = (subject.fresh()?, subject.hash(1));
    expect("the first put_chunk", store.put_chunk(&key, b"first")?, 0)?;
    expect("the second put_chunk, before a manifest", store.put_chunk(&key, b"first")?, 1)?;
    expect("put_manifest", store.put_manifest(&subject.name("m"), b"m")?, 0)?;
    expect("put_chunk after the manifest", store.put_chunk(&key, b"first")?, 1)?;
    expect("put_chunk of other bytes under the same hash", store.put_chunk(&key, b"other")?, 1)?;
    expect("put_manifest", store.put_manifest(&subject.name("m"), b"m")?, 0)?;
    expect("get_chunk", store.get_chunk(&key)?, Ok(b"first".to_vec()))
}

fn missing(subject: &Subject) -> Verdict {
    let (store, key) = (subject.fresh()?, subject.hash(1));
    for _ in 0..2 {
        let found = store.get_chunk(&key)?;
        expect_failure("get_chunk of what was never put", found.map_or_else(|answer| answer, |_| 0))?;
    }
    let found = store.get_manifest(&subject.name("nobody"))?;
    expect_failure("get_manifest of what was never put", found.map_or_else(|answer| answer, |_| 0))
}

fn hash_lengths(subject: &Subject) -> Verdict {
    let store = subject.fresh()?;
    // Each is the beginning of the next, and they hold NUL, slashes and bytes that are no UTF-8. In a store that was given
    // the shortest could be somebody's.
    let salt = subject.salt().to_le_bytes();
    let own = if subject.salt() == 0 { &salt[..0] } else { &salt[..] };
    let strange = [0, b'/', 0xff, b'.', b'.', 7].into_iter().cycle();
    let longest: Vec<u8> = own.iter().copied().chain(strange).take(64).collect();
    let hash = |len: usize| longest.get(..len).unwrap_or_default();
    for len in own.len() + 1..=64 {
        let data = bytes(len as u64, 100);
        expect(&format!("put_chunk with a hash of {len} bytes"), store.put_chunk(hash(len), &data)?, 0)?;
    }
    expect("put_manifest", store.put_manifest(&subject.name("m"), b"m")?, 0)?;
    for len in own.len() + 1..=64 {
        let found = store.get_chunk(hash(len))?;
        expect(&format!("get_chunk with a hash of {len} bytes"), found, Ok(bytes(len as u64, 100)))?;
    }
    for hash in [vec![], vec![1; 65]] {
        let what = format!("put_chunk with a hash of {} bytes", hash.len());
        expect_failure(&what, store.put_chunk(&hash, b"x")?)?;
        let found = store.get_chunk(&hash)?;
        let what = format!("get_chunk with a hash of {} bytes", hash.len());
        expect_failure(&what, found.map_or_else(|answer| answer, |_| 0))?;
    }
    Ok(())
}

fn borrowed(subject: &Subject) -> Verdict {
    let store = subject.fresh()?;
    let (mut key, mut data) = (subject.hash(1), bytes(1, 10_000));
    expect("put_chunk", store.put_chunk(&key, &data)?, 0)?;
    key.fill(b'x');
    data.fill(b'x');
    let mut manifest = b"manifest".to_vec();
    expect("put_manifest", store.put_manifest(&subject.name("m"), &manifest)?, 0)?;
    manifest.fill(b'x');
    expect("get_chunk", store.get_chunk(&subject.hash(1))?, Ok(bytes(1, 10_000)))?;
    expect("get_manifest", store.get_manifest(&subject.name("m"))?, Ok(b"manifest".to_vec()))
}

fn opaque_8_byte_keys(subject: &Subject) -> Verdict {
    let store = subject.fresh()?;
    let key = |n: u64| (n ^ subject.salt()).to_le_bytes();
    for n in 0..20u64 {
        expect("put_chunk", store.put_chunk(&key(n), &bytes(n, 100))?, 0)?;
    }
    expect("put_manifest", store.put_manifest(&subject.name("m"), b"m")?, 0)?;
    for n in 0..20u64 {
        expect("get_chunk", store.get_chunk(&key(n))?, Ok(bytes(n, 100)))?;
    }
    Ok(())
}

fn reopened(subject: &Subject) -> Verdict {
    let (uri, key) = (subject.uri(), subject.hash(1));
    let store = subject.open(&uri)?;
    expect("put_chunk", store.put_chunk(&key, b"bytes")?, 0)?;
    expect("put_manifest", store.put_manifest(&subject.name("kept"), b"manifest")?, 0)?;
    drop(store);
    let store = subject.open(&uri)?;
    expect("get_manifest in a new handle", store.get_manifest(&subject.name("kept"))?, Ok(b"manifest".to_vec()))?;
    expect("get_chunk in a new handle", store.get_chunk(&key)?, Ok(b"bytes".to_vec()))?;
    expect("put_chunk of what is there", store.put_chunk(&key, b"bytes")?, 1)?;
    // The URI with the slash that consumers strip.
    let slashed = subject.open(&format!("{uri}/"))?;
    expect(
        "get_manifest with a trailing slash in the URI",
        slashed.get_manifest(&subject.name("kept"))?,
        Ok(b"manifest".to_vec()),
    )
}

fn prefetch(subject: &Subject) -> Verdict {
    let store = subject.fresh()?;
    let chunks: Vec<_> = (0..50).map(|n| (subject.hash(n), bytes(n, 1000 + n as usize))).collect();
    for (hash, data) in &chunks {
        expect("put_chunk", store.put_chunk(hash, data)?, 0)?;
    }
    expect("put_manifest", store.put_manifest(&subject.name("m"), b"m")?, 0)?;
    let mut wanted: Vec<u8> = chunks.iter().flat_map(|(hash, _)| hash.clone()).collect();
    wanted.extend(subject.hash(1000));
    wanted.extend(chunks.iter().take(1).flat_map(|(hash, _)| hash));
    expect("prefetch_chunks", store.prefetch_chunks(&wanted, 16), Some(0))?;
    expect("prefetch_chunks of nothing", store.prefetch_chunks(b"", 16), Some(0))?;
    for _ in 0..2 {
        for (hash, data) in &chunks {
            expect("get_chunk after prefetch_chunks", store.get_chunk(hash)?.as_ref(), Ok(data))?;
        }
    }
    let found = store.get_chunk(&subject.hash(1000))?;
    expect_failure("get_chunk of a missing chunk after prefetch_chunks", found.map_or_else(|answer| answer, |_| 0))
}
