//! What a backend offers to operators: listing, counting and evicting.

use crate::backend::{Backend, Instance, with};
use crate::maintained_bindings::exports::kv_store::backend::maintenance::Guest;
use crate::{ChunkPage, Evicted, Eviction, ManifestPage, Result, Totals};

/// A [`Backend`] that can be listed, cleaned and bounded. Export it by `export!(TYPE, maintenance)`.
///
/// The host calls these from threads of its own, in an instance beside those that serve consumers.
pub trait Maintenance: Backend {
    /// At most `limit` chunks, after what the page before answered as `next`. What is stored all the time is listed at least
    /// once.
    fn list_chunks(&mut self, after: Option<&str>, limit: u32) -> Result<ChunkPage>;

    /// The same for manifests.
    fn list_manifests(&mut self, after: Option<&str>, limit: u32) -> Result<ManifestPage>;

    /// What is known of the whole store; `None` where only a listing would tell.
    fn usage(&mut self) -> Result<Totals>;

    /// Remove what was not used, manifests before the chunks that they name. [`eviction`](crate::eviction) finds out which.
    fn evict(&mut self, what: Eviction) -> Result<Evicted>;
}

impl<I: Instance> Guest for I
where
    I::Backend: Maintenance,
{
    fn list_chunks(after: Option<String>, limit: u32) -> Result<ChunkPage> {
        with::<I, _>(|backend| backend.list_chunks(after.as_deref(), limit))
    }

    fn list_manifests(after: Option<String>, limit: u32) -> Result<ManifestPage> {
        with::<I, _>(|backend| backend.list_manifests(after.as_deref(), limit))
    }

    fn usage() -> Result<Totals> {
        with::<I, _>(|backend| backend.usage())
    }

    fn evict(what: Eviction) -> Result<Evicted> {
        with::<I, _>(|backend| backend.evict(what))
    }
}
