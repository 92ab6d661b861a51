//! Mooncake, which loses nodes, its master, objects and writers. What it has acknowledged it may lose, all but in the first suite; what is
//! never answered is a wrong byte, an empty value in place of another, or an older manifest.

use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use kv_store_tests::consumer::{Finished, consumer};
use kv_store_tests::mooncake::{GRANTS, Mooncake, uri};
use kv_store_tests::{dist, root};

use super::{Load, config, scratch};
use crate::process::Story;

const OPERATIONS: u64 = 600;
/// Of each of the two workers under eviction.
const EVICTED_OPERATIONS: u64 = 3000;
/// Reads after the loss of a node, and the chunks that are read.
const READS: usize = 1000;
const CHUNKS: usize = 20;
/// Bytes that are stored into a node of 64 MiB to have other objects evicted.
const FILL: usize = 120 << 20;
/// More writers than are killed, and than are in the way of others.
const STEPS: usize = 150;

/// The store that the workers use.
const STORE: &str = "torture";

/// Single calls of a consumer, in a process of its own.
fn calls(mooncake: &Mooncake, table: &str, under: &[String], calls: &[&str]) -> Finished {
    let scratch = scratch();
    let path = scratch.path().join("config.toml");
    std::fs::write(&path, config("mooncake", &format!("{GRANTS}\nlimits.patience_ms = 1000\n{table}")))
        .expect("it is ours");
    let consumer = consumer("calls");
    let mut command = match under {
        [] => Command::new(consumer.get_program()),
        [program, words @ ..] => {
            let mut command = Command::new(program);
            command.args(words).arg(consumer.get_program());
            command
        }
    };
    let environment = consumer.get_envs().filter_map(|(name, value)| Some((name, value?)));
    command.args([&uri(STORE)]).args(calls).envs(environment).env("KV_STORE_WASM_CONFIG", &path);
    mooncake.namespace.finish(&command)
}

/// Both nodes have every object: all of it is read without one of them, and every read of it.
pub fn node_of_two(_seed: u64) -> Story {
    let mut story = Story::new();
    let Some(mut mooncake) = Mooncake::start(2) else { return story };
    let table = "options = { replicas = '2' }";
    let hashes: Vec<String> = (0..CHUNKS).map(|number| hex::encode(format!("chunk {number:04}"))).collect();
    let mut save: Vec<&str> = hashes.iter().flat_map(|hash| ["put", hash, hash]).collect();
    save.extend(["publish", "m", "manifest"]);
    let saved = calls(&mooncake, table, &[], &save);
    if !saved.stdout.ends_with("publish 0\n") {
        story.wrong.push(format!("nothing was saved: {}{}", saved.stdout, saved.stderr));
        return story;
    }
    mooncake.nodes[0].kill();
    story.kills += 1;
    let read: Vec<&str> = hashes.iter().cycle().take(READS).flat_map(|hash| ["get", hash.as_str()]).collect();
    let read = calls(&mooncake, table, &[], &[&read[..], &["read", "m"]].concat());
    story.operations += READS as u64;
    let mut lines = read.stdout.lines().skip(1);
    let right = |(hash, line): (&String, &str)| line == format!("get 0 {}", hex::encode(hash));
    let found = hashes.iter().cycle().zip(lines.by_ref().take(READS)).filter(|pair| right(*pair)).count();
    if found != READS || lines.next() != Some(&format!("read 0 {}", hex::encode("manifest"))) {
        story.wrong.push(format!("{} of {READS} reads failed\n{}", READS - found, read.stderr));
    }
    story
}

/// Nodes come and go while a worker is at work.
pub fn members(seed: u64) -> Story {
    let Some(mut mooncake) = Mooncake::start(2) else { return Story::new() };
    let (uri, under) = (uri(STORE), mooncake.namespace.words());
    let replicas = 1 + seed % 2;
    let table = format!("{GRANTS}\noptions = {{ replicas = '{replicas}' }}");
    let load = Load { table: &table, under, losing: true, ..Load::on(&uri, OPERATIONS) };
    let mut away = 0;
    load.run(seed, |random, story, step| {
        // Mostly one more than there must be.
        match step % 2 {
            0 => mooncake.start_node(),
            _ => {
                let node = away;
                away += 1;
                match random.below(2) {
                    // It says so before it leaves.
                    0 => mooncake.nodes[node].signal(15),
                    _ => {
                        mooncake.nodes[node].kill();
                        story.kills += 1;
                    }
                }
            }
        }
        step < 5
    })
}

/// With the master all keys are gone; what is saved afterwards is there.
pub fn master(seed: u64) -> Story {
    let Some(mut mooncake) = Mooncake::start(2) else { return Story::new() };
    let (uri, under) = (uri(STORE), mooncake.namespace.words());
    let load = Load { table: GRANTS, under, losing: true, ..Load::on(&uri, OPERATIONS) };
    let mut story = load.run(seed, |_, story, step| {
        match step {
            0 | 4 => {
                mooncake.master.take().expect("it runs").kill();
                story.kills += 1;
            }
            2 | 6 => {
                mooncake.start_master();
                mooncake.wait_for_segments(2);
            }
            _ => {}
        }
        step < 7
    });
    let healed =
        calls(&mooncake, "", &[], &["put", "aa", "x", "publish", "healed", "y", "get", "aa", "read", "healed"]);
    if healed.stdout != "open ok\nput 0\npublish 0\nget 0 78\nread 0 79\n" {
        story.wrong.push(format!("the store does not heal: {}{}", healed.stdout, healed.stderr));
    }
    story
}

