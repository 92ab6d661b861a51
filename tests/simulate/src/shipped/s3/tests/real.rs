//! A real SeaweedFS on free ports of the loopback interface: all of it in one process, and one bucket.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use kv_http_wire::{Body, Chunks, Step, parse_head};
use kv_store_sdk::native::http::Reply;

use super::super::{ACCESS_KEY_ID, SECRET_ACCESS_KEY};

/// More than any start takes.
const PATIENCE: Duration = Duration::from_secs(60);
const ATTEMPTS: usize = 3;
const SERVER_LOG: &str = "server.log";
const SHELL_LOG: &str = "shell.log";
/// Each server speaks gRPC this many ports above its own.
const GRPC: u16 = 10_000;
/// The variable that names the folder of servers from PyPI, and where they are without it.
const FOLDER: &str = "KV_STORE_TEST_SERVERS";
const INSTALLED: &str = "../../target/xtask/servers/venv/bin";

/// Stopped with its value.
pub struct Real {
    process: Child,
    pub port: u16,
    folder: PathBuf,
}

pub struct Connection {
    stream: TcpStream,
    came: Vec<u8>,
}

fn program() -> Option<PathBuf> {
    let installed = || Path::new(env!("CARGO_MANIFEST_DIR")).join(INSTALLED);
    let folder = std::env::var_os(FOLDER).map_or_else(installed, PathBuf::from);
    Some(folder.join("weed")).filter(|program| program.exists())
}

fn log(folder: &Path, name: &str) -> File {
    File::create(folder.join(name)).expect("it is ours")
}

/// A port that is free, as the one that goes with it is.
fn free_port() -> u16 {
    let pair = || {
        let free = TcpListener::bind(("127.0.0.1", 0)).and_then(|free| free.local_addr()).expect("a port").port();
        let port = free.checked_sub(GRPC).filter(|port| *port > 10_000)?;
        TcpListener::bind(("127.0.0.1", port)).ok().map(|_| port)
    };
    (0..1000).find_map(|_| pair()).expect("two free ports")
}

impl Real {
    /// None: it is not installed, which is said.
    pub fn start(bucket: &str) -> Option<Self> {
        let Some(program) = program() else {
            let text = format!("skipped: SeaweedFS is not installed; `cargo xtask test` installs it ({FOLDER})\n");
            // Not what a test prints, which is shown only where it fails.
            let _ = std::io::stderr().write_all(text.as_bytes());
            return None;
        };
        // Another program may take one of the ports before the server does.
        let mut why = String::new();
        for _ in 0..ATTEMPTS {
            match Self::attempt(&program, bucket) {
                Ok(real) => return Some(real),
                Err(said) => why = said,
            }
        }
        panic!("SeaweedFS did not start in {ATTEMPTS} attempts; in the last one {why}")
    }

