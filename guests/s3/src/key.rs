//! The keys of objects. All of `PREFIX/c/` are chunks, all of `PREFIX/m/` manifests. What follows is `a-z 0-9 - . _ ~`, which no server
//! and no signature encodes, and is short: some servers take no 1,024 bytes.

use kv_store_sdk::key::{escape_listed, hex, listed, unhex};

/// What keys begin with, after the prefix.
pub const CHUNKS: &str = "c/";
pub const MANIFESTS: &str = "m/";

pub fn chunk(prefix: &str, hash: &[u8]) -> String {
    format!("{prefix}{CHUNKS}{}", hex(hash))
}

pub fn manifest(prefix: &str, name: &str) -> String {
    // No name is escaped to what holds a `~`.
    format!("{prefix}{MANIFESTS}{}", escape_listed(name).replace('%', "~"))
}

/// The hash of the chunk under a key, of which this is what follows `c/`; none: it is no chunk's.
pub fn hash(rest: &str) -> Option<Vec<u8>> {
    unhex(rest.as_bytes()).filter(|hash| (1..=64).contains(&hash.len()))
}

/// The name of the manifest under a key, of which this is what follows `m/`; none: it is no manifest's.
pub fn name(rest: &str) -> Option<String> {
    if rest.contains('%') { None } else { listed(&rest.replace('~', "%")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Under these keys objects lie in buckets that other versions wrote.
    #[test]
    fn golden_keys() {
        assert_eq!((chunk("", &[0, 0xff]), chunk("team/", &[1])), ("c/00ff".to_owned(), "team/c/01".to_owned()));
        assert_eq!(manifest("team/", "slot 7/X.bin"), "team/m/slot~207~2f~58.bin");
    }

    #[test]
    fn keys_are_short_and_tame() {
        assert_eq!(chunk("p/", b"\x00\xff"), "p/c/00ff");
        assert_eq!(manifest("", "slot 7/../X"), "m/slot~207~2f..~2f~58");
        for name in ["..", ".", "a~b", "%", "\u{e4}", &"x".repeat(4096)] {
            let key = manifest("", name);
            let rest = key.strip_prefix("m/").unwrap();
            assert!(rest.len() <= 200 && !rest.starts_with('.'), "{key}");
            assert!(rest.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte)), "{key}");
        }
        assert_ne!(manifest("", "~2f"), manifest("", "/"));
    }

    #[test]
    fn keys_lead_back_to_hashes_and_names() {
        assert_eq!((hash("00ff"), hash(""), hash("0"), hash("0G")), (Some(vec![0, 255]), None, None, None));
        let long = "x".repeat(4096);
        for given in ["..", "a~b", "%", "\u{e4}/", &long] {
            let key = manifest("p/", given);
            let listed = name(key.strip_prefix("p/m/").unwrap()).expect("a name");
            assert!(listed == *given || (given.len() > 200 && listed.starts_with('\0')), "{listed:?}");
            assert_eq!(manifest("p/", &listed), key);
        }
        assert_eq!((name("a%2f"), name("a~2"), name("A")), (None, None, None));
    }
}
