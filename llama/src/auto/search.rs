//! Which state of the store has the longest beginning of a prompt.

use super::index::{self, BLOCK};
use super::policy::Kind;
use crate::engine::Token;
use crate::record::Record;

/// Records that are read for one prompt, at most, where the newest do not have what is wanted.
const MOST_RECORDS: usize = 3;
/// Index records that are passed over, from the longest beginning that has one.
const MOST_INDEXES: usize = 8;

/// Where manifests are.
pub trait Manifests {
    /// The bytes of a manifest; `None` if there is none.
    fn manifest(&self, name: &str) -> Result<Option<Vec<u8>>, String>;
}

/// What is looked for.
pub struct Query {
    pub key: [u8; 32],
    /// Of the layout of states.
    pub version: u32,
    pub kind: Kind,
    /// The beginning that may be loaded.
    pub tokens: Vec<Token>,
    /// How many of the tokens the context has.
    pub present: usize,
}

/// A state that has a beginning of the tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    pub record: Record,
}

impl Candidate {
    /// How many of the tokens it spares to compute.
    pub fn covers(&self, kind: Kind, tokens: &[Token]) -> usize {
        let own = &self.record.tokens;
        let same = own.iter().zip(tokens).take_while(|(own, token)| own == token).count();
        match kind {
            Kind::Shortens => same,
            Kind::Fixed if same == own.len() => same,
            Kind::Fixed => 0,
        }
    }
}

impl Query {
    /// The state that covers the most, and of those the smallest. `None`: none covers more than the context has.
    ///
    /// # Errors
    /// The store failed.
    pub fn search(&self, store: &impl Manifests) -> Result<Option<Candidate>, String> {
        let blocks = self.tokens.len() / BLOCK;
        let hashes = index::hashes(&self.tokens, (1..=blocks).map(|block| block * BLOCK));
        let read = |block: usize| -> Result<Option<Vec<index::Entry>>, String> {
            let Some(hash) = block.checked_sub(1).and_then(|at| hashes.get(at)) else { return Ok(None) };
            let found = store.manifest(&index::index_name(&self.key, block * BLOCK, hash))?;
            Ok(found.and_then(|bytes| index::decode(&bytes)))
        };
        let Some((last, mut entries)) = last_block(blocks, &read)? else { return Ok(None) };
        let mut best: Option<(usize, Candidate)> = None;
        for block in (1..=last).rev().take(MOST_INDEXES) {
            if block < last {
                entries = read(block)?.unwrap_or_default();
            }
            for entry in self.useful(&entries, block, &hashes) {
                let Some(candidate) = self.read(store, &entry)? else { continue };
                let covers = candidate.covers(self.kind, &self.tokens);
                let better = best.as_ref().is_none_or(|(most, best)| {
                    covers > *most || (covers == *most && candidate.record.size < best.record.size)
                });
                if covers > self.present && better {
                    best = Some((covers, candidate));
                }
                if covers == self.tokens.len() {
                    break;
                }
            }
            if best.is_some() || block * BLOCK <= self.present {
                break;
            }
        }
        Ok(best.map(|(_, candidate)| candidate))
    }

    /// The states of the index record of a block that may have a beginning of the tokens, the best first.
    fn useful(&self, entries: &[index::Entry], block: usize, hashes: &[index::Hash]) -> Vec<index::Entry> {
        let mut useful = entries.to_vec();
        if self.kind == Kind::Fixed {
            useful.retain(|entry| {
                let own = self.tokens.get(..entry.tokens as usize);
                own.is_some_and(|own| own.len() > self.present && index::hash(own) == entry.hash)
            });
            useful.sort_by_key(|entry| std::cmp::Reverse(entry.tokens));
        }
        useful.truncate(MOST_RECORDS);
        // The state that ends with the block is stored where batches are cut. Newer ones may have taken its place in the index.
        if let (Kind::Fixed, Some(hash)) = (self.kind, block.checked_sub(1).and_then(|at| hashes.get(at))) {
            let own = index::Entry { tokens: (block * BLOCK) as u32, hash: *hash };
            if block * BLOCK > self.present && !useful.contains(&own) {
                useful.push(own);
            }
        }
        useful
    }

    /// The record that an entry names, if it is what its name says.
    fn read(&self, store: &impl Manifests, entry: &index::Entry) -> Result<Option<Candidate>, String> {
        let name = index::state_name(&self.key, entry.tokens as usize, &entry.hash);
        let Some(record) = store.manifest(&name)?.and_then(|bytes| Record::decode(&bytes).ok()) else {
            return Ok(None);
        };
        let same = record.fingerprint == self.key
            && record.version == self.version
            && record.tokens.len() == entry.tokens as usize
            && index::hash(&record.tokens) == entry.hash;
        Ok(same.then_some(Candidate { record }))
    }
}

/// Reads the index record of a block.
type Read<'a> = &'a dyn Fn(usize) -> Result<Option<Vec<index::Entry>>, String>;

