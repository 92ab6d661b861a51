//! `--only late`: a change that its client gave up as late is not carried out after a later one of the same key that was acknowledged. The
//! invariant, "an acknowledged change is not undone", is that of `tests/models`; here a real server is held up and let go on.
//!
//! A round has a server that can be held up ([`Target`]) and two consumers on it. Both store something under some keys; the server is
//! held up; changes are made that end late; the server goes on while other changes of the same keys are under way. What was acknowledged
//! must then be there. A consumer changes again at once, for its process knows that its own change ended unknown. The other one waits for
//! the end of the late call: before it, it may see that change done (docs/models.md, "Promises that cannot be kept").
//!
//! A backend has a file of its own here, with a [`Target`] and a [`Suite`] of [`SUITES`] that calls [`round`]. That the suites can fail is
//! seen on servers that refuse nothing for being late: [`unfenced`].

pub mod consumer;
mod memkv;
mod redis;
mod s3;

use std::path::Path;
use std::time::{Duration, Instant};

use crate::process::{Story, config, scratch};
use crate::suites::Suite;
use crate::workload::{GOLDEN, Random};
use consumer::{Answer, Consumer};

pub use consumer::{ConsumerOptions, run};

pub const SUITES: &[Suite] = &[
    Suite { name: "late-redis", about: "changes that a redis-server carries out late", round: redis::server },
    Suite { name: "late-cluster", about: "the same of a Redis Cluster of three", round: redis::cluster },
    Suite { name: "late-memkv", about: "changes that a memkv-server carries out late", round: memkv::memory },
    Suite { name: "late-memkv-disk", about: "the same of one with files", round: memkv::files },
    Suite { name: "late-s3", about: "manifests that reach SeaweedFS late", round: s3::kept },
    Suite { name: "late-s3-stop", about: "manifests that a stopped SeaweedFS changes late", round: s3::stopped },
    Suite { name: "late-moto", about: "manifests that moto changes late", round: s3::moto },
];

/// Set, servers are used that refuse no change for being late: redis without scripts, memkv in version 1 of its frames, S3 without
/// conditions. Violations are to be found.
pub fn unfenced() -> bool {
    std::env::var_os("KV_STORE_TORTURE_UNFENCED").is_some()
}

/// Keys that are changed at once.
const LANES: usize = 12;
/// How long after its acknowledgement a change is looked at for the last time.
const SETTLED: Duration = Duration::from_millis(150);
/// Bytes of a value: mostly little, and what backends send in another way than that.
const SIZES: [usize; 6] = [20, 20, 300, 5_000, 100_000, 3 << 20];

/// A server that can be held up.
pub trait Target {
    fn uri(&self) -> String;
    /// Lines of the backend's table in the config.
    fn table(&self) -> String {
        String::new()
    }
    /// From here on nothing is carried out, and what arrives is kept.
    fn hold_up(&mut self);
    /// What was kept is carried out, in any order.
    fn go_on(&mut self);
}

/// Two changes of a key: the first one ends late, the second is acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pair {
    /// `put_manifest` twice.
    Manifests,
    /// `delete_manifest`, then `put_manifest`.
    ManifestIsBack,
    /// `put_manifest`, then `delete_manifest`.
    ManifestIsGone,
    /// A chunk that is there is put with KV_STORE_REPLACE, twice.
    Replaced,
    /// `delete_many`, then `put_many` of the chunk.
    ChunkIsBack,
    /// A chunk is replaced, then removed: a block that the block cache removes.
    ChunkIsGone,
}

impl Pair {
    pub const ALL: &[Pair] = &[
        Pair::Manifests,
        Pair::ManifestIsBack,
        Pair::ManifestIsGone,
        Pair::Replaced,
        Pair::ChunkIsBack,
        Pair::ChunkIsGone,
    ];
    /// Where only manifests are promised.
    pub const MANIFESTS: &[Pair] = &[Pair::Manifests, Pair::ManifestIsBack, Pair::ManifestIsGone];

    fn is_of_manifests(self) -> bool {
        Pair::MANIFESTS.contains(&self)
    }

