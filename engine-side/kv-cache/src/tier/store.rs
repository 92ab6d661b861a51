//! Storing a row, by the protocol of [`publish`](super::publish).
//!
//! The writer's lock is held for bookkeeping and evictions, not while a row is written, linked or synchronised: a stalled disk
//! blocks the save that it stalls in, and no other. The reservation makes this safe: while it is live no other writer of this
//! cache has the key, and gc leaves its file alone. A writer that takes over after it expired finds the file in its place and
//! adopts it; the first, if it comes back, publishes nothing and begins anew.

use std::io;

use kv_platform::sync::Mutex;

use super::directory::{Directory, row_name};
use super::entry::{Body, Row};
use super::publish::{Placed, Step};
use super::writer::Writer;
use super::{Stored, Tier};
use crate::counters::add;
use crate::error::{Error, ErrorKind, Result};
use crate::key::Key;
use crate::limits::ROW_OVERHEAD_BYTES;
use crate::log;
use crate::payload::Payload;
use crate::row::{Flaw, NewRow, SaveReason};

/// A reservation that is released when it is dropped.
struct Reserved<'a> {
    tier: &'a Tier,
    key: Key,
    token: u64,
    /// Bytes of the budget.
    charged: u64,
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        self.tier.writer().release(&self.key, self.token);
    }
}

impl Tier {
    /// What a row takes of the budget.
    ///
    /// # Errors
    /// `Full`: more than the budget.
    pub fn charge(&self, new: &NewRow<'_>) -> Result<u64> {
        let before = match &self.directory {
            Some(_) => new.encoded_len() as u64,
            None => ROW_OVERHEAD_BYTES,
        };
        let charged = before + new.payload_bytes;
        if charged <= self.budget {
            return Ok(charged);
        }
        let (shown, budget) = (self.shown(), self.budget);
        let message = format!(
            "a row of {charged} bytes is larger than the budget of the tier {shown}, {budget} bytes: raise the budget"
        );
        Err(Error::new(ErrorKind::Full, message))
    }

    /// Store a row.
    pub fn store(&self, key: Key, new: &NewRow<'_>, payload: &mut Payload<'_>) -> Result<Stored> {
        let stored = match self.reserve(key, new)? {
            Ok(reserved) => self.store_reserved(&reserved, new, payload)?,
            Err(stored) => stored,
        };
        // Its holder lets go of the state, and a power cut must not take it. A row that was there may be one whose name nobody
        // synchronised.
        let held = !matches!(new.reason, SaveReason::Evict | SaveReason::Shutdown);
        if let (false, Some(directory), Stored::Done | Stored::Present) = (held, &self.directory, stored) {
            let synced = directory.sync_names().and_then(|synced| match synced {
                true => self.shared.step(Step::Durable),
                false => Ok(()),
            });
            let cannot = || format!("row {key} is stored, but cannot synchronise {}", directory.path.display());
            synced.map_err(|error| Error::io(cannot(), error))?;
        }
        Ok(stored)
    }

