//! The simulated redis-server beside a real one: all that the shipped backend sends goes to both, and each byte that is answered is the same.
//! So does what it might send: its commands and scripts with any arguments, over keys that hold anything.
//!
//! The real server has the time. An answer that tells it is the time of the simulated one; between them the test's own clock goes on. INFO is not
//! compared, and what only maintenance sends (SCAN, OBJECT, MEMORY, TYPE) is not simulated.

mod real;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Instant;

use kv_store_sdk::native::system::Level;
use kv_store_sdk::native::{Host, Opened, Stream, over};
use kv_store_sdk::{Error, Hashes, Manifest, PutOutcome, Result};
use redis_server::db::{Db, Policy, Room, Session, Value};
use redis_server::{resp, script};

use self::real::{Connection, Real};
use chance::Dice;

const AUTHORITY: &str = "store:1";
const SECOND: u64 = 1_000_000_000;
const PASSWORD: &str = "of the test";

/// The two servers.
struct Both {
    real: Real,
    db: RefCell<Db>,
    dice: RefCell<Dice>,
    /// Microseconds by the real server's clock, and when it told them.
    told: Cell<(u64, Instant)>,
    /// The texts of scripts that were sent, by their SHA-1.
    texts: RefCell<BTreeMap<&'static str, Vec<u8>>>,
    compared: RefCell<BTreeMap<String, u64>>,
}

/// A connection to each.
struct Pair {
    both: Rc<Both>,
    real: Connection,
    session: RefCell<Session>,
    came: RefCell<Vec<u8>>,
    replies: RefCell<Vec<u8>>,
}

impl Both {
    fn start(seed: u64) -> Option<Rc<Self>> {
        let real = Real::start()?;
        let told = Cell::new((0, Instant::now()));
        let dice = RefCell::new(Dice::of(seed, &[1]));
        let (texts, compared) = Default::default();
        let both = Rc::new(Both { real, db: RefCell::new(Db::new(None)), dice, told, texts, compared });
        both.pair().ask(&[b"TIME"]);
        Some(both)
    }

    fn pair(self: &Rc<Self>) -> Pair {
        let (session, came, replies) = Default::default();
        Pair { both: self.clone(), real: self.real.connect(), session, came, replies }
    }

    fn dice<T>(&self, throw: impl FnOnce(&mut Dice) -> T) -> T {
        throw(&mut self.dice.borrow_mut())
    }

    /// Microseconds by the server's clock, as far as is known.
    fn now(&self) -> u64 {
        let (told, when) = self.told.get();
        told + when.elapsed().as_micros() as u64
    }

    /// Both have the same keys with the same values, and the same of them expire, within seconds.
    fn compare_all(&self) {
        let real = self.real.connect();
        let mut db = self.db.borrow_mut();
        db.pass(self.now());
        let mut keys = real.strings(&[b"KEYS", b"*"]);
        keys.sort();
        assert_eq!(keys, db.keys.keys().map(|key| key.to_vec()).collect::<Vec<_>>());
        for (key, item) in &*db.keys {
            let lies = match &item.value {
                Value::String(bytes) => (real.ask(&[b"GET", key]), resp::bulk(bytes)),
                Value::List(items) => {
                    let items: Vec<Vec<u8>> = items.iter().map(|item| resp::bulk(item)).collect();
                    (real.ask(&[b"LRANGE", key, b"0", b"-1"]), resp::array(&items))
                }
            };
            assert_eq!(lies.0, lies.1, "{}", key.escape_ascii());
            let left = real.integer(&[b"PTTL", key]);
            let expected = item.expires.map_or(-1, |at| at as i64 - (self.now() / 1000) as i64);
            let alike = if left < 0 || expected < 0 { left == expected } else { left.abs_diff(expected) < 20_000 };
            assert!(alike, "{} lives for {left} ms, and for {expected}", key.escape_ascii());
        }
    }

    /// It forgets its scripts.
    fn flush_scripts(&self) {
        self.real.connect().ask(&[b"SCRIPT", b"FLUSH"]);
        let mut db = self.db.borrow_mut();
        let keys = std::mem::take(&mut *db.keys);
        *db = db.succeed(keys);
    }

