//! The model of one page: what each answer promises to whom, as code. The headers (`include/kv_store_abi.h`, `kv_store_batch.h`) and the
//! contract (`wit/backend.wit`) have the sentences. It looks into the storage system at the moment of the answer, so that what is not
//! promised there and then is found without a later read.

use std::collections::{BTreeMap, BTreeSet};

use crate::hashed::{HashMap, HashSet};
use crate::names::{Key, Kind, Version};
use crate::threads::{MILLISECOND, Moment};
use crate::world::Origin;

/// Something that must not be.
#[derive(Clone, Debug)]
pub struct Violation {
    pub rule: &'static str,
    pub text: String,
    pub at: Moment,
}

/// Whose chunks a manifest names: those of a handle, or of a save of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Ledger {
    Handle { process: usize, handle: usize },
    Save { process: usize, save: usize },
}

/// An operation that is under way or has ended.
#[derive(Clone, Copy, Debug)]
pub struct Operation {
    pub number: u32,
    pub process: usize,
    pub ledger: Ledger,
    pub start: Moment,
    /// It waits in a queue first.
    pub queued: bool,
}

/// A change of a register or a manifest. `version` None: a removal.
pub struct Change {
    pub operation: u32,
    pub process: usize,
    pub version: Option<Version>,
    pub start: Moment,
    pub end: End,
    /// Until when it may be carried out if nobody knows how it ended.
    pub latest: Moment,
    /// It survives a power loss.
    pub durable: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum End {
    Running,
    Acknowledged(Moment),
    /// It was not done, and will not be.
    Refused(Moment),
    Unknown(Moment),
}

/// What an engine was told of a change.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Told {
    Done,
    NotDone,
    Unknown,
}

/// A chunk that an engine was told is there: it may be taken away, but not by a change that its process made before.
pub struct Cover {
    pub process: usize,
    pub start: Moment,
}

/// A chunk that the next manifest of a ledger promises.
pub struct Owed {
    pub first: Moment,
    pub last: Moment,
    pub told: Option<Moment>,
    /// A manifest that began then, before the put had ended, may have named it.
    pub named: Option<Moment>,
}

/// A manifest that was read: when, and its place in `order` then. What is carried out twice gets a later one.
type Seen = (Moment, Version, u64);

/// From when to when something ran, if it has ended.
type Span = (Moment, Option<Moment>);

pub struct Oracle {
    pub violations: Vec<Violation>,
    pub changes: HashMap<Key, Vec<Change>>,
    pub covers: HashMap<Key, Vec<Cover>>,
    pub owed: BTreeMap<Ledger, BTreeMap<Key, Owed>>,
    /// What a ledger owed before it was closed or told of the loss, and until when.
    let_go: HashMap<(Ledger, Key), Moment>,
    /// Manifests that were published over a ledger.
    pub published: HashMap<Ledger, Vec<(Moment, Moment)>>,
    /// Keys of which anything was ever taken away, or tried to be.
    pub touched: BTreeSet<Key>,
    /// What a process has read of a manifest.
    pub seen: HashMap<(usize, Key), Vec<Seen>>,
    /// The order in which manifests were published.
    pub order: HashMap<(Key, Version), u64>,
    /// Versions of manifests that were carried out unseen, beside a greater one that went.
    pub appeared: HashSet<(Key, Version)>,
    /// By which operations.
    pub prefetched: HashMap<(Ledger, Key), Vec<u32>>,
    /// When a process was told what came of its removal of chunks.
    pub told_removals: HashMap<u32, Moment>,
    /// Puts of a chunk by a process: from when to when.
    pub puts: HashMap<(usize, Key), Vec<Span>>,
    pub numbered: u64,
    /// What was ever put for a ledger.
    pub offered: HashSet<(Ledger, Key)>,
    /// Puts of queues that are not told yet: of which ledger, and since when.
    pub submitted: HashMap<u32, (Ledger, Moment)>,
    /// Of these, what was not there when a manifest was published over them.
    pub doubts: HashMap<(u32, Key), u32>,
    /// When a process last found a chunk damaged, and what lay there was so all the time.
    pub damaged: HashMap<(usize, Key), Moment>,
    /// When a process last forgot what it had found damaged.
    forgotten: HashMap<usize, Moment>,
}

