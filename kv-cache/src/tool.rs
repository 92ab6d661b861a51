//! Looking into a directory of rows, and bringing it in order: what `kv-store cache` does. The answers are plain structs that
//! serialise.
//!
//! [`list`], [`verify`] and [`stats`] change nothing and take no lock, so they work on a directory that a process has open;
//! files are read, never mapped. [`gc`] needs the lock.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Serialize;

use crate::cache::Cache;
use crate::config::{Bytes, Config, FileTier, QueueConfig};
use crate::error::{Error, Result};
use crate::fingerprint::FingerprintMode;
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
    /// Whether all of its metadata has a checksum.
    pub sealed: bool,
}

/// A file that is no good row.
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
    let mut bad = Vec::new();
    directory.look_at(&names, |name, seen| match seen {
        Seen::Row(key, found) => rows.push((found.modified, row_info(&key.to_string(), &found))),
        other => bad.extend(bad_file(name, other)),
    });
    rows.sort_by(|(a, one), (b, other)| b.cmp(a).then_with(|| one.key.cmp(&other.key)));
    bad.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(Listing { rows: rows.into_iter().map(|(_, row)| row).collect(), bad })
}

/// Read every row of a directory to its end, and check all of it.
///
/// # Errors
/// The directory cannot be read.
pub fn verify(path: &Path) -> Result<Verified> {
    let (directory, names) = open(path)?;
    let mut verified = Verified { good: 0, good_bytes: 0, bad: Vec::new() };
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
                verified.good += 1;
                verified.good_bytes += found.metadata.head.payload_bytes;
            }
            other => verified.bad.extend(bad_file(name, other)),
        }
    });
    verified.bad.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(verified)
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
            Name::Temporary { .. } => stats.temporaries += 1,
            Name::Stranger => stats.strangers += 1,
            Name::Row(_) | Name::Misnamed | Name::Ours => {}
        }
    }
    directory.look_at(&names, |_, seen| match seen {
        Seen::Row(_, found) => {
            let head = &found.metadata.head;
            stats.rows += 1;
            stats.bytes += found.file_bytes;
            stats.tokens += u64::from(head.tokens);
            *stats.reasons.entry(format!("{:?}", head.reason).to_lowercase()).or_default() += 1;
            *stats.models.entry(hex(&found.metadata.identity.fingerprint.bytes)).or_default() += 1;
        }
        Seen::Flawed(_) | Seen::Unread(_) => stats.bad += 1,
    });
    Ok(stats)
}

/// Bring a directory in order: damaged files and temporary files of dead writers are removed, and with a budget the rows that
/// were used least recently are evicted until the others fit it.
///
/// # Errors
/// `Busy`: a process has the directory open; let it do so itself. Otherwise: the directory cannot be used.
pub fn gc(path: &Path, budget: Option<u64>) -> Result<Gc> {
    // Nothing is made where there is nothing.
    Directory::open_existing(path)?;
    let path = std::path::absolute(path).map_err(|error| Error::io("no absolute path", error))?;
    let tier = FileTier { path, budget: Bytes(budget.unwrap_or(u64::MAX)), exclusive: true };
    let queue = QueueConfig::default();
    let cache = Cache::open(Config { disk: Some(tier), queue, ..Config::default() })?;
    let mut gc = cache.gc()?;
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

fn bad_file(name: &str, seen: Seen) -> Option<BadFile> {
    let name = name.to_owned();
    match seen {
        Seen::Flawed(flaw) => Some(BadFile { name, why: flaw.to_string(), flaw: Some(flaw) }),
        Seen::Unread(error) => Some(BadFile { name, why: format!("it cannot be read: {error}"), flaw: None }),
        Seen::Row(..) => None,
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
        fingerprint: hex(&row.identity.fingerprint.bytes),
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

fn hex(bytes: &[u8; 32]) -> String {
    crate::key::Key(*bytes).to_string()
}
