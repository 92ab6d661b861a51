//! What a redis-server has, and what it does with the commands that the shipped backend sends: those and no others.
//!
//! A command is one step, a script too. Time is what the caller says it is.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use counted::Counted;

use crate::resp::{array, bulk, error, integer, nothing, ok};
use crate::script;

pub const VERSION: &str = "7.0.15";
const OUT_OF_MEMORY: &str = "OOM command not allowed when used memory > 'maxmemory'.";
const WRONG_TYPE: &str = "WRONGTYPE Operation against a key holding the wrong kind of value";
/// What is done while a server loads its data.
const WHILE_LOADING: &[&str] = &["AUTH", "INFO", "SELECT", "TIME"];
/// What a key takes beside its bytes.
const OVERHEAD: usize = 64;

#[derive(Clone, Debug)]
pub enum Value {
    String(Arc<Vec<u8>>),
    List(Vec<Vec<u8>>),
}

#[derive(Clone, Debug)]
pub struct Item {
    pub value: Value,
    /// When it is gone, in milliseconds of the server's clock.
    pub expires: Option<u64>,
    /// Microseconds, of the same.
    used: u64,
}

pub type Keys = BTreeMap<Arc<[u8]>, Item>;

/// Draws a number below another one.
pub type Draw<'a> = &'a mut dyn FnMut(usize) -> usize;

/// What becomes of a command for which there is no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    Refuse,
    EvictAny,
    EvictLeastUsed,
}

/// `maxmemory`, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    pub bytes: usize,
    pub policy: Policy,
}

#[derive(Clone, Default)]
pub struct Db {
    pub keys: Counted<Keys>,
    /// Names of the scripts that it has been sent.
    scripts: BTreeSet<&'static str>,
    password: Option<&'static str>,
    pub room: Option<Room>,
    pub loads: bool,
    /// A fault, to see that it is found: the script of this name takes nothing for late.
    pub carries_out_late: Option<&'static str>,
    /// As found before the running command.
    full: bool,
    /// Microseconds of its clock, of the running command.
    pub now: u64,
}

/// What a connection has said before.
#[derive(Default)]
pub struct Session {
    logged_in: bool,
}

impl Db {
    pub fn new(password: Option<&'static str>) -> Self {
        Db { password, ..Db::default() }
    }

    /// One that begins with these keys, as after a restart: it has no scripts.
    pub fn succeed(&self, keys: Keys) -> Self {
        let Db { password, room, carries_out_late, .. } = *self;
        Db { keys: Counted::of(keys), password, room, carries_out_late, ..Db::default() }
    }

    /// What a server does before it carries out a command: evict until there is room, unless it refuses this connection. `draw`: which
    /// key. True: something was evicted.
    pub fn make_room(&mut self, session: &Session, command: &[Vec<u8>], draw: Draw) -> bool {
        let mut evicts = false;
        if self.admits(session, &command[0]) {
            while self.is_full() && self.room.is_some_and(|room| self.evict(room.policy, draw)) {
                evicts = true;
            }
        }
        evicts
    }

    fn admits(&self, session: &Session, name: &[u8]) -> bool {
        self.password.is_none() || session.logged_in || name == b"AUTH"
    }

    fn is_full(&self) -> bool {
        self.room.is_some_and(|room| self.used() > room.bytes)
    }

    /// Carry out a command, at a time of the server's clock in microseconds.
    pub fn answer(&mut self, session: &mut Session, command: &[Vec<u8>], now: u64) -> Vec<u8> {
        self.pass(now);
        let (name, arguments) = command.split_first().expect("a command has a name");
        if !self.admits(session, name) {
            return error("NOAUTH Authentication required.");
        }
        let name = std::str::from_utf8(name).expect("a command's name is text");
        self.full = self.is_full();
        if self.full && name == "SET" {
            return error(OUT_OF_MEMORY);
        }
        if self.loads && !WHILE_LOADING.contains(&name) {
            return error("LOADING Redis is loading the dataset in memory");
        }
        match (name, arguments) {
            ("AUTH", [.., password]) => self.log_in(session, password),
            ("SELECT", [number]) if number == b"0" => ok(),
            ("INFO", [section]) if section == b"server" => {
                bulk(format!("# Server\r\nredis_version:{VERSION}\r\nredis_mode:standalone\r\n").as_bytes())
            }
            ("TIME", []) => self.time(),
            ("EXISTS", keys) => integer(keys.iter().filter(|key| self.keys.contains_key(&key[..])).count() as i64),
            ("GET", [key]) => self.get(key),
            ("MGET", keys) => {
                let string = |key: &Vec<u8>| self.use_string(key).ok().flatten().map_or_else(nothing, |of| bulk(&of));
                array(&keys.iter().map(string).collect::<Vec<_>>())
            }
            ("SET", [key, value, options @ ..]) => self.set(key, value, options),
            ("DEL", keys) => integer(keys.iter().filter(|key| self.remove(key)).count() as i64),
            ("EXPIRE", [key, seconds]) => integer(self.expire(key, 1000 * number(seconds)).into()),
            ("LINDEX", [key, index]) if index == b"0" => self.first_of(key),
            ("EVAL", [text, rest @ ..]) => {
                let script = script::of_text(text);
                self.scripts.insert(script.sha1);
                script::run(self, script, rest)
            }
            ("EVALSHA", [sha1, rest @ ..]) => match script::of_name(sha1).filter(|of| self.scripts.contains(of.sha1)) {
                Some(script) => script::run(self, script, rest),
                None => error("NOSCRIPT No matching script. Please use EVAL."),
            },
            _ => panic!("the simulated redis-server does not know {}", String::from_utf8_lossy(&command.join(&b' '))),
        }
    }

