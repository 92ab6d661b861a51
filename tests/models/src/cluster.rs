//! redis, a cluster: `guests/redis/src/cluster/mod.rs`. One key, the primary that serves it, and a replica whose clock differs.
//!
//! The protocol is that of [`crate::redis`]; here a slot moves, or the replica is promoted. What is replicated is replicated after the answer
//! (unless a change WAITs for it), so the promoted replica may lack what was acknowledged. The old primary serves until it has noticed.
//! A node that does not serve the key answers MOVED, which is certain: nothing was done, and the client asks the other node, unless the end of
//! the change has come by then: that is not sent, and its caller is told that it was not done.
//!
//! A script gives each change a generation, `max(TIME, the former generation + 1)`. A reader remembers the greatest that it has answered, and takes
//! a lower one for a miss.
//!
//! Invariants: [`crate::history`], and [`READS_GO_ON`], [`NO_FALSE_ALARM`]. Bounds: two changes by two processes, 5 ticks, one failover or one
//! move of the slot. Connections that are lost early, and repeats, are those of [`crate::redis`].

use stateright::{Model, Property};

use crate::check::{Case, Expects};
use crate::history::{Content, GOES_ON, History, NOT_UNDONE, Number, Phase};

/// "Reads do not go back": one reader does not answer what was replaced, after it has answered what replaced it.
pub const READS_GO_ON: &str = "reads do not go back";
/// "A newer manifest is not taken for an older one".
pub const NO_FALSE_ALARM: &str = "a newer manifest is not taken for an older one";

pub const PATIENCE: u8 = 2;
/// Generations in a tick.
const IN_A_TICK: u8 = 8;
pub const PRIMARY: usize = 0;
pub const REPLICA: usize = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    SlotMoves,
    Failover,
}

