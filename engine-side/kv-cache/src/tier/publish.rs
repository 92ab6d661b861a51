//! How a row comes into a directory: whole, or not at all.
//!
//! 1. The key is reserved: no second writer of this cache begins.
//! 2. The row is written to a temporary file beside its final place, and made durable.
//! 3. The reservation is checked: is it still the live one?
//! 4. The temporary file is linked to the final name. If that is taken, the file there is adopted if it is this row and its
//!    payload has its checksum, or replaced.
//! 5. The row is published: it can be found.
//! 6. The directory is synchronised, if the holder of the state goes away (saves for the reasons evict and shutdown).
//!
//! A crash before 4 leaves a temporary file, to be reaped; a crash between 4 and 5 a good row, to be adopted. Before 6 a power
//! cut may take a new row, but what is there is whole.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use kv_platform::signals::without_signal;
use rustix::fs::{self, AtFlags, Mode, OFlags};

use super::directory::{Directory, Found, Name, Unread, row_name};
use crate::key::Key;
use crate::limits::WRITE_BLOCK_BYTES;
use crate::row::{Crc, Flaw, Unsealed, metadata_sum};

/// A step of the publish protocol that is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// 1: the key is reserved.
    Reserved,
    /// The temporary file is there, empty.
    Created,
    /// All bytes are written.
    Written,
    /// 2: they are durable.
    Synced,
    /// 3: the reservation is the live one.
    Checked,
    /// 4: the file has its final name.
    Linked,
    /// 5: the row can be found.
    Published,
    /// 6: its name is durable; for saves whose holder goes away.
    Durable,
}

impl Step {
    /// All of them, in order.
    pub const ALL: [Step; 8] = [
        Step::Reserved,
        Step::Created,
        Step::Written,
        Step::Synced,
        Step::Checked,
        Step::Linked,
        Step::Published,
        Step::Durable,
    ];
}

/// Called after each step, for tests: it may kill the process, wait, or fail the step.
pub(crate) type StepHook = Arc<dyn Fn(Step) -> io::Result<()> + Send + Sync>;

/// A row's temporary file. It is removed when this is dropped, also after it was linked.
pub(crate) struct Temporary<'a> {
    directory: &'a Directory,
    name: String,
    pub payload_offset: u64,
    pub payload_crc32c: u32,
    pub metadata_crc32c: u32,
}

/// What is at a row's final name after step 4.
pub(crate) enum Placed {
    /// Our file.
    Ours,
    /// One that was there and is the same row.
    Adopted(Box<Found>),
}

impl Drop for Temporary<'_> {
    fn drop(&mut self) {
        // What cannot be removed now is reaped when the directory is next opened.
        let _ = self.directory.remove(&self.name);
    }
}

impl Directory {
    /// Step 2.
    pub fn write_temporary(
        &self,
        key: &Key,
        metadata: Unsealed,
        payload: &[u8],
        step: &dyn Fn(Step) -> io::Result<()>,
    ) -> io::Result<Temporary<'_>> {
        let name = self.temporary_name(key);
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = File::from(fs::openat(self.fd(), &name, flags, Mode::from(0o600))?);
        let payload_offset = metadata.len() as u64;
        let mut temporary = Temporary { directory: self, name, payload_offset, payload_crc32c: 0, metadata_crc32c: 0 };
        step(Step::Created)?;
        // The checksum is taken of each block just before it is written, while it is in the cache anyway. Writes begin at
        // multiples of the block, or the page cache would get the file in small pieces; so the first has the metadata too,
        // which is written once more when the checksum is known.
        let mut crc = Crc::new();
        let first_room = (metadata.len().next_multiple_of(WRITE_BLOCK_BYTES) - metadata.len()).min(payload.len());
        let (first, rest) = payload.split_at_checked(first_room).unwrap_or((payload, &[]));
        crc.update(first);
        // A save may be on the consumer's thread, whose files may be bounded.
        without_signal(libc::SIGXFSZ, || {
            file.write_all_at(&[metadata.as_slice(), first].concat(), 0)?;
            let mut at = payload_offset + first.len() as u64;
            for block in rest.chunks(WRITE_BLOCK_BYTES) {
                crc.update(block);
                file.write_all_at(block, at)?;
                at += block.len() as u64;
            }
            io::Result::Ok(())
        })?;
        temporary.payload_crc32c = crc.value();
        let metadata = metadata.seal(temporary.payload_crc32c);
        temporary.metadata_crc32c = metadata_sum(&metadata, None);
        file.write_all_at(&metadata, 0)?;
        step(Step::Written)?;
        kv_platform::files::sync_data(&file)?;
        step(Step::Synced)?;
        Ok(temporary)
    }

    /// Step 4. `condemn` sets a damaged file aside that is in the place.
    pub fn link(
        &self,
        temporary: &Temporary<'_>,
        key: &Key,
        payload_bytes: u64,
        condemn: &dyn Fn(&Flaw),
    ) -> io::Result<Placed> {
        let name = row_name(key);
        // Twice: what is there is removed once. Whoever puts something there again and again wins.
        for _ in 0..2 {
            match fs::linkat(self.fd(), &temporary.name, self.fd(), &name, AtFlags::empty()) {
                Err(rustix::io::Errno::EXIST) => {}
                linked => {
                    self.has_new_name();
                    return linked.map(|()| Placed::Ours).map_err(Into::into);
                }
            }
            match self.inspect(&name) {
                Ok(found) if found.metadata.head.payload_bytes == payload_bytes => match self.check_payload(&found) {
                    Ok(()) => {
                        self.has_new_name();
                        return Ok(Placed::Adopted(Box::new(found)));
                    }
                    Err(Unread::Flaw(flaw)) => condemn(&flaw),
                    Err(Unread::Io(error)) => return Err(error),
                },
                Ok(_) => self.remove(&name)?,
                Err(Unread::Flaw(flaw @ Flaw::OtherDescriptor)) => return Err(io::Error::other(flaw)),
                Err(Unread::Flaw(flaw)) if flaw.is_of_others() => {
                    return Err(io::Error::other(format!("a file with its name exists, and is left alone: {flaw}")));
                }
                Err(Unread::Flaw(flaw)) => condemn(&flaw),
                Err(Unread::Io(error)) if error.kind() == io::ErrorKind::NotFound => {}
                Err(Unread::Io(error)) => return Err(error),
            }
        }
        Err(io::Error::from(io::ErrorKind::AlreadyExists))
    }

    /// Remove the temporary files of writers that are no more. How many.
    pub fn reap(&self, names: &[(String, Name)]) -> u64 {
        let dead = |name: &str, kind: &Name| match kind {
            // Nobody else of ours writes here, and our own writers are known to the caller to rest.
            Name::Temporary { .. } if self.is_ours() => true,
            Name::Temporary { pid } => *pid != std::process::id() && self.is_stale(name),
            // Other software knows nothing of our lock.
            Name::OthersTemporary => self.is_stale(name),
            _ => false,
        };
        let reaped = names.iter().filter(|(name, kind)| dead(name, kind) && self.remove(name).is_ok());
        reaped.count() as u64
    }

    fn is_stale(&self, name: &str) -> bool {
        let Ok(stat) = fs::statat(self.fd(), name, AtFlags::SYMLINK_NOFOLLOW) else { return false };
        let now = std::time::UNIX_EPOCH.elapsed().unwrap_or_default().as_secs() as i64;
        now.saturating_sub(stat.st_mtime) > crate::limits::STALE_TEMPORARY_SECONDS as i64
    }
}