    /// All memory is used, or there is room again.
    fn fill(&self, full: bool) {
        self.real.connect().ask(&[b"CONFIG", b"SET", b"maxmemory", if full { b"1" } else { b"0" }]);
        self.db.borrow_mut().room = full.then_some(Room { bytes: 0, policy: Policy::Refuse });
    }

    fn forget_all(self: &Rc<Self>) {
        self.real.connect().ask(&[b"FLUSHALL"]);
        self.db.borrow_mut().keys.clear();
        // One that stays, so that no room is none.
        self.pair().ask(&[&b"SET"[..], b"pad", b"x"]);
    }
}

impl Pair {
    /// The same to both.
    fn ask(&self, command: &[&[u8]]) -> Vec<u8> {
        let Both { db, told, texts, compared, .. } = &*self.both;
        let reply = self.real.ask(command);
        let time = time_in(command, &reply);
        if let Some(time) = time {
            told.set((time, Instant::now()));
        }
        let now = time.unwrap_or_else(|| self.both.now());
        let command: Vec<Vec<u8>> = command.iter().map(|argument| argument.to_vec()).collect();
        if command[0] == b"EVAL" {
            let script = script::of_text(&command[1]);
            texts.borrow_mut().insert(script.sha1, command[1].clone());
        }
        let answer = db.borrow_mut().answer(&mut self.session.borrow_mut(), &command, now);
        if command[0] != b"INFO" {
            let text = |bytes: &[u8]| bytes.escape_ascii().to_string();
            let asked = || command.iter().map(|argument| text(argument)).collect::<Vec<_>>().join(" ");
            assert_eq!(text(&answer), text(&reply), "the simulated server answers the former to {}", asked());
            let name = String::from_utf8_lossy(&command[0]).into_owned();
            *compared.borrow_mut().entry(name).or_default() += 1;
        }
        reply
    }
}

/// The server's time in microseconds, if the answer to a command tells it.
fn time_in(command: &[&[u8]], reply: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(reply).ok()?;
    let lines: Vec<&str> = text.split("\r\n").collect();
    let number = |line: usize| lines.get(line)?.trim_start_matches(':').parse::<u64>().ok();
    match (command.first()?, lines.first()?) {
        (&b"TIME" | &b"EVAL", &"*2") if lines.get(1)?.starts_with('$') => Some(number(2)? * 1_000_000 + number(4)?),
        (&b"EVAL" | &b"EVALSHA", &"*2") => number(2),
        _ => None,
    }
}

impl Stream for Pair {
    fn send(&self, bytes: &[u8]) -> Result<()> {
        self.came.borrow_mut().extend_from_slice(bytes);
        while let Some(command) = resp::take(&mut self.came.borrow_mut()).expect("the backend sends RESP") {
            let command: Vec<&[u8]> = command.iter().map(Vec::as_slice).collect();
            let reply = self.ask(&command);
            self.replies.borrow_mut().extend(reply);
        }
        Ok(())
    }

    fn receive(&self, limit: usize) -> Result<Vec<u8>> {
        let mut replies = self.replies.borrow_mut();
        let count = replies.len().min(limit);
        assert!(count > 0, "the backend waits for more than was answered");
        Ok(replies.drain(..count).collect())
    }

    fn set_patience(&self, _: u64) {}
}

/// Idle connections, each with the session that it is kept under.
type Parked = Vec<(Option<String>, Box<dyn Stream>)>;

/// What a call of the backend runs over.
struct Call {
    both: Rc<Both>,
    parked: Rc<RefCell<Parked>>,
    items: Vec<Rc<[u8]>>,
    password: Option<&'static str>,
    begun: Instant,
}

impl Host for Call {
    fn item(&self, item: u32) -> Option<Rc<[u8]>> {
        self.items.get(item as usize).cloned()
    }

