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
                key.extend(digits(byte).map(char::from));
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

/// The name of a key that [`escape`] made. `None`: it was cut, so the name is not in it, or it is no such key.
///
/// ```
/// use kv_store_sdk::key::{escape, unescape};
/// assert_eq!(unescape(&escape("../Etc")).as_deref(), Some("../Etc"));
/// assert_eq!(unescape(&escape(&"x".repeat(1000))), None);
/// ```
pub fn unescape(key: &str) -> Option<String> {
    let (mut bytes, mut rest) = (Vec::with_capacity(key.len()), key.as_bytes());
    while let Some((first, tail)) = rest.split_first() {
        rest = tail;
        bytes.push(match first {
            b'%' => {
                let (digits, tail) = rest.split_at_checked(2)?;
                rest = tail;
                unhex(digits)?.pop()?
            }
            plain => *plain,
        });
    }
    let name = String::from_utf8(bytes).ok()?;
    (!name.is_empty()).then_some(name)
}

/// Begins the name by which a listing has a manifest whose key does not hold its own name. A name of the C ABI has no NUL.
const BY_KEY: char = '\0';

/// The name by which a listing has what lies under a key that [`escape`] made: the name, or NUL and the key where that was cut.
/// `None`: it is no such key.
///
/// ```
/// use kv_store_sdk::key::{escape, escape_listed, listed};
/// assert_eq!(listed("slot%207").as_deref(), Some("slot 7"));
/// let cut = escape(&"x".repeat(1000));
/// assert_eq!(escape_listed(&listed(&cut).unwrap()), cut);
/// ```
pub fn listed(key: &str) -> Option<String> {
    if is_cut(key) {
        return Some(format!("{BY_KEY}{key}"));
    }
    unescape(key).filter(|name| escape(name) == key)
}

/// The key for a name as the consumer has it, or as [`listed`] has it.
pub fn escape_listed(name: &str) -> String {
    match name.strip_prefix(BY_KEY).filter(|key| is_cut(key)) {
        Some(key) => key.to_owned(),
        None => escape(name),
    }
}

/// Whether a key was made of a name that it does not hold whole.
pub fn is_cut(key: &str) -> bool {
    let digest = key.rsplit_once(DIGEST_MARK).map(|(_, digest)| digest.as_bytes());
    let tame = |b: u8| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-' | b'.' | b'%');
    let plain = key.len() <= MAX_KEY_BYTES && !key.starts_with('.') && key.bytes().all(tame);
    plain && digest.is_some_and(|digest| digest.len() == DIGEST_BYTES && unhex(digest).is_some())
}

/// The bytes that lower-case hex digits stand for.
pub fn unhex(digits: &[u8]) -> Option<Vec<u8>> {
    let digit = |c: u8| match c {
        b'0'..=b'9' => Some(c - b'0'),
        b'a'..=b'f' => Some(c - b'a' + 10),
        _ => None,
    };
    let pairs = digits.chunks(2).map(|pair| match pair {
        [high, low] => Some(digit(*high)? << 4 | digit(*low)?),
        _ => None,
    });
    pairs.collect()
}

/// Bytes as lower-case hex digits.
pub fn hex(bytes: &[u8]) -> String {
    hex_behind("", bytes)
}

/// The same behind another text: a path in one piece.
///
/// ```
/// assert_eq!(kv_store_sdk::key::hex_behind("chunks/", &[0xa0, 0x0b]), "chunks/a00b");
/// ```
pub fn hex_behind(text: &str, bytes: &[u8]) -> String {
    // Bytes that are text in the end, in memory that is there: characters one by one took a twentieth of a small get of local-fs.
    let mut all = vec![0; text.len() + 2 * bytes.len()];
    let (front, digits) = all.split_at_mut(text.len());
    front.copy_from_slice(text.as_bytes());
    let (fours, rest) = bytes.as_chunks();
    let (eights, pairs) = digits.split_at_mut(8 * fours.len());
    for (eight, four) in eights.as_chunks_mut().0.iter_mut().zip(fours) {
        *eight = digits_of_four(*four);
    }
    for (pair, byte) in pairs.as_chunks_mut().0.iter_mut().zip(rest) {
        *pair = self::digits(*byte);
    }
    String::from_utf8(all).unwrap_or_default()
}