    /// Step 1; the inner error is why there is nothing to do.
    fn reserve(&self, key: Key, new: &NewRow<'_>) -> Result<std::result::Result<Reserved<'_>, Stored>> {
        let charged = self.charge(new)?;
        let mut writer = self.writer();
        if self.tokens_of(&key).is_some() {
            return Ok(Err(Stored::Present));
        }
        let now = self.shared.clock.monotonic();
        writer.expire(now);
        if writer.has_live_reservation(&key, now) {
            return Ok(Err(Stored::Taken));
        }
        if !self.make_room(&mut writer, charged) {
            return Err(self.no_room(charged, &writer));
        }
        let token = writer.reserve(key, charged, now, self.shared.reservation_time_to_live);
        Ok(token.map(|token| Reserved { tier: self, key, token, charged }).ok_or(Stored::Taken))
    }

    fn store_reserved(&self, reserved: &Reserved<'_>, new: &NewRow<'_>, payload: &mut Payload<'_>) -> Result<Stored> {
        let cannot =
            |error| Error::io(format!("cannot store row {} in the tier {}", reserved.key, self.shown()), error);
        self.shared.step(Step::Reserved).map_err(cannot)?;
        let stored = match &self.directory {
            Some(directory) => match self.store_file(directory, reserved, new, payload) {
                Err(error) if is_full(&error) && self.free_disk(directory, reserved.charged) => {
                    self.store_file(directory, reserved, new, payload)
                }
                stored => stored,
            },
            None => self.place(reserved, || {
                let body = Body::Memory(Mutex::new(Some(payload.take())));
                Ok(self.new_row(reserved, new, body))
            }),
        }
        .map_err(cannot)?;
        if stored == Stored::Done {
            self.shared.step(Step::Published).map_err(cannot)?;
        }
        Ok(stored)
    }

    /// Steps 2 to 5 of a row in a file.
    fn store_file(
        &self,
        directory: &Directory,
        reserved: &Reserved<'_>,
        new: &NewRow<'_>,
        payload: &Payload<'_>,
    ) -> io::Result<Stored> {
        let key = &reserved.key;
        let step = |step| self.shared.step(step);
        let temporary = directory.write_temporary(key, new.layout(), payload.as_slice(), &step)?;
        self.place(reserved, || {
            let condemn = |flaw: &Flaw| self.condemn_file(directory, &row_name(key), flaw);
            let placed = directory.link(&temporary, key, new.payload_bytes, &condemn)?;
            self.shared.step(Step::Linked)?;
            Ok(match placed {
                Placed::Ours => {
                    let body = Body::File {
                        payload_offset: temporary.payload_offset,
                        payload_crc32c: temporary.payload_crc32c,
                        metadata_crc32c: temporary.metadata_crc32c,
                    };
                    self.new_row(reserved, new, body)
                }
                Placed::Adopted(found) => {
                    add(&self.shared.counters.adopted, 1);
                    self.row_of(*key, &found, 0)
                }
            })
        })
    }

    fn new_row(&self, reserved: &Reserved<'_>, new: &NewRow<'_>, body: Body) -> Row {
        Row::new(reserved.key, new.tokens.len() as u32, new.payload_bytes, reserved.charged, body, 0)
    }

    /// Steps 3 to 5.
    fn place(&self, reserved: &Reserved<'_>, link: impl FnOnce() -> io::Result<Row>) -> io::Result<Stored> {
        let is_live = |writer: &Writer| writer.is_live(&reserved.key, reserved.token, self.shared.clock.monotonic());
        if !is_live(&self.writer()) {
            add(&self.shared.counters.saves_abandoned, 1);
            return Ok(Stored::Abandoned);
        }
        self.shared.step(Step::Checked)?;
        let row = link()?;
        let mut writer = self.writer();
        let in_time = is_live(&writer);
        writer.release(&reserved.key, reserved.token);
        if !in_time && self.directory.is_some() {
            // Another writer may have adopted the file, and the row may have been evicted since.
            add(&self.shared.counters.saves_abandoned, 1);
            return Ok(Stored::Abandoned);
        }
        self.note_later(&row);
        self.publish_now(&mut writer, row);
        if !in_time {
            // Its bytes may have been given to others.
            self.keep_budget(&mut writer);
        }
        Ok(Stored::Done)
    }

    fn no_room(&self, charged: u64, writer: &Writer) -> Error {
        let message = format!(
            "the tier {} has no room for {charged} bytes: of {}, {} are in use or being written and cannot be evicted; \
             release hits, or raise the budget",
            self.shown(),
            self.budget,
            writer.used() + writer.reserved()
        );
        Error::new(ErrorKind::Full, message)
    }

    /// The disk is full below the tier's budget: evict the oldest rows until `bytes` fit. False, and nothing is evicted, where the
    /// rows that are not in use are not enough.
    fn free_disk(&self, directory: &Directory, bytes: u64) -> bool {
        let wanted = directory.bytes_to_free(bytes);
        let mut writer = self.writer();
        let unused = writer.all().filter(|row| !row.is_in_use()).fold(0u64, |sum, row| sum.saturating_add(row.charged));
        if unused < wanted {
            return false;
        }
        let target = writer.used().saturating_sub(wanted);
        self.shrink(&mut writer, target);
        drop(writer);
        let path = directory.path.display();
        log::warn(format_args!("{path} is full below its budget: the oldest {wanted} bytes were evicted"));
        true
    }
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOSPC | libc::EDQUOT))
}
