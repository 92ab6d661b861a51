//! A real redis-server on a free port of the loopback interface, in a folder of its own, stopped with its value; or a valkey-server, which is
//! to pass the same tests.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use crate::consumer::{Running, start};
use crate::servers::{Server, free_port};
use crate::tls::{self, Certificate};
use crate::{not_installed, seaweed};

/// A server that lives and answers nothing for so long hangs. It waits for a busy machine, and one that ends is not waited for.
const PATIENCE: Duration = Duration::from_secs(300);

/// The server: Debian's redis-server, or in the tests of `tests/valkey.rs`, which are those of Redis once more, Valkey's.
fn program() -> PathBuf {
    static PROGRAM: LazyLock<PathBuf> = LazyLock::new(|| {
        let test = std::env::current_exe().unwrap_or_default();
        let is_valkeys = test.file_name().is_some_and(|name| name.to_string_lossy().starts_with("valkey-"));
        let valkey = valkey().filter(|_| is_valkeys);
        if is_valkeys && valkey.is_none() {
            not_installed("Valkey");
        }
        valkey.unwrap_or_else(|| "redis-server".into())
    });
    PROGRAM.clone()
}

/// The program of Valkey, where it is installed.
fn valkey() -> Option<PathBuf> {
    Some(seaweed::programs().join("valkey-server")).filter(|program| program.exists())
}

pub struct RedisServer {
    /// The server, and the program that runs it with arguments, if it is not started by itself.
    program: PathBuf,
    under: Vec<String>,
    pub port: u16,
    /// 0: it speaks no TLS.
    pub tls_port: u16,
    options: Vec<String>,
    folder: tempfile::TempDir,
    process: Option<Running>,
}

impl RedisServer {
    /// Start a server with further options, `--name value`.
    pub fn start(options: &[&str]) -> Self {
        Self::start_at(program(), options.iter().map(|option| option.to_string()).collect(), 0)
    }

    /// Start a server under another program, which is named with its arguments.
    pub fn start_under(under: &[&str], options: &[&str]) -> Self {
        let options = options.iter().map(|option| option.to_string()).collect();
        Self::start_by(under.iter().map(|word| word.to_string()).collect(), program(), options, 0)
    }

    /// Start a Valkey. None: it is not installed, which is said.
    pub fn start_valkey() -> Option<Self> {
        let program = valkey();
        if program.is_none() {
            not_installed("Valkey");
        }
        Some(Self::start_at(program?, Vec::new(), 0))
    }

    /// Start a server that speaks TLS too, as whom the certificate says.
    pub fn start_tls(certificate: &Certificate, options: &[&str]) -> Self {
        let tls_port = free_port();
        let path = |path: &Path| path.to_str().expect("a path in UTF-8").to_owned();
        let tls = [
            ("--tls-port", tls_port.to_string()),
            ("--tls-cert-file", path(&certificate.chain)),
            ("--tls-key-file", path(&certificate.key)),
            ("--tls-ca-cert-file", path(&tls::certificates().ca)),
            ("--tls-auth-clients", "no".to_owned()),
        ];
        let tls = tls.into_iter().flat_map(|(name, value)| [name.to_owned(), value]);
        Self::start_at(program(), tls.chain(options.iter().map(|option| option.to_string())).collect(), tls_port)
    }

    fn start_at(program: PathBuf, options: Vec<String>, tls_port: u16) -> Self {
        Self::start_by(Vec::new(), program, options, tls_port)
    }

    fn start_by(under: Vec<String>, program: PathBuf, options: Vec<String>, tls_port: u16) -> Self {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let mut server = RedisServer { program, under, port: free_port(), tls_port, options, folder, process: None };
        server.restart();
        server
    }

    /// Of a node of a cluster: where it talks with the others.
    pub fn bus_port(&self) -> &str {
        let named = self.options.iter().skip_while(|option| *option != "--cluster-port").nth(1);
        named.expect("it is a node of a cluster")
    }

    fn answers(&self) -> bool {
        let Ok(mut stream) = TcpStream::connect(("127.0.0.1", self.port)) else { return false };
        let mut first = [0];
        // "+PONG", or that a password is wanted.
        stream.write_all(b"PING\r\n").and_then(|()| stream.read_exact(&mut first)).is_ok()
    }

    /// What the server answers to one command, as it comes.
    pub fn ask(&self, command: &str) -> String {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).expect("the server answers");
        stream.write_all(format!("{command}\r\nQUIT\r\n").as_bytes()).expect("the server reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("the server answers text");
        answer
    }
}

impl Server for RedisServer {
    fn process(&mut self) -> &mut Option<Running> {
        &mut self.process
    }

    fn restart(&mut self) {
        self.stop();
        let mut command = match self.under.split_first() {
            Some((under, arguments)) => {
                let mut command = Command::new(under);
                command.args(arguments).arg(&self.program);
                command
            }
            None => Command::new(&self.program),
        };
        command.args(["--port", &self.port.to_string(), "--bind", "127.0.0.1", "--save", "", "--databases", "10000"]);
        command.arg("--dir").arg(self.folder.path()).args(&self.options);
        self.process = Some(start(command.stdin(Stdio::null()).stdout(Stdio::null())));
        let begun = Instant::now();
        while !self.answers() {
            let ended = self.process.as_mut().and_then(|process| process.0.try_wait().ok().flatten());
            assert!(ended.is_none(), "{} does not start: {ended:?}", self.program.display());
            assert!(begun.elapsed() < PATIENCE, "{} does not answer", self.program.display());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
