//! The files of the segments that this process reads, syncs and fills, which somebody may have removed, or replaced by others of their names.

use std::fs::File;
use std::sync::Arc;

use rustix::fs::OFlags;

use super::segment::{Record, Writing, has_name, name_of};
use super::store::{Known, SegmentStore};
use crate::error::Error;

/// Files that a store keeps open to read.
const MAX_OPEN_FILES: usize = 256;

impl SegmentStore {
    /// The file of a segment, to read. None: it is gone.
    pub(super) fn file(&self, segment: u32) -> Result<Option<Arc<File>>, Error> {
        let logs = match self.known() {
            known if known.files.contains_key(&segment) => return Ok(known.files.get(&segment).cloned()),
            known => known.logs,
        };
        let Some(file) = self.folder.at(&name_of(segment), OFlags::RDONLY)? else { return Ok(None) };
        let file = Arc::new(file);
        let mut known = self.learning();
        if known.index.has(segment) && known.logs == logs {
            if known.files.len() >= MAX_OPEN_FILES
                && let Some(other) = known.files.keys().next().copied()
            {
                known.files.remove(&other);
            }
            known.files.insert(segment, file.clone());
        }
        Ok(Some(file))
    }

    /// Whether what was written of a record is in the segment that the log has under that number, and the log may name it.
    pub(super) fn takes(&self, known: &Known, record: &Record<'_>) -> bool {
        known.index.takes(record.place.segment) && record.reserved.writing.is_of(known.logs, &self.folder)
    }

    /// Fill another segment from now on, if this is to be.
    pub(super) fn give_up_writing(&self, is_lost: impl FnOnce(&Writing) -> bool) {
        self.writing().take_if(|own| is_lost(own));
    }

    /// The file of a segment as it lies under its name. None: it is gone.
    pub(super) fn named(&self, segment: u32) -> Result<Option<Arc<File>>, Error> {
        let own = self.writing().as_ref().filter(|own| own.segment == segment).map(|own| own.file.clone());
        let file = match own {
            Some(file) => Some(file),
            None => self.file(segment)?,
        };
        let Some(file) = file else { return Ok(None) };
        if has_name(&self.folder, segment, &file).map_err(|errno| Error::from(errno).context("a segment"))? {
            return Ok(Some(file));
        }
        self.give_up_writing(|own| own.segment == segment);
        self.learning().files.remove(&segment);
        self.file(segment)
    }
}
