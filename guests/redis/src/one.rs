//! One server: each batch is one pipeline.
//!
//! What is sent here and given up may still be done, so what must not be done late is sent by [`crate::change`].

use std::rc::Rc;

use kv_store_sdk::payloads::Part;
use kv_store_sdk::{DeleteOutcome, Error, ErrorKind, GetOutcome, Payload, Presence, PutOutcome, Result};

use crate::change::{DELETED, Onward};
use crate::resp::{self, Reply};
use crate::server::{Login, Session};
use crate::{Strings, Value, temporary};

pub struct One {
    login: Rc<Login>,
    authority: String,
}

impl One {
    pub fn new(login: Rc<Login>, authority: String) -> Self {
        One { login, authority }
    }

    fn with_session<T>(&self, talk: impl Fn(&Session) -> Result<T>) -> Result<T> {
        self.login.with_session(&self.authority, talk)
    }
}

impl Strings for One {
    fn exist(&self, keys: &[Vec<u8>]) -> Result<Vec<Presence>> {
        self.with_session(|session| {
            // Of several keys EXISTS only counts those that are there; mostly it is all of them, or none.
            let arguments: Vec<&[u8]> = [&b"EXISTS"[..]].into_iter().chain(keys.iter().map(Vec::as_slice)).collect();
            session.send(&[Part::Bytes(resp::command(&arguments))])?;
            match session.reply()? {
                Reply::Integer(0) => return Ok(vec![Presence::Absent; keys.len()]),
                Reply::Integer(all) if all == keys.len() as i64 => {
                    return Ok(vec![Presence::Present(None); keys.len()]);
                }
                Reply::Integer(_) => {}
                other => return Err(session.unexpected(&other, "EXISTS")),
            }
            session.send(&[resp::for_each(keys, &[b"EXISTS"], &[])])?;
            let replies = session.replies(keys.len())?;
            replies.into_iter().map(|reply| session.presence(reply?)).collect()
        })
    }

    fn set(&self, values: &[Value], only_new: bool) -> Result<Vec<PutOutcome>> {
        self.with_session(|session| {
            session.send(&values.iter().flat_map(|value| resp::set(value, only_new)).collect::<Vec<_>>())?;
            let replies = session.replies(values.len())?;
            Ok(replies.into_iter().map(|reply| session.put_outcome(reply)).collect())
        })
    }

    fn get(&self, keys: &[Vec<u8>]) -> Result<Vec<GetOutcome>> {
        self.with_session(|session| {
            if let [key] = keys {
                session.send(&[resp::one_key("GET", key)])?;
                return session.whole(|| read_values(session, 1));
            }
            let arguments: Vec<&[u8]> = [&b"MGET"[..]].into_iter().chain(keys.iter().map(Vec::as_slice)).collect();
            session.send(&[Part::Bytes(resp::command(&arguments))])?;
            let count = session.array()?;
            // From here to the last value any failure leaves replies unread.
            session.whole(|| {
                if count != keys.len() {
                    return Err(Error::corrupt(format!("MGET of {} keys answered {count} values", keys.len())));
                }
                read_values(session, count)
            })
        })
    }

    fn delete(&self, keys: &[Vec<u8>]) -> Result<Vec<DeleteOutcome>> {
        self.with_session(|session| {
            session.send(&[resp::for_each(keys, &[b"DEL"], &[])])?;
            let replies = session.replies(keys.len())?;
            Ok(replies.into_iter().map(|reply| session.delete_outcome(reply)).collect())
        })
    }

    fn expire(&self, keys: &[Vec<u8>], seconds: u64) -> Result<Vec<bool>> {
        self.with_session(|session| {
            session.send(&[resp::for_each(keys, &[b"EXPIRE"], &[itoa::Buffer::new().format(seconds).as_bytes()])])?;
            let replies = session.replies(keys.len())?;
            replies.into_iter().map(|reply| session.renewed(reply?)).collect()
        })
    }

    fn servers(&self) -> Vec<String> {
        vec![self.authority.clone()]
    }

    fn serves(&self, _: &[u8]) -> Option<String> {
        Some(self.authority.clone())
    }

    fn redirected(&self, _: &str, _: &str) -> Option<Result<Onward>> {
        None
    }

    fn learn(&self, _: &[String]) -> bool {
        false
    }

    fn beside(&self, prefix: &str, _: &[u8]) -> Option<Vec<u8>> {
        Some(temporary(prefix))
    }

    fn is_deleted(&self, key: Vec<u8>) -> Result<bool> {
        self.with_session(|session| {
            session.send(&[resp::first_of(&key)])?;
            Ok(session.small_bulk()?.is_some_and(|first| first == DELETED.as_bytes()))
        })
    }

    fn get_one(&self, key: Vec<u8>) -> Result<Option<Payload>> {
        self.with_session(|session| {
            session.send(&[resp::one_key("GET", &key)])?;
            session.bulk_len()?.map(|len| session.whole(|| session.bulk(len, None))).transpose()
        })
    }
}

/// The values of an array. Where the host has no room for one, what was read so far is the answer; it asks again for the
/// rest, which is read here and forgotten.
fn read_values(session: &Session, count: usize) -> Result<Vec<GetOutcome>> {
    let mut outcomes = Vec::with_capacity(count);
    let mut full = false;
    for item in 0..count {
        match session.bulk_len()? {
            None if full => {}
            None => outcomes.push(GetOutcome::Missing),
            Some(len) if full => session.skip_bulk(len)?,
            Some(len) => match session.bulk(len, Some(item as u32)) {
                Ok(data) => outcomes.push(GetOutcome::Found(data)),
                Err(error) if error.kind == ErrorKind::Exhausted => {
                    session.skip_bulk(len)?;
                    full = true;
                    if outcomes.is_empty() {
                        outcomes.push(GetOutcome::Failed(error));
                    }
                }
                Err(error) => return Err(error),
            },
        }
    }
    Ok(outcomes)
}
