//! A store that the operator bounds: what is evicted, what is refused, and what several processes make of it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test that fails panics")]

use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use kv_store_tests::consumer::{Finished, consumer, finish};
use kv_store_tests::{dist, root};

const CHUNK: usize = 64 << 10;

/// Run the consumer `bounded` on a store with these options: see `tests/consumer/bounded.c`.
fn bounded(directory: &Path, options: &str, arguments: &[&str]) -> Finished {
    // A file of its own: another that runs now may be reading its config.
    let config = tempfile::NamedTempFile::new_in(directory).unwrap();
    std::fs::write(&config, format!("[backend.local-fs]\noptions = {{ {options} }}\n")).unwrap();
    let mut program = consumer("bounded");
    program.arg(format!("local-fs://{}", directory.join("store").display())).args(arguments);
    finish(program.env("KV_STORE_WASM_CONFIG", config.path()))
}

/// Bytes of all files of the store but the host's own.
fn held(directory: &Path) -> u64 {
    let files = |path: &Path| -> Vec<std::fs::DirEntry> {
        std::fs::read_dir(path)
            .into_iter()
            .flatten()
            .flatten()
            .filter(|entry| !entry.file_name().to_string_lossy().starts_with(".kv-"))
            .collect()
    };
    let mut bytes = 0;
    let mut folders = vec![directory.join("store")];
    while let Some(folder) = folders.pop() {
        for entry in files(&folder) {
            match entry.metadata() {
                Ok(meta) if meta.is_dir() => folders.push(entry.path()),
                Ok(meta) => bytes += meta.len(),
                Err(_) => {}
            }
        }
    }
    bytes
}

/// Let every file of the store have been written and used so many seconds ago.
fn age(directory: &Path, seconds: u64) {
    let mut old = vec![directory.join("store")];
    let ago = std::time::SystemTime::now() - Duration::from_secs(seconds);
    while let Some(path) = old.pop() {
        if path.is_dir() {
            // What the host notes there says by its times which saves are open.
            let of_values = |entry: &std::fs::DirEntry| !entry.file_name().to_string_lossy().starts_with(".kv-");
            old.extend(std::fs::read_dir(&path).unwrap().flatten().filter(of_values).map(|entry| entry.path()));
        } else {
            let times = std::fs::FileTimes::new().set_accessed(ago).set_modified(ago);
            std::fs::File::options().write(true).open(&path).unwrap().set_times(times).unwrap();
        }
    }
}

fn number(finished: &Finished, what: &str) -> u64 {
    let line = finished.stdout.lines().find_map(|line| line.strip_prefix(what));
    let line = line.unwrap_or_else(|| panic!("no {what}: {}{}", finished.stdout, finished.stderr));
    line.trim().parse().unwrap()
}

#[test]
fn a_bound_holds_while_it_is_outrun() {
    let scratch = tempfile::tempdir().unwrap();
    let max = 200 * CHUNK as u64;
    // Saves of 10 chunks each: five times what fits.
    let written = bounded(scratch.path(), &format!("max_bytes = '{max}', save_grace_s = '0'"), &["write", "100", "10"]);
    assert!(written.status.success(), "{}{}", written.stdout, written.stderr);
    assert!(held(scratch.path()) <= max + max / 20, "{} of {max}", held(scratch.path()));
    assert!(held(scratch.path()) >= max / 2, "no more is removed than must be");
    // On a machine that is slow a put may have waited for room in vain.
    assert!(number(&written, "saved ") > 50, "what is old goes for what is new: {}", written.stderr);
    let options = format!("max_bytes = '{max}', save_grace_s = '0'");
    let read = bounded(scratch.path(), &options, &["read", "100", "10"]);
    assert_eq!(number(&read, "dangling "), 0, "{}", read.stdout);
    // Manifests go that are up to a second younger than the chunks that go, and a machine may write all of the above within one.
    age(scratch.path(), 10_000);
    let written = bounded(scratch.path(), &options, &["write", "5", "10", "1"]);
    assert_eq!(number(&written, "saved "), 5, "{}", written.stderr);
    let read = bounded(scratch.path(), &options, &["read", "5", "10", "1"]);
    assert_eq!(number(&read, "dangling "), 0, "{}", read.stdout);
    assert!(number(&read, "whole ") > 0, "{}", read.stdout);
}

