//! s3: `guests/s3/src/lib.rs` puts and deletes, `guests/s3/src/bucket.rs` repeats. One object; requests are delivered in any order, late, twice,
//! or never: by a proxy, a gateway, or a server whose storage was slow.
//!
//! Today a manifest is an unconditional PUT, repeated where the answer was lost, and a delete a DELETE.
//!
//! Fenced: a change puts under the condition that what its client saw last is still there: `If-Match` of its ETag, or `If-None-Match: *`
//! where it saw nothing. The bytes hold a random nonce and a generation, one more than that of what was seen, so that no two writes have
//! one ETag. A delete puts a tombstone, always, also where nothing is there and over another tombstone. Where an answer is lost the same
//! request is sent again. A 412 is no answer, and where answers stay lost there is none: the object is looked at, by a request of its own.
//! One's own change there is success, and anything else is put over, with another nonce. Where no try is left the end is unknown. Tombstones
//! are collected when no request that was sent before them can still be taken (the date that requests are signed with).
//!
//! Invariants: [`crate::history`]. Bounds: two changes with two tries each, by two processes or by one with a repeated delivery, and two
//! answers lost before their calls are over; or three changes with one try each, and one such answer; 4 ticks. At first each client has
//! seen what is there.

use stateright::{Model, Property};

use crate::check::{Case, Expects};
use crate::history::{Content, GOES_ON, History, NOT_UNDONE, Number, Phase, REFUSED_IS_NOT_THERE};

pub const PATIENCE: u8 = 2;
const TICKS: u8 = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Honours {
    Conditions,
    Nothing,
    /// It compares, and writes in another step.
    NotUnderRaces,
}

#[derive(Clone, Copy)]
pub struct Rules {
    pub conditional: bool,
    pub honours: Honours,
    /// Each write has an ETag of its own.
    pub nonces: bool,
    pub tombstones: bool,
    /// A delete that finds nothing, or a tombstone, writes another one.
    pub deletes_always: bool,
    /// A 412 is looked into.
    pub reads_back: bool,
    /// Ticks after which a server takes no request, and after which a tombstone is collected; none: never.
    pub lifetime: Option<u8>,
    pub collected_after: Option<u8>,
    /// Requests that a change may take.
    pub tries: u8,
    /// Deliveries that may come twice.
    pub repeats: u8,
    /// Answers that may be lost before the call is over.
    pub losses: u8,
}

#[derive(Clone)]
pub struct Bucket {
    pub rules: Rules,
    pub changes: Vec<Change>,
    /// Whether there is an object at first.
    pub held: bool,
}

/// Who changes the object, and the bytes that it puts; none: it is deleted.
pub type Change = (u8, Option<u8>);

/// What a write is told apart by.
pub type Tag = u16;

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
    /// What a look has found.
    Found(Option<Object>),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
enum Waits {
    #[default]
    Nothing,
    Put,
    Look,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Client {
    change: Option<Number>,
    /// Puts of this change so far, each with a nonce of its own.
    tries: u8,
    waits: Waits,
    answer: Option<Answer>,
    /// The answer that was lost.
    lost: Waits,
    /// The ETag of what it saw last; none: nothing.
    seen: Option<Tag>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    now: u8,
    repeats: u8,
    losses: u8,
    history: History,
    object: Option<Object>,
    /// The change that made what there is, also where that is nothing.
    content: Content,
    clients: [Client; 2],
    requests: Vec<Request>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Tick,
    Begin(u8),
    /// Put once more: of what has no conditions.
    SendAgain(u8),
    /// Send the same put once more.
    Repeat(u8),
    /// Ask what is there.
    Look(u8),
    /// The server answers a look.
    Show(u8),
    Take {
        change: Number,
        number: u8,
        again: bool,
        /// The client that waits for the answer may hear it.
        heard: bool,
    },
    Answer(u8),
    Lose(u8),
    GiveUp(u8),
    CollectTombstone,
}

impl State {
    pub fn history(&self) -> &History {
        &self.history
    }

    pub fn content(&self) -> Content {
        self.content
    }

    /// The change that made the object, and whether it is a tombstone.
    pub fn object(&self) -> Option<(Number, bool)> {
        self.object.map(|object| (object.change, object.tombstone))
    }

    /// Puts that may still be carried out.
    pub fn requests(&self) -> usize {
        self.requests.len()
    }

