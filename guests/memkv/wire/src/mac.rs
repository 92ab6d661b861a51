//! Keys and tags: HMAC-SHA-256 (RFC 2104), under a key of its own for each session and direction.

use hmac::{Hmac, Mac};
use sha2::Sha256;
use subtle::ConstantTimeEq;

use crate::{Nonce, TAG_BYTES};

/// A key of 32 bytes: the one that operators hand out, or one derived from it.
#[derive(Clone)]
pub struct Key([u8; 32]);

/// The last bytes of a frame.
#[derive(Clone, Copy, Debug)]
pub struct Tag(pub [u8; TAG_BYTES]);

/// The keys of one session: what the client sends is tagged under one, what the server sends under the other. So a frame
/// that is sent back to where it came from, or into another session, has a wrong tag.
#[derive(Clone)]
pub struct SessionKeys {
    pub client: Key,
    pub server: Key,
}

impl Key {
    pub fn new(bytes: [u8; 32]) -> Self {
        Key(bytes)
    }

    /// A key from 64 hex digits; what is wrong with the text otherwise, without the text.
    pub fn from_hex(text: &str) -> Result<Self, String> {
        let mut bytes = [0; 32];
        let text = text.trim();
        if text.len() != 64 {
            return Err(format!("needs 64 hex digits, got {}", text.len()));
        }
        for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks(2)) {
            let digits = std::str::from_utf8(pair).ok().filter(|pair| pair.bytes().all(|b| b.is_ascii_hexdigit()));
            let value = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
            *byte = value.ok_or("needs 64 hex digits, got other characters")?;
        }
        Ok(Key(bytes))
    }

    /// For a host that computes the HMAC itself.
    pub fn bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// The tag over parts, in order.
    pub fn tag(&self, parts: &[&[u8]]) -> Tag {
        let mut tagger = self.tagger();
        parts.iter().for_each(|part| tagger.update(part));
        tagger.finish()
    }

    /// A tag that is computed as the bytes come.
    pub fn tagger(&self) -> Tagger {
        // A key of any length will do; the error is for other constructions.
        #[allow(clippy::expect_used)]
        Tagger(Hmac::new_from_slice(&self.0).expect("HMAC takes keys of any length"))
    }

    /// The key of the client's first frame.
    pub fn connect(&self) -> Key {
        self.derive("connect", &[])
    }

    /// The key of the server's answer to it. It depends on what the client has just made up, so that the answer is no old
    /// one.
    pub fn connected(&self, client: &Nonce) -> Key {
        self.derive("connected", &[client])
    }

    /// The key of a refusal before there is a session.
    pub fn refusal(&self) -> Key {
        self.derive("refusal", &[])
    }

    /// A key for one purpose: none can be computed from another.
    fn derive(&self, purpose: &str, nonces: &[&Nonce]) -> Key {
        let mut tagger = self.tagger();
        tagger.update(b"memkv 1 ");
        tagger.update(purpose.as_bytes());
        tagger.update(&[0]);
        nonces.iter().for_each(|nonce| tagger.update(*nonce));
        Key(tagger.finish().0)
    }
}

impl SessionKeys {
    pub fn derive(key: &Key, client: &Nonce, server: &Nonce) -> Self {
        let nonces = [client, server];
        SessionKeys { client: key.derive("client", &nonces), server: key.derive("server", &nonces) }
    }
}

impl Tag {
    /// Compare without saying, by the time it takes, how much of it is right.
    pub fn matches(&self, other: &[u8]) -> bool {
        other.try_into().is_ok_and(|other| words(&self.0).ct_eq(&words(other)).into())
    }
}

/// A tag as it is compared: byte by byte would be a third of what a component does for a small answer.
fn words(tag: &[u8; TAG_BYTES]) -> [u64; TAG_BYTES / 8] {
    let mut words = [0; TAG_BYTES / 8];
    words.iter_mut().zip(tag.as_chunks().0).for_each(|(word, eight)| *word = u64::from_ne_bytes(*eight));
    words
}

/// A tag in the making.
pub struct Tagger(Hmac<Sha256>);

impl Tagger {
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    pub fn finish(self) -> Tag {
        Tag(self.0.finalize().into_bytes().into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_is_hmac_sha256() {
        // RFC 4231, test case 2, whose key HMAC pads with zeroes.
        let mut key = [0; 32];
        key[..4].copy_from_slice(b"Jefe");
        let tag = Key::new(key).tag(&[b"what do ya want ", b"for nothing?"]);
        let hex = hex::encode(tag.0);
        assert_eq!(hex, "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
    }

    #[test]
    fn each_purpose_session_and_direction_has_a_key_of_its_own() {
        let key = Key::new([1; 32]);
        let (one, other) =
            (SessionKeys::derive(&key, &[2; 32], &[3; 32]), SessionKeys::derive(&key, &[3; 32], &[2; 32]));
        let keys =
            [one.client, one.server, other.client, other.server, key.connect(), key.connected(&[2; 32]), key.refusal()];
        for (at, key) in keys.iter().enumerate() {
            assert!(keys[..at].iter().all(|former| former.bytes() != key.bytes()), "{at}");
        }
    }

    #[test]
    fn a_key_is_64_hex_digits() {
        let digits = "00ff".repeat(16);
        assert_eq!(Key::from_hex(&digits).map(|key| key.0[1]), Ok(0xff));
        assert!(Key::from_hex(&format!("{digits}\n")).is_ok());
        for (text, said) in [("", "got 0"), (&digits[1..], "63"), (&digits.replace('f', "g"), "64 hex digits")] {
            let error = Key::from_hex(text).map(|_| ()).unwrap_err();
            assert!(error.contains(said), "{error}");
        }
        assert!(Key::from_hex(&"+f".repeat(32)).is_err());
        assert!(Key::from_hex(&"é".repeat(32)).is_err());
    }
}
