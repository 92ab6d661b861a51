//! Whether the calls of one key can be put into an order that a register explains: each takes effect at one moment between its begin and
//! its end, and a read answers what the last change before it left. It is the search of Wing and Gong with the memory of Lowe: what was
//! reached once, which calls took effect and what the register holds, is not searched again.
//!
//! A change whose end is unknown is *optional*: it takes effect once until its end, or never. It does so right before a read that sees it,
//! for otherwise it changes nothing that is seen. Where the storage system may lose values, a read may find nothing at any time, and from
//! then on there is nothing.

use std::collections::HashSet;

/// What a register holds: the digest of a value, or nothing.
pub type State = Option<u64>;

/// The end of what may take effect at any time.
pub const EVER: u64 = u64::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// It leaves this in the register.
    Leaves(State),
    /// It saw this.
    Saw(State),
}

/// What one call did to the register, or may have done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    pub begin: u64,
    pub end: u64,
    pub effect: Effect,
    /// It may never have taken effect.
    pub optional: bool,
    /// Operations, by their places, that take effect before this one or never.
    pub after: Vec<usize>,
    /// Which call of the history it is.
    pub call: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Holds,
    Broken,
    /// The search has come to its bound.
    Undecided,
}

/// What was reached: all before `next` took effect, but for those skipped, and none from there on.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Reached {
    next: usize,
    skipped: Vec<usize>,
    state: State,
}

/// Most places that one search reaches: more than any history here needs by far, and some hundred megabytes.
const BOUND: usize = 2_000_000;

struct Search<'a> {
    operations: &'a [Operation],
    loses: bool,
}

/// Whether there is an order. The operations are sorted by when they began; the register holds nothing at first. `loses`: what it holds may
/// be gone at any time.
pub fn check(operations: &[Operation], loses: bool) -> Verdict {
    let search = Search { operations, loses };
    let start = Reached { next: 0, skipped: Vec::new(), state: None };
    let mut seen = HashSet::from([start.clone()]);
    let mut open = vec![start];
    while let Some(reached) = open.pop() {
        let Some(steps) = search.steps(&reached) else { return Verdict::Holds };
        for step in steps {
            if seen.insert(step.clone()) {
                open.push(step);
            }
        }
        if seen.len() > BOUND {
            return Verdict::Undecided;
        }
    }
    Verdict::Broken
}

impl Search<'_> {
    /// What can be reached by one more operation. None: nothing has to take effect any more.
    fn steps(&self, reached: &Reached) -> Option<Vec<Reached>> {
        let (required, optional) = self.enabled(reached)?;
        // A read that sees what is there changes nothing, so it goes first, unless an optional operation would be too late behind it.
        let sees = |place: usize| self.operations[place].effect == Effect::Saw(reached.state);
        let first = required.iter().copied().find(|place| {
            let begin = self.operations[*place].begin;
            sees(*place) && optional.iter().all(|optional| self.operations[*optional].end >= begin)
        });
        if let Some(first) = first {
            return Some(vec![self.take(reached, first, reached.state)]);
        }
        let mut steps = Vec::new();
        // The last one is looked at first: it is what ended first.
        for place in required {
            match self.operations[place].effect {
                Effect::Leaves(state) => steps.push(self.take(reached, place, state)),
                Effect::Saw(state) if state == reached.state => steps.push(self.take(reached, place, state)),
                Effect::Saw(state) => {
                    if state.is_none() && self.loses {
                        steps.push(self.take(reached, place, None));
                    }
                    let changes = optional.iter().filter(|change| {
                        let change = &self.operations[**change];
                        // It must begin before the read ends, which is so, and not be over when the read begins: it is before it.
                        change.effect == Effect::Leaves(state)
                    });
                    for change in changes {
                        let changed = self.take(reached, *change, state);
                        // What took effect may have made the read wait for others.
                        if self.is_enabled(&changed, place) {
                            steps.push(self.take(&changed, place, state));
                        }
                    }
                }
            }
        }
        Some(steps)
    }

    /// The operations that may take effect next: none that has not taken effect ended before they began. First the required, those that end
    /// first last, then the optional. None: no required one is left.
    fn enabled(&self, reached: &Reached) -> Option<(Vec<usize>, Vec<usize>)> {
        let (mut first_end, mut is_left) = (EVER, false);
        let rest = reached.next..self.operations.len();
        let mut candidates = Vec::new();
        for place in reached.skipped.iter().copied().chain(rest) {
            let operation = &self.operations[place];
            if operation.begin > first_end {
                break;
            }
            if !operation.optional {
                first_end = first_end.min(operation.end);
                is_left = true;
            }
            candidates.push(place);
        }
        if !is_left {
            return None;
        }
        candidates.retain(|place| self.operations[*place].begin <= first_end);
        let (optional, mut required): (Vec<usize>, Vec<usize>) =
            candidates.into_iter().partition(|place| self.operations[*place].optional);
        required.sort_by_key(|place| std::cmp::Reverse(self.operations[*place].end));
        Some((required, optional))
    }

    fn is_enabled(&self, reached: &Reached, place: usize) -> bool {
        let begin = self.operations[place].begin;
        let is_before = |other: &usize| {
            let other = &self.operations[*other];
            !other.optional && other.end < begin
        };
        let rest = reached.next..place.max(reached.next);
        !reached.skipped.iter().copied().chain(rest).any(|other| is_before(&other))
    }

    /// An operation takes effect, and leaves this.
    fn take(&self, reached: &Reached, place: usize, state: State) -> Reached {
        let next = reached.next.max(place + 1);
        let mut skipped: Vec<usize> = reached.skipped.iter().copied().chain(reached.next..next).collect();
        let latest = self.operations[next - 1].begin;
        let after = &self.operations[place].after;
        skipped.retain(|other| {
            let is_late = self.operations[*other].optional && self.operations[*other].end < latest;
            *other != place && !is_late && !after.contains(other)
        });
        Reached { next, skipped, state }
    }
}