/// The digits of four bytes, side by side in one register: memory is what is dear in a component, where each access is checked.
fn digits_of_four(bytes: [u8; 4]) -> [u8; 8] {
    // The first byte is the lowest. Two digits of each, the high one first.
    let spread = u64::from(u32::from_le_bytes(bytes));
    let spread = (spread | spread << 16) & 0x0000_ffff_0000_ffff;
    let spread = (spread | spread << 8) & 0x00ff_00ff_00ff_00ff;
    let digits = spread >> 4 & 0x000f_000f_000f_000f | (spread & 0x000f_000f_000f_000f) << 8;
    // 1 where a digit is a letter; 'a' is 39 further than what follows '9'.
    let letters = (digits + 0x0606_0606_0606_0606) >> 4 & 0x0101_0101_0101_0101;
    (digits + 0x3030_3030_3030_3030 + letters * 39).to_le_bytes()
}

/// Two digits of each byte.
// Evaluated by the compiler, which refuses an index that is out of range.
#[allow(clippy::indexing_slicing)]
const DIGITS: [[u8; 2]; 256] = {
    let digits = *b"0123456789abcdef";
    let (mut pairs, mut byte) = ([[0; 2]; 256], 0);
    while byte < 256 {
        pairs[byte] = [digits[byte >> 4], digits[byte & 15]];
        byte += 1;
    }
    pairs
};

fn digits(byte: u8) -> [u8; 2] {
    DIGITS.get(usize::from(byte)).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Under these keys backends find what other versions stored. Computed with Python's hashlib, not with this code.
    #[test]
    fn golden_keys() {
        for (name, key) in [
            ("slot-7.bin", "slot-7.bin"),
            ("../Etc", "%2e.%2f%45tc"),
            ("a b_\u{e4}%\0", "a%20b_%c3%a4%25%00"),
            ("~A.Z", "%7e%41.%5a"),
        ] {
            assert_eq!(escape(name), key);
        }
        let digest = "25407ba6534004cc6382c35e116227767dedb0a7cc5e5310d72e8618ec58fe86";
        let cut = "p%2f".repeat(33) + "p%-" + digest;
        assert_eq!(escape(&"p/".repeat(150)), cut);
        assert_eq!(hex(&[0x00, 0x1f, 0xa0, 0xff]), "001fa0ff");
    }

    #[test]
    fn digits_are_those_that_format_has() {
        let all: Vec<u8> = (0..=255).collect();
        for len in 0..all.len() {
            let (front, back) = all.split_at(len);
            for bytes in [front, back] {
                let expected = bytes.iter().fold("x".to_owned(), |text, byte| text + &format!("{byte:02x}"));
                assert_eq!(hex_behind("x", bytes), expected);
            }
        }
    }

    #[test]
    fn a_long_name_keeps_its_start_and_ends_in_its_digest() {
        let (a, b) = (escape(&("p/".repeat(100) + "a")), escape(&("p/".repeat(100) + "b")));
        assert!(a.starts_with("p%2fp%2f") && a.contains("%-") && a.len() <= MAX_KEY_BYTES);
        assert_ne!(a, b);
        assert!(is_cut(&a) && unescape(&a).is_none());
        for other in ["a", "a%-b", &format!("..{}", &a), &format!("/{}", &a)] {
            assert!(!is_cut(other), "{other}");
        }
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
            let key = escape(&name);
            prop_assert!(!is_cut(&key));
            prop_assert_eq!(unescape(&key), Some(name));
        }
    }
}
