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
//! Where nothing is there to follow, and before a delete, the end of one's own former changes is waited for: a removal that was sent may come till then.
//!
//! Invariants: [`crate::history`], of the greatest version. Bounds: two changes, one eviction, 4 ticks. Removals are by slot, whatever has come
//! there since it was seen: what was put into a slot whose version was evicted may be removed, and is a miss. A client sends nothing after its end;
//! one that is stopped between that look at the clock and the sending is outside the model. Of what was sent before, only ends of puts come late.
//!
//! `tests/lockstep/mooncake` walks through what is built and through the sources at once.

use stateright::{Model, Property};

use crate::check::{Case, Expects};
use crate::history::{Content, GOES_ON, History, NOT_UNDONE, Number, Phase, REFUSED_IS_NOT_THERE};

const PATIENCE: u8 = 2;
const TICKS: u8 = 4;

#[derive(Clone)]
pub struct Rules {
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
    /// Where nothing is there to follow, and before a delete, the end of former changes is waited for: nothing stops a removal of theirs.
    holds: bool,
    /// Of all versions the first alone is evicted.
    pub keeps_changes: bool,
    /// Changes may end unknown.
    late: bool,
    pub evictions: u8,
    pub ticks: u8,
    /// Generations from one tick to the next, where they follow the time.
    pub generations: u32,
    /// Who makes each change, from number 1 on, and whether it is a delete.
    pub changes: Vec<(u8, bool)>,
    /// Whose random number is greater, in different orders.
    pub ranks: Vec<Vec<u8>>,
}

/// Generation and random number.
pub type Order = (u32, u8);

/// What one slot holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    pub change: Number,
    pub slot: Slot,
    pub order: Order,
    /// Readers see it.
    pub ended: bool,
}

/// Numbers of changes, a bit for each.
pub type Changes = u8;
/// A slot has the number of the change that was first put there.
pub type Slot = Number;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    Waiting,
    /// What these have begun is to be revoked.
    Begun(Changes),
    /// The generation that follows what was seen, and how many more were being written.
    Looked {
        follows: u32,
        written: u32,
    },
    Ready(Order),
    /// The put has begun, and its end is on its way or was carried out.
    Started(Order),
    /// Removing what was seen to be lower. `own`: what was published; none: a delete.
    Removes {
        own: Option<Order>,
        lower: Vec<Slot>,
    },
    Over,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    now: u8,
    evictions: u8,
    pub history: History,
    /// By their changes.
    pub versions: Vec<Version>,
    steps: Vec<Step>,
    ranks: Vec<u8>,
    /// Ends of puts that are on their way.
    ends: Vec<Number>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Tick,
    Begin(Number),
    /// What a former change began and did not end.
    Revoke(Number, Number),
    /// At what is there, as often as it is wanted.
    Look(Number),
    /// The generation follows from the look and the time.
    Number(Number),
    /// In a slot that is free.
    Start(Number, Slot),
    End(Number),
    LookAgain(Number),
    /// Of a put all at once, of a delete one after the other. By slot, whatever has come there.
    Remove(Number),
    Answer(Number),
    GiveUp(Number),
    /// The caller is told that it was not done.
    Refuse(Number),
    Evict(Number),
}

impl State {
    pub fn greatest(&self) -> Option<Version> {
        self.versions.iter().filter(|version| version.ended).max_by_key(|version| version.order).copied()
    }

    /// What readers find.
    pub fn content(&self) -> Content {
        self.greatest().map(|version| version.change)
    }

    pub fn step(&self, change: Number) -> &Step {
        &self.steps[change as usize - 1]
    }

    fn step_mut(&mut self, change: Number) -> &mut Step {
        &mut self.steps[change as usize - 1]
    }
}

impl Rules {
    pub fn deletes(&self, change: Number) -> bool {
        self.changes[change as usize - 1].1
    }

    fn generation_at(&self, now: u8) -> u32 {
        (u32::from(now) + 1) * self.generations
    }

    fn client(&self, change: Number) -> u8 {
        self.changes[change as usize - 1].0
    }

    fn numbers(&self) -> std::ops::RangeInclusive<Number> {
        1..=self.changes.len() as Number
    }

    fn begin(&self, state: &mut State, change: Number) -> Option<()> {
        let client = self.client(change);
        let mut own = self.numbers().filter(|other| self.client(*other) == client && *other != change);
        let is_free = own.all(|other| matches!(state.step(other), Step::Waiting | Step::Over));
        if state.history.next(client) != Some(change) || !is_free {
            return None;
        }
        *state.step_mut(change) = Step::Begun(if self.revokes { self.former(state, change) } else { 0 });
        state.history.begin(change, state.now, state.now + PATIENCE);
        Some(())
    }

    /// Changes of the same client that its host remembers: those that ended unknown, and that no other one has settled since.
    fn former(&self, state: &State, change: Number) -> Changes {
        let own = (1..change).filter(|other| self.client(*other) == self.client(change));
        own.fold(0, |former, other| match state.history.phase(other) {
            Phase::Acknowledged => 0,
            Phase::Unknown if !self.forgets || state.now < state.history.end(other) => former | 1 << other,
            _ => former,
        })
    }

