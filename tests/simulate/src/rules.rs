//! The rules: what each answer promises, held against what lies in the storage system at that moment.

use kv_store_core::envelope::TAIL_BYTES;
use kv_store_core::limits::{CONFIRMED_FOR, LOSS_TOLD_FOR};

use crate::names::{Key, Kind, Version};
use crate::oracle::{Change, Cover, End, Ledger, Operation, ms};
use crate::plan::Backend;
use crate::threads::{Moment, SECOND};
use crate::world::{Entry, Origin, Removal, Slot, World};

fn nanoseconds(long: std::time::Duration) -> Moment {
    u64::try_from(long.as_nanos()).unwrap_or(u64::MAX)
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

    /// Whether this process may take for durable what is not: a sync of the segment in which it lies, or of the log, has failed, and only another
    /// process knows. `docs/segments.md` promises nothing of that until the log says so.
    fn takes_for_synced(&self, key: Key, process: usize) -> bool {
        let others = |knows: Option<usize>| knows.is_some_and(|knows| knows != process);
        others(self.log_unsynced_by) || self.lying(key).any(|slot| others(slot.unsynced_by))
    }

    fn removals(&self, key: Key) -> impl Iterator<Item = &Removal> {
        self.lying(key).flat_map(|slot| &slot.removals)
    }

    fn is_there(&self, key: Key) -> bool {
        self.lying(key).any(|slot| slot.visible.is_some())
    }

    /// Whether something lies there, and all of it is so.
    fn all_that_lies(&self, key: Key, is: impl Fn(&Slot) -> bool) -> bool {
        let mut lying = self.lying(key).filter(|slot| slot.visible.is_some()).peekable();
        lying.peek().is_some() && lying.all(is)
    }

    /// Whether all that lies there lies in files that were gone at that time.
    fn was_without_file(&self, key: Key, at: Moment) -> bool {
        self.all_that_lies(key, |slot| slot.without_file.is_some_and(|since| since < at))
    }

    /// Whether what lay there at some time since then was damaged: nobody knows that before he reads it, and who stores it again does not lose what
    /// was durable.
    fn was_damaged(&self, key: Key, since: Moment) -> bool {
        self.lying(key).any(|slot| {
            let first = slot.past.iter().rposition(|(at, _)| *at <= since).unwrap_or(0);
            let past = slot.past.get(first..).unwrap_or_default();
            slot.rotted.is_some_and(|at| at >= since)
                || past.iter().any(|(_, entry)| entry.as_ref().is_some_and(|entry| !entry.sound))
        })
    }

    /// Whether a power loss has left the entries of records in the log, and not what they name. A record that is not sure to be on the disk is
    /// read before somebody goes by it.
    fn power_has_taken(&self, key: Key) -> bool {
        let unsound = |entry: &Option<Entry>| entry.as_ref().is_some_and(|entry| !entry.sound);
        let is_taken = |slot: &Slot| {
            // What is named in a file that somebody has removed, or was damaged before, may be what was on the disk.
            slot.without_file.is_none()
                && unsound(&slot.visible)
                && self.failovers.contains(&slot.visible_since())
                && !slot.past.iter().rev().skip(1).any(|(_, entry)| unsound(entry))
        };
        self.shape.backend.has_records() && self.all_that_lies(key, is_taken)
    }

    /// Whether all that lies there is shorter than what was put, or longer, and was when the process began: nobody has told it anything else, and
    /// these backends compare lengths.
    fn has_another_length(&self, op: &Operation, key: Key) -> bool {
        let compares = matches!(self.shape.backend, Backend::LocalFs { .. } | Backend::S3(_));
        let begun = self.begun.get(op.process).copied().unwrap_or(0).min(op.start);
        let is_other = |slot: &Slot| {
            let entry = slot.visible.as_ref().filter(|entry| !entry.sound);
            let len = entry.map(|entry| (entry.bytes.len(), self.shape.lengths.value(key, 0).len()));
            let is_long = |(is, should): (usize, usize)| is != should && is != should + TAIL_BYTES;
            slot.visible_since() < begun && len.is_some_and(is_long)
        };
        compares && matches!(key.kind, Kind::Content | Kind::Opaque) && self.all_that_lies(key, is_other)
    }

    fn is_durable(&self, key: Key) -> bool {
        self.lying(key).any(|slot| slot.durable.is_some() && slot.visible.is_some())
    }

    /// Whether what this change put was put anew: a register has another value, or a chunk that was durable already has another place, because
    /// the file where it lay could not be synced once more. Of records that one may be lost, and the former with it: `docs/segments.md` says of
    /// what was put after a commit that it is there or a miss.
    fn is_replaced(&self, op: &Operation, key: Key) -> bool {
        let is_other = |entry: &Entry| entry.version != Some(Version::from(op.number));
        let is_elsewhere = |slot: &Slot| {
            let left = slot.durable_until.filter(|until| *until > op.start && !self.failovers.contains(until));
            left.is_some() && slot.visible.as_ref().is_some_and(|entry| entry.sound)
        };
        self.shape.backend.has_records()
            && self.lying(key).any(|slot| match key.kind {
                Kind::Register => slot.visible.as_ref().is_some_and(is_other),
                _ => is_elsewhere(slot),
            })
    }

    /// A put was answered as stored or existing: it is readable by every client, and durable where that was asked for.
    pub fn acknowledged_put(&mut self, op: &Operation, key: Key, durable: bool, now: Moment) {
        let excused = self.excuses(key, op.process, op.start, op.start);
        if !self.is_there(key) && !excused {
            let text = format!("{key}: operation {} was answered that it is stored, and it is not there", op.number);
            self.oracle.violated("not-visible", text, now);
        } else if self.power_has_taken(key) && !excused && !self.takes_for_synced(key, op.process) {
            let text = format!(
                "{key}: operation {} was answered that it is stored, and a power loss has taken what lies there",
                op.number
            );
            self.oracle.violated("not-visible", text, now);
        } else if self.has_another_length(op, key) && !excused {
            let text = format!(
                "{key}: operation {} was answered that it is stored, and what lies there has had another length all the time",
                op.number
            );
            self.oracle.violated("half-stays", text, now);
        } else if durable
            && !self.is_durable(key)
            && !excused
            && !self.is_replaced(op, key)
            && !self.takes_for_synced(key, op.process)
            && !self.was_damaged(key, op.start)
        {
            let text =
                format!("{key}: operation {} was answered that it is durable, and a power loss takes it", op.number);
            self.oracle.violated("not-durable", text, now);
        }
        self.check_mended(op, key, now);
        self.oracle.covers.entry(key).or_default().push(Cover { process: op.process, start: op.start });
    }

    /// A manifest was published, or a save committed: each chunk that its ledger owed before is readable, and as durable as can be.
    pub fn acknowledged_save(&mut self, op: &Operation, now: Moment) {
        let ledger = op.ledger;
        self.doubt(op);
        let published = self.oracle.published.entry(ledger).or_default();
        let overlapping = published.iter().filter(|(_, end)| *end >= op.start).map(|(start, _)| *start);
        let since = overlapping.min().unwrap_or(op.start).min(op.start);
        published.push((op.start, now));
        // The loss of the instance that is the store is noticed at once.
        let asks = self.shape.durable || self.shape.evicts || self.shape.wants_fresh || self.shape.holds_data;
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
            if !excused && (!self.is_there(key) || self.was_without_file(key, op.start)) {
                let text = format!("{key}: operation {} published over it, and it is not there", op.number);
                self.oracle.violated("published-over-missing", text, now);
            } else if self.shape.durable
                && !self.is_durable(key)
                && !excused
                && !self.takes_for_synced(key, op.process)
                && !self.was_damaged(key, op.start)
            {
                let text = format!("{key}: operation {} published over it, and a power loss takes it", op.number);
                self.oracle.violated("published-undurable", text, now);
            }
            if !over {
                // It may be what was published before that counts on it.
                self.oracle.covers.entry(key).or_default().push(Cover { process: op.process, start: since });
            }
        }
        self.oracle.publishes(ledger, op.start, now);
    }

    /// Note which puts of queues a commit should have waited for, and what is not there.
    fn doubt(&mut self, op: &Operation) {
        let before = |(_, (ledger, start)): &(&u32, &(Ledger, Moment))| *ledger == op.ledger && *start < op.start;
        let submitted: Vec<(u32, Moment)> =
            self.oracle.submitted.iter().filter(before).map(|(number, (_, start))| (*number, *start)).collect();
        for (number, start) in submitted {
            for key in self.keys_of.get(&number).cloned().unwrap_or_default() {
                let is_durable = self.is_durable(key) || self.takes_for_synced(key, op.process);
                let lacks = !self.is_there(key) || (self.shape.durable && !is_durable);
                if lacks && !self.excuses(key, op.process, start, start) && !self.was_damaged(key, start) {
                    self.oracle.doubts.insert((number, key), op.number);
                }
            }
        }
    }

    /// A chunk was found damaged, if what lay there was so all the time.
    pub fn found_damaged(&mut self, op: &Operation, key: Key, now: Moment) {
        let rotten =
            |slot: &Slot| slot.visible_since() < op.start && slot.visible.as_ref().is_some_and(|entry| !entry.sound);
        let all = self.is_there(key) && self.lying(key).all(|slot| slot.visible.is_none() || rotten(slot));
        if all && !self.faulty.contains(&op.number) {
            self.oracle.found_damaged(op, key, now);
        }
    }

    /// A put of a chunk that its process had found damaged has stored it again. What another one put there since is damage of its own.
    fn check_mended(&mut self, op: &Operation, key: Key, now: Moment) {
        let found = self.oracle.damaged.remove(&(op.process, key)).filter(|found| *found < op.start);
        let Some(found) = found else { return };
        let rotten = self.lying(key).any(|slot| {
            let rotten = slot.visible.as_ref().is_some_and(|entry| !entry.sound);
            // What came to a file that others have removed looks like what was in one before.
            rotten && slot.visible_since() <= found && slot.without_file.is_none()
        });
        let sound = self.lying(key).any(|slot| slot.visible.as_ref().is_some_and(|entry| entry.sound));
        if rotten && !sound {
            let text = format!(
                "{key}: operation {} was answered that it is stored; its process had found it damaged at {}, and it lies there as before",
                op.number,
                ms(found)
            );
            self.oracle.violated("damage-stays", text, now);
        }
    }

    /// What is visible now of a key that was changed must be what a reader may see.
    pub fn acknowledged_change(&mut self, op: &Operation, key: Key, now: Moment) {
        let visible = self.lying(key).filter_map(|slot| slot.visible.as_ref());
        let sound: Vec<Version> = visible.filter(|entry| entry.sound).filter_map(|entry| entry.version).collect();
        for version in sound {
            self.check_value(op, key, version, now, now);
        }
        if self.takes_for_synced(key, op.process) {
            self.oracle.may_be_lost(op, key);
        } else if self.shape.durable && key.kind == Kind::Manifest {
            self.check_durable(op, key, now);
        }
    }

    /// What a power loss leaves of a manifest must be what a reader may see.
    fn check_durable(&mut self, op: &Operation, key: Key, now: Moment) {
        let left = self.lying(key).filter_map(|slot| slot.durable.as_ref());
        let left: Vec<Version> = left.filter(|entry| entry.sound).filter_map(|entry| entry.version).collect();
        // Bytes that changed by themselves meanwhile.
        let rotten = self.lying(key).any(|slot| slot.rotted.is_some_and(|at| at >= op.start));
        // What another one publishes meanwhile is not durable yet, and need not be.
        let own =
            |slot: &Slot| slot.visible.as_ref().is_some_and(|entry| entry.version == Some(Version::from(op.number)));
        let is_own = self.lying(key).any(own);
        if left.is_empty() && is_own && !rotten && !self.excuses(key, op.process, op.start, op.start) {
            let text =
                format!("{key}: operation {} was answered that it is published, and a power loss takes it", op.number);
            self.oracle.violated("not-durable", text, now);
        }
        for version in left {
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
        // Nobody gives back what ended unknown once its time is over, and what outranked it is gone: `docs/backends.md` says so of Mooncake.
        if matches!(write.end, End::Unknown(_)) && self.oracle.appeared.contains(&(key, version)) {
            return;
        }
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
        let own = self.oracle.order.get(&(key, version)).copied();
        // Of what was published into a file that somebody had just removed only its own process knows.
        if own.is_none() && self.was_without_file(key, now) {
            return;
        }
        let own = own.unwrap_or(0);
        let seen = self.oracle.seen.entry((op.process, key)).or_default();
        let newer = seen.iter().find(|(end, _, order)| *end < op.start && *order > own).copied();
        let newer = newer.filter(|_| !self.generations_fall);
        seen.push((now, version, own));
        if let Some((end, newer, _)) = newer {
            let text = format!(
                "{key}: operation {} read value {version}; its process had read the newer value {newer} at {}",
                op.number,
                ms(end)
            );
            self.oracle.violated("older-manifest", text, now);
        }
    }

    /// Whether `get_chunk` may answer what changed by itself: a store whose keys nobody knows yet may have others than hashes. Batches say
    /// what their keys are. What it answers may have come with a prefetch before it.
    pub fn may_be_unchecked(&self, op: &Operation, key: Key) -> bool {
        let prefetches = self.oracle.prefetched.get(&(op.ledger, key)).into_iter().flatten();
        // What Mooncake was asked to remove it gives to others, also while somebody reads it. It evicts nothing that has a lease.
        let is_asked_for = |removal: &Removal| removal.by.is_some() || self.outsiders_remove;
        let is_read_late = || self.removals(key).any(|removal| removal.at >= op.start && is_asked_for(removal));
        let changed = self.lying(key).any(|slot| slot.rotted.is_some())
            || (matches!(self.shape.backend, Backend::Mooncake(_)) && is_read_late())
            || self.faulty.contains(&op.number)
            || prefetches.into_iter().any(|prefetch| self.faulty.contains(prefetch))
            || !self.failovers.is_empty();
        !self.shape.verifies && key.kind == Kind::Content && changed && self.unchecked.contains(&op.number)
    }

    /// Whether a chunk may come from somewhere else than the storage system.
    fn may_be_held(&self, op: &Operation, key: Key) -> bool {
        let puts = self.oracle.puts.get(&(op.process, key)).into_iter().flatten();
        self.oracle.was_owed(op.ledger, key, op.start)
            || self.oracle.prefetched.contains_key(&(op.ledger, key))
            || puts.into_iter().any(|(_, end)| end.is_none_or(|end| end >= op.start))
    }

    /// A chunk was answered that always has the same value: it may be old, and not gone for longer than copies are kept.
    pub fn check_not_gone(&mut self, op: &Operation, key: Key, now: Moment) {
        if self.may_be_held(op, key) || self.wall_jumps {
            return;
        }
        let near_for = self.shape.near_ttl_s.map_or(0, |seconds| seconds * SECOND);
        let longest = near_for + 3 * self.shape.deadline + nanoseconds(CONFIRMED_FOR);
        // Until it is told, a copy that came meanwhile may be near.
        let is_told = |by: Origin| {
            by.process == op.process
                && self.oracle.told_removals.get(&by.operation).is_some_and(|told| *told < op.start)
        };
        // In each layout by itself: one removal of both may have a put between.
        let gone_since = |slot: &Slot| {
            let own = slot.removals.iter().filter(|removal| removal.at < op.start && removal.by.is_some_and(is_told));
            own.map(|removal| removal.at).max().unwrap_or(0).max(op.start.saturating_sub(longest))
        };
        let is_gone = |slot: &Slot| {
            let since = gone_since(slot);
            slot.lacked_all_the_time(since, now) && !self.put_since(op, key, since)
        };
        if self.lying(key).all(is_gone) {
            let from = self.lying(key).map(gone_since).max().unwrap_or(0);
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
        let older = key.kind == Kind::Manifest
            && (!self.failovers.is_empty() || self.may_be_out_of_order(key) || self.may_begin_anew(key));
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

    /// Whether the manifest that is there was changed while another process changed it, where nothing orders the two: the later one may have the
    /// lower generation, and is an older one to who has read the other.
    fn may_be_out_of_order(&self, key: Key) -> bool {
        let changes = self.oracle.changes.get(&key).map(Vec::as_slice).unwrap_or_default();
        let versions = self.lying(key).filter_map(|slot| slot.visible.as_ref()?.version);
        let writes = versions.filter_map(|version| changes.iter().find(|change| change.version == Some(version)));
        let beside = |write: &Change, other: &Change| {
            other.process != write.process
                && other.start <= write_end(write, changes)
                && write.start <= write_end(other, changes)
        };
        self.may_leave_no_generation(key)
            && writes.into_iter().any(|write| changes.iter().any(|other| beside(write, other)))
    }

    /// Whether nothing but a clock that was set back told the generation of a manifest.
    fn may_begin_anew(&self, key: Key) -> bool {
        let is_removed = || self.removals(key).next().is_some();
        self.wall_went_back
            && self.may_leave_no_generation(key)
            && (!self.shape.backend.orders_nothing() || is_removed())
    }

    /// Whether what was under a key before may have left nothing that orders what came after it: it was evicted, or what a removal left was,
    /// or the server has no conditions.
    fn may_leave_no_generation(&self, key: Key) -> bool {
        let is_evicted = || self.removals(key).any(|removal| removal.by.is_none());
        matches!(self.shape.backend, Backend::S3(_))
            && (self.tombstones_go || self.shape.backend.orders_nothing() || is_evicted())
    }

    /// An answer that a chunk exists, and it does not.
    pub fn check_exists(&mut self, op: &Operation, key: Key, now: Moment) {
        let taken = self.power_has_taken(key) && !self.takes_for_synced(key, op.process);
        if !self.may_be_held(op, key) && (taken || self.lying(key).all(|slot| slot.lacked_all_the_time(op.start, now)))
        {
            let why = if taken { "and a power loss has taken it" } else { "and it did not at any time" };
            let text = format!("{key}: operation {} was answered that it exists, {why}", op.number);
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
