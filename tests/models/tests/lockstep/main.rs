//! The model of a protocol beside the shipped sources of its component and its server, step by step: a seed draws what befalls clients,
//! connections and server; the sources do it, and the model must allow what they did, tell each caller the same, and have the same content.
//!
//! What the environment does is drawn: time, a clock that falls, restarts, evictions, which frame or answer comes when, which connection is
//! lost. What a component, the host's table of changes or the server does about it is theirs. The models are `src/memkv.rs`, `src/redis.rs`,
//! `src/cluster.rs`, `src/s3.rs`, `src/local_fs.rs` and `src/mooncake.rs`; the sources are in `guests`, `core/src/backend/changes.rs` and `core/src/directory`. The
//! servers of redis, s3 and mooncake and the files are those of the simulation; those of redis and s3 are compared with real ones.

mod actors;
mod client;
mod cluster;
mod files;
mod follow;
mod memkv;
mod mooncake;
mod redis;
mod s3;
mod server;
mod table;
mod walk;
mod wire;

use kv_store_models::history::Number;

use follow::{Reached, is_reached};
use server::Server;

/// Of the models, in nanoseconds: as long as the margin of an end is at least (`guests/memkv/guest/src/fence.rs`,
/// `guests/redis/src/change/clock.rs`).
pub const TICK: u64 = 10_000_000;
/// In the layout of today.
pub const MANIFEST: &str = "m\u{2}";
/// No hash of content.
pub const CHUNK: &[u8] = &[9; 16];
const WALKS: u64 = 20_000;

/// What is changed in a walk.
#[derive(Clone, Copy, Debug)]
pub struct Subject {
    /// A chunk, and not a manifest.
    pub is_chunk: bool,
    /// Its values are longer than what a script of redis is given.
    pub is_long: bool,
}

/// What a change puts.
pub fn value(number: Number) -> Vec<u8> {
    format!("value {number}").into_bytes()
}

impl Subject {
    /// What a change of it puts.
    pub fn value(self, number: Number) -> Vec<u8> {
        let mut value = value(number);
        if self.is_long {
            value.resize(5_000, b'.');
        }
        value
    }
}

/// Walk, and see that these actions of the model are reached, and no others.
fn reaches<S: Server>(names: &[&str]) {
    let mut reached = Reached::new();
    for seed in 0..WALKS {
        walk::walk::<S>(seed, &mut reached, |_| ());
    }
    is_reached(&reached, names);
}

#[test]
fn memkv_does_what_its_model_allows_and_each_action_is_reached() {
    reaches::<memkv::Machine>(&[
        "Answer",
        "Begin",
        "CarryOut",
        "ClockFalls",
        "Connect",
        "Evict",
        "GiveUp",
        "Greet",
        "Learn",
        "Look",
        "Lose",
        "Read",
        "Restart",
        "Tick",
    ]);
}

/// Of the model's actions `Connect` alone is not: a change whose connection is lost fails, and the next one connects as it begins.
#[test]
fn redis_does_what_its_model_allows_and_each_action_is_reached() {
    reaches::<redis::Machine>(&[
        "Answer",
        "Begin",
        "ClockFalls",
        "Evict",
        "GiveUp",
        "Greet",
        walk::HELD,
        "Learn",
        "Lose",
        walk::NO_SCRIPT,
        "Read",
        "Restart",
        "Tick",
    ]);
}

/// What readers see is not compared: who remembers generations is the host.
#[test]
fn a_cluster_does_what_its_model_allows_and_each_action_is_reached() {
    let mut reached = Reached::new();
    for seed in 0..WALKS {
        cluster::walk(seed, &mut reached, |_| ());
    }
    let names = ["Answer", "Begin", "CarryOut", "GiveUp", "Happens", "OldPrimaryNotices", "Replicate", "Tick"];
    is_reached(&reached, &names);
}

/// None of its servers forgets a tombstone, or takes a request for too old.
#[test]
fn s3_does_what_its_model_allows_and_each_action_is_reached() {
    let mut reached = Reached::new();
    for seed in 0..WALKS {
        s3::walk(seed, &mut reached);
    }
    let names = ["Answer", "Begin", "GiveUp", "Look", "Lose", "Repeat", "Show", "Take", "Tick"];
    is_reached(&reached, &names);
}

/// A walk that finds nothing shows nothing: a server whose script does not look at the clock is found.
#[test]
fn a_redis_that_carries_out_late_changes_is_found() {
    for script in ["set", "rename", "delete"] {
        let finds = |seed: &u64| {
            let walks = || walk::walk(*seed, &mut Reached::new(), |redis: &mut redis::Machine| redis.spoil(script));
            std::panic::catch_unwind(walks).is_err()
        };
        assert!((0..200).any(|seed| finds(&seed)), "{script}");
    }
    for script in ["set", "delete"] {
        let finds = |seed: &u64| {
            let late = |db: &mut redis_server::db::Db| db.carries_out_late = Some(script);
            std::panic::catch_unwind(|| cluster::walk(*seed, &mut Reached::new(), late)).is_err()
        };
        assert!((0..2000).any(|seed| finds(&seed)), "{script}, in a cluster");
    }
}
