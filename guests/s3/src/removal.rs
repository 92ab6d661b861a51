//! Removing objects without a condition, many in one request. Of each the server must say that it is gone: some leave out what they could
//! not remove when they are asked to name failures only.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use kv_store_sdk::payloads::Part;
use kv_store_sdk::{Error, Result};
use md5::{Digest, Md5};

use crate::answer::deleted;
use crate::bucket::{Bucket, Call};
use crate::described::{described, head};

/// Keys of one multi-object delete.
pub const MAX_DELETED: usize = 1000;

/// Remove objects, [`MAX_DELETED`] at most. That there is none is success.
pub fn remove(bucket: &Bucket, keys: &[String]) -> Result<Vec<Result<()>>> {
    if keys.is_empty() {
        return Ok(Vec::new());
    }
    let mut list = "<Delete>".to_owned();
    for key in keys {
        let key = key.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
        list += &format!("<Object><Key>{key}</Key></Object>");
    }
    list += "</Delete>";
    // Servers want one or the other.
    let md5 = BASE64_STANDARD.encode(Md5::digest(list.as_bytes()));
    let call = Call::new("POST", "").query("delete", "").header("content-md5", md5);
    let answer = bucket.ask(bucket.with_checked_body(call, vec![Part::Bytes(list.into_bytes())])?)?;
    if answer.status != 200 {
        return Err(Error::other(format!("the server answered a multi-object delete with status {}", answer.status)));
    }
    let mut named = deleted(&answer.text()?)?;
    let mut outcomes: Vec<Option<Result<()>>> = keys.iter().map(|key| named.remove(key)).collect();
    let unnamed: Vec<&String> =
        keys.iter().zip(&outcomes).filter(|(_, outcome)| outcome.is_none()).map(|(key, _)| key).collect();
    let mut heads = bucket.ask_all(unnamed.into_iter().map(head).collect()).into_iter();
    for outcome in outcomes.iter_mut().filter(|outcome| outcome.is_none()) {
        *outcome = heads.next().map(|answer| match described(&answer?)? {
            None => Ok(()),
            Some(_) => Err(Error::other("the server did not remove an object, and named no reason")),
        });
    }
    let unsure = || Err(Error::other("the server does not say whether an object was removed"));
    Ok(outcomes.into_iter().map(|outcome| outcome.unwrap_or_else(unsure)).collect())
}
