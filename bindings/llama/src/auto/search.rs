//! Which state of the store has the longest beginning of a prompt.

use std::sync::Arc;

use super::index;
use super::policy::Kind;
use crate::copied::Copied;
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
    /// Logits are asked for behind them: prompts end here.
    pub ends: bool,
}

/// A state that has a beginning of the tokens.
#[derive(Clone)]
pub enum Candidate {
    Stored(Record),
    /// It is being stored.
    Held(Arc<Copied>),
}

impl Candidate {
    pub fn tokens(&self) -> &[Token] {
        match self {
            Candidate::Stored(record) => &record.tokens,
            Candidate::Held(copied) => &copied.tokens,
        }
    }

    /// Bytes of the state.
    pub fn size(&self) -> u64 {
        match self {
            Candidate::Stored(record) => record.size,
            Candidate::Held(copied) => copied.state().len() as u64,
        }
    }

    /// How many of the tokens it spares to compute.
    pub fn covers(&self, kind: Kind, tokens: &[Token]) -> usize {
        let same = self.shares(tokens);
        match kind {
            Kind::Shortens => same,
            Kind::Fixed if same == self.tokens().len() => same,
            Kind::Fixed => 0,
        }
    }

    /// How many of the tokens it begins with.
    fn shares(&self, tokens: &[Token]) -> usize {
        shared(self.tokens(), tokens)
    }
}

/// How many tokens both begin with.
pub fn shared(one: &[Token], other: &[Token]) -> usize {
    one.iter().zip(other).take_while(|(one, other)| one == other).count()
}

/// What a search finds.
#[derive(Default)]
pub struct Found {
    /// The state that covers the most, and of those the smallest. `None`: none covers more than the context has.
    pub candidate: Option<Candidate>,
    /// Where another prompt leaves this one, if that is behind the candidate: no state ends there. Only where states are used as long as
    /// they are.
    pub branch: Option<usize>,
    /// A longer state begins with all of the tokens, and more of them may come.
    pub goes_on: bool,
}

/// A beginning of the wanted tokens that may have an index record.
struct Beginning {
    length: usize,
    hash: index::Hash,
}

impl Query {
    /// # Errors
    /// The store failed.
    pub fn search(&self, store: &impl Manifests) -> Result<Found, String> {
        let lengths = index::lengths(self.tokens.len());
        let hashes = index::hashes(&self.tokens, lengths.iter().copied());
        let beginnings: Vec<Beginning> =
            lengths.into_iter().zip(hashes).map(|(length, hash)| Beginning { length, hash }).collect();
        let read = |at: usize| -> Result<Option<Vec<index::IndexedState>>, String> {
            let Some(Beginning { length, hash }) = beginnings.get(at) else { return Ok(None) };
            let found = store.manifest(&index::index_name(&self.key, *length, hash))?;
            Ok(found.and_then(|bytes| index::decode(&bytes)))
        };
        let Some((last, entries)) = last_indexed(beginnings.len(), &read)? else { return Ok(Found::default()) };
        let mut best: Option<(usize, Candidate)> = None;
        let below = beginnings.get(..=last).unwrap_or_default();
        for (at, beginning) in below.iter().enumerate().rev().take(MOST_INDEXES) {
            let listed = if at < last { read(at)?.unwrap_or_default() } else { entries.clone() };
            for entry in self.useful(&listed, beginning) {
                let Some(candidate) = self.read(store, &entry)? else { continue };
                let covers = candidate.covers(self.kind, &self.tokens);
                let better = best
                    .as_ref()
                    .is_none_or(|(most, best)| covers > *most || (covers == *most && candidate.size() < best.size()));
                if covers > self.present && better {
                    best = Some((covers, candidate));
                }
                if covers == self.tokens.len() {
                    break;
                }
            }
            if best.is_some() || beginning.length <= self.present {
                break;
            }
        }
        let covered = best.as_ref().map_or(0, |(covers, _)| *covers).max(self.present);
        let found = Found { candidate: best.map(|(_, candidate)| candidate), ..Found::default() };
        // Whatever is not listed behind the last index ends before the next one.
        let end = beginnings.get(last + 1).map_or(self.tokens.len(), |next| next.length);
        match self.kind {
            Kind::Fixed if covered < end => self.with_branch(store, &entries, covered, found),
            _ => Ok(found),
        }
    }

