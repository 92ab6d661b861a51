//! The shipped component of memkv, and memkv-server: a thread for each connection, which stops where it takes a lock.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use kv_store_models::memkv::FENCED;
use kv_store_models::sessions::Rules;
use kv_store_models::sessions::model::{Action, Sessions, State};
use kv_store_sdk::native::Opened;
use kv_store_sdk::{Features, Result};
use memkv_server::os::{Peer, Shutdown, System, TcpStream, enter};
use memkv_server::{Bounds, Name, Server as MemkvServer, Store, name};
use memkv_wire::Key;
use memkv_wire::fields::Kind;
use stateright::Model;

use crate::actors::{Actor, Stop, is_one, stop};
use crate::server::{Component, Server};
use crate::wire::Wire;
use crate::{CHUNK, MANIFEST, Subject, TICK};

const KEY: &str = "0707070707070707070707070707070707070707070707070707070707070707";

/// How the table of values is called, whose lock is taken where a change is made.
const TABLE: &str = "memkv_server::store::";
/// And that of a session, which is taken where a change begins.
const SESSION: &str = "memkv_server::sessions::SessionState";
/// What the server's clock is at first.
const BEGINS: u64 = 5_000_000_000_000;

/// The server's clock, and what it draws.
struct Os {
    now: Arc<AtomicU64>,
    /// Ticks that its clock fell behind.
    fell: AtomicU64,
    drawn: AtomicU64,
}

impl System for Os {
    fn steady(&self) -> u64 {
        BEGINS + self.now.load(Relaxed) - self.fell.load(Relaxed) * TICK
    }

    fn wall(&self) -> u64 {
        2_000_000_000_000_000_000 + self.steady()
    }

    fn fill(&self, bytes: &mut [u8]) {
        bytes.fill(0);
        let number = self.drawn.fetch_add(1, Relaxed).to_le_bytes();
        bytes.iter_mut().zip(number).for_each(|(byte, drawn)| *byte = drawn);
    }

    fn turn(&self, of: &'static str) {
        stop(Stop::Locks(of));
    }

    fn wait(&self, _: Duration) {
        assert!(is_one() || std::thread::panicking(), "a lock is held that the walk takes");
        stop(Stop::Waits);
    }
}

/// The server's end of a connection.
struct Far(Arc<Wire>);

impl Peer for Far {
    fn read(&self, into: &mut [u8], _: Option<Duration>) -> io::Result<usize> {
        loop {
            match self.0.take(into.len()) {
                Some(bytes) => {
                    into[..bytes.len()].copy_from_slice(&bytes);
                    return Ok(bytes.len());
                }
                None => stop(Stop::Reads),
            }
        }
    }

    fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        self.0.answer(bytes);
        Ok(bytes.len())
    }

    fn shutdown(&self, how: Shutdown) {
        if how != Shutdown::Write {
            self.0.shut();
        }
    }
}

/// Where a thread of the server is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    /// It waits for the next frame, or has ended.
    Rest,
    /// It has read a frame, and is about to look whether its session may change anything.
    Session,
    /// It is about to look at the table, or to change it.
    Table,
    /// It waits for another thread.
    Held,
}

/// A connection.
struct Line {
    /// None: it has ended.
    thread: Option<Actor>,
    at: At,
    /// CONNECT was delivered, and its answer is there.
    greeted: bool,
    /// The change that its thread is about is there already.
    carried_out: bool,
    /// Of before a restart.
    is_former: bool,
}

impl Line {
    /// Have its thread go on until it comes to the table, rests, or waits for another; where it `begins`, until it comes to its session too.
    fn go_on(&mut self, begins: bool) -> At {
        let Some(thread) = &mut self.thread else { return At::Rest };
        loop {
            match thread.resume() {
                Some(Stop::Locks(of)) if of.starts_with(TABLE) => return At::Table,
                Some(Stop::Locks(SESSION)) if begins => return At::Session,
                Some(Stop::Locks(_)) => {}
                Some(Stop::Waits) => return At::Held,
                Some(Stop::Reads) => return At::Rest,
                Some(Stop::Connects | Stop::Calls) => unreachable!("a server connects to nobody, and has no files"),
                None => {
                    self.thread = None;
                    return At::Rest;
                }
            }
        }
    }
}

pub struct Machine {
    os: Arc<Os>,
    server: Arc<MemkvServer>,
    lines: Vec<Line>,
    subject: Subject,
}

impl Machine {
    fn name(&self) -> Name {
        match self.subject.is_chunk {
            true => name("one", Kind::Chunk, CHUNK),
            false => name("one", Kind::Manifest, format!("n{MANIFEST}").as_bytes()),
        }
    }

