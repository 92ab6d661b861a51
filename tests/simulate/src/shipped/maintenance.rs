//! A shipped backend lists and evicts, as the library asks it to.

use kv_store_core::Error;
use kv_store_core::sandbox::Maintenance;
use kv_store_core::store::{ChunkEntry, Evicted, Eviction, ManifestEntry, Page, Usage};
use kv_store_core::until::Until;
use kv_store_sdk as sdk;
use kv_store_sdk::native::Maintained;

use super::Shipped;
use crate::world::Request;

impl Shipped {
    fn maintain<T>(&self, until: &Until, what: impl FnOnce(&mut dyn Maintained) -> sdk::Result<T>) -> Result<T, Error> {
        // It asks for nothing by name: what goes goes by nobody's call.
        self.call(Request::Exists(Vec::new()), Vec::new(), until, |guest| match guest.maintained() {
            Some(maintained) => what(maintained),
            None => Err(sdk::Error::unsupported("it exports no maintenance")),
        })
    }
}

impl Maintenance for Shipped {
    fn list_chunks(&self, after: Option<&str>, limit: usize, until: &Until) -> Result<Page<ChunkEntry>, Error> {
        let page = self.maintain(until, |guest| guest.list_chunks(after, limit as u32))?;
        let entry = |entry: sdk::ChunkEntry| ChunkEntry::new(entry.hash, entry.size, entry.stored, entry.used);
        Ok(Page::new(page.entries.into_iter().map(entry).collect(), page.next))
    }

    fn list_manifests(&self, after: Option<&str>, limit: usize, until: &Until) -> Result<Page<ManifestEntry>, Error> {
        let page = self.maintain(until, |guest| guest.list_manifests(after, limit as u32))?;
        let entry = |entry: sdk::ManifestEntry| ManifestEntry::new(entry.name, entry.size, entry.stored, entry.used);
        Ok(Page::new(page.entries.into_iter().map(entry).collect(), page.next))
    }

    fn usage(&self, until: &Until) -> Result<Usage, Error> {
        let totals = self.maintain(until, |guest| guest.usage())?;
        Ok(Usage::new(totals.bytes, totals.chunks, totals.manifests, totals.capacity))
    }

    fn evict(&self, what: &Eviction, until: &Until) -> Result<Evicted, Error> {
        let Eviction { bytes, unused_since, keep_since, .. } = *what;
        let evicted = self.maintain(until, |guest| guest.evict(sdk::Eviction { bytes, unused_since, keep_since }))?;
        Ok(Evicted::new(evicted.bytes, evicted.chunks, evicted.manifests, evicted.more))
    }
}
