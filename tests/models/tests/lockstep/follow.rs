//! A model that is taken along on a walk.

use std::collections::BTreeMap;
use std::fmt::Debug;

use stateright::Model;

/// How often each action of a model was reached.
pub type Reached = BTreeMap<String, usize>;

/// What comes of an action, if it is one of those that the model has there.
pub fn allows<M: Model>(model: &M, state: &M::State, action: M::Action) -> Option<M::State>
where
    M::Action: PartialEq,
{
    let mut allowed = Vec::new();
    model.actions(state, &mut allowed);
    allowed.contains(&action).then(|| model.next_state(state, action)).flatten()
}

/// The model does the same. `next`: what comes of that; none: it does not allow it. `steps`: what the walk has done so far.
pub fn follow<S: Debug>(
    state: &mut S,
    next: Option<S>,
    action: impl Debug,
    steps: &mut Vec<String>,
    reached: &mut Reached,
) {
    let Some(next) = next else { panic!("the model does not allow {action:?} here: {state:#?}\nafter {steps:#?}") };
    *state = next;
    let name = format!("{action:?}");
    count(reached, name.split(['(', ' ']).next().unwrap_or_default());
    steps.push(format!("    {name}"));
}

pub fn count(reached: &mut Reached, name: &str) {
    match reached.get_mut(name) {
        Some(count) => *count += 1,
        None => drop(reached.insert(name.to_owned(), 1)),
    }
}

/// Each of these was reached often, and nothing else was.
pub fn is_reached(reached: &Reached, names: &[&str]) {
    for name in names {
        assert!(reached.get(*name).is_some_and(|count| *count >= 1000), "{name}: {reached:?}");
    }
    assert_eq!(reached.len(), names.len(), "an action of the model that is not listed here: {reached:?}");
}