    /// What was found, and where the newest states of an index record leave these tokens.
    fn with_branch(
        &self,
        store: &impl Manifests,
        entries: &[index::IndexedState],
        covered: usize,
        mut found: Found,
    ) -> Result<Found, String> {
        let others = entries.iter().filter(|entry| !self.begins_with(entry)).take(MOST_RECORDS);
        let mut branch = covered;
        for entry in others {
            let Some(other) = self.read(store, entry)? else { continue };
            branch = branch.max(other.shares(&self.tokens));
            if branch == self.tokens.len() {
                break;
            }
        }
        found.goes_on = branch == self.tokens.len() && !self.ends;
        if branch == covered || found.goes_on {
            return Ok(found);
        }
        let own = self.tokens.get(..branch).unwrap_or_default();
        // A state that is there may have left the index for newer ones.
        match self.read(store, &index::IndexedState { tokens: own.len() as u32, hash: index::hash(own) })? {
            Some(candidate) if candidate.covers(self.kind, &self.tokens) == branch => found.candidate = Some(candidate),
            _ => found.branch = Some(branch),
        }
        Ok(found)
    }

    /// Whether the state of an entry is one of a beginning of these tokens, by its hash.
    fn begins_with(&self, entry: &index::IndexedState) -> bool {
        self.tokens.get(..entry.tokens as usize).is_some_and(|own| index::hash(own) == entry.hash)
    }

    /// The states of the index record of a beginning that may be of use, the best first.
    fn useful(&self, entries: &[index::IndexedState], beginning: &Beginning) -> Vec<index::IndexedState> {
        let mut useful = entries.to_vec();
        if self.kind == Kind::Fixed {
            useful.retain(|entry| entry.tokens as usize > self.present && self.begins_with(entry));
            useful.sort_by_key(|entry| std::cmp::Reverse(entry.tokens));
        }
        useful.truncate(MOST_RECORDS);
        // The state that ends with the beginning is stored where batches are cut. Newer ones may have taken its place in the index.
        let own = index::IndexedState { tokens: beginning.length as u32, hash: beginning.hash };
        if self.kind == Kind::Fixed && beginning.length > self.present && !useful.contains(&own) {
            useful.push(own);
        }
        useful
    }

    /// The record that an entry names, if it is what its name says.
    fn read(&self, store: &impl Manifests, entry: &index::IndexedState) -> Result<Option<Candidate>, String> {
        let name = index::state_name(&self.key, entry.tokens as usize, &entry.hash);
        let Some(record) = store.manifest(&name)?.and_then(|bytes| Record::decode(&bytes).ok()) else {
            return Ok(None);
        };
        let same = record.fingerprint == self.key
            && record.version == self.version
            && record.tokens.len() == entry.tokens as usize
            && index::hash(&record.tokens) == entry.hash;
        Ok(same.then_some(Candidate::Stored(record)))
    }
}

/// Reads the index record of a beginning.
type Read<'a> = &'a dyn Fn(usize) -> Result<Option<Vec<index::IndexedState>>, String>;