    /// Puts of a client's change so far, each with a nonce of its own.
    pub fn tries(&self, client: u8) -> usize {
        self.clients[client as usize].tries.into()
    }

    pub fn waits_for_put(&self, client: u8) -> bool {
        self.clients[client as usize].waits == Waits::Put
    }

    /// What a client is about to do, and not told of yet.
    pub fn runs(&self, client: u8) -> Option<Number> {
        self.clients[client as usize].change
    }
}

impl Bucket {
    fn tag(&self, change: Number, number: u8) -> Tag {
        match self.changes[change as usize - 1].1 {
            Some(bytes) if !self.rules.nonces => 1000 + Tag::from(bytes),
            _ => Tag::from(change) * 64 + Tag::from(number),
        }
    }

    fn ended(state: &mut State, client: u8, phase: Phase) -> Option<()> {
        let of = &mut state.clients[client as usize];
        state.history.ended(of.change.take()?, phase);
        *of = Client { seen: of.seen, ..Client::default() };
        Some(())
    }

    fn deletes(&self, change: Number) -> bool {
        self.changes[change as usize - 1].1.is_none()
    }

    fn put(&self, state: &mut State, client: u8) -> Option<()> {
        let of = &mut state.clients[client as usize];
        let change = of.change.filter(|_| of.waits == Waits::Nothing)?;
        let is_gone = state.object.is_none_or(|object| object.tombstone);
        if self.rules.conditional && self.deletes(change) && is_gone && !self.rules.deletes_always {
            return Self::ended(state, client, Phase::Acknowledged);
        }
        if of.tries >= self.rules.tries || state.now >= state.history.end(change) {
            return None;
        }
        let condition = match of.seen {
            _ if !self.rules.conditional => Condition::None,
            None => Condition::Absent,
            Some(tag) => Condition::Is(tag),
        };
        let request = Request { change, number: of.tries, condition, sent: state.now, passed: false };
        (of.tries, of.waits, of.lost) = (of.tries + 1, Waits::Put, Waits::Nothing);
        Self::sends(state, request);
        Some(())
    }

    fn sends(state: &mut State, request: Request) {
        state.requests.push(request);
        state.requests.sort_unstable();
    }

    /// The same put is sent once more. One that may still be carried out is, and that it may be twice is `again` of [`Action::Take`].
    fn repeat(&self, state: &mut State, client: u8) -> Option<()> {
        let of = &mut state.clients[client as usize];
        let change = of.change.filter(|_| of.lost == Waits::Put && of.waits == Waits::Nothing)?;
        let condition = of.seen.map_or(Condition::Absent, Condition::Is);
        let (number, sent) = (of.tries - 1, state.now);
        (of.waits, of.lost) = (Waits::Put, Waits::Nothing);
        if !state.requests.iter().any(|request| (request.change, request.number) == (change, number)) {
            Self::sends(state, Request { change, number, condition, sent, passed: false });
            state.repeats += 1;
        }
        Some(())
    }

    /// The server carries out a request; `again`: it is delivered once more later.
    fn take(&self, state: &mut State, change: Number, number: u8, again: bool, heard: bool) -> Option<()> {
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
            let deletes = self.deletes(change);
            let tag = self.tag(change, number);
            let object = Object { change, tag, tombstone: deletes, written: state.now };
            state.object = (!deletes || self.rules.tombstones).then_some(object);
            state.content = Some(change);
        }
        let client = &mut state.clients[self.changes[change as usize - 1].0 as usize];
        let is_waited_for = client.change == Some(change) && client.waits == Waits::Put && client.tries == number + 1;
        if heard && is_waited_for && client.answer.is_none() {
            client.answer = Some(if done { Answer::Done } else { Answer::ConditionFailed });
        }
        Some(())
    }

    fn look(&self, state: &mut State, client: u8) -> Option<()> {
        let of = &mut state.clients[client as usize];
        if !self.rules.conditional || of.change.is_none() || of.waits != Waits::Nothing {
            return None;
        }
        (of.waits, of.lost) = (Waits::Look, Waits::Nothing);
        Some(())
    }

    fn show(&self, state: &mut State, client: u8) -> Option<()> {
        let of = &mut state.clients[client as usize];
        if of.waits != Waits::Look || of.answer.is_some() {
            return None;
        }
        of.answer = Some(Answer::Found(state.object));
        Some(())
    }

