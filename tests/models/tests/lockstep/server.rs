//! The shipped memkv-server: a thread for each connection, which stops where it takes a lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use memkv_server::os::{System, TcpStream, enter};
use memkv_server::{Bounds, Name, Server, Store, name};
use memkv_wire::Key;
use memkv_wire::fields::Kind;

use crate::actors::{Actor, Stop, is_one, stop};
use crate::wire::{Far, Wire};
use crate::{CHUNK, KEY, MANIFEST, TICK};

/// How the table of values is called, whose lock is taken where a change is made.
const TABLE: &str = "memkv_server::store::";
/// And that of a session, which is taken where a change begins.
const SESSION: &str = "memkv_server::sessions::SessionState";
/// What the server's clock is at first.
const BEGINS: u64 = 5_000_000_000_000;

/// The server's clock, and what it draws.
pub struct Os {
    pub now: Arc<AtomicU64>,
    /// Ticks that its clock fell behind.
    pub fell: AtomicU64,
    pub drawn: AtomicU64,
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

/// Where a thread of the server is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    /// It waits for the next frame, or has ended.
    Rest,
    /// It has read a frame, and is about to look whether its session may change anything.
    Session,
    /// It is about to look at the table, or to change it.
    Table,
    /// It waits for another thread.
    Held,
}

pub struct Machine {
    pub os: Arc<Os>,
    server: Arc<Server>,
    threads: Vec<Option<Actor>>,
    of_chunk: bool,
}

impl Machine {
    pub fn new(now: &Arc<AtomicU64>, of_chunk: bool) -> Self {
        let os = Arc::new(Os { now: now.clone(), fell: AtomicU64::new(0), drawn: AtomicU64::new(1) });
        enter(Some(os.clone()));
        Machine { os, server: fresh(), threads: Vec::new(), of_chunk }
    }

    /// The next connection, by its number.
    pub fn accept(&mut self, wire: &Arc<Wire>) {
        let (server, number) = (self.server.clone(), self.threads.len() as u64);
        let stream = Arc::new(TcpStream::over(Box::new(Far(wire.clone()))));
        self.threads.push(Some(Actor::new(move || {
            assert!(server.meet(number, &stream), "it does not stop");
            server.attend(number, &stream);
        })));
    }

    /// Have the thread of a connection go on until it comes to the table, rests, or waits for another; where it `begins`, until it
    /// comes to its session too.
    pub fn go_on(&mut self, connection: usize, begins: bool) -> At {
        let Some(thread) = &mut self.threads[connection] else { return At::Rest };
        loop {
            match thread.resume() {
                Some(Stop::Locks(of)) if of.starts_with(TABLE) => return At::Table,
                Some(Stop::Locks(SESSION)) if begins => return At::Session,
                Some(Stop::Locks(_)) => {}
                Some(Stop::Waits) => return At::Held,
                Some(Stop::Reads) => return At::Rest,
                Some(Stop::Connects | Stop::Calls) => unreachable!("a server connects to nobody, and has no files"),
                None => {
                    self.threads[connection] = None;
                    return At::Rest;
                }
            }
        }
    }

    fn name(&self) -> Name {
        match self.of_chunk {
            true => name("one", Kind::Chunk, CHUNK),
            false => name("one", Kind::Manifest, format!("n{MANIFEST}").as_bytes()),
        }
    }

    /// What lies under the key.
    pub fn content(&self) -> Option<Vec<u8>> {
        self.server.store.peek(&[self.name()]).remove(0).map(|value| value.to_vec())
    }

    pub fn set(&self, value: Option<Vec<u8>>) {
        match value {
            // A manifest and a chunk lie in the same table.
            Some(value) => drop(self.server.store.put_chunk(self.name(), value, true, 0)),
            None => drop(self.server.store.delete(&self.name(), 0)),
        }
    }

    /// Another process serves from now on, from the same files.
    pub fn restart(&mut self) {
        let content = self.content();
        self.threads.iter_mut().for_each(|thread| *thread = None);
        self.server = fresh();
        self.set(content);
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.threads.clear();
        self.server = fresh();
    }
}

fn fresh() -> Arc<Server> {
    let bounds = Bounds { memory: 1 << 20, max_value: None, connections: 1000, idle: Duration::from_secs(1 << 20) };
    let store = Store::open(bounds.memory, None).expect("a store without files opens");
    Arc::new(Server::new(Key::from_hex(KEY).expect("a key"), store, &bounds))
}
