//! Listing, by regular expressions over the keys, the only listing that the master has. Each is a walk over all of its objects, and gives
//! those that match a lease, as a read does. Times of use are known to the master alone, and it evicts by itself.

use std::collections::BTreeMap;

use kv_store_sdk::{
    ChunkEntry, ChunkPage, Error, Evicted, Eviction, Maintenance, ManifestEntry, ManifestPage, Result, Totals, key,
};

use crate::Mooncake;
use crate::manifest::HEAD;
use crate::master::Replica;

/// Hex digits of the longest hash.
const MAX_DIGITS: usize = 128;

/// A place among the chunks: those whose hashes begin with these hex digits and come after the hash `after`, which was listed last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Place {
    digits: String,
    after: String,
}

impl Place {
    fn parse(text: Option<&str>) -> Result<Self> {
        let Some(text) = text else { return Ok(Place::default()) };
        let is_hex =
            |text: &str| text.len() <= MAX_DIGITS && text.bytes().all(|byte| b"0123456789abcdef".contains(&byte));
        let parts = text.split_once('+').filter(|(digits, after)| is_hex(digits) && is_hex(after));
        let (digits, after) = parts.ok_or_else(|| Error::invalid("no place in a listing of this backend"))?;
        Ok(Place { digits: digits.to_owned(), after: after.to_owned() })
    }

    fn text(&self) -> String {
        format!("{}+{}", self.digits, self.after)
    }

    /// What matches the hashes here. Zeros at the end were added by [`Place::narrow`]: a hash that ends before them has no other place.
    fn pattern(&self) -> String {
        let shorter = (1..=self.digits.len()).rev().filter_map(|len| {
            let (hash, zeros) = self.digits.split_at_checked(len)?;
            (!zeros.is_empty() && zeros.bytes().all(|digit| digit == b'0')).then(|| format!("|{hash}$"))
        });
        format!("({}{})", self.digits, shorter.collect::<String>())
    }

    /// A sixteenth of this place, the first one. None: no hash is so long.
    fn narrow(&self) -> Option<Self> {
        let digits = format!("{}0", self.digits);
        (digits.len() <= MAX_DIGITS).then(|| Place { digits, after: self.after.clone() })
    }

    /// What follows when all here is listed.
    fn next(&self) -> Option<Self> {
        let rest = self.digits.trim_end_matches('f');
        let (digits, last) = rest.split_at_checked(rest.len().checked_sub(1)?)?;
        let last = u32::from_str_radix(last, 16).ok()? + 1;
        Some(Place { digits: format!("{digits}{last:x}"), after: self.after.clone() })
    }
}

impl Maintenance for Mooncake {
    fn list_chunks(&mut self, after: Option<&str>, limit: u32) -> Result<ChunkPage> {
        let mut place = Place::parse(after)?;
        let begin = format!("{}/c/", self.namespace);
        let mut listed = loop {
            match self.store.master.list(&format!("^{}{}", literal(&begin), place.pattern()))? {
                Some(listed) => break listed,
                None => place = place.narrow().ok_or_else(|| Error::corrupt("the master lists no end of objects"))?,
            }
        };
        listed.sort_by(|one, other| one.0.cmp(&other.0));
        let mut entries = Vec::new();
        for (key, replicas) in &listed {
            let Some(digits) = key.strip_prefix(&begin).filter(|digits| *digits > place.after.as_str()) else {
                continue;
            };
            if entries.len() == limit as usize {
                return Ok(ChunkPage { entries, next: Some(place.text()) });
            }
            digits.clone_into(&mut place.after);
            if let Some(hash) = key::unhex(digits.as_bytes()).filter(|hash| (1..=64).contains(&hash.len())) {
                let size = size(replicas).and_then(|size| size.checked_sub(1));
                entries.push(ChunkEntry { hash, size, stored: None, used: None });
            }
        }
        Ok(ChunkPage { entries, next: place.next().map(|next| next.text()) })
    }

