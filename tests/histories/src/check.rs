//! A history beside what its backend promises. Each key is a register of its own: no call here promises an order of two keys, but for
//! `put_manifest`, which ends the puts that its handle has kept back.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt::{self, Display, Write};

use crate::promise::{Late, Promise};
use crate::record::{Call, History, Kind, Outcome};
use crate::register::{self, EVER, Effect, Operation, State, Verdict};

/// A rule that a history breaks.
#[derive(Debug)]
pub struct Violation {
    pub rule: &'static str,
    pub key: String,
    /// The calls that show it, as places in the history.
    pub calls: Vec<usize>,
}

/// What came of a check.
#[derive(Debug, Default)]
pub struct Report {
    pub violations: Vec<Violation>,
    /// Keys whose search was given up.
    pub undecided: Vec<String>,
    pub keys: usize,
    /// Changes that were acknowledged, changes of unknown end, and reads that saw something.
    pub acknowledged: usize,
    pub unknown: usize,
    pub seen: usize,
}

/// A read answered bytes that nobody stored under the key.
pub const WRONG_BYTES: &str = "wrong-bytes";
/// There is no order of the calls that explains what was read.
pub const NO_ORDER: &str = "no-order";
/// The same, of a read that found nothing where something must be.
pub const LOST: &str = "lost";
/// The same, of a read that found what had been gone or replaced.
pub const BROUGHT_BACK: &str = "brought-back";

/// Check a history whose calls are in order, see [`History::sort`].
pub fn check(history: &History, promise: &Promise) -> Report {
    let mut keys: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (place, call) in history.calls.iter().enumerate() {
        keys.entry(&call.key).or_default().push(place);
    }
    let published = published(history);
    let mut report = Report { keys: keys.len(), ..Report::default() };
    for (key, calls) in keys {
        let key = KeyHistory { history, promise, key, calls: &calls, published: &published };
        key.check(&mut report);
    }
    report
}

/// When each chunk that a handle kept back was published: when a `put_manifest` of the handle that began later was acknowledged.
fn published(history: &History) -> HashMap<usize, u64> {
    let mut kept: HashMap<(u32, u32), Vec<usize>> = HashMap::new();
    let mut published = HashMap::new();
    for (place, call) in history.calls.iter().enumerate() {
        let handle = (call.process, call.handle);
        let is_done = matches!(call.outcome, Outcome::Done(_));
        match (call.kind, call.answered) {
            (Kind::Buffer, Some(_)) if is_done => kept.entry(handle).or_default().push(place),
            (Kind::Set, Some(answered)) if is_done && call.key.starts_with('m') => {
                let waiting = kept.entry(handle).or_default();
                waiting.retain(|waiting| {
                    let is_before = history.calls[*waiting].answered.is_some_and(|put| put < call.invoked);
                    if is_before {
                        published.insert(*waiting, answered);
                    }
                    !is_before
                });
            }
            _ => {}
        }
    }
    published
}

struct KeyHistory<'a> {
    history: &'a History,
    promise: &'a Promise,
    key: &'a str,
    calls: &'a [usize],
    published: &'a HashMap<usize, u64>,
}

