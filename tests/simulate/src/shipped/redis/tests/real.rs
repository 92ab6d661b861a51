//! A real redis-server on a free port of the loopback interface.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// More than any start takes.
const PATIENCE: Duration = Duration::from_secs(30);

/// Stopped with its value.
pub struct Real {
    process: Child,
    port: u16,
    folder: PathBuf,
}

pub struct Connection(std::cell::RefCell<BufReader<TcpStream>>);

impl Real {
    /// None: it is not installed, which is said.
    pub fn start() -> Option<Self> {
        static STARTED: AtomicU64 = AtomicU64::new(0);
        let nth = STARTED.fetch_add(1, Relaxed);
        let folder = std::env::temp_dir().join(format!("kv-store-simulate-{}-{nth}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a temporary folder");
        // Another program may take the port before the server does.
        for _ in 0..10 {
            let port = TcpListener::bind(("127.0.0.1", 0)).and_then(|free| free.local_addr()).expect("a port").port();
            let mut server = Command::new("redis-server");
            server.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]);
            server.arg("--dir").arg(&folder).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            let process = match server.spawn() {
                Ok(process) => process,
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                    let text = "skipped: redis-server is not installed; `cargo xtask test` installs it\n";
                    // Not what a test prints, which is shown only where it fails.
                    let _ = std::io::stderr().write_all(text.as_bytes());
                    let _ = std::fs::remove_dir_all(&folder);
                    return None;
                }
                Err(error) => panic!("redis-server: {error}"),
            };
            let mut real = Real { process, port, folder: folder.clone() };
            if real.answers() {
                return Some(real);
            }
        }
        panic!("redis-server does not start");
    }

    fn answers(&mut self) -> bool {
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE && matches!(self.process.try_wait(), Ok(None)) {
            if TcpStream::connect(("127.0.0.1", self.port)).is_ok() {
                return self.connect().ask(&[b"PING"]) == b"+PONG\r\n";
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        false
    }

    pub fn connect(&self) -> Connection {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).expect("the server answers");
        stream.set_nodelay(true).expect("a TCP stream");
        stream.set_read_timeout(Some(PATIENCE)).expect("a TCP stream");
        Connection(BufReader::new(stream).into())
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
    /// The answer to a command, as it comes.
    pub fn ask(&self, command: &[&[u8]]) -> Vec<u8> {
        let mut sent = format!("*{}\r\n", command.len()).into_bytes();
        command.iter().for_each(|argument| sent.extend(super::resp::bulk(argument)));
        let stream = &mut *self.0.borrow_mut();
        stream.get_mut().write_all(&sent).expect("the server answers");
        let mut reply = Vec::new();
        read(stream, &mut reply);
        reply
    }

    pub fn integer(&self, command: &[&[u8]]) -> i64 {
        let reply = String::from_utf8(self.ask(command)).expect("a number");
        reply.trim_start_matches(':').trim_end().parse().unwrap_or_else(|_| panic!("{reply:?} is no number"))
    }

    /// The strings of an array.
    pub fn strings(&self, command: &[&[u8]]) -> Vec<Vec<u8>> {
        let mut reply = self.ask(command);
        // What a command looks like.
        super::resp::take(&mut reply).expect("an array").expect("all of it")
    }
}

/// One reply, with all that is in it.
fn read(stream: &mut BufReader<TcpStream>, reply: &mut Vec<u8>) {
    let begun = reply.len();
    stream.read_until(b'\n', reply).expect("the server answers");
    let line = std::str::from_utf8(&reply[begun..]).expect("a line is text").trim_end().to_owned();
    let count = || line[1..].parse::<i64>().ok().and_then(|count| usize::try_from(count).ok());
    match (line.as_bytes().first(), count()) {
        (Some(b'$'), Some(len)) => {
            let begun = reply.len();
            reply.resize(begun + len + 2, 0);
            stream.read_exact(&mut reply[begun..]).expect("the server answers");
        }
        (Some(b'*'), Some(count)) => (0..count).for_each(|_| read(stream, reply)),
        _ => {}
    }
}
