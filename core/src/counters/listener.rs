//! The counters over HTTP, and in a file: `metrics` and `metrics_file` of the config. One thread answers one request at a time; whatever
//! fails there, no call of a consumer hears of it.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};

use super::{Metrics, OfProcess};
use crate::config::Config;
use crate::limits::{MAX_METRICS_REQUEST, METRICS_PATIENCE, METRICS_WRITTEN};
use crate::log::{self, Level};
use crate::process::Spawn;

/// The type of what is answered.
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Where requests come in.
enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// Which places are served by this process.
#[derive(Default)]
pub(crate) struct Served(Mutex<Option<(Option<String>, Option<PathBuf>)>>);

impl OfProcess {
    /// Begin to serve what the config asks for, unless this process does already. What cannot be is one warning. `metrics`: what is
    /// served.
    pub fn serve(&self, config: &Config, spawn: &Spawn, metrics: impl Fn() -> Metrics + Send + Sync + 'static) {
        if config.metrics.is_some() || config.metrics_file.is_some() {
            begin(&self.served, config, spawn, Box::new(metrics));
        }
    }
}

type Source = Box<dyn Fn() -> Metrics + Send + Sync>;

fn begin(served: &Served, config: &Config, spawn: &Spawn, metrics: Source) {
    let (listen, file) = (config.metrics.clone(), config.metrics_file.clone());
    let mut served = served.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    // The first that the config said holds: a port does not move under those who scrape it.
    if served.is_some() {
        return;
    }
    *served = Some((listen.clone(), file.clone()));
    drop(served);
    let listener = listen.and_then(|address| match Listener::bind(&address) {
        Ok((listener, at)) => {
            log::line(Level::Info, format_args!("metrics are at {at}"));
            Some(listener)
        }
        Err(error) => {
            log::line(Level::Warn, format_args!("metrics = {address:?} is not served: {error}"));
            None
        }
    });
    if listener.is_none() && file.is_none() {
        return;
    }
    if !spawn.start("kv-store-metrics", move || serve(listener.as_ref(), file.as_deref(), &metrics)) {
        log::line(Level::Warn, "metrics are not served: no thread can be started");
    }
}

impl Listener {
    /// `HOST:PORT`, `:PORT` for the loopback address, or `unix:/path`. Where port 0 was asked for, a free one is found.
    fn bind(address: &str) -> io::Result<(Self, String)> {
        if let Some(path) = address.strip_prefix("unix:") {
            let path = Path::new(path);
            let listener = match UnixListener::bind(path) {
                // Of a process that has ended.
                Err(error) if error.kind() == io::ErrorKind::AddrInUse && is_abandoned(path) => {
                    fs::remove_file(path)?;
                    UnixListener::bind(path)?
                }
                bound => bound?,
            };
            listener.set_nonblocking(true)?;
            return Ok((Listener::Unix(listener), format!("unix:{}", path.display())));
        }
        let text = if address.starts_with(':') { format!("127.0.0.1{address}") } else { address.to_owned() };
        let wrong = || io::Error::other("write HOST:PORT with the host as an address, :PORT, or unix:/path");
        let address: SocketAddr = text.parse().map_err(|_| wrong())?;
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let at = listener.local_addr()?;
        Ok((Listener::Tcp(listener), format!("http://{at}/metrics")))
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        match self {
            Listener::Tcp(listener) => listener.as_fd(),
            Listener::Unix(listener) => listener.as_fd(),
        }
    }

    /// Answer one request, if there is one.
    fn answer(&self, metrics: &Source) -> io::Result<()> {
        match self {
            Listener::Tcp(listener) => {
                let (stream, _) = listener.accept()?;
                stream.set_nonblocking(false)?;
                stream.set_read_timeout(Some(METRICS_PATIENCE))?;
                stream.set_write_timeout(Some(METRICS_PATIENCE))?;
                converse(stream, metrics)
            }
            Listener::Unix(listener) => {
                let (stream, _) = listener.accept()?;
                stream.set_nonblocking(false)?;
                stream.set_read_timeout(Some(METRICS_PATIENCE))?;
                stream.set_write_timeout(Some(METRICS_PATIENCE))?;
                converse(stream, metrics)
            }
        }
    }
}

/// A socket that nobody listens on.
fn is_abandoned(path: &Path) -> bool {
    use std::os::unix::fs::FileTypeExt as _;
    let is_socket = fs::symlink_metadata(path).is_ok_and(|meta| meta.file_type().is_socket());
    is_socket && std::os::unix::net::UnixStream::connect(path).is_err()
}

