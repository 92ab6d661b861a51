//! Manifests by conditions: a change of a name is carried out only where the name still has what its writer saw.
//!
//! A change puts a record ([`crate::record`]) with `If-Match` of what it saw last, or `If-None-Match: *` where it saw nothing. A delete puts a tombstone, also
//! over nothing and over another tombstone. A condition that failed and an answer that was lost say nothing yet: the record is looked at. One's
//! own change there is success; anything else is put over, with a nonce of its own, while there is time. Then the end is unknown.
//!
//! Invariants, where servers honour conditions: "an acknowledged change is not undone" and "a refused change is not there", the variant "fenced" of
//! `tests/models/src/s3.rs`. A request that comes late finds another ETag than the one it was made for, since no two writes have the same.
//! Where conditions are not honoured ([`crate::conditions`]) a change is a look, for its generation, and one request without; a delete removes.
//!
//! What this instance saw last of a name is remembered, for [`SEEN`] names: a save of a name that it has written or read before asks nothing
//! first, and neither does one of a name that it knows nothing of, which may be new.

use std::collections::HashMap;

use kv_store_sdk::payloads::{self, Part, Range};
use kv_store_sdk::{Error, ErrorKind, Manifest, Payload, Result, changes, system};

use crate::S3;
use crate::bucket::{Call, checksum};
use crate::described::{described, head, put_tag, tag_of};
use crate::key::{self, Place};
use crate::large::{self, WHOLE_BYTES, range};
use crate::object::Object;
use crate::record::{Content, Generation, HEAD, Id, Record, State};
use crate::removal::remove;

/// Names of which is remembered what they had.
const SEEN: usize = 4096;
/// Requests of one change, where others change the name all the time. The deadline of the call ends most of them earlier.
const TRIES: u32 = 64;
/// From this length on a name that is not known is looked at first: to be refused afterwards would cost more.
const LOOK_FIRST_BYTES: u64 = 256 << 10;
/// The pause before another try, in nanoseconds, so that writers of one name do not meet again and again.
const PAUSE: u64 = 10_000_000;

/// 16 random bytes.
pub fn id() -> Id {
    let mut id = [0; 16];
    let (first, second) = id.split_at_mut(8);
    first.copy_from_slice(&system::random().to_le_bytes());
    second.copy_from_slice(&system::random().to_le_bytes());
    id
}

/// What a name had when it was looked at.
#[derive(Clone)]
pub struct Seen {
    tag: String,
    /// None: what is there is damaged.
    record: Option<Record>,
}

impl Seen {
    fn generation(&self) -> Option<Generation> {
        self.record.map(|record| record.generation)
    }

    /// The id of the bytes that lie elsewhere.
    fn long(&self) -> Option<Id> {
        self.record.filter(|record| matches!(record.state, State::Elsewhere(_))).map(|record| record.change)
    }
}

/// What was seen last, by the keys of records.
#[derive(Default)]
pub struct Remembered {
    seen: HashMap<String, (u64, Seen)>,
    uses: u64,
}

impl Remembered {
    fn get(&mut self, key: &str) -> Option<Seen> {
        self.uses += 1;
        let (used, seen) = self.seen.get_mut(key)?;
        *used = self.uses;
        Some(seen.clone())
    }

    fn set(&mut self, key: &str, seen: Option<Seen>) {
        self.uses += 1;
        let Some(seen) = seen else {
            self.seen.remove(key);
            return;
        };
        if self.seen.len() >= SEEN && !self.seen.contains_key(key) {
            let oldest = self.seen.iter().min_by_key(|(_, (used, _))| *used).map(|(key, _)| key.clone());
            oldest.map(|key| self.seen.remove(&key));
        }
        self.seen.insert(key.to_owned(), (self.uses, seen));
    }
}

/// What a request of a change came to.
enum Put {
    Done(String),
    /// Its condition did not hold.
    Refused,
}

