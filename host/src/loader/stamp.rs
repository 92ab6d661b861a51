//! The section of a component in which it describes itself, found without reading the rest of the file: sections are skipped by the
//! lengths that they begin with.
//!
//! Invariant: what is read is bounded, whatever the file holds; where it is no component, or its section lies past a bound, the answer
//! is that it says nothing. What it says is what `measure` finds in the same file.

use std::fs::File;
use std::io::{ErrorKind::Interrupted, Result};
use std::os::unix::fs::FileExt;

use wasmparser::BinaryReader;

use super::measure::{MAX_STAMP_BYTES, MAX_STAMP_LINES, STAMP, stamp_lines};
use crate::limits;

/// `\0asm`, the version, and whether it is a module or a component.
const PREAMBLE_BYTES: u64 = 8;
const OF_COMPONENT: [u8; 4] = [0x0d, 0, 1, 0];

/// Ids of sections.
const CUSTOM: u8 = 0;
const MODULE: u8 = 1;
const COMPONENT: u8 = 4;

/// What a custom section has before its data at most: its id, its length, the length of its name, and the name.
const HEAD_BYTES: usize = 1 + 5 + 5 + STAMP.len();

/// A module or a component whose sections are being walked.
struct WalkedScope {
    end: u64,
    is_component: bool,
}

/// The pairs of key and value in the section of a component of `len` bytes.
pub(super) fn read(file: &File, len: u64) -> Result<Vec<(String, String)>> {
    let mut found = Vec::new();
    let (mut scopes, mut at) = (vec![WalkedScope { end: len, is_component: true }], PREAMBLE_BYTES);
    for _ in 0..limits::MAX_SECTIONS_WALKED {
        while scopes.len() > 1 && scopes.last().is_some_and(|scope| at >= scope.end) {
            scopes.pop();
        }
        let Some(WalkedScope { end, is_component }) = scopes.last().filter(|scope| at < scope.end) else { break };
        let head = read_at(file, at, HEAD_BYTES.min(usize::try_from(end - at).unwrap_or(HEAD_BYTES)))?;
        let Some(section) = Section::parse(&head) else { break };
        let (body, next) = (at + section.head_len, at + section.head_len + section.len);
        if next > *end {
            break;
        }
        at = next;
        match section.id {
            CUSTOM => {
                if let Some(data_at) = section.stamp_at {
                    let data = read_at(file, body + data_at, bounded(section.len.saturating_sub(data_at)))?;
                    let left = MAX_STAMP_LINES.saturating_sub(found.len());
                    found.extend(stamp_lines(&data).take(left));
                }
            }
            MODULE | COMPONENT if *is_component => {
                let preamble = read_at(file, body, bounded(section.len.min(PREAMBLE_BYTES)))?;
                if scopes.len() < limits::MAX_COMPONENT_DEPTH {
                    scopes.push(WalkedScope { end: next, is_component: preamble.ends_with(&OF_COMPONENT) });
                    at = next.min(body + PREAMBLE_BYTES);
                }
            }
            _ => {}
        }
    }
    Ok(found)
}

fn bounded(len: u64) -> usize {
    usize::try_from(len).unwrap_or(usize::MAX).min(MAX_STAMP_BYTES)
}

/// How a section begins.
struct Section {
    id: u8,
    head_len: u64,
    len: u64,
    /// Where its data begins after the head, if it is the one that is looked for.
    stamp_at: Option<u64>,
}

impl Section {
    fn parse(head: &[u8]) -> Option<Self> {
        let mut reader = BinaryReader::new(head, 0);
        let id = reader.read_u8().ok()?;
        let len = u64::from(reader.read_var_u32().ok()?);
        let head_len = reader.original_position();
        // A name that does not fit is another one.
        let is_stamp = id == CUSTOM && reader.read_string().is_ok_and(|name| name == STAMP);
        let stamp_at = is_stamp.then(|| (reader.original_position() - head_len) as u64);
        Some(Section { id, head_len: head_len as u64, len, stamp_at })
    }
}

