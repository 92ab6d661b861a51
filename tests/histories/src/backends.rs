//! The backends, each with servers of its own, and what they are set up with.

use std::path::Path;
use std::time::Duration;

use kv_store_tests::clock::Clock;
use kv_store_tests::cluster::RedisCluster;
use kv_store_tests::disk::Disk;
use kv_store_tests::link::Link;
use kv_store_tests::memkv::MemkvServer;
use kv_store_tests::mooncake::{self, Mooncake};
use kv_store_tests::redis::RedisServer;
use kv_store_tests::seaweed::{BUCKET, Seaweed};
use kv_store_tests::servers::Server;

use crate::promise::Promise;
use crate::setting::{Backend, Nemesis, Setting};

/// What runs behind the processes.
pub enum Servers {
    /// A directory, on a disk of its own where that is to become full.
    Files(Option<Disk>),
    Redis(RedisServer),
    Cluster(RedisCluster),
    Memkv(MemkvServer),
    S3(Box<Seaweed>),
    Mooncake(Box<Mooncake>),
}

/// A store that processes meet on.
pub struct Store {
    pub backend: Backend,
    pub servers: Servers,
    /// The wall clock of its servers.
    clock: Clock,
    /// Milliseconds.
    ahead: i64,
    /// Between each process and its server. Empty: they meet it directly.
    pub links: Vec<Link>,
    pub promise: Promise,
    config: String,
    /// The same with more time for calls.
    patient: String,
    /// A directory's URI.
    uri: String,
}

/// For a call that compiles a component on a busy machine.
const COMPILES: Duration = Duration::from_secs(120);
/// Processes of a history at a time.
pub const PROCESSES: usize = 8;

impl Store {
    /// Start what it needs, in `folder`. None: it cannot run here, and why is said.
    pub fn start(backend: Backend, nemesis: Nemesis, folder: &Path, setting: &Setting) -> Option<Self> {
        let clock = Clock::create(&folder.join("server-clock"));
        let data = folder.join("data");
        std::fs::create_dir_all(&data).expect("a temporary directory can be written to");
        let under: Vec<String> = if nemesis == Nemesis::Clock { clock.words() } else { Vec::new() };
        let servers = start(backend, nemesis, (&data, &setting.dist), &under)?;
        if let (Servers::Redis(server), true) = (&servers, setting.unfenced) {
            server.ask("ACL SETUSER default -@scripting");
        }
        let port = match &servers {
            Servers::Redis(server) => Some(server.port),
            Servers::Memkv(server) => Some(server.port),
            Servers::S3(server) => server.gateways.first().copied(),
            _ => None,
        };
        let links = port.into_iter().flat_map(|port| (0..PROCESSES).map(move |_| Link::start(port))).collect();
        let promise = Promise::of(backend.scheme(), backend.deadline())?;
        let promise = if nemesis.loses(backend) { promise.losing() } else { promise };
        let promise = if nemesis == Nemesis::Break { promise.breaking(backend.scheme()) } else { promise };
        let store = data.join("store");
        let uri = match &servers {
            Servers::Files(_) => format!("{}://{}", backend.scheme(), store.display()),
            Servers::Cluster(cluster) => cluster.uri(),
            _ => String::new(),
        };
        let config = |deadline| config(backend, nemesis, setting.component.as_deref(), deadline);
        let (config, patient) = (config(backend.deadline()), config(COMPILES));
        Some(Store { backend, servers, clock, ahead: 0, links, promise, config, patient, uri })
    }

    /// The store's URI for a process.
    pub fn uri(&self, slot: usize) -> String {
        let port = self.links.get(slot).map_or(0, |link| link.port);
        match &self.servers {
            Servers::Files(_) | Servers::Cluster(_) => self.uri.clone(),
            Servers::Redis(_) => format!("redis://127.0.0.1:{port}/0"),
            Servers::Memkv(_) => format!("memkv://127.0.0.1:{port}/histories"),
            Servers::S3(_) => format!("s3+http://127.0.0.1:{port}/{BUCKET}/histories"),
            Servers::Mooncake(_) => mooncake::uri("histories"),
        }
    }

    /// The config of a process. In a third of the rounds each fourth has one instance for which nobody waits: a call that meets another one is
    /// refused. Not in all: what is refused is of unknown end for who was called, and explains much.
    pub fn config(&self, slot: usize, seed: u64) -> String {
        let is_narrow = (seed ^ seed >> 32) % 3 == 2 && slot % 4 == 3;
        let narrow = if is_narrow { "limits.instances = 1\nlimits.waiting = 0\n" } else { "" };
        format!("{}{narrow}", self.config)
    }

