//! What WASI gives to a component whose language brings it, and what it does not. The guest `wasi-probe` does what a
//! manifest's name says, and answers as that manifest what came of it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test that fails panics")]

use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::{Duration, Instant};

use kv_store_tests::consumer::{consumer, succeed};
use kv_store_tests::{Handle, library};

/// Far above the probe's deadline of 400 ms and its grace, far below a hang.
const PATIENCE: Duration = Duration::from_secs(20);

/// What the ABI answers for a kind of error.
const UNAVAILABLE: i32 = -1;
const COMPONENT: i32 = -7;

fn open(uri: &str) -> Handle<'static> {
    library().open(uri).expect("the probe opens")
}

/// A store whose directory is `root` below `scratch`, with a file beside it that is out of reach.
fn with_directory(scratch: &Path) -> Handle<'static> {
    std::fs::create_dir(scratch.join("root")).unwrap();
    std::fs::write(scratch.join("secret"), "out of reach").unwrap();
    open(&format!("wasi-probe://{}/root", scratch.display()))
}

fn asked(store: &Handle, what: &str) -> String {
    let answer = store.get_manifest(what).unwrap();
    String::from_utf8(answer.unwrap_or_else(|code| panic!("{what}: {code}"))).unwrap()
}

/// It fails as it should and in time, and the next call is served.
fn fails(store: &Handle, what: &str, code: i32) {
    let begun = Instant::now();
    assert_eq!(store.get_manifest(what).unwrap(), Err(code), "{what}");
    assert!(begun.elapsed() < PATIENCE, "{what} took {:?}", begun.elapsed());
    assert_eq!(asked(store, "arguments"), "", "after {what}");
}

/// What the library says in a process of its own that asks the probe one thing.
fn said(uri: &str, what: &str) -> String {
    succeed(consumer("calls").args([uri, "read", what]).env("KV_STORE_WASM_LOG", "info")).stderr
}

#[test]
fn environment_arguments_and_input_are_empty() {
    let asking = |what| {
        let mut asking = consumer("calls");
        asking.args(["wasi-probe://x", "read", what]).env("HOME", "/root").env("WASI_PROBE_TOKEN", "s3cret");
        succeed(&mut asking).stdout
    };
    // An answer in hex: of nothing, of nothing, and of "0".
    for (what, answer) in [("environment", "read 0 \n"), ("arguments", "read 0 \n"), ("input", "read 0 30\n")] {
        assert!(asking(what).ends_with(answer), "{what}: {}", asking(what));
    }
}

#[test]
fn the_root_is_the_directory_of_the_uri() {
    let scratch = tempfile::tempdir().unwrap();
    let store = with_directory(scratch.path());
    assert_eq!(asked(&store, "roots"), "/");
    assert_eq!(asked(&store, "list /"), "");
    assert_eq!(asked(&store, "make /sub"), "done");
    assert_eq!(asked(&store, "write /sub/file"), "done");
    assert_eq!(asked(&store, "list /"), "sub");
    assert_eq!(asked(&store, "read /sub/../sub/./file"), "written");
    assert_eq!(asked(&store, "rename /sub/file /file"), "done");
    assert_eq!(std::fs::read_to_string(scratch.path().join("root/file")).unwrap(), "written");
    let mode = std::os::unix::fs::MetadataExt::mode(&scratch.path().join("root/file").metadata().unwrap());
    assert_eq!(mode & 0o777, 0o600, "only this user reads it");
}

#[test]
fn a_uri_without_a_directory_gives_none() {
    let store = open("wasi-probe://none");
    assert_eq!(asked(&store, "roots"), "");
    for what in ["list /", "read /etc/passwd", "write /tmp/x", "make x"] {
        assert!(asked(&store, what).starts_with("error: "), "{what}: {}", asked(&store, what));
    }
}

