//! Writers that are killed, and writers at the same time: a manifest that is there is whole, and so are its chunks.

use std::collections::HashMap;
use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::Duration;

use kv_store_tests::consumer::start;

use super::*;

/// What `state audit` found: the seed of each manifest that is there. It fails where one is not whole.
fn audit(uri: &str) -> HashMap<String, u64> {
    let finished = succeed(consumer("state").args(["audit", uri]));
    assert_eq!(finished.stderr, "", "nothing is wrong, and a miss is not logged");
    parse(&finished.stdout, "there ").into_iter().collect()
}

/// `there NAME SEED` and `saved NAME SEED`, in order. A line that was cut off is no line.
fn parse(output: &str, what: &str) -> Vec<(String, u64)> {
    let whole = output.rfind('\n').map_or("", |end| &output[..end]);
    let fields = whole.lines().filter_map(|line| line.strip_prefix(what)?.split_once(' '));
    fields.map(|(name, seed)| (name.to_owned(), seed.parse().expect("a number"))).collect()
}

/// Whatever happened, each file among the chunks is whole, and nothing else lies beside the manifests.
fn check_files(directory: &Path) {
    for path in chunk_files(directory) {
        let name = path.file_name().expect("a listed file has a name").to_string_lossy().into_owned();
        let bytes = std::fs::read(&path).expect("a chunk's file");
        // Without its envelope.
        let (key, value) = match (name.strip_suffix("026b7632"), bytes.split_last_chunk::<64>()) {
            (Some(key), Some((value, _))) => (key, value),
            _ => (&*name, &bytes[..]),
        };
        assert_eq!(key, content_key(value), "{} holds {} other bytes", path.display(), bytes.len());
    }
    for entry in std::fs::read_dir(directory).expect("the store's directory").flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        assert!(
            name.starts_with("state-") || [".kv-tmp", ".local-fs", "chunks"].contains(&&*name),
            "{name} is no manifest"
        );
    }
}

/// What `state rounds` saves in a round: `rounds` in state.c has the same.
fn round(seed: u64, round: usize) -> (String, u64) {
    let seed = fnv(seed, &i32::try_from(round).expect("few rounds").to_ne_bytes());
    (format!("state-{}", seed % 3), seed)
}

#[test]
fn a_writer_killed_before_its_manifest_leaves_the_former_one() {
    let directory = scratch();
    let uri = local_fs(directory.path());
    succeed(consumer("state").args(["save", &uri, "state-0", "700000"]));
    let former = chunk_files(directory.path()).len();

    let mut writer = start(consumer("state").args(["put", &uri, "state-0", "900000"]).stdout(Stdio::piped()));
    let mut said = String::new();
    BufReader::new(writer.0.stdout.take().expect("a pipe")).read_line(&mut said).expect("a line");
    assert_eq!(said, "put\n");
    writer.kill();

    assert!(chunk_files(directory.path()).len() > former, "the killed writer had put its chunks");
    succeed(consumer("state").args(["restore", &uri, "state-0", "700000"]));
    check_files(directory.path());
    // The next writer is not hindered by what the dead one left.
    succeed(consumer("state").args(["save", &uri, "state-0", "900000"]));
    succeed(consumer("state").args(["restore", &uri, "state-0", "900000"]));
}