    /// The calls of a consumer, see [`consumer`].
    fn calls(self) -> [&'static str; 2] {
        match self {
            Pair::Manifests => ["publish", "publish"],
            Pair::ManifestIsBack => ["unpublish", "publish"],
            Pair::ManifestIsGone => ["publish", "unpublish"],
            Pair::Replaced => ["replace", "replace"],
            Pair::ChunkIsBack => ["remove", "put"],
            Pair::ChunkIsGone => ["replace", "remove"],
        }
    }

    /// Whether the second change leaves a value.
    fn leaves(self) -> bool {
        !matches!(self, Pair::ManifestIsGone | Pair::ChunkIsGone)
    }
}

/// How a round is made.
pub struct Way {
    /// Deadline of the calls; none: the defaults.
    pub deadline: Option<Duration>,
    /// How often the server is held up.
    pub storms: u64,
    pub pairs: &'static [Pair],
}

impl Way {
    /// As the seed says: mostly short deadlines and many storms, and each fourth time the defaults.
    pub fn of(seed: u64, pairs: &'static [Pair]) -> Self {
        // What follows the first seed must differ in more than its low bits.
        let is_default = (seed ^ seed >> 32) % 4 == 2;
        if is_default {
            Way { deadline: None, storms: 2, pairs }
        } else {
            Way { deadline: Some(Duration::from_millis(100)), storms: 8, pairs }
        }
    }

    /// When a call ends that begins now.
    fn end(&self) -> Duration {
        self.deadline.unwrap_or(Duration::from_secs(10)) + Duration::from_millis(20)
    }

    fn table(&self) -> String {
        let deadline = self.deadline.map(|deadline| format!("limits.deadline_ms = {}\n", deadline.as_millis()));
        // Each lane has its instance, or changes would wait for one another.
        format!("limits.instances = {}\n{}", LANES * 2, deadline.unwrap_or_default())
    }
}

/// One key, and what becomes of it.
struct Lane {
    pair: Pair,
    key: String,
    /// What the changes store.
    values: [u64; 2],
    bytes: usize,
    /// Which consumer makes the second change.
    second: usize,
}

/// Hold a server up, again and again.
pub fn round(seed: u64, target: &mut dyn Target, way: &Way) -> Story {
    let (scratch, mut random, mut story) = (scratch(), Random(seed.wrapping_mul(GOLDEN)), Story::new());
    let uri = target.uri();
    let scheme = uri.split(['+', ':']).next().unwrap_or_default();
    let setting = config(scheme, &format!("{}{}", target.table(), way.table()));
    let Some(mut consumers) = start(scratch.path(), &uri, &setting, &mut story) else { return story };
    for storm in 0..way.storms {
        let lanes: Vec<Lane> = (0..LANES).map(|lane| Lane::new(storm, lane, way, &mut random)).collect();
        self::storm(&lanes, target, way, &mut consumers, &mut random, &mut story);
    }
    if !story.wrong.is_empty() {
        story.log = consumers.iter_mut().map(Consumer::log).collect();
    }
    story
}

fn start(scratch: &Path, uri: &str, config: &str, story: &mut Story) -> Option<[Consumer; 2]> {
    let mut start = |name: &str| {
        let folder = scratch.join(name);
        std::fs::create_dir(&folder).expect("a temporary directory can be written to");
        let consumer = Consumer::start(&folder, uri, config);
        consumer.inspect_err(|error| story.wrong.push(error.clone())).ok()
    };
    Some([start("one")?, start("other")?])
}

impl Lane {
    fn new(storm: u64, lane: usize, way: &Way, random: &mut Random) -> Self {
        let pair = way.pairs[lane % way.pairs.len()];
        let first = storm * 1000 + lane as u64 * 10;
        Lane {
            pair,
            // A chunk's key is no hash of its content, and has not the width of one.
            key: format!("late-{storm:04}-{lane:02}-key"),
            values: [first + 1, first + 2],
            bytes: SIZES[random.below(SIZES.len() as u64) as usize],
            second: random.below(2) as usize,
        }
    }

    fn call(&self, number: usize) -> String {
        format!("{} {} {} {}", self.pair.calls()[number], self.key, self.values[number], self.bytes)
    }