    fn list_manifests(&mut self, after: Option<&str>, limit: u32) -> Result<ManifestPage> {
        let begin = format!("{}/m/", self.namespace);
        let listed = self.store.master.list(&format!("^{}", literal(&begin)))?;
        let listed = listed.ok_or_else(|| {
            Error::exhausted("this namespace has more manifests than the master can list at once (some 40,000)")
        })?;
        let escaped = |key: &str| Some(key.strip_prefix(&begin)?.rsplit_once('/')?.0.to_owned());
        // A name may have several objects for a moment.
        let listed: BTreeMap<String, Vec<Replica>> =
            listed.into_iter().filter_map(|(key, replicas)| Some((escaped(&key)?, replicas))).collect();
        let mut entries = Vec::new();
        let mut last = after.unwrap_or_default();
        for (escaped, replicas) in listed.iter().filter(|(escaped, _)| Some(escaped.as_str()) > after) {
            if entries.len() == limit as usize {
                return Ok(ManifestPage { entries, next: Some(last.to_owned()) });
            }
            last = escaped;
            if let Some(name) = key::listed(escaped) {
                let size = size(replicas).and_then(|size| size.checked_sub(HEAD));
                entries.push(ManifestEntry { name, size, stored: None, used: None });
            }
        }
        Ok(ManifestPage { entries, next: None })
    }

    fn usage(&mut self) -> Result<Totals> {
        // The master counts the objects of all namespaces together, and those of other clients.
        Ok(Totals { bytes: None, chunks: None, manifests: None, capacity: None })
    }

    fn evict(&mut self, _what: Eviction) -> Result<Evicted> {
        Err(Error::unsupported(
            "Mooncake's master tells nobody when objects were put or used: it evicts by itself, when memory is 90% full \
             (--eviction_high_watermark_ratio)",
        ))
    }
}

fn size(replicas: &[Replica]) -> Option<u64> {
    replicas.first().map(|replica| replica.size)
}

/// A pattern that stands for this text, of which only `.` would be anything else.
fn literal(text: &str) -> String {
    text.replace('.', "[.]")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn places_go_through_all_hashes() {
        let place = |digits: &str| Place { digits: digits.into(), after: "07".into() };
        assert_eq!(place("").next(), None);
        assert_eq!(
            (place("0").next(), place("9").next(), place("af").next()),
            (Some(place("1")), Some(place("a")), Some(place("b")))
        );
        assert_eq!((place("ff").next(), place("f").next(), place("0ff").next()), (None, None, Some(place("1"))));
        assert_eq!(place("").narrow(), Some(place("0")));
        assert_eq!(place(&"0".repeat(MAX_DIGITS)).narrow(), None);
        assert_eq!(place("").pattern(), "()");
        assert_eq!(place("ab").pattern(), "(ab)");
        assert_eq!(place("ab00").pattern(), "(ab00|ab0$|ab$)");
        let later = Place { digits: "ab".into(), after: "ab07".into() };
        assert_eq!(Place::parse(Some(&later.text())).unwrap(), later);
        assert_eq!(Place::parse(None).unwrap(), Place::default());
        for wrong in ["", "x", "ab", "AB+", "+ab/", "ab+cd+", "[+"] {
            assert!(Place::parse(Some(wrong)).is_err(), "{wrong}");
        }
    }

    proptest! {
        /// Whatever the master has too much for, each hash has one place. Only hashes that continue each other with zeros have the same
        /// one, however narrow: more of these than the master lists are an error, and no listing that ends early.
        #[test]
        fn each_hash_is_listed_once(
            hashes in proptest::collection::btree_set("([0-9a-f]{2}){1,3}", 0..60), most in 1_usize..8,
        ) {
            let continues = |digits: &str, hash: &str| {
                digits.strip_prefix(hash).is_some_and(|zeros| zeros.bytes().all(|digit| digit == b'0'))
            };
            let together = |last: &String| hashes.iter().filter(|hash| continues(last, hash)).count();
            let inseparable = hashes.iter().map(together).max().unwrap_or(0);
            let (mut listed, mut place) = (Vec::new(), Some(Place::default()));
            while let Some(here) = place {
                let matching = |hash: &&String| hash.starts_with(&here.digits) || continues(&here.digits, hash);
                let found: Vec<String> = hashes.iter().filter(matching).cloned().collect();
                if found.len() > most {
                    place = here.narrow();
                    if place.is_none() {
                        prop_assert!(inseparable > most, "{found:?} could be told apart");
                        return Ok(());
                    }
                    continue;
                }
                listed.extend(found);
                place = here.next();
            }
            prop_assert!(inseparable <= most);
            prop_assert_eq!(listed, hashes.into_iter().collect::<Vec<_>>());
        }
    }
}
