//! Looking into a directory of rows, and bringing it in order: what `kv-store cache` does. The answers are plain structs that
//! serialise.
//!
//! [`list`], [`verify`] and [`stats`] change nothing and take no lock, so they work on a directory that a process has open;
//! files are read, never mapped. [`gc`] needs the lock.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Serialize;

use crate::cache::Cache;
use crate::config::{Bytes, Config, FileTier};
use crate::error::{Error, Result};
use crate::fingerprint::FingerprintMode;
use crate::kind::TierKind;
use crate::row::{Flaw, SaveReason};
use crate::tier::{Directory, Found, Gc, Name, Seen};

/// A row's file, as it says of itself.
#[derive(Clone, Debug, Serialize)]
pub struct RowInfo {
    /// The key, in hex: the file's name without `.kvc`.
    pub key: String,
    /// Tokens that it covers.
    pub tokens: u32,
    /// Size of the payload.
    pub payload_bytes: u64,
    /// Size of the file.
    pub file_bytes: u64,
    /// Why it was saved.
    pub reason: SaveReason,
    /// More on that.
    pub detail: String,
    /// Unix time of the save, in seconds.
    pub created: u64,
    /// Unix time of the last use that is known, in seconds: the file's time of change.
    pub last_used: i64,
    /// The model's fingerprint, in hex.
    pub fingerprint: String,
    /// How it was made.
    pub fingerprint_mode: FingerprintMode,
    /// The quantisation's number.
    pub quant: u8,
    /// Bits of the quantisation.
    pub quant_bits: u8,
    /// Tokens that the context had room for.
    pub context_size: u32,
    /// The machine that saved it.
    pub host: String,
    /// What wrote it.
    pub software: String,
    /// The beginning of the prompt, if it was told.
    pub prompt: String,
    /// Whether its metadata has a checksum: all of it but the hit count and the time of the last use.
    pub sealed: bool,
}

/// A file that is no good row, or none that this version can read.
#[derive(Clone, Debug, Serialize)]
pub struct BadFile {
    /// Its name in the directory.
    pub name: String,
    /// What is wrong with it.
    pub flaw: Option<Flaw>,
    /// The same for people; or what the system said when it could not be read.
    pub why: String,
}

/// What [`list`] found.
#[derive(Clone, Debug, Serialize)]
pub struct Listing {
    /// The rows, the one used last first.
    pub rows: Vec<RowInfo>,
    /// Files that would be set aside.
    pub bad: Vec<BadFile>,
    /// Files that are left alone: rows of a later version, and names that end in `.kvc` and are no rows'.
    pub left: Vec<BadFile>,
}

/// What [`verify`] found.
#[derive(Clone, Debug, Serialize)]
pub struct Verified {
    /// Rows that are whole, payload included.
    pub good: u64,
    /// Their payloads' bytes.
    pub good_bytes: u64,
    /// Files that are not.
    pub bad: Vec<BadFile>,
    /// Files that are left alone, as in [`Listing::left`].
    pub left: Vec<BadFile>,
}

/// What [`stats`] counted.
#[derive(Clone, Debug, Default, Serialize)]
pub struct DirectoryStats {
    /// Rows.
    pub rows: u64,
    /// Bytes of their files.
    pub bytes: u64,
    /// Tokens that they cover.
    pub tokens: u64,
    /// Rows by reason.
    pub reasons: BTreeMap<String, u64>,
    /// Rows by the model's fingerprint, in hex.
    pub models: BTreeMap<String, u64>,
    /// Files that would be set aside.
    pub bad: u64,
    /// Row files of a later version, which are left alone.
    pub newer: u64,
    /// Names that end in `.kvc` and are no rows', which are left alone.
    pub misnamed: u64,
    /// Temporary files: saves on their way, or of writers that died.
    pub temporaries: u64,
    /// Names that are none of ours.
    pub strangers: u64,
}

/// The rows of a directory. Payloads are not read.
///
/// # Errors
/// The directory cannot be read.
pub fn list(path: &Path) -> Result<Listing> {
    let (directory, names) = open(path)?;
    let mut rows = Vec::new();
    let mut rest = Rest::of(&names);
    directory.look_at(&names, |name, seen| match seen {
        Seen::Row(key, found) => rows.push((found.modified, row_info(&key.to_string(), &found))),
        other => rest.add(name, other),
    });
    rows.sort_by(|(a, one), (b, other)| b.cmp(a).then_with(|| one.key.cmp(&other.key)));
    let Rest { bad, left } = rest.sorted();
    Ok(Listing { rows: rows.into_iter().map(|(_, row)| row).collect(), bad, left })
}

/// Read every row of a directory to its end, and check all of it.
///
/// # Errors
/// The directory cannot be read.
pub fn verify(path: &Path) -> Result<Verified> {
    let (directory, names) = open(path)?;
    let (mut good, mut good_bytes, mut rest) = (0, 0, Rest::of(&names));
    directory.look_at(&names, |name, seen| {
        let seen = match seen {
            Seen::Row(key, found) => match directory.check_payload(&found) {
                Ok(()) => Seen::Row(key, found),
                Err(unread) => unread.into(),
            },
            other => other,
        };
        match seen {
            Seen::Row(_, found) => {
                good += 1;
                good_bytes += found.metadata.head.payload_bytes;
            }
            other => rest.add(name, other),
        }
    });
    let Rest { bad, left } = rest.sorted();
    Ok(Verified { good, good_bytes, bad, left })
}

