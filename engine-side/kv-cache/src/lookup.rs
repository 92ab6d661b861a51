//! Finding a row: the exact key, then the parent's or a longer one at a boundary, then the longest prefix. One pass of the hash
//! serves all of them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::cache::Cache;
use crate::counters::{add, add_since};
use crate::error::{Error, Result};
use crate::hit::{Hit, HitKind};
use crate::key::{Identity, Key};
use crate::lane::Flight;
use crate::limits::MAX_TOKENS;
use crate::tier::Pinned;

/// A prompt whose state is wanted.
#[derive(Clone, Copy, Debug)]
pub struct Query<'a> {
    /// Whose state.
    pub identity: &'a Identity,
    /// The prompt. At most 2^24 tokens.
    pub tokens: &'a [u32],
    /// The key of the row that this prompt goes on from, where the caller knows one. A hint, no capability: it is of use only
    /// if it is the key of a beginning of these very tokens.
    pub parent: Option<Key>,
}

impl<'a> Query<'a> {
    /// A prompt without a parent.
    pub fn new(identity: &'a Identity, tokens: &'a [u32]) -> Self {
        Query { identity, tokens, parent: None }
    }

    /// The same, with a parent.
    pub fn parent(self, parent: Key) -> Self {
        Query { parent: Some(parent), ..self }
    }
}

impl Cache {
    /// Find the row that saves most of the prefill: of exactly these tokens; else the parent's, if the prompt strictly extends
    /// it, and no longer row is at a boundary (a multiple of `boundary_align_tokens`); else the longest at a boundary. `None` is a
    /// miss. Rows that are at no boundary are found by their key or as a parent alone.
    ///
    /// No lookup waits for a writer, but for one thing: where the parent's save is on its way, this waits for it, at most
    /// `session_resume_wait_ms`.
    ///
    /// # Errors
    /// `InvalidArgument` for too many tokens, `Closed` after [`Cache::shutdown`] or in a forked child.
    pub fn lookup(&self, query: &Query<'_>) -> Result<Option<Hit>> {
        self.check_open()?;
        if query.tokens.len() > MAX_TOKENS {
            return Err(Error::invalid(format!(
                "a prompt has at most {MAX_TOKENS} tokens, not {}",
                query.tokens.len()
            )));
        }
        let counters = &self.shared().counters;
        let hit = self.find(query);
        add(
            match hit.as_ref().map(Hit::kind) {
                Some(HitKind::Exact) => &counters.hits_exact,
                Some(HitKind::Resume) => &counters.hits_resume,
                Some(HitKind::LongestPrefix) => &counters.hits_longest_prefix,
                None => &counters.misses,
            },
            1,
        );
        Ok(hit)
    }

    fn find(&self, query: &Query<'_>) -> Option<Hit> {
        let (start, length) = (Instant::now(), query.tokens.len());
        let counters = &self.shared().counters;
        let hint = query.parent.and_then(|key| self.parent(key)).filter(|parent| parent.tokens < length);
        let align = self.policy().boundary_align_tokens;
        let mut ends: Vec<usize> = self.policy().boundaries(length).chain([length]).collect();
        ends.extend(hint.as_ref().map(|parent| parent.tokens));
        ends.sort_unstable();
        ends.dedup();
        let keys: Vec<(usize, Key)> = query.identity.keys_at(query.tokens, ends.into_iter()).collect();
        let hashed = |start| add_since(&counters.prefix_nanos, start);
        if let Some(row) = keys.last().and_then(|(_, key)| self.find_key(key)) {
            hashed(start);
            return Some(self.hit(row, HitKind::Exact));
        }
        // Its key decides, not what its row or its save say of their length.
        let parent = hint.filter(|parent| keys.contains(&(parent.tokens, parent.key)));
        let boundaries: Vec<_> = keys.iter().rev().filter(|(end, _)| *end < length && end % align == 0).collect();
        add(&counters.prefix_walks, u64::from(!boundaries.is_empty()));
        // A row that is longer than the parent's saves more of the prefill, and waits for nobody.
        let longer = boundaries.partition_point(|(end, _)| parent.as_ref().is_none_or(|parent| *end > parent.tokens));
        let (longer, shorter) = boundaries.split_at_checked(longer)?;
        let found = self.walk(longer);
        hashed(start);
        if let Some(row) = found {
            return Some(self.hit(row, HitKind::LongestPrefix));
        }
        // Without a parent all boundaries were looked at.
        if let Some(row) = self.wait_for(&parent?) {
            return Some(self.hit(row, HitKind::Resume));
        }
        let start = Instant::now();
        let found = self.walk(shorter);
        hashed(start);
        found.map(|row| self.hit(row, HitKind::LongestPrefix))
    }

    /// The first of these rows that is there.
    fn walk(&self, keys: &[&(usize, Key)]) -> Option<Pinned> {
        let counters = &self.shared().counters;
        keys.iter().find_map(|(_, key)| {
            add(&counters.prefix_probes, 1);
            self.find_key(key)
        })
    }

    fn hit(&self, row: Pinned, kind: HitKind) -> Hit {
        Hit::new(self.clone(), row, kind)
    }

    /// The row of this key, from the first tier that has it.
    fn find_key(&self, key: &Key) -> Option<Pinned> {
        self.lanes().find_map(|lane| lane.tier.find(key))
    }

    /// What is known of a parent: a row that is there, or a save of it that is on its way.
    fn parent(&self, key: Key) -> Option<Parent> {
        if let Some(tokens) = self.lanes().find_map(|lane| lane.tier.tokens_of(&key)) {
            return Some(Parent { key, tokens, flight: None });
        }
        let flight = self.lanes().find_map(|lane| lane.flight(&key))?;
        Some(Parent { key, tokens: flight.tokens, flight: Some(flight) })
    }

    fn wait_for(&self, parent: &Parent) -> Option<Pinned> {
        if let Some(flight) = &parent.flight {
            add(&self.shared().counters.resume_waits, 1);
            flight.wait(Duration::from_millis(self.policy().session_resume_wait_ms));
        }
        self.find_key(&parent.key)
    }
}

struct Parent {
    key: Key,
    tokens: usize,
    flight: Option<Arc<Flight>>,
}
