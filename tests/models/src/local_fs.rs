//! local-fs: `guests/local-fs/src/lib.rs` says what, the host's `directory/write.rs` writes: a temporary file, a rename, and with `durability =
//! "full"` a sync of the directory. All of it runs on the caller's thread, so a call has ended before its client is told how: within one
//! process nothing is late. But a process that is stopped (SIGSTOP, a frozen container) before its rename, and continued after its deadline, renames.
//!
//! Fenced: a lock of the directory that the kernel gives back when its holder dies (`flock`), taken before the rename; then a look at the clock;
//! then the rename. Who is stopped with the lock holds up the others, and undoes nothing.
//!
//! A file system that is mounted over a network so that calls fail in time (`soft`) tells a client that a rename failed which the server
//! may still do: nothing on this side fences that.
//!
//! Invariants: [`crate::history`]. Bounds: two changes, one loss of power, 4 ticks.

use stateright::{Model, Property};

use crate::check::{Case, Expects};
use crate::history::{Content, GOES_ON, History, NOT_UNDONE, Number, Phase, REFUSED_IS_NOT_THERE};

const PATIENCE: u8 = 2;
const TICKS: u8 = 4;

/// At the clock, before the rename.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Looks {
    Never,
    WithoutLock,
    UnderLock,
}

#[derive(Clone, Copy)]
struct Files {
    /// `durability = "full"`
    syncs: bool,
    /// The power may fail.
    power_fails: bool,
    /// Calls of the file system may fail and be carried out later.
    soft: bool,
    looks: Looks,
    changes: [u8; 2],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Step {
    Waiting,
    Written,
    /// It has looked at the clock, and has the lock if there is one.
    Looked,
    Renamed,
    Synced,
    /// The client was told that the rename failed; the server may do it.
    Left,
    Over,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    now: u8,
    power_failed: bool,
    history: History,
    /// What readers see, and what a loss of power leaves.
    content: Content,
    on_disk: Content,
    /// Of changes 1 and 2.
    steps: [Step; 2],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Tick,
    Begin(Number),
    Look(Number),
    Rename(Number),
    RenameFails(Number),
    Sync(Number),
    Answer(Number),
    GiveUp(Number),
    KernelWritesOut,
    PowerFails,
}

impl Model for Files {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let (history, steps) = (History::new(&self.changes), [Step::Waiting; 2]);
        vec![State { now: 0, power_failed: false, history, content: Some(0), on_disk: Some(0), steps }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.now < TICKS {
            actions.push(Action::Tick);
        }
        actions.push(Action::KernelWritesOut);
        if self.power_fails && !state.power_failed {
            actions.push(Action::PowerFails);
        }
        for change in [1, 2] {
            match state.steps[change as usize - 1] {
                // A process makes its changes one after the other.
                Step::Waiting if state.history.next(self.changes[change as usize - 1]) == Some(change) => {
                    let one_of_two = change == 2 && self.changes[0] == self.changes[1];
                    let is_free = !one_of_two || matches!(state.steps[0], Step::Left | Step::Over);
                    actions.extend(is_free.then_some(Action::Begin(change)));
                }
                Step::Waiting | Step::Over => {}
                Step::Written if self.looks != Looks::Never => {
                    actions.extend([Action::Look(change), Action::GiveUp(change)]);
                }
                Step::Written | Step::Looked if self.soft => {
                    actions.extend([Action::Rename(change), Action::RenameFails(change)])
                }
                Step::Written | Step::Looked | Step::Left => actions.push(Action::Rename(change)),
                Step::Renamed if self.syncs => actions.extend([Action::Sync(change), Action::GiveUp(change)]),
                Step::Renamed | Step::Synced => actions.push(Action::Answer(change)),
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        let mut step = |change: Number, step| state.steps[change as usize - 1] = step;
        match action {
            Action::Tick => state.now += 1,
            Action::Begin(change) => {
                step(change, Step::Written);
                state.history.begin(change, state.now, state.now + PATIENCE);
            }
            Action::Look(change) => {
                let is_locked = self.looks == Looks::UnderLock && last.steps.contains(&Step::Looked);
                if is_locked || last.now >= last.history.end(change) {
                    return None;
                }
                step(change, Step::Looked);
            }
            Action::Rename(change) => {
                let is_left = last.steps[change as usize - 1] == Step::Left;
                step(change, if is_left { Step::Over } else { Step::Renamed });
                state.content = Some(change);
            }
            Action::RenameFails(change) => {
                step(change, Step::Left);
                state.history.ended(change, Phase::Unknown);
            }
            Action::Sync(change) => {
                step(change, Step::Synced);
                state.on_disk = state.content;
            }
            Action::Answer(change) => {
                step(change, Step::Over);
                state.history.ended(change, Phase::Acknowledged);
            }
            // The deadline is looked at between two calls of the system.
            Action::GiveUp(change) if state.now >= state.history.end(change) => {
                let was_renamed = last.steps[change as usize - 1] == Step::Renamed;
                step(change, Step::Over);
                state.history.ended(change, if was_renamed { Phase::Unknown } else { Phase::Refused });
            }
            Action::GiveUp(_) => return None,
            Action::KernelWritesOut => state.on_disk = state.content,
            Action::PowerFails => {
                state.power_failed = true;
                state.content = state.on_disk;
                // Who was at work is gone, and its calls with it.
                let is_running = |step: &&mut Step| **step != Step::Waiting;
                state.steps.iter_mut().filter(is_running).for_each(|step| *step = Step::Over);
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(NOT_UNDONE, |_, state: &State| state.history.is_not_undone(state.content)),
            Property::always(REFUSED_IS_NOT_THERE, |_, state: &State| {
                state.history.refused_is_not_there(state.content)
            }),
            Property::sometimes(GOES_ON, |_, state: &State| state.history.goes_on()),
        ]
    }
}

pub fn cases() -> Vec<Case> {
    let full = Files { syncs: true, power_fails: true, soft: false, looks: Looks::Never, changes: [0, 1] };
    let locks = Files { looks: Looks::UnderLock, ..full };
    let case = |variant, scenario, expects, of: Files| Case::new("local-fs", variant, scenario, expects, of);
    let own = [0, 0];
    let broken = Expects::Breaks(NOT_UNDONE);
    vec![
        case("today", "put, put", Expects::Holds, Files { changes: own, ..full }),
        case("today", "put, other's put", broken, full),
        case("clock, no lock", "put, other's put", broken, Files { looks: Looks::WithoutLock, ..full }),
        case("fenced", "put, other's put", Expects::Holds, locks),
        case("fenced", "put, put", Expects::Holds, Files { changes: own, ..locks }),
        case("durability = rename", "put, power fails", broken, Files { syncs: false, ..locks }),
        case("soft network mount", "put, put", broken, Files { soft: true, changes: own, ..locks }),
    ]
}