impl S3 {
    /// Publish a manifest: item 0 of the running call.
    pub fn publish(&self, manifest: Manifest) -> Result<()> {
        if key::place(manifest.name) == Place::Former {
            return Err(Error::unsupported("manifests of former versions are read and deleted, and not written"));
        }
        let content = Content { len: manifest.len, xxh3: payloads::xxh3(&[manifest.part()])? };
        let change = id();
        if HEAD + manifest.len <= WHOLE_BYTES {
            return self.change(manifest.name, change, State::Here(content), vec![manifest.part()]);
        }
        // Servers that honour conditions need not honour those of an upload in parts, under races or at all. The bytes are an object that nobody
        // else writes, and the record says which.
        let key = key::long(self.bucket.prefix(), manifest.name, &change);
        large::put(&self.bucket, &key, manifest.len, &self.object_headers(manifest.len), |offset, len| {
            manifest.range(offset, len)
        })?;
        self.change(manifest.name, change, State::Elsewhere(content), Vec::new())
    }

    /// Delete a manifest. That there is none is success.
    pub fn unpublish(&self, name: &str) -> Result<()> {
        let place = key::place(name);
        if place != Place::Former {
            self.unpublish_record(name)?;
        }
        if place != Place::Record {
            changes::begin(&[0], &[]);
            self.delete(&key::former(self.bucket.prefix(), name))?;
        }
        Ok(())
    }

    fn unpublish_record(&self, name: &str) -> Result<()> {
        if self.conditions.writes {
            return self.change(name, id(), State::Tombstone, Vec::new());
        }
        let key = key::record(self.bucket.prefix(), name);
        let seen = self.remembered.borrow_mut().get(&key);
        self.remembered.borrow_mut().set(&key, None);
        changes::begin(&[0], &[]);
        self.delete(&key)?;
        self.forget_long(name, seen.as_ref());
        Ok(())
    }

    /// The manifest under a name; none: there is none.
    pub fn published(&self, name: &str) -> Result<Option<Payload>> {
        let of_former = || {
            let former = self.manifests().get(&key::former(self.bucket.prefix(), name))?;
            Ok(former.map(|object| object.body))
        };
        match key::place(name) {
            Place::Former => of_former(),
            Place::Record => self.published_record(name),
            Place::Either => self.published_record(name)?.map_or_else(of_former, |found| Ok(Some(found))),
        }
    }

    fn published_record(&self, name: &str) -> Result<Option<Payload>> {
        let key = key::record(self.bucket.prefix(), name);
        // What lies elsewhere is removed when another record is there: then that one counts.
        for _ in 0..2 {
            let Some(Object { body, tag }) = self.manifests().get(&key)? else {
                self.remembered.borrow_mut().set(&key, None);
                return Ok(None);
            };
            let record = self.record(&body)?;
            let Some(record) = record.filter(|record| record.object_len() == body.len()) else {
                return Err(damaged("its record"));
            };
            self.remembered.borrow_mut().set(&key, Some(Seen { tag, record: Some(record) }));
            match record.state {
                State::Tombstone => return Ok(None),
                State::Here(content) => {
                    let bytes = || Part::Range(Range { payload: &body, offset: HEAD, len: content.len });
                    if payloads::xxh3(&[bytes()])? != content.xxh3 {
                        return Err(damaged("the bytes behind its record"));
                    }
                    return with_generation(name, &body, HEAD, content.len, record.generation).map(Some);
                }
                State::Elsewhere(content) => {
                    let long = key::long(self.bucket.prefix(), name, &record.change);
                    let Some(object) = self.manifests().get(&long)? else { continue };
                    let xxh3 = payloads::xxh3(&[Part::Payload(&object.body)])?;
                    if (object.body.len(), xxh3) != (content.len, content.xxh3) {
                        return Err(damaged("its bytes"));
                    }
                    return with_generation(name, &object.body, 0, content.len, record.generation).map(Some);
                }
            }
        }
        Ok(None)
    }

    /// The record that an object begins with; none: it is damaged.
    fn record(&self, body: &Payload) -> Result<Option<Record>> {
        let first = body.read(0, body.len().min(HEAD) as u32)?;
        if Record::is_later(&first) {
            return Err(Error::unsupported(
                "the manifest was written by a later version of kv-store-wasm: use that one",
            ));
        }
        Ok(Record::parse(&first))
    }

