//! Chunks that changed on the disk, in a store whose keys are the XXH3-64 of the content: never answered, and healed.

use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;

use kv_store_tests::consumer::start;
use xxhash_rust::xxh3::xxh3_64;

use super::*;

/// The key of a chunk, in hex.
fn key(content: &str) -> String {
    format!("{:016x}", xxh3_64(content.as_bytes()))
}

const SOUND: &str = "a chunk that stays sound";
const HURT: &str = "a chunk that will be hurt";

/// A store with both chunks, of which one was then changed on the disk. Answers the file of that one, too.
fn damaged_store(damage: impl FnOnce(&mut Vec<u8>)) -> (tempfile::TempDir, String, PathBuf) {
    let directory = scratch();
    let uri = local_fs(directory.path());
    succeed(&mut calls(&uri, ["put", &key(SOUND), SOUND, "put", &key(HURT), HURT, "publish", "m", "both"]));
    let of_hurt = |path: &PathBuf| path.file_name().is_some_and(|name| *name == *key(HURT));
    let file = chunk_files(directory.path()).into_iter().find(of_hurt).expect("the chunk has a file");
    hurt(&file, damage);
    (directory, uri, file)
}

fn hurt(file: &Path, damage: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = std::fs::read(file).expect("the chunk's file");
    assert!(bytes.starts_with(HURT.as_bytes()) && [0, 64].contains(&(bytes.len() - HURT.len())));
    damage(&mut bytes);
    std::fs::write(file, bytes).expect("the chunk's file");
}

/// The hurt chunk was asked for with `asked`, last: a miss, with the one line that says so.
#[track_caller]
fn refused(uri: &str, asked: &[&str], answers: &[&str]) {
    let finished = succeed(&mut calls(uri, asked.iter().copied()));
    let got: Vec<&str> = finished.stdout.lines().skip(1).collect();
    let (last, before) = got.split_last().expect("there are answers");
    assert_eq!(before, answers, "{finished:?}");
    assert!(last.starts_with("get -"), "the damaged chunk was answered: {finished:?}");
    assert_eq!(lines(&finished).len(), 1, "{finished:?}");
    for said in [&*key(HURT), uri, "damaged"] {
        assert!(finished.stderr.contains(said), "{said} is missing in {finished:?}");
    }
}

fn found(content: &str) -> String {
    format!("get 0 {}", hex::encode(content))
}

#[test]
fn a_changed_byte_is_refused_in_a_store_that_was_put_to() {
    let (_directory, uri, _) = damaged_store(|bytes| bytes[3] ^= 1);
    refused(&uri, &["put", &key(SOUND), SOUND, "get", &key(HURT)], &["put 1"]);
    let (_directory, uri, _) = damaged_store(|bytes| bytes[3] ^= 1);
    refused(&uri, &["put", &key("new"), "new", "get", &key(HURT)], &["put 0"]);
}

#[test]
fn a_changed_byte_is_refused_in_a_fresh_process_once_a_sound_chunk_was_seen() {
    let (_directory, uri, _) = damaged_store(|bytes| bytes[3] ^= 1);
    refused(&uri, &["get", &key(SOUND), "get", &key(HURT)], &[&found(SOUND)]);
}

#[test]
fn a_shorter_a_longer_and_an_empty_file_are_refused() {
    let damages: [fn(&mut Vec<u8>); 3] = [|bytes| bytes.truncate(5), |bytes| bytes.push(b'!'), |bytes| bytes.clear()];
    for damage in damages {
        let (_directory, uri, _) = damaged_store(damage);
        refused(&uri, &["get", &key(SOUND), "get", &key(HURT)], &[&found(SOUND)]);
    }
}

#[test]
fn a_changed_byte_is_refused_when_it_was_prefetched_after_a_sound_chunk() {
    let (_directory, uri, _) = damaged_store(|bytes| bytes[3] ^= 1);
    let both = key(SOUND) + &key(HURT);
    refused(&uri, &["prefetch", "8", &both, "get", &key(SOUND), "get", &key(HURT)], &["prefetch 0", &found(SOUND)]);
    let (_directory, uri, _) = damaged_store(|bytes| bytes[3] ^= 1);
    refused(&uri, &["prefetch", "8", &both, "get", &key(HURT)], &["prefetch 0"]);
}

#[test]
fn a_changed_byte_is_refused_when_it_was_prefetched_before_a_sound_chunk() {
    // A restore begins so: nothing was put, and the first chunk that comes is the damaged one.
    let (_directory, uri, _) = damaged_store(|bytes| bytes[3] ^= 1);
    let both = key(HURT) + &key(SOUND);
    refused(&uri, &["prefetch", "8", &both, "get", &key(SOUND), "get", &key(HURT)], &["prefetch 0", &found(SOUND)]);
    let (_directory, uri, _) = damaged_store(|bytes| bytes[3] ^= 1);
    refused(&uri, &["prefetch", "8", &both, "get", &key(HURT)], &["prefetch 0"]);
}