impl Oracle {
    pub fn new() -> Self {
        Oracle {
            violations: Vec::new(),
            changes: HashMap::default(),
            covers: HashMap::default(),
            owed: BTreeMap::new(),
            let_go: HashMap::default(),
            published: HashMap::default(),
            touched: BTreeSet::new(),
            seen: HashMap::default(),
            order: HashMap::default(),
            appeared: HashSet::default(),
            prefetched: HashMap::default(),
            told_removals: HashMap::default(),
            puts: HashMap::default(),
            numbered: 0,
            offered: HashSet::default(),
            submitted: HashMap::default(),
            doubts: HashMap::default(),
            damaged: HashMap::default(),
            forgotten: HashMap::default(),
        }
    }

    pub fn violated(&mut self, rule: &'static str, text: String, at: Moment) {
        self.violations.push(Violation { rule, text, at });
    }

    /// A change of a register or manifest is about to be made.
    pub fn changes(&mut self, op: &Operation, key: Key, version: Option<Version>, latest: Moment, durable: bool) {
        let change = Change {
            operation: op.number,
            process: op.process,
            version,
            start: op.start,
            end: End::Running,
            latest,
            durable,
        };
        self.changes.entry(key).or_default().push(change);
    }

    pub fn changed(&mut self, op: &Operation, key: Key, told: Told, now: Moment) {
        let changes = self.changes.entry(key).or_default();
        if let Some(change) = changes.iter_mut().rev().find(|change| change.operation == op.number) {
            change.end = match told {
                Told::Done => End::Acknowledged(now),
                Told::NotDone => End::Refused(now),
                Told::Unknown => End::Unknown(now),
            };
        }
    }

    /// A change was acknowledged, and its process may have taken for durable what is not.
    pub fn may_be_lost(&mut self, op: &Operation, key: Key) {
        let changes = self.changes.get_mut(&key).into_iter().flatten();
        changes.filter(|change| change.operation == op.number).for_each(|change| change.durable = false);
    }

    /// The storage system carries a change out.
    pub fn applied(&mut self, key: Key, version: Option<Version>, by: Origin, now: Moment) {
        if let (Kind::Manifest, Some(version)) = (key.kind, version) {
            self.numbered += 1;
            self.order.insert((key, version), self.numbered);
        }
        if matches!(key.kind, Kind::Register | Kind::Manifest) {
            self.carried_out(key, by, now);
        }
    }

    /// A version of a manifest comes to be seen, by no change of its own: it was carried out beside a greater one, which is gone now.
    pub fn appears(&mut self, key: Key, version: Version) {
        if key.kind == Kind::Manifest && !self.order.contains_key(&(key, version)) {
            self.numbered += 1;
            self.order.insert((key, version), self.numbered);
            self.appeared.insert((key, version));
        }
    }

    /// A change that was refused, or that an acknowledged one of its process came after, is carried out now.
    fn carried_out(&mut self, key: Key, by: Origin, now: Moment) {
        let Some(changes) = self.changes.get(&key) else { return };
        let Some(own) = changes.iter().find(|change| change.operation == by.operation) else { return };
        let violation = match own.end {
            End::Refused(at) => Some((
                "refused-done",
                format!(
                    "{key}: operation {} was told at {} that its change is not done, and it is carried out at {}",
                    by.operation,
                    ms(at),
                    ms(now)
                ),
            )),
            End::Unknown(at) => {
                let after = |change: &&Change| {
                    change.process == own.process && change.start > at && matches!(change.end, End::Acknowledged(_))
                };
                changes.iter().find(after).map(|after| {
                    let text = format!(
                        "{key}: operation {} ended unknown at {}; operation {} of the same process was acknowledged after it, and is undone at {}",
                        own.operation, ms(at), after.operation, ms(now)
                    );
                    ("undone", text)
                })
            }
            End::Running | End::Acknowledged(_) => None,
        };
        if let Some((rule, text)) = violation {
            self.violated(rule, text, now);
        }
    }

