//! In which layout a chunk is put, and in which it is looked for: `docs/envelope.md`.
//!
//! A chunk lies plain where its key is the hash of its content, or where it checks itself; otherwise in an envelope. What is not
//! found where it is expected is looked for in the other layout, where it may be: earlier versions wrote everything plain, and as
//! long as nothing is known of keys of 8 bytes, such a chunk may be in either.

use super::batch::BatchOptions;
use super::lookup::Lookup;
use super::open_store::OpenStore;
use super::verify::KeyScheme;
use crate::backend::{ChunkHash, Layout};
use crate::descriptor::Described;
use crate::envelope::TAIL_BYTES;
use crate::error::Error;

impl OpenStore {
    /// Whether what is not there in layout 2 is asked for in layout 1.
    pub(super) fn reads_layout1(&self, described: Described) -> bool {
        self.enveloped.reads_layout1(described)
    }

    /// Where `put_chunk` puts a chunk, after the verifier saw it.
    pub(super) fn layout_of_chunk(&self, hash: &ChunkHash) -> Layout {
        match self.verifier.keys() {
            KeyScheme::Unsettled | KeyScheme::Hashes | KeyScheme::Unchecked if hash.may_be_of_content() => {
                Layout::Plain
            }
            _ => Layout::Enveloped,
        }
    }

    /// Where a batch puts a chunk. `matches`: whether the key is the XXH3-64 of the content.
    pub(super) fn layout_of_new(&self, hash: &ChunkHash, options: &BatchOptions, matches: impl Fn() -> bool) -> Layout {
        if options.checks_itself {
            return Layout::Plain;
        }
        if options.sealed || !hash.may_be_of_content() {
            return Layout::Enveloped;
        }
        // The keys of a batch may be anything, whatever is known of other users' keys.
        let waived = options.xxh3_keys || self.verifier.insists() || self.verifier.keys() == KeyScheme::Unchecked;
        if waived || matches() { Layout::Plain } else { Layout::Enveloped }
    }

    /// Where `get_chunk` and `prefetch_chunks` look for a chunk.
    pub(super) fn lookup_of_chunk(&self, hash: &ChunkHash) -> Lookup {
        if !hash.may_be_of_content() {
            return Lookup::enveloped(self.reads_layout1(hash.described()));
        }
        match self.verifier.keys() {
            KeyScheme::Hashes => Lookup::PLAIN,
            KeyScheme::Unsettled | KeyScheme::Unchecked => Lookup::PLAIN_FIRST,
            KeyScheme::Opaque => Lookup::enveloped(true),
        }
    }

    /// Where a batch looks for a chunk.
    pub(super) fn lookup_of(&self, hash: &ChunkHash, options: &BatchOptions) -> Lookup {
        if options.checks_itself {
            return Lookup::PLAIN;
        }
        if options.sealed || !hash.may_be_of_content() {
            return Lookup::enveloped(self.reads_layout1(hash.described()));
        }
        if options.xxh3_keys || self.verifier.insists() {
            return Lookup::PLAIN;
        }
        match self.verifier.keys() {
            KeyScheme::Opaque => Lookup::enveloped(true),
            KeyScheme::Unsettled | KeyScheme::Unchecked | KeyScheme::Hashes => Lookup::PLAIN_FIRST,
        }
    }

    /// The layouts in which a chunk that is to go may lie.
    pub(super) fn layouts_of_removed(
        &self,
        hash: &ChunkHash,
        options: &BatchOptions,
    ) -> impl Iterator<Item = Layout> + use<> {
        let plain = options.checks_itself || hash.may_be_of_content() || self.reads_layout1(Described::NOT);
        let enveloped = !options.checks_itself;
        plain.then_some(Layout::Plain).into_iter().chain(enveloped.then_some(Layout::Enveloped))
    }

    /// Refuse a manifest that is too long with its envelope.
    pub(super) fn check_manifest_len(&self, len: usize) -> Result<(), Error> {
        let len = len.saturating_add(TAIL_BYTES);
        self.check_len(len)?;
        let limit = self.max_manifest_bytes();
        if len as u64 > limit {
            let message = format!(
                "manifest too long: {len} bytes with its envelope, the limit is max_manifest_bytes = {limit}: store what is in it as chunks, or raise the limit in the config"
            );
            return Err(Error::invalid(message));
        }
        Ok(())
    }

    /// Refuse a chunk that is too long with its envelope, where it lies in one.
    pub(super) fn check_stored_len(&self, hash: &ChunkHash, len: usize) -> Result<(), Error> {
        self.check_len(if hash.is_enveloped() { len.saturating_add(TAIL_BYTES) } else { len })
    }
}
