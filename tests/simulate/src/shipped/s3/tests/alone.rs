//! The shipped backend over the simulated server alone, with a host that a test looks into.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use kv_store_sdk::native::http::{Message, Reply};
use kv_store_sdk::native::system::Level;
use kv_store_sdk::native::{Host, Opened, Stream, over};
use kv_store_sdk::{Error, ErrorKind, Hashes, Manifest, PutOutcome, Result};
use s3_server::bucket::Bucket;
use s3_server::message;
use s3_server::sign::Keys;

use super::super::{ACCESS_KEY_ID, BUCKET, SECRET_ACCESS_KEY};

const MILLISECOND: u64 = 1_000_000;
const SECOND: u64 = 1_000_000_000;

struct Alone {
    bucket: RefCell<Bucket>,
    keys: RefCell<Keys>,
    items: RefCell<Vec<Rc<[u8]>>>,
    wall: Cell<u64>,
    remaining: Cell<u64>,
    /// The tokens of former changes that ended unknown.
    former: RefCell<Vec<Vec<u8>>>,
    /// Methods that fail.
    fails: Cell<Option<&'static str>>,
    random: Cell<u64>,
    /// What was done, in order.
    done: RefCell<Vec<String>>,
}

impl Alone {
    fn over(bucket: Bucket) -> Rc<Self> {
        Rc::new(Alone {
            bucket: bucket.into(),
            keys: Keys::new(SECRET_ACCESS_KEY).into(),
            items: RefCell::default(),
            wall: Cell::new(2_000_000_000 * SECOND),
            remaining: Cell::new(SECOND),
            former: RefCell::default(),
            fails: Cell::default(),
            random: Cell::new(1),
            done: RefCell::default(),
        })
    }

    fn open(self: &Rc<Self>) -> Box<dyn Opened> {
        let uri = format!("s3+http://store:1/{BUCKET}/kv");
        over(self.clone(), || ::s3::open(&uri, Vec::new())).expect("it opens").0
    }

    fn run<T>(self: &Rc<Self>, items: &[&[u8]], call: impl FnOnce() -> T) -> T {
        *self.items.borrow_mut() = items.iter().map(|item| Rc::from(*item)).collect();
        self.done.borrow_mut().clear();
        over(self.clone(), call)
    }

    fn note(&self, what: String) {
        self.done.borrow_mut().push(what);
    }
}

impl Host for Alone {
    fn item(&self, item: u32) -> Option<Rc<[u8]>> {
        self.items.borrow().get(item as usize).cloned()
    }

    fn connect(&self, _: &str, _: Option<&str>) -> Result<(Box<dyn Stream>, bool)> {
        Err(Error::unsupported("it makes requests over HTTP"))
    }

    fn park(&self, _: &str, _: Option<&str>, _: Box<dyn Stream>) {}

    fn exchange(&self, requests: Vec<Message>) -> Vec<Result<Reply>> {
        let ask = |message: &Message| {
            self.note(message.method.clone());
            if self.fails.get() == Some(&message.method) {
                return Err(Error::unavailable("the server did not answer in time (patience_ms)"));
            }
            let request = message::take(&mut super::written(message)).expect("it is HTTP").expect("it is whole");
            let now = self.wall.get() / 1000;
            let refused = self.keys.borrow_mut().refuses(&request, now / 1_000_000);
            let mut answer = refused.unwrap_or_else(|| self.bucket.borrow_mut().answer(&request, now));
            let len = answer.body.len();
            if message.method == "HEAD" {
                answer.body.clear();
            }
            let headers = answer.headers.into_iter().map(|(name, value)| (name.to_owned(), value));
            let headers = headers.chain([("content-length".to_owned(), len.to_string())]).collect();
            Ok(Reply { status: answer.status, headers, body: answer.body })
        };
        requests.iter().map(ask).collect()
    }

    fn secret(&self, name: &str) -> Result<Option<String>> {
        Ok(match name {
            "access-key-id" => Some(ACCESS_KEY_ID.to_owned()),
            "secret-access-key" => Some(SECRET_ACCESS_KEY.to_owned()),
            _ => None,
        })
    }

    fn fact(&self, _: &str) -> Option<String> {
        None
    }

    fn wall(&self) -> u64 {
        self.wall.get()
    }

    fn monotonic(&self) -> u64 {
        self.wall.get()
    }

    fn remaining(&self) -> u64 {
        self.remaining.get()
    }

    fn sleep(&self, nanoseconds: u64) -> Result<()> {
        self.note(format!("sleep {}", nanoseconds / MILLISECOND));
        self.wall.set(self.wall.get() + nanoseconds);
        Ok(())
    }

