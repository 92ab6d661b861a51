//! Answers that are not so: none becomes a value, a length or a success. The keys of these chunks are not the hashes of their content, so that
//! nobody but the backend finds out.

use kv_store_tests::Handle;
use kv_store_tests::objects::{Answer, Fault, ObjectServer};

use super::{content, kv_store, open, uri};

/// A chunk whose key says nothing of its bytes, and what the key of its object begins with.
fn opaque(number: u8) -> (Vec<u8>, Vec<u8>, String) {
    let key = vec![number; 16];
    let hex = hex::encode(&key);
    (key, content(number), format!("/bucket/p/c/{hex}"))
}

fn store(store: &Handle<'_>, key: &[u8], bytes: &[u8]) {
    assert_eq!(store.put_chunk(key, bytes), Ok(0));
    assert_eq!(store.put_manifest("saved", b"x"), Ok(0));
}

const INVALID_RANGE: &[u8] = b"<Error><Code>InvalidRange</Code></Error>";

/// What a server may answer to a GET of an object of some 2,000 bytes.
/// What a server makes of an answer, by name.
type Lie = (&'static str, fn(&mut Answer));

const LIES: &[Lie] = &[
    ("nothing in that range of 40,000 bytes", |answer| {
        (answer.status, answer.body) = (416, INVALID_RANGE.into());
        answer.set("content-range", "bytes */40000");
    }),
    ("nothing in that range of none", |answer| {
        (answer.status, answer.body) = (416, INVALID_RANGE.into());
        answer.set("content-range", "bytes */0");
    }),
    ("the part behind the one that was asked for", |answer| {
        let total = answer.body.len();
        (answer.status, answer.body) = (206, answer.body.split_off(total / 2));
        answer.set("content-range", &format!("bytes {}-{}/{total}", total / 2, total - 1));
    }),
    ("a part as if it were all", |answer| {
        answer.status = 206;
        answer.body.truncate(answer.body.len() / 2);
        answer.set("content-range", &format!("bytes 0-{0}/{1}", answer.body.len() - 1, answer.body.len()));
    }),
    ("a part that does not say of how much", |answer| {
        answer.status = 206;
        answer.body.truncate(answer.body.len() / 2);
        answer.set("content-range", &format!("bytes 0-{}/*", answer.body.len() - 1));
    }),
    ("a part with the status of all", |answer| {
        answer.body.truncate(answer.body.len() / 2);
        answer.set("content-range", &format!("bytes 0-{0}/{1}", answer.body.len() - 1, answer.body.len()));
        answer.remove("x-amz-meta-kv-length");
        answer.remove("x-amz-checksum-crc32c");
    }),
    ("half of it", |answer| answer.body.truncate(answer.body.len() / 2)),
    ("half of it, and no checksum", |answer| {
        answer.body.truncate(answer.body.len() / 2);
        answer.remove("x-amz-checksum-crc32c");
    }),
    ("nothing", |answer| answer.body.clear()),
    ("more than it is", |answer| answer.body.extend_from_slice(b"more")),
    ("compressed bytes", |answer| answer.set("content-encoding", "gzip")),
    ("bytes that are encoded twice", |answer| answer.set("content-encoding", "aws-chunked,gzip")),
    ("other bytes of the same length", |answer| answer.body.iter_mut().for_each(|byte| *byte ^= 1)),
    ("one other bit", |answer| answer.body[77] ^= 16),
    ("the page of a proxy", |answer| {
        answer.body = b"<html>please log in</html>".into();
        answer.headers = vec![("content-type", "text/html".to_owned())];
    }),
    ("no ETag", |answer| answer.remove("etag")),
    ("success without content", |answer| {
        answer.status = 204;
        answer.body.clear();
    }),
];

#[test]
fn no_made_up_answer_becomes_a_chunk_or_destroys_one() {
    let server = ObjectServer::start();
    let handle = open(&server);
    let (key, bytes, path) = opaque(21);
    store(&handle, &key, &bytes);
    let object = server.keys().into_iter().find(|key| key.contains("/c/")).unwrap();
    let stored = server.get(&object);
    for (what, lie) in LIES {
        server.spoil(&format!("GET {path}"), 1, Fault::Lies(*lie));
        let got = handle.get_chunk(&key).unwrap();
        assert!(got.as_ref().is_err_and(|code| *code < 0), "{what}: {got:?}");
        assert_eq!(server.to_spoil(), 0, "{what}");
        // It is asked about again later: whoever lied once need not lie always.
        assert_eq!(server.get(&object), stored, "{what}");
        assert_eq!(handle.get_chunk(&key), Ok(Ok(bytes.clone())), "{what}");
    }
}

#[test]
fn no_made_up_answer_becomes_a_manifest() {
    let server = ObjectServer::start();
    let handle = open(&server);
    let manifest = content(22);
    assert_eq!(handle.put_manifest("m", &manifest), Ok(0));
    for (what, lie) in LIES {
        server.spoil("GET /bucket/p/r/m", 1, Fault::Lies(*lie));
        let got = handle.get_manifest("m").unwrap();
        assert!(got.is_err(), "{what}: {got:?}");
        assert_eq!(server.to_spoil(), 0, "{what}");
        assert_eq!(handle.get_manifest("m"), Ok(Ok(manifest.clone())), "{what}");
    }
    // Of a server that has no checksums and no other headers than an ETag.
    server.spoil(
        "GET /bucket/p/r/m",
        1,
        Fault::Lies(|answer| {
            answer.headers.retain(|(name, _)| *name == "etag");
            let last = answer.body.len() - 80;
            answer.body[last] ^= 1;
        }),
    );
    assert!(handle.get_manifest("m").unwrap().is_err());
    // What is damaged where it lies stays so, until it is saved again.
    let record = server.keys().into_iter().find(|key| key.contains("/r/m")).unwrap();
    for damage in [10, 100] {
        let mut damaged = server.get(&record).unwrap();
        damaged[damage] ^= 1;
        server.put(&record, &damaged);
        assert!(handle.get_manifest("m").unwrap().is_err());
        assert_eq!(server.get(&record), Some(damaged));
        assert_eq!(handle.put_manifest("m", &manifest), Ok(0));
        assert_eq!(handle.get_manifest("m"), Ok(Ok(manifest.clone())));
    }
}

#[test]
fn half_a_chunk_is_not_acknowledged() {
    let server = ObjectServer::start();
    let mut number = 30;
    let mut saved = |spoil: &dyn Fn(&str)| {
        number += 1;
        let handle = open(&server);
        let (key, bytes, path) = opaque(number);
        assert_eq!(handle.put_chunk(&key, &bytes), Ok(0));
        spoil(&path);
        let saved = handle.put_manifest(&format!("m{number}"), b"x").unwrap();
        assert_eq!(server.to_spoil(), 0, "{number}: {:?}", server.asked());
        assert_eq!(handle.get_manifest(&format!("m{number}")).unwrap().is_ok(), saved == 0);
        saved
    };
    assert_eq!(saved(&|_| {}), 0);
    // Its length at the commit is another one.
    assert!(saved(&|path| server.spoil(&format!("PUT {path}"), 1, Fault::Halved)) < 0);
    // A server that keeps nothing beside an object: this process knows what it has put.
    let forgets = |path: &str| {
        server.spoil(&format!("PUT {path}"), 1, Fault::Halved);
        // At the look before the put there is nothing.
        server.spoil(&format!("HEAD {path}"), 2, Fault::Lies(|answer| answer.remove("x-amz-meta-kv-length")));
    };
    assert!(saved(&forgets) < 0);
    // Answers that are no S3's.
    assert!(saved(&|path| server.spoil(&format!("PUT {path}"), 1, Fault::Lies(|answer| answer.remove("etag")))) < 0);
    let other = |path: &str| {
        let other = |answer: &mut Answer| answer.set("x-amz-checksum-crc32c", "AAAAAA==");
        server.spoil(&format!("PUT {path}"), 1, Fault::Lies(other));
    };
    assert!(saved(&other) < 0);
    assert!(saved(&|path| server.spoil(&format!("PUT {path}"), 1, Fault::Answers(200, "<html>log in</html>"))) < 0);
}

#[test]
fn the_parts_of_a_long_chunk_are_those_that_were_asked_for_and_of_one_object() {
    // Two contents of 70 MiB, of which each part differs.
    let long = |seed: u32| -> Vec<u8> { (0..70u32 << 20).map(|n| (n >> 8) as u8 ^ n as u8 ^ seed as u8).collect() };
    // A server that ignores If-Match of a GET.
    let server = ObjectServer::careless();
    let handle = open(&server);
    let (key, ..) = opaque(41);
    let first = long(1);
    store(&handle, &key, &first);
    assert!(handle.get_chunk(&key).unwrap() == Ok(first.clone()));
    let object = server.keys().into_iter().find(|key| key.contains("/c/")).unwrap();
    let last = "range: bytes=67108864-";
    let lies: [Lie; 4] = [
        ("another range", |answer| answer.set("content-range", "bytes 5-6291460/73400320")),
        ("of another length", |answer| answer.set("content-range", "bytes 67108864-73400319/73400321")),
        ("all of it", |answer| {
            answer.status = 200;
            answer.remove("content-range");
        }),
        ("no ETag", |answer| answer.remove("etag")),
    ];
    for (what, lie) in lies {
        server.spoil(last, 1, Fault::Lies(lie));
        assert!(handle.get_chunk(&key).unwrap().is_err(), "{what}");
        assert_eq!(server.to_spoil(), 0, "{what}");
        assert!(server.get(&object).is_some(), "{what}");
    }
    // It is replaced before its last part is sent.
    let second: &'static [u8] = Box::leak(server.get(&object).unwrap().iter().map(|byte| byte ^ 0x55).collect());
    server.spoil(last, 1, Fault::Raced(second));
    assert!(handle.get_chunk(&key).unwrap().is_err());
    assert_eq!(server.to_spoil(), 0);
}

/// Chunks of a former version, under the hashes of their content.
fn chunks(server: &ObjectServer, count: u8) {
    (1..=count).for_each(|number| server.put(&super::chunk(number).2, &content(number)));
}

#[test]
fn what_is_not_said_to_be_removed_is_not_counted_as_removed() {
    let gc = |server: &ObjectServer| kv_store(&["gc", &uri(server), "--older-than", "1h", "--json"]);
    for (answer, said) in [
        // Nothing is named, and nothing is removed.
        ("<DeleteResult></DeleteResult>", "did not remove"),
        ("<DeleteResult><Error><Key>p/c/x</Key><Code>AccessDenied</Code></Error></DeleteResult>", "did not remove"),
        // It ends within the answer, or is another one.
        ("<DeleteResult><Deleted><Key>p/c/00</Key></Deleted>", "no XML"),
        ("<Error><Code>InternalError</Code></Error>", "something else"),
        ("", "no XML"),
    ] {
        let server = ObjectServer::start();
        chunks(&server, 10);
        server.spoil("POST /bucket?delete=", 9, Fault::Answers(200, answer));
        let told = gc(&server);
        assert!(!told.status.success(), "{answer}: {}", told.stdout);
        assert!(format!("{}{}", told.stdout, told.stderr).contains(said), "{answer}: {}{}", told.stdout, told.stderr);
        assert_eq!(server.keys().len(), 10);
    }
    // Of one it says that it is still there.
    let server = ObjectServer::start();
    drop(open(&server));
    chunks(&server, 3);
    let refused = server.keys()[0].clone();
    server.spoil(
        "POST /bucket?delete=",
        1,
        Fault::Lies(|answer| {
            let text = String::from_utf8(answer.body.clone()).unwrap();
            answer.body = text
                .replacen("<Deleted>", "<Error><Code>AccessDenied</Code>", 1)
                .replacen("</Deleted>", "</Error>", 1)
                .into();
        }),
    );
    let told = gc(&server);
    assert!(!told.status.success() && told.stderr.contains("AccessDenied"), "{}{}", told.stdout, told.stderr);
    assert!(!server.keys().contains(&refused));
    // And where an answer names fewer than were removed, it is looked.
    let server = ObjectServer::start();
    drop(open(&server));
    chunks(&server, 10);
    server.spoil("POST /bucket?delete=", 1, Fault::Lies(|answer| answer.body = b"<DeleteResult/>".into()));
    let told = gc(&server);
    assert!(told.status.success() && told.stdout.contains("\"chunks\":10"), "{}{}", told.stdout, told.stderr);
}

#[test]
fn a_listing_that_does_not_end_or_is_cut_is_no_listing() {
    let server = ObjectServer::start();
    chunks(&server, 10);
    server.spoil("list-type=2", 9, Fault::Lies(|answer| answer.body.truncate(answer.body.len() / 2)));
    let told = kv_store(&["ls", &uri(&server), "--chunks"]);
    assert!(!told.status.success() || told.stdout.is_empty(), "{}", told.stdout);
}
