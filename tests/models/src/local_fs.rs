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
//! Invariants: [`crate::history`]. Bounds: two or three changes, one loss of power, one process that is killed, 4 ticks.
//!
//! `tests/lockstep/files` walks through the fenced one and through the sources at once.

use stateright::{Model, Property};

use crate::check::{Case, Expects};
use crate::history::{Content, GOES_ON, History, NOT_UNDONE, Number, Phase, REFUSED_IS_NOT_THERE};

const PATIENCE: u8 = 2;
const TICKS: u8 = 4;

/// At the clock, before the rename.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Looks {
    Never,
    WithoutLock,
    UnderLock,
}

#[derive(Clone)]
pub struct Files {
    /// `durability = "full"`
    pub syncs: bool,
    /// The power may fail.
    pub power_fails: bool,
    /// Processes may be killed, so often.
    pub kills: u8,
    /// Calls of the file system may fail and be carried out later.
    pub soft: bool,
    pub looks: Looks,
    pub ticks: u8,
    /// Who makes each change, from number 1 on.
    pub changes: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
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
pub struct State {
    now: u8,
    power_failed: bool,
    kills: u8,
    pub history: History,
    /// What readers see, and what a loss of power leaves.
    pub content: Content,
    pub on_disk: Content,
    /// Of each change, from number 1 on.
    steps: Vec<Step>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
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
    /// The process of a client ends, and the kernel gives its lock back.
    Kill(u8),
}

impl State {
    pub fn step(&self, change: Number) -> Step {
        self.steps[change as usize - 1]
    }
}

impl Model for Files {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let (history, steps) = (History::new(&self.changes), vec![Step::Waiting; self.changes.len()]);
        vec![State { now: 0, power_failed: false, kills: 0, history, content: Some(0), on_disk: Some(0), steps }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.now < self.ticks {
            actions.push(Action::Tick);
        }
        actions.push(Action::KernelWritesOut);
        if self.power_fails && !state.power_failed {
            actions.push(Action::PowerFails);
        }
        let is_at_work = |client: u8| {
            let own = self.changes.iter().zip(&state.steps).filter(|(of, _)| **of == client);
            own.into_iter().any(|(_, step)| !matches!(step, Step::Waiting | Step::Left | Step::Over))
        };
        if state.kills < self.kills {
            let clients = 0..=self.changes.iter().copied().max().unwrap_or_default();
            actions.extend(clients.filter(|client| is_at_work(*client)).map(Action::Kill));
        }
        for (change, client) in (1..).zip(&self.changes) {
            match state.step(change) {
                // A process makes its changes one after the other.
                Step::Waiting if state.history.next(*client) == Some(change) => {
                    actions.extend((!is_at_work(*client)).then_some(Action::Begin(change)));
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
            Action::Kill(client) => {
                state.kills += 1;
                let own = self.changes.iter().zip(&mut state.steps).filter(|(of, _)| **of == client);
                let at_work = own.filter(|(_, step)| !matches!(step, Step::Waiting | Step::Left));
                at_work.for_each(|(_, step)| *step = Step::Over);
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

/// What is built.
pub fn fenced(changes: &[u8]) -> Files {
    let (syncs, power_fails, soft) = (true, true, false);
    Files { syncs, power_fails, kills: 1, soft, looks: Looks::UnderLock, ticks: TICKS, changes: changes.to_vec() }
}

pub fn cases() -> Vec<Case> {
    let case = |variant, scenario, expects, of: Files| Case::new("local-fs", variant, scenario, expects, of);
    let broken = |variant, scenario, of| case(variant, scenario, Expects::Breaks(NOT_UNDONE), of);
    let holds = |variant, scenario, of| case(variant, scenario, Expects::Holds, of);
    let (own, others) = ([0, 0], [0, 1]);
    let without = |looks, changes| Files { looks, kills: 0, ..fenced(changes) };
    let alive = |changes| without(Looks::UnderLock, changes);
    vec![
        holds("today", "put, put", without(Looks::Never, &own)),
        broken("today", "put, other's put", without(Looks::Never, &others)),
        broken("clock, no lock", "put, other's put", without(Looks::WithoutLock, &others)),
        holds("fenced", "put, other's put", fenced(&others)),
        holds("fenced", "put, put", fenced(&own)),
        holds("fenced", "put, other's put, put", fenced(&[0, 1, 0])),
        broken("durability = rename", "put, power fails", Files { syncs: false, ..alive(&others) }),
        broken("soft network mount", "put, put", Files { soft: true, ..alive(&own) }),
    ]
}