    fn look(&self, state: &mut State, change: Number) -> Option<()> {
        let can = match state.step(change) {
            Step::Begun(former) => *former == 0,
            Step::Looked { .. } => true,
            Step::Removes { own, .. } => own.is_none(),
            _ => false,
        };
        let written = state.versions.iter().filter(|version| !version.ended).count() as u32;
        let holds = self.holds && self.deletes(change) && self.former(state, change) != 0;
        if !can || holds || (self.waits && written > 0) {
            return None;
        }
        *state.step_mut(change) = match self.deletes(change) {
            true => Step::Removes { own: None, lower: self.lower(state, None) },
            false => Step::Looked { follows: state.greatest().map_or(0, |version| version.order.0) + 1, written },
        };
        Some(())
    }

    fn number(&self, state: &mut State, change: Number) -> Option<()> {
        let &Step::Looked { follows, written } = state.step(change) else { return None };
        let has_none = follows == 1;
        if self.holds && has_none && self.former(state, change) != 0 {
            return None;
        }
        let least = if self.by_time { follows.max(self.generation_at(state.now)) } else { follows };
        let generation = if self.counts { least + written } else { least };
        *state.step_mut(change) = Step::Ready((generation, state.ranks[change as usize - 1]));
        Some(())
    }

    /// What is to be removed before the change is answered.
    fn lower(&self, state: &State, own: Option<Order>) -> Vec<Slot> {
        let greatest = state.greatest().map(|version| version.order);
        let keep = match own {
            None => None,
            Some(own) if self.ordered => greatest.filter(|greatest| *greatest >= own),
            Some(_) => greatest,
        };
        let is_lower = |version: &&Version| version.ended && keep.is_none_or(|keep| version.order < keep);
        let mut lower: Vec<&Version> = state.versions.iter().filter(is_lower).collect();
        lower.sort_by_key(|version| version.order);
        lower.into_iter().map(|version| version.slot).collect()
    }

    fn remove(&self, state: &mut State, change: Number) -> Option<()> {
        let Step::Removes { own, mut lower } = state.step(change).clone() else { return None };
        let later = if own.is_some() { Vec::new() } else { lower.split_off(1) };
        state.versions.retain(|version| !version.ended || !lower.contains(&version.slot));
        *state.step_mut(change) = Step::Removes { own, lower: later };
        Some(())
    }
}