#[test]
fn what_is_not_published_yet_stays_and_puts_are_refused_with_one_line() {
    let scratch = tempfile::tempdir().unwrap();
    let max = 50 * CHUNK as u64;
    let written = bounded(scratch.path(), &format!("max_bytes = '{max}'"), &["write", "1", "100"]);
    assert_eq!(number(&written, "saved "), 0);
    assert!(written.stderr.contains("max_bytes"), "{}", written.stderr);
    assert!(held(scratch.path()) <= max);
    assert!(held(scratch.path()) >= max - 2 * CHUNK as u64, "what was put is there: {}", held(scratch.path()));
}

/// The grace of a minute is for saves that are under way: all that was published is younger here, and goes for what is new.
#[test]
fn what_no_open_save_needs_goes_at_any_age() {
    let scratch = tempfile::tempdir().unwrap();
    let max = 200 * CHUNK as u64;
    let options = format!("max_bytes = '{max}'");
    let written = bounded(scratch.path(), &options, &["write", "18", "10"]);
    assert_eq!(number(&written, "saved "), 18, "{}", written.stderr);
    // Younger than the grace, and older than what clocks and notes of use are unsure about.
    age(scratch.path(), 10);
    let written = bounded(scratch.path(), &options, &["write", "15", "10", "1"]);
    assert_eq!(number(&written, "saved "), 15, "{}", written.stderr);
    assert!(held(scratch.path()) <= max, "{}", held(scratch.path()));
    for (saves, process) in [("18", "0"), ("15", "1")] {
        let read = bounded(scratch.path(), &options, &["read", saves, "10", process]);
        assert_eq!(number(&read, "dangling "), 0, "{}", read.stdout);
    }
}

/// Files of the store.
fn entries(directory: &Path) -> usize {
    let (mut files, mut folders) = (0, vec![directory.join("store")]);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap().flatten() {
            match entry.file_type().unwrap().is_dir() {
                true => folders.push(entry.path()),
                false => files += usize::from(!entry.file_name().to_string_lossy().starts_with('.')),
            }
        }
    }
    files
}

#[test]
fn entries_are_bounded_as_bytes_are() {
    let scratch = tempfile::tempdir().unwrap();
    let options = "max_entries = '200', save_grace_s = '0'";
    let written = bounded(scratch.path(), options, &["write", "100", "10"]);
    assert!(number(&written, "saved ") > 50, "{}", written.stderr);
    assert!((100..=210).contains(&entries(scratch.path())), "{}", entries(scratch.path()));
    let read = bounded(scratch.path(), options, &["read", "100", "10"]);
    assert_eq!(number(&read, "dangling "), 0, "{}", read.stdout);
}

#[test]
fn a_disk_without_inodes_or_bytes_has_what_is_old_evicted_though_it_was_full_before() {
    for size in ["nr_inodes=300,size=1g", "size=20m"] {
        let scratch = tempfile::tempdir().unwrap();
        let config = |options: &str| {
            let config = tempfile::NamedTempFile::new().unwrap();
            std::fs::write(&config, format!("[backend.local-fs]\noptions = {{ keep_free = '0', {options} }}\n"))
                .unwrap();
            config
        };
        let (unbounded, evicts) =
            (config("durability = 'rename'"), config("durability = 'rename', evict = 'true', save_grace_s = '0'"));
        let program = consumer("bounded");
        let run = |config: &tempfile::NamedTempFile, process: u32| {
            let (config, program) = (config.path().display(), Path::new(program.get_program()).display());
            format!("KV_STORE_WASM_CONFIG={config} {program} local-fs://$PWD/store write 80 10 {process}")
        };
        let script = format!(
            "mount -t tmpfs -o {size} none {0} && cd {0} && {1}; echo then; {2}",
            scratch.path().display(),
            run(&unbounded, 1),
            run(&evicts, 2)
        );
        let mut unshare = std::process::Command::new("unshare");
        unshare.args(["--map-root-user", "--mount", "sh", "-c", &script]);
        unshare.env_clear().envs(program.get_envs().filter_map(|(name, value)| Some((name, value?))));
        let finished = finish(&mut unshare);
        let (before, then) = finished.stdout.split_once("then\n").unwrap_or_else(|| panic!("{finished:?}"));
        let saved =
            |of: &str| -> u64 { of.lines().find_map(|line| line.strip_prefix("saved ")).unwrap().parse().unwrap() };
        assert!(saved(before) < 80, "the disk is full: {finished:?}");
        assert!(saved(then) > 60, "{size}: {finished:?}");
    }
}