    fn connect(&self, authority: &str, session: Option<&str>) -> Result<(Box<dyn Stream>, bool)> {
        assert_eq!(authority, AUTHORITY);
        let mut parked = self.parked.borrow_mut();
        let known = parked.iter().position(|(known, _)| known.as_deref() == session);
        Ok(match known {
            Some(at) => (parked.swap_remove(at).1, true),
            None => (Box::new(self.both.pair()), false),
        })
    }

    fn park(&self, _: &str, session: Option<&str>, stream: Box<dyn Stream>) {
        self.parked.borrow_mut().push((session.map(str::to_owned), stream));
    }

    fn secret(&self, name: &str) -> Result<Option<String>> {
        Ok(self.password.filter(|_| name == "password").map(str::to_owned))
    }

    fn fact(&self, _: &str) -> Option<String> {
        None
    }

    fn wall(&self) -> u64 {
        1000 * self.both.now()
    }

    fn monotonic(&self) -> u64 {
        1000 * self.both.now()
    }

    fn remaining(&self) -> u64 {
        (10 * SECOND).saturating_sub(self.begun.elapsed().as_nanos() as u64)
    }

    fn sleep(&self, _: u64) -> Result<()> {
        Err(Error::other("one server never moves anything"))
    }

    fn random(&self) -> u64 {
        self.both.dice(|dice| dice.next())
    }

    fn log(&self, _: Level, message: &str) {
        panic!("the backend complains: {message}");
    }

    fn begin(&self, _: &[u32], _: &[u8]) -> Vec<Vec<u8>> {
        Vec::new()
    }

    fn not_done(&self, _: &[u32]) {}
}

/// The shipped backend over both servers.
struct Backend {
    both: Rc<Both>,
    parked: Rc<RefCell<Parked>>,
    password: Option<&'static str>,
    opened: Option<Box<dyn Opened>>,
}

impl Backend {
    fn new(both: &Rc<Both>, password: Option<&'static str>) -> Self {
        Backend { both: both.clone(), parked: Rc::default(), password, opened: None }
    }

    fn open(&mut self, ttl: Option<&str>) -> Result<()> {
        let options = ttl.map(|ttl| ("ttl_s".to_owned(), ttl.to_owned())).into_iter().collect();
        let host = self.call(Vec::new());
        self.opened = Some(over(host, || redis::open(&format!("redis://{AUTHORITY}/"), options))?.0);
        Ok(())
    }

    fn call(&self, items: Vec<Rc<[u8]>>) -> Rc<Call> {
        let (both, parked, password) = (self.both.clone(), self.parked.clone(), self.password);
        Rc::new(Call { both, parked, items, password, begun: Instant::now() })
    }

    fn run<T>(&mut self, items: &[Vec<u8>], what: impl FnOnce(&mut dyn Opened) -> T) -> T {
        let host = self.call(items.iter().map(|item| Rc::from(item.as_slice())).collect());
        let opened = self.opened.as_mut().expect("it is open");
        over(host, || what(&mut **opened))
    }

    /// Something of all that it does.
    fn act(&mut self) {
        let both = self.both.clone();
        let count = both.dice(|dice| [1, 2, 5, 20][dice.index(4)]);
        let width = both.dice(|dice| [8, 12][dice.index(2)]);
        let bytes: Vec<u8> =
            (0..count).flat_map(|_| [both.dice(|dice| dice.below(5) as u8); 16][..width].to_vec()).collect();
        let hashes = Hashes::new(width, &bytes);
        let values: Vec<Vec<u8>> = (0..count).map(|_| both.dice(value)).collect();
        let lens: Vec<u64> = values.iter().map(|value| value.len() as u64).collect();
        let name = format!("manifest {}", both.dice(|dice| dice.below(3)));
        match both.dice(|dice| dice.below(9)) {
            0 => drop(self.run(&[], |of| of.exists(hashes))),
            1 | 2 => {
                let replaces = both.dice(|dice| dice.met(400));
                let put = self.run(&values, |of| of.put_chunks(hashes, &lens, replaces)).unwrap();
                let is_full = both.db.borrow().room.is_some();
                let failed = put.iter().any(|outcome| matches!(outcome, PutOutcome::Failed(_)));
                assert!(is_full || !failed, "{put:?}");
            }
            3 => drop(self.run(&[], |of| of.get_chunks(hashes))),
            4 => drop(self.run(&[], |of| of.delete_chunks(hashes)).unwrap()),
            5 | 6 => {
                let manifest = both.dice(|dice| dice.met(800));
                let manifest = manifest.then(|| Manifest { name: &name, len: lens[0] });
                drop(self.run(&values, |of| of.commit(&[hashes], manifest)));
            }
            7 => drop(self.run(&[], |of| of.get_manifest(&name))),
            _ => self.run(&[], |of| of.delete_manifest(&name)).unwrap(),
        }
        if both.dice(|dice| dice.met(50)) {
            self.parked.borrow_mut().clear();
        }
    }
}

