//! What local-fs has the kernel make durable, and in which order: read off the system calls of a save.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test that fails panics")]

use std::path::Path;
use std::process::Command;

use kv_store_tests::consumer::{consumer, finish};
use kv_store_tests::{dist, library, test_components};

/// The calls of a save that sync and rename in the folder of its store and in the one above, one a line, in order, with paths. `options` are
/// local-fs's.
fn calls_of_a_save(store: &Path, options: &str) -> Vec<String> {
    calls_of_a_save_by("local-fs", store, options)
}

/// The same for another backend; `table` is what the config says of it.
fn calls_of_a_save_by(scheme: &str, store: &Path, table: &str) -> Vec<String> {
    let scratch = tempfile::tempdir().unwrap();
    let config = scratch.path().join("config.toml");
    std::fs::write(&config, format!("[backend.{scheme}]\n{table}\n")).unwrap();
    let save = consumer("twenty_lines");
    let trace = scratch.path().join("trace");
    let mut strace = Command::new("strace");
    // -y: descriptors are shown with their paths.
    strace.args(["-f", "-y", "-qq", "-e", "trace=fsync,fdatasync,renameat,renameat2,rename", "-o"]).arg(&trace);
    strace.arg(save.get_program()).arg(format!("{scheme}://{}", store.display()));
    strace.env_clear().envs(save.get_envs().filter_map(|(name, value)| Some((name, value?))));
    strace.env("KV_STORE_WASM_CONFIG", &config).env("LD_LIBRARY_PATH", dist().join("lib"));
    let finished = finish(&mut strace);
    assert!(finished.status.success(), "{}", finished.stderr);
    let trace = std::fs::read_to_string(&trace).unwrap();
    let upper = store.parent().unwrap().display().to_string();
    trace.lines().filter(|line| line.contains(&upper)).map(str::to_owned).collect()
}

/// Where a line of the trace is that is this call and names all of these, after `from`.
fn position(calls: &[String], from: usize, call: &str, named: &[&str]) -> usize {
    let found =
        calls.iter().skip(from).position(|line| line.contains(call) && named.iter().all(|name| line.contains(name)));
    from + found.unwrap_or_else(|| panic!("no {call} of {named:?} after call {from} of:\n{}", calls.join("\n")))
}

#[test]
fn a_manifest_is_published_when_its_chunks_are_durable() {
    let scratch = tempfile::tempdir().unwrap();
    let store = scratch.path().join("store");
    let calls = calls_of_a_save(&store, "");

    let root = format!("{}>", store.display());
    let published = position(&calls, 0, "renameat", &["\"prompt-1%02\""]);
    for key in ["key of one", "key of two"] {
        let synced = position(&calls, 0, "fdatasync", &[&hex::encode(key)]);
        let directory = position(&calls, synced, "fsync", &["chunks/6>"]);
        position(&calls, directory, "renameat", &["\"prompt-1%02\""]);
    }
    for directory in ["chunks>", &root] {
        assert!(position(&calls, 0, "fsync", &[directory]) < published, "{directory} is synced before the manifest");
    }
    // The manifest's own bytes before its name, its name before the answer.
    assert!(position(&calls, 0, "fdatasync", &[".kv-tmp/"]) < published);
    position(&calls, published, "fsync", &[&root]);
}

/// As a process leaves it that is killed after it has made the folder of a store.
#[test]
fn a_store_in_a_folder_that_is_empty_has_the_name_of_that_synced_first() {
    for (scheme, first) in [("local-fs", ".local-fs"), ("segments", "index")] {
        let scratch = tempfile::tempdir().unwrap();
        let store = scratch.path().join("store");
        std::fs::create_dir(&store).unwrap();
        let upper = format!("{}>", scratch.path().display());
        let calls = calls_of_a_save_by(scheme, &store, "");
        let named = position(&calls, 0, "rename", &[&format!("\"{first}\"")]);
        assert!(position(&calls, 0, "fsync", &[&upper]) < named, "{}", calls.join("\n"));
        // What holds something has its name.
        let calls = calls_of_a_save_by(scheme, &store, "");
        assert!(!calls.iter().any(|call| call.contains("fsync") && call.contains(&upper)), "{}", calls.join("\n"));
    }
}

