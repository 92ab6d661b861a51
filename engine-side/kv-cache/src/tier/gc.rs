//! Bringing a tier in order: what others left in its directory, what is missing there, and the budget.

use std::collections::HashSet;
use std::ops::AddAssign;
use std::sync::Arc;

use serde::Serialize;

use super::directory::Name;
use super::{LeftAlone, Pinned, Seen, Tier};
use crate::counters::add;
use crate::error::{Error, Result};
use crate::key::Key;

/// What [`Cache::gc`](crate::Cache::gc) did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Gc {
    /// Rows whose file was gone.
    pub rows_lost: u64,
    /// Good row files that no row was known of.
    pub adopted: u64,
    /// Temporary files of dead writers.
    pub temporaries: u64,
    /// Damaged files that had been set aside: those removed now, and those removed since the last time because there were too many.
    pub set_aside_removed: u64,
    /// Rows evicted to keep the budgets.
    pub evicted: u64,
    /// Their bytes.
    pub evicted_bytes: u64,
    /// Row files of a later version, which are left alone.
    pub later_left: u64,
    /// Files whose names end like a row's and are none, which are left alone.
    pub misnamed_left: u64,
}

impl AddAssign for Gc {
    fn add_assign(&mut self, other: Gc) {
        let Gc {
            rows_lost,
            adopted,
            temporaries,
            set_aside_removed,
            evicted,
            evicted_bytes,
            later_left,
            misnamed_left,
        } = other;
        self.rows_lost += rows_lost;
        self.adopted += adopted;
        self.temporaries += temporaries;
        self.set_aside_removed += set_aside_removed;
        self.evicted += evicted;
        self.evicted_bytes += evicted_bytes;
        self.later_left += later_left;
        self.misnamed_left += misnamed_left;
    }
}

impl Tier {
    /// Bring the tier in order: reservations whose time is over, rows without a file and files without a row, damaged files
    /// that were set aside, temporary files of dead writers, and the budget.
    pub fn gc(&self) -> Result<Gc> {
        let mut gc = Gc::default();
        let mut writer = self.writer();
        writer.expire(self.shared.clock.monotonic());
        if let Some(directory) = &self.directory {
            let cannot = |error| Error::io(format!("cannot bring {} in order", directory.path.display()), error);
            let names = directory.names().map_err(cannot)?;
            let files: HashSet<Key> = names.iter().filter_map(|(_, name)| row_key(name)).collect();
            let lost: Vec<_> = writer.all().filter(|row| !files.contains(&row.key)).cloned().collect();
            for row in lost {
                row.retire();
                gc.rows_lost += u64::from(self.forget(&mut writer, &row));
            }
            // A reservation may have its temporary file here; with none, nobody writes.
            if writer.reserved() == 0 {
                gc.temporaries = directory.reap(&names);
                add(&self.shared.counters.temporaries_reaped, gc.temporaries);
            }
            gc.misnamed_left = LeftAlone::of(&names).misnamed;
            // The writer of a reserved key is about to publish its file.
            let is_unknown = |key: Key| self.index.pin().get(&key).is_none() && !writer.is_reserved(&key);
            let unknown: Vec<_> = names.into_iter().filter(|(_, name)| row_key(name).is_some_and(is_unknown)).collect();
            let mut orphans = Vec::new();
            directory.look_at(&unknown, |name, seen| match seen {
                Seen::OfOthers(_) => gc.later_left += 1,
                Seen::Row(key, found) => orphans.push(self.row_of(key, &found, 0)),
                Seen::Flawed(flaw) => self.condemn_file(directory, name, &flaw),
                Seen::Unread(_) => {}
            });
            for row in orphans {
                self.publish_now(&mut writer, row);
                gc.adopted += 1;
            }
            add(&self.shared.counters.adopted, gc.adopted);
            gc.set_aside_removed = directory.empty_set_aside().map_err(cannot)?;
        }
        let (rows, used) = (writer.rows() as u64, writer.used());
        self.keep_budget(&mut writer);
        gc.evicted = rows - writer.rows() as u64;
        gc.evicted_bytes = used - writer.used();
        Ok(gc)
    }
}

impl Tier {
    /// Read every row's file to its end, and set the damaged ones aside.
    pub fn check_rows(self: &Arc<Self>) {
        let rows: Vec<_> = self.index.pin().values().filter(|row| row.pin()).cloned().collect();
        for row in rows {
            // A row that could not be used is forgotten and counted.
            let _ = Pinned::new(row, self.clone()).check();
        }
    }
}

fn row_key(name: &Name) -> Option<Key> {
    match name {
        Name::Row(key) => Some(*key),
        _ => None,
    }
}
