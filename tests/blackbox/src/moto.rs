//! A real moto server, a stand-in of AWS's services that others wrote, on a free port of the loopback interface. It checks no signature.
//!
//! The program is that of the package `moto` of PyPI, which `cargo xtask test` installs.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::consumer::{Running, start};
use crate::not_installed;
use crate::seaweed::{BUCKET, programs};
use crate::servers::free_port;

/// More than any start takes.
const PATIENCE: Duration = Duration::from_secs(60);

pub struct Moto {
    pub port: u16,
    pub process: Running,
}

impl Moto {
    /// Start it with a bucket. None: it is not installed, which is said.
    pub fn start() -> Option<Self> {
        let program = programs().join("moto_server");
        if !program.exists() {
            not_installed("moto");
            return None;
        }
        let port = free_port();
        let mut command = Command::new(program);
        command.args(["-H", "127.0.0.1", "-p", &port.to_string()]);
        let process = start(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()));
        let moto = Moto { port, process };
        let begun = Instant::now();
        while !moto.makes_bucket() {
            assert!(begun.elapsed() < PATIENCE, "moto starts");
            std::thread::sleep(Duration::from_millis(100));
        }
        Some(moto)
    }

    fn makes_bucket(&self) -> bool {
        let mut answer = String::new();
        let request =
            format!("PUT /{BUCKET} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
        let asked = TcpStream::connect(("127.0.0.1", self.port)).and_then(|mut stream| {
            stream.write_all(request.as_bytes())?;
            stream.read_to_string(&mut answer)
        });
        asked.is_ok() && answer.starts_with("HTTP/1.1 200")
    }

    /// A store in the bucket, below a prefix.
    pub fn uri(&self, prefix: &str) -> String {
        format!("s3+http://127.0.0.1:{}/{BUCKET}/{prefix}", self.port)
    }
}
