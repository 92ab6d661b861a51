//! Objects as they are fetched and asked about. **No answer is believed on its word**: what a response says of its bytes must agree with
//! the bytes, with what was asked for, and with what was noted when the object was put.
//!
//! An object is put with its length beside it ([`LENGTH`]) and with its CRC-32C, and both are asked for again. A response that disagrees
//! with itself is `corrupt`: neither the bytes nor that there are none.

use std::cell::Cell;

use kv_store_sdk::payloads::Part;
use kv_store_sdk::{Error, ErrorKind, Payload, Result};

use crate::answer::Answer;
use crate::bucket::{Bucket, Call, checksum};
use crate::described::{CHECKSUM_MODE, LENGTH, described, head, is_noted, tag_of};
use crate::large::{self, WHOLE_BYTES};

/// What the host takes for one value.
const MAX_VALUE_BYTES: u64 = 1 << 30;

/// An object with its bytes.
pub struct Object {
    pub body: Payload,
    pub tag: String,
}

/// The objects of a bucket.
pub struct Objects<'a> {
    pub bucket: &'a Bucket,
    /// Whether the last object was too long for one request: then the next one is asked about first.
    pub expects_large: &'a Cell<bool>,
}

impl Objects<'_> {
    /// Fetch objects. `items`: they answer the items of the running call, in order.
    pub fn fetch(&self, keys: &[String], items: bool) -> Vec<Result<Option<Object>>> {
        if self.expects_large.get() {
            return keys.iter().map(|key| self.after_a_look(key, None)).collect();
        }
        let call = |(item, key): (u32, &String)| {
            let (name, value) = CHECKSUM_MODE;
            let call = Call::new("GET", key).header(name, value).max_body(WHOLE_BYTES);
            if items { call.item(item) } else { call }
        };
        let answers = self.bucket.ask_all((0..).zip(keys).map(call).collect());
        let fetched = |(key, answer): (&String, Result<Answer>)| match answer {
            // It is too long for one request, or the host has no room now.
            Err(error) if error.kind == ErrorKind::Exhausted => self.after_a_look(key, Some(error)),
            answer => whole(answer?),
        };
        keys.iter().zip(answers).map(fetched).collect()
    }

    /// Fetch one object.
    pub fn get(&self, key: &str) -> Result<Option<Object>> {
        self.fetch(&[key.to_owned()], false).pop().unwrap_or_else(|| Err(Error::other("no request was made")))
    }

    /// Fetch an object whose length is not known yet: in parts if it is long. `refused`: why it did not come at once.
    fn after_a_look(&self, key: &str, refused: Option<Error>) -> Result<Option<Object>> {
        let Some(found) = described(&self.bucket.ask(head(key))?)? else { return Ok(None) };
        self.expects_large.set(found.len > WHOLE_BYTES);
        if found.len > MAX_VALUE_BYTES || found.is_whole == Some(false) {
            return Err(Error::corrupt(format!("the object has {} bytes, and was not put with so many", found.len)));
        }
        match refused {
            _ if found.len > WHOLE_BYTES => {
                let body = large::get(self.bucket, key, &found)?;
                Ok(Some(Object { body, tag: found.tag }))
            }
            Some(refused) => Err(refused),
            None => self.get(key),
        }
    }
}

/// All of an object that was asked for as a whole; none: there is no such object.
fn whole(answer: Answer) -> Result<Option<Object>> {
    match answer.status {
        200 => {}
        404 => return Ok(None),
        status => {
            return Err(Error::corrupt(format!("the server answered GET of a whole object with status {status}")));
        }
    }
    answer.is_plain()?;
    if answer.header("content-range").is_some() {
        return Err(Error::corrupt("the server answered a part of an object as all of it"));
    }
    if is_noted(&answer, answer.body.len()) == Some(false) {
        return Err(Error::corrupt(format!(
            "the server answered {} bytes of an object that was put with {}",
            answer.body.len(),
            answer.header(LENGTH).unwrap_or_default()
        )));
    }
    let tag = tag_of(&answer)?;
    // That of an object that was put in parts is a checksum of checksums, and not always said to be one.
    let in_parts = large::is_of_parts(&tag);
    if let Some(sum) = answer.header("x-amz-checksum-crc32c").filter(|sum| !in_parts && !sum.contains('-'))
        && sum != checksum(&[Part::Payload(&answer.body)])?
    {
        return Err(Error::corrupt("the bytes are not those of the checksum with which the object was put"));
    }
    Ok(Some(Object { body: answer.body, tag }))
}
