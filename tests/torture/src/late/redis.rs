//! A redis-server that is stopped and goes on, and a cluster of three masters that are.

use kv_store_tests::cluster::RedisCluster;
use kv_store_tests::redis::RedisServer;
use kv_store_tests::servers::Server;

use super::{Pair, Target, Way, unfenced};
use crate::process::Story;

impl Target for RedisServer {
    fn uri(&self) -> String {
        format!("redis://127.0.0.1:{}/0", self.port)
    }

    fn hold_up(&mut self) {
        self.freeze(true);
    }

    fn go_on(&mut self) {
        self.freeze(false);
    }
}

impl Target for RedisCluster {
    fn uri(&self) -> String {
        RedisCluster::uri(self)
    }

    fn hold_up(&mut self) {
        (0..self.nodes.len()).for_each(|node| self.freeze(node, true));
    }

    fn go_on(&mut self) {
        (0..self.nodes.len()).for_each(|node| self.freeze(node, false));
    }
}

pub fn server(seed: u64) -> Story {
    let mut server = RedisServer::start(&[]);
    refuse_scripts_if_unfenced(&server);
    super::round(seed, &mut server, &Way::of(seed, Pair::ALL))
}

pub fn cluster(seed: u64) -> Story {
    let mut cluster = RedisCluster::start(3);
    cluster.nodes.iter().for_each(refuse_scripts_if_unfenced);
    super::round(seed, &mut cluster, &Way::of(seed, Pair::ALL))
}

fn refuse_scripts_if_unfenced(server: &RedisServer) {
    if unfenced() {
        server.ask("ACL SETUSER default -@scripting");
    }
}
