//! The table in the host of the keys whose change ended unknown, shared by all instances of a store (`core/src/backend/changes.rs`).
//! A change of a key in it waits until the end of the change that ended unknown.
//!
//! The table is bounded. A change takes its place **before** it is sent, and gives it back when its end is known; while no place is free
//! nothing is changed, and everything is read. A table that is filled only when an end is unknown, and then forgets an entry, holds
//! nothing.
//!
//! Invariants: [`crate::history`], of each key. Bounds: two keys with two changes each, of one process with many threads; a table of one
//! place; 5 ticks. The server carries a change out at any time before its end: see [`crate::redis`] for what makes that so.

use stateright::{Model, Property};

use crate::check::{Case, Expects};
use crate::history::{Content, GOES_ON, History, NOT_UNDONE, Number, Phase};

const PATIENCE: u8 = 2;
const TICKS: u8 = 5;
const PLACES: usize = 1;

#[derive(Clone, Copy)]
struct Table {
    /// A change takes a place before it is sent.
    reserves: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key {
    history: History,
    content: Content,
    /// Changes that the server may still carry out.
    sent: Vec<Number>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    now: u8,
    keys: [Key; 2],
    /// Key, and until when it is held; none: until its end is known.
    held: Vec<(usize, Option<u8>)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Tick,
    Begin { key: usize, change: Number },
    CarryOut { key: usize, change: Number, answered: bool },
    GiveUp { key: usize, change: Number },
}

impl Model for Table {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let key = || Key { history: History::new(&[0, 0]), content: Some(0), sent: Vec::new() };
        vec![State { now: 0, keys: [key(), key()], held: Vec::new() }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.now < TICKS {
            actions.push(Action::Tick);
        }
        for (key, of) in state.keys.iter().enumerate() {
            let is_running = |change: &Number| of.history.phase(*change) == Phase::Running;
            let running = [1, 2].into_iter().find(is_running);
            match running {
                Some(change) => actions.push(Action::GiveUp { key, change }),
                None => actions.extend(of.history.next(0).map(|change| Action::Begin { key, change })),
            }
            for change in &of.sent {
                let answers = if Some(*change) == running { &[true, false][..] } else { &[false] };
                let carried = |answered: &bool| Action::CarryOut { key, change: *change, answered: *answered };
                actions.extend(answers.iter().map(carried));
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        let now = state.now;
        match action {
            Action::Tick => state.now += 1,
            Action::Begin { key, change } => {
                state.held.retain(|(_, until)| until.is_none_or(|until| now < until));
                if state.held.iter().any(|(held, _)| *held == key) || (self.reserves && state.held.len() >= PLACES) {
                    return None;
                }
                if self.reserves {
                    state.held.push((key, None));
                }
                let of = &mut state.keys[key];
                of.history.begin(change, now, now + PATIENCE);
                of.sent.push(change);
            }
            Action::CarryOut { key, change, answered } => {
                let of = &mut state.keys[key];
                of.sent.retain(|other| *other != change);
                if now < of.history.end(change) {
                    of.content = Some(change);
                    if answered {
                        of.history.ended(change, Phase::Acknowledged);
                        state.held.retain(|(held, until)| *held != key || until.is_some());
                    }
                } else if answered {
                    return None;
                }
            }
            Action::GiveUp { key, change } => {
                let until = state.keys[key].history.end(change);
                state.keys[key].history.ended(change, Phase::Unknown);
                state.held.retain(|(held, _)| *held != key);
                if state.held.len() >= PLACES {
                    state.held.remove(0);
                }
                state.held.push((key, Some(until)));
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(NOT_UNDONE, |_, state: &State| {
                state.keys.iter().all(|key| key.history.is_not_undone(key.content))
            }),
            Property::sometimes(GOES_ON, |_, state: &State| state.keys.iter().all(|key| key.history.goes_on())),
        ]
    }
}

pub fn cases() -> Vec<Case> {
    let case =
        |variant, expects, reserves| Case::new("hold", variant, "two keys, one place", expects, Table { reserves });
    vec![
        case("place taken when unknown", Expects::Breaks(NOT_UNDONE), false),
        case("place taken before it is sent", Expects::Holds, true),
    ]
}
