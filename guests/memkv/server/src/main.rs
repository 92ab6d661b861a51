//! `memkv-server`: chunks and manifests for the memkv backend, over the frames of `docs/memkv-wire.md`.
//!
//! One thread for each client, one for each admin request. [`server::Server`] is what they share.

mod admin;
mod clock;
mod disk;
mod inflight;
mod names;
mod options;
mod os;
mod serve;
mod server;
mod sessions;
mod stats;
mod store;
mod stream;

use std::io::Write as _;
use std::net::{SocketAddr, TcpListener};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::{CommandFactory as _, Parser as _};

use options::Options;
use server::{Bounds, Server};
use store::Store;

/// What clients may finish in, once the server was told to stop.
const STOP_PATIENCE: Duration = Duration::from_secs(5);
/// How often a port is chosen anew because the next one is not free.
const PORT_TRIES: usize = 50;

/// Let clients in for as long as the process lives.
fn accept(server: &Arc<Server>, listener: &TcpListener) {
    for (number, stream) in (0..).zip(listener.incoming()) {
        // Out of file descriptors, most likely: some will be free again.
        let Ok(stream) = stream else {
            std::thread::sleep(Duration::from_millis(50));
            continue;
        };
        let stream = Arc::new(stream);
        if !server.meet(number, &stream) {
            continue;
        }
        let own = server.clone();
        let serving = std::thread::Builder::new().name("client".into()).spawn(move || own.attend(number, &stream));
        if serving.is_err() {
            server.dismiss(number);
        }
    }
}

/// Let what is not used leave, for as long as the process lives.
fn expire(server: &Server, ttl: Duration) {
    let pause = (ttl / 10).clamp(Duration::from_millis(100), Duration::from_secs(60));
    while !server.is_stopping() {
        std::thread::sleep(pause);
        server.store.expire(ttl);
    }
}

/// Take no more requests, and let those that came be answered.
fn stop(server: &Server) {
    server.stop();
    let end = Instant::now() + STOP_PATIENCE;
    while server.connections() > 0 && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A line for the operator.
pub fn say(what: impl std::fmt::Display) {
    // Nobody may be reading.
    let _ = writeln!(std::io::stderr(), "memkv-server: {what}");
}

fn main() -> ExitCode {
    // What one thread put is evicted by another. With a heap for each thread the process took four times `--memory`.
    kv_platform::memory::share_one_heap();
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
    let bounds = Bounds {
        memory,
        max_value: options.max_value,
        connections: options.connections,
        idle: Duration::from_secs(options.idle_seconds),
    };
    let server = Arc::new(Server::new(key, store, &bounds));
    let accepting = server.clone();
    std::thread::Builder::new().name("accept".into()).spawn(move || accept(&accepting, &data))?;
    if let Some(ttl) = options.ttl_seconds {
        let (expiring, ttl) = (server.clone(), Duration::from_secs(ttl.into()));
        std::thread::Builder::new().name("expiry".into()).spawn(move || expire(&expiring, ttl))?;
    }
    let _ = ready.set(server.clone());

    let (data, admin) = addresses;
    // Whoever started it may not be reading.
    let _ = writeln!(std::io::stdout(), "memkv-server listening data={data} admin={admin}");
    let signal = signals.forever().next();
    say(format_args!("stopping, on signal {}", signal.unwrap_or_default()));
    stop(&server);
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