/// Count what is in a directory. Payloads are not read.
///
/// # Errors
/// The directory cannot be read.
pub fn stats(path: &Path) -> Result<DirectoryStats> {
    let (directory, names) = open(path)?;
    let mut stats = DirectoryStats::default();
    for (_, name) in &names {
        match name {
            Name::Temporary { .. } | Name::OthersTemporary => stats.temporaries += 1,
            Name::Stranger => stats.strangers += 1,
            Name::Misnamed => stats.misnamed += 1,
            Name::Row(_) | Name::Ours => {}
        }
    }
    directory.look_at(&names, |_, seen| match seen {
        Seen::Row(_, found) => {
            let head = &found.metadata.head;
            stats.rows += 1;
            stats.bytes += found.file_bytes;
            stats.tokens += u64::from(head.tokens);
            *stats.reasons.entry(format!("{:?}", head.reason).to_lowercase()).or_default() += 1;
            *stats.models.entry(hex::encode(found.metadata.identity.fingerprint.bytes)).or_default() += 1;
        }
        Seen::OfOthers(_) => stats.newer += 1,
        Seen::Flawed(_) | Seen::Unread(_) => stats.bad += 1,
    });
    Ok(stats)
}

/// What [`gc`] does besides.
#[derive(Clone, Copy, Debug, Default)]
pub struct GcOptions {
    /// Evict rows until the others take at most this many bytes.
    pub budget: Option<u64>,
    /// Do not read payloads: rows whose payload is damaged stay, and are taken for good ones.
    pub quick: bool,
}

/// Bring a directory in order. Every row is read to its end; damaged files and temporary files of dead writers are removed. Then, with
/// a budget, the rows that were used least recently are evicted until the others fit it.
///
/// # Errors
/// `Busy`: a process has the directory open; let it do so itself. Otherwise: the directory cannot be used.
pub fn gc(path: &Path, options: GcOptions) -> Result<Gc> {
    // Nothing is made where there is nothing.
    Directory::open_existing(path)?;
    let path = std::path::absolute(path).map_err(|error| Error::io("no absolute path", error))?;
    // The budget comes last: a good row is not evicted for one that is damaged.
    let tier = FileTier { path, budget: Bytes(u64::MAX), exclusive: true };
    let cache = Cache::open(Config { disk: Some(tier), ..Config::default() })?;
    if !options.quick {
        cache.check_rows();
    }
    let mut gc = cache.gc()?;
    let used = cache.stats().tiers.iter().map(|tier| tier.bytes).sum::<u64>();
    cache.evict_bytes(TierKind::Disk, used.saturating_sub(options.budget.unwrap_or(u64::MAX)));
    // What was done when it was opened counts too.
    let stats = cache.stats();
    gc.temporaries = stats.temporaries_reaped;
    gc.evicted = stats.evictions;
    gc.evicted_bytes = stats.evicted_bytes;
    Ok(gc)
}

fn open(path: &Path) -> Result<(Directory, Vec<(String, Name)>)> {
    let directory = Directory::open_existing(path)?;
    let names = directory.names().map_err(|error| Error::io(format!("cannot list {}", path.display()), error))?;
    Ok((directory, names))
}

/// Files that are no rows.
struct Rest {
    bad: Vec<BadFile>,
    left: Vec<BadFile>,
}

impl Rest {
    /// Those whose name says so.
    fn of(names: &[(String, Name)]) -> Rest {
        let misnamed = names.iter().filter(|(_, kind)| *kind == Name::Misnamed);
        let left = misnamed.map(|(name, _)| BadFile {
            name: name.clone(),
            flaw: None,
            why: "its name is no row's: 64 hexadecimal digits and .kvc".into(),
        });
        Rest { bad: Vec::new(), left: left.collect() }
    }

    fn add(&mut self, name: &str, seen: Seen) {
        let flawed = |flaw: Flaw| BadFile { name: name.to_owned(), why: flaw.to_string(), flaw: Some(flaw) };
        match seen {
            Seen::Row(..) => {}
            Seen::OfOthers(flaw) => self.left.push(flawed(flaw)),
            Seen::Flawed(flaw) => self.bad.push(flawed(flaw)),
            Seen::Unread(error) => {
                self.bad.push(BadFile { name: name.to_owned(), why: format!("it cannot be read: {error}"), flaw: None })
            }
        }
    }

    fn sorted(mut self) -> Rest {
        for files in [&mut self.bad, &mut self.left] {
            files.sort_by(|a, b| a.name.cmp(&b.name));
        }
        self
    }
}

fn row_info(key: &str, found: &Found) -> RowInfo {
    let (row, head) = (&found.metadata, &found.metadata.head);
    RowInfo {
        key: key.to_owned(),
        tokens: head.tokens,
        payload_bytes: head.payload_bytes,
        file_bytes: found.file_bytes,
        reason: head.reason,
        detail: row.detail.clone(),
        created: head.created,
        last_used: (found.modified / 1_000_000_000) as i64,
        fingerprint: hex::encode(row.identity.fingerprint.bytes),
        fingerprint_mode: row.identity.fingerprint.mode,
        quant: row.identity.quant,
        quant_bits: head.quant_bits,
        context_size: head.context_size,
        host: row.host.clone(),
        software: row.software.clone(),
        prompt: row.prompt.chars().take(80).collect(),
        sealed: row.sealed,
    }
}
