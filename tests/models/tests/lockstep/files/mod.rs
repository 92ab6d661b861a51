//! The model of local-fs beside the shipped sources: its component, and core's `directory` below it, over the files of a simulated machine.
//!
//! A seed draws the time, which process goes on by how many system calls, which is killed, what reaches the disk by itself, and a loss of
//! power. What a process does is its own. `src/local_fs.rs` is the model.

mod machine;
mod process;
mod walk;

use crate::follow::{Reached, is_reached};

#[test]
fn local_fs_does_what_its_model_allows_and_each_action_is_reached() {
    let mut reached = Reached::new();
    for seed in 0..10_000 {
        walk::walk(seed, &mut reached);
    }
    // `RenameFails` is that of a mount that is soft, which nothing here fences.
    let names = [
        "Answer",
        "Begin",
        "GiveUp",
        "KernelWritesOut",
        "Kill",
        "Look",
        "PowerFails",
        "Rename",
        "Sync",
        "Tick",
        "told Acknowledged",
        "told Refused",
        "told Unknown",
    ];
    is_reached(&reached, &names);
}
