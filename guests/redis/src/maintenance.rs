//! Listing and evicting, by SCAN. The sizes of a listing are what values take of the server's memory (MEMORY USAGE): to ask for their
//! length would count as a use. Times of use are as exact as the server's (OBJECT IDLETIME: a second), and unknown where it evicts
//! by frequency.

use kv_store_sdk::eviction::{Candidate, Candidates, Victims, lag};
use kv_store_sdk::payloads::Part;
use kv_store_sdk::{
    ChunkEntry, ChunkPage, DeleteOutcome, Error, Evicted, Eviction, Maintenance, ManifestEntry, ManifestPage, Result,
    Totals, system,
};

use crate::resp::{self, Reply};
use crate::server::Session;
use crate::{CHUNK, IN_HEX, MANIFEST, PIPELINE, Redis};

/// Keys that SCAN looks at for one page of an eviction.
const LOOKED_AT: u32 = 1024;
/// What keys begin with, after the prefix.
const CHUNKS: [&str; 2] = [CHUNK, IN_HEX];
const MANIFESTS: [&str; 1] = [MANIFEST];
const SECOND: u64 = 1_000_000_000;

/// A key and what the server says of it. None: it is gone, or the server does not know.
struct Found {
    /// The hash, or the name.
    key: Vec<u8>,
    size: Option<u64>,
    used: Option<u64>,
}

/// A place in a listing: the kind of key, the server, SCAN's cursor, and how many keys of its answer were listed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Place {
    kind: usize,
    server: usize,
    cursor: u64,
    listed: usize,
}

impl Place {
    fn parse(text: Option<&str>) -> Result<Self> {
        let Some(text) = text else { return Ok(Place::default()) };
        let parts: Option<Vec<u64>> = text.split('+').map(|part| part.parse().ok()).collect();
        let number = |number: u64| usize::try_from(number).ok();
        match parts.as_deref() {
            Some([kind, server, cursor, listed]) => (|| {
                Some(Place {
                    kind: number(*kind)?,
                    server: number(*server)?,
                    cursor: *cursor,
                    listed: number(*listed)?,
                })
            })(),
            _ => None,
        }
        .ok_or_else(|| Error::invalid("no place in a listing of this backend"))
    }

    fn text(self) -> String {
        format!("{}+{}+{}+{}", self.kind, self.server, self.cursor, self.listed)
    }
}

impl Maintenance for Redis {
    fn list_chunks(&mut self, after: Option<&str>, limit: u32) -> Result<ChunkPage> {
        let (found, next) = self.page(&CHUNKS, Place::parse(after)?, limit)?;
        let entries = found.into_iter().filter(|found| (1..=64).contains(&found.key.len()));
        let entries = entries.map(|Found { key, size, used }| ChunkEntry { hash: key, size, stored: None, used });
        Ok(ChunkPage { entries: entries.collect(), next })
    }

    fn list_manifests(&mut self, after: Option<&str>, limit: u32) -> Result<ManifestPage> {
        let (found, next) = self.page(&MANIFESTS, Place::parse(after)?, limit)?;
        let entries = found.into_iter().filter_map(|Found { key, size, used }| {
            let name = String::from_utf8(key).ok().filter(|name| !name.is_empty())?;
            Some(ManifestEntry { name, size, stored: None, used })
        });
        Ok(ManifestPage { entries: entries.collect(), next })
    }

    fn usage(&mut self) -> Result<Totals> {
        // The server counts the keys of a database, which may hold others than ours.
        let mut capacity = Some(0_u64);
        for server in self.strings.servers() {
            let [most] = self.login.with_session(&server, |session| session.info("memory", ["maxmemory"]))?;
            let most = most.and_then(|bytes| bytes.parse::<u64>().ok()).filter(|bytes| *bytes > 0);
            capacity = capacity.zip(most).map(|(sum, most)| sum.saturating_add(most));
        }
        Ok(Totals { bytes: None, chunks: None, manifests: None, capacity })
    }

