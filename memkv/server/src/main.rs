//! `memkv-server`: chunks and manifests for the memkv backend, over the frames of `docs/memkv-wire.md`.
//!
//! One thread for each client, one for each admin request. [`Server`] is what they share.

mod admin;
mod clock;
mod disk;
mod inflight;
mod names;
mod options;
mod serve;
mod sessions;
mod stats;
mod store;
mod stream;

use std::collections::{BTreeMap, HashMap};
use std::io::Write as _;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::{CommandFactory as _, Parser as _};
use memkv_wire::Key;

use inflight::Inflight;
use options::Options;
use sessions::Sessions;
use stats::Stats;
use store::Store;

/// What clients may finish in, once the server was told to stop.
const STOP_PATIENCE: Duration = Duration::from_secs(5);
/// Connections whose client has not shown yet that it has the key. They take no place of those that have; of more than these the one that
/// came first is closed.
const MAX_STRANGERS: usize = 64;
/// Between two lines about clients that were refused.
const SAY_REFUSED: Duration = Duration::from_secs(1);
/// How often a port is chosen anew because the next one is not free.
const PORT_TRIES: usize = 50;

/// What all connections share.
pub struct Server {
    key: Key,
    store: Store,
    stats: Stats,
    sessions: Sessions,
    inflight: Inflight,
    max_value: u64,
    max_connections: usize,
    idle: Duration,
    started: Instant,
    stopping: AtomicBool,
    clients: Mutex<Clients>,
    /// When a refusal was last said.
    refused: Mutex<Option<Instant>>,
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
    fn is_stopping(&self) -> bool {
        self.stopping.load(SeqCst)
    }

    fn connections(&self) -> usize {
        self.clients().len()
    }

    fn clients(&self) -> MutexGuard<'_, Clients> {
        self.clients.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// A client has shown that it has the key. False: there is no place for it.
    pub fn enter(&self, number: u64) -> bool {
        self.clients().entered(number, self.max_connections)
    }

    /// Let clients in for as long as the process lives.
    fn accept(self: &Arc<Self>, listener: &TcpListener) {
        for (number, stream) in (0..).zip(listener.incoming()) {
            // Out of file descriptors, most likely: some will be free again.
            let Ok(stream) = stream else {
                std::thread::sleep(Duration::from_millis(50));
                continue;
            };
            let stream = Arc::new(stream);
            self.stats.accepted.add(1);
            if self.is_stopping() {
                continue;
            }
            if let Some(leaves) = self.clients().came(number, stream.clone()) {
                // Its thread reads the end of it. Fails where it has gone by itself.
                let _ = leaves.shutdown(Shutdown::Both);
            }
            let server = self.clone();
            let serving = std::thread::Builder::new().name("client".into()).spawn(move || {
                let _gone = Gone { server: &server, number };
                // Whoever sent the request may not have waited for the answer.
                let _ = serve::serve(&server, &stream, number);
            });
            if serving.is_err() {
                self.clients().gone(number);
            }
        }
    }

    /// Let what is not used leave, for as long as the process lives.
    fn expire(&self, ttl: Duration) {
        let pause = (ttl / 10).clamp(Duration::from_millis(100), Duration::from_secs(60));
        while !self.is_stopping() {
            std::thread::sleep(pause);
            self.store.expire(ttl);
        }
    }

    /// Say why a client was refused; not all of it in a flood. The metrics count all.
    fn say_refused(&self, why: impl std::fmt::Display) {
        let mut last = self.refused.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if last.is_none_or(|last| last.elapsed() >= SAY_REFUSED) {
            *last = Some(Instant::now());
            say(format_args!("refused a client: {why}"));
        }
    }

