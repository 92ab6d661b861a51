//! Values that are too large for one request: put in parts, and fetched in ranges, several side by side.

use kv_store_sdk::payloads::{self, Part};
use kv_store_sdk::{Error, Payload, Result};

use crate::answer::{Answer, Span, element};
use crate::bucket::{Bucket, Call, checksum};
use crate::described::{Described, put_tag};

/// What is put or fetched by one request at most. Larger values go in parts.
pub const WHOLE_BYTES: u64 = 64 << 20;
/// The size of a part but for the last. S3 takes 10,000 parts of 5 MiB and more.
const PART_BYTES: u64 = 16 << 20;

/// The value of Range for some bytes.
pub fn range(offset: u64, len: u64) -> String {
    format!("bytes={offset}-{}", offset + len - 1)
}

/// The parts that a value of so many bytes is put in, as offset and length.
fn parts(len: u64) -> impl Iterator<Item = (u64, u64)> {
    (0..len.div_ceil(PART_BYTES)).map(move |part| (part * PART_BYTES, PART_BYTES.min(len - part * PART_BYTES)))
}

/// Put a value in parts. `begin` makes the call that the headers of the object go with; `part` has the bytes from an offset. It is
/// there when all parts are, or not at all: an upload that failed is aborted.
pub fn put(
    bucket: &Bucket,
    key: &str,
    len: u64,
    headers: &[(&'static str, String)],
    part: impl Fn(u64, u64) -> Part<'static>,
) -> Result<()> {
    let begin = Call::new("POST", key).query("uploads", "").header("x-amz-checksum-algorithm", "CRC32C");
    let begin = headers.iter().fold(begin, |call, (name, value)| call.header(name, value.clone()));
    let id = done(bucket.ask(begin)?)?.text().ok().and_then(|text| element(&text, "UploadId"));
    let id = id.ok_or_else(|| Error::corrupt("the answer to a new multipart upload names no upload"))?;
    let put = put_parts(bucket, key, &id, len, part);
    if put.is_err() {
        // What cannot be aborted now is told with the usage, and an eviction aborts it.
        let _ = bucket.ask(Call::new("DELETE", key).query("uploadId", id));
    }
    put
}

fn put_parts(bucket: &Bucket, key: &str, id: &str, len: u64, part: impl Fn(u64, u64) -> Part<'static>) -> Result<()> {
    let mut calls = Vec::new();
    let mut sums = Vec::new();
    for (number, (offset, len)) in (1..).zip(parts(len)) {
        let call = Call::new("PUT", key).query("partNumber", number.to_string()).query("uploadId", id);
        sums.push(checksum(&[part(offset, len)])?);
        calls.push(bucket.with_checked_body(call, vec![part(offset, len)])?);
    }
    let mut list = "<CompleteMultipartUpload>".to_owned();
    for ((number, answer), sum) in (1..).zip(bucket.ask_all(calls)).zip(sums) {
        let tag = put_tag(&done(answer?)?, &sum)?.replace('&', "&amp;").replace('<', "&lt;");
        list += &format!(
            "<Part><PartNumber>{number}</PartNumber><ETag>{tag}</ETag><ChecksumCRC32C>{sum}</ChecksumCRC32C></Part>"
        );
    }
    list += "</CompleteMultipartUpload>";
    let complete = Call::new("POST", key).query("uploadId", id);
    let complete = bucket.with_body(complete, vec![Part::Bytes(list.into_bytes())])?;
    // Long after it has begun to answer 200 a server may find that it failed.
    let answer = done(bucket.ask(complete)?)?;
    match answer.text()? {
        text if element(&text, "CompleteMultipartUploadResult").is_some() => Ok(()),
        text => Err(Error::unavailable(format!(
            "the multipart upload was not completed: {}",
            element(&text, "Code").unwrap_or_else(|| "no reason given".to_owned())
        ))),
    }
}

/// What is an answer of its own only where an object is asked for.
fn done(answer: Answer) -> Result<Answer> {
    match answer.status {
        200..300 => Ok(answer),
        status => Err(Error::unavailable(format!("the server answered a write with status {status}"))),
    }
}

/// Whether an ETag is that of an object that was put in parts.
pub fn is_of_parts(tag: &str) -> bool {
    tag.contains('-')
}

/// Fetch an object that is too long for one request. Each part must be one of the object that was described, or they would be put together
/// out of two: the condition asks for that, and the ETags of the answers show it.
pub fn get(bucket: &Bucket, key: &str, found: &Described) -> Result<Payload> {
    let tag = &found.tag;
    let ranges: Vec<(u64, u64)> = parts(found.len).collect();
    let call = |(offset, len): &(u64, u64)| {
        Call::new("GET", key).header("range", range(*offset, *len)).header("if-match", tag.clone()).max_body(*len)
    };
    let answers: Result<Vec<Answer>> = bucket.ask_all(ranges.iter().map(call).collect()).into_iter().collect();
    let answers = answers?;
    for (answer, (begin, len)) in answers.iter().zip(&ranges) {
        let (begin, len) = (*begin, *len);
        if matches!(answer.status, 404 | 412) || (answer.status == 206 && answer.etag() != Some(tag.as_str())) {
            return Err(Error::unavailable("the object was replaced while it was fetched"));
        }
        answer.is_plain()?;
        let wanted = Span { begin, len, total: found.len };
        if answer.status != 206 || answer.span() != Some(wanted) || answer.body.len() != len {
            return Err(Error::corrupt(format!(
                "the server answered status {} and {} bytes where bytes {begin} to {} of {} were asked for",
                answer.status,
                answer.body.len(),
                begin + len,
                found.len
            )));
        }
    }
    if let Some(sum) = found.sum.as_deref().and_then(|sum| sum.strip_suffix(&format!("-{}", ranges.len()))) {
        let mut sums = Vec::with_capacity(4 * answers.len());
        for answer in &answers {
            sums.extend(payloads::crc32c(&[Part::Payload(&answer.body)])?.to_be_bytes());
        }
        if sum != checksum(&[Part::Bytes(sums)])? {
            return Err(Error::corrupt("the bytes are not those of the checksums with which the object was put"));
        }
    }
    let bodies: Vec<Part> = answers.iter().map(|answer| Part::Payload(&answer.body)).collect();
    Payload::from_parts(&bodies)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_all_of_a_value() {
        for len in [1, PART_BYTES - 1, PART_BYTES, PART_BYTES + 1, 10 * PART_BYTES + 5] {
            let parts: Vec<_> = parts(len).collect();
            assert_eq!(parts.iter().map(|(_, len)| len).sum::<u64>(), len);
            assert!(parts.windows(2).all(|pair| pair[0].0 + pair[0].1 == pair[1].0 && pair[0].1 == PART_BYTES));
        }
        assert_eq!(range(16, 4), "bytes=16-19");
    }
}
