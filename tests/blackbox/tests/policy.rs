//! What the config grants, as a component meets it; and the bounds that the config sets.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test that fails panics")]

use std::io::Read;
use std::net::TcpListener;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use kv_store_tests::consumer::{consumer, finish};
use kv_store_tests::{Handle, granted_folders, kv_store, library, memkv, seaweed};

const UNAVAILABLE: i32 = -1;
const DENIED: i32 = -2;
const EXHAUSTED: i32 = -3;
const COMPONENT: i32 = -7;

/// Against hanging only.
const PATIENCE: Duration = Duration::from_secs(30);

fn open(uri: &str) -> Handle<'static> {
    library().open(uri).expect("the probe opens")
}

fn act(store: &Handle<'_>, how: &str) -> i32 {
    store.put_manifest(&format!("do:{how}"), b"").unwrap()
}

/// A server that says when a connection has ended.
fn server() -> (u16, Receiver<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let (ended, ends) = channel();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let ended = ended.clone();
            std::thread::spawn(move || {
                // Echoes what the probe sends first: a length, and so many bytes.
                let mut request = [0; 7];
                if stream.read_exact(&mut request).is_ok() {
                    let _ = std::io::Write::write_all(&mut stream, &request);
                }
                let _ = stream.read_to_end(&mut Vec::new());
                let _ = ended.send(());
            });
        }
    });
    (port, ends)
}

#[test]
fn a_folder_is_granted_by_name_and_to_read_only_where_it_says_so() {
    let store = open("probe-folders://x");
    std::fs::write(granted_folders().join("ro/file"), "kept").unwrap();
    for how in ["write-ro", "remove-ro", "sync-ro", "other-directory"] {
        assert_eq!(act(&store, how), DENIED, "{how}");
    }
    assert_eq!(act(&store, "write-rw"), 0);
    assert_eq!(std::fs::read(granted_folders().join("rw/new")).unwrap(), b"written");
    let names: Vec<_> =
        std::fs::read_dir(granted_folders().join("ro")).unwrap().flatten().map(|e| e.file_name()).collect();
    assert_eq!(names, ["file"]);
    // The URI names none.
    assert_eq!(act(&store, "directory"), DENIED);
}

#[test]
fn a_granted_name_leads_to_a_private_address_only_where_that_is_granted_too() {
    let (port, _) = server();
    let echo = |scheme: &str, host: &str| {
        let store = open(&format!("{scheme}://elsewhere:1"));
        store.get_manifest(&format!("echo:{host}:{port}")).unwrap()
    };
    assert_eq!(echo("probe-names", "localhost"), Err(DENIED));
    assert_eq!(echo("probe-private", "localhost"), Ok(b"first".to_vec()));
    // By an entry that holds the address itself.
    assert_eq!(echo("probe-public", "localhost"), Ok(b"first".to_vec()));
    assert_eq!(echo("probe-public", "127.0.0.1"), Ok(b"first".to_vec()));
    assert_eq!(echo("probe-private", "127.0.0.1"), Err(DENIED));
}

#[test]
fn connections_of_an_instance_are_bounded() {
    let (port, ends) = server();
    let store = open(&format!("probe-few://127.0.0.1:{port}/bounded"));
    assert_eq!(act(&store, &format!("connections:127.0.0.1:{port}")), EXHAUSTED);
    // They go with the call that held them.
    for n in 0..3 {
        assert!(ends.recv_timeout(PATIENCE).is_ok(), "{n}");
    }
    assert_eq!(act(&store, &format!("connections:127.0.0.1:{port}")), EXHAUSTED);
}

#[test]
fn an_idle_connection_is_closed_without_another_call() {
    let (port, ends) = server();
    let store = open(&format!("probe-few://127.0.0.1:{port}/idle"));
    assert_eq!(store.get_manifest(&format!("echo:127.0.0.1:{port}")).unwrap(), Ok(b"first".to_vec()));
    assert!(ends.recv_timeout(PATIENCE).is_ok(), "it stays open");
    assert_eq!(store.get_manifest(&format!("echo:127.0.0.1:{port}")).unwrap(), Ok(b"first".to_vec()));
    assert!(ends.recv_timeout(PATIENCE).is_ok(), "the second stays open");
}

#[test]
fn who_would_wait_in_a_full_line_is_told_that_it_is_busy() {
    let store = open("probe-busy://x");
    // Calls are answered until the pause has begun; then one is refused that could have waited for its end. On a machine that has other
    // work to do the pause may be over before this thread runs again.
    let is_told = || {
        std::thread::scope(|scope| {
            let holds = scope.spawn(|| act(&store, "pause"));
            let mut refused = std::iter::repeat_with(|| {
                std::thread::sleep(Duration::from_millis(1));
                store.get_manifest("none").unwrap()
            })
            .take_while(|_| !holds.is_finished());
            let told = refused.any(|answer| answer == Err(UNAVAILABLE)) && !holds.is_finished();
            let held = holds.join().unwrap();
            assert!(held == 0 || (!told && held == UNAVAILABLE), "{held}");
            told
        })
    };
    assert!((0..5).any(|_| is_told()), "nobody was told");
    assert_eq!(store.put_manifest("after", b"y").unwrap(), 0);
}

