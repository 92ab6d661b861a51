//! What a store holds and what may leave it: listing, counting and evicting, through the component's `maintenance`. Each call has
//! a deadline of its own, and what a guest answers is checked for its shape.

use super::open_store::OpenStore;
use super::{Store, owned};
use crate::backend::ChunkHash;
use crate::contract::bindings::maintained as contract;
use crate::counters::Event;
use crate::error::{Error, contract_violation};
use crate::limits::{self, Limits};
use crate::payload::Buffer;
use crate::pool::{Outcome, Upkeep};
use crate::until::Until;

/// A part of a listing.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Page<T> {
    /// May be empty before the last page.
    pub entries: Vec<T>,
    /// What to ask for the next page with. None: this was the last one.
    pub next: Option<String>,
}

/// A chunk in a listing. Times are nanoseconds since 1970-01-01 UTC; none where the backend does not know.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChunkEntry {
    /// The hash that it was put under.
    pub hash: Vec<u8>,
    /// How long it is.
    pub bytes: Option<u64>,
    /// When it was stored.
    pub stored: Option<u64>,
    /// When it was last used.
    pub used: Option<u64>,
}

/// A manifest in a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ManifestEntry {
    /// Begins with NUL where the backend has only a digest of a long name; it can be fetched and removed by that.
    pub name: String,
    /// How long it is.
    pub bytes: Option<u64>,
    /// When it was stored.
    pub stored: Option<u64>,
    /// When it was last used.
    pub used: Option<u64>,
}

/// What a store holds. None where only a listing would tell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Usage {
    /// Of chunks and manifests.
    pub bytes: Option<u64>,
    /// How many chunks.
    pub chunks: Option<u64>,
    /// How many manifests.
    pub manifests: Option<u64>,
    /// Bytes that the storage system may hold, what is not the store's included.
    pub capacity: Option<u64>,
}

/// What is to be evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Eviction {
    /// At least so many bytes, the least recently used first.
    pub bytes: u64,
    /// And all that was last used before: nanoseconds since 1970-01-01 UTC.
    pub unused_since: Option<u64>,
    /// But no chunk that was stored or used after this.
    pub keep_since: u64,
}

impl Eviction {
    /// Evict so many bytes, and all that was last used before a moment, but no chunk that was stored or used after another.
    pub fn new(bytes: u64, unused_since: Option<u64>, keep_since: u64) -> Self {
        Eviction { bytes, unused_since, keep_since }
    }
}

/// What was evicted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Evicted {
    /// Bytes of the chunks and manifests that are gone.
    pub bytes: u64,
    /// How many chunks.
    pub chunks: u64,
    /// How many manifests.
    pub manifests: u64,
    /// Call again for the rest.
    pub more: bool,
}

impl Store {
    /// Whether the backend can list and clean what it holds. Otherwise the calls below answer `Unsupported`.
    pub fn is_maintained(&self) -> Result<bool, Error> {
        Ok(self.opened()?.shared().pool.is_maintained())
    }

    /// One page of the chunks, of at most `limit` entries. `after`: `next` of the page before.
    pub fn list_chunks(&self, after: Option<&str>, limit: usize) -> Result<Page<ChunkEntry>, Error> {
        self.opened()?.shared().list_chunks(after, limit)
    }

    /// One page of the manifests, of at most `limit` entries. `after`: `next` of the page before.
    pub fn list_manifests(&self, after: Option<&str>, limit: usize) -> Result<Page<ManifestEntry>, Error> {
        let opened = self.opened()?;
        let mut page = opened.shared().list_manifests(after, limit)?;
        if let Some(prefix) = opened.prefix() {
            // Those of other URIs below the same root are not this store's.
            page.entries.retain_mut(|entry| {
                let own = entry.name.strip_prefix(prefix).and_then(|rest| rest.strip_prefix('/')).map(str::to_owned);
                own.map(|own| entry.name = own).is_some()
            });
        }
        Ok(page)
    }

    /// Chunks as the backend answers them: nothing is checked against its hash, and nothing damaged is removed. An answer for each.
    ///
    /// # Errors
    /// Of the whole call: the backend could not be asked.
    pub fn get_unchecked(&self, hashes: &[&[u8]]) -> Result<Vec<Result<Option<Buffer>, Error>>, Error> {
        let shared = self.opened()?.shared();
        let hashes: Vec<ChunkHash> = hashes.iter().map(|hash| ChunkHash::new(hash)).collect::<Result<_, _>>()?;
        let mut found = Vec::with_capacity(hashes.len());
        while let Some(rest) = hashes.get(found.len()..).filter(|rest| !rest.is_empty()) {
            let batch = rest.get(..shared.batch_items()).unwrap_or(rest);
            let until = &shared.until();
            until.expect(limits::KV_BATCH_BYTES);
            let answers = shared.get_far(batch, until)?;
            found.extend(answers.into_iter().map(|answer| answer?.map(owned).transpose()));
        }
        Ok(found)
    }

    /// What the store holds, as far as the backend knows without a listing.
    pub fn usage(&self) -> Result<Usage, Error> {
        self.opened()?.shared().usage()
    }

    /// Remove what was not used. All URIs below the same root are one store here.
    pub fn evict(&self, what: &Eviction) -> Result<Evicted, Error> {
        self.opened()?.shared().evict(what)
    }
}

