//! The model of mooncake beside the shipped component, over what the simulation has of a master and a node.
//!
//! A seed draws the time, which request or answer comes next, which connection is lost, which end of a put comes late, and what is evicted.
//! What the component does is its own. `src/mooncake.rs` is the model.

mod client;
mod server;
mod walk;

use crate::follow::{Reached, is_reached};

#[test]
fn mooncake_does_what_its_model_allows_and_each_action_is_reached() {
    let mut reached = Reached::new();
    for seed in 0..20_000 {
        walk::walk(seed, &mut reached);
    }
    let names = [
        "Answer",
        "Begin",
        "End",
        "Evict",
        "GiveUp",
        "Look",
        "LookAgain",
        "Number",
        "Refuse",
        "Remove",
        "Revoke",
        "Start",
        "Tick",
    ];
    is_reached(&reached, &names);
}