/// Many end in the room for a generation, or in one, and some are longer than what goes with a script.
fn value(dice: &mut Dice) -> Vec<u8> {
    let len = [0, 1, 15, 16, 17, 40, 300, 4096, 4097, 6000][dice.index(10)];
    let mut value = vec![b'v'; len];
    let room = len.saturating_sub(16);
    match dice.below(10) {
        0..6 => value[room..].fill(0),
        // A generation of the year 2096: what comes after it has a greater one.
        6 if len >= 16 => value[room..room + 8].copy_from_slice(&4_000_000_000_000_000_u64.to_le_bytes()),
        _ => {}
    }
    value
}

fn name_of(sha1: &str) -> &'static str {
    script::of_name(sha1.as_bytes()).expect("it was sent").name
}

/// A command that the backend has, with any arguments.
fn any_command(dice: &mut Dice, texts: &BTreeMap<&'static str, Vec<u8>>, now: u64) -> Vec<Vec<u8>> {
    let key = |dice: &mut Dice| format!("key {}", dice.below(4)).into_bytes();
    let lying = |dice: &mut Dice| format!("lying {}", dice.below(2)).into_bytes();
    let words = |words: &[&str]| words.iter().map(|word| word.as_bytes().to_vec()).collect::<Vec<_>>();
    let keys = |dice: &mut Dice| (0..dice.within(1, 4)).map(|_| key(dice)).collect::<Vec<_>>();
    match dice.below(14) {
        0 => words(&["TIME"]),
        1 => [words(&["EXISTS"]), keys(dice)].concat(),
        2 => [words(&["MGET"]), keys(dice)].concat(),
        3 => [words(&["GET"]), vec![key(dice)]].concat(),
        4 => [words(&["DEL"]), keys(dice)].concat(),
        5 => [words(&["EXPIRE"]), vec![key(dice)], words(&[["100", "50000"][dice.index(2)]])].concat(),
        6 => [words(&["LINDEX"]), vec![key(dice)], words(&["0"])].concat(),
        7 | 8 => {
            let options = [&[][..], &["NX"], &["EX", "100"], &["NX", "EX", "5000"], &["PX", "700000"]];
            let under = if dice.met(500) { lying(dice) } else { key(dice) };
            [words(&["SET"]), vec![under, value(dice)], words(options[dice.index(5)])].concat()
        }
        _ => {
            let names: Vec<&str> = texts.keys().copied().filter(|sha1| name_of(sha1) != "probe").collect();
            let name = names[dice.index(names.len())];
            let end = match dice.below(4) {
                0 => now - dice.below(2_000_000),
                1 => u64::MAX,
                _ => now + 10_000_000,
            };
            let end = end.to_string().into_bytes();
            let seconds = words(&[["", "", "100", "50000"][dice.index(4)]]);
            let (only_new, is_manifest) = (words(&[["", "NX"][dice.index(2)]]), dice.met(600));
            let nonce = if is_manifest { dice.next().to_le_bytes().to_vec() } else { Vec::new() };
            let rest = match name_of(name) {
                "set" => [vec![b"1".to_vec(), key(dice), end, value(dice)], seconds, only_new, vec![nonce]],
                "rename" => [vec![b"2".to_vec(), key(dice), lying(dice), end], seconds, only_new, vec![nonce]],
                _ => {
                    let flag = words(&[if is_manifest { "M" } else { "" }]);
                    [vec![b"1".to_vec(), key(dice), end], flag, Vec::new(), Vec::new()]
                }
            };
            let call = match dice.below(8) {
                0 => vec![b"EVALSHA".to_vec(), b"ffffffffffffffffffffffffffffffffffffffff".to_vec()],
                1 => vec![b"EVAL".to_vec(), texts[name].clone()],
                _ => vec![b"EVALSHA".to_vec(), name.as_bytes().to_vec()],
            };
            [call, rest.concat()].concat()
        }
    }
}