#[test]
fn no_path_leaves_the_directory_and_no_link_is_followed() {
    let scratch = tempfile::tempdir().unwrap();
    let store = with_directory(scratch.path());
    let root = scratch.path().join("root");
    std::fs::write(root.join("file"), "within").unwrap();
    std::fs::create_dir(root.join("sub")).unwrap();
    let outside = scratch.path().display();
    symlink(scratch.path(), root.join("up")).unwrap();
    symlink("..", root.join("parent")).unwrap();
    symlink(scratch.path().join("secret"), root.join("leak")).unwrap();
    symlink("../secret", root.join("leak2")).unwrap();
    symlink("file", root.join("inner")).unwrap();
    for what in [
        "read ../secret".to_owned(),
        "read /../secret".into(),
        "read sub/../../secret".into(),
        format!("read {outside}/secret"),
        "read /etc/passwd".into(),
        "read up/secret".into(),
        "read parent/secret".into(),
        "read leak".into(),
        "read leak2".into(),
        "read inner".into(),
        "list ..".into(),
        "list up".into(),
        "list parent".into(),
        "write ../new".into(),
        "write up/new".into(),
        "write leak".into(),
        "make ../new".into(),
        "make up/new".into(),
        "remove ../secret".into(),
        "remove up/secret".into(),
        "rename file ../new".into(),
        "rename file up/new".into(),
        "rename ../secret mine".into(),
        "rename up/secret mine".into(),
        "link ../secret made".into(),
        "link /etc/passwd made".into(),
        "link file made".into(),
    ] {
        assert!(asked(&store, &what).starts_with("error: "), "{what}: {}", asked(&store, &what));
    }
    let mut left: Vec<_> =
        std::fs::read_dir(scratch.path()).unwrap().flatten().map(|entry| entry.file_name()).collect();
    left.sort();
    assert_eq!(left, ["root", "secret"]);
    assert_eq!(std::fs::read_to_string(scratch.path().join("secret")).unwrap(), "out of reach");
    assert!(!root.join("made").is_symlink(), "a link was made");
    assert_eq!(asked(&store, "read file"), "within");
}

#[test]
fn what_is_no_file_is_refused_and_waited_for_by_nobody() {
    let scratch = tempfile::tempdir().unwrap();
    let store = with_directory(scratch.path());
    let fifo = std::ffi::CString::new(scratch.path().join("root/fifo").to_str().unwrap()).unwrap();
    // SAFETY: a path that ends in NUL.
    assert_eq!(unsafe { libc::mkfifo(fifo.as_ptr(), 0o600) }, 0);
    let begun = Instant::now();
    for what in ["read /fifo", "write /fifo"] {
        assert!(asked(&store, what).starts_with("error: "), "{what}");
    }
    assert!(begun.elapsed() < PATIENCE);
}

#[test]
fn without_a_grant_sockets_are_refused_when_they_connect() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let scratch = tempfile::tempdir().unwrap();
    let store = with_directory(scratch.path());
    for what in
        [format!("connect 127.0.0.1 {port}"), format!("connect localhost {port}"), "datagrams".into(), "listen".into()]
    {
        assert_eq!(asked(&store, &what), "error: access-denied (error 1)", "{what}");
    }
    listener.set_nonblocking(true).unwrap();
    assert!(listener.accept().is_err(), "somebody connected");
    let said = said("wasi-probe://127.0.0.1:1", &format!("connect 127.0.0.1 {port}"));
    assert!(
        said.contains(&format!("denied: it tried to connect to 127.0.0.1:{port}; the URI names 127.0.0.1:1")),
        "{said}"
    );
}

#[test]
fn the_server_of_the_uri_can_be_reached_by_sockets_and_no_other() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let [port, other] = [&listener, &other].map(|listener| listener.local_addr().unwrap().port());
    let server = std::thread::spawn(move || {
        for _ in 0..2 {
            let (mut peer, _) = listener.accept().unwrap();
            let mut heard = [0; 5];
            peer.read_exact(&mut heard).unwrap();
            peer.write_all(&[b"you said ", &heard[..]].concat()).unwrap();
        }
    });
    let by_address = open(&format!("wasi-probe://127.0.0.1:{port}"));
    assert_eq!(asked(&by_address, &format!("connect 127.0.0.1 {port}")), "you said hello");
    let by_name = open(&format!("wasi-probe://localhost:{port}"));
    // An address that the name was not resolved to yet is nobody's.
    assert_eq!(asked(&by_name, &format!("connect 127.0.0.1 {port}")), "error: access-denied (error 1)");
    assert_eq!(asked(&by_name, &format!("connect localhost {port}")), "you said hello");
    server.join().unwrap();
    for (store, what) in [
        (&by_address, format!("connect 127.0.0.1 {other}")),
        (&by_address, format!("connect 127.0.0.2 {port}")),
        (&by_address, format!("connect localhost {port}")),
        (&by_address, "listen".into()),
        (&by_name, format!("connect localhost {other}")),
        (&by_name, "connect example.com 80".into()),
        (&by_name, "connect local%68ost 80".into()),
    ] {
        assert_eq!(asked(store, &what), "error: access-denied (error 1)", "{what}");
    }
}

#[test]
fn a_metadata_service_is_reached_by_no_grant() {
    let store = open("wasi-probe://169.254.169.254:80");
    assert_eq!(asked(&store, "connect 169.254.169.254 80"), "error: access-denied (error 1)");
    let said = said("wasi-probe://169.254.169.254:80", "connect 169.254.169.254 80");
    assert!(said.contains("a link-local address, where clouds keep their metadata"), "{said}");
}