impl KeyHistory<'_> {
    fn check(&self, report: &mut Report) {
        let wrong = self.wrong_bytes();
        report.violations.extend(wrong.iter().map(|place| Violation {
            rule: WRONG_BYTES,
            key: self.key.to_owned(),
            calls: vec![*place],
        }));
        let operations = self.operations(&wrong);
        for operation in &operations {
            match (operation.effect, operation.optional) {
                // What may have been repeated was acknowledged.
                (Effect::Leaves(_), true) if matches!(self.history.calls[operation.call].outcome, Outcome::Done(_)) => {
                }
                (Effect::Leaves(_), true) => report.unknown += 1,
                (Effect::Leaves(_), false) => report.acknowledged += 1,
                (Effect::Saw(Some(_)), _) => report.seen += 1,
                (Effect::Saw(None), _) => {}
            }
        }
        let loses = self.promise.rule(self.key).loses;
        match register::check(&operations, loses) {
            Verdict::Holds => {}
            Verdict::Undecided => report.undecided.push(self.key.to_owned()),
            Verdict::Broken => {
                let short = register::shortest(&operations, loses).unwrap_or(operations);
                let rule = named(&short);
                let calls = short.iter().map(|operation| operation.call).collect();
                report.violations.push(Violation { rule, key: self.key.to_owned(), calls });
            }
        }
    }

    fn calls(&self) -> impl Iterator<Item = (usize, &Call)> {
        self.calls.iter().map(|place| (*place, &self.history.calls[*place]))
    }

    /// Reads of what nobody has ever stored.
    fn wrong_bytes(&self) -> Vec<usize> {
        let stored: HashSet<u64> = self.calls().filter_map(|(_, call)| call.value).collect();
        let is_wrong = |call: &Call| match (call.kind, call.outcome) {
            (Kind::Get, Outcome::Done(seen)) => seen.is_none_or(|seen| !stored.contains(&seen)),
            _ => false,
        };
        self.calls().filter(|(_, call)| is_wrong(call)).map(|(place, _)| place).collect()
    }

    fn operations(&self, wrong: &[usize]) -> Vec<Operation> {
        let read: HashSet<State> = self.calls().filter_map(|(_, call)| seen(call)).collect();
        let mut operations: Vec<Operation> = Vec::new();
        for (place, call) in self.calls() {
            if wrong.contains(&place) {
                continue;
            }
            let Some(mut operation) = self.operation(place, call) else { continue };
            if let Effect::Leaves(state) = operation.effect {
                // Nobody has seen what may be there or not: nothing follows from it.
                if operation.optional && !read.contains(&state) {
                    continue;
                }
                if !operation.optional {
                    operation.after = self.ended_by(call, &operations);
                    operations.extend(self.repeated(&operation).filter(|_| read.contains(&state)));
                }
            }
            operations.push(operation);
        }
        operations
    }

    /// A change that was acknowledged, once more.
    fn repeated(&self, operation: &Operation) -> Option<Operation> {
        let end = match self.promise.rule(self.key).repeats? {
            Late::Return => operation.end,
            Late::Deadline(_) | Late::Unchanged | Late::Ever => EVER,
        };
        Some(Operation { end, optional: true, after: Vec::new(), ..operation.clone() })
    }

    /// What a call did to the register. None: nothing follows from it.
    fn operation(&self, place: usize, call: &Call) -> Option<Operation> {
        let of = |effect, end: Option<u64>, optional| {
            let end = end.unwrap_or(EVER);
            Some(Operation { begin: call.invoked, end, effect, optional, after: Vec::new(), call: place })
        };
        if call.kind == Kind::Get {
            return seen(call).and_then(|state| of(Effect::Saw(state), call.answered, false));
        }
        let effect = Effect::Leaves(if call.kind == Kind::Remove { None } else { call.value });
        let acknowledged = match (call.kind, call.outcome) {
            (Kind::Buffer, Outcome::Done(_)) if self.promise.buffers => {
                self.published.get(&place).copied().filter(|end| !self.is_removed_before(call, *end))
            }
            // What was removed is not there.
            (_, Outcome::Done(_)) | (Kind::Remove, Outcome::Missing) => call.answered,
            _ => None,
        };
        match acknowledged {
            Some(end) => of(effect, Some(end), false),
            None => of(effect, Some(self.latest(call)), true),
        }
    }

    /// Whether another process may have removed a chunk so shortly before it was published that the store believed it there.
    fn is_removed_before(&self, put: &Call, published: u64) -> bool {
        let from = put.invoked.saturating_sub(self.promise.believes.as_nanos() as u64);
        let removes = |other: &Call| other.kind == Kind::Remove && other.process != put.process;
        let is_then = |other: &Call| other.invoked <= published && other.answered.is_none_or(|end| end >= from);
        !self.promise.believes.is_zero() && self.calls().any(|(_, other)| removes(other) && is_then(other))
    }

    fn late(&self, call: &Call) -> Late {
        let rule = self.promise.rule(self.key);
        if call.kind == Kind::Remove { rule.removes } else { rule.sets }
    }

    /// Until when a call of unknown end may still be carried out.
    fn latest(&self, call: &Call) -> u64 {
        let returned = match call.kind {
            // The handle keeps it for a later manifest.
            Kind::Buffer if self.promise.buffers => None,
            _ => call.answered.filter(|_| call.outcome != Outcome::Unknown),
        };
        let died = self.history.deaths.get(&call.process).copied();
        match self.late(call) {
            Late::Return => returned.or(died).unwrap_or(EVER),
            Late::Deadline(further) => match returned.or(died) {
                None => EVER,
                Some(over) => {
                    let time = (self.promise.deadline + further).as_nanos() as u64;
                    let latest = call.invoked + time;
                    // Who returns later than that was frozen, and the time of its call may have begun after it.
                    if over > latest { over + time } else { latest }
                }
            },
            Late::Unchanged | Late::Ever => EVER,
        }
    }

    /// Changes of unknown end that this one, which was acknowledged, leaves no room for.
    fn ended_by(&self, call: &Call, former: &[Operation]) -> Vec<usize> {
        let is_over = |other: &Operation| {
            let own = &self.history.calls[other.call];
            let died = self.history.deaths.get(&own.process).copied();
            let given_up = own.answered.filter(|_| own.outcome != Outcome::Unknown).or(died);
            let by = match self.late(own) {
                Late::Deadline(_) => own.process == call.process,
                Late::Unchanged => true,
                Late::Return | Late::Ever => false,
            };
            other.optional && by && given_up.is_some_and(|given_up| given_up < call.invoked)
        };
        former.iter().enumerate().filter(|(_, other)| is_over(other)).map(|(place, _)| place).collect()
    }
}

