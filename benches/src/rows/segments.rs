//! The segment store, in the page cache: gets beside the native store, which has a file for each chunk and checks nothing; puts and
//! durable saves beside local-fs of the same library.

use std::cell::RefCell;
use std::path::Path;

use anyhow::{Result, ensure};

use super::batch::get_many;
use super::{fs, size_name};
use crate::batch::{Batches, Blocks};
use crate::consumer::{Client, key, noise};
use crate::measure::{Bench, Unit, each};

/// Puts of one round.
const PUTS: usize = 256;

pub fn run(bench: &Bench) -> Result<()> {
    for (size, goal) in [(4 << 10, 1.3), (64 << 10, 1.2), (1 << 20, 0.7)] {
        get_many(bench, &format!("segments/get-many/{}", size_name(size)), uri, size, 1, goal)?;
    }
    put(bench)?;
    save(bench, 96, 64 << 10, 2.5)?;
    save(bench, 64, 1 << 20, 1.2)
}

pub fn uri(folder: &Path) -> String {
    format!("segments://{}", folder.display())
}

fn put(bench: &Bench) -> Result<()> {
    const NAME: &str = "segments/small/put";
    if !bench.wants(NAME) {
        return Ok(());
    }
    let ours = Client::open(&bench.ours, &uri(&bench.folder("ours")?))?;
    let folder = bench.folder("peer")?;
    let peer = Client::open(&bench.ours, &fs::uri(&folder))?;
    let data = noise(4 << 10, 1);
    // Each chunk is new: what is there would not be written.
    let round = |client: &Client, next: &mut u64| {
        *next += PUTS as u64;
        let first = *next;
        each(PUTS, |n| {
            ensure!(client.put(&key(first + n as u64), &data)? == 0, "the chunk was there");
            Ok(())
        })
    };
    let (mut our_next, mut peer_next) = (0, 0);
    let peer_round = || {
        let seconds = round(&peer, &mut peer_next)?;
        fs::empty(&folder.join("chunks"))?;
        Ok(seconds)
    };
    let rounds = bench.rounds(|| round(&ours, &mut our_next), peer_round)?;
    bench.report(NAME, &rounds, Unit::Micros, 4 << 10, Some(5.0))
}

/// A batch and its commit, which ends when all of it survives a power loss.
fn save(bench: &Bench, count: u64, size: usize, goal: f64) -> Result<()> {
    let name = format!("segments/save/{count}x{}", size_name(size));
    if !bench.wants(&name) {
        return Ok(());
    }
    let ours = Batches::open(&bench.ours, &uri(&bench.folder("ours")?))?;
    let folder = bench.folder("peer")?;
    let peer = Batches::open(&bench.ours, &fs::uri(&folder))?;
    let keys = |first: u64| (first..first + count).map(|n| key(n).to_vec()).collect::<Vec<_>>();
    let blocks = RefCell::new(Blocks::new(keys(0), size, |n| noise(size, n as u64 + 1)));
    let manifest = noise(2 << 10, 7);
    let round = |store: &Batches, next: &mut u64| {
        *next += count;
        let mut blocks = blocks.borrow_mut();
        blocks.set_keys(keys(*next));
        each(1, |_| store.save(&mut blocks, c"conversation", &manifest))
    };
    let (mut our_next, mut peer_next) = (0, 0);
    let peer_round = || {
        let seconds = round(&peer, &mut peer_next)?;
        fs::empty(&folder.join("chunks"))?;
        Ok(seconds)
    };
    let rounds = bench.rounds(|| round(&ours, &mut our_next), peer_round)?;
    bench.report(&name, &rounds, Unit::Millis, 0, Some(goal))
}