#[test]
fn a_wait_ends_at_the_deadline() {
    let store = open("wasi-probe://waits");
    fails(&store, "sleep", UNAVAILABLE);
    fails(&store, "never", UNAVAILABLE);
    assert_eq!(asked(&store, "naps"), "woken");
}

#[test]
fn a_wait_ends_also_inside_the_consumers_own_runtime() {
    for threads in [1, 2] {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(threads).build().unwrap();
        let inside = runtime.spawn(async { asked(&open("wasi-probe://inside"), "naps") });
        assert_eq!(runtime.block_on(inside).unwrap(), "woken");
    }
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    assert_eq!(runtime.block_on(async { asked(&open("wasi-probe://inside"), "naps") }), "woken");
}

#[test]
fn exit_and_panic_are_one_failed_call() {
    let store = open("wasi-probe://ends");
    fails(&store, "exit", COMPONENT);
    fails(&store, "panic", COMPONENT);
    let exited = said("wasi-probe://x", "exit");
    assert!(exited.contains("error: get_manifest wasi-probe://x: trapped: it called exit, "), "{exited}");
    let panicked = said("wasi-probe://x", "panic");
    let told =
        |line: &str| line.starts_with("kv-store-wasm: error: wasi-probe: panicked at ") && line.ends_with(": told to");
    assert!(panicked.lines().any(told), "{panicked}");
}

#[test]
fn what_it_prints_is_lines_of_the_log() {
    let said = said("wasi-probe://x", "print it");
    let lines: Vec<&str> = said.lines().filter(|line| line.contains(": wasi-probe: ")).collect();
    assert!(lines.contains(&"kv-store-wasm: info: wasi-probe: first of [31m it"), "{said:?}");
    assert!(lines.contains(&"kv-store-wasm: info: wasi-probe: second of it"), "{said:?}");
    assert!(
        lines.iter().any(|line| line.contains("long long") && line.ends_with('…') && line.len() < 1200),
        "{said:?}"
    );
    let flood = self::said("wasi-probe://x", "flood");
    let lines = flood.lines().filter(|line| line.ends_with("wasi-probe: a flood")).count();
    // 50 a second, and the flood may see a second begin, or two.
    assert!((1..=150).contains(&lines), "{lines} lines");
}

#[test]
fn a_line_that_has_not_ended_is_said_when_its_instance_ends() {
    let mut asking = consumer("calls");
    asking.args(["wasi-probe://x", "read", "print it", "read", "exit"]);
    let said = succeed(&mut asking).stderr;
    assert!(said.contains("warning: wasi-probe: unended it\n"), "{said:?}");
}

#[test]
fn random_bytes_are_bounded() {
    let store = open("wasi-probe://random");
    assert_eq!(asked(&store, "random 0"), "0 false");
    assert_eq!(asked(&store, "random 1048576"), "1048576 true");
    fails(&store, "random 1048577", COMPONENT);
    fails(&store, &format!("random {}", u64::MAX), COMPONENT);
}

/// Descriptors of this process below a folder.
fn open_below(folder: &Path) -> usize {
    let links = std::fs::read_dir("/proc/self/fd").unwrap().flatten().map(|entry| std::fs::read_link(entry.path()));
    links.flatten().filter(|target| target.starts_with(folder)).count()
}

#[test]
fn open_files_are_bounded_and_closed_with_their_instance() {
    let scratch = tempfile::tempdir().unwrap();
    let store = with_directory(scratch.path());
    assert_eq!(asked(&store, "files 100"), "100");
    let level = open_below(scratch.path());
    fails(&store, "files 1000", COMPONENT);
    let why = said(&format!("wasi-probe://{}/root", scratch.path().display()), "files 1000");
    assert!(why.contains("trapped: it holds more handles than a component may"), "{why}");
    assert!(open_below(scratch.path()) <= level, "{} of {level}", open_below(scratch.path()));
}

#[test]
fn listings_are_bounded() {
    let scratch = tempfile::tempdir().unwrap();
    let store = with_directory(scratch.path());
    assert_eq!(asked(&store, "listings 4"), "0 refused");
    assert_eq!(asked(&store, "listings 6"), "2 refused");
    assert_eq!(asked(&store, "listings 4"), "0 refused");

    let many = scratch.path().join("root/many");
    std::fs::create_dir(&many).unwrap();
    for n in 0..(1 << 16) + 1 {
        std::fs::File::create(many.join(n.to_string())).unwrap();
    }
    assert!(asked(&store, "list /many").starts_with("error: "), "{}", asked(&store, "list /many"));
}