#[test]
fn a_writer_killed_at_any_moment_leaves_only_whole_manifests_and_chunks() {
    let directory = scratch();
    let uri = local_fs(directory.path());
    let mut stored: HashMap<String, u64> = HashMap::new();
    let (mut saves, mut leftovers) = (0, 0);
    for seed in 0..30 {
        let random = round(0x5eed, seed).1 >> 40;
        let mut writer =
            start(consumer("state").args(["rounds", &uri, &seed.to_string(), "100000"]).stdout(Stdio::piped()));
        let mut output = BufReader::new(writer.0.stdout.take().expect("a pipe"));
        let mut reported = String::new();
        // Some while they start, most while they save: after a few saves, however long those take here.
        for _ in 0..random % 4 {
            output.read_line(&mut reported).expect("a line");
        }
        std::thread::sleep(Duration::from_micros(random / 4 % 20_000));
        writer.kill();
        reported += &std::io::read_to_string(output).expect("text");
        let reported = parse(&reported, "saved ");

        saves += reported.len();
        for (number, saved) in reported.iter().enumerate() {
            assert_eq!(saved, &round(seed as u64, number));
        }
        stored.extend(reported.iter().cloned());
        let found = audit(&uri);
        check_files(directory.path());
        // What was reported is there; only the save that was under way may have come after it.
        let under_way = round(seed as u64, reported.len());
        for name in ["state-0", "state-1", "state-2"] {
            let is_under_way = under_way.0 == name && found.get(name) == Some(&under_way.1);
            assert!(found.get(name) == stored.get(name) || is_under_way, "{name}, seed {seed}: {found:?} {stored:?}");
        }
        stored = found;
        leftovers += std::fs::read_dir(directory.path().join(".kv-tmp")).map_or(0, |entries| entries.count());
    }
    assert!(saves >= 30, "only {saves} saves were reported: too few for the kills to have hit any");
    eprintln!("30 writers were killed after {saves} saves; {leftovers} temporary files seen");
}

#[test]
fn what_a_dead_writer_left_is_neither_a_manifest_nor_a_chunk() {
    let directory = scratch();
    let uri = local_fs(directory.path());
    succeed(&mut calls(&uri, ["put", "0a0b", "chunk", "publish", "m", "manifest"]));
    std::fs::write(directory.path().join(".kv-tmp/7-0-deadbeef"), "half a chu").expect("the temporaries' directory");
    let names = [".kv-tmp", ".kv-tmp/7-0-deadbeef", "7-0-deadbeef", "chunks", "chunks/0/0a0b", "./m", "../m"];
    let found = succeed(&mut calls(&uri, names.iter().flat_map(|name| ["read", name])));
    let misses = found.stdout.lines().filter(|line| line.starts_with("read -")).count();
    assert_eq!((misses, &*found.stderr), (names.len(), ""), "{found:?}");
    let there = succeed(&mut calls(&uri, ["read", "m", "get", "0a0b"]));
    assert_eq!(
        there.stdout,
        format!("open ok\nread 0 {}\nget 0 {}\n", hex::encode(b"manifest"), hex::encode(b"chunk"))
    );
}

#[test]
fn two_processes_save_the_same_names_and_chunks_at_once() {
    const ROUNDS: usize = 60;
    let directory = scratch();
    let uri = local_fs(directory.path());
    std::fs::create_dir_all(directory.path()).expect("the store's directory");
    let writers = [1, 2].map(|seed: u64| {
        let (uri, rounds) = (uri.clone(), ROUNDS.to_string());
        std::thread::spawn(move || succeed(consumer("state").args(["rounds", &uri, &seed.to_string(), &rounds])))
    });
    // A third reads what they write: each manifest that it sees is whole, in spite of the two.
    let mut audits = 0;
    while writers.iter().any(|writer| !writer.is_finished()) || audits == 0 {
        audit(&uri);
        audits += 1;
    }
    let last = writers.map(|writer| {
        let finished = writer.join().expect("both writers succeed");
        let saved = parse(&finished.stdout, "saved ");
        assert_eq!((saved.len(), &*finished.stderr), (ROUNDS, ""));
        saved.into_iter().collect::<HashMap<_, _>>()
    });
    check_files(directory.path());
    let found = audit(&uri);
    assert_eq!(found.len(), 3);
    for (name, seed) in found {
        let lasts = last.each_ref().map(|last| last.get(&name).copied());
        assert!(lasts.contains(&Some(seed)), "{name} has {seed}, which is neither's last: {lasts:?}");
    }
    assert!(std::fs::read_dir(directory.path().join(".kv-tmp")).expect("it was made").next().is_none());
}