/// The last of so many blocks that has an index record. A state has one for each of its blocks, so those that have one are the first.
fn last_block(blocks: usize, read: Read<'_>) -> Result<Option<(usize, Vec<index::Entry>)>, String> {
    if blocks == 0 {
        return Ok(None);
    }
    if let Some(entries) = read(blocks)? {
        return Ok(Some((blocks, entries)));
    }
    let Some(mut found) = read(1)? else { return Ok(None) };
    let (mut known, mut missing) = (1, blocks);
    while missing - known > 1 {
        let middle = known + (missing - known) / 2;
        match read(middle)? {
            Some(entries) => (known, found) = (middle, entries),
            None => missing = middle,
        }
    }
    Ok(Some((known, found)))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::collections::HashMap;

    use super::*;
    use crate::layout::Cut;

    const KEY: [u8; 32] = [5; 32];

    #[derive(Default)]
    struct Fake {
        manifests: HashMap<String, Vec<u8>>,
        asked: Cell<usize>,
    }

    impl Manifests for Fake {
        fn manifest(&self, name: &str) -> Result<Option<Vec<u8>>, String> {
            self.asked.set(self.asked.get() + 1);
            Ok(self.manifests.get(name).cloned())
        }
    }

    impl Fake {
        fn keep(&mut self, tokens: &[Token]) {
            let hash = index::hash(tokens);
            let rest = vec![1; tokens.len()];
            let record = Record {
                fingerprint: KEY,
                version: 4,
                tokens: tokens.to_vec(),
                size: rest.len() as u64,
                cut: Cut::default(),
                hashes: Vec::new(),
                rest,
            };
            self.manifests.insert(index::state_name(&KEY, tokens.len(), &hash), record.encode());
            let entry = index::Entry { tokens: tokens.len() as u32, hash };
            for block in 1..=tokens.len() / BLOCK {
                let name = index::index_name(&KEY, block * BLOCK, &index::hash(&tokens[..block * BLOCK]));
                let former = self.manifests.get(&name).and_then(|bytes| index::decode(bytes)).unwrap_or_default();
                self.manifests.insert(name, index::encode(&index::with(former, entry)));
            }
        }

        fn covers(&self, kind: Kind, tokens: &[Token], present: usize) -> Option<usize> {
            let query = Query { key: KEY, version: 4, kind, tokens: tokens.to_vec(), present };
            let found = query.search(self).unwrap();
            found.map(|found| found.covers(kind, tokens))
        }
    }

    fn tokens(len: usize, differs: usize) -> Vec<Token> {
        (0..len).map(|at| if at < differs { at as Token } else { -(at as Token) - 1 }).collect()
    }

    #[test]
    fn the_longest_common_beginning_is_found() {
        let mut store = Fake::default();
        store.keep(&tokens(1000, 1000));
        store.keep(&tokens(3000, 3000));
        store.keep(&tokens(2500, 2000));
        let find = |len, differs, present| store.covers(Kind::Shortens, &tokens(len, differs), present);
        assert_eq!(find(3000, 3000, 0), Some(3000));
        assert_eq!(find(5000, 5000, 0), Some(3000));
        assert_eq!(find(2999, 2999, 0), Some(2999), "a longer state is shortened");
        assert_eq!(find(2500, 2000, 0), Some(2500));
        assert_eq!(find(2500, 1999, 0), Some(1999), "to a token");
        assert_eq!(find(2500, 100, 0), None, "no whole block");
        assert_eq!(find(3000, 3000, 3000), None, "it is there");
        assert_eq!(find(200, 200, 0), None);
    }

    #[test]
    fn a_state_that_cannot_be_shortened_is_found_by_its_own_length() {
        let mut store = Fake::default();
        for len in [600, 1000, 1020] {
            store.keep(&tokens(len, len));
        }
        let find = |len, differs, present| store.covers(Kind::Fixed, &tokens(len, differs), present);
        assert_eq!(find(1020, 1020, 0), Some(1020));
        assert_eq!(find(1019, 1019, 0), Some(1000));
        assert_eq!(find(999, 999, 0), Some(600));
        assert_eq!(find(1020, 900, 0), Some(600), "behind it the tokens are others");
        assert_eq!(find(1020, 900, 600), None);
        assert_eq!(find(599, 599, 0), None);
    }

    #[test]
    fn a_state_that_ends_with_a_block_is_found_behind_many_newer_ones() {
        let mut store = Fake::default();
        store.keep(&tokens(512, 512));
        (0..20).for_each(|more| store.keep(&tokens(600 + more, 513)));
        assert_eq!(store.covers(Kind::Fixed, &tokens(700, 700), 0), Some(512));
    }

    #[test]
    fn a_prompt_that_is_new_costs_two_questions() {
        let mut store = Fake::default();
        assert_eq!(store.covers(Kind::Shortens, &tokens(100_000, 100_000), 0), None);
        assert_eq!(store.asked.take(), 2);
        store.keep(&tokens(1000, 1000));
        assert_eq!(store.covers(Kind::Shortens, &tokens(100_000, 100_000), 0), Some(1000));
        assert!(store.asked.get() < 15, "{:?}", store.asked);
    }

    #[test]
    fn what_a_name_does_not_say_is_not_used() {
        let mut store = Fake::default();
        store.keep(&tokens(600, 600));
        store.keep(&tokens(700, 0));
        let (one, other) = (tokens(600, 600), tokens(700, 0));
        let name = |tokens: &[Token]| index::state_name(&KEY, tokens.len(), &index::hash(tokens));
        // Another state under the name.
        let bytes = store.manifests[&name(&other)].clone();
        let former = store.manifests.insert(name(&one), bytes).unwrap();
        assert_eq!(store.covers(Kind::Shortens, &one, 0), None);
        // A damaged one.
        let mut damaged = former.clone();
        damaged[40] ^= 1;
        store.manifests.insert(name(&one), damaged);
        assert_eq!(store.covers(Kind::Shortens, &one, 0), None);
        // One of another model.
        let mut record = Record::decode(&former).unwrap();
        record.fingerprint[0] ^= 1;
        store.manifests.insert(name(&one), record.encode());
        assert_eq!(store.covers(Kind::Shortens, &one, 0), None);
        // One that is gone.
        store.manifests.remove(&name(&one));
        assert_eq!(store.covers(Kind::Shortens, &one, 0), None);
        store.manifests.insert(name(&one), former);
        assert_eq!(store.covers(Kind::Shortens, &one, 0), Some(600));
    }
}