    fn random(&self) -> u64 {
        self.random.set(self.random.get().wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
        self.random.get()
    }

    fn log(&self, _: Level, message: &str) {
        panic!("the backend complains: {message}");
    }

    fn begin(&self, _: &[u32], _: &[u8]) -> Vec<Vec<u8>> {
        std::mem::take(&mut *self.former.borrow_mut())
    }

    fn not_done(&self, items: &[u32]) {
        self.note(format!("not done {items:?}"));
    }
}

/// A chunk that is no hash of its content.
fn chunk() -> Hashes<'static> {
    Hashes::new(12, &[7; 12])
}

fn put(of: &mut dyn Opened) -> Result<PutOutcome> {
    Ok(of.put_chunks(chunk(), &[3], false)?.pop().expect("one answer"))
}

/// A history showed it: the removal was given up, the chunk was told to exist, and then the removal came.
#[test]
fn a_chunk_is_not_told_to_exist_while_its_removal_may_come() {
    let host = Alone::over(Bucket::new(BUCKET));
    let mut opened = host.open();
    assert!(matches!(host.run(&[b"abc"], || put(&mut *opened)), Ok(PutOutcome::Stored)));
    assert!(matches!(host.run(&[b"abc"], || put(&mut *opened)), Ok(PutOutcome::Existed)));
    assert_eq!(*host.done.borrow(), ["HEAD"]);
    let ends_in = |long: u64| vec![(host.wall.get() + long).to_le_bytes().to_vec()];
    *host.former.borrow_mut() = ends_in(300 * MILLISECOND);
    assert!(matches!(host.run(&[b"abc"], || put(&mut *opened)), Ok(PutOutcome::Existed)));
    assert_eq!(*host.done.borrow(), ["sleep 300", "HEAD"]);
    // Where there is no time for that nothing is sent.
    *host.former.borrow_mut() = ends_in(2 * SECOND);
    let refused = host.run(&[b"abc"], || put(&mut *opened)).expect_err("there is no time");
    assert!(refused.kind == ErrorKind::Busy && *host.done.borrow() == ["not done [0]"], "{:?}", host.done);
}

#[test]
fn a_put_that_could_not_look_is_not_done() {
    let host = Alone::over(Bucket::new(BUCKET));
    let mut opened = host.open();
    host.fails.set(Some("HEAD"));
    assert!(matches!(host.run(&[b"abc"], || put(&mut *opened)), Ok(PutOutcome::Failed(_))));
    assert_eq!(*host.done.borrow(), ["HEAD", "not done [0]"]);
    host.fails.set(Some("PUT"));
    assert!(
        matches!(host.run(&[b"abc"], || opened.put_chunks(chunk(), &[3], true)), Ok(put) if matches!(put[..], [PutOutcome::Failed(_)]))
    );
    assert_eq!(*host.done.borrow(), ["PUT"]);
}

/// A history showed it: who had read the former one took the next for an older one.
#[test]
fn without_conditions_a_manifest_has_a_greater_generation_than_the_one_before() {
    let mut bucket = Bucket::new(BUCKET);
    (bucket.of_puts, bucket.of_deletes) = (false, false);
    let host = Alone::over(bucket);
    let name = "manifest\u{2}";
    let generation = || {
        let mut opened = host.open();
        host.run(&[&[0; 20]], || opened.commit(&[], Some(Manifest { name, len: 20 }))).expect("it is published");
        let read = host.run(&[], || opened.get_manifest(name)).expect("it is read").expect("it is there");
        u64::from_le_bytes(read.bytes()[4..12].try_into().expect("8 bytes"))
    };
    let first = generation();
    host.wall.set(host.wall.get() - 10 * SECOND);
    assert!(generation() > first);
}

#[test]
fn a_condition_that_does_not_hold_changes_nothing() {
    let request = |method: &str, header: Option<(&str, &str)>, body: &[u8]| message::Request {
        method: method.to_owned(),
        path: format!("/{BUCKET}/k"),
        headers: header.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect(),
        body: body.to_vec(),
        ..message::Request::default()
    };
    let (only_new, other) = (Some(("if-none-match", "*")), Some(("if-match", "\"0\"")));
    let mut bucket = Bucket::new(BUCKET);
    let status = |bucket: &mut Bucket, method: &str, header, body: &[u8]| {
        bucket.answer(&request(method, header, body), 0).status
    };
    assert_eq!(status(&mut bucket, "PUT", other, b"a"), 404);
    assert_eq!(status(&mut bucket, "PUT", only_new, b"a"), 200);
    for (method, condition) in [("PUT", only_new), ("PUT", other), ("DELETE", other)] {
        assert_eq!(status(&mut bucket, method, condition, b"b"), 412, "{method} {condition:?}");
    }
    let tag = bucket.objects["k"].tag.clone();
    assert!(**bucket.objects["k"].bytes == *b"a");
    assert_eq!(status(&mut bucket, "PUT", Some(("if-match", &tag)), b"b"), 200);
    bucket.of_deletes = false;
    assert_eq!(status(&mut bucket, "DELETE", other, b""), 204);
    assert!(bucket.objects.is_empty());
}