#[derive(Clone, Copy)]
pub struct Cluster {
    pub event: Event,
    pub ticks: u8,
    /// Changes carry an end.
    pub ends: bool,
    /// The time of a node is asked on each connection; otherwise the first that was learnt is used for all nodes.
    pub asks_each: bool,
    /// A change is answered when the replica has it.
    pub waits: bool,
    /// What each node's clock is ahead of true time.
    pub ahead: [u8; 2],
    /// A reader remembers generations.
    pub remembers: bool,
    /// Which of the invariants is looked at.
    pub invariant: &'static str,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Node {
    pub content: Content,
    generation: u8,
    pub serves: bool,
    /// Changes that are answered when the replica has them.
    waiting: Vec<Number>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    now: u8,
    /// The event has happened.
    pub happened: bool,
    pub history: History,
    pub nodes: [Node; 2],
    /// On their way: where to, which change, its end by that node's clock.
    pub frames: Vec<(u8, Number, u8)>,
    /// To each change.
    answers: Vec<Option<Answer>>,
    reader: Reader,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Reader {
    answered: Content,
    generation: u8,
    went_back: bool,
    false_alarm: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Answer {
    Ended(Phase),
    Moved,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Tick,
    Happens(Event),
    OldPrimaryNotices,
    Replicate,
    Begin { change: Number, asks: u8 },
    CarryOut { node: u8, change: Number, end: u8 },
    Answer(Number),
    GiveUp(Number),
    Read,
}

/// Of today's sources, while a slot moves. The clock of the node that takes over is behind.
pub const FENCED: Cluster = Cluster {
    event: Event::SlotMoves,
    ticks: 5,
    ends: true,
    asks_each: true,
    waits: false,
    ahead: [3, 0],
    remembers: true,
    invariant: NOT_UNDONE,
};

impl Cluster {
    pub fn serving(&self, state: &State) -> usize {
        if state.happened { REPLICA } else { PRIMARY }
    }

    fn send(&self, state: &mut State, change: Number, node: usize) {
        let ahead = self.ahead[if self.asks_each { node } else { PRIMARY }];
        state.frames.push((node as u8, change, state.history.end(change) + ahead));
        state.frames.sort_unstable();
    }

    fn carry_out(&self, state: &mut State, frame: (u8, Number, u8)) {
        state.frames.retain(|other| *other != frame);
        let (node, change, end) = frame;
        let clock = state.now + self.ahead[node as usize];
        let has_replica = self.waits && node as usize == PRIMARY;
        let node = &mut state.nodes[node as usize];
        state.answers[change as usize] = if !node.serves {
            Some(Answer::Moved)
        } else if self.ends && clock >= end {
            Some(Answer::Ended(Phase::Refused))
        } else {
            node.content = Some(change);
            node.generation = (clock * IN_A_TICK).max(node.generation + 1);
            if has_replica {
                node.waiting.push(change);
                return;
            }
            Some(Answer::Ended(Phase::Acknowledged))
        };
    }

    fn answer(&self, state: &mut State, change: Number) -> Option<()> {
        if state.history.phase(change) != Phase::Running {
            return None;
        }
        match state.answers[change as usize].take()? {
            Answer::Ended(phase) => state.history.ended(change, phase),
            Answer::Moved if self.ends && state.now >= state.history.end(change) => {
                state.history.ended(change, Phase::Refused);
            }
            Answer::Moved => {
                let serving = self.serving(state);
                self.send(state, change, serving);
            }
        }
        Some(())
    }

    fn read(&self, state: &mut State) -> Option<()> {
        let Node { content, generation, .. } = state.nodes[self.serving(state)];
        let reader = &state.reader;
        if reader.answered == content && reader.generation == generation {
            return None;
        }
        let replaced = |newer: Content, older: Content| state.history.replaces(newer, older);
        if self.remembers && generation < reader.generation {
            if !replaced(content, reader.answered) || reader.false_alarm {
                return None;
            }
            state.reader.false_alarm = true;
        } else {
            let went_back = reader.went_back || replaced(reader.answered, content);
            state.reader = Reader { answered: content, generation, went_back, ..state.reader };
        }
        Some(())
    }
}

impl Model for Cluster {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let held = Node { content: Some(0), ..Node::default() };
        vec![State {
            now: 0,
            happened: false,
            history: History::new(&[0, 1]),
            nodes: [Node { serves: true, ..held.clone() }, held],
            frames: Vec::new(),
            answers: vec![None; 3],
            reader: Reader::default(),
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.now < self.ticks {
            actions.push(Action::Tick);
        }
        if !state.happened {
            actions.extend([Action::Happens(self.event), Action::Replicate]);
        } else if state.nodes[PRIMARY].serves {
            actions.push(Action::OldPrimaryNotices);
        }
        for change in [1, 2] {
            match state.history.phase(change) {
                // The client's map may be old.
                Phase::Waiting => {
                    let nodes = 0..=self.serving(state) as u8;
                    actions.extend(nodes.map(|asks| Action::Begin { change, asks }));
                }
                Phase::Running => actions.extend([Action::Answer(change), Action::GiveUp(change)]),
                _ => {}
            }
        }
        actions.extend(state.frames.iter().map(|(node, change, end)| Action::CarryOut {
            node: *node,
            change: *change,
            end: *end,
        }));
        if [READS_GO_ON, NO_FALSE_ALARM].contains(&self.invariant) {
            actions.push(Action::Read);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Tick => state.now += 1,
            Action::Happens(event) => {
                state.happened = true;
                if event == Event::SlotMoves {
                    state.nodes[REPLICA] = Node { waiting: Vec::new(), ..state.nodes[PRIMARY].clone() };
                    state.nodes[PRIMARY].serves = false;
                }
                state.nodes[REPLICA].serves = true;
            }
            Action::OldPrimaryNotices => state.nodes[PRIMARY] = Node::default(),
            Action::Replicate => {
                let waited = std::mem::take(&mut state.nodes[PRIMARY].waiting);
                for change in &waited {
                    state.answers[*change as usize] = Some(Answer::Ended(Phase::Acknowledged));
                }
                let Node { content, generation, .. } = state.nodes[PRIMARY];
                if waited.is_empty() && state.nodes[REPLICA].content == content {
                    return None;
                }
                (state.nodes[REPLICA].content, state.nodes[REPLICA].generation) = (content, generation);
            }
            Action::Begin { change, asks } => {
                state.history.begin(change, state.now, state.now + PATIENCE);
                self.send(&mut state, change, asks.into());
            }
            Action::CarryOut { node, change, end } => self.carry_out(&mut state, (node, change, end)),
            Action::Answer(change) => self.answer(&mut state, change)?,
            Action::GiveUp(change) if state.now >= state.history.end(change) => {
                state.history.ended(change, Phase::Unknown);
            }
            Action::GiveUp(_) => return None,
            Action::Read => self.read(&mut state)?,
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![Property::sometimes(GOES_ON, |_, state: &State| state.history.goes_on())];
        properties.push(match self.invariant {
            NOT_UNDONE => Property::always(NOT_UNDONE, |of: &Cluster, state: &State| {
                state.history.is_not_undone(state.nodes[of.serving(state)].content)
            }),
            READS_GO_ON => Property::always(READS_GO_ON, |_, state: &State| !state.reader.went_back),
            _ => Property::always(NO_FALSE_ALARM, |_, state: &State| !state.reader.false_alarm),
        });
        properties
    }
}

pub fn cases() -> Vec<Case> {
    let failover = Cluster { event: Event::Failover, ..FENCED };
    let case = |variant, scenario, expects, of: Cluster| Case::new("cluster", variant, scenario, expects, of);
    let broken = |variant, scenario, of: Cluster| case(variant, scenario, Expects::Breaks(of.invariant), of);
    let reads = Cluster { invariant: READS_GO_ON, ..failover };
    let alarms = Cluster { invariant: NO_FALSE_ALARM, ..failover };
    vec![
        broken("today", "slot moves", Cluster { ends: false, ..FENCED }),
        case("fenced", "slot moves", Expects::Holds, FENCED),
        broken("one node's time for all", "slot moves", Cluster { asks_each: false, ..FENCED }),
        broken("fenced", "failover", failover),
        case("fenced, WAIT", "failover", Expects::Holds, Cluster { waits: true, ..failover }),
        broken("today", "failover, one reader", Cluster { remembers: false, ..reads }),
        case("a reader remembers", "failover, one reader", Expects::Holds, reads),
        broken("a reader remembers, clock behind", "failover, one reader", alarms),
        case(
            "a reader remembers, clocks agree",
            "failover, one reader",
            Expects::Holds,
            Cluster { ahead: [3, 3], ..alarms },
        ),
        case(
            "a reader remembers, clock behind",
            "slot moves, one reader",
            Expects::Holds,
            Cluster { event: Event::SlotMoves, ..alarms },
        ),
    ]
}
