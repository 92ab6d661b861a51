//! The model of memkv's protocol beside the shipped sources of its component and its server, step by step: a seed draws what befalls clients,
//! connections and server; the sources do it, and the model must allow what they did, tell each caller the same, and have the same content.
//!
//! What the environment does is drawn: time, a clock that falls, restarts, evictions, which frame or answer comes when, which connection is
//! lost. What a component or the server does about it is theirs. `src/memkv.rs` is the model, `tests/simulate/memkv*` are the sources.

mod actors;
mod client;
mod files;
mod mooncake;
mod server;
mod walk;
mod wire;

use std::collections::BTreeMap;

use kv_store_models::history::Number;

/// Of the model, in nanoseconds: as long as the margin of an end is at least (`guests/memkv/guest/src/fence.rs`).
pub const TICK: u64 = 10_000_000;
pub const KEY: &str = "0707070707070707070707070707070707070707070707070707070707070707";
pub const MANIFEST: &str = "m";
/// No hash of content.
pub const CHUNK: &[u8] = &[9; 16];

/// What a change puts.
pub fn value(number: Number) -> Vec<u8> {
    format!("value {number}").into_bytes()
}

#[test]
fn memkv_does_what_its_model_allows_and_each_action_is_reached() {
    let mut reached: BTreeMap<String, usize> = BTreeMap::new();
    for seed in 0..20_000 {
        walk::walk(seed, &mut reached);
    }
    let names = [
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
    ];
    for name in names {
        assert!(reached.get(name).is_some_and(|count| *count >= 1000), "{name}: {reached:?}");
    }
    assert_eq!(reached.len(), names.len(), "an action of the model that is not listed here: {reached:?}");
}