    fn evict(&mut self, what: Eviction) -> Result<Evicted> {
        let (now, begun) = (system::now(), system::remaining());
        let mut candidates = Candidates::new(what);
        let mut cut_short;
        let mut place = Place::default();
        loop {
            let (found, next) = self.page(&CHUNKS, place, LOOKED_AT)?;
            for Found { key, size, used } in found {
                candidates.add(Candidate { key, size: size.unwrap_or(0), used: used.ok_or_else(not_known)? });
            }
            cut_short = candidates.end_page() || system::remaining() < begun / 2;
            match next {
                Some(next) if !cut_short => place = Place::parse(Some(&next))?,
                _ => break,
            }
        }
        let Victims { chunks, manifests_before } = candidates.victims(lag(&what, now));
        let mut evicted = Evicted { bytes: 0, chunks: 0, manifests: 0, more: cut_short && !chunks.is_empty() };
        let mut place = Some(Place::default()).filter(|_| manifests_before > 0);
        while let Some(here) = place {
            let (found, next) = self.page(&MANIFESTS, here, LOOKED_AT)?;
            let unused = |found: &&Found| found.used.is_some_and(|used| used < manifests_before);
            let unused: Vec<&Found> = found.iter().filter(unused).collect();
            evicted.bytes += unused.iter().filter_map(|found| found.size).sum::<u64>();
            let keys = unused.iter().filter_map(|found| str::from_utf8(&found.key).ok());
            evicted.manifests += self.remove(keys.map(|name| self.manifest_key(name)).collect(), true)?;
            place = next.map(|next| Place::parse(Some(&next))).transpose()?;
        }
        evicted.bytes += chunks.iter().map(|victim| victim.size).sum::<u64>();
        evicted.chunks = self.remove(chunks.iter().map(|victim| self.chunk_key(&victim.key)).collect(), false)?;
        Ok(evicted)
    }
}

fn not_known() -> Error {
    Error::unsupported(
        "the server does not know when its keys were used: its maxmemory-policy goes by frequency; use ttl_s, or let the \
         server evict",
    )
}

impl Redis {
    /// Some of the keys of these kinds, and what leads to the next. At most `limit`.
    fn page(&self, kinds: &[&str], place: Place, limit: u32) -> Result<(Vec<Found>, Option<String>)> {
        let servers = self.strings.servers();
        let (Some(kind), Some(server)) = (kinds.get(place.kind), servers.get(place.server)) else {
            return Ok((Vec::new(), None));
        };
        let prefix = [self.prefix.as_bytes(), kind.as_bytes()].concat();
        let pattern = [literal(&prefix), b"*".to_vec()].concat();
        let now = system::now();
        let (cursor, all, listed, mut found) = self.login.with_session(server, |session| {
            let count = (limit / 2).max(1);
            let [cursor, count] = [place.cursor.to_string(), count.to_string()].map(String::into_bytes);
            let scan = [b"SCAN".to_vec(), cursor, b"MATCH".to_vec(), pattern.clone(), b"COUNT".to_vec(), count];
            session.send(&[Part::Bytes(resp::command(&scan))])?;
            let (cursor, keys) = session.whole(|| read_scan(session))?;
            let all = keys.len();
            let keys: Vec<Vec<u8>> = keys.into_iter().skip(place.listed).take(limit as usize).collect();
            let listed = place.listed + keys.len();
            let mut found = Vec::with_capacity(keys.len());
            for group in keys.chunks(PIPELINE as usize) {
                look(session, group, &prefix, *kind == MANIFEST, now, &mut found)?;
            }
            Ok((cursor, all, listed, found))
        })?;
        let next = if listed < all {
            // More than asked for: the rest is asked for again.
            Some(Place { listed, ..place })
        } else if cursor != 0 {
            Some(Place { cursor, listed: 0, ..place })
        } else if place.kind + 1 < kinds.len() {
            Some(Place { kind: place.kind + 1, server: place.server, cursor: 0, listed: 0 })
        } else if place.server + 1 < servers.len() {
            Some(Place { kind: 0, server: place.server + 1, cursor: 0, listed: 0 })
        } else {
            None
        };
        if *kind == IN_HEX {
            found.retain_mut(|found| from_hex(&found.key).map(|hash| found.key = hash).is_some());
        }
        Ok((found, next.map(Place::text)))
    }

    /// Remove keys. Answers how many are gone.
    fn remove(&self, keys: Vec<Vec<u8>>, are_manifests: bool) -> Result<u64> {
        let mut removed = 0;
        for group in keys.chunks(PIPELINE as usize) {
            let outcomes = self.delete(&group.iter().collect(), are_manifests, false)?;
            removed += outcomes.iter().filter(|outcome| matches!(outcome, DeleteOutcome::Gone)).count() as u64;
        }
        Ok(removed)
    }
}

