//! The program `kv-store`, as it is installed: what `check` finds and what it does not, files saved and restored, and the
//! exit codes that scripts count on.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test that fails panics")]

use std::path::{Path, PathBuf};
use std::process::Command;

use kv_store_tests::consumer::{Finished, commands_in, consumer, expect, finish, succeed};
use kv_store_tests::redis::RedisServer;
use kv_store_tests::servers::Server as _;
use kv_store_tests::{compile_against, dist, kv_store, library_path, native_library, root, test_components};

fn run(arguments: &[&str]) -> Finished {
    finish(kv_store().args(arguments))
}

fn component(name: &str) -> String {
    dist().join(format!("components/{name}.wasm")).display().to_string()
}

/// The fault's own component: what it is called is what is wrong with it.
fn broken(folder: &Path, fault: &str) -> PathBuf {
    let path = folder.join(format!("{fault}.wasm"));
    std::fs::copy(test_components().join("broken.wasm"), &path).unwrap();
    path
}

#[test]
fn a_native_library_passes_the_same_suite() {
    let folder = tempfile::tempdir().unwrap();
    let library = native_library(folder.path());
    let uri = format!("local-fs://{}/store", folder.path().display());
    let checked = run(&["check", library.to_str().unwrap(), "--uri", &uri, "--json"]);
    expect(0, &checked);
    assert!(checked.stdout.contains(r#""failed":0"#), "{}", checked.stdout);
    let renamed = folder.path().join("store.so");
    std::fs::rename(&library, &renamed).unwrap();
    let checked = run(&["check", renamed.to_str().unwrap(), "--uri", &uri, "--filter", "file-name"]);
    expect(1, &checked);
    assert!(checked.stdout.contains("FAIL  file-name"), "{}", checked.stdout);
}

/// Whatever the backend does, the library compares descriptors: so the fault is planted there.
#[test]
fn a_library_that_ignores_descriptors_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let library = folder.path().join("libkv_store_ignores.so");
    compile_against(&dist(), "ignores_descriptors.c", "c", &["-fPIC", "-shared"], &library);
    let uri = format!("local-fs://{}/store", folder.path().display());
    let mut check = kv_store();
    check.args(["check", library.to_str().unwrap(), "--uri", &uri, "--filter", "descriptors"]);
    let checked = finish(check.env("KV_STORE_LIBRARY", library_path()));
    expect(1, &checked);
    for (case, why) in [
        ("descriptors", "get_chunk under another descriptor"),
        ("restart-descriptors", "put_many over what another process put under another descriptor"),
    ] {
        let failure = checked.stdout.split("  FAIL  ").find(|part| part.starts_with(&format!("{case}:")));
        assert!(failure.is_some_and(|part| part.contains(why)), "{case}: {}", checked.stdout);
    }
}

#[test]
fn each_planted_fault_is_found_for_what_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let store = |fault: &str| format!("{fault}://{}/{fault}", folder.path().display());
    let sound = run(&["check", broken(folder.path(), "sound").to_str().unwrap(), "--uri", &store("sound")]);
    expect(0, &sound);
    for (fault, case, why) in [
        ("loses-chunks", "chunk-hash-lengths", "get_chunk with a hash of"),
        ("tears-manifests", "manifest-atomic", "came damaged"),
        ("never-existed", "chunk-duplicate", "expected 1, got 0"),
        ("wrong-length", "chunk-roundtrip", "get_chunk: expected"),
        ("forgets", "restart", "get_manifest in another process"),
        // Seen by whichever case has two instances at work at once.
        ("not-thread-safe", "threads|barrier", "get_chunk"),
        ("keeps-damaged", "restart-damaged", "the chunk is still not there"),
        ("always-exists", "exists", "nobody has put is answered present"),
        ("ignores-parameters", "unknown-parameter", "opened as if it were not there"),
    ] {
        let component = broken(folder.path(), fault);
        let uri = store(fault);
        let filter = if case.contains('|') { &[][..] } else { &["--filter", case] };
        let checked = run(&[&["check", component.to_str().unwrap(), "--uri", &uri], filter].concat());
        expect(1, &checked);
        let found = |case: &str| {
            let failure = checked.stdout.split("  FAIL  ").find(|part| part.starts_with(&format!("{case}:")));
            failure.is_some_and(|part| part.contains(why))
        };
        assert!(case.split('|').any(found), "{fault}: {}", checked.stdout);
    }
}

