//! Reading files and directories. A file is opened non-blocking and must be regular: a planted FIFO must not hang a call.

use std::collections::BTreeMap;

use rustix::fs::{self, FileType, OFlags};
use rustix::io::Errno;

use super::{Directory, RelativePath, not_regular};
use crate::error::Error;
use crate::payload::{Buffer, Filling};

/// One entry of a directory.
pub(crate) struct Entry {
    pub name: String,
    pub directory: bool,
    /// Bytes; 0 for a directory.
    pub size: u64,
    /// Nanoseconds since 1970-01-01 UTC.
    pub modified: u64,
}

impl Directory {
    /// Bytes of a file, from `offset`: `len`, or all to the end. None: there is no such file.
    ///
    /// `check_room` may refuse a length before anything is read.
    pub(crate) fn read(
        &self,
        path: &RelativePath,
        offset: u64,
        len: Option<u64>,
        check_room: impl FnOnce(u64) -> Result<(), Error>,
    ) -> Result<Option<Buffer>, Error> {
        let file = match self.open_file(path, OFlags::RDONLY | OFlags::NONBLOCK) {
            Err(Errno::NOENT) => return Ok(None),
            opened => opened?,
        };
        let stat = fs::fstat(&file)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(not_regular());
        }
        let behind = (stat.st_size as u64).checked_sub(offset);
        let len = match (behind, len) {
            (Some(behind), None) => behind,
            (Some(behind), Some(len)) if len <= behind => len,
            _ => return Err(Error::invalid(format!("the file ends at {}, before the range asked for", stat.st_size))),
        };
        check_room(len)?;
        let mut filling = Filling::new(len)?;
        let mut at = offset;
        while !filling.rest().is_empty() {
            let count = match rustix::io::pread(&file, filling.rest(), at) {
                Err(Errno::INTR) => continue,
                read => read?.0.len(),
            };
            // The file became shorter. `finish` sees that bytes are missing.
            if count == 0 {
                break;
            }
            // SAFETY: pread initialised the `count` bytes that it answered, the first of `rest`.
            unsafe { filling.advance(count) };
            at += count as u64;
        }
        filling.finish().map(Some)
    }

    /// The first `limit` entries after `after`, in byte order of their names. Empty also if there is no such directory.
    /// Memory is bounded by `limit`, however large the directory is.
    pub(crate) fn entries(&self, path: &str, after: Option<&str>, limit: usize) -> Result<Vec<Entry>, Error> {
        let directory = match self.open_directory(path) {
            Err(Errno::NOENT) => return Ok(Vec::new()),
            opened => opened?,
        };
        let mut first: BTreeMap<String, Entry> = BTreeMap::new();
        for entry in fs::Dir::read_from(&directory)? {
            let entry = entry?;
            let Ok(name) = entry.file_name().to_str() else { continue };
            // The host's own, `.` and `..` are no path that a component may use.
            let listed = RelativePath::parse(name.to_owned()).is_ok() && after.is_none_or(|after| name > after);
            if !listed || (first.len() >= limit && first.last_key_value().is_none_or(|(last, _)| name > last.as_str()))
            {
                continue;
            }
            let stat = match fs::statat(&directory, name, fs::AtFlags::SYMLINK_NOFOLLOW) {
                // Removed since it was listed.
                Err(Errno::NOENT) => continue,
                stat => stat?,
            };
            let directory = match FileType::from_raw_mode(stat.st_mode) {
                FileType::Directory => true,
                FileType::RegularFile => false,
                _ => continue,
            };
            let seconds = u64::try_from(stat.st_mtime).unwrap_or(0);
            let entry = Entry {
                name: name.to_owned(),
                directory,
                size: if directory { 0 } else { stat.st_size as u64 },
                modified: seconds.saturating_mul(1_000_000_000).saturating_add(stat.st_mtime_nsec as u64),
            };
            first.insert(entry.name.clone(), entry);
            if first.len() > limit {
                first.pop_last();
            }
        }
        Ok(first.into_values().collect())
    }
}
