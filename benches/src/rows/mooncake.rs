//! Mooncake beside its own Python client, with registered buffers and no memory of its own, and beside its REST service: 64 objects of 1 MiB at
//! once, put and fetched, in memory of another process.

use anyhow::{Result, anyhow, ensure};
use kv_store_tests::mooncake::{Mooncake, uri};
use kv_store_tests::root;

use crate::batch::{Batches, Blocks};
use crate::consumer::{key, noise};
use crate::measure::{Bench, Unit, each};
use crate::peers::process::Peer;

const SIZE: usize = 1 << 20;
const OBJECTS: usize = 64;
/// What the node lends: the objects of both sides, and room so that nothing is evicted.
const MEMORY: &str = "1gb";
/// Where the node serves REST.
const REST_PORT: u16 = 8081;

pub fn run(bench: &Bench) -> Result<()> {
    let names = ["mooncake/put/64x1MiB", "mooncake/get/64x1MiB", "mooncake/rest/put", "mooncake/rest/get"];
    if !bench.wants_any(&names) {
        return Ok(());
    }
    let Some(server) = Mooncake::start_here(1, MEMORY) else { return Ok(()) };
    let ours = Batches::open(&bench.ours, &uri("bench"))?;
    let mut program = server.program("python");
    program.arg(root().join("benches/peers/mooncake_peer.py"));
    program.args([OBJECTS.to_string(), SIZE.to_string(), REST_PORT.to_string()]);
    let mut peer = Peer::start(&mut program)?;
    let keys = (0..OBJECTS as u64).map(|object| key(object).to_vec()).collect();
    let mut memory = Blocks::new(keys, SIZE, |object| noise(SIZE, object as u64 + 1));
    for (name, kind, goal) in [(names[0], "", 1.0), (names[2], "rest-", 5.0)] {
        if !bench.wants(name) {
            continue;
        }
        let our_round = || {
            ours.remove(&mut memory)?;
            Ok(each(1, |_| ours.put(&mut memory))? / OBJECTS as f64)
        };
        let peer_round = || {
            peer.round("remove", 0)?;
            Ok(peer.round(&format!("{kind}put"), 0)? / OBJECTS as f64)
        };
        let rounds = bench.rounds(our_round, peer_round)?;
        bench.report(name, &rounds, Unit::Micros, SIZE, Some(goal))?;
    }
    for (name, kind, goal) in [(names[1], "", 1.0), (names[3], "rest-", 5.0)] {
        if !bench.wants(name) {
            continue;
        }
        ours.remove(&mut memory)?;
        ours.put(&mut memory)?;
        peer.round("remove", 0)?;
        peer.round(&format!("{kind}put"), 0)?;
        memory.block(5).fill(0);
        ours.get(&mut memory)?;
        ensure!(memory.block(5) == noise(SIZE, 6), anyhow!("other bytes came back"));
        let our_round = || Ok(each(1, |_| ours.get(&mut memory))? / OBJECTS as f64);
        let rounds = bench.rounds(our_round, || Ok(peer.round(&format!("{kind}get"), 0)? / OBJECTS as f64))?;
        bench.report(name, &rounds, Unit::Micros, SIZE, Some(goal))?;
    }
    Ok(())
}
