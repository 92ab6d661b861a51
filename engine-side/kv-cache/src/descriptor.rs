//! What the states of a cache are, beside what their keys say: texts of operator or engine, of which each row has a digest.
//!
//! The same fields and the same digest as those of a store's values (`docs/envelope.md`, "Descriptors"). A row of another descriptor under the same key
//! is not served, and left alone. Who says nothing reads all rows, and everybody reads rows that have none.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::error::{Error, Result};

/// Bytes of a digest.
pub(crate) const DIGEST_BYTES: usize = 16;
/// The longest text of a field, in bytes.
const MAX_TEXT_BYTES: usize = 512;
const MAGIC: [u8; 8] = *b"KVDESC1\n";

/// The fields, in the order in which their bytes come.
const FIELDS: [&str; 14] = [
    "adapters",
    "architecture",
    "block_tokens",
    "dtype",
    "engine",
    "format",
    "heads",
    "layers",
    "layout",
    "model",
    "rank",
    "ranks",
    "rope",
    "scales",
];

/// What the states of a cache are: texts of 1 to 512 bytes by the names of fields, as `model` and `rope`. Empty: nothing is said.
///
/// ```
/// let config = kv_cache::Config::parse("[ram]\nbudget = 1\n[descriptor]\nmodel = 'sha256:9f86d081'\n").unwrap();
/// assert_eq!(config.descriptor.0["model"], "sha256:9f86d081");
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Descriptor(pub BTreeMap<String, String>);

impl Descriptor {
    pub(crate) fn check(&self) -> Result<()> {
        for (name, text) in &self.0 {
            if !FIELDS.contains(&name.as_str()) {
                let fields = FIELDS.join(", ");
                return Err(Error::invalid(format!("descriptor: there is no field {name:?}; there are {fields}")));
            }
            if text.is_empty() || text.len() > MAX_TEXT_BYTES || text.chars().any(char::is_control) {
                return Err(Error::invalid(format!(
                    "descriptor: {name} has 1 to {MAX_TEXT_BYTES} bytes without control characters: write \"none\" for what there is \
                     not, and a digest for what is longer"
                )));
            }
        }
        Ok(())
    }

    /// What a row has of it: the first 16 bytes of the SHA-256 of the magic, then name and text of each field that is said, each behind its length
    /// (u16), in the order of the names. `None`: nothing is said.
    pub(crate) fn digest(&self) -> Option<[u8; DIGEST_BYTES]> {
        if self.0.is_empty() {
            return None;
        }
        let mut hash = Sha256::new();
        hash.update(MAGIC);
        for part in self.0.iter().flat_map(|(name, text)| [name, text]) {
            hash.update((part.len() as u16).to_le_bytes());
            hash.update(part);
        }
        let whole: [u8; 32] = hash.finalize().into();
        whole.first_chunk().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(fields: &[(&str, &str)]) -> Descriptor {
        Descriptor(fields.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect())
    }

    /// The digests of stores (`golden_descriptor` of `core/src/descriptor`), computed with Python's hashlib.
    #[test]
    fn golden_descriptor_of_rows() {
        let all: Vec<(&str, &str)> = FIELDS.iter().map(|field| (*field, *field)).collect();
        for (descriptor, expected) in [
            (said(&[("model", "m")]), "bbfe34e58fcf3cd96fc78613bd715865"),
            (
                said(&[("dtype", "bfloat16"), ("rank", "0"), ("model", "sha256:9f86d081")]),
                "63aadbfe1191a61dec23eb4cdd3e712f",
            ),
            (said(&all), "02a65605be64a3c5361b0807648392ac"),
        ] {
            let digest = hex::encode(descriptor.digest().unwrap());
            assert_eq!(digest, expected, "{descriptor:?}");
            descriptor.check().unwrap();
        }
        assert_eq!(Descriptor::default().digest(), None);
        assert!(FIELDS.is_sorted());
    }

    #[test]
    fn fields_that_there_are_not_and_texts_that_are_none_are_refused() {
        for wrong in [("modle", "m"), ("model", ""), ("model", "a\nb"), ("model", &"x".repeat(513))] {
            assert!(said(&[wrong]).check().is_err(), "{wrong:?}");
        }
    }
}
