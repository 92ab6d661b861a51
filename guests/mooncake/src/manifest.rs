//! Manifests, in a store whose objects are never replaced in place: while Mooncake overwrites an object there is none.
//!
//! A name has [`SLOTS`] objects, of which one is there as a rule. Each begins with a generation, a random number, and a checksum, which
//! covers the object's key as well: a removal does not wait for readers, and who reads meanwhile may find another name's manifest in the
//! same memory, whole.
//! The manifest is the one with the greatest generation; of equal ones, that of two writers at once, the greatest random number.
//!
//! - To change: give back what a former change of the same process began and did not end, so that its end comes too late.
//! - To publish: read all that is there, write the next generation into the free slot that follows the newest, remove the others, and only
//!   then answer. What is being written counts as a generation too, and no generation is less than the time in microseconds: one that is ended
//!   late is lower, also where all that was there when it began was removed.
//! - To read: read all that is there; remove, if there are several, all but the greatest, and only then answer that.
//!
//! So a reader sees the former one or the new one, whole, also when the writer dies between any two steps: until the new object is
//! complete nobody sees it, and from then on nobody sees another. Once a reader or a writer has been answered there is no older one
//! left, so a manifest that is evicted is a miss and never an older one. What cannot be read as it was written may be the newest, or be
//! whole in another replica: beside it nothing is the manifest, and it is removed last. A writer removes what is lower than *its own* version, whatever
//! is the greatest when it looks: its own may have been evicted meanwhile. Of two writers at once one wins, whole. A slot in which a
//! writer died is free again when Mooncake discards what it began (30 s); until then there are the other slots.
//!
//! Mooncake removes by key, whatever has come to lie there. So slots are used in turn, and one is used again only after all others: who
//! removes what it has seen would remove another version only if all the others were published in between, and it looks anew
//! if [`STALE`] has passed. The slot of a version that was evicted may be used again sooner; what is removed there by mistake is a miss.
//!
//! `tests/models/src/mooncake.rs`: "an acknowledged change is not undone".

use kv_store_sdk::payloads::{self, Part};
use kv_store_sdk::{Error, ErrorKind, Manifest, Payload, Result, changes, key, system};

use crate::change::Begun;
use crate::master::{NOT_FOUND, NOT_READY, explain};
use crate::{Object, Put, Store};

/// Objects that a name may have. Writers at once, and dead ones, need one each, and one more is in use; the rest is for using them in
/// turn.
const SLOTS: usize = 32;
/// How long after a look what was seen is removed, in nanoseconds: less than [`SLOTS`] publications take.
const STALE: u64 = 10_000_000;
/// How often it is looked anew for that, before it is removed all the same: on a machine that is far too busy all are slow.
const FRESH_LOOKS: usize = 8;
/// Slots that a writer tries, where other writers are at work or have died.
const TRIED: usize = 4;
/// How often in a row the slots must be seen empty, and nobody writing, before the manifest counts as missing.
const LOOKS: usize = 3;
/// How often they are looked at in all.
const MOST_LOOKS: usize = 16;
/// Between looks, in nanoseconds; as much again at most is added by chance.
const PAUSE: u64 = 1_000_000;
const MAGIC: [u8; 8] = *b"kvmoon2\n";
/// As of 0.2: the checksum does not cover the key.
const FORMER_MAGIC: [u8; 8] = *b"kvmoon1\n";
/// Bytes before the content: magic, generation, random number, and the XXH3 of those, the object's key and the content.
pub const HEAD: u64 = 32;
const CHECKSUM_AT: usize = 24;

/// Generation and random number: the greatest is the manifest.
type Order = (u64, u64);

/// What one slot holds.
struct Version {
    slot: usize,
    order: Order,
    object: Payload,
}

/// What the slots hold at about one moment.
struct Look {
    begun: u64,
    versions: Vec<Version>,
    /// Slots that hold something else.
    damaged: Vec<usize>,
    /// How many somebody is writing, or has begun and given up.
    written: usize,
}

