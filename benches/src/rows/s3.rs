//! S3 beside `object_store`, on one SeaweedFS: 64 objects of 1 MiB at once, put and fetched.

use anyhow::{Context, Result};
use kv_store_tests::seaweed::{ACCESS_KEY_ID, BUCKET, SECRET_ACCESS_KEY, Seaweed};

use crate::batch::{Batches, Blocks};
use crate::consumer::{key, noise};
use crate::measure::{Bench, Unit, each};
use crate::peers::process::{Peer, program};

const SIZE: usize = 1 << 20;
const OBJECTS: usize = 64;

pub fn run(bench: &Bench) -> Result<()> {
    let names = ["s3/put/64x1MiB", "s3/get/64x1MiB"];
    if !bench.wants_any(&names) {
        return Ok(());
    }
    let Some(mut program) = program("s3-peer") else { return Ok(()) };
    let Some(server) = Seaweed::start(1, 1) else { return Ok(()) };
    // SAFETY: nothing else runs yet that reads the environment.
    unsafe {
        std::env::set_var("S3_ACCESS_KEY_ID", ACCESS_KEY_ID);
        std::env::set_var("S3_SECRET_ACCESS_KEY", SECRET_ACCESS_KEY);
    }
    let port = server.gateways.first().context("a gateway")?;
    program.args([format!("http://127.0.0.1:{port}"), BUCKET.to_owned(), OBJECTS.to_string(), SIZE.to_string()]);
    let mut peer = Peer::start(&mut program)?;
    let ours = Batches::open(&bench.ours, &server.uri("bench"))?;
    let keys = |first: u64| (0..OBJECTS as u64).map(|object| key(first + object).to_vec()).collect::<Vec<_>>();
    // Made once, as those of the peer are.
    let mut memory = Blocks::new(keys(0), SIZE, |object| noise(SIZE, object as u64 + 1));
    if bench.wants(names[0]) {
        let (mut next, mut peers_next) = (0, 0);
        let our_round = || {
            next += OBJECTS as u64;
            memory.set_keys(keys(next));
            Ok(each(1, |_| ours.put(&mut memory))? / OBJECTS as f64)
        };
        let peer_round = || {
            peers_next += OBJECTS as u64;
            Ok(peer.round("put", peers_next)? / OBJECTS as f64)
        };
        let rounds = bench.rounds(our_round, peer_round)?;
        bench.report(names[0], &rounds, Unit::Micros, SIZE, Some(1.0))?;
    }
    if bench.wants(names[1]) {
        const FIRST: u64 = 1 << 40;
        memory.set_keys(keys(FIRST));
        ours.put(&mut memory)?;
        peer.round("put", FIRST)?;
        let our_round = || Ok(each(1, |_| ours.get(&mut memory))? / OBJECTS as f64);
        let rounds = bench.rounds(our_round, || Ok(peer.round("get", FIRST)? / OBJECTS as f64))?;
        bench.report(names[1], &rounds, Unit::Micros, SIZE, Some(1.0))?;
    }
    Ok(())
}