    /// A value is taken away. `returned`: when the call that asked for it returned, if it has.
    pub fn removed(&mut self, key: Key, by: Option<Origin>, returned: Option<Moment>, had: bool, now: Moment) {
        self.touched.insert(key);
        let Some(by) = by.filter(|_| had) else { return };
        if matches!(key.kind, Kind::Register | Kind::Manifest) {
            self.carried_out(key, by, now);
        }
        let covers = self.covers.get(&key).into_iter().flatten();
        let mut later =
            covers.filter(|cover| cover.process == by.process && returned.is_some_and(|at| cover.start > at));
        if let Some(cover) = later.next() {
            let text = format!(
                "{key}: operation {} asked for its removal and returned at {}; what the process was told since {} relies on it, and it is removed at {}",
                by.operation,
                ms(returned.unwrap_or(0)),
                ms(cover.start),
                ms(now)
            );
            self.violated("undone", text, now);
        }
    }

    /// A chunk is about to be put for a ledger.
    pub fn offers(&mut self, ledger: Ledger, key: Key) {
        self.offered.insert((ledger, key));
    }

    /// A removal of a chunk is about to be asked for.
    pub fn touches(&mut self, key: Key) {
        self.touched.insert(key);
    }

    /// A save was told that it has lost a chunk.
    pub fn told_loss(&mut self, op: &Operation, key: Key, now: Moment) {
        self.owed.entry(op.ledger).or_default().remove(&key);
        self.let_go.insert((op.ledger, key), now);
        if !self.offered.contains(&(op.ledger, key)) {
            let text = format!(
                "{key}: operation {} is told that its save has lost it, and it was never put for it",
                op.number
            );
            self.violated("wrong-loss", text, now);
        } else if !self.touched.contains(&key) {
            let text = format!("{key}: operation {} is told that it is lost, and nobody ever removed it", op.number);
            self.violated("loss-of-nothing", text, now);
        }
    }

    /// A put is handed to a queue.
    pub fn submits(&mut self, op: &Operation) {
        self.submitted.insert(op.number, (op.ledger, op.start));
    }

    /// A put is told.
    pub fn told_put(&mut self, op: &Operation) {
        self.submitted.remove(&op.number);
    }

    /// A put of a queue has stored a chunk: a commit that began after it was submitted waited for it.
    pub fn check_waited_for(&mut self, op: &Operation, key: Key, now: Moment) {
        if let Some(commit) = self.doubts.remove(&(op.number, key)) {
            let text = format!(
                "{key}: operation {} was submitted before commit {commit} began and has stored it; when that was acknowledged it was not there, \
                 or not durable",
                op.number
            );
            self.violated("not-waited-for", text, now);
        }
    }

    /// A read found a chunk damaged. What is told of it may come long after.
    pub fn found_damaged(&mut self, op: &Operation, key: Key, now: Moment) {
        if self.forgotten.get(&op.process).is_none_or(|at| *at < op.start) {
            self.damaged.insert((op.process, key), now);
        }
    }

    /// A process has opened its store anew: what was found damaged is remembered as long as one is open.
    pub fn forgets_damage(&mut self, process: usize, now: Moment) {
        self.damaged.retain(|(by, _), _| *by != process);
        self.forgotten.insert(process, now);
    }

    /// A chunk that a process found damaged is stored again.
    pub fn mended(&mut self, process: usize, key: Key) {
        self.damaged.remove(&(process, key));
    }

    /// A put was not accepted: a loss that was told before is none any more.
    pub fn refused(&mut self, ledger: Ledger, key: Key) {
        self.owed.entry(ledger).or_default().retain(|owed, how| *owed != key || how.told.is_none());
    }

