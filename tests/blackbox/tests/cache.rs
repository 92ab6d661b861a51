//! `kv-store cache` as it is installed, on a directory with planted damage.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test that fails panics")]

use std::path::Path;
use std::process::Command;

use kv_cache::{Cache, Config, Fingerprint, Identity, Save};
use kv_store_tests::consumer::{Finished, expect, finish};
use kv_store_tests::dist;

const IDENTITY: Identity = Identity {
    fingerprint: Fingerprint { bytes: [1; 32], mode: kv_cache::FingerprintMode::Safe },
    quant: 1,
    context_hash: [2; 32],
};

fn run(arguments: &[&str], directory: &Path) -> Finished {
    let program = dist().join("bin/kv-store");
    finish(Command::new(program).arg("cache").args(arguments).arg(directory))
}

#[test]
fn a_directory_with_planted_damage() {
    let folder = tempfile::tempdir().unwrap();
    let rows = folder.path().join("rows");
    let config = format!("[disk]\npath = {rows:?}\nbudget = 1000000\n");
    let cache = Cache::open(Config::parse(&config).unwrap()).unwrap();
    for n in 0..4u32 {
        let prompt = format!("prompt {n}\nand its second line");
        let tokens = [n];
        let save = Save { prompt: &prompt, ..Save::new(&IDENTITY, &tokens, vec![n as u8; 1000]) };
        cache.save(save).unwrap();
    }
    let file = |n: u32| rows.join(format!("{}.kvc", IDENTITY.key(&[n])));
    let whole = run(&["verify"], &rows);
    expect(0, &whole);
    assert_eq!(whole.stdout, "4 rows are whole (4.0 kB), 0 files are not\n");

    let mut bytes = std::fs::read(file(1)).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(file(1), bytes).unwrap();
    std::fs::write(file(2), "no row").unwrap();
    let verified = run(&["verify"], &rows);
    expect(1, &verified);
    let said = |n: u32, why: &str| format!("bad: {}.kvc: {why}\n", IDENTITY.key(&[n]));
    assert!(verified.stdout.contains(&said(1, "its payload does not have its checksum")), "{}", verified.stdout);
    assert!(verified.stdout.contains(&said(2, "it is no row file")), "{}", verified.stdout);
    assert!(verified.stdout.ends_with("2 rows are whole (2.0 kB), 2 files are not\n"), "{}", verified.stdout);
    let json: serde_json::Value = serde_json::from_str(&run(&["verify", "--json"], &rows).stdout).unwrap();
    assert_eq!((json["good"].as_u64(), json["bad"].as_array().map(Vec::len)), (Some(2), Some(2)));

    let listed = run(&["ls"], &rows);
    expect(1, &listed);
    assert_eq!(
        listed.stdout.lines().count(),
        5,
        "a header, three rows, whose payloads are not read, and a bad file: {}",
        listed.stdout
    );
    assert!(listed.stdout.contains("prompt 3 and its second line"), "{}", listed.stdout);
    let stats: serde_json::Value = serde_json::from_str(&run(&["stats", "--json"], &rows).stdout).unwrap();
    assert_eq!((stats["rows"].as_u64(), stats["tokens"].as_u64(), stats["bad"].as_u64()), (Some(3), Some(3), Some(1)));

    let busy = run(&["gc"], &rows);
    expect(2, &busy);
    assert!(busy.stderr.contains("belongs to another cache, of process"), "{}", busy.stderr);
    drop(cache);
    // A file of a later version, and one with another name, are reported and stay.
    let mut later = std::fs::read(file(0)).unwrap();
    later[3] = 2;
    std::fs::write(rows.join(format!("{}.kvc", IDENTITY.key(&[9]))), later).unwrap();
    std::fs::write(rows.join("notes.kvc"), "mine").unwrap();
    let left = "left alone: 1 rows of a later version, 1 files named *.kvc like no row\n";
    let quick = run(&["gc", "--quick"], &rows);
    expect(0, &quick);
    assert_eq!(quick.stdout, format!("removed 1 damaged and 0 temporary files, evicted 0 rows (0 bytes)\n{left}"));
    expect(1, &run(&["verify"], &rows));
    // One of the three rows is damaged, and is no reason to evict a good one.
    let collected = run(&["gc", "--budget", "3 KiB"], &rows);
    expect(0, &collected);
    assert_eq!(collected.stdout, format!("removed 1 damaged and 0 temporary files, evicted 0 rows (0 bytes)\n{left}"));
    let verified = run(&["verify"], &rows);
    expect(0, &verified);
    assert!(verified.stdout.contains("left alone: notes.kvc: its name is no row's"), "{}", verified.stdout);
    assert!(verified.stdout.ends_with("2 rows are whole (2.0 kB), 0 files are not\n"), "{}", verified.stdout);
    let evicted = run(&["gc", "--budget", "2 KiB"], &rows);
    expect(0, &evicted);
    let expected = "removed 0 damaged and 0 temporary files, evicted 1 rows (";
    assert!(evicted.stdout.starts_with(expected), "{}", evicted.stdout);
    expect(2, &run(&["gc", "--budget", "2 XB"], &rows));
    expect(2, &run(&["ls"], &folder.path().join("nowhere")));
}

#[test]
fn each_command_teaches() {
    for command in ["ls", "verify", "gc", "stats"] {
        let program = dist().join("bin/kv-store");
        let help = finish(Command::new(program).args(["cache", command, "--help"]));
        expect(0, &help);
        let example = format!("Example:\n  kv-store cache {command} /var/cache/kv");
        assert!(help.stdout.contains(&example) && help.stdout.contains("Exit codes: 0 "), "{}", help.stdout);
    }
}