    /// Take no more requests, and let those that came be answered.
    fn stop(&self) {
        self.stopping.store(true, SeqCst);
        let end = Instant::now() + STOP_PATIENCE;
        let clients = self.clients();
        for client in clients.known.values().chain(clients.strangers.values()) {
            // Fails where it has gone by itself.
            let _ = client.shutdown(Shutdown::Read);
        }
        drop(clients);
        while self.connections() > 0 && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Forgets a client, however its thread ends.
struct Gone<'a> {
    server: &'a Server,
    number: u64,
}

impl Drop for Gone<'_> {
    fn drop(&mut self) {
        self.server.clients().gone(self.number);
    }
}

/// A line for the operator.
pub fn say(what: impl std::fmt::Display) {
    // Nobody may be reading.
    let _ = writeln!(std::io::stderr(), "memkv-server: {what}");
}

fn main() -> ExitCode {
    let options = Options::parse();
    let done = if options.man { manual() } else { run(&options) };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(format_args!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn manual() -> Result<()> {
    Ok(clap_mangen::Man::new(Options::command()).render(&mut std::io::stdout())?)
}

fn run(options: &Options) -> Result<()> {
    let key = options.key()?;
    let (data, admin) = bind(options.listen)?;
    // Before anything that takes time, so that a signal then is not the default one.
    let mut signals = signal_hook::iterator::Signals::new([signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT])?;
    let addresses = (data.local_addr()?, admin.local_addr()?);

    let ready = admin::Ready::default();
    let asked = ready.clone();
    std::thread::Builder::new().name("admin".into()).spawn(move || admin::run(&admin, &asked))?;

    let disk = match &options.data {
        Some(folder) => {
            let opened = disk::Disk::open(folder).with_context(|| format!("cannot use {}", folder.display()))?;
            Some(opened)
        }
        None => None,
    };
    let memory = options.memory;
    let store = Store::open(memory, disk).context("cannot load what is on disk")?;
    let max_value = options.max_value.unwrap_or(512 << 20).min(memory / 2);
    let server = Arc::new(Server {
        key,
        store,
        stats: Stats::default(),
        sessions: Sessions::default(),
        // And one frame more, see there.
        inflight: Inflight::new(max_value.max(memory / 4)),
        max_value,
        max_connections: options.connections,
        idle: Duration::from_secs(options.idle_seconds),
        started: Instant::now(),
        stopping: AtomicBool::new(false),
        clients: Mutex::default(),
        refused: Mutex::default(),
    });
    let accepting = server.clone();
    std::thread::Builder::new().name("accept".into()).spawn(move || accepting.accept(&data))?;
    if let Some(ttl) = options.ttl_seconds {
        let (expiring, ttl) = (server.clone(), Duration::from_secs(ttl.into()));
        std::thread::Builder::new().name("expiry".into()).spawn(move || expiring.expire(ttl))?;
    }
    let _ = ready.set(server.clone());

    let (data, admin) = addresses;
    // Whoever started it may not be reading.
    let _ = writeln!(std::io::stdout(), "memkv-server listening data={data} admin={admin}");
    let signal = signals.forever().next();
    say(format_args!("stopping, on signal {}", signal.unwrap_or_default()));
    server.stop();
    Ok(())
}

/// The data port and the admin port, which is one more. With port 0, two that are free.
fn bind(wanted: SocketAddr) -> Result<(TcpListener, TcpListener)> {
    for _ in 0..PORT_TRIES {
        let data = TcpListener::bind(wanted).with_context(|| format!("cannot listen on {wanted}"))?;
        let Some(port) = data.local_addr()?.port().checked_add(1) else {
            if wanted.port() == 0 {
                continue;
            }
            bail!("the port of the admin endpoints is one more than that of the data, and there is none after 65535");
        };
        let admin = SocketAddr::new(wanted.ip(), port);
        match TcpListener::bind(admin) {
            Ok(admin) => return Ok((data, admin)),
            Err(_) if wanted.port() == 0 => {}
            Err(error) => {
                return Err(error).with_context(|| format!("cannot listen on {admin}, for the admin endpoints"));
            }
        }
    }
    bail!("no two ports in a row are free")
}

#[cfg(test)]
mod tests {
    use super::*;

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