/// The shortest beginning of the operations for which there is no order: what began until a moment, where what had not ended then may have
/// taken effect or not. `None` where there is an order.
pub fn shortest(operations: &[Operation], loses: bool) -> Option<Vec<Operation>> {
    if check(operations, loses) != Verdict::Broken {
        return None;
    }
    let mut ends: Vec<u64> = operations.iter().filter(|operation| !operation.optional).map(|own| own.end).collect();
    ends.sort_unstable();
    // The first end by which it is broken.
    let first = ends.partition_point(|end| check(&until(operations, *end), loses) != Verdict::Broken);
    let mut short = until(operations, ends.get(first).copied().unwrap_or(EVER));
    // From the newest on: what is old matters least, and is left out at the end.
    let mut place = short.len();
    while place > 0 {
        place -= 1;
        if let Some(without) = without(&short, place)
            && check(&without, loses) == Verdict::Broken
        {
            short = without;
        }
    }
    Some(short)
}

/// What had begun until this moment.
fn until(operations: &[Operation], moment: u64) -> Vec<Operation> {
    let mut kept: Vec<Option<usize>> = Vec::with_capacity(operations.len());
    let mut result: Vec<Operation> = Vec::new();
    for operation in operations {
        let is_over = operation.end <= moment || operation.optional;
        let keep = operation.begin <= moment && (is_over || matches!(operation.effect, Effect::Leaves(_)));
        kept.push(keep.then_some(result.len()));
        if keep {
            let mut operation = operation.clone();
            if !is_over {
                (operation.optional, operation.end) = (true, EVER);
            }
            operation.after =
                operation.after.iter().filter_map(|before| kept.get(*before).copied().flatten()).collect();
            result.push(operation);
        }
    }
    result
}

/// The operations without one whose absence explains nothing that is still seen: an order of all is one of the rest too. None, if what it
/// leaves may be what a read saw: no other change is between the two for sure.
fn without(operations: &[Operation], place: usize) -> Option<Vec<Operation>> {
    let left = operations.get(place)?;
    if let Effect::Leaves(state) = left.effect {
        let is_between = |change: &Operation, read: &Operation| {
            let changes = matches!(change.effect, Effect::Leaves(_)) && !change.optional;
            changes && left.end < change.begin && change.end < read.begin
        };
        let explains = |read: &Operation| {
            read.effect == Effect::Saw(state)
                && left.begin <= read.end
                && !operations.iter().any(|change| is_between(change, read))
        };
        let leaves = |other: &&Operation| other.effect == Effect::Leaves(state);
        // Whoever reads what is shown looks for where the value came from.
        let is_source = state.is_some() && operations.iter().filter(leaves).count() == 1;
        if operations.iter().any(|read| explains(read) || (is_source && read.effect == Effect::Saw(state))) {
            return None;
        }
    }
    let moved = |before: &usize| match before.cmp(&place) {
        std::cmp::Ordering::Less => Some(*before),
        std::cmp::Ordering::Equal => None,
        std::cmp::Ordering::Greater => Some(before - 1),
    };
    let rest = operations.iter().enumerate().filter(|(own, _)| *own != place);
    Some(
        rest.map(|(_, operation)| {
            let after = operation.after.iter().filter_map(moved).collect();
            Operation { after, ..operation.clone() }
        })
        .collect(),
    )
}

#[cfg(test)]
mod tests;
