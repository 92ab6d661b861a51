//! `kv-store ls`, `du`, `gc`, `verify` and `copy` on stores that are large, and when they are ended halfway.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test that fails panics")]

use std::io::BufRead;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use kv_store_tests::consumer::{Finished, finish};
use kv_store_tests::scratch::in_memory;
use kv_store_tests::{dist, library, root};
use xxhash_rust::xxh3::xxh3_64;

fn kv_store(arguments: &[&str]) -> Command {
    let mut command = Command::new(dist().join("bin/kv-store"));
    command.args(arguments).env("KV_STORE_WASM_CONFIG", "/dev/null");
    command.env("KV_STORE_WASM_CACHE", root().join("target/test-consumers/cache"));
    command
}

#[track_caller]
fn run(arguments: &[&str]) -> Finished {
    let finished = finish(&mut kv_store(arguments));
    assert!(finished.status.success(), "{arguments:?}: {}{}", finished.stdout, finished.stderr);
    finished
}

/// A store of so many chunks, none alike, under hashes of their content, and a manifest.
fn fill(uri: &str, chunks: u64, size: usize) {
    let store = library().open(uri).expect("the store opens");
    for chunk in 0..chunks {
        let content: Vec<u8> = chunk.to_le_bytes().into_iter().cycle().take(size).collect();
        assert_eq!(store.put_chunk(&xxh3_64(&content).to_be_bytes(), &content), Ok(0));
    }
    assert_eq!(store.put_manifest("last", b"all of them"), Ok(0));
}

fn uri(folder: &Path, name: &str) -> String {
    format!("local-fs://{}", folder.join(name).display())
}

/// The most memory that a command had, in bytes.
fn peak(arguments: &[String]) -> u64 {
    // What a process had before it became another program counts as that one's. Therefore a small process starts it.
    const STARTER: &str = "import resource, subprocess, sys\n\
        subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, check=True)\n\
        print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)";
    let measured = kv_store(&[]);
    let mut starter = Command::new("python3");
    starter.args(["-c", STARTER]).arg(measured.get_program()).args(arguments);
    starter.envs(measured.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let finished = finish(&mut starter);
    assert!(finished.status.success(), "{arguments:?}: {}", finished.stderr);
    finished.stdout.trim().parse::<u64>().unwrap() * 1024
}

/// Memory does not grow with the store: a list of 40,000 more chunks would take as much as is allowed here, and more. Only the store that
/// is written to remembers what it has, up to a bound of its own, which is larger than this store.
#[test]
fn commands_on_many_chunks_take_no_more_memory_than_on_few() {
    const LISTED: u64 = 40_000 * 64;
    const REMEMBERED: u64 = 40_000 * 192;
    let scratch = in_memory();
    let (few, many) = (uri(scratch.path(), "few"), uri(scratch.path(), "many"));
    fill(&few, 5_000, 32);
    fill(&many, 45_000, 32);
    let copy = |from: &str, name: &str| ["copy".to_owned(), from.to_owned(), uri(scratch.path(), name)];
    let of = |uri: &str, name: &str| {
        vec![
            vec!["ls".to_owned(), uri.to_owned(), "--chunks".to_owned()],
            vec!["du".to_owned(), uri.to_owned()],
            vec!["verify".to_owned(), uri.to_owned()],
            copy(uri, name).to_vec(),
            ["gc", uri, "--older-than", "0s", "--grace", "0s", "--dry-run"].map(str::to_owned).to_vec(),
        ]
    };
    for (small, large) in of(&few, "few-copied").into_iter().zip(of(&many, "many-copied")) {
        let most = if small[0] == "copy" { LISTED + REMEMBERED } else { LISTED };
        let (small, large) = (peak(&small), peak(&large));
        println!("{small} bytes at 5,000 chunks, {large} at 45,000");
        assert!(large < small + most, "it grows with the store: {small} and {large}");
    }
}

#[test]
fn a_copy_that_is_interrupted_says_what_is_kept_and_goes_on_from_there() {
    let scratch = in_memory();
    let (from, to) = (uri(scratch.path(), "from"), uri(scratch.path(), "to"));
    fill(&from, 400, 64 << 10);
    let mut copying = kv_store(&["copy", &from, &to, "--rate", "4MB"]).stderr(Stdio::piped()).spawn().unwrap();
    let copied = || std::fs::read_dir(scratch.path().join("to/chunks")).map_or(0, Iterator::count);
    while copied() == 0 {
        assert!(copying.try_wait().unwrap().is_none(), "it ended before it had copied anything");
        std::thread::sleep(Duration::from_millis(5));
    }
    // SAFETY: a signal to a child that was not waited for.
    assert_eq!(unsafe { libc::kill(copying.id().cast_signed(), libc::SIGINT) }, 0);
    let said: Vec<String> =
        std::io::BufReader::new(copying.stderr.take().unwrap()).lines().map_while(Result::ok).collect();
    assert!(!copying.wait().unwrap().success());
    assert!(said.iter().any(|line| line.contains("what was copied is kept")), "{said:?}");
    let partly = run(&["du", &to, "--json"]).stdout;
    assert!(!partly.contains("\"chunks\":400") && !partly.contains("\"chunks\":0"), "{partly}");

    let rest = run(&["copy", &from, &to, "--json"]).stdout;
    let number = |what: &str| -> u64 {
        let value = rest.split(&format!("\"{what}\":")).nth(1).unwrap();
        value.split([',', '}']).next().unwrap().parse().unwrap()
    };
    assert!(number("existed") > 0 && number("chunks") < 400, "{rest}");
    assert_eq!((number("chunks") + number("existed"), number("manifests"), number("failed")), (400, 1, 0), "{rest}");
    run(&["verify", &to]);
}

/// Files that others put among the chunks are neither counted nor removed.
#[test]
fn a_file_that_is_no_chunk_is_not_counted_and_stays() {
    let folder = in_memory();
    let uri = uri(folder.path(), "s");
    fill(&uri, 20, 1000);
    let du = || run(&["du", &uri, "--json"]).stdout;
    let before = du();
    let foreign = folder.path().join("s/chunks/0/README");
    std::fs::create_dir_all(foreign.parent().unwrap()).unwrap();
    std::fs::write(&foreign, vec![b'x'; 100_000]).unwrap();
    assert_eq!(du(), before);
    run(&["gc", &uri, "--older-than", "0s", "--grace", "0s"]);
    assert!(foreign.exists());
    assert!(du().contains("\"chunks\":0"), "{}", du());
}

/// Chunks that a save was told of a moment ago have the times of an earlier use: the last note may be 15 s old.
#[test]
fn gc_keeps_what_was_used_within_the_grace_and_the_age_of_its_note() {
    let folder = in_memory();
    let uri = uri(folder.path(), "s");
    fill(&uri, 20, 1000);
    // Noted so long ago; used again since.
    let noted = std::time::SystemTime::now() - Duration::from_secs(14);
    let mut folders = vec![folder.path().join("s/chunks")];
    while let Some(at) = folders.pop() {
        for entry in std::fs::read_dir(at).unwrap().flatten() {
            match entry.file_type().unwrap().is_dir() {
                true => folders.push(entry.path()),
                false => {
                    let times = std::fs::FileTimes::new().set_accessed(noted).set_modified(noted);
                    std::fs::File::options().write(true).open(entry.path()).unwrap().set_times(times).unwrap();
                }
            }
        }
    }
    run(&["gc", &uri, "--older-than", "1s", "--grace", "10s"]);
    let left = run(&["du", &uri, "--json"]).stdout;
    assert!(left.contains("\"chunks\":20"), "{left}");
}