#[test]
fn what_adds_up_over_many_calls_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("config.toml");
    // 64 items at 50 ms each are more than a call has.
    std::fs::write(&config, "[backend.answers-slowly]\nlimits = { deadline_ms = 1000, breaker_failures = 0 }\n")
        .unwrap();
    for (fault, case, why) in [
        ("answers-slowly", "short-answers", "the time of a call is not renewed for the rest"),
        ("leaks", "leaks", "payload bytes after 2000 restores"),
    ] {
        let uri = format!("{fault}://{}/{fault}", folder.path().display());
        let mut check = kv_store();
        check.arg("check").arg(broken(folder.path(), fault)).args(["--uri", &uri, "--filter", case]);
        let checked = finish(check.env("KV_STORE_WASM_CONFIG", &config));
        expect(1, &checked);
        let failure = format!("FAIL  {case}:");
        assert!(checked.stdout.contains(&failure) && checked.stdout.contains(why), "{fault}: {}", checked.stdout);
    }
}

#[test]
fn a_library_that_crashes_or_hangs_fails_its_case_and_the_next_ones_run() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("library.c");
    std::fs::write(&source, CRASHING).unwrap();
    let library = folder.path().join("libkv_store_crash.so");
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-I"]).arg(dist().join("include")).arg("-o").arg(&library).arg(&source);
    assert!(cc.status().unwrap().success());
    let checked = run(&["check", library.to_str().unwrap(), "--uri", "crash://x", "--timeout", "2"]);
    expect(1, &checked);
    for (case, why) in
        [("chunk-missing", "it ended the process: signal 11"), ("chunk-empty", "it hangs"), ("vtable", "")]
    {
        let part = checked.stdout.split("\n  ").find(|part| part[6..].starts_with(case)).unwrap_or_default();
        let told = checked.stdout.split(case).nth(1).is_some_and(|rest| rest.contains(why));
        assert!(told && part.starts_with(if why.is_empty() { "ok" } else { "FAIL" }), "{case}: {}", checked.stdout);
    }
}

/// Crashes when it is asked for a chunk, hangs when it is given an empty one, refuses everything else.
const CRASHING: &str = r#"
#include <kv_store_abi.h>
#include <unistd.h>
static kv_store_v1 *open_(const char *uri) { return uri && *uri == 'c' ? (kv_store_v1 *)&open_ : 0; }
static void close_(kv_store_v1 *s) { (void)s; }
static int put(kv_store_v1 *s, const uint8_t *h, size_t n, const uint8_t *d, size_t len)
{ (void)s, (void)h, (void)n, (void)d; while (len == 0) pause(); return -1; }
static int get(kv_store_v1 *s, const uint8_t *h, size_t n, uint8_t **d, size_t *len)
{ (void)s, (void)h, (void)n, (void)len; **(volatile char **)&d = 0; *(volatile int *)0 = 1; return -1; }
static int putm(kv_store_v1 *s, const char *n, const uint8_t *d, size_t len) { (void)s, (void)n, (void)d, (void)len; return -1; }
static int getm(kv_store_v1 *s, const char *n, uint8_t **d, size_t *len) { (void)s, (void)n; if (d) *d = 0; if (len) *len = 0; return -1; }
static int del(kv_store_v1 *s, const char *n) { (void)s, (void)n; return -1; }
static const kv_store_vtable table = {1, open_, close_, put, get, putm, getm, del, 0};
const kv_store_vtable *kv_store_get_vtable(void) { return &table; }
"#;

