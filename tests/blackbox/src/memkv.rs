//! A memkv-server, as it is installed, on a free port of the loopback interface. Killed with its value.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{ChildStderr, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::consumer::{Running, start};
use crate::dist;
use crate::servers::Server;

/// The key of all servers here, and of the library in this process: see [`crate::library`].
pub const AUTH_KEY: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";

/// More than any line takes to come.
const PATIENCE: Duration = Duration::from_secs(30);

pub struct MemkvServer {
    pub port: u16,
    /// The program that runs it, with its arguments, and the server's own.
    command: Vec<String>,
    process: Option<Running>,
    said: Arc<Mutex<String>>,
}

impl MemkvServer {
    /// Start a server with further options, `--name value`.
    pub fn start(options: &[&str]) -> Self {
        Self::start_under(&[], options)
    }

    /// Start a server under another program, which is named with its arguments. It ends with its value only.
    pub fn start_under(program: &[&str], options: &[&str]) -> Self {
        Self::start_of_under(&dist(), program, options)
    }

    /// Start the server of another installation.
    pub fn start_of(dist: &Path, options: &[&str]) -> Self {
        Self::start_of_under(dist, &[], options)
    }

    /// The same under another program, which is named with its arguments.
    pub fn start_of_under(dist: &Path, program: &[&str], options: &[&str]) -> Self {
        let server = dist.join("bin/memkv-server").display().to_string();
        let command = [program, &[&server], options].concat().into_iter().map(str::to_owned).collect();
        let mut server = MemkvServer { port: 0, command, process: None, said: Arc::default() };
        server.restart();
        server
    }

    /// SIGTERM, and how it ends.
    pub fn terminate(&mut self) -> ExitStatus {
        let mut process = self.process.take().expect("the server runs");
        process.signal(libc::SIGTERM);
        process.wait().expect("the server stops")
    }

    /// What it wrote to standard error so far.
    fn said(&self) -> String {
        self.said.lock().expect("nobody panics with it").clone()
    }

    /// Bytes that it wrote to standard error so far, also before it was started again.
    pub fn said_bytes(&self) -> usize {
        self.said.lock().expect("nobody panics with it").len()
    }

    /// Wait until it has written something to standard error.
    pub fn expect_said(&self, part: &str) {
        let begun = Instant::now();
        while !self.said().contains(part) {
            assert!(begun.elapsed() < PATIENCE, "no {part:?} in {}", self.said());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub fn uri(&self, namespace: &str) -> String {
        format!("memkv://127.0.0.1:{}/{namespace}", self.port)
    }

    /// The status code and body of an admin endpoint.
    pub fn admin(&self, path: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port + 1)).expect("the admin port answers");
        stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: h\r\n\r\n").as_bytes()).expect("the server reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("the server answers text");
        let (head, body) = answer.split_once("\r\n\r\n").expect("an HTTP answer");
        let code = head.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status code");
        (code, body.to_owned())
    }

    /// The value of a metric, by its name and labels: `memkv_requests_total{op="exists"}`.
    pub fn metric(&self, name: &str) -> u64 {
        let (_, text) = self.admin("/v1/metrics");
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok());
        value.unwrap_or_else(|| panic!("no {name} in {text}"))
    }
}

impl Server for MemkvServer {
    fn process(&mut self) -> &mut Option<Running> {
        &mut self.process
    }

    fn restart(&mut self) {
        self.stop();
        let (program, arguments) = self.command.split_first().expect("a program");
        let mut command = Command::new(program);
        command.args(arguments).args(["--listen", &format!("127.0.0.1:{}", self.port)]);
        command.env("MEMKV_AUTH_KEY", AUTH_KEY);
        let mut process = start(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()));
        collect(process.0.stderr.take().expect("a pipe"), self.said.clone());
        let mut line = String::new();
        let stdout = process.0.stdout.take().expect("a pipe");
        BufReader::new(stdout).read_line(&mut line).expect("the server says where it listens");
        let port = line.strip_prefix("memkv-server listening data=127.0.0.1:").and_then(|rest| rest.split(' ').next());
        let port = port.and_then(|port| port.parse().ok());
        self.port = port.unwrap_or_else(|| panic!("memkv-server does not start: {line:?} {}", self.said()));
        self.process = Some(process);
    }
}

/// Keep what a server says, so that it never waits for a reader.
fn collect(stderr: ChildStderr, said: Arc<Mutex<String>>) {
    std::thread::spawn(move || {
        for line in BufReader::new(stderr).lines().map_while(Result::ok) {
            let mut said = said.lock().expect("nobody panics with it");
            said.push_str(&line);
            said.push('\n');
        }
    });
}
