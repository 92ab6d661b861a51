//! What all connections of a server share, and who is connected.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use memkv_wire::Key;

use crate::inflight::Inflight;
use crate::os::{Instant, Mutex, MutexGuard, Shutdown, TcpStream};
use crate::sessions::Sessions;
use crate::stats::Stats;
use crate::store::Store;

/// Connections whose client has not shown yet that it has the key. They take no place of those that have; of more than these the one that
/// came first is closed.
const MAX_STRANGERS: usize = 64;
/// Between two lines about clients that were refused.
const SAY_REFUSED: Duration = Duration::from_secs(1);

/// What all connections share.
pub struct Server {
    pub key: Key,
    pub store: Store,
    pub stats: Stats,
    pub sessions: Sessions,
    pub inflight: Inflight,
    /// Bytes of the longest value.
    pub max_value: u64,
    pub max_connections: usize,
    /// How long a client may be silent.
    pub idle: Duration,
    pub started: Instant,
    stopping: AtomicBool,
    clients: Mutex<Clients>,
    /// When a refusal was last said.
    refused: Mutex<Option<Instant>>,
}

/// What a server may use.
pub struct Bounds {
    /// Bytes that it keeps at most.
    pub memory: u64,
    /// Bytes of the longest value. None: as long as there is room for.
    pub max_value: Option<u64>,
    pub connections: usize,
    pub idle: Duration,
}

/// Who is connected, each by a number of its own.
#[derive(Default)]
struct Clients {
    /// Those that have the key.
    known: HashMap<u64, Arc<TcpStream>>,
    /// Those of whom that is not known yet, in the order in which they came.
    strangers: BTreeMap<u64, Arc<TcpStream>>,
}

impl Clients {
    fn len(&self) -> usize {
        self.known.len() + self.strangers.len()
    }

    /// Somebody came. Answers who is to leave for it.
    fn came(&mut self, number: u64, stream: Arc<TcpStream>) -> Option<Arc<TcpStream>> {
        let leaves = (self.strangers.len() >= MAX_STRANGERS).then(|| self.strangers.pop_first()).flatten();
        self.strangers.insert(number, stream);
        leaves.map(|(_, stream)| stream)
    }

    /// A stranger has shown that it has the key. False: there are as many as there may be.
    fn entered(&mut self, number: u64, most: usize) -> bool {
        if self.known.len() >= most {
            return false;
        }
        if let Some(stream) = self.strangers.remove(&number) {
            self.known.insert(number, stream);
        }
        true
    }

    fn gone(&mut self, number: u64) {
        self.known.remove(&number);
        self.strangers.remove(&number);
    }
}

impl Server {
    pub fn new(key: Key, store: Store, bounds: &Bounds) -> Self {
        let Bounds { memory, max_value, connections, idle } = *bounds;
        let max_value = max_value.unwrap_or(512 << 20).min(memory / 2);
        Server {
            key,
            store,
            stats: Stats::default(),
            sessions: Sessions::default(),
            // And one frame more, see there.
            inflight: Inflight::new(max_value.max(memory / 4)),
            max_value,
            max_connections: connections,
            idle,
            started: Instant::now(),
            stopping: AtomicBool::new(false),
            clients: Mutex::default(),
            refused: Mutex::default(),
        }
    }

    pub fn is_stopping(&self) -> bool {
        self.stopping.load(SeqCst)
    }

    pub fn connections(&self) -> usize {
        self.clients().len()
    }

    fn clients(&self) -> MutexGuard<'_, Clients> {
        self.clients.lock()
    }

    /// A client has shown that it has the key. False: there is no place for it.
    pub fn enter(&self, number: u64) -> bool {
        self.clients().entered(number, self.max_connections)
    }

    /// A client has come. False: the server stops.
    pub fn meet(&self, number: u64, stream: &Arc<TcpStream>) -> bool {
        self.stats.accepted.add(1);
        if self.is_stopping() {
            return false;
        }
        if let Some(leaves) = self.clients().came(number, stream.clone()) {
            // Its thread reads the end of it. Fails where it has gone by itself.
            let _ = leaves.shutdown(Shutdown::Both);
        }
        true
    }

    /// A client that has come is not served, or no longer.
    pub fn dismiss(&self, number: u64) {
        self.clients().gone(number);
    }

    /// Say why a client was refused; not all of it in a flood. The metrics count all.
    pub fn say_refused(&self, why: impl std::fmt::Display) {
        let mut last = self.refused.lock();
        if last.is_none_or(|last| last.elapsed() >= SAY_REFUSED) {
            *last = Some(Instant::now());
            crate::say(format_args!("refused a client: {why}"));
        }
    }

    /// Take no more requests. Those that came are answered.
    pub fn stop(&self) {
        self.stopping.store(true, SeqCst);
        let clients = self.clients();
        for client in clients.known.values().chain(clients.strangers.values()) {
            // Fails where it has gone by itself.
            let _ = client.shutdown(Shutdown::Read);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    fn stream() -> Arc<TcpStream> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        Arc::new(TcpStream::connect(listener.local_addr().unwrap()).unwrap())
    }

    #[test]
    fn strangers_take_no_place_of_those_who_have_the_key() {
        let (mut clients, stream) = (Clients::default(), stream());
        (0..2).for_each(|number| {
            assert!(clients.came(number, stream.clone()).is_none());
            assert!(clients.entered(number, 3));
        });
        let left = (2..302).filter(|number| clients.came(*number, stream.clone()).is_some()).count();
        assert_eq!((left, clients.len()), (300 - MAX_STRANGERS, 2 + MAX_STRANGERS));
        assert!(
            clients.came(302, stream.clone()).is_some() && clients.entered(302, 3),
            "the last one is not the next to leave"
        );
        assert!(clients.came(303, stream).is_none() && !clients.entered(303, 3), "the bound of those who have the key");
        clients.gone(302);
        assert!(clients.entered(303, 3));
    }
}