impl Look {
    /// The generation to publish.
    fn next(&self, now: u64) -> u64 {
        let greatest = self.versions.iter().map(|version| version.order.0).max().unwrap_or_default();
        following(greatest, self.written as u64, now)
    }
}

impl Store {
    pub fn publish(&self, namespace: &str, manifest: &Manifest) -> Result<()> {
        let keys = keys(namespace, manifest.name);
        let Begun { client, given_back, former, end } = self.begin(&keys)?;
        let mut look = self.versions(&keys)?;
        if look.versions.is_empty() && end > 0 {
            // With none to follow, the slot may be one that a former change is about to empty.
            self.wait_until(end, &[0])?;
            look = self.versions(&keys)?;
        }
        let order = (look.next(system::now()), system::random());
        let Look { mut versions, damaged, .. } = look;
        if !damaged.is_empty() {
            self.remove_in_turn(&keys, &mut versions, damaged)?;
        }
        let newest = versions.iter().max_by_key(|version| version.order).map(|version| version.slot);
        let after = newest.map_or_else(|| system::random() as usize % SLOTS, |slot| slot + 1);
        // Those that former changes may have tried, and given up themselves, come last.
        let after = after + former * TRIED;
        let in_turn = (0..SLOTS).map(|turn| (after + turn) % SLOTS);
        // Bytes that come late to memory which was given back are a version of their own slot only, which is left out this time.
        let free =
            in_turn.filter(|slot| !given_back.contains(slot) && versions.iter().all(|version| version.slot != *slot));
        for key in free.take(TRIED).filter_map(|slot| keys.get(slot)) {
            let parts = vec![Part::Bytes(head(key, order, manifest.part())?), manifest.part()];
            let object = Object { key: key.clone(), parts, len: HEAD + manifest.len };
            match self.put(client, &[object])?.pop() {
                Some(Ok(Put::Stored)) => {
                    // What another writer published meanwhile stays if it is greater, as for any reader.
                    return self.settle(&keys, Some(order)).map(drop);
                }
                // A writer is at it, or has died here.
                Some(Ok(Put::Taken)) | None => {}
                Some(Ok(Put::Refused(error))) => {
                    changes::not_done(&[0]);
                    return Err(error);
                }
                Some(Err(error)) => return Err(error),
            }
        }
        changes::not_done(&[0]);
        Err(Error::unavailable("other writers are publishing this manifest; one that died is forgotten after 30 s"))
    }

    /// The manifest of this name.
    pub fn newest(&self, namespace: &str, name: &str) -> Result<Option<Payload>> {
        let Some(newest) = self.settle(&keys(namespace, name), None)? else { return Ok(None) };
        let content =
            payloads::Range { payload: &newest.object, offset: HEAD, len: newest.object.len().saturating_sub(HEAD) };
        Payload::from_parts(&[Part::Range(content)]).map(Some)
    }

    /// Remove the manifest of this name: the oldest first, so that nobody sees it last.
    pub fn forget(&self, namespace: &str, name: &str) -> Result<()> {
        let keys = keys(namespace, name);
        // Once all are free, the next version may come to a slot that a former change is about to empty.
        let Begun { end, .. } = self.begin(&keys)?;
        self.wait_until(end, &[0])?;
        let Look { mut versions, damaged, .. } = self.versions(&keys)?;
        self.remove_in_turn(&keys, &mut versions, damaged)
    }

    /// Remove all, the oldest first, and what is damaged last: it may be the newest.
    fn remove_in_turn(&self, keys: &[String], versions: &mut [Version], damaged: Vec<usize>) -> Result<()> {
        versions.sort_by_key(|version| version.order);
        versions.iter().try_for_each(|version| self.remove(keys, [version.slot].into_iter()))?;
        self.remove(keys, damaged.into_iter())
    }