#[test]
fn a_disk_that_is_nearly_full_takes_no_puts_and_loses_nothing() {
    let scratch = tempfile::tempdir().unwrap();
    let written = bounded(scratch.path(), "keep_free = '0'", &["write", "3", "5"]);
    assert_eq!(number(&written, "saved "), 3);
    let before = held(scratch.path());
    // No disk has so much.
    let refused = bounded(scratch.path(), &format!("keep_free = '{}'", 1_u64 << 60), &["write", "1", "3"]);
    assert_eq!(number(&refused, "saved "), 0);
    assert!(refused.stderr.contains("keep_free"), "{}", refused.stderr);
    let read = bounded(scratch.path(), &format!("keep_free = '{}'", 1_u64 << 60), &["read", "3", "5"]);
    assert_eq!((number(&read, "whole "), held(scratch.path())), (3, before));
}

#[test]
fn several_processes_share_the_bound_and_a_later_one_knows_the_usage() {
    let scratch = tempfile::tempdir().unwrap();
    let max = 200 * CHUNK as u64;
    let options = format!("max_bytes = '{max}', save_grace_s = '0'");
    std::thread::scope(|scope| {
        for process in 0..3 {
            let (options, scratch) = (&options, scratch.path());
            scope.spawn(move || {
                let written = bounded(scratch, options, &["write", "40", "10", &process.to_string()]);
                assert!(written.status.success(), "{}{}", written.stdout, written.stderr);
            });
        }
    });
    let held = held(scratch.path());
    assert!(held <= max + max / 20, "{held} of {max}");
    let usage = std::fs::read(scratch.path().join("store/.kv-usage")).unwrap();
    let counted = u64::from_le_bytes(usage[8..16].try_into().unwrap());
    // A process that ends between a removal and its count leaves one file counted that is gone, until the next full count.
    let left = 3 * CHUNK as u64;
    assert!(counted.abs_diff(held) <= left + max / 100, "{counted} is known of {held}");
}

#[test]
fn what_was_not_used_for_its_ttl_goes_by_itself() {
    let scratch = tempfile::tempdir().unwrap();
    bounded(scratch.path(), "keep_free = '0'", &["write", "3", "5"]);
    age(scratch.path(), 10_000);
    let config = scratch.path().join("config.toml");
    std::fs::write(&config, "[backend.local-fs]\noptions = { ttl_s = '5000' }\n").unwrap();
    let mut program = consumer("bounded");
    program.arg(format!("local-fs://{}", scratch.path().join("store").display())).arg("hold");
    let mut holding = program.env("KV_STORE_WASM_CONFIG", config).stdin(Stdio::piped()).spawn().unwrap();
    let begun = Instant::now();
    while held(scratch.path()) > 0 && begun.elapsed() < Duration::from_secs(60) {
        std::thread::sleep(Duration::from_millis(20));
    }
    drop(holding.stdin.take());
    assert!(holding.wait().unwrap().success());
    assert_eq!(held(scratch.path()), 0);
}

