//! The counters over HTTP, and in a file: `metrics` and `metrics_file` of the config. One thread does both; whatever fails there, no
//! call of a consumer hears of it.

use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use kv_platform::sync::Mutex;
use rustix::event::{PollFd, PollFlags, poll};

use super::connections::{Connections, HttpAnswer, Stream};
use super::{Metrics, ProcessCounters};
use crate::config::Config;
use crate::limits::{MAX_METRICS_LOOKED_AT, METRICS_ABANDONED, METRICS_WRITTEN};
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
pub(crate) struct ServedMetrics(Mutex<Option<(Option<String>, Option<PathBuf>)>>);

impl ProcessCounters {
    /// Begin to serve what the config asks for, unless this process does already. What cannot be is one warning. `metrics`: what is
    /// served.
    pub fn serve(&self, config: &Config, spawn: &Spawn, metrics: impl Fn() -> Metrics + Send + Sync + 'static) {
        if config.metrics.is_some() || config.metrics_file.is_some() {
            begin(&self.served, config, spawn, Box::new(metrics));
        }
    }

    /// Serve nothing, whatever a config asks for: the port and the file are another program's, which runs with the same config.
    pub fn serve_nothing(&self) {
        *self.served.0.lock() = Some((None, None));
    }
}

type MetricsSource = Box<dyn Fn() -> Metrics + Send + Sync>;

fn begin(served: &ServedMetrics, config: &Config, spawn: &Spawn, metrics: MetricsSource) {
    let (listen, file) = (config.metrics.as_deref().map(named), config.metrics_file.as_deref().map(MetricsFile::new));
    let mut served = served.0.lock();
    // The first that the config said holds: a port does not move under those who scrape it.
    if served.is_some() {
        return;
    }
    *served = Some((config.metrics.clone(), config.metrics_file.clone()));
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
    if !spawn.start("kv-store-metrics", move || serve(listener.as_ref(), file.as_ref(), &metrics)) {
        log::line(Level::Warn, "metrics are not served: no thread can be started");
    }
}

/// Check what `metrics` of a config says, without listening there.
pub fn check_address(address: &str) -> io::Result<()> {
    if address.starts_with("unix:") { Ok(()) } else { socket_address(address).map(drop) }
}

fn socket_address(address: &str) -> io::Result<SocketAddr> {
    let text = if address.starts_with(':') { format!("127.0.0.1{address}") } else { address.to_owned() };
    text.parse().map_err(|_| {
        io::Error::other(format!(
            "{address:?} is no address: write HOST:PORT with the host as a number and a port up to 65535, :PORT, or unix:/path"
        ))
    })
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
        let listener = TcpListener::bind(socket_address(address)?)?;
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

    /// One more connection, if there is one.
    fn accept(&self) -> io::Result<Box<dyn Stream>> {
        Ok(match self {
            Listener::Tcp(listener) => {
                let (stream, _) = listener.accept()?;
                stream.set_nonblocking(true)?;
                Box::new(stream)
            }
            Listener::Unix(listener) => {
                let (stream, _) = listener.accept()?;
                stream.set_nonblocking(true)?;
                Box::new(stream)
            }
        })
    }
}

/// What is written for the number of the process.
const PID: &str = "{pid}";

/// An address or a path with the number of the process in it.
fn named(text: &str) -> String {
    text.replace(PID, &std::process::id().to_string())
}

/// A socket that nobody listens on.
fn is_abandoned(path: &Path) -> bool {
    use std::os::unix::fs::FileTypeExt as _;
    let is_socket = fs::symlink_metadata(path).is_ok_and(|meta| meta.file_type().is_socket());
    is_socket && std::os::unix::net::UnixStream::connect(path).is_err()
}

fn serve(listener: Option<&Listener>, file: Option<&MetricsFile>, metrics: &MetricsSource) {
    let mut told = false;
    let mut due = Instant::now();
    let mut connections = Connections::default();
    loop {
        if let Some(file) = file.filter(|_| Instant::now() >= due) {
            due = Instant::now() + METRICS_WRITTEN;
            match file.write(metrics) {
                Ok(()) => told = false,
                Err(error) if !told => {
                    told = true;
                    log::line(Level::Warn, format_args!("metrics_file = {:?} is not written: {error}", file.path));
                }
                Err(_) => {}
            }
        }
        let next = file.map(|_| due).into_iter().chain(connections.due()).min();
        let wait = next.map(|next| next.saturating_duration_since(Instant::now()));
        let Some(listener) = listener else {
            thread::sleep(wait.unwrap_or(METRICS_WRITTEN));
            continue;
        };
        let wait = wait.and_then(|wait| rustix::event::Timespec::try_from(wait).ok());
        let own = (listener.descriptor(), PollFlags::IN);
        let mut waited: Vec<PollFd<'_>> = std::iter::once(own)
            .chain(connections.waited_for())
            .map(|(descriptor, flags)| PollFd::from_borrowed_fd(descriptor, flags))
            .collect();
        match poll(&mut waited, wait.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(_) => return,
        }
        let ready: Vec<bool> = waited.iter().map(|waited| !waited.revents().is_empty()).collect();
        let (accepts, ready) = ready.split_first().map_or((false, &[][..]), |(first, rest)| (*first, rest));
        let respond = |asked: &[u8]| {
            let answered = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| respond(asked, metrics)));
            answered.unwrap_or_else(|_| ("500 Internal Server Error", TEXT, String::new()))
        };
        connections.go_on(ready, Instant::now(), &respond);
        if accepts {
            match listener.accept() {
                Ok(stream) => connections.add(stream, Instant::now()),
                // No descriptors, most likely: some will be free again.
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => thread::sleep(Duration::from_millis(20)),
                Err(_) => {}
            }
        }
    }
}