fn serve(listener: Option<&Listener>, file: Option<&Path>, metrics: &Source) {
    let mut told = false;
    let mut due = Instant::now();
    loop {
        if let Some(file) = file.filter(|_| Instant::now() >= due) {
            due = Instant::now() + METRICS_WRITTEN;
            match write_file(file, metrics) {
                Ok(()) => told = false,
                Err(error) if !told => {
                    told = true;
                    log::line(Level::Warn, format_args!("metrics_file = {:?} is not written: {error}", file));
                }
                Err(_) => {}
            }
        }
        let wait = file.map(|_| due.saturating_duration_since(Instant::now()));
        let Some(listener) = listener else {
            thread::sleep(wait.unwrap_or(METRICS_WRITTEN));
            continue;
        };
        let wait = wait.and_then(|wait| rustix::event::Timespec::try_from(wait).ok());
        let descriptor = listener.descriptor();
        let mut waited = [PollFd::from_borrowed_fd(descriptor, PollFlags::IN)];
        match poll(&mut waited, wait.as_ref()) {
            Ok(0) | Err(rustix::io::Errno::INTR) => {}
            Ok(_) => {
                let asked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| listener.answer(metrics)));
                if !matches!(asked, Ok(Ok(()))) {
                    // No descriptors, most likely: some will be free again.
                    thread::sleep(Duration::from_millis(20));
                }
            }
            Err(_) => return,
        }
    }
}

/// One request and its answer.
fn converse(mut stream: impl Read + Write, metrics: &Source) -> io::Result<()> {
    let end = Instant::now() + METRICS_PATIENCE;
    let (mut asked, mut piece) = (Vec::new(), [0; 1024]);
    while !asked.windows(4).any(|four| four == b"\r\n\r\n") {
        let count = stream.read(&mut piece)?;
        asked.extend(piece.get(..count).unwrap_or_default());
        if count == 0 || asked.len() > MAX_METRICS_REQUEST || Instant::now() >= end {
            return Ok(());
        }
    }
    let (status, kind, body) = respond(&asked, metrics);
    let len = body.len();
    let head =
        format!("HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len}\r\nConnection: close\r\n\r\n");
    stream.write_all(head.as_bytes())?;
    stream.write_all(body.as_bytes())
}

/// Status line, type and body.
fn respond(asked: &[u8], metrics: &Source) -> (&'static str, &'static str, String) {
    const TEXT: &str = "text/plain; charset=utf-8";
    let line = asked.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let mut words = line.split(|byte| *byte == b' ');
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let path = path.split(|byte| *byte == b'?').next().unwrap_or_default();
    match (method, path) {
        (b"GET", b"/metrics") => ("200 OK", OPENMETRICS, metrics().to_string()),
        (b"GET", _) => ("404 Not Found", TEXT, "there is /metrics\n".into()),
        _ => ("405 Method Not Allowed", TEXT, "only GET\n".into()),
    }
}

/// The file appears whole under its name, as collectors of text files want it.
fn write_file(path: &Path, metrics: &Source) -> io::Result<()> {
    let name = path.file_name().ok_or_else(|| io::Error::other("it names no file"))?;
    let mut temporary = std::ffi::OsString::from(".");
    temporary.push(name);
    temporary.push(format!(".{}", std::process::id()));
    let temporary = path.with_file_name(temporary);
    let written = fs::write(&temporary, metrics().to_string()).and_then(|()| fs::rename(&temporary, path));
    if written.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_there_is_answered() {
        let metrics: Source = Box::new(|| OfProcess::default().report(&Default::default()));
        assert!(respond(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", &metrics).2.ends_with("# EOF\n"));
        for (asked, status) in [
            (&b"GET / HTTP/1.1\r\n\r\n"[..], "404"),
            (b"GET /metrics/x HTTP/1.1\r\n\r\n", "404"),
            (b"POST /metrics HTTP/1.1\r\n\r\n", "405"),
            (b"\xff\r\n\r\n", "405"),
            (b"", "405"),
        ] {
            assert!(respond(asked, &metrics).0.starts_with(status), "{asked:?}");
        }
    }

    #[test]
    fn an_address_without_a_host_is_the_loopback_one() {
        let (listener, at) = Listener::bind(":0").unwrap();
        assert!(at.starts_with("http://127.0.0.1:") && matches!(listener, Listener::Tcp(_)));
        for wrong in ["", "9464", "localhost", "example.org:80", "127.0.0.1"] {
            assert!(Listener::bind(wrong).is_err(), "{wrong}");
        }
        let scratch = tempfile::tempdir().unwrap();
        let address = format!("unix:{}", scratch.path().join("socket").display());
        let (first, _) = Listener::bind(&address).unwrap();
        assert!(Listener::bind(&address).is_err(), "it is taken");
        drop(first);
        assert!(Listener::bind(&address).is_ok(), "what a process that has ended left behind is none");
    }
}
