//! A row in a reader's hands.

use std::mem::MaybeUninit;
use std::sync::Arc;

use super::entry::Row;
use super::load::Bytes;
use super::{Tier, TierKind};
use crate::error::{Error, ErrorKind, Result};

/// A row that is in use: it is not evicted before this is dropped.
pub(crate) struct Pinned {
    row: Arc<Row>,
    tier: Arc<Tier>,
}

impl Drop for Pinned {
    fn drop(&mut self) {
        self.row.unpin();
    }
}

impl Pinned {
    /// A row that was just pinned.
    pub fn new(row: Arc<Row>, tier: Arc<Tier>) -> Pinned {
        Pinned { row, tier }
    }

    pub fn row(&self) -> &Row {
        &self.row
    }

    pub fn tier(&self) -> TierKind {
        self.tier.kind
    }

    /// Copy the payload into a buffer of exactly its size.
    pub fn read<'a>(&self, buffer: &'a mut [MaybeUninit<u8>]) -> Result<&'a mut [u8]> {
        match &self.tier.directory {
            Some(directory) => {
                directory.read_row(&self.row, buffer).map_err(|unread| self.tier.lost(&self.row, unread))
            }
            None => {
                let bytes = self.row.memory().ok_or_else(|| self.gone())?;
                Ok(buffer.write_copy_of_slice(&bytes))
            }
        }
    }

    /// Read a row's file to its end.
    pub fn check(&self) -> Result<()> {
        match &self.tier.directory {
            Some(directory) => directory.check_row(&self.row).map_err(|unread| self.tier.lost(&self.row, unread)),
            None => Ok(()),
        }
    }

    pub fn view(&self) -> Result<Bytes> {
        match &self.tier.directory {
            Some(directory) => directory.view_row(&self.row).map_err(|unread| self.tier.lost(&self.row, unread)),
            None => self.row.memory().map(Bytes::Memory).ok_or_else(|| self.gone()),
        }
    }

    fn gone(&self) -> Error {
        Error::new(ErrorKind::Miss, format!("row {} is gone", self.row.key))
    }
}