    /// Change what a name has, by one change of a given id: `bytes` follow the record.
    fn change(&self, name: &str, change: Id, state: State, bytes: Vec<Part<'static>>) -> Result<()> {
        let key = key::record(self.bucket.prefix(), name);
        let mut seen = match self.conditions.writes {
            true => self.remembered.borrow_mut().get(&key),
            // No condition tells that it is another one by now, and of two clocks one is behind.
            false => self.look(&key)?,
        };
        // A condition settles what was sent before: nothing need be known of it.
        changes::begin(&[0], &[]);
        if !self.conditions.writes {
            let record = made(change, state, seen.as_ref());
            return match self.put_record(&key, &record, bytes, None)? {
                Put::Done(tag) => {
                    self.changed(name, &key, seen, Seen { tag, record: Some(record) });
                    Ok(())
                }
                Put::Refused => Err(Error::other("the server refused a put for a condition that it did not have")),
            };
        }
        let (mut knows, mut lost) = (seen.is_some() || record_len(&state) < LOOK_FIRST_BYTES, None::<Error>);
        for attempt in 0..TRIES {
            if !knows {
                seen = self.look(&key).map_err(|error| unknown(&error, lost.as_ref()))?;
                self.remembered.borrow_mut().set(&key, seen.clone());
                if seen.as_ref().and_then(|seen| seen.record).is_some_and(|record| record.change == change) {
                    return Ok(());
                }
                // To wait for the same server again would take longer than a call may.
                if let Some(error) = lost.take_if(|error| error.has_run_out()) {
                    return Err(error);
                }
            }
            let pause = if attempt > 1 { PAUSE / 2 + system::random() % (PAUSE * u64::from(attempt)) } else { 0 };
            if pause > 0 && system::sleep(pause).is_err() {
                break;
            }
            let record = made(change, state, seen.as_ref());
            let condition = match &seen {
                Some(seen) => ("if-match", seen.tag.clone()),
                None => ("if-none-match", "*".to_owned()),
            };
            match self.put_record(&key, &record, bytes.clone(), Some(condition)) {
                Ok(Put::Done(tag)) => {
                    self.changed(name, &key, seen, Seen { tag, record: Some(record) });
                    return Ok(());
                }
                Ok(Put::Refused) => {}
                Err(error)
                    if matches!(
                        error.kind,
                        ErrorKind::Unavailable | ErrorKind::Busy | ErrorKind::Corrupt | ErrorKind::Other
                    ) =>
                {
                    lost = Some(error);
                }
                Err(error) => return Err(error),
            }
            knows = false;
        }
        Err(lost.unwrap_or_else(|| {
            Error::unavailable("others change the manifest all the time: whether it was changed is unknown")
        }))
    }

