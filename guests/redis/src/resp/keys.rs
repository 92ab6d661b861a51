//! The keys of a batch, one after another in one piece of memory, as arguments of a command: nothing is allocated for a key.

use std::ops::Range;

use kv_store_sdk::Hashes;

use super::{LINE_END, push_bulk};

#[derive(Default)]
pub struct Keys {
    bulks: Vec<u8>,
    /// Where each one ends.
    ends: Vec<usize>,
}

impl Keys {
    /// The keys that begin with the same parts and end in these hashes.
    pub fn ending_in(hashes: Hashes, [one, two]: [&[u8]; 2]) -> Self {
        let Some(first) = hashes.iter().next() else { return Keys::default() };
        let mut bulks = Vec::with_capacity(one.len() + two.len() + first.len() + 16);
        push_bulk(&mut bulks, &[one, two, first]);
        let (len, end) = (bulks.len(), bulks.len().saturating_sub(LINE_END.len()));
        let place = end.saturating_sub(first.len())..end;
        if hashes.len() > 1 {
            // Only the hashes differ, so one copy is left for each key: each is a call of the runtime, however short it is.
            bulks = bulks.repeat(hashes.len());
            for (bulk, hash) in bulks.chunks_exact_mut(len).zip(hashes) {
                if let Some(place) = bulk.get_mut(place.clone()) {
                    place.copy_from_slice(hash);
                }
            }
        }
        Keys { bulks, ends: (1..=hashes.len()).map(|keys| keys * len).collect() }
    }

    pub fn push(&mut self, key: &[u8]) {
        push_bulk(&mut self.bulks, &[key]);
        self.ends.push(self.bulks.len());
    }

    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Keys as arguments; fewer where there are not so many.
    pub fn arguments(&self, keys: Range<usize>) -> &[u8] {
        let end = |before: usize| match before.checked_sub(1) {
            None => 0,
            Some(last) => self.ends.get(last).copied().unwrap_or(self.bulks.len()),
        };
        self.bulks.get(end(keys.start)..end(keys.end)).unwrap_or_default()
    }

    /// The keys themselves.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        self.each(0..self.len())
    }

    /// Some of them.
    pub fn each(&self, keys: Range<usize>) -> impl Iterator<Item = &[u8]> {
        keys.map(|number| bare(self.arguments(number..number + 1)).unwrap_or_default())
    }
}

/// The bytes that an argument has.
fn bare(argument: &[u8]) -> Option<&[u8]> {
    let header = argument.iter().position(|byte| *byte == b'\n')?;
    argument.get(header + 1..argument.len().checked_sub(LINE_END.len())?)
}

impl<T: AsRef<[u8]>> FromIterator<T> for Keys {
    fn from_iter<I: IntoIterator<Item = T>>(keys: I) -> Self {
        let mut all = Keys::default();
        keys.into_iter().for_each(|key| all.push(key.as_ref()));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_hashes_are_those_that_are_pushed_one_by_one() {
        let bytes: Vec<u8> = (0..=255).collect();
        for width in [1, 8, 20, 64] {
            for count in [0, 1, 3] {
                let hashes = Hashes::new(width, &bytes[..width * count]);
                let (made, pushed) =
                    (Keys::ending_in(hashes, [b"kv:", b"c:"]), hashes.iter().map(|hash| [b"kv:c:", hash].concat()));
                let pushed: Keys = pushed.collect();
                assert_eq!((made.bulks, made.ends), (pushed.bulks, pushed.ends));
            }
        }
    }

    #[test]
    fn keys_are_arguments_and_themselves() {
        let given: [&[u8]; 4] = [b"a", b"", b"\r\n$1\r\n", &[b'x'; 100]];
        let keys: Keys = given.into_iter().collect();
        assert_eq!(keys.iter().collect::<Vec<_>>(), given);
        assert_eq!(keys.len(), 4);
        assert_eq!(keys.arguments(0..2), b"$1\r\na\r\n$0\r\n\r\n");
        assert_eq!(keys.arguments(2..3), b"$6\r\n\r\n$1\r\n\r\n");
        assert_eq!(keys.arguments(1..9), &keys.arguments(0..4)[7..]);
        assert_eq!((keys.arguments(4..5), Keys::default().arguments(0..1)), (&b""[..], &b""[..]));
    }
}
