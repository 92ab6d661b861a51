//! s3: `guests/s3/src/lib.rs` puts and deletes, `guests/s3/src/bucket.rs` repeats. One object; requests are delivered in any order, late, twice,
//! or never: by a proxy, a gateway, or a server whose storage was slow.
//!
//! Today a manifest is an unconditional PUT, repeated where the answer was lost, and a delete a DELETE.
//!
//! Fenced: a change looks what is there, and puts under the condition that this is still so: `If-Match` of its ETag, or `If-None-Match: *`. The
//! bytes hold a random nonce and a generation, one more than that of what was seen, so that no two writes have one ETag. A delete
//! puts a tombstone, always, also where nothing is there and over another tombstone. A 412 is no answer: the object is looked at, one's own nonce
//! is success, and anything else is put over. Where no try is left the end is unknown. Tombstones are collected when no request that was
//! sent before them can still be taken (the date that requests are signed with).
//!
//! Invariants: [`crate::history`]. Bounds: two changes with two tries each, by two processes or by one with a repeated delivery, or three
//! changes with one try each; 4 ticks.

use stateright::{Model, Property};

use crate::check::{Case, Expects};
use crate::history::{GOES_ON, History, NOT_UNDONE, Number, Phase, REFUSED_IS_NOT_THERE};

const PATIENCE: u8 = 2;
const TICKS: u8 = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Honours {
    Conditions,
    Nothing,
    /// It compares, and writes in another step.
    NotUnderRaces,
}

#[derive(Clone, Copy)]
struct Rules {
    conditional: bool,
    honours: Honours,
    /// Each write has an ETag of its own.
    nonces: bool,
    tombstones: bool,
    /// A delete that finds nothing, or a tombstone, writes another one.
    deletes_always: bool,
    /// A 412 is looked into.
    reads_back: bool,
    /// Ticks after which a server takes no request, and after which a tombstone is collected; none: never.
    lifetime: Option<u8>,
    collected_after: Option<u8>,
    /// Requests that a change may take.
    tries: u8,
    /// Deliveries that may come twice.
    repeats: u8,
}

#[derive(Clone)]
struct Bucket {
    rules: Rules,
    changes: &'static [Change],
    /// Whether there is an object at first.
    held: bool,
}

/// Who changes the object, and the bytes that it puts; none: it is deleted.
type Change = (u8, Option<u8>);

