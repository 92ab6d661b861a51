//! Names and hashes as keys that any storage system takes.
//!
//! A manifest's name is any UTF-8 of up to 4096 bytes; a file system or a server wants something tamer. [`escape`] maps
//! every name to a key of at most [`MAX_KEY_BYTES`] bytes of `a-z 0-9 _ - . %`, so that two names never meet, also where
//! the storage system ignores case, and no key is `.`, `..` or hidden.

use sha2::{Digest, Sha256};

/// The longest key that [`escape`] makes, in bytes.
pub const MAX_KEY_BYTES: usize = 200;

/// Stands between the shortened key and the digest. An escape is `%` and two hex digits, so no other key holds this.
const DIGEST_MARK: &str = "%-";
const DIGEST_BYTES: usize = 64;

/// The key for a name: `a-z 0-9 _ -`, and `.` except at the start, stand for themselves, and every other byte is `%` and
/// two lower-case hex digits. A key that would be longer than [`MAX_KEY_BYTES`] is cut, and `%-` and the SHA-256 of the
/// name in hex follow.
///
/// ```
/// use kv_store_sdk::key::escape;
/// assert_eq!(escape("slot-7.bin"), "slot-7.bin");
/// assert_eq!(escape("../Etc"), "%2e.%2f%45tc");
/// assert!(escape(&"x".repeat(1000)).len() <= 200);
/// ```
pub fn escape(name: &str) -> String {
    let mut key = String::with_capacity(name.len());
    // Where the key may be cut without splitting an escape.
    let mut cut = 0;
    for (index, byte) in name.bytes().enumerate() {
        match byte {
            b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-' => key.push(byte.into()),
            b'.' if index > 0 => key.push('.'),
            _ => {
                key.push('%');
                push_hex(&mut key, byte);
            }
        }
        if key.len() <= MAX_KEY_BYTES - DIGEST_MARK.len() - DIGEST_BYTES {
            cut = key.len();
        }
    }
    if key.len() > MAX_KEY_BYTES {
        key.truncate(cut);
        key.push_str(DIGEST_MARK);
        key.push_str(&hex(&Sha256::digest(name.as_bytes())));
    }
    key
}

/// Bytes as lower-case hex digits.
pub fn hex(bytes: &[u8]) -> String {
    let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    digits.map(|digit| char::from(if digit < 10 { b'0' + digit } else { b'a' - 10 + digit })).collect()
}

fn push_hex(text: &mut String, byte: u8) {
    for digit in [byte >> 4, byte & 15] {
        text.push(char::from_digit(digit.into(), 16).unwrap_or('0'));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The inverse of `escape` for keys that were not cut.
    fn unescape(key: &str) -> String {
        let (mut bytes, mut rest) = (Vec::new(), key.as_bytes());
        while let Some((first, tail)) = rest.split_first() {
            rest = tail;
            bytes.push(if *first == b'%' {
                let digits = std::str::from_utf8(&rest[..2]).unwrap();
                rest = &rest[2..];
                u8::from_str_radix(digits, 16).unwrap()
            } else {
                *first
            });
        }
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn a_long_name_keeps_its_start_and_ends_in_its_digest() {
        let (a, b) = (escape(&("p/".repeat(100) + "a")), escape(&("p/".repeat(100) + "b")));
        assert!(a.starts_with("p%2fp%2f") && a.contains("%-") && a.len() <= MAX_KEY_BYTES);
        assert_ne!(a, b);
    }

    #[test]
    fn a_name_of_exactly_the_limit_is_kept() {
        let name = "a".repeat(MAX_KEY_BYTES);
        assert_eq!(escape(&name), name);
        assert_ne!(escape(&(name.clone() + "a")), name);
    }

    proptest! {
        #[test]
        fn keys_are_tame(name in "\\PC{1,300}") {
            let key = escape(&name);
            prop_assert!(key.len() <= MAX_KEY_BYTES && !key.is_empty() && !key.starts_with('.'));
            prop_assert!(key.bytes().all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-' | b'.' | b'%')));
        }

        #[test]
        fn short_keys_can_be_read_back(name in "[a-zA-Z0-9./%\\x00-\\x1f~\u{e9}]{1,40}") {
            prop_assert_eq!(unescape(&escape(&name)), name);
        }
    }
}