const TEXT: &str = "text/plain; charset=utf-8";

/// Status line, type and body.
fn respond(asked: &[u8], metrics: &MetricsSource) -> HttpAnswer {
    let line = asked.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let mut words = line.split(|byte| *byte == b' ');
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let path = path.split(|byte| *byte == b'?').next().unwrap_or_default();
    match (method, path) {
        (b"GET", b"/metrics") => ("200 OK", OPENMETRICS, metrics().to_string()),
        (b"GET", b"/health") => ("200 OK", TEXT, "ok\n".into()),
        (b"GET", b"/ready") => ready(&metrics()),
        (b"GET", _) => ("404 Not Found", TEXT, "there are /metrics, /health and /ready\n".into()),
        _ => ("405 Method Not Allowed", TEXT, "only GET\n".into()),
    }
}

/// Whether each store that is open can be asked.
fn ready(metrics: &Metrics) -> HttpAnswer {
    let away: Vec<&str> = metrics.stores.iter().filter(|store| store.breaker_open).map(|store| &*store.uri).collect();
    match away.is_empty() {
        true => ("200 OK", TEXT, "ready\n".into()),
        false => ("503 Service Unavailable", TEXT, format!("fails again and again: {}\n", away.join(" "))),
    }
}

/// The file that the counters are written to.
struct MetricsFile {
    path: PathBuf,
    /// Its name before and behind the number of the process, where that is in it.
    parts: Option<(String, String)>,
}

impl MetricsFile {
    fn new(path: &Path) -> Self {
        let name = path.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
        let parts = name.split_once(PID).map(|(before, behind)| (before.to_owned(), behind.to_owned()));
        let path = match path.to_str() {
            Some(text) => named(text).into(),
            None => path.to_owned(),
        };
        MetricsFile { path, parts }
    }

    /// The file appears whole under its name, as collectors of text files want it.
    fn write(&self, metrics: &MetricsSource) -> io::Result<()> {
        let name = self.path.file_name().ok_or_else(|| io::Error::other("it names no file"))?;
        let mut temporary = std::ffi::OsString::from(".");
        temporary.push(name);
        temporary.push(format!(".{}", std::process::id()));
        let temporary = self.path.with_file_name(temporary);
        // The collector joins all files, and refuses the same series twice.
        let process = self.parts.is_some().then(std::process::id);
        let text = metrics().as_text_file(process);
        let written = fs::write(&temporary, text).and_then(|()| fs::rename(&temporary, &self.path));
        if written.is_err() {
            let _ = fs::remove_file(&temporary);
        }
        self.reap();
        written
    }

