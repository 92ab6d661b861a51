//! mooncake: `guests/mooncake/src/manifest.rs`. Objects are never replaced: a manifest is the greatest of the versions in the slots of its
//! name. To publish, a client looks, starts a put in the next free slot, ends it, looks again, removes what is lower, and answers.
//!
//! Today the second look is not compared with what was published: where that was evicted meanwhile, an older version that is still there is
//! left, and success is answered.
//!
//! Ordered: what is lower than the client's *own* version is removed as well, whatever the greatest is now.
//!
//! Fenced: further, a change whose *first* look finds a slot that is being written does not go on from there: a put that is ended late would
//! be as great. It revokes what its own client has begun (the master takes that from the same client only), and waits for others until
//! they have ended, or the master forgets what they began (`put_start_discard_timeout_sec`, 30 s). What is begun after that look is no matter.
//!
//! Built: nobody waits, since that would stop a name for 30 s after any writer dies. What is being written counts as a generation, and no
//! generation is less than the time, for what is being written may have followed a version that is gone. A client may give up early,
//! because its connection broke, and its host forgets what is to be revoked at the end of the change. What is ended late after that is
//! outranked by a newer version for as long as that is there: it breaks where that is evicted, and after a delete, which leaves none.
//!
//! Invariants: [`crate::history`], of the greatest version. Bounds: two changes, three slots, one eviction, 4 ticks. What a slot holds is
//! removed only where it is still what was seen: with 32 slots in turn, and looks that are anew after 10 ms, another has not come there. A client
//! sends nothing after its end; one that is stopped between that look at the clock and the sending is outside the model.

use stateright::{Model, Property};

use crate::check::{Case, Expects};
use crate::history::{GOES_ON, History, NOT_UNDONE, Number, Phase};

const PATIENCE: u8 = 2;
const TICKS: u8 = 4;
const SLOTS: usize = 3;

#[derive(Clone, Copy)]
struct Rules {
    /// What is lower than one's own is removed.
    ordered: bool,
    /// What the same client began is revoked.
    revokes: bool,
    /// What others have begun is waited for.
    waits: bool,
    /// A client may give up before the end of its change, and what it began is revoked before that end alone.
    forgets: bool,
    /// What is being written counts as a generation.
    counts: bool,
    /// No generation is less than the time.
    by_time: bool,
    /// Of all versions the first alone is evicted.
    keeps_changes: bool,
    /// Changes may end unknown.
    late: bool,
    clients: [u8; 2],
    /// The second change is a delete.
    deletes: bool,
}

