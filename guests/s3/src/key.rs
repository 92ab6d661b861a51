//! The keys of objects. All of `PREFIX/c/` are chunks, all of `PREFIX/r/` records of manifests, all of `PREFIX/l/` the bytes of manifests that are
//! too long for their record, and all of `PREFIX/m/` manifests of former versions, which have no records and read none. `PREFIX/x/` says
//! what was found out about the servers. What follows is `a-z 0-9 - . _ ~`, which no server and no signature encodes, and is short: some
//! servers take no 1,024 bytes.

use kv_store_sdk::key::{escape_listed, hex, hex_behind, listed, unhex};

/// What keys begin with, after the prefix.
pub const CHUNKS: &str = "c/";
pub const RECORDS: &str = "r/";
pub const LONG: &str = "l/";
pub const FORMER: &str = "m/";
pub const FOUND_OUT: &str = "x/";

pub fn chunk(prefix: &str, hash: &[u8]) -> String {
    hex_behind(&[prefix, CHUNKS].concat(), hash)
}

/// Of the record of a manifest.
pub fn record(prefix: &str, name: &str) -> String {
    [prefix, RECORDS, &tame(name)].concat()
}

/// Of the bytes of a manifest that are too long for its record: `id` is the record's.
pub fn long(prefix: &str, name: &str, id: &[u8; 16]) -> String {
    [prefix, LONG, &tame(name), "/", &hex(id)].concat()
}

/// The manifest's name and the id of its record, of what follows `l/`; none: it is no such key.
pub fn long_of(rest: &str) -> Option<(String, [u8; 16])> {
    let (of, id) = rest.split_once('/')?;
    Some((name(of)?, unhex(id.as_bytes())?.try_into().ok()?))
}

/// Of a manifest of a former version.
pub fn former(prefix: &str, name: &str) -> String {
    [prefix, FORMER, &tame(name)].concat()
}

/// Under which of the two keys a manifest of a name may lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The host adds U+0002 to the names of the layout that has records.
    Record,
    /// All other names are those of former versions.
    Former,
    /// A name that was cut, as a listing tells it, shows no end.
    Either,
}

pub fn place(name: &str) -> Place {
    match name {
        name if name.starts_with('\0') => Place::Either,
        name if name.ends_with('\u{2}') => Place::Record,
        _ => Place::Former,
    }
}

fn tame(name: &str) -> String {
    // No name is escaped to what holds a `~`.
    escape_listed(name).replace('%', "~")
}

/// The hash of the chunk under a key, of which this is what follows `c/`; none: it is no chunk's.
pub fn hash(rest: &str) -> Option<Vec<u8>> {
    unhex(rest.as_bytes()).filter(|hash| (1..=64).contains(&hash.len()))
}

/// The name of the manifest under a key, of which this is what follows `r/` or `m/`; none: it is no manifest's.
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
        assert_eq!(former("team/", "slot 7/X.bin"), "team/m/slot~207~2f~58.bin");
        assert_eq!(record("team/", "slot 7/X.bin\u{2}"), "team/r/slot~207~2f~58.bin~02");
        let id = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 0xff];
        assert_eq!(long("team/", "a B", &id), "team/l/a~20~42/000102030405060708090a0b0c0d0eff");
    }

    #[test]
    fn keys_are_short_and_tame() {
        assert_eq!(chunk("p/", b"\x00\xff"), "p/c/00ff");
        assert_eq!(record("", "slot 7/../X"), "r/slot~207~2f..~2f~58");
        for name in ["..", ".", "a~b", "%", "\u{e4}", &"x".repeat(4096)] {
            let key = record("", name);
            let rest = key.strip_prefix("r/").unwrap();
            assert!(rest.len() <= 200 && !rest.starts_with('.'), "{key}");
            assert!(rest.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte)), "{key}");
        }
        assert_ne!(record("", "~2f"), record("", "/"));
        assert_eq!((place("a\u{2}"), place("a"), place("\0a")), (Place::Record, Place::Former, Place::Either));
    }

    #[test]
    fn keys_lead_back_to_hashes_and_names() {
        assert_eq!((hash("00ff"), hash(""), hash("0"), hash("0G")), (Some(vec![0, 255]), None, None, None));
        let name_of_4096 = "x".repeat(4096);
        for given in ["..", "a~b", "%", "\u{e4}/", &name_of_4096] {
            let key = record("p/", given);
            let listed = name(key.strip_prefix("p/r/").unwrap()).expect("a name");
            assert!(listed == *given || (given.len() > 200 && listed.starts_with('\0')), "{listed:?}");
            assert_eq!(record("p/", &listed), key);
            let long = long("", &listed, &[7; 16]);
            assert_eq!(long_of(long.strip_prefix("l/").unwrap()), Some((listed, [7; 16])));
        }
        let wrong =
            ["", "a", "a/", "a/07", "A/07070707070707070707070707070707", "a/b/07070707070707070707070707070707"];
        assert!(wrong.iter().all(|rest| long_of(rest).is_none()));
        assert_eq!((name("a%2f"), name("a~2"), name("A")), (None, None, None));
    }
}
