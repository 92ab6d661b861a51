//! Manifests by conditions: what comes late changes nothing.

use kv_store_tests::objects::{Fault, ObjectServer};

use super::{calls, content, kv_store, open, record, uri};

/// Calls that wait no longer than this for an answer.
const PATIENCE: &str = "limits = { patience_ms = 300, breaker_failures = 0 }";

/// A save that the server carries out after another one was acknowledged; what is read then, in hex.
fn after_a_late_save(server: &ObjectServer) -> String {
    let handle = open(server);
    assert_eq!(handle.put_manifest("m", b"old"), Ok(0));
    drop(handle);
    server.spoil("PUT /bucket/p/r/m", 1, Fault::Held);
    let made = calls(&uri(server), PATIENCE, &[], &["publish", "m", "late", "publish", "m", "new", "read", "m"]);
    let lines: Vec<&str> = made.stdout.lines().collect();
    assert!(lines[1].starts_with("publish -"), "{}{}", made.stdout, made.stderr);
    assert_eq!(lines[2..], ["publish 0", "read 0 6e6577"], "{}", made.stderr);
    server.release(1);
    let made = calls(&uri(server), PATIENCE, &[], &["read", "m"]);
    made.stdout.lines().last().unwrap_or_default().to_owned()
}

#[test]
fn a_save_that_comes_late_does_not_undo_a_later_one() {
    assert_eq!(after_a_late_save(&ObjectServer::start()), "read 0 6e6577");
    // A server that ignores conditions: the protocol of former versions, and the model's variant "the server ignores conditions".
    assert_eq!(after_a_late_save(&ObjectServer::careless()), "read 0 6c617465");
}

#[test]
fn a_delete_that_comes_late_does_not_undo_a_later_save_nor_the_other_way_round() {
    let server = ObjectServer::start();
    let handle = open(&server);
    assert_eq!(handle.put_manifest("m", b"old"), Ok(0));
    drop(handle);
    server.spoil("PUT /bucket/p/r/m", 1, Fault::Held);
    let made = calls(&uri(&server), PATIENCE, &[], &["delete", "m", "publish", "m", "new", "read", "m"]);
    assert!(made.stdout.ends_with("publish 0\nread 0 6e6577\n"), "{}{}", made.stdout, made.stderr);
    server.release(1);
    let made = calls(&uri(&server), PATIENCE, &[], &["read", "m"]);
    assert_eq!(made.stdout, "open ok\nread 0 6e6577\n", "{}", made.stderr);
    // The first save of a name, after which it is deleted: what is left there refuses it.
    let server = ObjectServer::start();
    server.spoil("PUT /bucket/p/r/n", 1, Fault::Held);
    let made = calls(&uri(&server), PATIENCE, &[], &["publish", "n", "late", "delete", "n", "read", "n"]);
    assert!(made.stdout.contains("\ndelete 0\nread -"), "{}{}", made.stdout, made.stderr);
    server.release(1);
    let made = calls(&uri(&server), PATIENCE, &[], &["read", "n"]);
    assert!(made.stdout.contains("\nread -"), "{}{}", made.stdout, made.stderr);
    // Deleted though nothing was there, by another process than the one that was late.
    let server = ObjectServer::start();
    server.spoil("PUT /bucket/p/r/n", 1, Fault::Held);
    calls(&uri(&server), PATIENCE, &[], &["publish", "n", "late"]);
    let handle = open(&server);
    assert_eq!(handle.delete_manifest("n"), Ok(0));
    server.release(1);
    assert!(handle.get_manifest("n").unwrap().is_err());
}