    fn answer(&self, state: &mut State, client: u8) -> Option<()> {
        let of = &mut state.clients[client as usize];
        let (answer, change) = (of.answer.take()?, of.change?);
        of.waits = Waits::Nothing;
        match answer {
            Answer::Done => {
                let is_there = !self.deletes(change) || self.rules.tombstones;
                of.seen = is_there.then(|| self.tag(change, of.tries - 1));
                Self::ended(state, client, Phase::Acknowledged)
            }
            Answer::ConditionFailed if !self.rules.reads_back => Self::ended(state, client, Phase::Refused),
            Answer::ConditionFailed => Some(()),
            Answer::Found(found) => {
                of.seen = found.map(|object| object.tag);
                // Its own write is there: an answer was lost.
                match found.is_some_and(|object| object.change == change) {
                    true => Self::ended(state, client, Phase::Acknowledged),
                    // Where no try is left, it gives up.
                    false if of.tries >= self.rules.tries => Some(()),
                    false => self.put(state, client),
                }
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
        let client = || Client { seen: self.held.then_some(0), ..Client::default() };
        vec![State {
            now: 0,
            repeats: 0,
            losses: 0,
            history: History::new(&clients),
            object: self.held.then_some(held),
            content: self.held.then_some(0),
            clients: [client(), client()],
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
                actions.extend([Action::Answer(client), Action::GiveUp(client)]);
                match of.waits {
                    Waits::Nothing if !self.rules.conditional => actions.push(Action::SendAgain(client)),
                    Waits::Nothing => {
                        actions.extend((state.repeats < self.rules.repeats).then_some(Action::Repeat(client)));
                        actions.push(Action::Look(client));
                    }
                    Waits::Put => {}
                    Waits::Look => actions.push(Action::Show(client)),
                }
                if of.waits != Waits::Nothing && state.losses < self.rules.losses {
                    actions.push(Action::Lose(client));
                }
            }
        }
        for Request { change, number, .. } in &state.requests {
            let repeats = [false, true].into_iter().filter(|again| !again || state.repeats < self.rules.repeats);
            // That an answer is not heard is that it is lost.
            let heard = true;
            actions.extend(repeats.map(|again| Action::Take { change: *change, number: *number, again, heard }));
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
                self.put(&mut state, client)?;
            }
            Action::SendAgain(client) => self.put(&mut state, client)?,
            Action::Repeat(client) => self.repeat(&mut state, client)?,
            Action::Look(client) => self.look(&mut state, client)?,
            Action::Show(client) => self.show(&mut state, client)?,
            Action::Take { change, number, again, heard } => self.take(&mut state, change, number, again, heard)?,
            Action::Answer(client) => self.answer(&mut state, client)?,
            Action::Lose(client) => {
                state.losses = state.losses.saturating_add(1);
                let of = &mut state.clients[client as usize];
                (of.lost, of.waits, of.answer) = (of.waits, Waits::Nothing, None);
            }
            Action::GiveUp(client) => {
                let of = &state.clients[client as usize];
                let is_late = state.now >= state.history.end(of.change?);
                // A client that cannot look gives up.
                let has_tried = of.lost == Waits::Look || of.tries >= self.rules.tries;
                if !is_late && (of.waits != Waits::Nothing || !has_tried) {
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

/// As it is built, within the bounds of a search.
pub const FENCED: Rules = Rules {
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
    losses: 1,
};

pub fn cases() -> Vec<Case> {
    let fenced = FENCED;
    let today = Rules { conditional: false, tombstones: false, lifetime: None, ..fenced };
    let case = |variant, scenario: usize, expects, rules| {
        let (name, held, changes) = SCENARIOS[scenario];
        Case::new("s3", variant, name, expects, Bucket { rules, changes: changes.to_vec(), held })
    };
    let broken = |variant, scenario, rules| case(variant, scenario, Expects::Breaks(NOT_UNDONE), rules);
    let mut cases = Vec::new();
    for (scenario, (_, _, changes)) in SCENARIOS.iter().enumerate() {
        cases.push(broken("today", scenario, today));
        // A second delivery or a second try, where that leaves few enough states.
        let (repeats, few) = (u8::from(scenario == 0), if changes.len() == 2 { 2 } else { 1 });
        cases.push(case("fenced", scenario, Expects::Holds, Rules { repeats, tries: few, losses: few, ..fenced }));
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
