//! How rows leave a tier: for room, on request, or because their file turned out damaged.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::Tier;
use super::directory::{Directory, SetAside, Unread, row_name};
use super::entry::Row;
use super::writer::Writer;
use crate::counters::add;
use crate::error::{Error, ErrorKind};
use crate::key::Key;
use crate::log;
use crate::row::Flaw;

impl Tier {
    /// Evict the oldest rows until `bytes` more fit into the budget. Rows in use stay; where the others are not enough this is
    /// false, and they stay too.
    pub(super) fn make_room(&self, writer: &mut Writer, bytes: u64) -> bool {
        let Some(target) = self.budget.checked_sub(bytes).and_then(|rest| rest.checked_sub(writer.reserved())) else {
            return false;
        };
        let excess = writer.used().saturating_sub(target);
        let mut unused = 0u64;
        let enough = excess == 0
            || writer.all().filter(|row| !row.is_in_use()).any(|row| {
                unused = unused.saturating_add(row.charged);
                unused >= excess
            });
        if enough {
            self.shrink(writer, target);
        }
        writer.used() <= target
    }

    /// Evict the oldest rows until the others fit into the budget, or all are in use.
    pub(super) fn keep_budget(&self, writer: &mut Writer) {
        let target = self.budget.saturating_sub(writer.reserved());
        self.shrink(writer, target);
    }

    /// Evict the oldest rows that are not in use until the rows take at most `target` bytes.
    pub(super) fn shrink(&self, writer: &mut Writer, target: u64) {
        let mut after = 0;
        while writer.used() > target {
            let Some(row) = writer.oldest(after) else { return };
            if !self.evict_row(writer, &row) {
                after = row.filed.load(Relaxed) + 1;
            }
        }
    }

    /// Evict a row unless it is in use.
    fn evict_row(&self, writer: &mut Writer, row: &Arc<Row>) -> bool {
        if !row.retire_unused() {
            return false;
        }
        self.forget(writer, row);
        if let Some(directory) = &self.directory
            && let Err(error) = directory.remove(&row_name(&row.key))
            && error.kind() != io::ErrorKind::NotFound
        {
            log::warn(format_args!("cannot remove row {} from {}: {error}", row.key, directory.path.display()));
        }
        add(&self.shared.counters.evictions, 1);
        add(&self.shared.counters.evicted_bytes, row.charged);
        true
    }

    /// Take a retired row out of the index and the account.
    pub(super) fn forget(&self, writer: &mut Writer, row: &Arc<Row>) -> bool {
        let ours = writer.remove(row);
        if ours {
            self.index.pin().remove(&row.key);
        }
        row.drop_memory();
        ours
    }

    /// Evict the row of this key. False where there is none, or it is in use.
    pub fn evict(&self, key: &Key) -> bool {
        let mut writer = self.writer();
        let row = self.index.pin().get(key).cloned();
        row.is_some_and(|row| self.evict_row(&mut writer, &row))
    }

    /// Evict the oldest rows until `bytes` were freed. How many rows and bytes were.
    pub fn evict_bytes(&self, bytes: u64) -> (u64, u64) {
        let mut writer = self.writer();
        let (rows, used) = (writer.rows() as u64, writer.used());
        self.shrink(&mut writer, used.saturating_sub(bytes));
        (rows - writer.rows() as u64, used - writer.used())
    }

    /// A row could not be read. If it is damaged or gone it is not found again, and its file is set aside; where there is a
    /// good file of this key that is not the one that was indexed, because another process evicted the row and saved it anew,
    /// that is indexed in its place.
    pub(super) fn lost(&self, row: &Arc<Row>, unread: Unread) -> Error {
        add(&self.shared.counters.load_misses, 1);
        let flaw = match unread {
            Unread::Flaw(flaw) => Some(flaw),
            Unread::Io(error) if error.raw_os_error() == Some(libc::EIO) => {
                Some(Flaw::Corrupt("the disk cannot read it"))
            }
            Unread::Io(error) if error.kind() == io::ErrorKind::NotFound => None,
            // The row may be as good as ever: too many open files, no memory.
            Unread::Io(error) => return Error::io(format!("cannot read row {} of {}", row.key, self.shown()), error),
        };
        let there = match (&self.directory, &flaw) {
            (Some(directory), Some(_)) => self.look_again(directory, row),
            _ => AtName::Nothing,
        };
        let mut writer = self.writer();
        row.retire();
        // Somebody else may have found out before, and a new row may be in its place.
        let ours = self.forget(&mut writer, row);
        let why = match (there, flaw) {
            (AtName::SavedAnew(anew), _) => {
                if ours {
                    add(&self.shared.counters.adopted, 1);
                    self.publish_now(&mut writer, anew);
                    self.keep_budget(&mut writer);
                }
                "another process saved it again; look up again".into()
            }
            (AtName::OfOthers(later), _) => {
                self.shared.counters.flaw(&later);
                later.to_string()
            }
            (AtName::Damaged, Some(flaw)) => {
                if let (Some(directory), true) = (&self.directory, ours) {
                    self.condemn_file(directory, &row_name(&row.key), &flaw);
                }
                flaw.to_string()
            }
            (AtName::Damaged | AtName::Nothing, _) => "its file is gone".into(),
        };
        drop(writer);
        Error::new(ErrorKind::Miss, format!("row {} of {} cannot be used: {why}", row.key, self.shown()))
    }

    /// What is at the name of a row that could not be used.
    fn look_again(&self, directory: &Directory, row: &Row) -> AtName {
        match directory.inspect(&row_name(&row.key)) {
            Ok(found) => {
                let anew = self.row_of(row.key, &found, 0);
                if anew.has_the_file_of(row) { AtName::Damaged } else { AtName::SavedAnew(anew) }
            }
            Err(Unread::Flaw(flaw)) if flaw.is_of_others() => AtName::OfOthers(flaw),
            Err(Unread::Io(error)) if error.kind() == io::ErrorKind::NotFound => AtName::Nothing,
            Err(_) => AtName::Damaged,
        }
    }

    /// Set a damaged file aside, count it and say so.
    pub(super) fn condemn_file(&self, directory: &Directory, name: &str, flaw: &Flaw) {
        let path = directory.path.display();
        match directory.set_aside(name) {
            // Another process put a good row there meanwhile.
            Ok(SetAside::PutBack) => return,
            // Or it removed the file.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return,
            Ok(SetAside::Moved) => log::warn(format_args!("{path}/{name} is damaged ({flaw}): moved to set-aside/")),
            Err(error) => {
                log::warn(format_args!("{path}/{name} is damaged ({flaw}), and cannot be moved to set-aside/: {error}"))
            }
        }
        self.shared.counters.flaw(flaw);
    }
}

/// What is at the name of a row that could not be used.
enum AtName {
    /// A good row of the key, in a file other than the one that was indexed.
    SavedAnew(Row),
    /// A row of a later version or of another descriptor.
    OfOthers(Flaw),
    Damaged,
    Nothing,
}