#[test]
fn a_manifest_is_published_when_its_chunks_are_durable_also_through_wasi() {
    for (scheme, manifest) in [("std-fs", "\"prompt-1%02\""), ("c-fs", "\"c9a0a996")] {
        let scratch = tempfile::tempdir().unwrap();
        let store = scratch.path().join("store");
        let component = test_components().join(format!("{scheme}.wasm"));
        // std on a libc that speaks WASI 0.1, which is joined to 0.2 by an adapter, cannot sync a directory. c-fs asks the host.
        let adapter = b"wasi_snapshot_preview1";
        let adapted = std::fs::read(&component).unwrap().windows(adapter.len()).any(|there| there == adapter);
        let directories = scheme == "c-fs" || !adapted;
        if !directories {
            eprintln!("not asked of {scheme}: that directories are synced; it was built on a libc that cannot");
        }
        let calls = calls_of_a_save_by(scheme, &store, &format!("component = '{}'", component.display()));
        let published = position(&calls, 0, "rename", &[manifest]);
        for key in ["key of one", "key of two"] {
            let put = position(&calls, 0, "rename", &[&hex::encode(key)]);
            let synced = position(&calls, put, "sync(", &[&hex::encode(key)]);
            let durable = if directories { position(&calls, synced, "sync(", &["chunks/6>"]) } else { synced };
            assert!(durable < published, "{scheme} published before {key} was durable:\n{}", calls.join("\n"));
        }
        // The manifest's own bytes before its name, its name before the answer.
        assert!(position(&calls, 0, "sync(", &["store/tmp/"]) < published, "{scheme}");
        if directories {
            position(&calls, published, "sync(", &["manifests>"]);
        }
    }
}

#[test]
fn a_chunk_that_existed_is_made_durable_again() {
    let scratch = tempfile::tempdir().unwrap();
    let store = scratch.path().join("store");
    calls_of_a_save(&store, "");
    let calls = calls_of_a_save(&store, "");
    let published = position(&calls, 0, "renameat", &["\"prompt-1%02\""]);
    assert!(position(&calls, 0, "fdatasync", &[&hex::encode("key of one")]) < published);
    assert_eq!(calls.iter().filter(|line| line.contains("renameat")).count(), 1, "only the manifest is written again");
}

/// A save whose first sync of a chunk answers an error; whether it succeeded, and the chunks that are there then.
fn save_with_failing_sync(store: &Path, errno: &str) -> (bool, usize) {
    let save = consumer("twenty_lines");
    let mut strace = Command::new("strace");
    strace.args(["-f", "-qqq", "-o", "/dev/null", "-e", "trace=fdatasync", "-e"]);
    strace.arg(format!("inject=fdatasync:error={errno}:when=1"));
    strace.arg(save.get_program()).arg(format!("local-fs://{}", store.display()));
    strace.env_clear().envs(save.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let finished = finish(strace.env("LD_LIBRARY_PATH", dist().join("lib")));
    // Both keys begin alike.
    let chunks = std::fs::read_dir(store.join("chunks/6")).map_or(0, |chunks| chunks.count());
    (finished.status.success(), chunks)
}

#[test]
fn what_could_not_be_written_out_is_removed_and_nothing_on_other_errors() {
    for (errno, succeeds, chunks) in
        [("EIO", false, 1), ("ENOSPC", false, 1), ("EDQUOT", false, 1), ("ENOMEM", false, 2), ("EINTR", true, 2)]
    {
        let scratch = tempfile::tempdir().unwrap();
        let store = scratch.path().join("store");
        assert_eq!(save_with_failing_sync(&store, errno), (succeeds, chunks), "{errno}");
        assert_eq!(store.join("prompt-1%02").exists(), succeeds, "{errno}");
        // The next save mends it.
        calls_of_a_save(&store, "");
        assert_eq!(std::fs::read_dir(store.join("chunks/6")).unwrap().count(), 2, "{errno}");
    }
}

#[test]
fn a_chunk_that_vanished_fails_manifests_until_it_is_put_again() {
    let scratch = tempfile::tempdir().unwrap();
    let store = library().open(&format!("local-fs://{}", scratch.path().display())).unwrap();
    assert_eq!(store.put_chunk(b"a", b"x").unwrap(), 0);
    std::fs::remove_file(scratch.path().join("chunks/6/61026b7632")).unwrap();
    assert!(store.put_manifest("m", b"x").unwrap() < 0, "published without its chunk");
    assert!(store.get_manifest("m").unwrap().is_err());
    assert_eq!(store.put_chunk(b"a", b"x").unwrap(), 0);
    assert_eq!(store.put_manifest("m", b"x").unwrap(), 0);

    assert_eq!(store.put_chunk(b"b", b"x").unwrap(), 0);
    std::fs::remove_file(scratch.path().join("chunks/6/62026b7632")).unwrap();
    assert!(store.put_manifest("m", b"y").unwrap() < 0);
    assert!(store.put_manifest("other", b"z").unwrap() < 0, "a save that shares the handle may count on it");
    assert_eq!(store.put_chunk(b"b", b"x").unwrap(), 0);
    assert_eq!(store.put_manifest("other", b"z").unwrap(), 0);
}

#[test]
fn the_operator_can_leave_durability_to_the_kernel() {
    let scratch = tempfile::tempdir().unwrap();
    let store = scratch.path().join("store");
    let calls = calls_of_a_save(&store, "options.durability = 'rename'");
    // The name of the store's own folder, when it is made, and then none.
    let [made, renamed @ ..] = calls.as_slice() else { panic!("no calls") };
    assert!(made.contains("fsync") && made.contains(&format!("{}>", scratch.path().display())), "{made}");
    assert!(renamed.iter().all(|line| line.contains("renameat")), "{}", calls.join("\n"));
    // Two chunks and the manifest, and the directory's marker.
    assert_eq!(renamed.len(), 4);
}
