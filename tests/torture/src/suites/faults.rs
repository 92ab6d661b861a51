//! Random operations of several threads while calls and answers are spoiled, and then a look without faults: what was
//! acknowledged is there. Where the backend lies nothing can be, but no wrong byte comes out, and nothing hangs or leaks.

use super::crash::{check, words};
use super::{Place, config, scratch};
use crate::process::{Process, Setting, Story};
use crate::workload::Random;

const OPERATIONS: u64 = 1500;

pub fn local_fs(seed: u64) -> Story {
    let scratch = scratch();
    round(seed, Place::directory(&scratch.path().join("store")), false)
}

pub fn redis(seed: u64) -> Story {
    round(seed, Place::redis(), false)
}

pub fn memkv(seed: u64) -> Story {
    round(seed, Place::memkv(&[]), false)
}

pub fn lies_local_fs(seed: u64) -> Story {
    let scratch = scratch();
    round(seed, Place::directory(&scratch.path().join("store")), true)
}

pub fn lies_segments(seed: u64) -> Story {
    let scratch = scratch();
    round(seed, Place::segments(&scratch.path().join("store")), true)
}

pub fn lies_redis(seed: u64) -> Story {
    round(seed, Place::redis(), true)
}

fn round(seed: u64, place: Place, lying: bool) -> Story {
    let (scratch, mut random, mut story) = (scratch(), Random(seed), Story::new());
    story.lying = lying;
    // One thread in every fourth round, and one instance with it: that is replayed to the letter.
    let threads = if random.below(4) == 0 { 1 } else { 2 + random.below(5) };
    let instances = if threads == 1 { "limits.instances = 1\n" } else { "" };
    let mut chance = |most: u64| random.below(most + 1) as f64 / 1000.0;
    let [fail, delay, short, flip, cut, trap] = [100, 30, 500, 100, 50, 30].map(&mut chance);
    let lie = if lying { 0.02 + chance(100) } else { 0.0 };
    let fault = format!(
        "[backend.{}.fault]\nseed = {}\nfail = {fail}\ndelay = {delay}\ndelay_ms = 3\nshort = {short}\nflip = {flip}\n\
         cut = {cut}\ntrap = {trap}\nlie = {lie}",
        place.scheme(),
        seed >> 1
    );
    let lies = if lying { "--lying" } else { "" };
    let setting = Setting {
        config: config(place.scheme(), &format!("options = {{}}\n{instances}{fault}")),
        options: words(&format!("--unsure --damaging --threads {threads} --operations {OPERATIONS} {lies}")),
        ..Setting::default()
    };
    Process::start(scratch.path(), &place.uri, seed, &setting).complete(&mut story);
    if !lying {
        check(&place, scratch.path(), seed, &mut story);
    }
    story
}