impl OpenStore {
    /// One call of the component's `maintenance`. It is not tried while the breaker is open; what it comes to says nothing of
    /// how well consumers are served, so the breaker does not hear of it.
    fn maintain<T>(&self, until: &Until, call: impl AsyncFnOnce(&mut Upkeep<'_>) -> Outcome<T>) -> Result<T, Error> {
        self.breaker.admit().inspect_err(|_| self.counters.count(Event::BreakerRefused))?.give_back();
        self.pool.maintain(until, call)
    }

    /// The time of one call of `maintenance`.
    fn upkeep_until(&self) -> Until {
        let limits = &self.pool.access().limits;
        Until::new(&Limits { deadline_ms: limits.maintenance_ms, ..limits.clone() })
    }

    pub(super) fn list_chunks(&self, after: Option<&str>, limit: usize) -> Result<Page<ChunkEntry>, Error> {
        let limit = limit.clamp(1, limits::MAX_LISTED);
        self.maintain(&self.upkeep_until(), async |call: &mut Upkeep<'_>| {
            let answer = call.guest.call_list_chunks(&mut *call.store, after, limit as u32).await?;
            Ok(answer.map_err(Error::from).and_then(|page| {
                check_page(page.entries.len(), limit, after, page.next.as_deref())?;
                let entries = page.entries.into_iter().map(|entry| {
                    ChunkHash::new(&entry.hash)
                        .map_err(|_| contract_violation("listed a chunk whose hash is not 1 to 64 bytes long"))?;
                    let contract::ChunkEntry { hash, size: bytes, stored, used } = entry;
                    Ok(ChunkEntry { hash, bytes, stored, used })
                });
                Ok(Page { entries: entries.collect::<Result<_, Error>>()?, next: page.next })
            }))
        })
    }

    pub(super) fn list_manifests(&self, after: Option<&str>, limit: usize) -> Result<Page<ManifestEntry>, Error> {
        let limit = limit.clamp(1, limits::MAX_LISTED);
        self.maintain(&self.upkeep_until(), async |call: &mut Upkeep<'_>| {
            let answer = call.guest.call_list_manifests(&mut *call.store, after, limit as u32).await?;
            Ok(answer.map_err(Error::from).and_then(|page| {
                check_page(page.entries.len(), limit, after, page.next.as_deref())?;
                let entries = page.entries.into_iter().map(|entry| {
                    let contract::ManifestEntry { name, size: bytes, stored, used } = entry;
                    if name.is_empty() || name.len() > limits::MAX_NAME_BYTES {
                        return Err(contract_violation("listed a manifest whose name is not 1 to 4096 bytes long"));
                    }
                    Ok(ManifestEntry { name, bytes, stored, used })
                });
                Ok(Page { entries: entries.collect::<Result<_, Error>>()?, next: page.next })
            }))
        })
    }

    pub(super) fn usage(&self) -> Result<Usage, Error> {
        self.maintain(&self.upkeep_until(), async |call: &mut Upkeep<'_>| {
            let answer = call.guest.call_usage(&mut *call.store).await?;
            let usage =
                |contract::Totals { bytes, chunks, manifests, capacity }| Usage { bytes, chunks, manifests, capacity };
            Ok(answer.map(usage).map_err(Error::from))
        })
    }

    pub(super) fn evict(&self, what: &Eviction) -> Result<Evicted, Error> {
        let Eviction { bytes, unused_since, keep_since } = *what;
        let what = contract::Eviction { bytes, unused_since, keep_since };
        let evicted = self.maintain(&self.upkeep_until(), async |call: &mut Upkeep<'_>| {
            let answer = call.guest.call_evict(&mut *call.store, what).await?;
            let evicted =
                |contract::Evicted { bytes, chunks, manifests, more }| Evicted { bytes, chunks, manifests, more };
            Ok(answer.map(evicted).map_err(Error::from))
        })?;
        if evicted.chunks > 0 {
            // Which ones is not said.
            self.known().forget_present();
        }
        self.counters.add(Event::Evicted, evicted.chunks.saturating_add(evicted.manifests));
        self.counters.add(Event::BytesEvicted, evicted.bytes);
        Ok(evicted)
    }
}

fn check_page(count: usize, limit: usize, after: Option<&str>, next: Option<&str>) -> Result<(), Error> {
    if count > limit {
        return Err(contract_violation(format_args!("listed {count} entries on a page of at most {limit}")));
    }
    match next {
        Some(next) if next.len() > limits::MAX_CURSOR_BYTES => {
            Err(contract_violation(format_args!("answered a `next` of {} bytes", next.len())))
        }
        // It would be asked for the same page for ever.
        Some(next) if Some(next) == after => Err(contract_violation("answered the `next` that it was asked with")),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_that_leads_nowhere_breaks_the_contract() {
        assert!(check_page(3, 3, Some("a"), Some("b")).is_ok());
        assert!(check_page(0, 3, None, None).is_ok());
        let long = "n".repeat(limits::MAX_CURSOR_BYTES + 1);
        for (count, after, next) in [(4, None, None), (1, Some("a"), Some("a")), (1, None, Some(long.as_str()))] {
            assert!(check_page(count, 3, after, next).is_err());
        }
    }
}
