//! A real Redis Cluster of masters on free ports of the loopback interface, stopped with its value.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::redis::RedisServer;
use crate::servers::{Server, free_port};

/// More than a cluster takes to agree.
const PATIENCE: Duration = Duration::from_secs(60);
const SLOTS: usize = 16_384;

pub struct RedisCluster {
    /// First the masters, as the cluster was made.
    pub nodes: Vec<RedisServer>,
}

/// A node that knows no other.
fn start_node(full_coverage: bool) -> RedisServer {
    let bus = free_port().to_string();
    let full_coverage = if full_coverage { "yes" } else { "no" };
    RedisServer::start(&[
        "--cluster-enabled",
        "yes",
        "--cluster-port",
        &bus,
        "--cluster-node-timeout",
        "2000",
        "--cluster-require-full-coverage",
        full_coverage,
    ])
}

impl RedisCluster {
    /// Start so many masters, each with an equal share of the slots in the order of the nodes. One dead master takes its own slots
    /// away, and no other's.
    pub fn start(masters: usize) -> Self {
        Self::start_with(masters, 0, false)
    }

    /// The same, with so many replicas for each master. `full_coverage`: a cluster of which a slot is not served serves none, as is
    /// the default.
    pub fn start_with(masters: usize, replicas: usize, full_coverage: bool) -> Self {
        let count = masters * (1 + replicas);
        let cluster = RedisCluster { nodes: (0..count).map(|_| start_node(full_coverage)).collect() };
        let mut create = Command::new("redis-cli");
        create.args(["--cluster", "create"]).args(cluster.nodes.iter().map(|node| format!("127.0.0.1:{}", node.port)));
        create.args(["--cluster-replicas", &replicas.to_string()]);
        let created = create.arg("--cluster-yes").stdin(Stdio::null()).output().expect("redis-cli is installed");
        assert!(created.status.success(), "{}", String::from_utf8_lossy(&created.stdout));
        cluster.wait("the cluster does not come up", |cluster| {
            let replicates = |node: &RedisServer| node.ask("INFO replication").contains("master_link_status:up");
            cluster.is_up() && cluster.nodes.iter().filter(|node| replicates(node)).count() == masters * replicas
        });
        cluster
    }

    /// All nodes find the cluster whole.
    fn is_up(&self) -> bool {
        self.nodes.iter().all(|node| node.ask("CLUSTER INFO").contains("cluster_state:ok"))
    }

    fn wait(&self, failure: &str, is_so: impl Fn(&Self) -> bool) {
        let begun = Instant::now();
        while !is_so(self) {
            assert!(begun.elapsed() < PATIENCE, "{failure}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Start one more master, without slots.
    pub fn add_node(&mut self) {
        let node = start_node(false);
        node.ask(&format!("CLUSTER MEET 127.0.0.1 {} {}", self.nodes[0].port, self.nodes[0].bus_port()));
        self.nodes.push(node);
        let count = format!("cluster_known_nodes:{}", self.nodes.len());
        self.wait("a node is not met", |cluster| {
            cluster.is_up() && cluster.nodes.iter().all(|node| node.ask("CLUSTER INFO").contains(&count))
        });
    }

    /// Move slots, with what lies in them, while others use them.
    pub fn reshard(&self, from: usize, to: usize, slots: usize) -> Child {
        let mut reshard = Command::new("redis-cli");
        reshard.args(["--cluster", "reshard", &format!("127.0.0.1:{}", self.nodes[from].port)]);
        reshard.args(["--cluster-from", &self.id(from), "--cluster-to", &self.id(to)]);
        reshard.args(["--cluster-slots", &slots.to_string(), "--cluster-yes"]);
        reshard.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        reshard.spawn().expect("redis-cli is installed")
    }

    /// The node that replicates a master.
    pub fn replica_of(&self, master: usize) -> usize {
        let port = format!("master_port:{}\r", self.nodes[master].port);
        let replicates = |node: &RedisServer| node.ask("INFO replication").contains(&port);
        self.nodes.iter().position(replicates).expect("each master has a replica")
    }

    /// The URI that names all nodes.
    pub fn uri(&self) -> String {
        let nodes: Vec<String> = self.nodes.iter().map(|node| format!("127.0.0.1:{}", node.port)).collect();
        format!("redis://{}/", nodes.join(","))
    }

    /// Which node serves a key that is printable.
    pub fn node_of(&self, key: &str) -> usize {
        let answer = self.nodes[0].ask(&format!("CLUSTER KEYSLOT {key}"));
        let slot: usize = answer.lines().next().and_then(|line| line.strip_prefix(':')?.parse().ok()).expect("a slot");
        let share = SLOTS as f64 / self.nodes.len() as f64;
        (slot as f64 / share) as usize
    }

    /// The node's name in the cluster.
    pub fn id(&self, node: usize) -> String {
        self.nodes[node].ask("CLUSTER MYID").lines().nth(1).expect("a name").to_owned()
    }

    /// SIGKILL one node.
    pub fn stop(&mut self, node: usize) {
        self.nodes[node].stop();
    }

    /// Freeze one node, or let it go on.
    pub fn freeze(&mut self, node: usize, frozen: bool) {
        self.nodes[node].freeze(frozen);
    }
}
