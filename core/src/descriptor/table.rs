//! The descriptors of one open store, by numbers: a hash carries a number in place of 16 bytes.

use std::collections::HashMap;
use std::sync::OnceLock;

use kv_platform::sync::Mutex;

use super::DescriptorDigest;
use crate::error::{Error, ErrorKind};
use crate::limits::{DESCRIPTORS, DESCRIPTORS_OF_A_PART};

/// Which descriptor of a store is meant. The default: none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Described(u16);

impl Described {
    /// No descriptor: values are as before.
    pub const NOT: Described = Described(0);

    /// Whether one is meant.
    #[must_use]
    pub fn is_said(self) -> bool {
        self != Described::NOT
    }
}

/// Digests by their numbers, read without a lock. None is ever removed.
#[derive(Default)]
pub struct Descriptors {
    parts: [OnceLock<TablePart>; DESCRIPTORS / DESCRIPTORS_OF_A_PART],
    numbers: Mutex<HashMap<DescriptorDigest, u16>>,
}

type TablePart = Box<[OnceLock<DescriptorDigest>; DESCRIPTORS_OF_A_PART]>;

impl Descriptors {
    /// The number of a digest, a new one where it has none. `None` is [`Described::NOT`].
    ///
    /// # Errors
    /// `Exhausted`: the store has [`DESCRIPTORS`] already.
    pub fn number(&self, digest: Option<DescriptorDigest>) -> Result<Described, Error> {
        let Some(digest) = digest else { return Ok(Described::NOT) };
        let mut numbers = self.numbers.lock();
        if let Some(number) = numbers.get(&digest) {
            return Ok(Described(*number));
        }
        let at = numbers.len();
        let part = self
            .parts
            .get(at / DESCRIPTORS_OF_A_PART)
            .map(|part| part.get_or_init(|| Box::new([const { OnceLock::new() }; _])));
        let Some(place) = part.and_then(|part| part.get(at % DESCRIPTORS_OF_A_PART)) else {
            let message = format!(
                "the handles of this store have said {DESCRIPTORS} descriptors, and no more are remembered: say adapters that change with \
                 each request in the keys instead"
            );
            return Err(Error::new(ErrorKind::Exhausted, message));
        };
        let _ = place.set(digest);
        let number = at as u16 + 1;
        numbers.insert(digest, number);
        Ok(Described(number))
    }

    /// The digest of a number.
    #[must_use]
    pub fn digest(&self, described: Described) -> Option<DescriptorDigest> {
        let at = usize::from(described.0).checked_sub(1)?;
        let part = self.parts.get(at / DESCRIPTORS_OF_A_PART)?.get()?;
        part.get(at % DESCRIPTORS_OF_A_PART)?.get().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Descriptor, Field};
    use super::*;

    #[test]
    fn each_has_one_number_and_their_count_is_bounded() {
        let descriptors = Descriptors::default();
        let digest = |n: usize| Descriptor::default().with(Field::Rank, &n.to_string()).unwrap().digest();
        assert_eq!(descriptors.number(None).unwrap(), Described::NOT);
        assert_eq!(descriptors.digest(Described::NOT), None);
        for n in 0..DESCRIPTORS {
            let number = descriptors.number(digest(n)).unwrap();
            assert!(number.is_said() && descriptors.digest(number) == digest(n), "{n}");
            assert_eq!(descriptors.number(digest(n)).unwrap(), number);
        }
        assert_eq!(descriptors.number(digest(DESCRIPTORS)).unwrap_err().kind(), ErrorKind::Exhausted);
        assert_eq!(descriptors.number(digest(7)).unwrap(), Described(8));
    }
}
