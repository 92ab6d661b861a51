//! What a response says of an object: its length, its ETag, and whether it is as it was put.

use kv_store_sdk::{Error, Result};

use crate::answer::Answer;
use crate::bucket::Call;

/// The header that holds the length with which an object was put: one that was cut short, or never whole, is found out by it.
pub const LENGTH: &str = "x-amz-meta-kv-length";
/// Asks for the checksum that was sent with the object. Servers leave it out of the answer to a range.
pub const CHECKSUM_MODE: (&str, &str) = ("x-amz-checksum-mode", "ENABLED");

/// What HEAD tells of an object.
pub struct Described {
    pub len: u64,
    /// Whether it is as long as it was put; none: that was not noted.
    pub is_whole: Option<bool>,
    pub tag: String,
    /// The checksum with which it was put.
    pub sum: Option<String>,
}

pub fn head<'a>(key: impl Into<String>) -> Call<'a> {
    let (name, value) = CHECKSUM_MODE;
    Call::new("HEAD", key).header(name, value)
}

/// The answer to [`head`]; none: there is no such object.
pub fn described(answer: &Answer) -> Result<Option<Described>> {
    match answer.status {
        200 => {}
        404 => return Ok(None),
        status => return Err(Error::other(format!("the server answered HEAD with status {status}"))),
    }
    answer.is_plain()?;
    let len = answer.length().ok_or_else(|| Error::corrupt("an object of no length"))?;
    let sum = answer.header("x-amz-checksum-crc32c").map(str::to_owned);
    Ok(Some(Described { len, is_whole: is_noted(answer, len), tag: tag_of(answer)?, sum }))
}

/// Whether a length is the one with which the object was put. None: objects of former versions have none noted, and some servers keep none.
pub fn is_noted(answer: &Answer, len: u64) -> Option<bool> {
    answer.header(LENGTH).map(|noted| noted == len.to_string())
}

/// What a put answered that must have gone well: the ETag. `sum`: the checksum that was sent.
pub fn put_tag(answer: &Answer, sum: &str) -> Result<String> {
    if answer.header("x-amz-checksum-crc32c").is_some_and(|told| told != sum) {
        return Err(Error::corrupt("the server stored other bytes than were sent, by its checksum of them"));
    }
    tag_of(answer)
}

/// Every answer about an object that is there has an ETag, unless somebody else gives it.
pub fn tag_of(answer: &Answer) -> Result<String> {
    let tag = answer.etag().map(str::to_owned);
    tag.ok_or_else(|| Error::corrupt("an answer without an ETag: is this an S3 server, or a proxy before it?"))
}
