//! How the history of a seed is drawn: over which backend, and whether it is about what is rare.

use crate::calls::{FATES, Fate};
use crate::plan::{Action, Event, Shape, Which};
use chance::Dice;

/// What is asked of all histories of a search.
#[derive(Clone, Copy, Debug, Default)]
pub struct Draw {
    /// Over this backend. None: over that of the seed.
    pub backend: Option<Which>,
    /// Each history is about one action, one event and one fault of calls, all of them as likely, and so are the backends: what seldom
    /// meets meets.
    pub rare: bool,
}

/// As [`Action::name`] has them, without `drain`, which comes with requests of a queue.
const ACTIONS: [&str; 20] = [
    "put_chunk",
    "get_chunk",
    "put_manifest",
    "get_manifest",
    "delete_manifest",
    "prefetch",
    "flush",
    "replace",
    "put_many",
    "get_many",
    "exists_many",
    "delete_many",
    "commit",
    "queue put",
    "queue get",
    "queue exists",
    "queue delete",
    "queue many",
    "queue cancel",
    "reopen",
];

/// As [`Event::name`] has them.
const EVENTS: [&str; 12] = [
    "evicted",
    "failover",
    "power loss",
    "kill",
    "freeze",
    "partition",
    "rot",
    "clock jump",
    "no threads",
    "instance lost",
    "removed",
    "node lost",
];

/// How often something is drawn again until it is what a history is about. Some cannot be had over some backends.
pub const TRIES: usize = 200;

/// What a history is about.
#[derive(Clone, Copy, Debug)]
pub struct About {
    action: &'static str,
    event: &'static str,
    fate: Fate,
}

impl Draw {
    /// One that may have what the history is about.
    pub fn backend_of(self, seed: u64) -> Which {
        let of_seed = || {
            let Some(about) = self.about(seed) else { return Which::of(seed) };
            let may_have_it: &[Which] = match (about.event, about.fate) {
                ("node lost", _) => &[Which::Mooncake],
                ("instance lost", _) | (_, Fate::Short | Fate::SomeFail | Fate::Spoiled) => &[Which::Contract],
                (_, Fate::Twice) => &[Which::Contract, Which::S3],
                _ => &Which::ALL,
            };
            may_have_it[Dice::of(seed, &[7]).index(may_have_it.len())]
        };
        self.backend.unwrap_or_else(of_seed)
    }

    /// What asks for it.
    pub fn arguments(self) -> String {
        let backend = self.backend.map_or(String::new(), |backend| format!(" --backend {}", backend.name()));
        backend + if self.rare { " --rare" } else { "" }
    }

    /// What the history of a seed is about. None: of many things, as the draw has them.
    pub fn about(self, seed: u64) -> Option<About> {
        let mut dice = Dice::of(seed, &[8]);
        let any = |dice: &mut Dice, among: &[&'static str]| among[dice.index(among.len())];
        self.rare.then(|| About {
            action: any(&mut dice, &ACTIONS),
            event: any(&mut dice, &EVENTS),
            fate: FATES[dice.index(FATES.len())],
        })
    }
}

impl About {
    /// Whether something may befall such a store, and the event is one of that.
    pub fn suits(self, shape: &Shape) -> bool {
        shape.trouble > 0
            && match self.event {
                "instance lost" => shape.holds_data,
                "power loss" => shape.durable,
                "failover" => !shape.durable && !shape.holds_data,
                "kill" | "removed" => !shape.holds_data,
                _ => true,
            }
    }

    /// Half of the faults of calls, where it is among those that they may meet.
    pub fn fate(self, dice: &mut Dice, among: &[Fate]) -> Option<Fate> {
        (dice.met(500) && among.contains(&self.fate)).then_some(self.fate)
    }

    /// Mostly what has the action.
    pub fn actions(self, dice: &mut Dice, draw: impl FnMut(&mut Dice) -> Vec<Action>) -> Vec<Action> {
        mostly(dice, draw, |actions| actions.iter().any(|action| action.name() == self.action))
    }

    /// Mostly the event.
    pub fn event(self, dice: &mut Dice, draw: impl FnMut(&mut Dice) -> Option<Event>) -> Option<Event> {
        mostly(dice, draw, |event| event.as_ref().is_some_and(|event| event.name() == self.event))
    }
}

fn mostly<T>(dice: &mut Dice, mut draw: impl FnMut(&mut Dice) -> T, is_it: impl Fn(&T) -> bool) -> T {
    let tries = if dice.met(700) { TRIES } else { 1 };
    let mut drawn = draw(dice);
    for _ in 1..tries {
        if is_it(&drawn) {
            break;
        }
        drawn = draw(dice);
    }
    drawn
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Plan;
    use std::collections::BTreeSet;

    #[test]
    fn what_histories_are_about_is_what_they_can_have() {
        let (mut actions, mut events, mut over) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        for seed in 0..2000 {
            let plan = Plan::of(seed, Draw { backend: None, rare: true });
            actions.extend(plan.steps().map(|step| step.action.name()));
            events.extend(plan.events.iter().map(|planned| planned.event.name()));
            over.insert(plan.shape.backend.name());
        }
        assert!(actions.remove("drain"), "which comes with requests of a queue");
        assert_eq!(actions, BTreeSet::from(ACTIONS));
        assert_eq!(events, BTreeSet::from(EVENTS));
        assert_eq!(over.len(), Which::ALL.len());
    }
}
