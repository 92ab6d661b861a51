//! What befalls the system calls of a history, and what it is noted for.

use std::sync::Arc;

use rustix::io::{Errno, Result};

use super::Files;
use super::kernel::Asks;
use crate::calls::Fate;
use crate::sim::Sim;
use crate::threads::MILLISECOND;

/// A process that is stopped makes no call, and a disk that does not answer holds it up.
pub fn stand_still(sim: &Arc<Sim>, files: &Files, process: usize, asks: Asks) {
    let shape = &sim.plan.shape;
    let now = sim.threads.moment();
    let stopped = sim.world().partitioned.get(&process).copied().unwrap_or(0);
    let frozen = if asks == Asks::Memory { 0 } else { sim.world().frozen_until };
    let slow = {
        let dice = &mut files.state.lock().dice;
        match asks == Asks::Sync && dice.below(4000) < shape.trouble {
            true => now + dice.within(MILLISECOND, 2 * shape.deadline),
            false => 0,
        }
    };
    let until = stopped.max(frozen).max(slow);
    if until <= now {
        return;
    }
    let operation = sim.threads.task().operation;
    sim.cover(operation, if until == slow { Fate::Slow } else { Fate::Stopped });
    let mut world = sim.world();
    world.faulty.insert(operation);
    world.stood_still.push((process, now, until));
    drop(world);
    sim.threads.pause(until - now);
}

/// A call fails, if what befalls it is that.
pub fn fails(sim: &Arc<Sim>, files: &Files, asks: Asks, full: bool) -> Result<()> {
    let now = sim.threads.moment();
    let mut state = files.state.lock();
    let (fate, errno) = match (asks, state.dice.below(10)) {
        (Asks::Room | Asks::Bytes, _) if full => (Fate::Full, Errno::NOSPC),
        (Asks::Room | Asks::Bytes, 0..=2) => {
            // Others have filled the disk.
            state.full_until = now + state.dice.within(0, sim.plan.shape.deadline);
            (Fate::Full, Errno::NOSPC)
        }
        (Asks::Room | Asks::Bytes, 3..=4) => (Fate::Full, Errno::DQUOT),
        (Asks::Room | Asks::Memory, 5) => (Fate::Failing, Errno::MFILE),
        (Asks::Sync, 0..=2) => (Fate::Failing, Errno::INTR),
        (Asks::Memory, 0..=4) => return Ok(()),
        _ => (Fate::Failing, Errno::IO),
    };
    drop(state);
    sim.say(|| format!("  a system call that asks for {asks:?} fails: {errno}"));
    struck(sim, files, fate);
    Err(errno)
}

/// The running call is not a call without faults any more.
pub fn struck(sim: &Arc<Sim>, files: &Files, fate: Fate) {
    let operation = sim.threads.task().operation;
    sim.cover(operation, fate);
    let by = sim.threads.current().and_then(|thread| files.state.lock().calls.get(&thread).cloned());
    let mut world = sim.world();
    world.faulty.insert(operation);
    if let Some((_, request)) = by {
        world.may_end_unknown(&request);
        // What cannot be looked at is told to be absent: the contract has it so.
        world.may_be_told_absent(&request);
    }
}