    /// A thread that was about to take the lock of the table has gone on.
    fn carried_out(&mut self, connection: usize, before: Option<Vec<u8>>, model: &Sessions, state: &State) -> Step {
        let (changed, number) = (self.content() != before, connection as u8);
        let line = &mut self.lines[connection];
        let is_done = line.at == At::Rest;
        if model.is_to_look(state, number) {
            let after = model.next_state(state, Action::Look(number)).ok_or("the model does not look")?;
            return match after.is_running(number) == is_done {
                true => Err("it finds something else than the model".to_owned()),
                false => Ok(Some(Action::Look(number))),
            };
        }
        let carries_out = !line.carried_out && (is_done || changed);
        line.carried_out = !is_done && (line.carried_out || changed);
        Ok(carries_out.then_some(Action::CarryOut(number)))
    }
}

type Step = std::result::Result<Option<Action>, String>;

impl Component for Machine {
    const SETTLES: bool = true;

    fn secret(_: &str) -> Option<&'static str> {
        Some(KEY)
    }

    fn open() -> Result<(Box<dyn Opened>, Features)> {
        ::memkv::open("memkv://server:1/one", Vec::new())
    }
}

impl Server for Machine {
    const RULES: Rules = FENCED;
    const CHANGES_WHERE_OPENED: bool = true;

    fn start(now: &Arc<AtomicU64>, subject: Subject) -> Self {
        let os = Arc::new(Os { now: now.clone(), fell: AtomicU64::new(0), drawn: AtomicU64::new(1) });
        enter(Some(os.clone()));
        Machine { os, server: fresh(), lines: Vec::new(), subject }
    }

    fn accept(&mut self, wire: &Arc<Wire>) {
        let (server, number) = (self.server.clone(), self.lines.len() as u64);
        let stream = Arc::new(TcpStream::over(Box::new(Far(wire.clone()))));
        let thread = Actor::new(move || {
            assert!(server.meet(number, &stream), "it does not stop");
            server.attend(number, &stream);
        });
        let (greeted, carried_out, is_former) = Default::default();
        self.lines.push(Line { thread: Some(thread), at: At::Rest, greeted, carried_out, is_former });
    }

    fn forget_connections(&mut self) {
        self.lines.clear();
    }

    fn serves(&self, connection: usize) -> bool {
        !self.lines[connection].is_former
    }

    fn is_under_way(&self, connection: usize) -> bool {
        self.lines[connection].at != At::Rest
    }

    fn go_on(&mut self, connection: usize, model: &Sessions, state: &State) -> Step {
        let content = self.content();
        let line = &mut self.lines[connection];
        let (greeted, before, number) = (line.greeted, line.at, connection as u8);
        line.at = line.go_on(greeted && before == At::Rest);
        match (greeted, before, line.at) {
            // CONNECT, which may have to wait for what it replaces.
            (false, _, At::Held) => Ok(None),
            (false, _, At::Rest) => {
                line.greeted = true;
                Ok(Some(Action::Greet(number)))
            }
            (true, At::Rest, At::Session) => Ok(None),
            (true, At::Session, At::Table) => Ok(Some(Action::Read(number))),
            // It was replaced: it changes nothing any more.
            (true, At::Rest | At::Session, At::Rest) if state.has_ended(number) => Ok(None),
            (true, At::Table, _) => self.carried_out(connection, content, model, state),
            other => Err(format!("a thread of the server does {other:?}")),
        }
    }

    fn content(&self) -> Option<Vec<u8>> {
        self.server.store.peek(&[self.name()]).remove(0).map(|value| value.to_vec())
    }

    fn set(&mut self, value: Option<Vec<u8>>) {
        match value {
            // A manifest and a chunk lie in the same table.
            Some(value) => drop(self.server.store.put_chunk(self.name(), value, true, 0)),
            None => drop(self.server.store.delete(&self.name(), 0)),
        }
    }

    fn fall(&mut self) {
        self.os.fell.fetch_add(1, Relaxed);
    }

    fn restart(&mut self) {
        let content = self.content();
        for line in &mut self.lines {
            (line.thread, line.at, line.is_former) = (None, At::Rest, true);
        }
        self.server = fresh();
        self.set(content);
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.lines.clear();
        self.server = fresh();
    }
}

fn fresh() -> Arc<MemkvServer> {
    let bounds = Bounds { memory: 1 << 20, max_value: None, connections: 1000, idle: Duration::from_secs(1 << 20) };
    let store = Store::open(bounds.memory, None).expect("a store without files opens");
    Arc::new(MemkvServer::new(Key::from_hex(KEY).expect("a key"), store, &bounds))
}
