//! The XML of listings, and of what is sent as XML.

use roxmltree::Document;

use crate::bucket::{Bucket, Object, Upload};
use crate::dates;
use crate::message::{Request, Response, escaped};

pub const SPACE: &str = "http://s3.amazonaws.com/doc/2006-03-01/";
const MOST: usize = 1000;

/// The texts of all elements of a name.
pub fn texts<'a>(document: &'a Document, name: &'a str) -> impl Iterator<Item = String> + 'a {
    let named = document.descendants().filter(move |node| node.tag_name().name() == name);
    named.map(|node| node.text().unwrap_or_default().to_owned())
}

/// ListObjectsV2.
pub fn objects(bucket: &Bucket, request: &Request) -> Response {
    let asked = |name: &str| request.query.get(name).map(String::as_str);
    let (prefix, after) = (asked("prefix").unwrap_or_default(), asked("continuation-token"));
    let most = asked("max-keys").and_then(|most| most.parse().ok()).unwrap_or(MOST).min(MOST);
    let mut found = bucket
        .objects
        .iter()
        .filter(|(key, _)| key.starts_with(prefix) && after.is_none_or(|after| key.as_str() > after));
    let page: Vec<(&String, &Object)> = found.by_ref().take(most).collect();
    let is_truncated = found.next().is_some();
    let next = page
        .last()
        .filter(|_| is_truncated)
        .map_or(String::new(), |(key, _)| format!("<NextContinuationToken>{}</NextContinuationToken>", escaped(key)));
    let contents: String = page
        .iter()
        .map(|(key, object)| {
            format!(
                "<Contents><Key>{}</Key><LastModified>{}</LastModified><ETag>{}</ETag><Size>{}</Size><StorageClass>STANDARD</StorageClass></Contents>",
                escaped(key),
                dates::xml(object.put),
                escaped(&object.tag),
                object.bytes.len()
            )
        })
        .collect();
    let (name, count, prefix) = (bucket.name, page.len(), escaped(prefix));
    Response::xml(
        200,
        &format!(
            "<ListBucketResult xmlns=\"{SPACE}\"><Name>{name}</Name><Prefix>{prefix}</Prefix><KeyCount>{count}</KeyCount>\
             <MaxKeys>{most}</MaxKeys><IsTruncated>{is_truncated}</IsTruncated>{next}{contents}</ListBucketResult>"
        ),
    )
}

/// ListMultipartUploads, all at once.
pub fn uploads(bucket: &Bucket, request: &Request) -> Response {
    let prefix = request.query.get("prefix").map(String::as_str).unwrap_or_default();
    let found = bucket.uploads.iter().filter(|(_, upload)| upload.key.starts_with(prefix));
    let uploads: String = found
        .map(|(id, Upload { key, begun, .. })| {
            format!(
                "<Upload><Key>{}</Key><UploadId>{}</UploadId><Initiated>{}</Initiated></Upload>",
                escaped(key),
                escaped(id),
                dates::xml(*begun)
            )
        })
        .collect();
    Response::xml(
        200,
        &format!(
            "<ListMultipartUploadsResult xmlns=\"{SPACE}\"><Bucket>{}</Bucket><IsTruncated>false</IsTruncated>{uploads}</ListMultipartUploadsResult>",
            bucket.name
        ),
    )
}