    /// What expires until then is gone.
    pub fn pass(&mut self, now: u64) {
        self.now = now;
        let millis = now / 1000;
        let is_over = |item: &Item| item.expires.is_some_and(|expires| millis > expires);
        if self.keys.values().any(is_over) {
            self.keys.retain(|_, item| !is_over(item));
        }
    }

    fn used(&self) -> usize {
        let len = |value: &Value| match value {
            Value::String(bytes) => bytes.len(),
            Value::List(items) => items.iter().map(|item| item.len() + OVERHEAD).sum(),
        };
        self.keys.iter().map(|(key, item)| key.len() + len(&item.value) + OVERHEAD).sum()
    }

    /// Evict a key. False: there is none, or none may be.
    pub fn evict(&mut self, policy: Policy, draw: Draw) -> bool {
        let victim = match policy {
            Policy::Refuse => None,
            Policy::EvictLeastUsed => self.keys.iter().min_by_key(|(_, item)| item.used).map(|(key, _)| key.clone()),
            Policy::EvictAny => self.keys.keys().nth(draw(self.keys.len())).cloned(),
        };
        victim.is_some_and(|key| self.remove(&key))
    }

    fn log_in(&self, session: &mut Session, given: &[u8]) -> Vec<u8> {
        match self.password {
            Some(password) if given == password.as_bytes() => {
                session.logged_in = true;
                ok()
            }
            Some(_) => error("WRONGPASS invalid username-password pair or user is disabled."),
            None => error(
                "ERR AUTH <password> called without any password configured for the default user. Are you sure your configuration is correct?",
            ),
        }
    }

    pub fn time(&self) -> Vec<u8> {
        let [seconds, micros] = [self.now / 1_000_000, self.now % 1_000_000].map(|number| number.to_string());
        array(&[bulk(seconds.as_bytes()), bulk(micros.as_bytes())])
    }

    /// The string under a key, which is used. `Err`: something else is there.
    fn use_string(&mut self, key: &[u8]) -> Result<Option<Arc<Vec<u8>>>, &'static str> {
        let now = self.now;
        match self.keys.get_mut(key) {
            None => Ok(None),
            Some(Item { value: Value::String(bytes), used, .. }) => {
                *used = now;
                Ok(Some(bytes.clone()))
            }
            Some(_) => Err(WRONG_TYPE),
        }
    }

    fn get(&mut self, key: &[u8]) -> Vec<u8> {
        match self.use_string(key) {
            Ok(string) => string.map_or_else(nothing, |bytes| bulk(&bytes)),
            Err(refusal) => error(refusal),
        }
    }

    fn first_of(&self, key: &[u8]) -> Vec<u8> {
        match self.keys.get(key).map(|item| &item.value) {
            None => nothing(),
            Some(Value::List(items)) => items.first().map_or_else(nothing, |item| bulk(item)),
            Some(Value::String(_)) => error(WRONG_TYPE),
        }
    }

    /// `SET key value [NX] [EX seconds | PX milliseconds]`
    fn set(&mut self, key: &[u8], value: &[u8], options: &[Vec<u8>]) -> Vec<u8> {
        let (mut only_new, mut millis, mut options) = (false, None, options.iter());
        while let Some(option) = options.next() {
            match option.as_slice() {
                b"NX" => only_new = true,
                b"EX" => millis = options.next().map(|seconds| 1000 * number(seconds)),
                b"PX" => millis = options.next().map(|millis| number(millis)),
                other => panic!("the simulated redis-server knows no SET with {}", String::from_utf8_lossy(other)),
            }
        }
        match self.store(key, value, only_new, millis) {
            true => ok(),
            false => nothing(),
        }
    }

    /// False: there is something, and `only_new`.
    pub fn store(&mut self, key: &[u8], value: &[u8], only_new: bool, millis: Option<u64>) -> bool {
        if only_new && self.keys.contains_key(key) {
            return false;
        }
        let expires = millis.map(|millis| self.now / 1000 + millis);
        self.put(key, Value::String(Arc::new(value.to_vec())), expires);
        true
    }

    pub fn put(&mut self, key: &[u8], value: Value, expires: Option<u64>) {
        self.keys.insert(key.into(), Item { value, expires, used: self.now });
    }

    pub fn remove(&mut self, key: &[u8]) -> bool {
        self.keys.remove(key).is_some()
    }

    /// False: there is nothing.
    pub fn expire(&mut self, key: &[u8], millis: u64) -> bool {
        let now = self.now / 1000;
        let item = self.keys.get_mut(key);
        item.map(|item| item.expires = Some(now + millis)).is_some()
    }

    /// Why a script may not write. It is asked for its first write only.
    pub fn refuses(&self) -> Option<&'static str> {
        self.full.then_some(OUT_OF_MEMORY)
    }

    pub fn string(&self, key: &[u8]) -> Option<&Arc<Vec<u8>>> {
        match self.keys.get(key).map(|item| &item.value) {
            Some(Value::String(bytes)) => Some(bytes),
            _ => None,
        }
    }
}

pub fn number(text: &[u8]) -> u64 {
    let number = std::str::from_utf8(text).ok().and_then(|text| text.parse().ok());
    number.unwrap_or_else(|| panic!("the backend sends {:?} for a number", String::from_utf8_lossy(text)))
}
