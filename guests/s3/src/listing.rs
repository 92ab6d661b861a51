//! The XML of listings: of objects (ListObjectsV2), and of multipart uploads that are under way or were left (ListMultipartUploads).

use kv_store_sdk::{Error, Result};
use roxmltree::{Document, Node};

use crate::time;

/// An object in a listing.
#[derive(Debug, PartialEq, Eq)]
pub struct ListedObject {
    pub key: String,
    /// Bytes.
    pub size: u64,
    /// When it was last put: nanoseconds since 1970. None: the server says it in a way that is not known.
    pub modified: Option<u64>,
    pub tag: Option<String>,
}

/// A part of a listing.
#[derive(Debug, PartialEq, Eq)]
pub struct ListingPart {
    pub objects: Vec<ListedObject>,
    /// The continuation token, unless this is the last part.
    pub next: Option<String>,
}

/// A multipart upload that was neither completed nor aborted.
#[derive(Debug, PartialEq, Eq)]
pub struct Upload {
    pub key: String,
    pub id: String,
    /// Nanoseconds since 1970.
    pub begun: Option<u64>,
}

/// A part of a listing of uploads.
#[derive(Debug, PartialEq, Eq)]
pub struct Uploads {
    pub uploads: Vec<Upload>,
    /// Key and upload after which the next part begins, unless this is the last one.
    pub next: Option<(String, String)>,
}

pub fn objects(text: &str) -> Result<ListingPart> {
    let document = parse(text, "ListBucketResult")?;
    let root = document.root_element();
    let object = |node: Node| {
        Some(ListedObject {
            key: text_of(node, "Key")?,
            size: text_of(node, "Size")?.parse().ok()?,
            modified: text_of(node, "LastModified").and_then(|time| time::of_xml(&time)),
            tag: text_of(node, "ETag").filter(|tag| !tag.is_empty()).map(quoted),
        })
    };
    let objects: Option<Vec<ListedObject>> = children(root, "Contents").map(object).collect();
    let objects = objects.ok_or_else(|| Error::corrupt("a listing has an object without key or size"))?;
    let next = match is_truncated(root) {
        true => Some(text_of(root, "NextContinuationToken").filter(|token| !token.is_empty()).ok_or_else(|| {
            Error::unsupported("a listing goes on and says not where: does the server know ListObjectsV2?")
        })?),
        false => None,
    };
    Ok(ListingPart { objects, next })
}

pub fn uploads(text: &str) -> Result<Uploads> {
    let document = parse(text, "ListMultipartUploadsResult")?;
    let root = document.root_element();
    let upload = |node: Node| {
        Some(Upload {
            key: text_of(node, "Key")?,
            id: text_of(node, "UploadId")?,
            begun: text_of(node, "Initiated").and_then(|time| time::of_xml(&time)),
        })
    };
    let next = text_of(root, "NextKeyMarker").zip(text_of(root, "NextUploadIdMarker")).filter(|_| is_truncated(root));
    Ok(Uploads { uploads: children(root, "Upload").filter_map(upload).collect(), next })
}

fn parse<'a>(text: &'a str, root: &str) -> Result<Document<'a>> {
    let document = Document::parse(text).ok().filter(|document| document.root_element().tag_name().name() == root);
    document.ok_or_else(|| Error::corrupt(format!("a listing is no {root}")))
}

fn children<'a>(node: Node<'a, 'a>, name: &'static str) -> impl Iterator<Item = Node<'a, 'a>> {
    node.children().filter(move |child| child.tag_name().name() == name)
}

fn text_of(node: Node, name: &str) -> Option<String> {
    let child = node.children().find(|child| child.tag_name().name() == name)?;
    Some(child.text().unwrap_or_default().to_owned())
}

/// An ETag as the header has it: some listings leave the quotes out.
fn quoted(tag: String) -> String {
    if tag.starts_with('"') { tag } else { format!("\"{tag}\"") }
}

fn is_truncated(root: Node) -> bool {
    text_of(root, "IsTruncated").as_deref() == Some("true")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_listed_part_by_part() {
        let text = "<?xml version=\"1.0\"?><ListBucketResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><Name>b</Name>\
                    <Prefix>c/</Prefix><IsTruncated>true</IsTruncated><NextContinuationToken>a+b=</NextContinuationToken>\
                    <Contents><Key>c/00</Key><LastModified>2013-05-24T00:00:00.000Z</LastModified><ETag>\"x\"</ETag>\
                    <Size>12</Size></Contents><Contents><Key>c/a&amp;b</Key><Size>0</Size></Contents></ListBucketResult>";
        let first = ListedObject {
            key: "c/00".into(),
            size: 12,
            modified: Some(1_369_353_600_000_000_000),
            tag: Some("\"x\"".into()),
        };
        let second = ListedObject { key: "c/a&b".into(), size: 0, modified: None, tag: None };
        let part = ListingPart { objects: vec![first, second], next: Some("a+b=".into()) };
        assert_eq!(objects(text).unwrap(), part);
        let last = objects("<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>").unwrap();
        assert_eq!(last, ListingPart { objects: vec![], next: None });
        for wrong in [
            "",
            "<Error/>",
            "<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>",
            "<ListBucketResult><Contents><Key>a</Key></Contents></ListBucketResult>",
            "<ListBucketResult><Contents><Key>a</Key><Size>-1</Size></Contents></ListBucketResult>",
        ] {
            assert!(objects(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn uploads_that_were_left_are_listed() {
        let text = "<ListMultipartUploadsResult><IsTruncated>true</IsTruncated><NextKeyMarker>k</NextKeyMarker>\
                    <NextUploadIdMarker>7</NextUploadIdMarker><Upload><Key>k</Key><UploadId>7</UploadId>\
                    <Initiated>2013-05-24T00:00:00.000Z</Initiated></Upload></ListMultipartUploadsResult>";
        let upload = Upload { key: "k".into(), id: "7".into(), begun: Some(1_369_353_600_000_000_000) };
        assert_eq!(uploads(text).unwrap(), Uploads { uploads: vec![upload], next: Some(("k".into(), "7".into())) });
        let last = text.replace(">true<", ">false<");
        assert_eq!(uploads(&last).unwrap().next, None);
        assert!(uploads("<ListBucketResult/>").is_err());
    }

    proptest::proptest! {
        #[test]
        fn no_text_is_too_strange(text in "\\PC{0,60}") {
            let _ = (objects(&text), uploads(&text));
        }
    }
}