/// More is stored than the node has room for, while the workers of two hosts save and restore: each looks for an older manifest than
/// it was answered for last, and for one that is not whole.
///
/// The master evicts all the time, and not only when there is no room: what was just published goes first, for nobody has a lease of it.
pub fn evicted(seed: u64) -> Story {
    let evicting = ["--eviction_high_watermark_ratio=0.2", "--eviction_ratio=0.2"];
    let Some(mooncake) = Mooncake::start_with(1, &evicting) else { return Story::new() };
    let (own, others) = (uri(STORE), uri("others"));
    let under = mooncake.namespace.words();
    let load =
        |uri, operations| Load { table: GRANTS, under: under.clone(), losing: true, ..Load::on(uri, operations) };
    let (load, other) = (load(&own, EVICTED_OPERATIONS), load(&others, EVICTED_OPERATIONS));
    let ended = AtomicUsize::new(0);
    let (mut story, beside) = std::thread::scope(|scope| {
        let ended = &ended;
        let beside = scope.spawn(move || {
            let story = other.work(seed ^ 1, |_, _, _| false);
            ended.fetch_add(1, SeqCst);
            story
        });
        let filling = scope.spawn(|| {
            let mut round = 0;
            while ended.load(SeqCst) < 2 {
                fill(&mooncake, seed.wrapping_add(round));
                round += 1;
            }
        });
        let story = load.work(seed, |_, _, _| false);
        ended.fetch_add(1, SeqCst);
        let beside = beside.join().expect("nothing panics there");
        filling.join().expect("nothing panics there");
        (story, beside)
    });
    load.look(seed, &mut story);
    story.add(beside);
    let listed = calls(&mooncake, "", &[], &["read", "fill"]);
    if !listed.stdout.starts_with("open ok\n") {
        story.wrong.push(format!("the store does not open: {}{}", listed.stdout, listed.stderr));
    }
    story
}

/// Store a file that the node has no room for beside all else. It may fail: what it has stored is evicted too.
fn fill(mooncake: &Mooncake, seed: u64) {
    let scratch = scratch();
    let (file, path) = (scratch.path().join("file"), scratch.path().join("config.toml"));
    // No two chunks are alike.
    let content: Vec<u8> = (0..FILL as u64 / 8).flat_map(|number| (number ^ seed << 32).to_le_bytes()).collect();
    std::fs::write(&file, content)
        .and_then(|()| std::fs::write(&path, config("mooncake", GRANTS)))
        .expect("it is ours");
    let mut save = Command::new(dist().join("bin/kv-store"));
    save.args(["save", &uri("fill")]).arg(&file).args(["--name", "fill"]);
    save.env("PATH", std::env::var_os("PATH").unwrap_or_default());
    save.env("KV_STORE_WASM_CONFIG", &path).env("KV_STORE_WASM_CACHE", root().join("target/test-consumers/cache"));
    mooncake.namespace.finish(&save);
}

/// Killed at its n-th request, for each n: the former manifest or the new one is read, whole, and then none that is older.
pub fn writer(_seed: u64) -> Story {
    let mut story = Story::new();
    // What a dead writer has begun is soon forgotten.
    let Some(mooncake) = Mooncake::start_with(1, &["--put_start_discard_timeout_sec=1"]) else { return story };
    let mut former = String::new();
    let mut step = 1;
    for attempt in 0..STEPS {
        let new = format!("manifest {attempt}");
        // Of the calls by which requests are sent.
        let strace = "strace -f -qqq -o /dev/null -e trace=sendmsg,sendto,writev -e inject=sendmsg,sendto,writev";
        let mut under: Vec<String> = strace.split(' ').map(str::to_owned).collect();
        if let Some(last) = under.last_mut() {
            *last += &format!(":signal=SIGKILL:when={step}");
        }
        let killed = calls(&mooncake, "", &under, &["publish", "m", &new]);
        let (ended, survived) = (killed.stdout.contains("publish"), killed.stdout.ends_with("publish 0\n"));
        story.kills += u64::from(!ended);
        story.operations += 1;
        for _ in 0..2 {
            let read = calls(&mooncake, "", &[], &["read", "m"]);
            let line = read.stdout.lines().nth(1).unwrap_or_default();
            let is_of = |content: &&String| line == format!("read 0 {}", hex::encode(content));
            let seen = [&new, &former].into_iter().find(is_of).cloned();
            match seen {
                // Nothing was published yet.
                None if former.is_empty() && line.starts_with("read -") => {}
                None => {
                    let (said, read) = (&killed.stderr, read.stderr);
                    story.wrong.push(format!(
                        "killed at request {step}: {line} is not of {former:?} or {new:?}\n{said}{read}"
                    ));
                }
                Some(seen) if survived && seen != new => {
                    story.wrong.push(format!("{new} was published, and {seen} is read"));
                }
                Some(seen) => former = seen,
            }
        }
        match (ended, survived) {
            (true, true) => break,
            // The places for this manifest are taken by writers that were killed.
            (true, false) => std::thread::sleep(Duration::from_millis(500)),
            _ => step += 1,
        }
    }
    if story.kills < 5 {
        story.wrong.push(format!("only {} writers were killed: strace does not do what it is asked", story.kills));
    }
    story
}