/// `len` bytes, or those that the file has.
fn read_at(file: &File, at: u64, len: usize) -> Result<Vec<u8>> {
    let mut bytes = vec![0; len];
    let mut filled = 0;
    while let Some(rest) = bytes.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match file.read_at(rest, at + filled as u64) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    bytes.truncate(filled);
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::super::measure::measure;
    use super::*;
    use std::io::Write;

    fn said(bytes: &[u8]) -> Vec<(String, String)> {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        read(&file, bytes.len() as u64).unwrap()
    }

    fn section(id: u8, body: &[u8]) -> Vec<u8> {
        let len = u32::try_from(body.len()).unwrap();
        // As long as a length can be.
        let len = (0..5u8).map(|n| (len >> (7 * n)) as u8 & 0x7f | if n < 4 { 0x80 } else { 0 });
        std::iter::once(id).chain(len).chain(body.iter().copied()).collect()
    }

    fn custom(name: &str, data: &str) -> Vec<u8> {
        section(CUSTOM, &[&[name.len() as u8][..], name.as_bytes(), data.as_bytes()].concat())
    }

    fn with(last: [u8; 4], sections: &[Vec<u8>]) -> Vec<u8> {
        [b"\0asm".to_vec(), last.to_vec(), sections.concat()].concat()
    }

    fn component(sections: &[Vec<u8>]) -> Vec<u8> {
        with(OF_COMPONENT, sections)
    }

    fn module(sections: &[Vec<u8>]) -> Vec<u8> {
        with([1, 0, 0, 0], sections)
    }

    fn pair(key: &str, value: &str) -> (String, String) {
        (key.to_owned(), value.to_owned())
    }

    #[test]
    fn it_is_found_in_a_component_and_in_what_lies_in_it() {
        // Section 4 of a module are its tables, and no component.
        let inner = module(&[section(4, &[0]), custom("name", "x"), custom(STAMP, "schemes: a b\nport: 7\n")]);
        let whole = component(&[
            section(MODULE, &inner),
            section(COMPONENT, &component(&[custom(STAMP, "sdk: x\n")])),
            custom(STAMP, "wish: a: b\nnonsense\n"),
        ]);
        let expected = [pair("schemes", "a b"), pair("port", "7"), pair("sdk", "x"), pair("wish", "a: b")];
        assert_eq!(said(&whole), expected);
        assert_eq!(measure(&whole, |_| ()).unwrap().stamp, expected);
        assert_eq!(said(&component(&[custom("other", "schemes: a\n")])), []);
    }

    #[test]
    fn what_is_read_is_bounded() {
        let long = component(&[custom(STAMP, &"a: b\n".repeat(100_000))]);
        assert_eq!(said(&long).len(), MAX_STAMP_LINES);
        let many = |count| {
            let mut sections = vec![custom("n", ""); count];
            sections.push(custom(STAMP, "a: b\n"));
            said(&component(&sections)).len()
        };
        assert_eq!((many(limits::MAX_SECTIONS_WALKED - 1), many(limits::MAX_SECTIONS_WALKED)), (1, 0));
        let mut deep = component(&[custom(STAMP, "a: b\n")]);
        for _ in 1..limits::MAX_COMPONENT_DEPTH {
            deep = component(&[section(COMPONENT, &deep)]);
        }
        assert_eq!((said(&deep).len(), said(&component(&[section(COMPONENT, &deep)])).len()), (1, 0));
    }

    #[test]
    fn a_file_that_is_cut_off_says_what_is_whole() {
        let whole = component(&[custom(STAMP, "a: b\n"), section(MODULE, &module(&[custom(STAMP, "c: d\n")]))]);
        for len in 0..=whole.len() {
            let said = said(&whole[..len]);
            assert!(said.is_empty() || said[0] == pair("a", "b"), "{len}: {said:?}");
            assert!(said.len() < 2 || len == whole.len(), "{len}: {said:?}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_file_is_too_strange(bytes in proptest::collection::vec(0u8..8, 0..200)) {
            said(&component(std::slice::from_ref(&bytes)));
            said(&bytes);
        }
    }
}
