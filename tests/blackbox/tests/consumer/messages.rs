//! What the library says on standard error: a line for each failure, with what an operator needs and no secret.

use super::*;

/// The one line that a process left, and the answers of its calls.
#[track_caller]
fn one_line(command: &mut Command) -> (String, String) {
    let finished = succeed(command);
    assert_eq!(lines(&finished).len(), 1, "not one line: {finished:?}");
    assert!(finished.stderr.ends_with('\n'), "{finished:?}");
    (finished.stderr, finished.stdout)
}

#[test]
fn a_failure_is_one_line_that_names_operation_store_and_cause() {
    let directory = scratch();
    let uri = local_fs(directory.path());
    let (long, noisy) = ("x".repeat(5000), "\u{fe}\u{ff}\u{7f}".repeat(2000));
    let cases: [(&[&str], &str, &str); 8] = [
        (&["put", "", "x"], "put_chunk", "1 to 64 bytes"),
        (&["get", &"ab".repeat(65)], "get_chunk", "65"),
        (&["prefetch", "65", &"ab".repeat(65)], "prefetch_chunks", "65"),
        (&["publish", "", "x"], "put_manifest", "1 to 4096 bytes"),
        (&["publish", &long, "x"], "put_manifest", "name is longer than"),
        (&["read", ""], "get_manifest", "1 to 4096 bytes"),
        (&["read", &noisy], "get_manifest", "name is longer than"),
        (&["delete", ""], "delete_manifest", "1 to 4096 bytes"),
    ];
    for (call, operation, cause) in cases {
        let (line, answers) = one_line(&mut calls(&uri, call.iter().copied()));
        assert!(answers.lines().last().is_some_and(|answer| answer.contains(" -")), "{call:?} answered {answers}");
        for said in [operation, &uri, cause] {
            assert!(line.contains(said), "{call:?}: {said} is missing in {line}");
        }
    }
}

#[test]
fn what_the_storage_refuses_is_one_line_too() {
    let directory = scratch();
    let uri = local_fs(directory.path());
    // No directory can be made where a file is.
    std::fs::write(directory.path().join("chunks"), "").expect("the store's directory");
    let (line, answers) = one_line(&mut calls(&uri, ["put", "0102", "x"]));
    assert!(answers.contains("put -"), "{answers}");
    assert!(line.contains(&format!("put_chunk {uri}: ")), "{line}");
    assert!(line.to_lowercase().contains("not a directory"), "{line}");
}

#[test]
fn what_a_guest_does_wrong_is_one_line() {
    for (misbehaviour, cause) in [("do:trap", "trapped"), ("do:nap", "deadline"), ("do:loop", "deadline")] {
        let (line, answers) = one_line(&mut calls("probe://lines", ["read", misbehaviour]));
        assert!(answers.contains("read -"), "{answers}");
        assert!(line.contains("get_manifest probe://lines: ") && line.contains(cause), "{misbehaviour}: {line}");
    }
}

#[test]
fn a_guests_control_characters_do_not_reach_the_terminal() {
    // The guest fails with "a line\nand \x1b[31manother".
    for call in [&["read", "do:fail"][..], &["publish", "do:fail", "x"]] {
        let (line, _) = one_line(&mut calls("probe://terminal", call.iter().copied()));
        assert!(line.contains("a line") && line.contains("another"), "{line:?}");
        let text = line.trim_end_matches('\n');
        assert!(!text.contains(|c: char| c.is_control()), "{line:?}");
    }
}

#[test]
fn a_consumers_control_characters_do_not_reach_the_terminal_either() {
    let (line, _) = one_line(&mut calls("local-fs:///tmp/\u{1b}[31m\nforged: line", []));
    assert!(!line.trim_end_matches('\n').contains(|c: char| c.is_control()), "{line:?}");
    let long_name = "\u{1b}[31m".repeat(1000);
    let (line, _) = one_line(&mut calls("probe://terminal", ["read", &long_name]));
    assert!(!line.trim_end_matches('\n').contains(|c: char| c.is_control()), "{line:?}");
}

#[test]
fn a_miss_says_nothing() {
    let directory = scratch();
    let uri = local_fs(directory.path());
    let misses = ["get", "0102", "read", "nothing", "prefetch", "2", "01020304", "get", "0304", "delete", "nothing"];
    for uri in [&uri, "memory://misses", "probe://misses"] {
        let finished = succeed(&mut calls(uri, misses));
        assert_eq!(finished.stderr, "", "{uri}");
        let answers: Vec<&str> = finished.stdout.lines().collect();
        assert_eq!(answers.iter().filter(|answer| answer.contains(" -")).count(), 3, "{uri}: {answers:?}");
        assert!(answers.contains(&"prefetch 0") && answers.contains(&"delete 0"), "{uri}: {answers:?}");
    }
}

#[test]
fn what_works_says_nothing() {
    let directory = scratch();
    let work = ["put", "0102", "x", "put", "0102", "x", "publish", "m", "y", "read", "m", "get", "0102", "delete", "m"];
    for uri in [&local_fs(directory.path()), "memory://work", "probe-buffered://work"] {
        let finished = succeed(&mut calls(uri, work));
        assert_eq!(finished.stderr, "", "{uri}");
        assert!(!finished.stdout.contains(" -"), "{uri}: {}", finished.stdout);
    }
}

#[test]
fn a_password_is_refused_and_not_printed() {
    let uris = [
        ("redis://me:hunter2@cache.svc:6379/3", "REDIS_PASSWORD"),
        ("wasm://redis://:hunter2@cache.svc", "REDIS_PASSWORD"),
        ("memkv://me:hunter2@cache.svc/a/b", "MEMKV_PASSWORD"),
        ("redis://me:hunt@er2@cache.svc", "REDIS_PASSWORD"),
        ("probe://me:hunter2@host", "PROBE_PASSWORD"),
        ("local-fs://me:hunter2@/tmp/kv", "LOCAL_FS_PASSWORD"),
    ];
    for (uri, variable) in uris {
        let (line, answers) = one_line(&mut calls(uri, []));
        assert_eq!(answers, "open NULL\n", "{uri}");
        assert!(line.contains("password") && line.contains(variable), "{uri}: {line}");
        assert!(!line.contains("hunter2") && !line.contains("er2@"), "{uri}: {line}");
    }
}

#[test]
fn a_password_with_a_slash_is_not_printed() {
    // Not a proper URI, so the authority seems to end within the password. It is what somebody pastes all the same.
    for uri in ["redis://me:hun/ter2@cache.svc:6379/3", "probe://me:hun/ter2@host", "no-such://:hun/ter2@host"] {
        let (line, answers) = one_line(&mut calls(uri, []));
        assert_eq!(answers, "open NULL\n", "{uri}");
        assert!(!line.contains("hun") && !line.contains("ter2"), "{uri}: {line}");
    }
}
