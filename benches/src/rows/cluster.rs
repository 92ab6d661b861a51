//! A Redis Cluster of three masters beside the `redis` crate's cluster client: batches of 256 x 64 KiB, put and fetched.

use anyhow::Result;
use kv_store_tests::cluster::RedisCluster;

use crate::batch::{Batches, Blocks};
use crate::consumer::{key, noise};
use crate::measure::{Bench, Unit, each};
use crate::peers::process::{Peer, program};

const MASTERS: usize = 3;
const SIZE: usize = 64 << 10;
const BLOCKS: usize = 256;

pub fn run(bench: &Bench) -> Result<()> {
    let names = ["cluster/put/256x64KiB", "cluster/get/256x64KiB"];
    if !bench.wants_any(&names) {
        return Ok(());
    }
    let Some(mut program) = program("cluster-peer") else { return Ok(()) };
    let cluster = RedisCluster::start(MASTERS);
    let ours = Batches::open(&bench.ours, &cluster.uri())?;
    program.args([BLOCKS.to_string(), SIZE.to_string()]);
    program.args(cluster.nodes.iter().map(|node| format!("redis://127.0.0.1:{}/", node.port)));
    let mut peer = Peer::start(&mut program)?;
    let keys = (0..BLOCKS as u64).map(|block| key(block).to_vec()).collect();
    let mut memory = Blocks::new(keys, SIZE, |block| noise(SIZE, block as u64 + 1));
    let empty = || cluster.nodes.iter().for_each(|node| drop(node.ask("FLUSHALL")));
    if bench.wants(names[0]) {
        let our_round = || {
            empty();
            Ok(each(1, |_| ours.put(&mut memory))? / BLOCKS as f64)
        };
        let peer_round = || {
            empty();
            Ok(peer.round("put", 0)? / BLOCKS as f64)
        };
        let rounds = bench.rounds(our_round, peer_round)?;
        bench.report(names[0], &rounds, Unit::Micros, SIZE, Some(1.3))?;
    }
    if bench.wants(names[1]) {
        empty();
        ours.put(&mut memory)?;
        peer.round("put", 0)?;
        let our_round = || Ok(each(1, |_| ours.get(&mut memory))? / BLOCKS as f64);
        let rounds = bench.rounds(our_round, || Ok(peer.round("get", 0)? / BLOCKS as f64))?;
        bench.report(names[1], &rounds, Unit::Micros, SIZE, Some(1.3))?;
    }
    Ok(())
}