#[test]
fn a_check_tells_how_long_compiling_takes_and_holds_its_processes_to_a_bound_of_memory() {
    let memory = component("memory");
    let checked = run(&["check", &memory, "--filter", "chunk-roundtrip"]);
    expect(0, &checked);
    assert!(checked.stdout.starts_with("compiled in "), "{}", checked.stdout);
    let checked = run(&["check", &memory, "--filter", "chunk-roundtrip", "--memory", "1MiB"]);
    expect(2, &checked);
    // A thread that cannot be started, or memory that cannot be had.
    let told = ["cannot start", "check: the process that"].iter().any(|text| checked.stderr.contains(text));
    assert!(told, "{}", checked.stderr);
}

#[test]
fn what_can_not_be_checked_says_what_to_give() {
    let folder = tempfile::tempdir().unwrap();
    let text = folder.path().join("text.wasm");
    std::fs::write(&text, "no WebAssembly").unwrap();
    let redis = component("redis");
    for (arguments, said) in [
        (&["check", &redis][..], "--uri redis://127.0.0.1:6379/15"),
        (&["check", "/nowhere/x.wasm"], "/nowhere/x.wasm: No such file"),
        (&["check", "Cargo.toml"], "not a backend by its name"),
        (&["check", text.to_str().unwrap()], "text.wasm"),
        (&["check", &redis, "--uri", "redis://127.0.0.1:1/0"], "does not open: "),
        (&["check"], "no Cargo.toml and no backend.toml, so no project"),
        (&["save", "memory://", "/nowhere", "--name", "n"], "/nowhere: No such file"),
        (&["get", "nobody://x", "--name", "n"], "no component for the scheme nobody"),
        (&["get", "memory://", "--chunk", "0g"], "not bytes in hex"),
        (&["rm", "memory://", "--chunk", "0g"], "not bytes in hex"),
    ] {
        let finished = finish(kv_store().args(arguments).current_dir(root().join("docs")));
        let finished = match arguments {
            ["check", "Cargo.toml"] => run(&["check", root().join("Cargo.toml").to_str().unwrap()]),
            _ => finished,
        };
        expect(2, &finished);
        assert!(finished.stderr.contains(said), "{arguments:?}: {}", finished.stderr);
    }
}