    /// Remove the files of processes that have ended: their last counters would be collected for ever. A process that lives writes its file
    /// often; its number says nothing, because it may be one of another container.
    fn reap(&self) {
        let Some((before, behind)) = &self.parts else { return };
        let Ok(entries) = self.path.parent().unwrap_or(Path::new("/")).read_dir() else { return };
        for entry in entries.take(MAX_METRICS_LOOKED_AT).filter_map(Result::ok) {
            let name = entry.file_name();
            let number = name.to_str().and_then(|name| name.strip_prefix(&**before)?.strip_suffix(&**behind));
            let is_ours = number.is_some_and(|number| !number.is_empty() && number.bytes().all(|c| c.is_ascii_digit()));
            let age = || entry.metadata().ok().filter(fs::Metadata::is_file)?.modified().ok()?.elapsed().ok();
            if is_ours && age().is_some_and(|age| age > METRICS_ABANDONED) {
                let _ = fs::remove_file(entry.path());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::MAX_METRICS_CONNECTIONS;
    use std::io::{Read, Write};
    use std::net::TcpStream;

    #[test]
    fn only_what_is_there_is_answered() {
        let metrics: MetricsSource = Box::new(|| ProcessCounters::default().report(&Default::default(), 0));
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
    fn a_store_that_fails_again_and_again_is_not_ready() {
        let metrics = |breaker_open| {
            let mut metrics = ProcessCounters::default().report(&Default::default(), 0);
            let uri = "redis://away".to_owned();
            let store = crate::counters::StoreGauges {
                backend: "redis".into(),
                tenant: None,
                uri,
                breaker_open,
                ..Default::default()
            };
            metrics.stores.push(store);
            metrics
        };
        let (well, away): (MetricsSource, MetricsSource) =
            (Box::new(move || metrics(false)), Box::new(move || metrics(true)));
        for (asked, status) in [(&b"GET /health HTTP/1.1\r\n\r\n"[..], "200"), (b"GET /ready HTTP/1.1\r\n\r\n", "200")]
        {
            assert!(respond(asked, &well).0.starts_with(status));
        }
        assert!(respond(b"GET /health HTTP/1.1\r\n\r\n", &away).0.starts_with("200"));
        let (status, _, body) = respond(b"GET /ready HTTP/1.1\r\n\r\n", &away);
        assert!(status.starts_with("503") && body.contains("redis://away"), "{status} {body}");
    }

    /// What is served on a free port, by a thread that goes with the tests.
    fn served() -> SocketAddr {
        let (listener, _) = Listener::bind(":0").unwrap();
        let Listener::Tcp(tcp) = &listener else { unreachable!() };
        let at = tcp.local_addr().unwrap();
        thread::spawn(move || {
            serve(
                Some(&listener),
                None,
                &(Box::new(|| ProcessCounters::default().report(&Default::default(), 0)) as MetricsSource),
            );
        });
        at
    }

    fn scrape(at: SocketAddr) -> String {
        let mut stream = TcpStream::connect(at).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }

    /// Whether the other side has the connection open still.
    fn is_open(mut stream: &TcpStream) -> bool {
        stream.set_nonblocking(true).unwrap();
        stream.read(&mut [0]).is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    }

    #[test]
    fn idle_and_slow_connections_hold_up_nobody() {
        let at = served();
        let idle: Vec<TcpStream> = (0..MAX_METRICS_CONNECTIONS / 2).map(|_| TcpStream::connect(at).unwrap()).collect();
        let mut slow = TcpStream::connect(at).unwrap();
        slow.write_all(b"GET /metrics HTTP/1.1\r\n").unwrap();
        assert!(scrape(at).ends_with("# EOF\n"));
        assert!(idle.iter().all(is_open), "they were served beside it, not before it");
        slow.write_all(b"\r\n").unwrap();
        let mut text = String::new();
        slow.read_to_string(&mut text).unwrap();
        assert!(text.starts_with("HTTP/1.1 200") && text.ends_with("# EOF\n"));
    }

    #[test]
    fn any_number_of_connections_leaves_room_for_one_more() {
        let at = served();
        let idle: Vec<TcpStream> = (0..3 * MAX_METRICS_CONNECTIONS).map(|_| TcpStream::connect(at).unwrap()).collect();
        assert!(scrape(at).ends_with("# EOF\n"));
        let open = idle.iter().filter(|stream| is_open(stream)).count();
        assert!(open < MAX_METRICS_CONNECTIONS, "{open}");
        let mut long = TcpStream::connect(at).unwrap();
        // It is closed before all of it is read.
        let _ = long.write_all(&vec![b'x'; 4 * crate::limits::MAX_METRICS_REQUEST]);
        assert_eq!(long.read(&mut [0]).unwrap_or(0), 0, "a request is bounded");
    }

    #[test]
    fn each_process_has_a_file_of_its_own_and_removes_those_of_the_dead() {
        let scratch = tempfile::tempdir().unwrap();
        let at = |name: &str| scratch.path().join(name);
        let metrics: MetricsSource = Box::new(|| ProcessCounters::default().report(&Default::default(), 0));
        for name in ["kv-1.prom", "kv-2.prom", "kv-x.prom", "other-3.prom", "kv-.prom"] {
            let file = fs::File::create(at(name)).unwrap();
            let ago = if name == "kv-2.prom" { Duration::ZERO } else { 2 * METRICS_ABANDONED };
            file.set_modified(std::time::SystemTime::now() - ago).unwrap();
        }
        let file = MetricsFile::new(&at("kv-{pid}.prom"));
        file.write(&metrics).unwrap();
        let own = fs::read_to_string(at(&format!("kv-{}.prom", std::process::id()))).unwrap();
        let label = format!("kv_store_payload_bytes{{pid=\"{}\"}} 0", std::process::id());
        assert!(own.lines().any(|line| line == label), "{own}");
        let left: Vec<bool> =
            ["kv-1.prom", "kv-2.prom", "kv-x.prom", "other-3.prom", "kv-.prom"].map(|name| at(name).exists()).into();
        assert_eq!(left, [false, true, true, true, true]);
        assert_eq!(named("unix:/run/kv-{pid}"), format!("unix:/run/kv-{}", std::process::id()));
    }

    #[test]
    fn who_serves_nothing_takes_no_port_and_writes_no_file() {
        let scratch = tempfile::tempdir().unwrap();
        let socket = scratch.path().join("socket");
        let mut config = Config::default();
        config.metrics = Some(format!("unix:{}", socket.display()));
        config.metrics_file = Some(scratch.path().join("kv.prom"));
        let (engine, command) = (ProcessCounters::default(), ProcessCounters::default());
        command.serve_nothing();
        let report = || ProcessCounters::default().report(&Default::default(), 0);
        command.serve(&config, &Spawn::default(), report);
        assert!(!socket.exists());
        engine.serve(&config, &Spawn::default(), report);
        assert!(socket.exists());
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
