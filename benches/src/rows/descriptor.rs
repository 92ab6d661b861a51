//! What a descriptor costs a value: batches of a handle that has one beside those of a handle that has none, in one store in memory. The rows are
//! the difference, for each value, beside the bound that is in their names.

use anyhow::{Result, ensure};

use crate::batch::{Batches, Blocks};
use crate::consumer::{key, noise};
use crate::measure::{Bench, Rounds, Unit, each};

const SIZE: usize = 4 << 10;
/// Values of a batch.
const VALUES: u64 = 256;
/// Seconds for a value.
const BOUND: f64 = 0.2e-6;

pub fn run(bench: &Bench) -> Result<()> {
    let [get, exists] = ["descriptor/get-of-0.2us", "descriptor/exists-of-0.2us"];
    if !bench.wants_any(&[get, exists]) {
        return Ok(());
    }
    let blocks = || {
        // As an engine's keys: no hashes of the content, so that values lie in envelopes.
        let keys = (0..VALUES).map(|n| [&key(n)[..], b"tokens"].concat()).collect();
        Blocks::new(keys, SIZE, |n| noise(SIZE, n as u64 + 1))
    };
    let described = Batches::open(&bench.ours, "memory://described")?;
    described.describe("sha256:9f86d081")?;
    let plain = Batches::open(&bench.ours, "memory://plain")?;
    let (mut ours, mut theirs) = (blocks(), blocks());
    for (store, blocks) in [(&described, &mut ours), (&plain, &mut theirs)] {
        store.put(blocks)?;
        blocks.block(5).fill(0);
        store.get(blocks)?;
        ensure!(blocks.block(5) == noise(SIZE, 6), "other bytes came back");
    }
    if bench.wants(get) {
        let rounds = bench.rounds(|| each(8, |_| described.get(&mut ours)), || each(8, |_| plain.get(&mut theirs)))?;
        bench.report(get, &of_each_value(&rounds), Unit::Micros, 0, Some(1.0))?;
    }
    if bench.wants(exists) {
        let ask = |store: &Batches<'_>, blocks: &Blocks| {
            each(8, |_| {
                ensure!(store.exist(blocks.keys())? == blocks.len(), "not all are there");
                Ok(())
            })
        };
        let rounds = bench.rounds(|| ask(&described, &ours), || ask(&plain, &theirs))?;
        bench.report(exists, &of_each_value(&rounds), Unit::Micros, 0, Some(1.0))?;
    }
    Ok(())
}

/// What the fastest round of one side took more than that of the other, and the bound: medians of so small a difference are those of what else the
/// machine does. What is lost in the noise is a nanosecond.
fn of_each_value(rounds: &Rounds) -> Rounds {
    let fastest = |side: &[f64]| side.iter().copied().fold(f64::INFINITY, f64::min);
    let more = fastest(&rounds.ours) - fastest(&rounds.peer);
    Rounds { ours: vec![(more / VALUES as f64).max(1e-9)], peer: vec![BOUND] }
}