/// What a write is told apart by.
type Tag = u8;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Condition {
    None,
    Absent,
    Is(Tag),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Object {
    change: Number,
    tag: Tag,
    tombstone: bool,
    written: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Request {
    change: Number,
    number: u8,
    condition: Condition,
    sent: u8,
    /// The condition was seen to hold, and nothing is written yet.
    passed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Answer {
    Done,
    ConditionFailed,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Client {
    change: Option<Number>,
    /// Requests of this change so far, and whether one is waited for.
    tries: u8,
    waits: bool,
    answer: Option<Answer>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    now: u8,
    repeats: u8,
    history: History,
    object: Option<Object>,
    /// The change that made what there is, also where that is nothing.
    content: Option<Number>,
    clients: [Client; 2],
    requests: Vec<Request>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Tick,
    Begin(u8),
    /// Look what is there, and send the change again.
    SendAgain(u8),
    Take {
        change: Number,
        number: u8,
        again: bool,
    },
    Answer(u8),
    Lose(u8),
    GiveUp(u8),
    CollectTombstone,
}

impl Bucket {
    fn tag(&self, change: Number, number: u8) -> Tag {
        match self.changes[change as usize - 1].1 {
            Some(bytes) if !self.rules.nonces => 100 + bytes,
            _ => change * 8 + number,
        }
    }

    fn ended(state: &mut State, client: u8, phase: Phase) -> Option<()> {
        let of = &mut state.clients[client as usize];
        state.history.ended(of.change.take()?, phase);
        state.clients[client as usize] = Client::default();
        Some(())
    }

    fn send(&self, state: &mut State, client: u8) -> Option<()> {
        let of = &mut state.clients[client as usize];
        let change = of.change.filter(|_| !of.waits)?;
        // Its own write is there: an answer was lost.
        let found = state.object;
        if self.rules.conditional && of.tries > 0 && found.is_some_and(|object| object.change == change) {
            return Self::ended(state, client, Phase::Acknowledged);
        }
        let deletes = self.changes[change as usize - 1].1.is_none();
        let is_gone = found.is_none_or(|object| object.tombstone);
        if self.rules.conditional && deletes && is_gone && !self.rules.deletes_always {
            return Self::ended(state, client, Phase::Acknowledged);
        }
        if of.tries >= self.rules.tries || state.now >= state.history.end(change) {
            return None;
        }
        let condition = match found {
            _ if !self.rules.conditional => Condition::None,
            None => Condition::Absent,
            Some(object) => Condition::Is(object.tag),
        };
        let request = Request { change, number: of.tries, condition, sent: state.now, passed: false };
        (of.tries, of.waits) = (of.tries + 1, true);
        state.requests.push(request);
        state.requests.sort_unstable();
        Some(())
    }

    /// The server carries out a request; `again`: it is delivered once more later.
    fn take(&self, state: &mut State, change: Number, number: u8, again: bool) -> Option<()> {
        let place = state.requests.iter().position(|request| (request.change, request.number) == (change, number))?;
        let request = state.requests[place];
        if self.rules.lifetime.is_some_and(|lifetime| state.now >= request.sent + lifetime) && !request.passed {
            state.requests.remove(place);
            return Some(());
        }
        let holds = match (self.rules.honours, request.condition, state.object) {
            (Honours::Nothing, ..) | (_, Condition::None, _) | (_, Condition::Absent, None) => true,
            (_, Condition::Is(tag), Some(object)) => tag == object.tag,
            _ => false,
        };
        if self.rules.honours == Honours::NotUnderRaces && holds && !request.passed {
            state.requests[place].passed = true;
            return Some(());
        }
        if again {
            state.repeats += 1;
            state.requests[place].passed = false;
        } else {
            state.requests.remove(place);
        }
        let done = holds || request.passed;
        if done {
            let deletes = self.changes[change as usize - 1].1.is_none();
            let tag = self.tag(change, number);
            let object = Object { change, tag, tombstone: deletes, written: state.now };
            state.object = (!deletes || self.rules.tombstones).then_some(object);
            state.content = Some(change);
        }
        let client = &mut state.clients[self.changes[change as usize - 1].0 as usize];
        if client.change == Some(change) && client.waits && client.tries == number + 1 && client.answer.is_none() {
            client.answer = Some(if done { Answer::Done } else { Answer::ConditionFailed });
        }
        Some(())
    }

    fn answer(&self, state: &mut State, client: u8) -> Option<()> {
        let of = &mut state.clients[client as usize];
        match of.answer.take()? {
            Answer::Done => Self::ended(state, client, Phase::Acknowledged),
            Answer::ConditionFailed if !self.rules.reads_back => Self::ended(state, client, Phase::Refused),
            Answer::ConditionFailed => {
                of.waits = false;
                Some(())
            }
        }
    }
}

impl Model for Bucket {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let clients: Vec<u8> = self.changes.iter().map(|(client, _)| *client).collect();
        let held = Object { change: 0, tag: 0, tombstone: false, written: 0 };
        vec![State {
            now: 0,
            repeats: 0,
            history: History::new(&clients),
            object: self.held.then_some(held),
            content: self.held.then_some(0),
            clients: Default::default(),
            requests: Vec::new(),
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.history.is_told() && state.requests.is_empty() {
            return;
        }
        if state.now < TICKS {
            actions.push(Action::Tick);
        }
        for (client, of) in (0..).zip(&state.clients) {
            if of.change.is_none() {
                actions.push(Action::Begin(client));
            } else {
                actions.extend([Action::SendAgain(client), Action::Answer(client), Action::GiveUp(client)]);
                actions.extend(of.waits.then_some(Action::Lose(client)));
            }
        }
        for Request { change, number, .. } in &state.requests {
            let repeats = [false, true].into_iter().filter(|again| !again || state.repeats < self.rules.repeats);
            actions.extend(repeats.map(|again| Action::Take { change: *change, number: *number, again }));
        }
        if let (Some(age), Some(object)) = (self.rules.collected_after, state.object)
            && object.tombstone
            && state.now >= object.written + age
        {
            actions.push(Action::CollectTombstone);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Tick => state.now += 1,
            Action::Begin(client) => {
                let change = state.history.next(client)?;
                state.history.begin(change, state.now, state.now + PATIENCE);
                state.clients[client as usize].change = Some(change);
                self.send(&mut state, client)?;
            }
            Action::SendAgain(client) => self.send(&mut state, client)?,
            Action::Take { change, number, again } => self.take(&mut state, change, number, again)?,
            Action::Answer(client) => self.answer(&mut state, client)?,
            Action::Lose(client) => {
                let of = &mut state.clients[client as usize];
                (of.waits, of.answer) = (false, None);
            }
            Action::GiveUp(client) => {
                let of = &state.clients[client as usize];
                let is_late = state.now >= state.history.end(of.change?);
                if !is_late && (of.waits || of.tries < self.rules.tries) {
                    return None;
                }
                let phase = if of.tries > 0 { Phase::Unknown } else { Phase::Refused };
                Self::ended(&mut state, client, phase)?;
            }
            Action::CollectTombstone => state.object = None,
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

/// Puts of bytes 1, 2 and 1 again are what makes an ETag of the bytes alone come back.
const SCENARIOS: [(&str, bool, &[Change]); 6] = [
    ("put, put", true, &[(0, Some(1)), (0, Some(2))]),
    ("put, other's put", true, &[(0, Some(1)), (1, Some(2))]),
    ("delete, other's put", true, &[(0, None), (1, Some(1))]),
    ("put, other's delete", true, &[(0, Some(1)), (1, None)]),
    ("first put, other's delete", false, &[(0, Some(1)), (1, None)]),
    ("put 1, put 2, put 1", true, &[(0, Some(1)), (1, Some(2)), (1, Some(1))]),
];

pub fn cases() -> Vec<Case> {
    let fenced = Rules {
        conditional: true,
        honours: Honours::Conditions,
        nonces: true,
        tombstones: true,
        deletes_always: true,
        reads_back: true,
        lifetime: Some(2),
        collected_after: Some(2),
        tries: 2,
        repeats: 0,
    };
    let today = Rules { conditional: false, tombstones: false, lifetime: None, ..fenced };
    let case = |variant, scenario: usize, expects, rules| {
        let (name, held, changes) = SCENARIOS[scenario];
        Case::new("s3", variant, name, expects, Bucket { rules, changes, held })
    };
    let broken = |variant, scenario, rules| case(variant, scenario, Expects::Breaks(NOT_UNDONE), rules);
    let mut cases = Vec::new();
    for (scenario, (_, _, changes)) in SCENARIOS.iter().enumerate() {
        cases.push(broken("today", scenario, today));
        // A second delivery or a second try, where that leaves few enough states.
        let (repeats, tries) = (u8::from(scenario == 0), if changes.len() == 2 { 2 } else { 1 });
        cases.push(case("fenced", scenario, Expects::Holds, Rules { repeats, tries, ..fenced }));
    }
    cases.extend([
        broken("conditions are ignored", 1, Rules { honours: Honours::Nothing, ..fenced }),
        broken("conditions fail under races", 1, Rules { honours: Honours::NotUnderRaces, ..fenced }),
        broken("ETag of the bytes alone", 5, Rules { nonces: false, ..fenced }),
        broken("no tombstone", 4, Rules { tombstones: false, lifetime: None, ..fenced }),
        broken("nothing there, no tombstone", 4, Rules { deletes_always: false, ..fenced }),
        broken("tombstone collected early", 4, Rules { lifetime: Some(3), collected_after: Some(1), ..fenced }),
        case("412 believed", 0, Expects::Breaks(REFUSED_IS_NOT_THERE), Rules { reads_back: false, ..fenced }),
    ]);
    cases
}