/// The last of so many beginnings that has an index record. A state has one for each of its own, so those that have one are the first.
fn last_indexed(count: usize, read: Read<'_>) -> Result<Option<(usize, Vec<index::IndexedState>)>, String> {
    let Some(last) = count.checked_sub(1) else { return Ok(None) };
    if let Some(entries) = read(last)? {
        return Ok(Some((last, entries)));
    }
    let Some(mut found) = read(0)? else { return Ok(None) };
    let (mut known, mut missing) = (0, last);
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
            self.keep_grown(tokens, 0);
        }

        /// Keep the state of a prompt that has grown from one of so many tokens, which is kept.
        fn keep_grown(&mut self, tokens: &[Token], kept: usize) {
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
            let entry = index::IndexedState { tokens: tokens.len() as u32, hash };
            for length in index::listed(tokens.len(), kept) {
                let name = index::index_name(&KEY, length, &index::hash(&tokens[..length]));
                let former = self.manifests.get(&name).and_then(|bytes| index::decode(bytes)).unwrap_or_default();
                self.manifests.insert(name, index::encode(&index::with(former, entry)));
            }
        }

        fn find(&self, kind: Kind, tokens: &[Token], present: usize, ends: bool) -> (Option<usize>, Option<usize>) {
            let query = Query { key: KEY, version: 4, kind, tokens: tokens.to_vec(), present, ends };
            let found = query.search(self).unwrap();
            (found.candidate.map(|found| found.covers(kind, tokens)), found.branch)
        }

        fn covers(&self, kind: Kind, tokens: &[Token], present: usize) -> Option<usize> {
            self.find(kind, tokens, present, true).0
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
        assert_eq!(find(2500, 100, 0), Some(100));
        assert_eq!(find(2500, 63, 0), None, "too short");
        assert_eq!(find(3000, 3000, 3000), None, "it is there");
        assert_eq!(find(200, 200, 0), Some(200));
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
        (0..40).for_each(|more| store.keep(&tokens(600 + more, 513)));
        assert_eq!(store.covers(Kind::Fixed, &tokens(700, 700), 0), Some(512));
    }

    #[test]
    fn a_branch_is_seen_by_the_second_prompt_and_loaded_by_the_third() {
        let mut store = Fake::default();
        [256, 512, 900].into_iter().for_each(|len| store.keep(&tokens(len, len)));
        let find =
            |store: &Fake, len, differs, present, ends| store.find(Kind::Fixed, &tokens(len, differs), present, ends);
        assert_eq!(find(&store, 1000, 700, 0, true), (Some(512), Some(700)));
        assert_eq!(find(&store, 1000, 700, 512, true), (None, Some(700)), "the next batch of a prompt");
        assert_eq!(find(&store, 1000, 100, 0, true), (None, Some(100)));
        assert_eq!(find(&store, 700, 700, 0, true), (Some(512), Some(700)), "a prompt that ends within another");
        assert_eq!(find(&store, 700, 700, 0, false), (Some(512), None), "a batch ends, and the prompt goes on");
        let goes_on = |tokens: &[Token], ends| {
            let query = Query { key: KEY, version: 4, kind: Kind::Fixed, tokens: tokens.to_vec(), present: 0, ends };
            query.search(&store).unwrap().goes_on
        };
        assert!(goes_on(&tokens(700, 700), false) && !goes_on(&tokens(700, 700), true));
        assert!(!goes_on(&tokens(700, 699), false) && !goes_on(&tokens(900, 900), false));
        assert_eq!(find(&store, 1000, 1000, 0, true), (Some(900), None), "a prompt that goes on behind a state");
        assert_eq!(find(&store, 1000, 700, 768, true), (None, None), "it is there");
        assert_eq!(store.find(Kind::Shortens, &tokens(1000, 700), 0, true), (Some(700), None));
        store.keep(&tokens(1000, 700)[..700]);
        (0..40).for_each(|more| store.keep(&tokens(800 + more, 800 + more)));
        assert_eq!(find(&store, 1000, 700, 0, true), (Some(700), None), "behind many newer ones");
    }

    #[test]
    fn a_state_of_a_prompt_that_has_grown_is_found() {
        let mut store = Fake::default();
        for (kept, len) in [(0, 256), (256, 512), (512, 700)] {
            store.keep_grown(&tokens(len, len), kept);
        }
        assert_eq!(store.covers(Kind::Fixed, &tokens(750, 750), 0), Some(700));
        assert_eq!(store.covers(Kind::Shortens, &tokens(750, 690), 0), Some(690));
        let find = |len, differs| store.find(Kind::Fixed, &tokens(len, differs), 0, true);
        assert_eq!(find(800, 400), (Some(256), Some(400)), "a branch below a state at a multiple");
        assert_eq!(find(800, 650), (Some(512), Some(650)));
    }

    #[test]
    fn a_long_prompt_reads_the_states_that_it_left_once() {
        let mut store = Fake::default();
        store.keep(&tokens(900, 900));
        let long = tokens(4096, 700);
        assert_eq!(store.find(Kind::Fixed, &long, 512, false), (None, Some(700)));
        store.asked.take();
        assert_eq!(store.find(Kind::Fixed, &long, 1024, false), (None, None));
        let records = store.asked.get();
        assert!(records <= 7, "{records} questions, of indexes");
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