#[test]
fn a_store_that_fails_again_and_again_is_left_alone_for_a_while() {
    let store = open("probe-breaker://x");
    for _ in 0..3 {
        assert_eq!(act(&store, "trap"), COMPONENT);
    }
    assert_eq!(store.put_manifest("m", b"x").unwrap(), UNAVAILABLE);
    // Another open of it is the same store; another store goes on.
    assert!(library().open("probe-breaker://x").is_some());
    assert_eq!(open("probe-breaker://y").put_manifest("m", b"x").unwrap(), 0);
    let begun = std::time::Instant::now();
    while store.put_manifest("m", b"x").unwrap() != 0 {
        assert!(begun.elapsed() < PATIENCE, "it stays open");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(store.get_manifest("m").unwrap(), Ok(b"x".to_vec()));
}

#[test]
fn misses_and_refusals_open_no_breaker() {
    let store = open("probe-breaker://refusals");
    for _ in 0..10 {
        assert_eq!(act(&store, "directory"), DENIED);
        assert!(store.get_manifest("none").unwrap().is_err());
    }
    assert_eq!(store.put_manifest("m", b"x").unwrap(), 0);
}

/// What the library says in a process that does one thing with the probe.
fn said(uri: &str, variables: &[(&str, &str)]) -> String {
    let finished = finish(consumer("calls").args([uri, "read", "do:secret"]).envs(variables.iter().copied()));
    assert!(finished.status.success(), "{finished:?}");
    finished.stderr
}

#[test]
fn an_open_breaker_says_so_once_and_why() {
    let mut calls = consumer("calls");
    calls.arg("probe-breaker://said");
    for _ in 0..8 {
        calls.args(["publish", "do:trap", "x"]);
    }
    let said = finish(&mut calls).stderr;
    assert_eq!(said.matches("failed 3 times in a row").count(), 1, "{said}");
    let parts = ["not tried after repeated failures", "Last failure: trapped"];
    assert!(parts.iter().all(|part| said.contains(part)), "{said}");
}

#[test]
fn the_config_says_where_a_secret_is_kept() {
    let both = [("ANOTHER_TOKEN", "123456789"), ("PROBE_SECRET_TOKEN", "1")];
    assert!(said("probe-secret://x", &both).contains("the secret has 9 bytes"));
    assert!(said("probe-secret://x", &both[1..]).contains("there is no secret"));
}

#[test]
fn a_tenant_has_no_secret_of_its_backend() {
    let all = [("ANOTHER_TOKEN", "1"), ("PROBE_TENANTS_TOKEN", "1")];
    let said = said("probe-tenants://x/a", &all);
    assert!(said.contains("there is no secret") && !said.contains("bytes"), "{said}");
}

#[test]
fn what_no_tenant_covers_is_not_opened() {
    for uri in [
        "probe-tenants://x",
        "probe-tenants://x/c",
        "probe-tenants://x/a/../b",
        "probe-tenants://y/a",
        "probe-tenants://x/ab",
    ] {
        assert!(library().open(uri).is_none(), "{uri}");
    }
    for uri in ["probe-tenants://x/a", "probe-tenants://X/b/more"] {
        assert!(library().open(uri).is_some(), "{uri}");
    }
}

#[test]
fn tenants_share_no_data() {
    let (a, b) = (open("probe-tenants://x/a"), open("probe-tenants://x/b"));
    assert_eq!(a.put_chunk(b"key", b"of a").unwrap(), 0);
    assert_eq!(a.put_manifest("m", b"of a").unwrap(), 0);
    assert!(b.get_chunk(b"key").unwrap().is_err() && b.get_manifest("m").unwrap().is_err());
    // Not even that the chunk is known.
    assert_eq!(b.put_chunk(b"key", b"of b").unwrap(), 0);
    assert_eq!(a.get_chunk(b"key").unwrap(), Ok(b"of a".to_vec()));
}

#[test]
fn the_host_knows_the_ports_that_backends_take_by_themselves() {
    // Of this machine's loopback, and no server's: those that tests start listen on another one.
    const NOBODY: &str = "127.83.101.107";
    for (scheme, path, port) in [
        ("redis", "/0", 6379),
        ("rediss", "/0", 6379),
        ("memkv", "/place", 9900),
        ("mooncake", "/place", 50051),
        ("s3", "/bucket/place", 443),
        ("s3+http", "/bucket/place", 80),
    ] {
        let uri = format!("{scheme}://{NOBODY}{path}");
        let run = |command: &str| {
            let mut program = kv_store();
            program.args([command, &uri]).env("MEMKV_AUTH_KEY", memkv::AUTH_KEY);
            program.env("S3_ACCESS_KEY_ID", seaweed::ACCESS_KEY_ID);
            finish(program.env("S3_SECRET_ACCESS_KEY", seaweed::SECRET_ACCESS_KEY))
        };
        // The component goes there, and the host looks there before.
        for (command, tells) in [("ls", "cannot connect to "), ("doctor", "is not reached: ")] {
            let finished = run(command);
            let told = finished.stdout.clone() + &finished.stderr;
            let refused = format!("{tells}{NOBODY}:{port}: Connection refused");
            assert!(told.contains(&refused), "{command} {uri} does not tell of {refused:?}: {told}");
        }
    }
}
