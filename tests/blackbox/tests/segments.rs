//! The segment store as an operator has it: the way over from local-fs, a disk that is small, that is full of others' files, that can only be
//! read, and a directory that somebody removes.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test that fails panics")]

use std::path::Path;
use std::process::Command;

use kv_store_tests::consumer::{Finished, consumer, finish};
use kv_store_tests::{dist, library, root};
use xxhash_rust::xxh3::xxh3_64;

#[track_caller]
fn kv_store(arguments: &[&str]) -> Finished {
    let mut command = Command::new(dist().join("bin/kv-store"));
    command.args(arguments).env("KV_STORE_WASM_CONFIG", "/dev/null");
    let finished = finish(command.env("KV_STORE_WASM_CACHE", root().join("target/test-consumers/cache")));
    assert!(finished.status.success(), "{arguments:?}: {}{}", finished.stdout, finished.stderr);
    finished
}

fn uri(scheme: &str, folder: &Path, name: &str) -> String {
    format!("{scheme}://{}", folder.join(name).display())
}

fn content(number: u64) -> Vec<u8> {
    number.to_le_bytes().into_iter().cycle().take(3000 + number as usize * 7).collect()
}

fn key(content: &[u8]) -> [u8; 8] {
    xxh3_64(content).to_be_bytes()
}

#[test]
fn a_copy_of_local_fs_is_listed_verified_and_cleaned() {
    let folder = tempfile::tempdir().unwrap();
    let (from, to) = (uri("local-fs", folder.path(), "a"), uri("segments", folder.path(), "b"));
    {
        let store = library().open(&from).unwrap();
        for content in (0..200).map(content) {
            assert_eq!(store.put_chunk(&key(&content), &content), Ok(0));
        }
        for name in ["a manifest", "Another/one"] {
            assert_eq!(store.put_manifest(name, name.as_bytes()), Ok(0));
        }
    }
    kv_store(&["copy", &from, &to]);
    let lines = |arguments: &[&str]| kv_store(arguments).stdout.lines().count();
    assert_eq!(lines(&["ls", &to, "--chunks"]), lines(&["ls", &from, "--chunks"]));
    assert!(kv_store(&["ls", &to]).stdout.contains("Another/one"));
    kv_store(&["verify", &to]);
    let held = |uri: &str| {
        let du: serde_json::Value = serde_json::from_str(&kv_store(&["du", uri, "--json"]).stdout).unwrap();
        (du["chunks"].as_u64().unwrap(), du["manifests"].as_u64().unwrap())
    };
    assert_eq!(held(&to), (200, 2));
    {
        let store = library().open(&to).unwrap();
        for content in (0..200).map(content) {
            assert_eq!(store.get_chunk(&key(&content)), Ok(Ok(content)));
        }
        assert_eq!(store.get_manifest("Another/one"), Ok(Ok(b"Another/one".to_vec())));
    }
    kv_store(&["gc", &to, "--older-than", "1h"]);
    assert_eq!(held(&to), (200, 2), "all of it was used just now");
    kv_store(&["gc", &to, "--max-bytes", "0", "--grace", "0s"]);
    assert_eq!(held(&to), (0, 0));
    // Neither backend takes the other's directory for its own.
    for wrong in [uri("segments", folder.path(), "a"), uri("local-fs", folder.path(), "b")] {
        assert!(library().open(&wrong).is_none(), "{wrong}");
    }
}

#[test]
fn on_a_small_disk_puts_go_on_and_on_one_that_can_only_be_read_gets_do() {
    let scratch = tempfile::tempdir().unwrap();
    let config = tempfile::NamedTempFile::new().unwrap();
    // More than the disk has.
    let options = "max_bytes = '1 GB', segment_bytes = '1 MiB'";
    std::fs::write(&config, format!("[backend.segments]\noptions = {{ {options} }}\n")).unwrap();
    let program = consumer("bounded");
    let run = |what: &str| {
        let program = Path::new(program.get_program()).display();
        format!("KV_STORE_WASM_CONFIG={} {program} segments://$PWD/store {what}", config.path().display())
    };
    let script = format!(
        "mount -t tmpfs -o size=20m none {0} && cd {0} && {1}; echo then; {2}; mount -o remount,ro {0}; {2}; echo then; {3}; {2}",
        scratch.path().display(),
        run("write 80 10 1"),
        run("read 80 10 1"),
        run("write 3 10 2")
    );
    let mut unshare = Command::new("unshare");
    unshare.args(["--map-root-user", "--mount", "sh", "-c", &script]);
    unshare.env_clear().envs(program.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let finished = finish(&mut unshare);
    let parts: Vec<&str> = finished.stdout.split("then\n").collect();
    let number = |of: &str, what: &str| -> Vec<u64> {
        of.lines().filter_map(|line| line.strip_prefix(what)?.trim().parse().ok()).collect()
    };
    let [written, read, refused] = parts[..] else { panic!("{finished:?}") };
    assert_eq!(number(written, "saved "), [80], "{finished:?}");
    let whole = number(read, "whole ");
    assert!(whole.len() == 2 && whole[0] == whole[1] && (15..40).contains(&whole[0]), "{finished:?}");
    assert_eq!((number(refused, "saved "), number(refused, "whole ")), (vec![0], vec![whole[0]]), "{finished:?}");
    assert!(finished.stderr.contains("Read-only file system"), "{}", finished.stderr);
}

#[test]
fn a_directory_that_somebody_removes_costs_what_was_in_it() {
    let folder = tempfile::tempdir().unwrap();
    let here = uri("segments", folder.path(), "store");
    let store = library().open(&here).unwrap();
    let (one, two) = (content(1), content(2));
    assert_eq!((store.put_chunk(&key(&one), &one), store.put_manifest("m", b"m")), (Ok(0), Ok(0)));
    std::fs::remove_dir_all(folder.path().join("store")).unwrap();
    assert!(store.get_chunk(&key(&one)).unwrap().is_err() && store.get_manifest("m").unwrap().is_err());
    assert!(store.put_chunk(&key(&two), &two).unwrap() < 0, "there is no directory to put it in");
    drop(store);
    let again = library().open(&here).unwrap();
    assert_eq!((again.put_chunk(&key(&two), &two), again.put_manifest("n", b"n")), (Ok(0), Ok(0)));
    assert_eq!(again.get_chunk(&key(&two)), Ok(Ok(two)));
}
