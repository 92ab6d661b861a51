//! The layer that has each change take its place in the table of [`Changes`] before the component is called.
//!
//! Reads pass, and so does a put whose key is the hash of its content, which is only held up by a former removal or replacement of the same
//! chunk that ended unknown. The component finds the change that it makes with the time of the call ([`Until::change`]).

use std::sync::Arc;

use super::changes::{Change, ChangeKey, Changes, End};
use super::{Answers, Backend, ChunkHash, ChunkToPut, Committed, Got, Presence, Put, Target};
use crate::counters::{Counters, Event};
use crate::error::Error;
use crate::payload::Buffer;
use crate::until::Until;

pub struct Holding {
    inner: Arc<dyn Backend>,
    changes: Arc<Changes>,
    /// The component settles former changes that ended unknown.
    settles: bool,
    counters: Arc<Counters>,
}

/// A change that is under way. If it is left by a panic, its end is unknown.
struct Running<'a> {
    change: Arc<Change>,
    until: &'a Until,
    counters: &'a Counters,
}

impl Running<'_> {
    fn end<'e>(self, end: impl Fn(usize) -> End<'e>) {
        self.ended(end);
    }

    fn ended<'e>(&self, end: impl Fn(usize) -> End<'e>) {
        let unknown = self.change.end(end, self.until);
        self.counters.add(Event::UnknownChanges, unknown as u64);
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        // Of a change that was ended none is left.
        self.ended(|_| End::Lost);
    }
}

impl Holding {
    pub fn new(inner: Arc<dyn Backend>, changes: Arc<Changes>, settles: bool, counters: Arc<Counters>) -> Self {
        Holding { inner, changes, settles, counters }
    }

    /// Make a change of some of these keys, from the first on, with the time under which the component finds it.
    fn batch<T>(
        &self,
        keys: Vec<ChangeKey>,
        until: &Until,
        call: impl FnOnce(usize, &Until) -> Answers<T>,
    ) -> Answers<T> {
        let change = self.changes.take(keys, self.settles, until)?;
        let running = Running { change: change.clone(), until, counters: &self.counters };
        let answers = call(change.len(), &until.changing(change.clone()));
        running.end(|item| match &answers {
            Err(error) => End::Failed(error),
            Ok(answers) => match answers.get(item) {
                Some(Ok(_)) => End::Done,
                Some(Err(error)) => End::Failed(error),
                None => End::Unanswered,
            },
        });
        answers
    }

    /// Make the change of a manifest. `done`: whether it was made, if it went well.
    fn single<T>(
        &self,
        name: &str,
        until: &Until,
        done: impl Fn(&T) -> bool,
        call: impl FnOnce(&Until) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let change = self.changes.take(vec![ChangeKey::Manifest(name.into())], self.settles, until)?;
        let running = Running { change: change.clone(), until, counters: &self.counters };
        let answer = call(&until.changing(change));
        running.end(|_| match &answer {
            Ok(answer) if done(answer) => End::Done,
            Ok(_) => End::NotDone,
            Err(error) => End::Failed(error),
        });
        answer
    }
}

/// Whether a put is a change: its key is not the hash of its content, as far as its length tells, or it replaces.
fn is_change(hash: &ChunkHash, replace: bool) -> bool {
    replace || !hash.may_be_of_content()
}

impl Backend for Holding {
    fn exists(&self, hashes: &[ChunkHash], until: &Until) -> Answers<Presence> {
        self.inner.exists(hashes, until)
    }

    fn put(&self, chunks: &[ChunkToPut<'_>], replace: bool, until: &Until) -> Answers<Put> {
        let Some((first, _)) = chunks.first() else { return Ok(Vec::new()) };
        let changes = is_change(first, replace);
        let alike = chunks.iter().map(|(hash, _)| hash).take_while(|hash| is_change(hash, replace) == changes);
        if !changes {
            let free = self.changes.free(alike, until)?;
            return self.inner.put(chunks.get(..free).unwrap_or(chunks), replace, until);
        }
        let keys = alike.map(|hash| ChangeKey::Chunk(*hash)).collect();
        self.batch(keys, until, |count, until| self.inner.put(chunks.get(..count).unwrap_or(chunks), replace, until))
    }

    fn get(&self, hashes: &[ChunkHash], targets: &mut [Target<'_>], until: &Until) -> Answers<Option<Got>> {
        self.inner.get(hashes, targets, until)
    }

    fn delete(&self, hashes: &[ChunkHash], until: &Until) -> Answers<()> {
        let keys = hashes.iter().map(|hash| ChangeKey::Chunk(*hash)).collect();
        self.batch(keys, until, |count, until| self.inner.delete(hashes.get(..count).unwrap_or(hashes), until))
    }

    fn commit(
        &self,
        manifest: Option<(&str, &[u8])>,
        fresh: &[ChunkHash],
        bytes: u64,
        until: &Until,
    ) -> Result<Committed, Error> {
        let Some((name, _)) = manifest else { return self.inner.commit(None, fresh, bytes, until) };
        let published = |committed: &Committed| matches!(committed, Committed::Published);
        self.single(name, until, published, |until| self.inner.commit(manifest, fresh, bytes, until))
    }

    fn get_manifest(&self, name: &str, until: &Until) -> Result<Option<Arc<Buffer>>, Error> {
        self.inner.get_manifest(name, until)
    }

    fn delete_manifest(&self, name: &str, until: &Until) -> Result<(), Error> {
        self.single(name, until, |()| true, |until| self.inner.delete_manifest(name, until))
    }

    fn retire(&self) {
        self.inner.retire();
    }

    fn drop_connections(&self) {
        self.inner.drop_connections();
    }
}

#[cfg(test)]
#[path = "holding_tests.rs"]
mod tests;