    fn put_record(
        &self,
        key: &str,
        record: &Record,
        bytes: Vec<Part<'static>>,
        condition: Option<(&'static str, String)>,
    ) -> Result<Put> {
        let mut body = vec![Part::Bytes(record.bytes())];
        body.extend(bytes);
        let sum = checksum(&body)?;
        let call =
            self.put_headers().into_iter().fold(Call::new("PUT", key), |call, (name, value)| call.header(name, value));
        let call = condition.into_iter().fold(call, |call, (name, value)| call.header(name, value));
        let call = self.bucket.with_body(call.header("x-amz-checksum-crc32c", sum.clone()), body)?;
        let answer = self.bucket.ask(call)?;
        match answer.status {
            200..300 => put_tag(&answer, &sum).map(Put::Done),
            // 404: nothing is there that could match.
            404 | 412 => Ok(Put::Refused),
            status => Err(Error::other(format!("the server answered a put with status {status}"))),
        }
    }

    /// The end of a change that was carried out.
    fn changed(&self, name: &str, key: &str, before: Option<Seen>, now: Seen) {
        let kept = now.long();
        self.remembered.borrow_mut().set(key, Some(now));
        self.forget_long(name, before.as_ref().filter(|before| before.long() != kept));
    }

    /// Remove the bytes of a long manifest whose record is there no more. What stays is found by an eviction.
    fn forget_long(&self, name: &str, seen: Option<&Seen>) {
        if let Some(id) = seen.and_then(Seen::long) {
            let _ = remove(&self.bucket, &[key::long(self.bucket.prefix(), name, &id)]);
        }
    }

    /// What is under the key of a record.
    pub fn look(&self, key: &str) -> Result<Option<Seen>> {
        let answer = self.bucket.ask(Call::new("GET", key).header("range", range(0, HEAD)).max_body(WHOLE_BYTES))?;
        match answer.status {
            200 | 206 => {}
            // It is empty, which no record is, and is put over whatever it is.
            416 => return self.look_at_empty(key),
            404 => return Ok(None),
            status => return Err(Error::other(format!("the server answered GET with status {status}"))),
        }
        answer.is_plain()?;
        let tag = tag_of(&answer)?;
        let begins = answer.span().is_some_and(|span| span.begin == 0 && span.len == answer.body.len());
        let record = match answer.status {
            206 if !begins => {
                return Err(Error::corrupt("the server answered another part of an object than was asked for"));
            }
            _ => self.record(&answer.body)?,
        };
        Ok(Some(Seen { tag, record }))
    }

    fn look_at_empty(&self, key: &str) -> Result<Option<Seen>> {
        let found = described(&self.bucket.ask(head(key))?)?;
        Ok(found.map(|found| Seen { tag: found.tag, record: None }))
    }

    fn delete(&self, key: &str) -> Result<()> {
        match self.bucket.ask(Call::new("DELETE", key))?.status {
            200..300 | 404 => Ok(()),
            status => Err(Error::other(format!("the server answered DELETE with status {status}"))),
        }
    }

    /// Which change the record of a name is of, where its bytes lie elsewhere.
    pub fn long_id(&self, name: &str) -> Result<Option<Id>> {
        Ok(self.look(&key::record(self.bucket.prefix(), name))?.and_then(|seen| seen.long()))
    }

    /// The call that puts a tombstone over the record with a given ETag.
    pub fn tombstone_call(&self, key: &str, tag: String) -> Result<Call<'static>> {
        let body = vec![Part::Bytes(made(id(), State::Tombstone, None).bytes())];
        self.bucket.with_checked_body(Call::new("PUT", key).header("if-match", tag), body)
    }
}

/// The record of a request, with a nonce of its own.
fn made(change: Id, state: State, seen: Option<&Seen>) -> Record {
    let generation = Generation::after(seen.and_then(Seen::generation), system::now(), system::random());
    Record { state, nonce: id(), change, generation }
}

fn record_len(state: &State) -> u64 {
    match state {
        State::Here(content) => content.len,
        // It has come so far in parts.
        State::Elsewhere(_) => LOOK_FIRST_BYTES,
        State::Tombstone => 0,
    }
}

/// The bytes of a manifest out of its object. The place of a generation, with which those of the host's envelope end, is filled here: which
/// generation it is depends on what was there before, and that may show after the bytes were sent.
fn with_generation(name: &str, object: &Payload, offset: u64, len: u64, generation: Generation) -> Result<Payload> {
    let range = |len| Part::Range(Range { payload: object, offset, len });
    let place = Id::default();
    let kept = len.saturating_sub(place.len() as u64);
    // Only the layout that has envelopes ends in one. The bytes of others are the consumer's.
    let has_place = key::place(name) == Place::Record && len >= place.len() as u64;
    if has_place && object.read(offset + kept, place.len() as u32)? == place {
        return Payload::from_parts(&[range(kept), Part::Bytes(generation.bytes().to_vec())]);
    }
    Payload::from_parts(&[range(len)])
}

fn damaged(what: &str) -> Error {
    Error::corrupt(format!("{what} is damaged, so the manifest cannot be read; the next save of it replaces it"))
}

/// Where it cannot be looked at what a change came to.
fn unknown(error: &Error, lost: Option<&Error>) -> Error {
    let message = match lost {
        Some(lost) => format!("whether the manifest was changed is unknown: {}; then: {}", lost.message, error.message),
        None => error.message.clone(),
    };
    Error { kind: error.kind, message, code: error.code.clone() }
}