#[test]
fn an_answer_that_was_lost_is_looked_for() {
    let server = ObjectServer::start();
    let handle = open(&server);
    for (number, before) in [(1, None), (2, Some(b"before".as_slice()))] {
        let name = format!("m{number}");
        before.into_iter().for_each(|before| assert_eq!(handle.put_manifest(&name, before), Ok(0)));
        server.asked();
        server.spoil("PUT /bucket/p/r/", 1, Fault::Lost);
        assert_eq!(handle.put_manifest(&name, b"manifest"), Ok(0));
        assert_eq!(handle.get_manifest(&name), Ok(Ok(b"manifest".to_vec())));
        // The repeated request was refused, and what is there is our own: it is not put again.
        let puts = server.asked().into_iter().filter(|(line, _)| line.starts_with("PUT")).count();
        assert_eq!(puts, 2);
    }
    // What another writer has put meanwhile is put over: its change is over too.
    server.spoil("PUT /bucket/p/r/m1", 1, Fault::Raced(b"another's, and no record"));
    assert_eq!(handle.put_manifest("m1", b"ours"), Ok(0));
    assert_eq!(handle.get_manifest("m1"), Ok(Ok(b"ours".to_vec())));
}

#[test]
fn a_save_of_a_name_that_is_known_or_new_is_one_request() {
    let server = ObjectServer::start();
    let handle = open(&server);
    let requests = |save: &[u8]| {
        server.asked();
        assert_eq!(handle.put_manifest("m", save), Ok(0));
        let asked = server.asked();
        let (_, headers) = asked.iter().find(|(line, _)| line.starts_with("PUT")).expect("it is put");
        (asked.len(), headers.contains_key("if-match"), headers.contains_key("if-none-match"))
    };
    assert_eq!(requests(b"first"), (1, false, true));
    assert_eq!(requests(b"second"), (1, true, false));
    let of_same_bytes = server.get(&record(&server));
    assert_eq!(requests(b"second"), (1, true, false));
    // Each request has a nonce of its own, so that equal bytes are not equal.
    assert_ne!(server.get(&record(&server)), of_same_bytes);
    // Another process has changed it: refused, looked at, put.
    let other = open(&server);
    assert!(other.get_manifest("m").unwrap().is_ok());
    drop(other);
    let made = calls(&uri(&server), "", &[], &["publish", "m", "third"]);
    assert_eq!(made.stdout, "open ok\npublish 0\n", "{}", made.stderr);
    assert_eq!(requests(b"fourth"), (3, true, false));
    assert_eq!(handle.get_manifest("m"), Ok(Ok(b"fourth".to_vec())));
}

/// The time of the generation that a record has.
fn generation(server: &ObjectServer) -> u64 {
    u64::from_le_bytes(server.get(&record(server)).unwrap()[48..56].try_into().unwrap())
}

#[test]
fn each_change_has_a_greater_generation() {
    let server = ObjectServer::start();
    let handle = open(&server);
    let mut last = 0;
    for round in 0..20 {
        let changed = if round % 3 == 2 { handle.delete_manifest("m") } else { handle.put_manifest("m", b"x") };
        assert_eq!(changed, Ok(0));
        assert!(generation(&server) > last);
        last = generation(&server);
    }
    // A writer whose clock is far ahead has put one.
    let mut ahead = server.get(&record(&server)).unwrap();
    assert_eq!(handle.put_manifest("m", b"x"), Ok(0));
    ahead.clear();
    server.put(&record(&server), &ahead);
    assert_eq!(handle.put_manifest("m", b"healed"), Ok(0));
    assert_eq!(handle.get_manifest("m"), Ok(Ok(b"healed".to_vec())));
}

#[test]
fn manifests_of_a_former_version_are_read_listed_replaced_and_deleted() {
    let server = ObjectServer::start();
    server.put("bucket/p/m/former", b"of 0.2");
    server.put("bucket/p/m/gone", b"of 0.2");
    let handle = open(&server);
    assert_eq!(handle.get_manifest("former"), Ok(Ok(b"of 0.2".to_vec())));
    let listed = kv_store(&["ls", &uri(&server), "--json"]);
    assert_eq!(listed.stdout.lines().count(), 2, "{}{}", listed.stdout, listed.stderr);
    assert_eq!(handle.delete_manifest("gone"), Ok(0));
    assert!(handle.get_manifest("gone").unwrap().is_err());
    assert_eq!(server.get("bucket/p/m/gone"), None);
    let listed = kv_store(&["ls", &uri(&server), "--json"]);
    assert_eq!(listed.stdout.lines().count(), 1, "{}{}", listed.stdout, listed.stderr);
    assert_eq!(handle.put_manifest("former", b"of this"), Ok(0));
    assert_eq!(handle.get_manifest("former"), Ok(Ok(b"of this".to_vec())));
    assert_eq!(handle.delete_manifest("former"), Ok(0));
    assert!(handle.get_manifest("former").unwrap().is_err());
}

