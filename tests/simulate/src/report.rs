//! What a run found, for people and for machines.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};

use crate::calls::FATES;
use crate::draw::Draw;
use crate::oracle::{Violation, ms};
use crate::plan::Less;
use crate::sim::History;
use crate::threads::{Moment, SECOND};

/// How often each pair of action and fault should be met.
pub const OFTEN: u64 = 1000;

#[derive(Default)]
pub struct Report {
    pub histories: u64,
    /// How many of them were over each backend.
    pub over: BTreeMap<&'static str, u64>,
    pub operations: u64,
    pub steps: u64,
    /// Of all histories, in seconds.
    pub simulated: u64,
    pub pairs: BTreeMap<(&'static str, &'static str), u64>,
    /// The same for the same seeds, however many jobs there were.
    pub digest: u64,
    /// Histories that break a rule.
    pub violations: u64,
    pub found: Option<Found>,
}

/// A history that breaks a rule.
pub struct Found {
    pub seed: u64,
    /// How its history is drawn.
    pub draw: Draw,
    pub violation: Violation,
    pub less: Less,
    pub trace: Vec<String>,
    /// What serves its store.
    pub over: &'static str,
    /// Seconds of the run until it was found.
    pub after: Duration,
}

impl Report {
    pub fn add(&mut self, seed: u64, history: &History) {
        self.histories += 1;
        self.violations += u64::from(history.violation.is_some());
        *self.over.entry(history.backend.name()).or_default() += 1;
        self.operations += history.operations;
        self.steps += history.steps;
        self.simulated += history.time / SECOND;
        self.digest ^= history.digest.wrapping_mul(seed | 1);
        for (pair, count) in &history.covered {
            *self.pairs.entry(*pair).or_default() += count;
        }
    }

    fn actions(&self) -> u64 {
        self.pairs.iter().filter(|((_, fault), _)| *fault == "none").map(|(_, count)| count).sum()
    }

    fn often(&self) -> usize {
        self.pairs.values().filter(|count| **count >= OFTEN).count()
    }

    pub fn json(&self, elapsed: Duration) -> Value {
        let pairs =
            self.pairs.iter().map(|((action, fault), count)| json!({"action": action, "fault": fault, "count": count}));
        json!({
            "histories": self.histories,
            "backends": self.over,
            "operations": self.operations,
            "calls_without_a_fault": self.actions(),
            "steps": self.steps,
            "simulated_seconds": self.simulated,
            "seconds": elapsed.as_secs_f64(),
            "digest": format!("{:016x}", self.digest),
            "pairs": pairs.collect::<Vec<_>>(),
            "pairs_met_often": self.often(),
            "violations": self.violations,
            "violation": self.found.as_ref().map(Found::json),
        })
    }

    pub fn text(&self, elapsed: Duration) -> String {
        let over = |(backend, count): (&&str, &u64)| format!("{count} over {backend}");
        let mut text = format!(
            "{} histories ({}), {} operations that reached a backend, {} simulated seconds in {:.1} s; digest {:016x}\n",
            self.histories,
            self.over.iter().map(over).collect::<Vec<_>>().join(", "),
            self.operations,
            self.simulated,
            elapsed.as_secs_f64(),
            self.digest
        );
        let least = self.pairs.iter().min_by_key(|(_, count)| **count);
        text += &format!(
            "{} pairs of action and fault were met, {} of them {OFTEN} times at least",
            self.pairs.len(),
            self.often()
        );
        if let Some(((action, fault), count)) = least {
            text += &format!("; the least: {action} x {fault}, {count}");
        }
        text += &format!("\n{} violations\n", self.violations);
        if let Some(found) = &self.found {
            text += &found.text();
        }
        text
    }

    /// How often each action met each fault.
    pub fn table(&self) -> String {
        let mut faults: Vec<&str> = FATES.iter().map(|fate| fate.name()).collect();
        let known: std::collections::BTreeSet<&str> = self.pairs.keys().map(|(_, fault)| *fault).collect();
        faults.retain(|fault| known.contains(fault));
        faults.extend(known.iter().filter(|fault| !FATES.iter().any(|fate| fate.name() == **fault)));
        let actions: std::collections::BTreeSet<&str> = self.pairs.keys().map(|(action, _)| *action).collect();
        let mut text = format!("| action | {} |\n|{}\n", faults.join(" | "), " --- |".repeat(faults.len() + 1));
        for action in actions {
            let count = |fault: &&str| self.pairs.get(&(action, *fault)).copied().unwrap_or(0).to_string();
            text += &format!("| {action} | {} |\n", faults.iter().map(count).collect::<Vec<_>>().join(" | "));
        }
        text
    }
}

fn list(numbers: impl Iterator<Item = u32>) -> String {
    numbers.map(|number| number.to_string()).collect::<Vec<_>>().join(",")
}

impl Found {
    /// What replays the shortened history.
    pub fn command(&self) -> String {
        let mut command = format!("cargo xtask simulate --seed {}{}", self.seed, self.draw.arguments());
        if let Some(keep) = &self.less.keep {
            command += &format!(" --keep {}", list(keep.iter().copied()));
        }
        if !self.less.calm.is_empty() {
            command += &format!(" --calm {}", list(self.less.calm.iter().copied()));
        }
        command
    }

    fn json(&self) -> Value {
        let Violation { rule, text, at } = &self.violation;
        json!({
            "seed": self.seed,
            "backend": self.over,
            "rule": rule,
            "text": text,
            "at": ms(*at as Moment),
            "after_seconds": self.after.as_secs_f64(),
            "command": self.command(),
            "history": self.trace,
        })
    }

    fn text(&self) -> String {
        let Violation { rule, text, at } = &self.violation;
        let mut all = format!("seed {}, over {}, breaks \"{rule}\" at {}: {text}\n", self.seed, self.over, ms(*at));
        all += "the shortest history that was found:\n";
        self.trace.iter().for_each(|line| all += &format!("{line}\n"));
        all + &format!("again: {}\n", self.command())
    }
}
