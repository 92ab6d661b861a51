//! Chunks that are missing, damaged or lost, and the saves and restores that meet them.

use std::path::Path;

use kv_store_wasm::ErrorKind;
use kv_store_wasm::paged::{Checked, describe};
use kvx::{DType, Layout};
use xxhash_rust::xxh3::xxh3_64;

use super::engine::{Engine, LAYERS, SHAPE, error_of, open, restore, save, slots};
use super::with;

/// Change one of the chunk files, of which there are four, in an order that says nothing of the chunks'.
fn damage(folder: &Path, which: usize, change: impl Fn(&Path)) {
    let mut found = Vec::new();
    let mut folders = vec![folder.join("chunks")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap().flatten() {
            if entry.file_type().unwrap().is_dir() { folders.push(entry.path()) } else { found.push(entry.path()) }
        }
    }
    found.sort();
    assert_eq!(found.len(), 4);
    change(&found[which]);
}

#[test]
fn a_chunk_that_is_missing_or_damaged_leaves_the_pages_alone_and_the_next_save_mends_it() {
    let engine = Engine::new(SHAPE, DType::F16, Layout::Nhd, LAYERS, 10);
    let from = [1, 2, 3, 4];
    let slots = slots(&from, 4, 16);
    type Change<'a> = &'a dyn Fn(&Path);
    let changes: [(&str, ErrorKind, Change<'_>); 3] = [
        ("not there any more", ErrorKind::Missing, &|file| std::fs::remove_file(file).unwrap()),
        ("damaged", ErrorKind::Corrupt, &|file| {
            let mut bytes = std::fs::read(file).unwrap();
            bytes[9] ^= 1;
            std::fs::write(file, bytes).unwrap();
        }),
        ("damaged", ErrorKind::Corrupt, &|file| {
            let bytes = std::fs::read(file).unwrap();
            std::fs::write(file, &bytes[1..]).unwrap();
        }),
    ];
    for (what, kind, change) in changes {
        for (which, max_bytes) in (0..4).flat_map(|which| [(which, 0), (which, 1)]) {
            let folder = tempfile::tempdir().expect("a temporary directory");
            let store = open(&format!("local-fs://{}", folder.path().display()));
            engine.save(&store, "damaged", &from, 16, 4);
            damage(folder.path(), which, change);
            let whole = with(restore("damaged", &slots), |set| set.max_bytes = max_bytes);
            let mut other = engine.blank();
            let (got, message, tokens) = error_of(&whole, &store, &mut other);
            assert!(got == kind && message.contains(what), "{got:?} {message}");
            // In parts, what is missing is found before a page is touched, and what is damaged when its turn comes.
            let kept = other.tokens(&from, 16);
            let row = 2 * 8 * 2;
            let want = engine.tokens(&from, 16);
            for (want, kept) in want.iter().flatten().zip(kept.iter().flatten()) {
                let done = tokens as usize * row;
                assert!(kept[..done] == want[..done] && kept[done..].iter().all(|byte| *byte == 0xEE));
            }
            if max_bytes == 0 || kind == ErrorKind::Missing {
                assert_eq!(tokens, 0);
            }
            // To have read it removes nothing.
            let described = describe(&store, "damaged").unwrap().unwrap();
            assert_eq!(described.chunks_present(&store).unwrap(), 4 - usize::from(kind == ErrorKind::Missing));
            assert_eq!(error_of(&whole, &store, &mut engine.blank()).0, kind);
            engine.save(&store, "damaged", &from, 16, 4);
            whole.run(&store, &mut other.caches_mut()).expect("it was mended");
            assert!(other.tokens(&from, 16) == engine.tokens(&from, 16));
        }
    }
}

/// By whoever the damage was met, or by nobody: a save that reads what is there stores it again.
#[test]
fn a_save_that_verifies_stores_again_what_is_damaged() {
    let engine = Engine::new(SHAPE, DType::F16, Layout::Nhd, LAYERS, 20);
    let from = [1, 2, 3, 4];
    let slots = slots(&from, 4, 16);
    for change in [|bytes: &mut Vec<u8>| bytes[9] ^= 1, |bytes: &mut Vec<u8>| bytes.truncate(3)] {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let store = open(&format!("local-fs://{}", folder.path().display()));
        engine.save(&store, "verified", &from, 16, 4);
        let rewrite = |file: &Path| {
            let mut bytes = std::fs::read(file).unwrap();
            change(&mut bytes);
            std::fs::write(file, bytes).unwrap();
        };
        damage(folder.path(), 2, rewrite);
        let caches = engine.caches();
        let verified = with(save("verified", &caches, &from, 16, 4), |set| set.verify = true);
        assert_eq!(verified.run(&store).unwrap().existed, 3);
        let mut other = engine.blank();
        restore("verified", &slots).run(&store, &mut other.caches_mut()).expect("it was stored again");
        assert!(other.tokens(&from, 16) == engine.tokens(&from, 16));
        assert_eq!(verified.run(&store).unwrap().existed, 4);
    }
}

#[test]
fn chunks_are_read_to_know_that_they_are_sound() {
    let engine = Engine::new(SHAPE, DType::F16, Layout::Nhd, LAYERS, 21);
    let folder = tempfile::tempdir().expect("a temporary directory");
    let store = open(&format!("local-fs://{}", folder.path().display()));
    engine.save(&store, "checked", &[1, 2, 3, 4], 16, 4);
    let described = describe(&store, "checked").unwrap().unwrap();
    assert_eq!(described.check_chunks(&store).unwrap(), with(Checked::default(), |set| set.sound = 4));
    damage(folder.path(), 1, |file| {
        let mut bytes = std::fs::read(file).unwrap();
        bytes[0] ^= 128;
        std::fs::write(file, bytes).unwrap();
    });
    assert_eq!(described.chunks_present(&store).unwrap(), 4);
    let checked = described.check_chunks(&store).unwrap();
    assert!(checked.sound == 3 && checked.missing.is_empty() && checked.foreign.is_empty(), "{checked:?}");
    let [(number, Some(_))] = &checked.damaged[..] else { panic!("{checked:?}") };
    assert_eq!(described.check_chunks(&store).unwrap().damaged[0].0, *number, "it stays");
}

/// What is answered of a second save is what the backend has now, and not what it had.
#[test]
fn chunks_that_the_backend_has_lost_are_not_said_to_be_there() {
    let store = open("probe-buffered://lost");
    let engine = Engine::new(SHAPE, DType::F16, Layout::Hnd, LAYERS, 22);
    assert_eq!(engine.save(&store, "lost", &[1, 2, 3], 12, 4).existed, 0);
    assert_eq!(engine.save(&store, "lost", &[1, 2, 3], 12, 4).existed, 3);
    for key in describe(&store, "lost").unwrap().unwrap().chunk_keys {
        store.put_manifest("lose", &key).unwrap();
    }
    assert_eq!(engine.save(&store, "lost", &[1, 2, 3], 12, 4).existed, 0);
}

/// What matches its key is another's chunk, if not this manifest's: no save replaces it.
#[test]
fn a_sound_chunk_of_another_length_or_content_is_refused_and_left_alone() {
    let store = open("memory://paged-sound");
    let engine = Engine::new(SHAPE, DType::F16, Layout::Hnd, LAYERS, 13);
    engine.save(&store, "whole", &[1, 2], 8, 4);
    let manifest = store.get_manifest("whole").unwrap().unwrap();
    let (tokens, last_check) = (24, manifest.len() - 16);
    for (name, at, slots) in [("shorter", tokens, 7), ("other", last_check, 8)] {
        let mut bytes = manifest.to_vec();
        bytes[at] ^= 15;
        let sealed = bytes.len() - 8;
        let seal = xxh3_64(&bytes[..sealed]);
        bytes[sealed..].copy_from_slice(&seal.to_le_bytes());
        store.put_manifest(name, &bytes).unwrap();
        let slots: Vec<i64> = (0..slots).collect();
        let (kind, message, tokens) = error_of(&restore(name, &slots), &store, &mut engine.blank());
        assert!(kind == ErrorKind::Corrupt && message.contains("other content") && tokens == 0, "{name}: {message}");
        // A chunk that is replaced does not count as one that was there.
        assert_eq!(engine.save(&store, "whole", &[1, 2], 8, 4).existed, 2, "{name}");
    }
}
