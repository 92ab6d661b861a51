//! One save after another under strace, which kills the process at its n-th system call that writes, syncs or renames, or
//! has that call fail. n goes through all of them, a step at a time that the seed chooses.

use std::path::Path;

use super::crash::{check_as, words};
use super::{Place, config, scratch};
use crate::process::{Process, Setting, Story};
use crate::workload::Random;

/// Of the store alone: the worker's own lines and the library's loading use others.
const PLACING: &str = "writev,renameat,renameat2,linkat,mkdirat";
const PLACING_SEGMENTS: &str = "pwritev,pwrite64,fallocate,renameat,unlinkat";
const SYNCING: &str = "fdatasync,fsync,sync_file_range";
/// Opens below the store's directory.
const OPENING: &str = "openat2";
/// More than a worker makes of them in a thread.
const MOST: u64 = 400;
const OPERATIONS: u64 = 12;
/// Processes of one round.
const PROCESSES: u64 = 40;

pub fn kills(seed: u64) -> Story {
    killed(Place::directory, PLACING, seed)
}

pub fn kills_of_segments(seed: u64) -> Story {
    killed(Place::segments, PLACING_SEGMENTS, seed)
}

fn killed(place: fn(&Path) -> Place, placing: &str, seed: u64) -> Story {
    let inject = |_: &mut Random, at| format!("{placing},{SYNCING}:signal=SIGKILL:when={at}");
    let mut story = round(seed, (place, placing), inject, "", "--strict");
    if story.wrong.is_empty() && story.kills < PROCESSES / 4 {
        story
            .wrong
            .push(format!("only {} of {PROCESSES} were killed: strace does not do what it is asked", story.kills));
    }
    story
}

pub fn errors(seed: u64) -> Story {
    failing(Place::directory, PLACING, seed)
}

pub fn errors_of_segments(seed: u64) -> Story {
    failing(Place::segments, PLACING_SEGMENTS, seed)
}

fn failing(place: fn(&Path) -> Place, placing: &str, seed: u64) -> Story {
    // Once, or from there on.
    let more = |random: &mut Random| if random.below(2) == 0 { "" } else { "+" };
    let errors = |random: &mut Random, at| match random.below(3) {
        0 => format!("{OPENING}:error=EMFILE:when={at}{}", more(random)),
        1 => format!("{placing}:error=EIO:when={at}{}", more(random)),
        _ => format!("{placing}:error=ENOSPC:when={at}{}", more(random)),
    };
    let mut story = round(seed, (place, placing), errors, "--unsure", "--strict");
    // What the kernel could not write out is thrown away, and earlier manifests may name it. None names another's bytes.
    let errors = |random: &mut Random, at| format!("{SYNCING}:error=EIO:when={at}{}", more(random));
    story.add(round(seed, (place, placing), errors, "--unsure", "--lying"));
    if story.wrong.is_empty() && story.failed < PROCESSES / 4 {
        story.wrong.push(format!("only {} saves failed: strace does not do what it is asked", story.failed));
    }
    story
}

/// `options` of each worker, and of the last one.
fn round(
    seed: u64,
    (place, placing): (fn(&Path) -> Place, &str),
    inject: impl Fn(&mut Random, u64) -> String,
    options: &str,
    last: &str,
) -> Story {
    let (scratch, mut random, mut story) = (scratch(), Random(seed), Story::new());
    let place = place(&scratch.path().join("store"));
    let mut at = 1 + random.below(4);
    for process in 1..=PROCESSES {
        // Without --seccomp-bpf, with which it sends no signal.
        let under = format!("strace -f -qqq -o /dev/null -e trace={placing},{SYNCING},{OPENING} -e inject=");
        let mut under = words(&under);
        if let Some(last) = under.last_mut() {
            *last += &inject(&mut random, at);
        }
        let options = words(&format!("--process {process} --operations {OPERATIONS} {options}"));
        let setting = Setting { config: config(place.scheme(), ""), under, options };
        let (seed, failed) = (random.next(), story.failed);
        let status = Process::start(scratch.path(), &place.uri, seed, &setting).complete(&mut story);
        let killed = status.is_none_or(|status| !status.success());
        story.kills += u64::from(killed);
        // Onwards, until nothing is met any more.
        let met = killed || story.failed > failed;
        at = if met { at + 1 + random.below(4) } else { (at / 2 + random.below(4)).clamp(1, MOST) };
        if !story.wrong.is_empty() {
            return story;
        }
    }
    check_as(last, &place, scratch.path(), seed, &mut story);
    story
}
