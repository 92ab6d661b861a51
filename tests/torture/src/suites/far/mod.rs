//! Storage systems of more than one machine that lose a part of themselves: `--far`. They are real where they can be had, and start in
//! seconds, so these suites have no round in `cargo xtask test`.
//!
//! A suite starts its servers, lets a worker save and restore, and takes servers away and gives them back meanwhile; then another worker
//! looks at what is there. What is common is [`Load`]; what is lost, and what must hold then, is each suite's.

mod cluster;
mod mooncake;
mod s3;

use std::time::{Duration, Instant};

use super::{Suite, config, scratch};
use crate::process::{Process, Setting, Story};
use crate::workload::Random;

pub const SUITES: &[Suite] = &[
    Suite { name: "s3-volume", about: "SeaweedFS: one of three volume servers is killed", round: s3::volume },
    Suite {
        name: "s3-gateway",
        about: "SeaweedFS: one of two gateways is killed, then the other is frozen",
        round: s3::gateway,
    },
    Suite { name: "s3-hang", about: "SeaweedFS: two of three volume servers are frozen", round: s3::hang },
    Suite {
        name: "s3-storm",
        about: "503, 409, cut and missing answers, a server that ignores conditions",
        round: s3::storm,
    },
    Suite { name: "s3-refused", about: "a wrong secret, and a clock that is 20 minutes off", round: s3::refused },
    Suite {
        name: "cluster-master",
        about: "Redis Cluster: masters are killed, and frozen, in the midst of batches",
        round: cluster::master,
    },
    Suite { name: "cluster-shard", about: "both nodes of a shard are killed", round: cluster::shard },
    Suite {
        name: "cluster-failover",
        about: "a master with a replica is killed: how long nothing is answered",
        round: cluster::failover,
    },
    Suite { name: "cluster-reshard", about: "1,000 slots move while a worker is at work", round: cluster::reshard },
    Suite {
        name: "cluster-grant",
        about: "slots move to a node that is not granted, and then it is",
        round: cluster::not_granted,
    },
    Suite {
        name: "mooncake-node",
        about: "Mooncake: one of two nodes is killed; each object is on both",
        round: mooncake::node_of_two,
    },
    Suite {
        name: "mooncake-members",
        about: "nodes join, leave and are killed; each object is on one, or on two",
        round: mooncake::members,
    },
    Suite { name: "mooncake-master", about: "the master is killed and started again", round: mooncake::master },
    Suite { name: "mooncake-evict", about: "what manifests name is evicted", round: mooncake::evicted },
    Suite {
        name: "mooncake-writer",
        about: "a writer is killed between every two steps of publishing a manifest",
        round: mooncake::writer,
    },
];

/// The longest that a worker waits for a server that hangs.
pub const PATIENCE: Duration = Duration::from_millis(1000);
/// How long a call may take that meets servers that hang, however many items lie there.
pub const WITHIN: Duration = Duration::from_millis(2 * 1000 + 1000);

/// A worker, and what it works on.
pub struct Load<'a> {
    pub uri: &'a str,
    /// Lines of the backend's table in the config.
    pub table: &'a str,
    pub operations: u64,
    /// The words before a worker's command line.
    pub under: Vec<String>,
    /// The servers may lose what they have acknowledged.
    pub losing: bool,
    /// Some of them hang: each call is held to [`WITHIN`].
    pub hanging: bool,
}

impl<'a> Load<'a> {
    /// On servers that keep what they have acknowledged.
    pub fn on(uri: &'a str, operations: u64) -> Self {
        Load { uri, table: "", operations, under: Vec::new(), losing: false, hanging: false }
    }

    /// What a worker runs with.
    pub fn setting(&self, options: &str) -> Setting {
        let scheme = self.uri.split(['+', ':']).next().unwrap_or_default();
        // A deadline that is far longer than the silence of a worker that counts as a hang: what waits for it is a violation.
        let waits =
            format!("limits.patience_ms = {}\nlimits.deadline_ms = 300000\n{}", PATIENCE.as_millis(), self.table);
        let losing = if self.losing { " --losing" } else { "" };
        let within = if self.hanging { format!(" --within {}", WITHIN.as_millis()) } else { String::new() };
        let options = format!("{options}{losing}{within}");
        Setting {
            config: config(scheme, &waits),
            options: options.split_whitespace().map(str::to_owned).collect(),
            under: self.under.clone(),
        }
    }

    /// A worker of one or more threads at work on the store, while `loss` is done to the servers in steps, until it answers false; each
    /// after a moment of its own. Then a last worker looks at what is there.
    pub fn run(&self, seed: u64, loss: impl FnMut(&mut Random, &mut Story, usize) -> bool) -> Story {
        let mut story = self.work(seed, loss);
        self.look(seed, &mut story);
        story
    }

    /// The same without the last worker.
    pub fn work(&self, seed: u64, mut loss: impl FnMut(&mut Random, &mut Story, usize) -> bool) -> Story {
        let (scratch, mut random, mut story) = (scratch(), Random(seed), Story::new());
        story.losing = self.losing;
        let threads = 1 + random.below(4);
        let options = format!("--unsure --threads {threads} --operations {}", self.operations);
        let mut worker = Process::start(scratch.path(), self.uri, seed, &self.setting(&options));
        for step in 0.. {
            let moment = Instant::now() + Duration::from_millis(200 + random.below(600));
            // It may have ended; what was taken away is given back all the same.
            worker.hear_until(&mut story, "", Some(moment));
            if !loss(&mut random, &mut story, step) {
                break;
            }
        }
        worker.complete(&mut story);
        story
    }

    /// A last worker looks at what is there.
    pub fn look(&self, seed: u64, story: &mut Story) {
        let scratch = scratch();
        let strict = if self.losing { "" } else { "--strict" };
        let last = self.setting(&format!("--process 1000000 --operations 0 {strict}"));
        Process::start(scratch.path(), self.uri, seed, &last).complete(story);
    }
}
