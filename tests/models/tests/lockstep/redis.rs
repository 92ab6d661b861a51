//! The shipped component of redis, and the redis-server of the simulation, which carries out one command after the other.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use kv_store_models::redis::FENCED;
use kv_store_models::sessions::Rules;
use kv_store_models::sessions::model::{Action, Sessions, State};
use kv_store_sdk::native::Opened;
use kv_store_sdk::{Features, Result};
use redis_server::db::{Db, Session};
use redis_server::resp;

use crate::server::{Component, Server};
use crate::wire::Wire;
use crate::{CHUNK, MANIFEST, Subject, TICK};

/// What the server's clock is at first, in nanoseconds.
const BEGINS: u64 = 1_700_000_000_000_000_000;

/// A connection.
struct Line {
    wire: Arc<Wire>,
    session: Session,
    /// What was sent with one another and is not carried out yet.
    came: Vec<u8>,
    /// Answers to what came with it.
    answers: Vec<u8>,
    /// Of before a restart.
    is_former: bool,
}

pub struct Machine {
    now: Arc<AtomicU64>,
    /// Ticks that its clock fell behind.
    fell: u64,
    db: Db,
    lines: Vec<Line>,
    key: Vec<u8>,
}

impl Machine {
    fn micros(&self) -> u64 {
        (BEGINS + self.now.load(Relaxed) - self.fell * TICK) / 1000
    }

    /// From now on one of its scripts takes nothing for late.
    pub fn spoil(&mut self, script: &'static str) {
        self.db.carries_out_late = Some(script);
    }
}

impl Component for Machine {
    const SETTLES: bool = false;

    fn secret(_: &str) -> Option<&'static str> {
        None
    }

    fn open() -> Result<(Box<dyn Opened>, Features)> {
        ::redis::open("redis://server:1", Vec::new())
    }
}

impl Server for Machine {
    const RULES: Rules = FENCED;
    const CHANGES_WHERE_OPENED: bool = false;

    fn start(now: &Arc<AtomicU64>, subject: Subject) -> Self {
        let key = match subject.is_chunk {
            true => [b"kv:c:", CHUNK].concat(),
            false => [b"kv:m:", MANIFEST.as_bytes()].concat(),
        };
        Machine { now: now.clone(), fell: 0, db: Db::default(), lines: Vec::new(), key }
    }

    fn accept(&mut self, wire: &Arc<Wire>) {
        let (session, came, answers, is_former) = Default::default();
        self.lines.push(Line { wire: wire.clone(), session, came, answers, is_former });
    }

    fn forget_connections(&mut self) {
        self.lines.clear();
    }

    fn serves(&self, connection: usize) -> bool {
        !self.lines[connection].is_former
    }

    fn is_under_way(&self, connection: usize) -> bool {
        !self.lines[connection].came.is_empty()
    }

    /// A command.
    fn go_on(&mut self, connection: usize, _: &Sessions, _: &State) -> std::result::Result<Option<Action>, String> {
        let now = self.micros();
        let line = &mut self.lines[connection];
        line.came.extend(line.wire.take(usize::MAX).unwrap_or_default());
        let command = resp::take(&mut line.came)?.ok_or("a command came in part")?;
        line.answers.extend(self.db.answer(&mut line.session, &command, now));
        if line.came.is_empty() {
            line.wire.answer(&std::mem::take(&mut line.answers));
        }
        let number = connection as u8;
        Ok(match command[0].as_slice() {
            b"TIME" => Some(Action::Greet(number)),
            b"EVAL" | b"EVALSHA" => Some(Action::Read(number)),
            // A value under a name of its own, which a script gives that of the key.
            _ => None,
        })
    }

    fn content(&self) -> Option<Vec<u8>> {
        self.db.string(&self.key).map(|value| value.to_vec())
    }

    fn set(&mut self, value: Option<Vec<u8>>) {
        match value {
            Some(value) => drop(self.db.store(&self.key, &value, false, None)),
            None => drop(self.db.remove(&self.key)),
        }
    }

    fn fall(&mut self) {
        self.fell += 1;
    }

    fn restart(&mut self) {
        for line in &mut self.lines {
            line.came.clear();
            line.is_former = true;
        }
        let keys = std::mem::take(&mut *self.db.keys);
        self.db = self.db.succeed(keys);
    }
}
