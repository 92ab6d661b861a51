//! The calls that list and clean, as calls of the component's `maintenance`.

use super::pool::{Pool, Upkeep};
use crate::backend::ChunkHash;
use crate::contract::bindings::maintained as contract;
use crate::error::{Error, contract_violation};
use crate::limits;
use crate::sandbox_traits::Maintenance;
use crate::store::{ChunkEntry, Evicted, Eviction, ManifestEntry, Page, Usage};
use crate::until::Until;

impl Maintenance for Pool {
    fn list_chunks(&self, after: Option<&str>, limit: usize, until: &Until) -> Result<Page<ChunkEntry>, Error> {
        self.maintain(until, async |call: &mut Upkeep<'_>| {
            let answer = call.guest.call_list_chunks(&mut *call.store, after, limit as u32).await?;
            Ok(answer.map_err(Error::from).and_then(|page| {
                check_page(page.entries.len(), limit, after, page.next.as_deref())?;
                let entries = page.entries.into_iter().map(|entry| {
                    ChunkHash::new(&entry.hash)
                        .map_err(|_| contract_violation("listed a chunk whose hash is not 1 to 64 bytes long"))?;
                    let contract::ChunkEntry { hash, size, stored, used } = entry;
                    Ok(ChunkEntry::new(hash, size, stored, used))
                });
                Ok(Page::new(entries.collect::<Result<_, Error>>()?, page.next))
            }))
        })
    }

    fn list_manifests(&self, after: Option<&str>, limit: usize, until: &Until) -> Result<Page<ManifestEntry>, Error> {
        self.maintain(until, async |call: &mut Upkeep<'_>| {
            let answer = call.guest.call_list_manifests(&mut *call.store, after, limit as u32).await?;
            Ok(answer.map_err(Error::from).and_then(|page| {
                check_page(page.entries.len(), limit, after, page.next.as_deref())?;
                let entries = page.entries.into_iter().map(|entry| {
                    let contract::ManifestEntry { name, size, stored, used } = entry;
                    if name.is_empty() || name.len() > limits::MAX_NAME_BYTES {
                        return Err(contract_violation("listed a manifest whose name is not 1 to 4096 bytes long"));
                    }
                    Ok(ManifestEntry::new(name, size, stored, used))
                });
                Ok(Page::new(entries.collect::<Result<_, Error>>()?, page.next))
            }))
        })
    }

    fn usage(&self, until: &Until) -> Result<Usage, Error> {
        self.maintain(until, async |call: &mut Upkeep<'_>| {
            let answer = call.guest.call_usage(&mut *call.store).await?;
            let usage = |contract::Totals { bytes, chunks, manifests, capacity }| {
                Usage::new(bytes, chunks, manifests, capacity)
            };
            Ok(answer.map(usage).map_err(Error::from))
        })
    }

    fn evict(&self, what: &Eviction, until: &Until) -> Result<Evicted, Error> {
        let Eviction { bytes, unused_since, keep_since, .. } = *what;
        let what = contract::Eviction { bytes, unused_since, keep_since };
        self.maintain(until, async |call: &mut Upkeep<'_>| {
            let answer = call.guest.call_evict(&mut *call.store, what).await?;
            let evicted =
                |contract::Evicted { bytes, chunks, manifests, more }| Evicted::new(bytes, chunks, manifests, more);
            Ok(answer.map(evicted).map_err(Error::from))
        })
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