    /// Whether the second change may have left this. A put of a chunk that is there changes nothing, and the removal may not have been
    /// carried out.
    fn allows(&self, seen: Answer) -> bool {
        let is_value = matches!(seen, Answer::Value(_));
        seen == self.expected() || (self.pair == Pair::ChunkIsBack && is_value)
    }

    /// What the second change leaves.
    fn expected(&self) -> Answer {
        if self.pair.leaves() { Answer::Value(self.values[1]) } else { Answer::Missing }
    }
}

/// Hold the server up once, and judge what the keys are then.
fn storm(
    lanes: &[Lane],
    target: &mut dyn Target,
    way: &Way,
    consumers: &mut [Consumer; 2],
    random: &mut Random,
    story: &mut Story,
) {
    // What is there before; it also makes connections, which are used again.
    let first = |lane: &Lane| {
        let call = if lane.pair.is_of_manifests() { "publish" } else { "replace" };
        format!("{call} {} {} {}", lane.key, lane.values[0] - 1, lane.bytes)
    };
    let there = |consumer: &mut Consumer| consumer.ask(lanes.iter().map(first).collect());
    if there(&mut consumers[0]).contains(&Answer::Failed) | there(&mut consumers[1]).contains(&Answer::Failed) {
        // A server that has just gone on may be slow.
        story.failed += 1;
        return;
    }
    target.hold_up();
    let begun = Instant::now();
    let late = consumers[0].ask(lanes.iter().map(|lane| lane.call(0)).collect());
    story.operations += lanes.len() as u64;
    // Its own process may change again at once, and the other one when the late call is over in any case.
    let mut places: [Vec<usize>; 2] = Default::default();
    for (number, lane) in lanes.iter().enumerate().filter(|(number, _)| late[*number] == Answer::Failed) {
        places[lane.second].push(number);
    }
    let wait = (begun + way.end()).saturating_duration_since(Instant::now());
    let own_first = random.below(2) == 0;
    let calls = |places: &[usize]| places.iter().map(|number| lanes[*number].call(1)).collect::<Vec<String>>();
    let mut told: [Vec<u64>; 2] = Default::default();
    if own_first {
        told[0] = consumers[0].say(calls(&places[0]));
    }
    std::thread::sleep(wait);
    if !own_first {
        told[0] = consumers[0].say(calls(&places[0]));
    }
    told[1] = consumers[1].say(calls(&places[1]));
    std::thread::sleep(Duration::from_millis(random.below(50)));
    target.go_on();
    let mut acknowledged = Vec::new();
    for (consumer, (told, places)) in consumers.iter_mut().zip(told.into_iter().zip(&places)) {
        let answers = consumer.hear(&told);
        acknowledged
            .extend(places.iter().zip(answers).filter(|(_, answer)| *answer == Answer::Done).map(|(place, _)| *place));
    }
    story.saves += acknowledged.len() as u64;
    story.failed += (lanes.len() - acknowledged.len()) as u64;
    let look = |consumers: &mut [Consumer; 2], story: &mut Story| {
        for consumer in consumers {
            judge(lanes, &acknowledged, consumer, story);
        }
    };
    look(consumers, story);
    std::thread::sleep(SETTLED);
    look(consumers, story);
}

/// Each of these keys is what its second change made of it.
fn judge(lanes: &[Lane], acknowledged: &[usize], consumer: &mut Consumer, story: &mut Story) {
    let read = |number: &usize| {
        let lane = &lanes[*number];
        let call = if lane.pair.is_of_manifests() { "read" } else { "get" };
        format!("{call} {} 0 0", lane.key)
    };
    let seen = consumer.ask(acknowledged.iter().map(read).collect());
    for (number, seen) in acknowledged.iter().zip(seen) {
        let lane = &lanes[*number];
        if seen != Answer::Failed && !lane.allows(seen) {
            let found = format!(
                "{:?}: {} is {seen:?}, and {:?} was acknowledged after a change that ended late (by {}, {} bytes)",
                lane.pair,
                lane.key,
                lane.expected(),
                ["its own process", "another process"][lane.second],
                lane.bytes
            );
            if !story.wrong.contains(&found) {
                story.wrong.push(found);
            }
        }
    }
}