    /// For a process that compiles the component, so that no call of the others has to wait for it.
    pub fn patient_config(&self) -> &str {
        &self.patient
    }

    /// What runs a process where it can reach the store.
    pub fn words(&self) -> Vec<String> {
        match &self.servers {
            Servers::Files(Some(disk)) => disk.words(),
            Servers::Mooncake(mooncake) => mooncake.namespace.words(),
            _ => Vec::new(),
        }
    }

    /// The one server, if it is one that is stopped and started by itself.
    pub fn server(&mut self) -> Option<&mut dyn Server> {
        match &mut self.servers {
            Servers::Redis(server) => Some(server),
            Servers::Memkv(server) => Some(server),
            _ => None,
        }
    }
}

fn start(backend: Backend, nemesis: Nemesis, (data, dist): (&Path, &Path), under: &[String]) -> Option<Servers> {
    let under: Vec<&str> = under.iter().map(String::as_str).collect();
    let evicts = nemesis == Nemesis::Evict;
    let path = data.display().to_string();
    Some(match backend {
        Backend::LocalFs | Backend::Segments => Servers::Files(match nemesis {
            Nemesis::Full => Some(Disk::mount(data, "size=24m")?),
            Nemesis::Inodes => Some(Disk::mount(data, "size=256m,nr_inodes=120")?),
            _ => None,
        }),
        Backend::Redis => {
            let mut options = vec!["--appendonly", "yes", "--appendfsync", "always"];
            if evicts {
                options.extend(["--maxmemory", "24mb", "--maxmemory-policy", "allkeys-lru"]);
            }
            Servers::Redis(RedisServer::start_under(&under, &options))
        }
        Backend::Cluster => Servers::Cluster(RedisCluster::start(3)),
        Backend::Memkv => {
            let memory = if evicts { "4MiB" } else { "512MiB" };
            Servers::Memkv(MemkvServer::start_of_under(dist, &under, &["--data", &path, "--memory", memory]))
        }
        Backend::S3 => Servers::S3(Box::new(Seaweed::start(1, 1)?)),
        Backend::Mooncake => Servers::Mooncake(Box::new(match evicts {
            true => Mooncake::start_with(1, &["--eviction_high_watermark_ratio=0.3"])?,
            false => Mooncake::start(2)?,
        })),
    })
}

/// The config file of the processes.
fn config(backend: Backend, nemesis: Nemesis, component: Option<&Path>, deadline: Duration) -> String {
    let evicts = nemesis == Nemesis::Evict;
    let further = match backend {
        Backend::LocalFs if evicts => "options = { max_bytes = '4 MiB', save_grace_s = 1 }",
        // A disk of 24 MiB would be left alone otherwise.
        Backend::LocalFs if nemesis == Nemesis::Full => "options = { keep_free = 0 }",
        Backend::LocalFs => "",
        Backend::Segments if evicts => "options = { max_bytes = '16 MiB', segment_bytes = '2 MiB' }",
        Backend::Segments if nemesis == Nemesis::Full => "options = { max_bytes = '512 MiB', segment_bytes = '2 MiB' }",
        Backend::Segments => "options = { max_bytes = '4 GiB', segment_bytes = '4 MiB' }",
        Backend::Mooncake => mooncake::GRANTS,
        _ => "",
    };
    let component = component.map(|path| format!("component = '{}'\n", path.display())).unwrap_or_default();
    let (deadline, patience) = (deadline.as_millis(), (deadline / 2).as_millis());
    let scheme = backend.scheme();
    let connect = if backend == Backend::Cluster { "connect = ['127.0.0.1:*']\n" } else { "" };
    format!(
        "[backend.{scheme}]\nverify = 'xxh3'\nlimits.breaker_failures = 0\nlimits.idle_ms = 500\nlimits.deadline_ms = {deadline}\n\
         limits.patience_ms = {patience}\n\
         {component}{connect}{further}\n"
    )
}

impl Store {
    /// The wall clock of the servers jumps ahead. Backward is not promised.
    pub fn set_clock_forward(&mut self, ms: u64) {
        self.ahead += ms as i64;
        self.clock.set(self.ahead);
    }
}