#[test]
fn a_manifest_that_is_too_long_for_its_record_is_an_object_that_its_record_names() {
    let server = ObjectServer::start();
    let handle = open(&server);
    let long = |seed: u8| -> Vec<u8> { (0..65u32 << 20).map(|n| (n >> 8) as u8 ^ n as u8 ^ seed).collect() };
    let bodies = || server.keys().into_iter().filter(|key| key.contains("/l/")).collect::<Vec<String>>();
    assert_eq!(handle.put_manifest("m", &long(1)), Ok(0));
    assert!(handle.get_manifest("m").unwrap() == Ok(long(1)));
    let first = bodies();
    assert_eq!(first.len(), 1);
    // Here conditions of an upload in parts are ignored. A late one changes nothing all the same: it is another object.
    assert_eq!(handle.put_manifest("m", &long(2)), Ok(0));
    let second = bodies();
    assert!(second.len() == 1 && second != first, "{second:?}");
    assert!(handle.get_manifest("m").unwrap() == Ok(long(2)));
    let listed = kv_store(&["ls", &uri(&server), "--json"]);
    assert_eq!(listed.stdout.lines().count(), 1, "{}{}", listed.stdout, listed.stderr);
    // Damaged where it lies.
    let mut damaged = server.get(&second[0]).unwrap();
    damaged[1 << 20] ^= 1;
    server.put(&second[0], &damaged);
    assert!(handle.get_manifest("m").unwrap().is_err());
    assert_eq!(handle.put_manifest("m", b"short"), Ok(0));
    assert_eq!((handle.get_manifest("m"), bodies()), (Ok(Ok(b"short".to_vec())), Vec::new()));
    // What a save has left that failed is removed a day later.
    server.put("bucket/p/l/m/000102030405060708090a0b0c0d0e0f", b"left");
    let told = kv_store(&["gc", &uri(&server), "--older-than", "1h", "--json"]);
    assert!(told.status.success() && bodies().is_empty(), "{}{}", told.stdout, told.stderr);
}

#[test]
fn whether_conditions_hold_is_found_out_once_and_said() {
    let (server, careless) = (ObjectServer::start(), ObjectServer::careless());
    let doctor = |server: &ObjectServer| kv_store(&["doctor", "--probe", &uri(server)]).stdout;
    let races = |server: &ObjectServer| {
        server.asked().iter().filter(|(line, _)| line.starts_with("PUT /bucket/p/x/race-")).count()
    };
    assert!(!doctor(&server).contains("not fenced"));
    assert!(doctor(&careless).contains("late changes of manifests are not fenced"));
    assert!(races(&server) > 0 && races(&careless) > 0);
    // Another process reads it off.
    assert!(!doctor(&server).contains("not fenced"));
    assert!(doctor(&careless).contains("not fenced"));
    assert_eq!((races(&server), races(&careless)), (0, 0));
    let noted = |server: &ObjectServer| -> usize {
        let raw = kv_store(&["ls", &uri(server), "--json"]);
        raw.stdout.lines().count()
    };
    // Nothing is left of the races, and what is noted is no manifest.
    assert_eq!((noted(&server), server.keys()), (0, Vec::new()));
    // A store that may not be written to is read.
    let read_only = ObjectServer::start();
    read_only.put("bucket/p/m/m", &content(1));
    read_only.spoil("PUT", usize::MAX >> 1, Fault::Refused(403, "AccessDenied"));
    let made = calls(&uri(&read_only), "", &[], &["read", "m"]);
    assert!(made.stdout.starts_with("open ok\nread 0 "), "{}{}", made.stdout, made.stderr);
}