    /// Why not: what it said last.
    fn attempt(program: &Path, bucket: &str) -> Result<Self, String> {
        static STARTED: AtomicU64 = AtomicU64::new(0);
        let nth = STARTED.fetch_add(1, Relaxed);
        let folder = std::env::temp_dir().join(format!("kv-store-simulate-s3-{}-{nth}", std::process::id()));
        std::fs::create_dir_all(folder.join("data")).expect("a temporary folder");
        let config = format!(
            r#"{{"identities":[{{"name":"tests","credentials":[{{"accessKey":"{ACCESS_KEY_ID}","secretKey":"{SECRET_ACCESS_KEY}"}}],
            "actions":["Admin","Read","Write","List"]}}]}}"#
        );
        std::fs::write(folder.join("s3.json"), config).expect("it is ours");
        let [master, volume, filer, port] = [free_port(), free_port(), free_port(), free_port()];
        let line = format!(
            "server -ip=127.0.0.1 -ip.bind=127.0.0.1 -dir=data -master.port={master} -master.telemetry=false \
             -master.volumeSizeLimitMB=64 -volume.port={volume} -volume.max=50 -filer=true -filer.port={filer} -s3=true -s3.port={port} \
             -s3.config=s3.json -s3.port.iceberg=0 -s3.port.lance=0"
        );
        let mut server = Command::new(program);
        server.current_dir(&folder).args(line.split_whitespace());
        server.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log(&folder, SERVER_LOG));
        let process = server.spawn().expect("SeaweedFS is a program");
        let mut real = Real { process, port, folder };
        if !real.is_ready() {
            return Err(format!("it was not ready: {}", real.said(SERVER_LOG)));
        }
        match real.make_bucket(program, bucket, master, filer) {
            true => Ok(real),
            false => Err(format!("no bucket was made: {}\n{}", real.said(SHELL_LOG), real.said(SERVER_LOG))),
        }
    }

    /// The end of a log.
    fn said(&self, log: &str) -> String {
        let text = std::fs::read_to_string(self.folder.join(log)).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }

    /// It wants a signature.
    fn is_ready(&mut self) -> bool {
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE && matches!(self.process.try_wait(), Ok(None)) {
            if TcpStream::connect(("127.0.0.1", self.port)).is_ok() {
                let get = b"GET / HTTP/1.1\r\nhost: h\r\n\r\n";
                if self.connect().ask(get, false).is_some_and(|reply| reply.status == 403) {
                    return true;
                }
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        false
    }

    /// False also where the server ends first, which its shell would wait for.
    fn make_bucket(&mut self, program: &Path, bucket: &str, master: u16, filer: u16) -> bool {
        let mut shell = Command::new(program);
        shell.current_dir(&self.folder).arg("shell").arg(format!("-master=127.0.0.1:{master}"));
        shell.arg(format!("-filer=127.0.0.1:{filer}"));
        let log = log(&self.folder, SHELL_LOG);
        let same = log.try_clone().expect("a descriptor");
        shell.stdin(Stdio::piped()).stdout(log).stderr(same);
        let mut shell = shell.spawn().expect("SeaweedFS is a program");
        let mut stdin = shell.stdin.take().expect("a pipe");
        let written = writeln!(stdin, "s3.bucket.create -name {bucket}");
        drop(stdin);
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE && matches!(self.process.try_wait(), Ok(None)) {
            if let Ok(Some(status)) = shell.try_wait() {
                return written.is_ok() && status.success();
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        let _ = shell.kill();
        let _ = shell.wait();
        false
    }

    pub fn connect(&self) -> Connection {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).expect("the server answers");
        stream.set_nodelay(true).expect("a TCP stream");
        stream.set_read_timeout(Some(PATIENCE)).expect("a TCP stream");
        Connection { stream, came: Vec::new() }
    }
}

impl Drop for Real {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

impl Connection {
    /// The answer to a request. None: there is none.
    pub fn ask(&mut self, request: &[u8], to_head: bool) -> Option<Reply> {
        self.stream.write_all(request).ok()?;
        let head = loop {
            match parse_head(&self.came, to_head).expect("it speaks HTTP") {
                Some((head, len)) => {
                    self.came.drain(..len);
                    if !head.interim {
                        break head;
                    }
                }
                None => self.more()?,
            }
        };
        let body = match head.body {
            Body::Length(len) => {
                while self.came.len() < len as usize {
                    self.more()?;
                }
                self.came.drain(..len as usize).collect()
            }
            Body::Chunked => self.chunks()?,
            Body::ToEnd => panic!("a response that does not say how long it is"),
        };
        Some(Reply { status: head.status, headers: head.headers, body })
    }

    fn chunks(&mut self) -> Option<Vec<u8>> {
        let (mut body, mut chunks) = (Vec::new(), Chunks::default());
        loop {
            match chunks.step(&self.came).expect("it speaks HTTP") {
                Step::Skip(count) => drop(self.came.drain(..count)),
                Step::Data(left) if !self.came.is_empty() => {
                    let count = self.came.len().min(left as usize);
                    body.extend(self.came.drain(..count));
                    chunks.took(count as u64);
                }
                Step::Data(_) | Step::More => self.more()?,
                Step::End => return Some(body),
            }
        }
    }

    fn more(&mut self) -> Option<()> {
        let mut piece = [0; 16 << 10];
        let count = self.stream.read(&mut piece).ok().filter(|count| *count > 0)?;
        self.came.extend_from_slice(&piece[..count]);
        Some(())
    }
}