    /// A chunk was put for a ledger by a queue, at some time since `start`.
    pub fn owes_since(&mut self, ledger: Ledger, key: Key, start: Moment, now: Moment) {
        let mut published = self.published.get(&ledger).into_iter().flatten();
        if !published.any(|(_, end)| *end >= start) {
            self.owes(ledger, key, now);
        }
    }

    /// A chunk was accepted for a ledger.
    pub fn owes(&mut self, ledger: Ledger, key: Key, now: Moment) {
        let owed = self.owed.entry(ledger).or_default().entry(key).or_insert(Owed {
            first: now,
            last: now,
            told: None,
            named: None,
        });
        if owed.told.take().is_some() {
            // Of what was lost before an engine was told; it is put again.
            owed.first = now;
        }
        owed.last = now;
    }

    /// An engine was told that a save failed, or lost something.
    pub fn told_losses(&mut self, ledger: Ledger, now: Moment) {
        self.owed.entry(ledger).or_default().values_mut().for_each(|owed| {
            owed.told.get_or_insert(now);
        });
    }

    /// A manifest that began then was published over what was owed before.
    pub fn publishes(&mut self, ledger: Ledger, start: Moment, now: Moment) {
        let Oracle { owed, let_go, .. } = self;
        owed.entry(ledger).or_default().retain(|key, owed| {
            let stays = owed.last >= start;
            if stays {
                owed.first = owed.last;
                owed.named.get_or_insert(start);
            } else {
                let_go.insert((ledger, *key), now);
            }
            stays
        });
    }

    /// Whether it is owed, or was at some time since then.
    pub fn was_owed(&self, ledger: Ledger, key: Key, since: Moment) -> bool {
        let is_owed = self.owed.get(&ledger).is_some_and(|owed| owed.contains_key(&key));
        is_owed || self.let_go.get(&(ledger, key)).is_some_and(|at| *at >= since)
    }

    pub fn prefetched(&mut self, op: &Operation, key: Key) {
        self.prefetched.entry((op.ledger, key)).or_default().push(op.number);
    }

    pub fn puts(&mut self, process: usize, key: Key, start: Moment) {
        self.puts.entry((process, key)).or_default().push((start, None));
    }

    pub fn put_over(&mut self, process: usize, key: Key, start: Moment, now: Moment) {
        let puts = self.puts.entry((process, key)).or_default();
        if let Some(put) = puts.iter_mut().find(|put| **put == (start, None)) {
            put.1 = Some(now);
        }
    }

    /// Forget what a handle owes: it was closed.
    pub fn forget(&mut self, ledger: Ledger, now: Moment) {
        let owed = self.owed.remove(&ledger).unwrap_or_default();
        self.let_go.extend(owed.into_keys().map(|key| ((ledger, key), now)));
    }
}

pub fn ms(moment: Moment) -> String {
    format!("{}.{:03} ms", moment / MILLISECOND, moment % MILLISECOND / 1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_closed_handle_owed_may_have_been_told_to_exist_before() {
        let (ledger, key) = (Ledger::Handle { process: 0, handle: 0 }, Key { kind: Kind::Content, number: 0 });
        let mut oracle = Oracle::new();
        oracle.owes(ledger, key, 5);
        assert!(oracle.was_owed(ledger, key, 20));
        oracle.forget(ledger, 10);
        assert!(oracle.was_owed(ledger, key, 10) && !oracle.was_owed(ledger, key, 11));
    }

    #[test]
    fn what_was_published_may_have_been_answered_out_of_what_waited_before() {
        let (ledger, key) = (Ledger::Handle { process: 0, handle: 0 }, Key { kind: Kind::Content, number: 0 });
        let mut oracle = Oracle::new();
        oracle.owes(ledger, key, 5);
        oracle.publishes(ledger, 4, 8);
        assert!(oracle.owed[&ledger].contains_key(&key), "it was put meanwhile");
        oracle.publishes(ledger, 9, 12);
        assert!(oracle.was_owed(ledger, key, 12) && !oracle.was_owed(ledger, key, 13));
    }
}