    /// The greatest version, when it is the only one. `own`: what was just published; nothing that is lower stays, also where it is the
    /// greatest that is left.
    fn settle(&self, keys: &[String], own: Option<Order>) -> Result<Option<Version>> {
        let mut looks = 0;
        loop {
            looks += 1;
            let Look { begun, versions, damaged, .. } = self.versions(keys)?;
            if !damaged.is_empty() {
                let Some(own) = own else { return Ok(None) };
                if versions.iter().all(|version| version.order != own) {
                    return Err(Error::unavailable("what was written of the manifest is gone or damaged already"));
                }
            }
            let (newest, lower) = sorted(versions, own);
            if lower.is_empty() && damaged.is_empty() {
                return Ok(newest);
            }
            if looks == FRESH_LOOKS || system::monotonic().saturating_sub(begun) < STALE {
                self.remove(keys, lower.into_iter())?;
                self.remove(keys, damaged.into_iter())?;
                return Ok(newest);
            }
        }
    }

    /// What the slots hold, and which of them hold something else than a version.
    ///
    /// The slots are read one after the other. A writer that publishes meanwhile may free each of them before it is looked at, so
    /// what is missing or damaged is looked at again.
    fn versions(&self, keys: &[String]) -> Result<Look> {
        let mut quiet = 0;
        for _ in 1..MOST_LOOKS {
            match self.look(keys) {
                Ok(Some(look)) if !look.versions.is_empty() && look.damaged.is_empty() => return Ok(look),
                Ok(Some(look)) if look.written == 0 && look.damaged.is_empty() => {
                    quiet += 1;
                    if quiet == LOOKS {
                        return Ok(look);
                    }
                }
                Err(error) if error.kind != ErrorKind::Corrupt => return Err(error),
                _ => quiet = 0,
            }
            system::sleep(PAUSE + system::random() % PAUSE)?;
        }
        let look = self.look(keys)?;
        look.ok_or_else(|| Error::unavailable("the manifest was not read before the leases of its objects ended"))
    }

    /// None: the leases ended before all was read, and somebody may have written since.
    fn look(&self, keys: &[String]) -> Result<Option<Look>> {
        // Twice in one call: a version that moves from a slot that is still to be looked at to one that was is found all the same.
        let twice = [keys, keys].concat();
        let begun = system::monotonic();
        let mut first = self.master.locate(&twice)?;
        let second = first.split_off(keys.len());
        let is_written = |(first, second): &(&_, &_)| [*first, *second].iter().any(|of| matches!(of, Err(NOT_READY)));
        let written = first.iter().zip(&second).filter(is_written).count();
        let located = first.into_iter().zip(second).map(|(first, second)| first.or(second)).collect();
        let mut objects: Vec<Result<Option<Payload>>> = keys.iter().map(|_| Ok(None)).collect();
        let slots: Vec<usize> = (0..keys.len()).collect();
        let late = self.read(&slots, located, begun, &mut objects, &|replica| Some(replica.size), &|_| None);
        if !late.is_empty() {
            return Ok(None);
        }
        let mut look = Look { begun, versions: Vec::new(), damaged: Vec::new(), written };
        for (slot, object) in objects.into_iter().enumerate() {
            // One that cannot be read may be the newest: then there is no answer.
            let Some(object) = object? else { continue };
            let key = keys.get(slot).map_or("", String::as_str);
            match order(key, &object)? {
                Some(order) => look.versions.push(Version { slot, order, object }),
                None => look.damaged.push(slot),
            }
        }
        Ok(Some(look))
    }

    fn remove(&self, keys: &[String], slots: impl Iterator<Item = usize>) -> Result<()> {
        let keys: Vec<String> = slots.filter_map(|slot| keys.get(slot).cloned()).collect();
        for answer in self.master.remove(&keys)? {
            match answer {
                Ok(()) | Err(NOT_FOUND | NOT_READY) => {}
                Err(code) => return Err(explain(code)),
            }
        }
        Ok(())
    }
}

/// A generation greater than that of any version that is there, and of what is being written, as far as each of those saw the others. So one that
/// was given up and is ended late is lower, and nobody sees it. `now`, in nanoseconds since 1970, is the least: where all versions were removed,
/// what is being written may have followed one of them.
fn following(greatest: u64, written: u64, now: u64) -> u64 {
    greatest.saturating_add(1).max(now / 1000).saturating_add(written)
}