impl Model for Rules {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let first = Version { change: 0, slot: 0, order: (self.generation_at(0), 0), ended: true };
        let clients: Vec<u8> = self.changes.iter().map(|(client, _)| *client).collect();
        let state = |ranks: &Vec<u8>| State {
            now: 0,
            evictions: 0,
            history: History::new(&clients),
            versions: vec![first],
            steps: vec![Step::Waiting; clients.len()],
            ranks: ranks.clone(),
            ends: Vec::new(),
        };
        self.ranks.iter().map(state).collect()
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if self.late && state.now < self.ticks {
            actions.push(Action::Tick);
        }
        for change in self.numbers() {
            match state.step(change) {
                Step::Waiting => actions.push(Action::Begin(change)),
                Step::Begun(0) => actions.push(Action::Look(change)),
                Step::Begun(former) => {
                    let former = self.numbers().filter(|other| former & (1 << other) != 0);
                    actions.extend(former.map(|former| Action::Revoke(change, former)));
                }
                Step::Looked { .. } => actions.extend([Action::Look(change), Action::Number(change)]),
                Step::Ready(_) => {
                    let is_free = |slot: &Slot| state.versions.iter().all(|version| version.slot != *slot);
                    let slots = std::iter::once(0).chain(self.numbers()).filter(is_free);
                    actions.extend(slots.map(|slot| Action::Start(change, slot)));
                }
                Step::Started(_) => actions.push(Action::LookAgain(change)),
                Step::Removes { own, lower } => {
                    let again = if own.is_some() { Action::LookAgain(change) } else { Action::Look(change) };
                    actions.extend([
                        again,
                        if lower.is_empty() { Action::Answer(change) } else { Action::Remove(change) },
                    ]);
                }
                Step::Over => {}
            }
            if self.late && !matches!(state.step(change), Step::Waiting | Step::Over) {
                actions.push(Action::GiveUp(change));
                if matches!(state.step(change), Step::Begun(_) | Step::Looked { .. } | Step::Ready(_)) {
                    actions.push(Action::Refuse(change));
                }
            }
        }
        actions.extend(state.ends.iter().map(|change| Action::End(*change)));
        if state.evictions < self.evictions {
            let may_go = |version: &&Version| version.ended && !(self.keeps_changes && version.change > 0);
            actions.extend(state.versions.iter().filter(may_go).map(|version| Action::Evict(version.change)));
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Tick => state.now += 1,
            Action::Begin(change) => self.begin(&mut state, change)?,
            Action::Revoke(change, former) => {
                let &Step::Begun(left) = state.step(change) else { return None };
                *state.step_mut(change) = Step::Begun(left & !(1 << former));
                state.versions.retain(|version| version.change != former || version.ended);
            }
            Action::Look(change) => self.look(&mut state, change)?,
            Action::Number(change) => self.number(&mut state, change)?,
            Action::Start(change, slot) => {
                let &Step::Ready(order) = state.step(change) else { return None };
                // The host makes no call after the deadline.
                if self.late && state.now >= state.history.end(change) {
                    return None;
                }
                state.versions.push(Version { change, slot, order, ended: false });
                state.versions.sort();
                *state.step_mut(change) = Step::Started(order);
                state.ends.push(change);
                state.ends.sort_unstable();
            }
            Action::End(change) => {
                state.ends.retain(|other| *other != change);
                if let Some(version) = state.versions.iter_mut().find(|version| version.change == change) {
                    version.ended = true;
                }
            }
            Action::LookAgain(change) => {
                let &(Step::Started(own) | Step::Removes { own: Some(own), .. }) = state.step(change) else {
                    return None;
                };
                if state.ends.contains(&change) {
                    return None;
                }
                *state.step_mut(change) = Step::Removes { own: Some(own), lower: self.lower(&state, Some(own)) };
            }
            Action::Remove(change) => self.remove(&mut state, change)?,
            Action::Answer(change) => {
                *state.step_mut(change) = Step::Over;
                state.history.ended(change, Phase::Acknowledged);
            }
            Action::GiveUp(change) => {
                if !self.forgets && state.now < state.history.end(change) {
                    return None;
                }
                *state.step_mut(change) = Step::Over;
                state.history.ended(change, Phase::Unknown);
            }
            Action::Refuse(change) => {
                *state.step_mut(change) = Step::Over;
                state.history.ended(change, Phase::Refused);
            }
            Action::Evict(change) => {
                state.versions.retain(|version| version.change != change);
                state.evictions += 1;
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties =
            vec![Property::always(NOT_UNDONE, |_, state: &State| state.history.is_not_undone(state.content()))];
        if self.late {
            properties.push(Property::always(REFUSED_IS_NOT_THERE, |_, state: &State| {
                state.history.refused_is_not_there(state.content())
            }));
            properties.push(Property::sometimes(GOES_ON, |_, state: &State| state.history.goes_on()));
        }
        properties
    }
}

fn today() -> Rules {
    Rules {
        ordered: false,
        revokes: false,
        waits: false,
        forgets: false,
        counts: false,
        by_time: false,
        holds: false,
        keeps_changes: false,
        late: false,
        evictions: 1,
        ticks: TICKS,
        generations: 1,
        changes: vec![(0, false), (1, false)],
        ranks: vec![vec![1, 2], vec![2, 1]],
    }
}

/// What is built.
pub fn built() -> Rules {
    let counts = Rules { ordered: true, late: true, revokes: true, forgets: true, counts: true, ..today() };
    Rules { by_time: true, holds: true, keeps_changes: true, ..counts }
}

pub fn cases() -> Vec<Case> {
    let ordered = || Rules { ordered: true, ..today() };
    let late = || Rules { late: true, ..ordered() };
    let revokes = || Rules { revokes: true, ..late() };
    let waits = || Rules { waits: true, ..revokes() };
    let forgets = || Rules { forgets: true, keeps_changes: true, ..revokes() };
    let counts = || Rules { counts: true, ..forgets() };
    let case = |variant, scenario, expects, rules: Rules| Case::new("mooncake", variant, scenario, expects, rules);
    let broken = |variant, scenario, rules| case(variant, scenario, Expects::Breaks(NOT_UNDONE), rules);
    let holds = |variant, scenario, rules| case(variant, scenario, Expects::Holds, rules);
    let with =
        |rules: Rules, client: u8, deletes: bool| Rules { changes: vec![(0, false), (client, deletes)], ..rules };
    let own = |rules| with(rules, 0, false);
    let own_delete = |rules| with(rules, 0, true);
    let others_delete = |rules| with(rules, 1, true);
    vec![
        broken("today", "put, other's, evicted", today()),
        holds("ordered", "put, other's, evicted", ordered()),
        holds("ordered", "put, other's delete, evicted", others_delete(ordered())),
        broken("ordered", "late put, put", own(late())),
        broken("ordered", "late put, delete", own_delete(late())),
        holds("ordered, revokes", "late put, put", own(revokes())),
        holds("ordered, revokes", "late put, delete", own_delete(revokes())),
        broken("ordered, revokes", "late put, other's put", revokes()),
        holds("ordered, revokes, waits", "late put, other's put", waits()),
        holds("ordered, revokes, waits", "late put, other's delete", others_delete(waits())),
        broken("revokes before the end", "late put, put", own(forgets())),
        broken("counts what is written", "late put, put, first evicted", own(counts())),
        holds("built: by time", "late put, put, first evicted", own(built())),
        holds("built: by time", "late put, other's, first evicted", built()),
        broken("built: by time", "late put, put, any evicted", own(Rules { keeps_changes: false, ..built() })),
        broken("built: by time", "late put, delete", own_delete(built())),
        broken("built: by time", "late put, other's delete", others_delete(built())),
    ]
}
