//! Keys: what a row is found by.
//!
//! `SHA-256(fingerprint (32) || quant (1) || context hash (32) || tokens as u32 little-endian)`. Tokens come last, so the
//! keys of all prefixes of a prompt come out of one pass over it: see [`Identity::keys_at`].

use std::fmt;

use sha2::{Digest, Sha256};

use crate::fingerprint::Fingerprint;

/// The key of a row.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(pub [u8; 32]);

impl Key {
    /// Parse 64 hexadecimal digits in lower case, as in file names.
    pub fn from_hex(text: &str) -> Option<Key> {
        let mut key = [0; 32];
        hex::decode_to_slice(text, &mut key).ok()?;
        // A name in capitals is another file's.
        (!text.contains(|c: char| c.is_ascii_uppercase())).then_some(Key(key))
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Everything in a key but the tokens: whose state it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    /// Which model.
    pub fingerprint: Fingerprint,
    /// How the model is quantised, as a number that never changes its meaning: of the table in `docs/cache.md`, if other software
    /// of the format is to read the rows, which knows 0 to 29 and deletes rows of others; else any.
    pub quant: u8,
    /// A hash of the context's parameters that shape the state (cache types, window, RoPE scaling, ...).
    pub context_hash: [u8; 32],
}

impl Identity {
    /// The key of exactly these tokens.
    pub fn key(&self, tokens: &[u32]) -> Key {
        let mut hash = self.hasher();
        update(&mut hash, tokens);
        Key(hash.finalize().into())
    }

    /// The keys of the prefixes `tokens[..end]` for ascending ends, in one pass: at each end the state of the hash is
    /// cloned and finished, and the pass goes on. Ends past the tokens are left out.
    ///
    /// ```
    /// # use kv_cache::{Fingerprint, Identity};
    /// # let identity = Identity { fingerprint: Fingerprint::given([0; 32]), quant: 0, context_hash: [0; 32] };
    /// let tokens: Vec<u32> = (0..100).collect();
    /// let keys: Vec<_> = identity.keys_at(&tokens, [10, 100].into_iter()).collect();
    /// assert_eq!(keys, [(10, identity.key(&tokens[..10])), (100, identity.key(&tokens))]);
    /// ```
    pub fn keys_at<'a>(
        &self,
        tokens: &'a [u32],
        ends: impl Iterator<Item = usize> + 'a,
    ) -> impl Iterator<Item = (usize, Key)> + 'a {
        let (mut hash, mut done) = (self.hasher(), 0);
        ends.filter_map(move |end| {
            update(&mut hash, tokens.get(done..end)?);
            done = end;
            Some((end, Key(hash.clone().finalize().into())))
        })
    }

    fn hasher(&self) -> Sha256 {
        let mut hash = Sha256::new();
        hash.update(self.fingerprint.bytes);
        hash.update([self.quant]);
        hash.update(self.context_hash);
        hash
    }
}

fn update(hash: &mut Sha256, tokens: &[u32]) {
    if cfg!(target_endian = "little") {
        hash.update(bytemuck::cast_slice::<u32, u8>(tokens));
    } else {
        tokens.iter().for_each(|token| hash.update(token.to_le_bytes()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Computed with Python's hashlib from the text of the format, not with this code.
    #[test]
    fn golden_key() {
        let identity = Identity { fingerprint: Fingerprint::given([1; 32]), quant: 2, context_hash: [3; 32] };
        assert_eq!(identity.key(&[0, 1, 0x01020304]).to_string(), PYTHON_KEY);
    }
    const PYTHON_KEY: &str = "67ae2ff26cbfdc968e13d2b4e7db6f289db1e367cd199e18d760d6ebb8558655";

    #[test]
    fn hexadecimal_goes_both_ways_and_only_so() {
        let key = Key(std::array::from_fn(|i| i as u8 * 7));
        assert_eq!(Key::from_hex(&key.to_string()), Some(key));
        for wrong in ["", "00", &key.to_string().to_uppercase(), &key.to_string().replace('0', "g")] {
            assert_eq!(Key::from_hex(wrong), None, "{wrong}");
        }
        assert_eq!(Key::from_hex(&"é".repeat(32)), None);
    }
}