/// The greatest version that is not lower than `own`, and the slots of all others, the lowest first.
fn sorted(mut versions: Vec<Version>, own: Option<Order>) -> (Option<Version>, Vec<usize>) {
    versions.sort_by_key(|version| version.order);
    let newest = versions.pop_if(|greatest| stays(greatest.order, own));
    (newest, versions.into_iter().map(|version| version.slot).collect())
}

/// Whether the greatest version that is there is the manifest: a lower one than what was just published is not, though no other is left.
fn stays(greatest: Order, own: Option<Order>) -> bool {
    own.is_none_or(|own| greatest >= own)
}

fn keys(namespace: &str, name: &str) -> Vec<String> {
    let name = key::escape_listed(name);
    (0..SLOTS).map(|slot| format!("{namespace}/m/{name}/{slot}")).collect()
}

/// What comes before the content.
fn head(key: &str, order: Order, content: Part) -> Result<Vec<u8>> {
    let covered = covered(order);
    let checksum = payloads::xxh3(&[Part::Bytes(covered.clone()), Part::Bytes(key.into()), content])?;
    Ok([covered, checksum.to_le_bytes().to_vec()].concat())
}

/// What the checksum covers before the key.
fn covered((generation, random): Order) -> Vec<u8> {
    [MAGIC, generation.to_le_bytes(), random.to_le_bytes()].concat()
}

/// The generation and the random number of an object; none: it is no version of a manifest.
fn order(key: &str, object: &Payload) -> Result<Option<Order>> {
    let Some(len) = object.len().checked_sub(HEAD) else { return Ok(None) };
    let head = object.read(0, HEAD as u32)?;
    let (covered, checksum) = head.split_at_checked(CHECKSUM_AT).unwrap_or_default();
    let content = payloads::Range { payload: object, offset: HEAD, len };
    let numbers = covered.as_chunks::<8>().0;
    let key = if numbers.first() == Some(&FORMER_MAGIC) { "" } else { key };
    let sum = payloads::xxh3(&[Part::Bytes(covered.to_vec()), Part::Bytes(key.into()), Part::Range(content)])?;
    Ok(match numbers {
        [MAGIC | FORMER_MAGIC, generation, random] if checksum == sum.to_le_bytes() => {
            Some((u64::from_le_bytes(*generation), u64::from_le_bytes(*random)))
        }
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The objects of a chunk and of a manifest, in clusters that other versions wrote. The checksum behind what it covers is the host's
    /// XXH3-64, little-endian.
    #[test]
    fn golden_objects() {
        assert_eq!(crate::chunk_key("team", &[0, 0xff]), "team/c/00ff");
        assert_eq!(crate::END, b'.');
        let keys = keys("team", "slot 7/X");
        assert_eq!(
            (keys.len(), keys[0].as_str(), keys[31].as_str()),
            (32, "team/m/slot%207%2f%58/0", "team/m/slot%207%2f%58/31")
        );
        let head = covered((0x0102_0304_0506_0708, 0x1112_1314_1516_1718));
        let hex: String = head.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, "6b766d6f6f6e320a08070605040302011817161514131211");
        assert_eq!((head.len(), HEAD), (CHECKSUM_AT, 32));
    }

    #[test]
    fn what_is_given_up_and_ended_late_is_lower_than_what_was_published_after_it() {
        let (given_up, after) = (following(0, 0, 5_000), following(0, 1, 5_999));
        assert!((given_up, u64::MAX) < (after, 0));
        // It followed a version that is removed meanwhile.
        assert!((following(40, 0, 50_000), u64::MAX) < (following(0, 1, 51_000), 0));
        // By a clock that is behind.
        assert_eq!(following(40, 2, 0), 43);
    }

    #[test]
    fn what_is_lower_than_the_own_version_does_not_stay_where_that_was_evicted() {
        assert!(stays((4, 9), None), "as a reader sees it");
        assert!(stays((5, 1), Some((5, 1))) && stays((5, 2), Some((5, 1))) && stays((6, 0), Some((5, 1))));
        assert!(!stays((4, 9), Some((5, 1))) && !stays((5, 0), Some((5, 1))));
    }
}
