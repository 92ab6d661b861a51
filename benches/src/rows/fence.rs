//! What a fence against late changes costs: the same library on a server that takes it, and as the peer on one that does not. Redis: scripts
//! beside plain commands, for a user who may run none. S3: conditional requests beside plain ones, on a small server of the tests, which
//! ignores conditions for the peer: what is measured is the library's part.

use anyhow::{Result, ensure};
use kv_store_tests::objects::ObjectServer;
use kv_store_tests::redis::RedisServer;
use kv_store_tests::seaweed::{ACCESS_KEY_ID, SECRET_ACCESS_KEY};

use crate::batch::{Batches, Blocks};
use crate::consumer::{Client, key, noise};
use crate::measure::{Bench, Unit, each};

const SIZE: usize = 2 << 10;
/// Changes of a round.
const COUNT: usize = 64;

pub fn run(bench: &Bench) -> Result<()> {
    let names = ["fence/put_manifest/redis", "fence/delete_manifest/redis", "fence/replace/redis"];
    if bench.wants_any(&names) {
        let (fenced, plain) = (RedisServer::start(&[]), RedisServer::start(&[]));
        plain.ask("ACL SETUSER default -@scripting");
        let uri = |server: &RedisServer| format!("redis://127.0.0.1:{}/0", server.port);
        let (ours, peers) = (uri(&fenced), uri(&plain));
        manifests(bench, [names[0], names[1]], &ours, &peers)?;
        replace(bench, names[2], &ours, &peers)?;
        let ran_scripts = |server: &RedisServer| server.ask("INFO commandstats").contains("cmdstat_evalsha:");
        ensure!(ran_scripts(&fenced) && !ran_scripts(&plain), "the fence is not what differs");
    }
    let names = ["fence/put_manifest/s3", "fence/delete_manifest/s3"];
    if bench.wants_any(&names) {
        // SAFETY: nothing else runs yet that reads the environment.
        unsafe {
            std::env::set_var("S3_ACCESS_KEY_ID", ACCESS_KEY_ID);
            std::env::set_var("S3_SECRET_ACCESS_KEY", SECRET_ACCESS_KEY);
        }
        let (fenced, plain) = (ObjectServer::start(), ObjectServer::careless());
        let uri = |server: &ObjectServer| format!("s3+http://127.0.0.1:{}/bench/fence", server.port);
        manifests(bench, names, &uri(&fenced), &uri(&plain))?;
    }
    Ok(())
}

/// A name that is published again and again, and names that are deleted once each.
fn manifests(bench: &Bench, [put, delete]: [&str; 2], ours: &str, peers: &str) -> Result<()> {
    let (ours, peers, data) = (Client::open(&bench.ours, ours)?, Client::open(&bench.ours, peers)?, noise(SIZE, 1));
    if bench.wants(put) {
        let publish = |client: &Client<'_>| each(COUNT, |_| client.publish("again", &data));
        let rounds = bench.rounds(|| publish(&ours), || publish(&peers))?;
        bench.report(put, &rounds, Unit::Micros, SIZE, None)?;
    }
    if bench.wants(delete) {
        let unpublish = |client: &Client<'_>| {
            let names: Vec<String> = (0..COUNT).map(|number| format!("once-{number}")).collect();
            names.iter().try_for_each(|name| client.publish(name, &data))?;
            let mut names = names.iter();
            each(COUNT, |_| names.next().map_or(Ok(()), |name| client.unpublish(name)))
        };
        let rounds = bench.rounds(|| unpublish(&ours), || unpublish(&peers))?;
        bench.report(delete, &rounds, Unit::Micros, SIZE, None)?;
    }
    Ok(())
}

/// Chunks that are there, replaced in one batch.
fn replace(bench: &Bench, name: &str, ours: &str, peers: &str) -> Result<()> {
    if !bench.wants(name) {
        return Ok(());
    }
    let (ours, peers) = (Batches::open(&bench.ours, ours)?, Batches::open(&bench.ours, peers)?);
    let keys = (0..COUNT as u64).map(|number| key(number).to_vec()).collect();
    let mut blocks = Blocks::new(keys, SIZE, |index| noise(SIZE, index as u64 + 1));
    let replace = |batches: &Batches<'_>, blocks: &mut Blocks| Ok(each(1, |_| batches.replace(blocks))? / COUNT as f64);
    let mut peers_blocks = blocks.clone();
    let rounds = bench.rounds(|| replace(&ours, &mut blocks), || replace(&peers, &mut peers_blocks))?;
    bench.report(name, &rounds, Unit::Micros, SIZE, None)
}
