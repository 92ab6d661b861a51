//! One server: each batch is one pipeline.
//!
//! What is sent here and given up may still be done, so what must not be done late is sent by [`crate::change`].

use std::ops::Range;
use std::rc::Rc;

use kv_store_sdk::payloads::Part;
use kv_store_sdk::{DeleteOutcome, Error, ErrorKind, GetOutcome, Payload, Presence, PutOutcome, Result};

use crate::change::{DELETED, Onward};
use crate::resp::{self, Keys};
use crate::server::{Login, Session};
use crate::{NewValue, Strings, temporary};

/// Keys of one EXISTS. A longer one is answered in fewer lines, and more keys must be asked for one by one where some are there.
const GROUP: usize = 16;

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
    fn exist(&self, keys: &Keys) -> Result<Vec<Presence>> {
        self.with_session(|session| {
            // Of several keys EXISTS only counts those that are there: mostly all of them, none, or the first ones.
            let groups = || (0..keys.len()).step_by(GROUP).map(|first| first..keys.len().min(first + GROUP));
            let mut asked = Vec::with_capacity(keys.arguments(0..keys.len()).len() + groups().len() * 32);
            groups().for_each(|group| resp::push_of_keys(&mut asked, &[b"EXISTS"], keys, group));
            session.send(&[Part::Bytes(asked)])?;
            let counts = session.replies(groups().len())?.into_iter().map(|reply| session.count(reply?, "EXISTS"));
            let counts = counts.collect::<Result<Vec<_>>>()?;
            let known = |group: &Range<usize>, count: i64| match count {
                0 => Some(Presence::Absent),
                all if all == group.len() as i64 => Some(Presence::Present(None)),
                _ => None,
            };
            // Of the groups of which some are there each key.
            let unknown = groups().zip(&counts).filter(|(group, count)| known(group, **count).is_none());
            let unknown: Keys = unknown.flat_map(|(group, _)| keys.each(group)).collect();
            let mut each = Vec::new().into_iter();
            if unknown.len() > 0 {
                session.send(&[resp::for_each(&unknown, &[b"EXISTS"], &[])])?;
                each = session.replies(unknown.len())?.into_iter();
            }
            let mut there = Vec::with_capacity(keys.len());
            for (group, count) in groups().zip(counts) {
                match known(&group, count) {
                    Some(all) => there.resize(group.end, all),
                    None => {
                        for reply in each.by_ref().take(group.len()) {
                            there.push(session.presence(reply?)?);
                        }
                    }
                }
            }
            Ok(there)
        })
    }

    fn set(&self, values: &[NewValue], only_new: bool) -> Result<Vec<PutOutcome>> {
        self.with_session(|session| {
            session.send(&values.iter().flat_map(|value| resp::set(value, only_new)).collect::<Vec<_>>())?;
            let replies = session.replies(values.len())?;
            Ok(replies.into_iter().map(|reply| session.put_outcome(reply)).collect())
        })
    }

    fn get(&self, keys: &Keys) -> Result<Vec<GetOutcome>> {
        self.with_session(|session| {
            if keys.len() == 1 {
                session.send(&[resp::of_keys(&[b"GET"], keys)])?;
                return session.whole(|| read_values(session, 1));
            }
            session.send(&[resp::of_keys(&[b"MGET"], keys)])?;
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

    fn delete(&self, keys: &Keys) -> Result<Vec<DeleteOutcome>> {
        self.with_session(|session| {
            session.send(&[resp::for_each(keys, &[b"DEL"], &[])])?;
            let replies = session.replies(keys.len())?;
            Ok(replies.into_iter().map(|reply| session.delete_outcome(reply)).collect())
        })
    }

    fn expire(&self, keys: &Keys, seconds: u64) -> Result<Vec<bool>> {
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
