//! Redis Cluster, which loses masters, shards and slots. Nothing of it is on a disk: a master that was killed comes back empty, and what
//! lay there is a miss.

use std::process::Child;
use std::time::{Duration, Instant};

use kv_store_tests::cluster::RedisCluster;
use kv_store_tests::servers::Server;

use super::{Load, scratch};
use crate::process::{Heard, Process, Story};

const OPERATIONS: u64 = 800;
const MASTERS: usize = 3;
const MOVED_SLOTS: usize = 1000;
/// How much longer than the cluster itself the store may be without an answer.
const LATER: Duration = Duration::from_millis(300);
/// More than a failover takes.
const LONGEST: Duration = Duration::from_secs(60);

/// One after the other is killed and started again, or frozen and let go.
pub fn master(seed: u64) -> Story {
    let mut cluster = RedisCluster::start(MASTERS);
    let uri = cluster.uri();
    let mut away: Option<(usize, bool)> = None;
    Load { losing: true, hanging: true, ..Load::on(&uri, OPERATIONS) }.run(seed, |random, story, step| {
        match away.take() {
            Some((node, true)) => cluster.nodes[node].restart(),
            Some((node, false)) => cluster.freeze(node, false),
            None => {
                let (node, kill) = (random.below(MASTERS as u64) as usize, random.below(2) == 0);
                match kill {
                    true => cluster.stop(node),
                    false => cluster.freeze(node, true),
                }
                story.kills += u64::from(kill);
                away = Some((node, kill));
            }
        }
        step < 11
    })
}

/// A master and its replica at once. The others serve on, or nothing is served, as the cluster is set up, until one is back.
pub fn shard(seed: u64) -> Story {
    let mut cluster = RedisCluster::start_with(MASTERS, 1, seed.is_multiple_of(2));
    let uri = cluster.uri();
    let shard = [1, cluster.replica_of(1)];
    Load { losing: true, ..Load::on(&uri, OPERATIONS) }.run(seed, |_, story, step| {
        match step {
            0 => {
                shard.iter().for_each(|node| cluster.stop(*node));
                story.kills += 2;
            }
            1..6 => {}
            _ => shard.iter().for_each(|node| cluster.nodes[*node].restart()),
        }
        step < 6
    })
}

/// Nothing fails, and nothing is lost.
pub fn reshard(seed: u64) -> Story {
    let cluster = RedisCluster::start(MASTERS);
    let uri = cluster.uri();
    let mut moving: Option<Child> = None;
    let mut story = Load::on(&uri, OPERATIONS * 2).run(seed, |_, story, step| {
        if step == 0 {
            moving = Some(cluster.reshard(0, 1, MOVED_SLOTS));
        }
        match moving.as_mut().map(Child::try_wait) {
            Some(Ok(None)) => true,
            Some(Ok(Some(status))) if status.success() => false,
            other => {
                story.wrong.push(format!("the slots could not be moved: {other:?}"));
                false
            }
        }
    });
    if story.failed > 0 {
        story.wrong.push(format!("{} saves failed while slots moved", story.failed));
    }
    story
}

/// What moves there is out of reach, and nothing else is; nothing is lost.
pub fn not_granted(seed: u64) -> Story {
    let mut cluster = RedisCluster::start(MASTERS);
    let before = cluster.uri();
    cluster.add_node();
    let mut moving: Option<Child> = None;
    let load = Load::on(&before, OPERATIONS);
    // What lies there is not reached by the last worker either: it opens no store of which a master is not granted.
    let mut story = Load { losing: true, ..load }.work(seed, |_, _, step| {
        let moving = moving.get_or_insert_with(|| cluster.reshard(0, MASTERS, MOVED_SLOTS));
        step < 200 && matches!(moving.try_wait(), Ok(None))
    });
    if story.saves == 0 {
        story.wrong.push("nothing was saved beside a node that is not granted".to_owned());
    }
    story.losing = false;
    let granted = cluster.uri();
    Load::on(&granted, 0).look(seed, &mut story);
    story
}

/// A reader asks for one chunk without end, and beside it somebody asks the cluster itself, by hand.
pub fn failover(seed: u64) -> Story {
    let mut cluster = RedisCluster::start_with(MASTERS, 1, true);
    let uri = cluster.uri();
    let (scratch, mut story) = (scratch(), Story::new());
    let on_first = |key: &String| cluster.node_of(&format!("kv:c:{key}")) == 0;
    let key =
        (0..).map(|number| format!("watched-{seed}-{number}")).find(on_first).expect("a third of them lies there");
    let words = ["watch", "--uri", &uri, "--key", &key].map(str::to_owned).to_vec();
    let mut watcher = Process::run(scratch.path(), words, &Load::on(&uri, 0).setting(""));
    watcher.hear_until(&mut story, "found", None);
    let replica = cluster.replica_of(0);
    let get = format!("GET kv:c:{key}");
    // `$-1` is none.
    let has = format!("${}\r\n", crate::worker::WATCHED.len());
    while !cluster.nodes[replica].ask(&format!("READONLY\r\n{get}")).contains(&has) {
        std::thread::sleep(Duration::from_millis(2));
    }
    cluster.stop(0);
    story.kills += 1;
    let killed = Instant::now();
    let (own, found) = std::thread::scope(|scope| {
        let nodes = &cluster.nodes;
        let own = scope.spawn(move || {
            while !nodes[replica].ask(&get).starts_with(has.as_str()) && killed.elapsed() < LONGEST {
                std::thread::sleep(Duration::from_millis(2));
            }
            Instant::now()
        });
        let heard = ["lost", "found"].map(|line| watcher.hear_until(&mut story, line, Some(killed + LONGEST)));
        let found = Instant::now();
        if heard.into_iter().any(|heard| heard != Heard::Awaited) {
            story.wrong.push("the store does not lose the chunk, or does not find it again".to_owned());
        }
        (own.join().expect("it does not panic"), found)
    });
    watcher.kill(&mut story);
    let later = found.saturating_duration_since(own);
    eprintln!(
        "cluster-failover: the cluster was without an answer for {} ms, the store {} ms longer",
        own.duration_since(killed).as_millis(),
        later.as_millis()
    );
    if later > LATER {
        story.wrong.push(format!("the store answers {} ms later than the cluster does", later.as_millis()));
    }
    story
}
