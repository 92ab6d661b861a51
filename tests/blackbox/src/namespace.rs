//! A network namespace of its own for servers that bind all addresses, or fixed ports, whatever they are told: two of them meet no more
//! than on two machines. It has the loopback interface only, and ends with its value.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::consumer::{Finished, Running, finish, start};
use crate::skipped;

/// More than an answer of a server takes.
const PATIENCE: Duration = Duration::from_secs(10);
/// Ports that programs get who ask for none: none of them is a server's. Otherwise who connects again and again to a server that is
/// down is one day given the server's own port, meets itself there, and the server does not start.
const EPHEMERAL: &str = "20000 45000";

pub struct Namespace {
    /// A process in it keeps it. None: this process is in it.
    holder: Option<Running>,
}

/// A program, about to run in a namespace of its own.
pub fn isolated(program: impl AsRef<OsStr>) -> Command {
    let script =
        format!("ip link set lo up && echo {EPHEMERAL} > /proc/sys/net/ipv4/ip_local_port_range && exec \"$0\" \"$@\"");
    let mut command = Command::new("unshare");
    command.args(["-n", "sh", "-c", &script]).arg(program);
    command
}

impl Namespace {
    /// None: this user may make none, which is said.
    pub fn start() -> Option<Self> {
        let mut command = isolated("sh");
        command.args(["-c", "echo ready && exec sleep 1000000"]);
        let mut holder = start(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()));
        let mut said = String::new();
        // Until it has said so it may still be in the namespace of all.
        let ready = holder.0.stdout.take().map(|stdout| BufReader::new(stdout).read_line(&mut said));
        if said != "ready\n" {
            skipped(format_args!(
                "no network namespace can be made here ({ready:?} of unshare -n): that needs root, and iproute2"
            ));
            return None;
        }
        Some(Namespace { holder: Some(holder) })
    }

    /// The one of this process, which somebody has started in one of its own.
    pub fn here() -> Self {
        Namespace { holder: None }
    }

    /// The words before a command line that is to run in it.
    pub fn words(&self) -> Vec<String> {
        let enter =
            |holder: &Running| ["nsenter", "-n", "-t", &holder.0.id().to_string(), "--"].map(str::to_owned).to_vec();
        self.holder.as_ref().map(enter).unwrap_or_default()
    }

    /// A program, about to run in it.
    pub fn inside(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = match self.words().as_slice() {
            [] => Command::new(program),
            [enter, words @ ..] => {
                let mut command = Command::new(enter);
                command.args(words).arg(program);
                command
            }
        };
        command.stdin(Stdio::null());
        command
    }

    /// What was to run outside, about to run in it.
    pub fn enter(&self, command: &Command) -> Command {
        let mut inside = self.inside(command.get_program());
        inside.args(command.get_args()).env_clear();
        for (name, value) in command.get_envs() {
            if let Some(value) = value {
                inside.env(name, value);
            }
        }
        inside
    }

    /// Run in it what was to run outside, to its end.
    pub fn finish(&self, command: &Command) -> Finished {
        finish(&mut self.enter(command))
    }

    /// A connection to a server in it. None: there is none yet.
    pub fn connect(&self, port: u16) -> Option<TcpStream> {
        let Some(holder) = &self.holder else { return TcpStream::connect(("127.0.0.1", port)).ok() };
        let namespace = File::open(format!("/proc/{}/ns/net", holder.0.id())).ok()?;
        // The namespace is the thread's: this one ends with it.
        let connect = move || {
            // SAFETY: no memory is involved.
            let entered = unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) } == 0;
            entered.then(|| TcpStream::connect(("127.0.0.1", port)).ok()).flatten()
        };
        std::thread::spawn(connect).join().ok().flatten()
    }

    /// The body of the answer to `GET` of a server in it. None: there is none yet, or it refuses.
    pub fn get(&self, port: u16, path: &str) -> Option<String> {
        let mut stream = self.connect(port)?;
        stream.set_read_timeout(Some(PATIENCE)).ok()?;
        stream
            .write_all(format!("GET {path} HTTP/1.0\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n").as_bytes())
            .ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        (head.split(' ').nth(1) == Some("200")).then(|| body.to_owned())
    }
}