/// Something befalls the server.
fn meddle(both: &Both) {
    match both.dice(|dice| dice.below(60)) {
        0 => both.flush_scripts(),
        1 => both.fill(true),
        2..6 => both.fill(false),
        _ => {}
    }
}

#[test]
fn all_that_the_backend_sends_is_answered_as_by_a_real_server() {
    let Some(both) = Both::start(1) else { return };
    for ttl in [None, Some("100")] {
        both.forget_all();
        let mut backend = Backend::new(&both, None);
        backend.open(ttl).unwrap();
        for round in 1..=600 {
            backend.act();
            meddle(&both);
            if round % 100 == 0 {
                both.compare_all();
            }
        }
        both.fill(false);
    }
    for name in ["TIME", "EXISTS", "GET", "MGET", "SET", "EXPIRE", "LINDEX", "EVAL", "EVALSHA"] {
        let times = both.compared.borrow().get(name).copied().unwrap_or(0);
        assert!(times >= 10, "{name} was compared {times} times");
    }
    assert_eq!(both.texts.borrow().len(), 4, "the probe and three scripts");
}

#[test]
fn what_the_backend_might_send_is_answered_as_by_a_real_server() {
    let Some(both) = Both::start(2) else { return };
    both.forget_all();
    let mut backend = Backend::new(&both, None);
    backend.open(None).unwrap();
    (0..200).for_each(|_| backend.act());
    let texts = both.texts.borrow().clone();
    assert_eq!(texts.len(), 4, "the probe and three scripts");
    let pair = both.pair();
    for round in 1..=6000 {
        let now = both.now();
        let command = both.dice(|dice| any_command(dice, &texts, now));
        pair.ask(&command.iter().map(Vec::as_slice).collect::<Vec<_>>());
        meddle(&both);
        if round % 500 == 0 {
            both.compare_all();
        }
    }
}

#[test]
fn what_expires_is_gone_as_in_a_real_server() {
    let Some(both) = Both::start(3) else { return };
    let pair = both.pair();
    for key in [&b"a"[..], b"b", b"c"] {
        pair.ask(&[b"SET", key, b"1", b"PX", b"20"]);
    }
    pair.ask(&[b"SET", b"a", b"2"]);
    pair.ask(&[b"EXPIRE", b"b", b"100"]);
    std::thread::sleep(std::time::Duration::from_millis(60));
    pair.ask(&[b"MGET", b"a", b"b", b"c"]);
    pair.ask(&[b"EXISTS", b"a", b"b", b"c"]);
    both.compare_all();
}

#[test]
fn logins_are_answered_as_by_a_real_server() {
    let Some(both) = Both::start(4) else { return };
    both.pair().ask(&[b"SELECT", b"0"]);
    let opens = |password| Backend::new(&both, password).open(None);
    opens(None).unwrap();
    assert!(opens(Some(PASSWORD)).is_err(), "the server has no password");
    both.real.connect().ask(&[b"CONFIG", b"SET", b"requirepass", PASSWORD.as_bytes()]);
    *both.db.borrow_mut() = Db::new(Some(PASSWORD));
    for password in [None, Some("another")] {
        assert!(opens(password).is_err());
    }
    let mut backend = Backend::new(&both, Some(PASSWORD));
    backend.open(None).unwrap();
    (0..100).for_each(|_| backend.act());
    let compared = both.compared.borrow();
    assert!(compared["AUTH"] >= 3, "{compared:?}");
}