/// Generation and random number.
type Order = (u8, u8);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Version {
    change: Number,
    order: Order,
    /// Readers see it.
    ended: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Step {
    Waiting,
    Looked(Order),
    /// The put has begun, and its end is on its way or was carried out.
    Started(Order),
    /// Removing what was seen to be lower: a bit for each slot.
    Removes(u8),
    Over,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    now: u8,
    evicted: bool,
    history: History,
    slots: [Option<Version>; SLOTS],
    steps: [Step; 2],
    /// Whose random number is greater.
    ranks: [u8; 2],
    /// Ends of puts that are on their way.
    ends: Vec<Number>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Tick,
    Look(Number),
    Start(Number),
    End(Number),
    LookAgain(Number),
    Remove(Number),
    GiveUp(Number),
    Evict(usize),
}

impl State {
    fn greatest(&self) -> Option<Version> {
        self.slots.iter().flatten().filter(|version| version.ended).max_by_key(|version| version.order).copied()
    }
}

impl Rules {
    fn deletes(&self, change: Number) -> bool {
        self.deletes && change == 2
    }

    fn look(&self, state: &mut State, change: Number) -> Option<()> {
        let own = change as usize - 1;
        let client = self.clients[own];
        if state.history.next(client) != Some(change) {
            return None;
        }
        let other = state.steps[1 - own];
        if self.clients[0] == self.clients[1] && own == 1 && other != Step::Over {
            return None;
        }
        let is_told = !self.forgets || own == 0 || state.now < state.history.end(1);
        if self.revokes && self.clients[0] == self.clients[1] && is_told {
            for slot in &mut state.slots {
                slot.take_if(|version| !version.ended);
            }
        }
        if self.waits && state.slots.iter().flatten().any(|version| !version.ended) {
            return None;
        }
        state.history.begin(change, state.now, state.now + PATIENCE);
        state.steps[own] = if self.deletes(change) {
            self.removal(state, None)
        } else {
            Step::Looked((self.next(state), state.ranks[own]))
        };
        Some(())
    }

    /// The generation to publish.
    fn next(&self, state: &State) -> u8 {
        let follows = state.greatest().map_or(0, |version| version.order.0) + 1;
        let least = if self.by_time { follows.max(state.now + 1) } else { follows };
        let written = state.slots.iter().flatten().filter(|version| !version.ended).count();
        if self.counts { least + written as u8 } else { least }
    }

    /// What is to be removed before the change is answered. `own`: what was published; none: a delete.
    fn removal(&self, state: &State, own: Option<Order>) -> Step {
        let greatest = state.greatest().map(|version| version.order);
        let keep = match own {
            None => None,
            Some(own) if self.ordered => greatest.filter(|greatest| *greatest >= own),
            Some(_) => greatest,
        };
        let lower = |version: &Version| version.ended && keep.is_none_or(|keep| version.order < keep);
        let slots = state.slots.iter().enumerate().filter(|(_, slot)| slot.as_ref().is_some_and(lower));
        Step::Removes(slots.fold(0, |bits, (slot, _)| bits | 1 << slot))
    }
}

impl Model for Rules {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let first = Version { change: 0, order: (1, 0), ended: true };
        let state = |ranks| State {
            now: 0,
            evicted: false,
            history: History::new(&self.clients),
            slots: [Some(first), None, None],
            steps: [Step::Waiting; 2],
            ranks,
            ends: Vec::new(),
        };
        vec![state([1, 2]), state([2, 1])]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if self.late && state.now < TICKS {
            actions.push(Action::Tick);
        }
        for change in [1, 2] {
            match state.steps[change as usize - 1] {
                Step::Waiting => actions.push(Action::Look(change)),
                Step::Looked(_) => actions.push(Action::Start(change)),
                Step::Started(_) => actions.push(Action::LookAgain(change)),
                Step::Removes(_) => actions.push(Action::Remove(change)),
                Step::Over => continue,
            }
            actions.push(Action::GiveUp(change));
        }
        actions.extend(state.ends.iter().map(|change| Action::End(*change)));
        if !state.evicted {
            let may_go = |version: Version| version.ended && !(self.keeps_changes && version.change > 0);
            let evictable = |slot: &usize| state.slots[*slot].is_some_and(may_go);
            actions.extend((0..SLOTS).filter(evictable).map(Action::Evict));
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Tick => state.now += 1,
            Action::Look(change) => self.look(&mut state, change)?,
            Action::Start(change) => {
                let Step::Looked(order) = state.steps[change as usize - 1] else { return None };
                // The host makes no call after the deadline.
                if self.late && state.now >= state.history.end(change) {
                    return None;
                }
                let free = state.slots.iter_mut().find(|slot| slot.is_none())?;
                *free = Some(Version { change, order, ended: false });
                state.steps[change as usize - 1] = Step::Started(order);
                state.ends.push(change);
            }
            Action::End(change) => {
                state.ends.retain(|other| *other != change);
                let begun = state.slots.iter_mut().flatten().find(|version| version.change == change);
                if let Some(version) = begun {
                    version.ended = true;
                }
            }
            Action::LookAgain(change) => {
                let Step::Started(order) = state.steps[change as usize - 1] else { return None };
                if state.ends.contains(&change) {
                    return None;
                }
                state.steps[change as usize - 1] = self.removal(&state, Some(order));
            }
            Action::Remove(change) => {
                let Step::Removes(bits) = state.steps[change as usize - 1] else { return None };
                for slot in (0..SLOTS).filter(|slot| bits & (1 << slot) != 0) {
                    state.slots[slot].take_if(|version| version.ended);
                }
                state.steps[change as usize - 1] = Step::Over;
                state.history.ended(change, Phase::Acknowledged);
            }
            Action::GiveUp(change) => {
                let step = std::mem::replace(&mut state.steps[change as usize - 1], Step::Over);
                let may = self.forgets || state.now >= state.history.end(change);
                if !self.late || step == Step::Waiting || !may {
                    return None;
                }
                state.history.ended(change, Phase::Unknown);
            }
            Action::Evict(slot) => (state.slots[slot], state.evicted) = (None, true),
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![Property::always(NOT_UNDONE, |_, state: &State| {
            state.history.is_not_undone(state.greatest().map(|version| version.change))
        })];
        if self.late {
            properties.push(Property::sometimes(GOES_ON, |_, state: &State| state.history.goes_on()));
        }
        properties
    }
}

pub fn cases() -> Vec<Case> {
    let today = Rules {
        ordered: false,
        revokes: false,
        waits: false,
        forgets: false,
        counts: false,
        by_time: false,
        keeps_changes: false,
        late: false,
        clients: [0, 1],
        deletes: false,
    };
    let ordered = Rules { ordered: true, ..today };
    let late = Rules { late: true, ..ordered };
    let (revokes, waits) = (Rules { revokes: true, ..late }, Rules { revokes: true, waits: true, ..late });
    let forgets = Rules { forgets: true, keeps_changes: true, ..revokes };
    let counts = Rules { counts: true, ..forgets };
    let built = Rules { by_time: true, ..counts };
    let case = |variant, scenario, expects, rules: Rules| Case::new("mooncake", variant, scenario, expects, rules);
    let broken = |variant, scenario, rules| case(variant, scenario, Expects::Breaks(NOT_UNDONE), rules);
    let own = |rules| Rules { clients: [0, 0], ..rules };
    let deletes = |rules| Rules { deletes: true, ..rules };
    vec![
        broken("today", "put, other's, evicted", today),
        case("ordered", "put, other's, evicted", Expects::Holds, ordered),
        case("ordered", "put, other's delete, evicted", Expects::Holds, deletes(ordered)),
        broken("ordered", "late put, put", own(late)),
        broken("ordered", "late put, delete", deletes(own(late))),
        case("ordered, revokes", "late put, put", Expects::Holds, own(revokes)),
        case("ordered, revokes", "late put, delete", Expects::Holds, deletes(own(revokes))),
        broken("ordered, revokes", "late put, other's put", revokes),
        case("ordered, revokes, waits", "late put, other's put", Expects::Holds, waits),
        case("ordered, revokes, waits", "late put, other's delete", Expects::Holds, deletes(waits)),
        broken("revokes before the end", "late put, put", own(forgets)),
        broken("counts what is written", "late put, put, first evicted", own(counts)),
        case("built: by time", "late put, put, first evicted", Expects::Holds, own(built)),
        case("built: by time", "late put, other's, first evicted", Expects::Holds, built),
        broken("built: by time", "late put, put, any evicted", own(Rules { keeps_changes: false, ..built })),
        broken("built: by time", "late put, delete", deletes(own(built))),
        broken("built: by time", "late put, other's delete", deletes(built)),
    ]
}