#[test]
fn inspect_shows_what_a_component_is_and_doctor_what_an_open_would_do() {
    let redis = run(&["inspect", &component("redis"), "--uri", "redis://cache.svc:6379/3"]);
    expect(0, &redis);
    for part in
        ["sha256   ", "imports  kv-store:backend/net@1.1.0", "wishes   the secret password", "server cache.svc:6379"]
    {
        assert!(redis.stdout.contains(part), "no {part:?} in\n{}", redis.stdout);
    }
    let json = run(&["inspect", &component("redis"), "--json"]);
    assert!(json.stdout.starts_with('{') && json.stdout.contains(r#""problems":[]"#), "{}", json.stdout);

    let folder = tempfile::tempdir().unwrap();
    let uri = format!("local-fs://{}/kv", folder.path().display());
    let sound = run(&["doctor", &uri, "--probe"]);
    expect(0, &sound);
    assert!(sound.stdout.ends_with("ready: no problems found\n") && sound.stdout.contains("opened   directory "));
    let looked = run(&["doctor", &uri]);
    expect(0, &looked);
    let last = looked.stdout.lines().last();
    assert_eq!(last, Some("not tried: opening the store (--probe does)"), "{}", looked.stdout);
    let mut redis = RedisServer::start(&[]);
    let uri = format!("redis://127.0.0.1:{}", redis.port);
    let reached = run(&["doctor", &uri]);
    expect(0, &reached);
    let address = format!("reached  127.0.0.1:{0} at 127.0.0.1:{0}\n", redis.port);
    assert!(reached.stdout.contains(&address), "{}", reached.stdout);
    redis.stop();
    let gone = run(&["doctor", &uri]);
    expect(1, &gone);
    assert!(gone.stdout.contains("PROBLEM  127.0.0.1:") && gone.stdout.contains("refused"), "{}", gone.stdout);
    assert!(!gone.stdout.contains("ready"), "{}", gone.stdout);
    let offline = run(&["doctor", &uri, "--offline"]);
    expect(0, &offline);
    let last = offline.stdout.lines().last().unwrap_or_default();
    assert!(last.starts_with("not tried: connecting to the granted servers"), "{}", offline.stdout);
    let gone = run(&["doctor", "local-fs:///nowhere/at/all"]);
    expect(1, &gone);
    assert!(gone.stdout.contains("PROBLEM  /nowhere/at is no directory; create it"), "{}", gone.stdout);
    expect(1, &run(&["doctor", "nobody://x", "--json"]));
}

#[test]
fn counters_tell_what_a_command_did() {
    let folder = tempfile::tempdir().unwrap();
    let uri = format!("local-fs://{}/kv", folder.path().display());
    std::fs::create_dir(folder.path().join("kv")).unwrap();
    let got = run(&["--counters", "get", &uri, "--name", "nobody"]);
    expect(1, &got);
    assert!(got.stderr.contains(r#"backend="local-fs""#), "{}", got.stderr);
}

#[test]
fn every_command_explains_itself() {
    let help = run(&["--help"]);
    expect(0, &help);
    let commands = commands_in(&help.stdout);
    assert!(commands.len() >= 8, "{commands:?}");
    for command in commands.into_iter().filter(|command| *command != "help") {
        let help = run(&[command, "--help"]);
        expect(0, &help);
        // A command of commands leaves the option to those.
        let json = if help.stdout.contains("Commands:") { "Commands:" } else { "--json" };
        for part in ["\nExample", "Exit codes:", json] {
            assert!(help.stdout.contains(part), "{command} --help has no {part}\n{}", help.stdout);
        }
        // What an argument is stands behind it or below it.
        let lines: Vec<&str> = help.stdout.lines().collect();
        for (at, line) in lines.iter().enumerate() {
            assert!(line.chars().count() <= 100, "{command} --help is wider than where there is no terminal: {line:?}");
            let argument = ["  <", "  [", "      --", "  -"].iter().any(|start| line.starts_with(start));
            let below = lines.get(at + 1).is_some_and(|below| below.starts_with("          "));
            let said = below || line.trim().split_once("  ").is_some();
            assert!(!argument || said, "{command} --help does not say what {line:?} is\n{}", help.stdout);
        }
    }
}

#[test]
fn a_file_is_saved_once_and_restored_whole_or_not_at_all() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let uri = format!("local-fs://{}", path("store"));
    let data: Vec<u8> = (0..3_000_000_u32).flat_map(|i| i.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    std::fs::write(path("file"), &data).unwrap();

    let save = ["save", &uri, &path("file"), "--name", "talk", "--json"];
    let first = run(&save);
    expect(0, &first);
    assert!(first.stdout.contains(r#""chunks":12,"chunks_known":0"#), "{}", first.stdout);
    let second = run(&save);
    assert!(
        second.stdout.contains(r#""chunks_known":12"#) && second.stdout.contains(r#""bytes_new":0"#),
        "{}",
        second.stdout
    );

    let restore = ["restore", &uri, &path("back"), "--name", "talk"];
    expect(0, &run(&restore));
    assert_eq!(std::fs::read(path("back")).unwrap(), data);

    let files = |folder: &str| -> Vec<PathBuf> {
        let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        entries.filter(|path| path.is_file()).collect()
    };
    let chunk = std::fs::read_dir(path("store/chunks"))
        .unwrap()
        .flatten()
        .flat_map(|entry| std::fs::read_dir(entry.path()).unwrap());
    let chunk = chunk.flatten().next().unwrap().path();
    let sound = std::fs::read(&chunk).unwrap();
    let before = files(&path("")).len();
    for damaged in [Some(sound.iter().map(|byte| byte ^ 1).collect::<Vec<u8>>()), Some(sound[1..].to_vec()), None] {
        match damaged {
            Some(bytes) => std::fs::write(&chunk, bytes).unwrap(),
            // The restores before have found it damaged, and left it.
            None => std::fs::remove_file(&chunk).unwrap(),
        }
        let failed = run(&["restore", &uri, &path("never"), "--name", "talk"]);
        expect(1, &failed);
        assert!(failed.stderr.contains("is missing or corrupt: save the file again"), "{}", failed.stderr);
        expect(1, &run(&restore));
        assert_eq!(std::fs::read(path("back")).unwrap(), data, "what was there stays");
        assert_eq!(files(&path("")).len(), before, "and nothing else is left");
    }
    let none = run(&["restore", &uri, &path("never"), "--name", "nobody"]);
    expect(1, &none);
    assert!(none.stderr.contains("there is no manifest \"nobody\""), "{}", none.stderr);
}

#[test]
fn copies_near_by_leave_with_their_chunk_and_with_a_failed_check() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let config = format!("[backend.local-fs]\nnear = {{ disk = '{}', disk_bytes = 67108864 }}\n", path("near"));
    std::fs::write(path("config.toml"), config).unwrap();
    let run = |arguments: &[&str]| finish(kv_store().args(arguments).env("KV_STORE_WASM_CONFIG", path("config.toml")));
    let uri = format!("local-fs://{}", path("store"));
    let put = |number: u8| {
        std::fs::write(path("bytes"), [number; 4096]).unwrap();
        let put = run(&["put", &uri, "--chunk", &path("bytes")]);
        expect(0, &put);
        put.stdout.trim().to_owned()
    };
    let get = |hash: &str| run(&["get", &uri, "--chunk", hash, "-o", &path("out")]);
    let is_near = |hash: &str| {
        let folders = std::fs::read_dir(path("near")).into_iter().flatten().flatten();
        let mut files = folders.flat_map(|folder| std::fs::read_dir(folder.path()).into_iter().flatten().flatten());
        files.any(|file| file.file_name().to_string_lossy().ends_with(&format!("-{hash}")))
    };
    let [removed, damaged, kept] = [1, 2, 3].map(put);
    for hash in [&removed, &damaged, &kept] {
        // A thread of its own writes them, and a process that ends does not wait for it.
        let mut tries = 0;
        while !is_near(hash) {
            assert!(tries < 100, "{hash} does not come near");
            expect(0, &get(hash));
            tries += 1;
        }
    }
    expect(0, &run(&["rm", &uri, "--chunk", &removed]));
    assert_eq!([&removed, &damaged, &kept].map(|hash| is_near(hash)), [false, true, true]);
    expect(1, &get(&removed));

    std::fs::write(path(&format!("store/chunks/{}/{damaged}", &damaged[..1])), [9; 4096]).unwrap();
    // A look removes nothing, here or there; a repair removes both.
    expect(1, &run(&["verify", &uri]));
    assert_eq!([&damaged, &kept].map(|hash| is_near(hash)), [true, true]);
    let repaired = run(&["verify", &uri, "--repair"]);
    expect(0, &repaired);
    assert_eq!([&damaged, &kept].map(|hash| is_near(hash)), [false, true], "{}", repaired.stdout);
    expect(1, &get(&damaged));
    expect(0, &get(&kept));
}

#[test]
fn single_chunks_and_manifests_go_in_and_out() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let uri = format!("local-fs://{}", path("store"));
    std::fs::write(path("bytes"), b"bytes\0\xff").unwrap();
    let put = run(&["put", &uri, "--chunk", &path("bytes")]);
    expect(0, &put);
    let hash = put.stdout.trim();
    assert_eq!(hash, hex::encode(xxhash_rust::xxh3::xxh3_64(b"bytes\0\xff").to_le_bytes()));
    expect(0, &run(&["get", &uri, "--chunk", hash, "-o", &path("out")]));
    assert_eq!(std::fs::read(path("out")).unwrap(), b"bytes\0\xff");
    expect(1, &run(&["get", &uri, "--name", "n", "-o", &path("out")]));
    let device = run(&["get", &uri, "--chunk", hash, "-o", "/dev/null"]);
    expect(2, &device);
    assert!(device.stderr.contains("/dev/null: there is something there that is no file"), "{}", device.stderr);
    expect(0, &run(&["put", &uri, "--name", "n", &path("bytes")]));
    expect(0, &run(&["get", &uri, "--name", "n", "-o", &path("out")]));
    expect(0, &run(&["rm", &uri, "--name", "n"]));
    expect(3, &run(&["rm", &uri, "--name", "n"]));
    expect(1, &run(&["get", &uri, "--name", "n", "-o", &path("out")]));
}

#[test]
fn a_sequence_of_an_engine_is_described_and_its_missing_chunks_are_counted() {
    let folder = tempfile::tempdir().unwrap();
    let uri = format!("local-fs://{}/store", folder.path().display());
    // 10 tokens of two layers of 2 heads of 8, from NHD pages of 4, in chunks of 4: tests/consumer/paged.c
    succeed(consumer("paged").arg(&uri));
    let sequence = ["sequence", &uri, "--name", "sequence"];
    let said = run(&sequence);
    expect(0, &said);
    let want = "model    \"model\"\ntokens   10, of pages of 4\nlayers   2\n         \
                0 to 1: 2 heads of 8 as F16, of F16 pages, K NHD, V NHD\nchunks   3 of 4 tokens, 1.3 kB\n\
                all chunks are there, as they were saved\n";
    assert_eq!(said.stdout, want);
    let json = |code| {
        let said = run(&[&sequence[..], &["--json"]].concat());
        expect(code, &said);
        serde_json::from_str::<serde_json::Value>(&said.stdout).unwrap()
    };
    let layer = serde_json::json!(
        { "heads": 2, "head_dim": 8, "stored": "F16", "cache": "F16", "layouts": ["NHD", "NHD"] }
    );
    let want = |present: u32, damaged: &[u32]| {
        let sound = present - damaged.len() as u32;
        serde_json::json!({
            "uri": uri, "name": "sequence", "model": "model", "tokens": 10, "block_size": 4, "chunk_tokens": 4,
            "chunks": 3, "chunks_present": present, "chunks_sound": sound, "chunks_damaged": damaged,
            "chunks_of_others": [], "bytes": 10 * 2 * 2 * 16 * 2, "layers": [layer, layer],
        })
    };
    assert_eq!(json(0), want(3, &[]));

    let folders = std::fs::read_dir(folder.path().join("store/chunks")).unwrap().map(|entry| entry.unwrap().path());
    let mut chunks = folders.flat_map(|folder| std::fs::read_dir(folder).unwrap());
    let chunk = chunks.next().unwrap().unwrap().path();
    let mut bytes = std::fs::read(&chunk).unwrap();
    bytes[7] ^= 4;
    std::fs::write(&chunk, &bytes).unwrap();
    let quick = run(&[&sequence[..], &["--quick"]].concat());
    expect(0, &quick);
    assert!(quick.stdout.ends_with("chunks were looked up, and not read\n"), "{}", quick.stdout);
    let said = json(1);
    let number = said["chunks_damaged"][0].as_u64().expect("one chunk is damaged") as u32;
    assert_eq!(said, want(3, &[number]));
    // To have been read once does not remove it.
    assert!(chunk.exists());
    let said = run(&sequence);
    expect(1, &said);
    let damaged = format!("DAMAGED  chunk {number}: not removed (");
    assert!(said.stdout.contains(&damaged) && !said.stdout.contains("all chunks"), "{}", said.stdout);
    std::fs::remove_file(&chunk).unwrap();
    assert_eq!(json(1), want(2, &[]));
    let said = run(&sequence);
    expect(1, &said);
    assert!(said.stdout.contains("MISSING  1 of the chunks"), "{}", said.stdout);

    std::fs::write(folder.path().join("text"), "note").unwrap();
    let text = folder.path().join("text").display().to_string();
    expect(0, &run(&["put", &uri, "--name", "note", &text]));
    for (name, why) in [("note", "it is no manifest of a sequence"), ("none", "there is no manifest \"none\"")] {
        let said = run(&["sequence", &uri, "--name", name]);
        expect(1, &said);
        assert!(said.stderr.contains(why) && said.stderr.lines().count() == 1, "{}", said.stderr);
        assert_eq!(said.stdout, "");
    }
}
