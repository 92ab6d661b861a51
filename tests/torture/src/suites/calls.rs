//! One save after another under strace, which kills the process at its n-th system call that writes, syncs or renames, or
//! has that call fail. n goes through all of them, a step at a time that the seed chooses.

use super::crash::{check, words};
use super::{Place, config, scratch};
use crate::process::{Process, Setting, Story};
use crate::workload::Random;

/// Of the store alone: the worker's own lines and the library's loading use others.
const WRITING: &str = "writev,fdatasync,fsync,renameat,renameat2,linkat,mkdirat,sync_file_range";
/// More than a worker makes of them in a thread.
const MOST: u64 = 400;
const OPERATIONS: u64 = 12;

/// Processes of one round.
const PROCESSES: u64 = 40;

pub fn kills(seed: u64) -> Story {
    round(seed, |_, at| format!("{WRITING}:signal=SIGKILL:when={at}"), "")
}

pub fn errors(seed: u64) -> Story {
    round(
        seed,
        |random, at| {
            // Once, or from there on.
            let more = if random.below(2) == 0 { "" } else { "+" };
            match random.below(4) {
                0 => format!("{WRITING}:error=EIO:when={at}{more}"),
                1 => format!("openat2:error=EMFILE:when={at}{more}"),
                _ => format!("{WRITING}:error=ENOSPC:when={at}{more}"),
            }
        },
        "--unsure",
    )
}

fn round(seed: u64, inject: impl Fn(&mut Random, u64) -> String, unsure: &str) -> Story {
    let (scratch, mut random, mut story) = (scratch(), Random(seed), Story::new());
    let place = Place::Directory(scratch.path().join("store"));
    let mut at = 1 + random.below(4);
    for process in 1..=PROCESSES {
        let under = format!("strace -f -qqq -o /dev/null --seccomp-bpf -e trace={WRITING},openat2 -e inject=");
        let mut under = words(&under);
        if let Some(last) = under.last_mut() {
            *last += &inject(&mut random, at);
        }
        let options = words(&format!("--process {process} --operations {OPERATIONS} {unsure}"));
        let setting = Setting { config: config("local-fs", ""), under, options };
        let seed = random.next();
        let status = Process::start(scratch.path(), &place.uri(), seed, &setting).complete(&mut story);
        if status.is_none_or(|status| !status.success()) {
            story.kills += 1;
            at += 1 + random.below(4);
        } else {
            // Past the last one, or none was killed.
            at = (at * 2 / 3 + random.below(4)).clamp(1, MOST);
        }
        if !story.wrong.is_empty() {
            return story;
        }
    }
    check(&place, scratch.path(), seed, &mut story);
    story
}
