//! The model of one page: what each answer promises to whom, as code. The headers (`include/kv_store_abi.h`, `kv_store_batch.h`) and the
//! contract (`wit/backend.wit`) have the sentences. It looks into the storage system at the moment of the answer, so that what is not
//! promised there and then is found without a later read.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use kv_store_core::limits::{CONFIRMED_FOR, LOSS_TOLD_FOR};

use crate::names::{Key, Kind, Version};
use crate::threads::{MILLISECOND, Moment};
use crate::world::{Origin, Removal, World};

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
struct Change {
    operation: u32,
    process: usize,
    version: Option<Version>,
    start: Moment,
    end: End,
    /// Until when it may be carried out if nobody knows how it ended.
    latest: Moment,
    /// It survives a power loss.
    durable: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
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
struct Cover {
    process: usize,
    start: Moment,
}

/// A chunk that the next manifest of a ledger promises.
struct Owed {
    first: Moment,
    last: Moment,
    told: Option<Moment>,
    /// A manifest that began then, before the put had ended, may have named it.
    named: Option<Moment>,
}

/// From when to when something ran, if it has ended.
type Span = (Moment, Option<Moment>);

pub struct Oracle {
    pub violations: Vec<Violation>,
    changes: HashMap<Key, Vec<Change>>,
    covers: HashMap<Key, Vec<Cover>>,
    owed: BTreeMap<Ledger, BTreeMap<Key, Owed>>,
    /// Manifests that were published over a ledger.
    published: HashMap<Ledger, Vec<(Moment, Moment)>>,
    /// Keys of which anything was ever taken away, or tried to be.
    touched: BTreeSet<Key>,
    /// What a process has read of a manifest, and when.
    seen: HashMap<(usize, Key), Vec<(Moment, Version)>>,
    /// The order in which manifests were published.
    order: HashMap<(Key, Version), u64>,
    prefetched: HashMap<(Ledger, Key), Moment>,
    /// Puts of a chunk by a process: from when to when.
    puts: HashMap<(usize, Key), Vec<Span>>,
    numbered: u64,
    /// What was ever put for a ledger.
    offered: HashSet<(Ledger, Key)>,
}

fn nanoseconds(long: std::time::Duration) -> Moment {
    u64::try_from(long.as_nanos()).unwrap_or(u64::MAX)
}

impl Oracle {
    pub fn new() -> Self {
        Oracle {
            violations: Vec::new(),
            changes: HashMap::new(),
            covers: HashMap::new(),
            owed: BTreeMap::new(),
            published: HashMap::new(),
            touched: BTreeSet::new(),
            seen: HashMap::new(),
            order: HashMap::new(),
            prefetched: HashMap::new(),
            puts: HashMap::new(),
            numbered: 0,
            offered: HashSet::new(),
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

    pub fn is_owed(&self, ledger: Ledger, key: Key) -> bool {
        self.owed.get(&ledger).is_some_and(|owed| owed.contains_key(&key))
    }

    pub fn prefetched(&mut self, ledger: Ledger, key: Key, now: Moment) {
        self.prefetched.entry((ledger, key)).or_insert(now);
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
    pub fn forget(&mut self, ledger: Ledger) {
        self.owed.remove(&ledger);
    }
}

pub fn ms(moment: Moment) -> String {
    format!("{}.{:03} ms", moment / MILLISECOND, moment % MILLISECOND / 1000)
}

impl World {
    /// Whether what is missing may be: it was taken away at `since` or after, and not by a call of this process that had returned
    /// before `start`.
    fn excuses(&self, key: Key, process: usize, since: Moment, start: Moment) -> bool {
        self.removals(key).any(|removal| {
            let own = removal.by.filter(|by| by.process == process);
            let returned = own.map(|by| self.returned.get(&by.call).is_some_and(|returned| *returned < start));
            match returned {
                None => removal.at >= since,
                Some(before) => !before,
            }
        })
    }

    fn removals(&self, key: Key) -> impl Iterator<Item = &Removal> {
        self.lying(key).flat_map(|slot| &slot.removals)
    }

    fn is_there(&self, key: Key) -> bool {
        self.lying(key).any(|slot| slot.visible.is_some())
    }

    fn is_durable(&self, key: Key) -> bool {
        self.lying(key).any(|slot| slot.durable.is_some() && slot.visible.is_some())
    }

    /// A put was answered as stored or existing: it is readable by every client, and durable where that was asked for.
    pub fn acknowledged_put(&mut self, op: &Operation, key: Key, durable: bool, now: Moment) {
        let excused = self.excuses(key, op.process, op.start, op.start);
        if !self.is_there(key) && !excused {
            let text = format!("{key}: operation {} was answered that it is stored, and it is not there", op.number);
            self.oracle.violated("not-visible", text, now);
        } else if durable && !self.is_durable(key) && !excused {
            let text =
                format!("{key}: operation {} was answered that it is durable, and a power loss takes it", op.number);
            self.oracle.violated("not-durable", text, now);
        }
        self.oracle.covers.entry(key).or_default().push(Cover { process: op.process, start: op.start });
    }

    /// A manifest was published, or a save committed: each chunk that its ledger owed before is readable, and as durable as can be.
    pub fn acknowledged_save(&mut self, op: &Operation, now: Moment) {
        let ledger = op.ledger;
        let published = self.oracle.published.entry(ledger).or_default();
        let overlapping = published.iter().filter(|(_, end)| *end >= op.start).map(|(start, _)| *start);
        let since = overlapping.min().unwrap_or(op.start).min(op.start);
        published.push((op.start, now));
        let asks = self.shape.durable || self.shape.evicts || self.shape.wants_fresh;
        let owed = self.oracle.owed.entry(ledger).or_default().iter().filter(|(_, owed)| owed.first < op.start);
        let owed: Vec<(Key, Option<Moment>, Option<Moment>)> =
            owed.map(|(key, owed)| (*key, owed.told, owed.named)).collect();
        for (key, told, named) in owed {
            let since = named.map_or(since, |named| named.min(since));
            let over = match ledger {
                Ledger::Handle { .. } => told.is_some_and(|told| now >= told + nanoseconds(LOSS_TOLD_FOR)),
                Ledger::Save { .. } => false,
            };
            // Of a store that is not asked again, what others take away is noticed later.
            let others_since = if asks { since } else { since.saturating_sub(nanoseconds(CONFIRMED_FOR)) };
            let others = self
                .removals(key)
                .any(|removal| removal.at >= others_since && removal.by.is_none_or(|by| by.process != op.process));
            let excused = over || others || self.excuses(key, op.process, since, since);
            if !self.is_there(key) && !excused {
                let text = format!("{key}: operation {} published over it, and it is not there", op.number);
                self.oracle.violated("published-over-missing", text, now);
            } else if self.shape.durable && !self.is_durable(key) && !excused {
                let text = format!("{key}: operation {} published over it, and a power loss takes it", op.number);
                self.oracle.violated("published-undurable", text, now);
            }
            if !over {
                self.oracle.covers.entry(key).or_default().push(Cover { process: op.process, start: op.start });
            }
        }
        let owed = self.oracle.owed.entry(ledger).or_default();
        owed.retain(|_, owed| owed.last >= op.start);
        owed.values_mut().for_each(|owed| {
            owed.first = owed.last;
            owed.named.get_or_insert(op.start);
        });
    }

    /// What is visible now of a key that was changed must be what a reader may see.
    pub fn acknowledged_change(&mut self, op: &Operation, key: Key, now: Moment) {
        let visible = self.lying(key).filter_map(|slot| slot.visible.as_ref());
        let sound: Vec<Version> = visible.filter(|entry| entry.sound).filter_map(|entry| entry.version).collect();
        for version in sound {
            self.check_value(op, key, version, now, now);
        }
    }

    /// A removal was answered: nothing that lay there before is there.
    pub fn acknowledged_removal(&mut self, op: &Operation, key: Key, now: Moment) {
        if self.had_since(key, op.start) {
            let text =
                format!("{key}: operation {} was answered that it is removed, and it lies there as before", op.number);
            self.oracle.violated("deleted-stays", text, now);
        }
    }

    fn had_since(&self, key: Key, start: Moment) -> bool {
        self.lying(key).any(|slot| slot.visible.is_some() && slot.visible_since() < start)
    }

    /// A read answered a value of a register or manifest: no acknowledged change may lie between it and the read.
    pub fn check_value(&mut self, op: &Operation, key: Key, version: Version, from: Moment, until: Moment) {
        let lost = self.failovers.iter().copied().max().unwrap_or(0);
        let Some(changes) = self.oracle.changes.get(&key) else { return };
        let Some(write) = changes.iter().find(|change| change.version == Some(version)) else {
            let text = format!("{key}: operation {} read value {version}, which nobody put", op.number);
            self.oracle.violated("wrong-bytes", text, until);
            return;
        };
        let end = write_end(write, changes);
        // What began before the storage system lost something may be among that.
        let survives = |change: &Change| change.start >= lost || (self.shape.durable && change.durable);
        let between = |change: &&Change| {
            let End::Acknowledged(acknowledged) = change.end else { return false };
            let after = match write.end {
                // It is settled by the next change of its process.
                End::Unknown(at) if change.process == write.process => change.start > at,
                _ => end < change.start,
            };
            change.operation != write.operation && survives(change) && after && acknowledged < from
        };
        if let Some(change) = changes.iter().find(between) {
            let text = format!(
                "{key}: operation {} sees the value of operation {}, which ended at {}; operation {} was acknowledged after it",
                op.number,
                write.operation,
                ms(end),
                change.operation
            );
            self.oracle.violated("old-value", text, until);
        }
    }

    /// A manifest was read: a process that has seen a newer one takes no older one.
    pub fn check_order(&mut self, op: &Operation, key: Key, version: Version, now: Moment) {
        let order = |version| self.oracle.order.get(&(key, version)).copied().unwrap_or(0);
        let own = order(version);
        let seen = self.oracle.seen.entry((op.process, key)).or_default();
        let newer = seen.iter().find(|(end, seen)| *end < op.start && order(*seen) > own).copied();
        seen.push((now, version));
        if let Some((end, newer)) = newer {
            let text = format!(
                "{key}: operation {} read value {version}; its process had read the newer value {newer} at {}",
                op.number,
                ms(end)
            );
            self.oracle.violated("older-manifest", text, now);
        }
    }

    /// Whether `get_chunk` may answer what changed by itself: a store whose keys nobody knows yet may have others than hashes. Batches say
    /// what their keys are.
    pub fn may_be_unchecked(&self, op: &Operation, key: Key) -> bool {
        let changed = self.lying(key).any(|slot| slot.rotted.is_some())
            || self.faulty.contains(&op.number)
            || !self.failovers.is_empty();
        !self.shape.verifies && key.kind == Kind::Content && changed && self.unchecked.contains(&op.number)
    }

    /// Whether a chunk may come from somewhere else than the storage system.
    fn may_be_held(&self, op: &Operation, key: Key) -> bool {
        let puts = self.oracle.puts.get(&(op.process, key)).into_iter().flatten();
        self.oracle.is_owed(op.ledger, key)
            || self.oracle.prefetched.contains_key(&(op.ledger, key))
            || puts.into_iter().any(|(_, end)| end.is_none_or(|end| end >= op.start))
    }

    /// A chunk was answered that always has the same value: it may be old, and not gone for longer than copies are kept.
    pub fn check_not_gone(&mut self, op: &Operation, key: Key, now: Moment) {
        if self.may_be_held(op, key) || self.wall_jumps {
            return;
        }
        let longest = crate::world::near_for(&self.shape) + 3 * self.shape.deadline + nanoseconds(CONFIRMED_FOR);
        let removed_by_own = self.removals(key).filter(|removal| {
            let returned = |by: Origin| self.returned.get(&by.call).is_some_and(|returned| *returned < op.start);
            removal.at < op.start && removal.by.is_some_and(|by| by.process == op.process && returned(by))
        });
        let own = removed_by_own.map(|removal| removal.at).max();
        let from = own.unwrap_or(0).max(op.start.saturating_sub(longest));
        let gone = match own {
            Some(at) if at >= op.start.saturating_sub(longest) => {
                self.lacked_all_the_time(key, at, now) && !self.put_since(op, key, at)
            }
            _ => self.lacked_all_the_time(key, from, now) && !self.put_since(op, key, from),
        };
        if gone {
            let text = format!("{key}: operation {} answers it, and it has been gone since {}", op.number, ms(from));
            self.oracle.violated("gone-answered", text, now);
        }
    }

    fn put_since(&self, op: &Operation, key: Key, since: Moment) -> bool {
        let puts = self.oracle.puts.get(&(op.process, key)).into_iter().flatten();
        puts.into_iter().any(|(_, end)| end.is_none_or(|end| end >= since))
    }

    /// Something is there all the time that an operation without a fault takes, and is not answered.
    pub fn check_answered(&mut self, op: &Operation, key: Key, why: &str, now: Moment) {
        let rotted = self.lying(key).any(|slot| slot.rotted.is_some());
        let older = key.kind == Kind::Manifest && !self.failovers.is_empty();
        // A thread of a queue works for whoever asked for its turn, so that whose the faults are is not known there.
        let by_queue = op.queued && self.shape.trouble > 0;
        if rotted
            || older
            || by_queue
            || self.faulty.contains(&op.number)
            || self.unreachable_until(op.process, now).is_some()
        {
            return;
        }
        if self.had_all_the_time(key, op.start, now) {
            let text =
                format!("{key}: operation {} met no fault and answers {why}, and it was there all the time", op.number);
            self.oracle.violated("not-answered", text, now);
        }
    }

    /// An answer that a chunk exists, and it does not.
    pub fn check_exists(&mut self, op: &Operation, key: Key, now: Moment) {
        if !self.may_be_held(op, key) && self.lacked_all_the_time(key, op.start, now) {
            let text =
                format!("{key}: operation {} was answered that it exists, and it did not at any time", op.number);
            self.oracle.violated("exists-wrong", text, now);
        }
    }
}

/// When a write was over: nobody carries it out after.
fn write_end(write: &Change, changes: &[Change]) -> Moment {
    match write.end {
        End::Acknowledged(at) | End::Refused(at) => at,
        End::Running => Moment::MAX,
        End::Unknown(at) => {
            let next = |change: &&Change| change.process == write.process && change.start > at;
            let settled = changes.iter().filter(next).filter_map(|change| match change.end {
                End::Acknowledged(acknowledged) => Some(acknowledged),
                _ => None,
            });
            settled.min().unwrap_or(Moment::MAX).min(write.latest.max(at))
        }
    }
}
