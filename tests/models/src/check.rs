//! Runs the checker over one variant of a protocol, and compares what it finds with what the variant is known to do.

use std::fmt::Debug;
use std::hash::Hash;
use std::time::{Duration, Instant};

use serde::Serialize;
use stateright::{Checker, Expectation, HasDiscoveries, Model};

/// What a variant must do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expects {
    /// Every state was visited, and the invariants hold in all of them.
    Holds,
    /// The checker finds a shortest sequence that breaks this invariant.
    Breaks(&'static str),
}

/// One variant of one protocol, with the changes that its clients make.
pub struct Case {
    pub model: &'static str,
    pub variant: &'static str,
    pub scenario: &'static str,
    pub expects: Expects,
    search: Box<dyn Fn(Expects) -> Found + Send + Sync>,
}

/// What a search has found.
pub struct Found {
    /// Different states.
    pub states: usize,
    pub depth: usize,
    /// The invariant that is broken, and the steps to there.
    pub broken: Option<(&'static str, Vec<String>)>,
    /// What must be possible, and is not.
    pub impossible: Vec<&'static str>,
}

/// The outcome of a case, for people and machines.
#[derive(Serialize)]
pub struct Outcome {
    pub model: &'static str,
    pub variant: &'static str,
    pub scenario: &'static str,
    /// It did what it is known to do.
    pub as_expected: bool,
    pub states: usize,
    pub depth: usize,
    pub seconds: f64,
    pub breaks: Option<&'static str>,
    pub steps: Vec<String>,
    pub impossible: Vec<&'static str>,
}

impl Case {
    pub fn new<M>(model: &'static str, variant: &'static str, scenario: &'static str, expects: Expects, of: M) -> Case
    where
        M: Model + Clone + Send + Sync + 'static,
        M::State: Clone + Debug + Hash + PartialEq + Send + Sync + 'static,
        M::Action: Clone + Debug + PartialEq,
    {
        Case { model, variant, scenario, expects, search: Box::new(move |expects| search(of.clone(), expects)) }
    }

    pub fn run(&self) -> Outcome {
        let begun = Instant::now();
        let found = (self.search)(self.expects);
        let took: Duration = begun.elapsed();
        let breaks = found.broken.as_ref().map(|(invariant, _)| *invariant);
        let as_expected = match self.expects {
            Expects::Holds => breaks.is_none() && found.impossible.is_empty(),
            Expects::Breaks(invariant) => breaks == Some(invariant),
        };
        Outcome {
            model: self.model,
            variant: self.variant,
            scenario: self.scenario,
            as_expected,
            states: found.states,
            depth: found.depth,
            seconds: took.as_secs_f64(),
            breaks,
            steps: found.broken.map(|(_, steps)| steps).unwrap_or_default(),
            // A search that stops at what it has found has not seen all that is possible.
            impossible: if breaks.is_some() { Vec::new() } else { found.impossible },
        }
    }
}

/// Breadth first and with one thread, so that the same is found each time. The checker goes on for a while after it has found something,
/// and keeps the last: so it is asked again for a shorter one until there is none.
fn search<M>(model: M, expects: Expects) -> Found
where
    M: Model + Clone + Send + Sync + 'static,
    M::State: Clone + Debug + Hash + PartialEq + Send + Sync + 'static,
    M::Action: Clone + Debug + PartialEq,
{
    let mut found = search_within(&model, expects, usize::MAX);
    while let Some((_, steps)) = &found.broken {
        let shorter = search_within(&model, expects, steps.len());
        if shorter.broken.is_none() {
            break;
        }
        found = shorter;
    }
    found
}

/// `states`: how many a sequence may have that is followed.
fn search_within<M>(model: &M, expects: Expects, states: usize) -> Found
where
    M: Model + Clone + Send + Sync + 'static,
    M::State: Clone + Debug + Hash + PartialEq + Send + Sync + 'static,
    M::Action: Clone + Debug + PartialEq,
{
    let until = match expects {
        Expects::Holds => HasDiscoveries::AllFailures,
        Expects::Breaks(_) => HasDiscoveries::AnyFailures,
    };
    let mut checker = model.clone().checker().finish_when(until);
    if states < usize::MAX {
        // The state at this depth is not looked at any more.
        checker = checker.target_max_depth(states + 1);
    }
    let checker = checker.spawn_bfs().join();
    let discoveries = checker.discoveries();
    let mut found = Found {
        states: checker.unique_state_count(),
        depth: checker.max_depth(),
        broken: None,
        impossible: Vec::new(),
    };
    for property in model.properties() {
        match (property.expectation, discoveries.get(property.name)) {
            (Expectation::Always, Some(path)) if found.broken.is_none() => {
                let steps = path.clone().into_actions().iter().map(|action| model.format_action(action)).collect();
                found.broken = Some((property.name, steps));
            }
            (Expectation::Sometimes, None) => found.impossible.push(property.name),
            _ => {}
        }
    }
    found
}