fn from_hex(text: &[u8]) -> Option<Vec<u8>> {
    let digit = |byte: &u8| char::from(*byte).to_digit(16);
    let (pairs, rest) = text.as_chunks::<2>();
    let bytes = pairs.iter().map(|[high, low]| u8::try_from(digit(high)? << 4 | digit(low)?).ok());
    rest.is_empty().then(|| bytes.collect()).flatten()
}

/// The answer to SCAN: the next cursor, and keys.
fn read_scan(session: &Session) -> Result<(u64, Vec<Vec<u8>>)> {
    let strange = || Error::corrupt("SCAN was answered by something else: is this a Redis server?");
    if session.array()? != 2 {
        return Err(strange());
    }
    let cursor =
        session.small_bulk()?.and_then(|text| String::from_utf8(text).ok()?.parse().ok()).ok_or_else(strange)?;
    let count = session.array()?;
    let mut keys = Vec::new();
    for _ in 0..count {
        keys.push(session.small_bulk()?.ok_or_else(strange)?);
    }
    Ok((cursor, keys))
}

/// Sizes and times of use of some keys. What deleted manifests leave is no manifest: it is no string.
fn look(
    session: &Session,
    keys: &[Vec<u8>],
    prefix: &[u8],
    are_manifests: bool,
    now: u64,
    found: &mut Vec<Found>,
) -> Result<()> {
    let ask = |key: &Vec<u8>| {
        let words = |words: [&str; 2]| words.map(|word| word.as_bytes().to_vec());
        let [[object, idletime], [memory, usage]] = [words(["OBJECT", "IDLETIME"]), words(["MEMORY", "USAGE"])];
        let mut commands = resp::command(&[object, idletime, key.clone()]);
        commands.extend(resp::command(&[memory, usage, key.clone()]));
        if are_manifests {
            commands.extend(resp::command(&[b"TYPE".as_slice(), key]));
        }
        Part::Bytes(commands)
    };
    session.send(&keys.iter().map(ask).collect::<Vec<_>>())?;
    let mut replies = session.replies(keys.len() * if are_manifests { 3 } else { 2 })?.into_iter();
    let number = |reply: Option<Result<Reply>>| match reply {
        Some(Ok(Reply::Integer(number))) => u64::try_from(number).ok(),
        // Gone since, or refused: the server has no such number.
        _ => None,
    };
    for key in keys {
        let (idle, size) = (number(replies.next()), number(replies.next()));
        let kind = if are_manifests { replies.next() } else { None };
        if matches!(kind, Some(Ok(Reply::Status(kind))) if kind == "list") {
            continue;
        }
        let used = idle.map(|seconds| now.saturating_sub(seconds.saturating_mul(SECOND)));
        found.push(Found { key: key.strip_prefix(prefix).unwrap_or(key).to_vec(), size, used });
    }
    Ok(())
}

/// A pattern that stands for these bytes.
fn literal(bytes: &[u8]) -> Vec<u8> {
    let escaped = |byte: &u8| match byte {
        b'*' | b'?' | b'[' | b']' | b'\\' | b'^' | b'-' => vec![b'\\', *byte],
        plain => vec![*plain],
    };
    bytes.iter().flat_map(escaped).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_is_no_pattern() {
        assert_eq!(literal(b"kv:"), b"kv:");
        assert_eq!(literal(b"a*[b]\\?"), b"a\\*\\[b\\]\\\\\\?");
    }

    #[test]
    fn places_are_read_back() {
        let place = Place { kind: 1, server: 2, cursor: 17, listed: 3 };
        assert_eq!(Place::parse(Some(&place.text())).unwrap(), place);
        assert_eq!(Place::parse(None).unwrap(), Place::default());
        for wrong in ["x", "", "1+2", "1+2+3+", "1+2+3+4+5", "-1+0+0+0"] {
            assert!(Place::parse(Some(wrong)).is_err(), "{wrong}");
        }
    }

    #[test]
    fn hashes_in_hex_are_read_back() {
        assert_eq!(from_hex(b"7b00ff"), Some(vec![0x7b, 0, 0xff]));
        assert_eq!((from_hex(b"7b0"), from_hex(b"zz")), (None, None));
    }
}