#[test]
fn the_next_put_heals_what_was_refused() {
    let damages: [fn(&mut Vec<u8>); 2] = [|bytes| bytes[3] ^= 1, |bytes| bytes.truncate(5)];
    for damage in damages {
        let (_directory, uri, file) = damaged_store(damage);
        // Held open, so that its number is given to no other file.
        let former = std::fs::File::open(&file).expect("the chunk's file");
        let before = former.metadata().expect("the chunk's file");
        let asked = ["get", &key(SOUND), "get", &key(HURT), "put", &key(HURT), HURT, "publish", "m", "both"];
        let healed = succeed(&mut calls(&uri, asked.into_iter().chain(["get", &key(HURT)])));
        let answers: Vec<&str> = healed.stdout.lines().collect();
        assert!(answers[2].starts_with("get -"), "{healed:?}");
        assert_eq!(answers[3..], ["put 0", "publish 0", &found(HURT)], "{healed:?}");
        assert_eq!(lines(&healed).len(), 1, "{healed:?}");
        // Replaced, not written over: whoever reads the former file at this moment is not shown a mixture.
        use std::os::unix::fs::MetadataExt;
        assert_ne!(std::fs::metadata(&file).expect("the chunk's file").ino(), before.ino());
        assert_eq!(std::fs::read(&file).expect("the chunk's file"), HURT.as_bytes());
        let fresh = succeed(&mut calls(&uri, ["prefetch", "8", &key(HURT), "get", &key(HURT), "get", &key(HURT)]));
        assert_eq!(fresh.stdout, format!("open ok\nprefetch 0\n{0}\n{0}\n", found(HURT)));
        assert_eq!(fresh.stderr, "");
    }
}

#[test]
fn what_one_process_has_refused_is_stored_again_by_another() {
    let damages: [fn(&mut Vec<u8>); 2] = [|bytes| bytes[3] ^= 1, |bytes| bytes.clear()];
    for damage in damages {
        let (_directory, uri, file) = damaged_store(damage);
        refused(&uri, &["get", &key(SOUND), "get", &key(HURT)], &[&found(SOUND)]);
        assert!(file.exists(), "one that has seen it once removes nothing");
        // Seconds later, here at once.
        let place = scratch();
        let config = place.path().join("config.toml");
        std::fs::write(&config, "[backend.local-fs]\nlimits = { damaged_ms = 0 }\n").expect("a config");
        let asked = ["get", &key(SOUND), "get", &key(HURT), "get", &key(HURT)];
        succeed(calls(&uri, asked).env("KV_STORE_WASM_CONFIG", &config));
        assert!(!file.exists(), "removed, for all to see");
        let saved = succeed(&mut calls(&uri, ["put", &key(HURT), HURT, "publish", "m", "both"]));
        assert_eq!(saved.stdout, "open ok\nput 0\npublish 0\n");
        let restored = succeed(&mut calls(&uri, ["get", &key(SOUND), "get", &key(HURT)]));
        assert_eq!(
            (restored.stdout, restored.stderr),
            (format!("open ok\n{}\n{}\n", found(SOUND), found(HURT)), String::new())
        );
    }
}

#[test]
fn what_is_damaged_while_the_store_is_open_is_refused_and_healed_too() {
    let directory = scratch();
    let uri = local_fs(directory.path());
    let key = key(HURT);
    let before = ["put", &key, HURT, "publish", "m", "it", "wait"];
    let mut command = calls(&uri, before.into_iter().chain(["get", &key, "put", &key, HURT, "get", &key]));
    let streams = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut running = start(streams);
    let mut output = BufReader::new(running.0.stdout.take().expect("a pipe"));
    let mut said = String::new();
    while !said.ends_with("wait\n") {
        assert_ne!(output.read_line(&mut said).expect("text"), 0, "{said}");
    }
    hurt(&chunk_files(directory.path()).pop().expect("a chunk"), |bytes| bytes[0] ^= 0x80);
    running.0.stdin.take().expect("a pipe").write_all(b"\n").expect("it reads");
    let answers = std::io::read_to_string(output).expect("text");
    let errors = std::io::read_to_string(running.0.stderr.take().expect("a pipe")).expect("text");
    assert!(running.wait().is_some_and(|status| status.success()), "{answers}{errors}");
    let answers: Vec<&str> = answers.lines().collect();
    assert!(answers[0].starts_with("get -"), "{answers:?}");
    assert_eq!(answers[1..], ["put 0", &found(HURT)]);
    assert_eq!((errors.lines().count(), errors.contains("damaged")), (1, true), "{errors}");
}

#[test]
fn what_lies_under_other_keys_than_digests_of_the_content_is_refused_by_its_envelope() {
    let directory = scratch();
    let uri = local_fs(directory.path());
    let keys = ["0102030405060708", "00", &"ab".repeat(32)];
    for key in keys {
        succeed(&mut calls(&uri, ["put", key, HURT, "publish", "m", "it"]));
    }
    for file in chunk_files(directory.path()) {
        hurt(&file, |bytes| bytes[3] ^= 1);
    }
    // The checksum of their envelopes tells, whatever the keys are.
    let asked = keys.iter().flat_map(|key| ["get", *key]);
    let finished = succeed(&mut calls(&uri, asked));
    assert_eq!(finished.stdout.lines().filter(|line| line.starts_with("get -")).count(), keys.len(), "{finished:?}");
    assert_eq!(lines(&finished).len(), keys.len(), "{finished:?}");
}