#[test]
fn an_operator_lists_counts_checks_copies_and_cleans() {
    let scratch = tempfile::tempdir().unwrap();
    let uri = format!("local-fs://{}", scratch.path().join("store").display());
    let other = format!("local-fs://{}", scratch.path().join("other").display());
    let run = |arguments: &[&str]| {
        let mut command = std::process::Command::new(dist().join("bin/kv-store"));
        command.args(arguments).env("KV_STORE_WASM_CONFIG", "/dev/null");
        finish(command.env("KV_STORE_WASM_CACHE", root().join("target/test-consumers/cache")))
    };
    for save in 0..3_u64 {
        // Chunks that are all different, keyed by their content.
        let file = scratch.path().join("file");
        let content: Vec<u8> = (0..5 * CHUNK as u64 / 8).flat_map(|n| (n ^ save << 32).to_le_bytes()).collect();
        std::fs::write(&file, content).unwrap();
        let (file, name) = (file.display().to_string(), format!("save-0-{save}"));
        let saved = run(&["save", &uri, &file, "--name", &name, "--chunk", &CHUNK.to_string()]);
        assert!(saved.status.success(), "{}", saved.stderr);
    }
    let listed = run(&["ls", &uri]);
    assert_eq!(listed.stdout.lines().filter(|line| line.contains("\"save-0-")).count(), 3, "{}", listed.stdout);
    let chunks = run(&["ls", &uri, "--chunks", "--json"]);
    assert_eq!(chunks.stdout.lines().count(), 15, "{}{}", chunks.stdout, chunks.stderr);
    let first: String = chunks.stdout.split("\"hash\":\"").nth(1).unwrap().chars().take_while(|c| *c != '"').collect();
    let paged = run(&["ls", &uri, "--chunks", "--page", "1"]);
    assert!(paged.stderr.contains("--after") && paged.stdout.lines().count() <= 2, "{}", paged.stderr);
    let used = run(&["du", &uri, "--json"]);
    assert!(used.stdout.contains("\"chunks\":15") && used.stdout.contains("\"manifests\":3"), "{}", used.stdout);
    assert!(run(&["verify", &uri]).status.success());
    let copied = run(&["copy", &uri, &other, "--json"]);
    assert!(
        copied.stdout.contains("\"chunks\":15") && copied.stdout.contains("\"manifests\":3"),
        "{}{}",
        copied.stdout,
        copied.stderr
    );
    // What is there is not sent again, within its rate.
    let begun = Instant::now();
    let again = run(&["copy", &uri, &other, "--json", "--rate", "100MB"]);
    assert!(again.stdout.contains("\"existed\":15") && again.stdout.contains("\"chunks\":0"), "{}", again.stdout);
    assert!(begun.elapsed() < Duration::from_secs(60));

    // A byte of a chunk that is damaged.
    let path = scratch.path().join(format!("store/chunks/{}/{first}", &first[..1]));
    let mut content = std::fs::read(&path).unwrap();
    content[7] ^= 1;
    std::fs::write(&path, content).unwrap();
    let damaged = run(&["verify", &uri, "--json"]);
    assert!(damaged.status.code() == Some(1) && damaged.stdout.contains("\"damaged\":1"), "{}", damaged.stdout);
    assert!(path.exists(), "nothing is removed unless it is asked for");
    let repaired = run(&["verify", &uri, "--repair"]);
    assert!(repaired.status.success() && !path.exists(), "{}", repaired.stdout);

    let second = run(&["ls", &uri, "--chunks", "--json"]).stdout;
    let second: String = second.split("\"hash\":\"").nth(1).unwrap().chars().take_while(|c| *c != '"').collect();
    assert!(run(&["rm", &uri, "--chunk", &second]).status.success());
    assert_eq!(run(&["ls", &uri, "--chunks"]).stdout.lines().count(), 1 + 13);

    let dry = run(&["gc", &uri, "--older-than", "0s", "--grace", "0s", "--dry-run", "--json"]);
    assert!(dry.stdout.contains("\"chunks\":13") && dry.stdout.contains("\"manifests\":3"), "{}", dry.stdout);
    assert_eq!(run(&["ls", &uri]).stdout.lines().count(), 1 + 3);
    let half = run(&["gc", &uri, "--max-bytes", "400KiB", "--grace", "0s", "--json"]);
    assert!(half.status.success(), "{}{}", half.stdout, half.stderr);
    let left = run(&["ls", &uri, "--chunks"]).stdout.lines().count() - 1;
    assert!((4..=6).contains(&left), "{left} chunks of 64 KiB");
    assert!(run(&["gc", &uri, "--older-than", "0s", "--grace", "0s"]).status.success());
    assert_eq!(run(&["ls", &uri, "--chunks"]).stdout, "");
    // What is young stays.
    assert!(run(&["copy", &other, &uri]).status.success());
    assert_eq!(run(&["gc", &uri, "--max-bytes", "1"]).status.code(), Some(1));
    assert_eq!(run(&["ls", &uri, "--chunks"]).stdout.lines().count(), 1 + 15);
}

#[test]
fn a_memory_that_is_full_evicts_where_the_operator_says_so() {
    let scratch = tempfile::tempdir().unwrap();
    for (evict, saved) in [("false", 0..=12), ("true", 40..=40)] {
        let config = scratch.path().join("config.toml");
        let limits = "limits.payload_bytes = 8388608";
        std::fs::write(&config, format!("[backend.memory]\noptions = {{ evict = '{evict}' }}\n{limits}\n")).unwrap();
        let mut program = consumer("bounded");
        program.args(["memory://full", "write", "40", "10"]).env("KV_STORE_WASM_CONFIG", &config);
        let written = finish(&mut program);
        assert!(saved.contains(&number(&written, "saved ")), "evict = {evict}: {}{}", written.stdout, written.stderr);
    }
}