/// What a read says of the register. None: nothing.
fn seen(call: &Call) -> Option<State> {
    match (call.kind, call.outcome) {
        (Kind::Get, Outcome::Done(seen)) => Some(seen),
        (Kind::Get, Outcome::Missing) => Some(None),
        _ => None,
    }
}

/// What a violation is called, by what its last read saw.
fn named(short: &[Operation]) -> &'static str {
    let reads: Vec<State> = short
        .iter()
        .filter_map(|operation| match operation.effect {
            Effect::Saw(state) => Some(state),
            Effect::Leaves(_) => None,
        })
        .collect();
    match reads.as_slice() {
        [None] => LOST,
        [Some(_)] => BROUGHT_BACK,
        _ => NO_ORDER,
    }
}

/// A violation with the calls that show it, times in milliseconds since the first call of the history.
pub struct ShownViolation<'a>(pub &'a History, pub &'a Violation);

impl Display for ShownViolation<'_> {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ShownViolation(history, Violation { rule, key, calls }) = self;
        let begin = history.calls.first().map_or(0, |call| call.invoked);
        let ms = |time: u64| format!("{:.3}", time.saturating_sub(begin) as f64 / 1e6);
        writeln!(to, "{rule}: {key}: no order of these calls explains what was answered (ms; process/thread)")?;
        for call in calls.iter().filter_map(|place| history.calls.get(*place)) {
            let end = call.answered.map_or("?".to_owned(), ms);
            let mut what = String::new();
            let value = |value: Option<u64>| value.map_or(String::new(), |value| format!(" {value:016x}"));
            write!(what, "{}{}", word(call.kind), value(call.value))?;
            let outcome = match call.outcome {
                Outcome::Done(seen) if call.kind == Kind::Get => value(seen).trim().to_owned(),
                Outcome::Done(_) => "done".to_owned(),
                Outcome::Missing => "nothing there".to_owned(),
                Outcome::Failed(status) => format!("failed ({status}), end unknown"),
                Outcome::Unknown => match history.deaths.get(&call.process) {
                    Some(died) => format!("its process was killed at {}, end unknown", ms(*died)),
                    None => "never answered".to_owned(),
                },
            };
            writeln!(
                to,
                "  {:>10} .. {end:>10}  {:>3}/{}  {what} -> {outcome}",
                ms(call.invoked),
                call.process,
                call.thread
            )?;
        }
        Ok(())
    }
}

fn word(kind: Kind) -> &'static str {
    match kind {
        Kind::Set => "set",
        Kind::Put => "put",
        Kind::Buffer => "put (buffered)",
        Kind::Remove => "remove",
        Kind::Get => "get",
    }
}

#[cfg(test)]
mod tests;
