//! A real Mooncake Store, a master and nodes that lend memory, in a network namespace of its own: its servers bind all addresses
//! whatever their flags say. Stopped with its value.
//!
//! The programs are those of the package `mooncake-transfer-engine-non-cuda` of PyPI, which `cargo xtask test` installs.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::consumer::{Running, start};
use crate::namespace::Namespace;
use crate::{not_installed, seaweed};

/// More than any start takes.
const PATIENCE: Duration = Duration::from_secs(60);
const MASTER: u16 = 50051;
const METRICS: u16 = 9003;
const FIRST_NODE: u16 = 8081;
/// How long a reader may read what it was told of, in milliseconds.
const LEASE: &str = "2000";

/// The URI of a namespace in it, from the inside.
pub fn uri(namespace: &str) -> String {
    format!("mooncake://127.0.0.1:{MASTER}/{namespace}")
}

/// What a config must grant for it.
pub const GRANTS: &str = "connect = [\"127.0.0.1:*\"]";

/// The folder of the programs. None: they are not installed, which is said.
fn programs() -> Option<PathBuf> {
    let programs = seaweed::programs();
    if !programs.join("mooncake_master").exists() {
        not_installed("Mooncake");
        return None;
    }
    Some(programs)
}

pub struct Mooncake {
    pub namespace: Namespace,
    pub master: Option<Running>,
    pub nodes: Vec<Running>,
    /// What each node lends.
    memory: String,
    /// Of the master.
    options: Vec<String>,
    programs: PathBuf,
    folder: tempfile::TempDir,
}

impl Mooncake {
    /// Start all of it, in a namespace of its own. None: it cannot run here, and why is said.
    pub fn start(nodes: usize) -> Option<Self> {
        Self::start_with(nodes, &[])
    }

    /// The same, with further options of the master.
    pub fn start_with(nodes: usize, options: &[&str]) -> Option<Self> {
        let programs = programs()?;
        Some(Self::start_in(Namespace::start()?, programs, nodes, "64mb", options))
    }

    /// Start all of it in the namespace of this process, with nodes that lend so much memory (`512mb`).
    pub fn start_here(nodes: usize, memory: &str) -> Option<Self> {
        Some(Self::start_in(Namespace::here(), programs()?, nodes, memory, &[]))
    }

    fn start_in(namespace: Namespace, programs: PathBuf, nodes: usize, memory: &str, options: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let (memory, options) = (memory.to_owned(), options.iter().map(|option| option.to_string()).collect());
        let mut mooncake = Mooncake { namespace, master: None, nodes: Vec::new(), memory, options, programs, folder };
        mooncake.start_master();
        for _ in 0..nodes {
            mooncake.start_node();
        }
        mooncake
    }

    /// A program of the package, about to run in the namespace.
    pub fn program(&self, name: &str) -> Command {
        let mut command = self.namespace.inside(self.programs.join(name));
        command.current_dir(self.folder.path()).env("MC_TCP_BIND_ADDRESS", "127.0.0.1");
        command
    }

    /// Start the master, after a former one has ended too.
    pub fn start_master(&mut self) {
        let mut command = self.server("mooncake_master", "master");
        command.args([
            "--rpc_address=127.0.0.1".to_owned(),
            format!("--rpc_port={MASTER}"),
            "--metrics_host=127.0.0.1".to_owned(),
            format!("--metrics_port={METRICS}"),
            format!("--default_kv_lease_ttl={LEASE}"),
        ]);
        command.args(&self.options);
        self.master = Some(start(&mut command));
        self.wait("the master", |mooncake| {
            mooncake.namespace.connect(MASTER).is_some()
                && mooncake.namespace.get(METRICS, "/get_all_segments").is_some()
        });
    }

    /// Start one more node.
    pub fn start_node(&mut self) {
        let (before, number, memory) = (self.names(), self.nodes.len(), &self.memory);
        let config = self.folder.path().join(format!("node-{number}.json"));
        let text = format!(
            r#"{{"local_hostname":"127.0.0.1","metadata_server":"P2PHANDSHAKE","global_segment_size":"{memory}",
            "local_buffer_size":"16mb","protocol":"tcp","device_name":"","master_server_address":"127.0.0.1:{MASTER}"}}"#
        );
        std::fs::write(&config, text).expect("it is ours");
        let mut command = self.server("mc_store_rest_server", &format!("node-{number}"));
        command.arg("--config").arg(&config).args(["--port", &(FIRST_NODE + number as u16).to_string()]);
        self.nodes.push(start(&mut command));
        // One that was killed may leave the master's list meanwhile.
        self.wait("a node", |mooncake| mooncake.names().iter().any(|name| !before.contains(name)));
    }

    /// The nodes that lend memory.
    fn names(&self) -> Vec<String> {
        let answer = self.namespace.get(METRICS, "/get_all_segments").unwrap_or_default();
        answer.lines().filter(|line| line.contains("127.0.0.1:")).map(str::to_owned).collect()
    }

    /// How many nodes lend memory.
    pub fn segments(&self) -> usize {
        self.names().len()
    }

    /// Wait until so many nodes lend memory, as the master sees it.
    pub fn wait_for_segments(&self, count: usize) {
        self.wait("that many nodes", |mooncake| mooncake.segments() == count);
    }

    /// Whether a node that is frozen was asked for something: bytes wait at a port that it listens at.
    pub fn is_asked(&self, node: &Running) -> bool {
        const LISTENS: &str = "0A";
        let table = std::fs::read_to_string(format!("/proc/{}/net/tcp", node.0.id())).unwrap_or_default();
        let sockets: Vec<(&str, &str, &str)> = table.lines().skip(1).filter_map(socket).collect();
        let is_data_port = |port: &str| {
            let number = u16::from_str_radix(port, 16).unwrap_or(0);
            ![MASTER, METRICS].contains(&number)
                && sockets.iter().any(|(of, state, _)| (*of, *state) == (port, LISTENS))
        };
        sockets.iter().any(|(port, state, waiting)| *state != LISTENS && *waiting != "00000000" && is_data_port(port))
    }

    fn server(&self, program: &str, log: &str) -> Command {
        let log = std::fs::File::create(self.folder.path().join(format!("{log}.log"))).expect("it is ours");
        let mut command = self.program(program);
        command.stdout(log.try_clone().expect("a descriptor")).stderr(log);
        command
    }

    fn wait(&self, what: &str, is_there: impl Fn(&Self) -> bool) {
        let begun = Instant::now();
        while !is_there(self) {
            if begun.elapsed() > PATIENCE {
                panic!("{what} does not start\n{}", self.logs());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// The ends of what the servers have said.
    fn logs(&self) -> String {
        let files = std::fs::read_dir(self.folder.path()).into_iter().flatten().flatten().map(|entry| entry.path());
        let logs = files.filter(|path| path.extension().is_some_and(|extension| extension == "log"));
        let end = |path: PathBuf| {
            let text = std::fs::read_to_string(&path).unwrap_or_default();
            let lines: Vec<&str> = text.lines().collect();
            format!("{}:\n{}\n", path.display(), lines[lines.len().saturating_sub(15)..].join("\n"))
        };
        logs.map(end).collect()
    }

    /// Where the servers write what they say.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }
}

/// Of a line of the kernel's table of sockets: its port, its state, and the bytes that wait to be read.
fn socket(line: &str) -> Option<(&str, &str, &str)> {
    let mut fields = line.split_whitespace().skip(1);
    let (_, port) = fields.next()?.split_once(':')?;
    let state = fields.nth(1)?;
    let (_, waiting) = fields.next()?.split_once(':')?;
    Some((port, state, waiting))
}
