//! The directory of a tier: names, its lock, and reading a row's file.
//!
//! Everything is relative to an open descriptor, so a directory that is moved or replaced under our feet is no other
//! directory. `<64 hex digits>.kvc` is a row; `<row>.tmp.<pid>.<token>` one that is being written; `set-aside/` has damaged
//! ones; `.lock` is held by the process that the directory belongs to. Files with other names are left alone.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, FileExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use kv_platform::signals::without_signal;
use kv_platform::sync::Mutex;
use rustix::fs::{self, AtFlags, Dir as DirStream, FlockOperation, Mode, OFlags};

use crate::descriptor::DIGEST_BYTES;
use crate::error::{Error, ErrorKind, Result};
use crate::key::Key;
use crate::limits::{MAX_SET_ASIDE, MAX_SET_ASIDE_BYTES};
use crate::row::{self, Flaw, RowMetadata};
use crate::tier::marker;

pub(crate) const EXTENSION: &str = ".kvc";
const SET_ASIDE: &str = "set-aside";
const LOCK: &str = ".lock";

pub(crate) struct Directory {
    pub path: PathBuf,
    fd: OwnedFd,
    /// The digest of what is said of the rows: others' are not read. `None`: all are.
    pub descriptor: Option<[u8; DIGEST_BYTES]>,
    /// Held as long as the directory is open: exclusive where it is ours, else shared, where the file system has locks.
    lock: Option<File>,
    ours: bool,
    temporaries: AtomicU64,
    /// Files that were set aside and made room for others since [`Directory::empty_set_aside`].
    trimmed: AtomicU64,
    /// Names came since the directory was synchronised, or may have come before it was opened.
    unsynced: Mutex<bool>,
}

/// What a name in the directory stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Name {
    Row(Key),
    /// Ends like a row's name, but is none. Left alone, and reported.
    Misnamed,
    Temporary {
        pid: u32,
    },
    /// Of other software of the format, which names its own `<row>.<writer>.tmp`.
    OthersTemporary,
    Ours,
    Stranger,
}

/// A row's file that was read up to its payload.
pub(crate) struct Found {
    /// Open, so that what is read of it later is of the same file.
    pub file: File,
    pub metadata: RowMetadata,
    pub metadata_crc32c: u32,
    pub file_bytes: u64,
    /// Unix time in nanoseconds when the file was last changed; the cache notes the last use there.
    pub modified: i128,
}

/// What became of a file that was to be set aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SetAside {
    Moved,
    /// It was a good row, or one of others, and is in its place.
    PutBack,
}

/// Why a row's file could not be read.
#[derive(Debug)]
pub(crate) enum Unread {
    Flaw(Flaw),
    Io(io::Error),
}

impl From<Flaw> for Unread {
    fn from(flaw: Flaw) -> Self {
        Unread::Flaw(flaw)
    }
}

impl From<rustix::io::Errno> for Unread {
    fn from(error: rustix::io::Errno) -> Self {
        Unread::Io(error.into())
    }
}

impl From<io::Error> for Unread {
    fn from(error: io::Error) -> Self {
        Unread::Io(error)
    }
}

impl Directory {
    /// Open a directory, made if it is not there, and take its lock.
    ///
    /// # Errors
    /// `Busy` if another process (or another cache of this one) has it; of two that both share it none does.
    pub fn open(path: &Path, exclusive: bool) -> Result<Directory> {
        let missing: Vec<&Path> = path.ancestors().take_while(|path| !path.exists()).collect();
        // What is in a prompt is nobody else's business.
        let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
        made.map_err(|error| Error::io(format!("cannot make the directory {}", path.display()), error))?;
        // A row that lasts is of no use in a directory that does not. (One that cannot be read cannot be synchronised.)
        for parent in missing.into_iter().filter_map(Path::parent) {
            if let Ok(opened) = File::open(parent) {
                sync(&opened).map_err(|error| Error::io(format!("cannot synchronise {}", parent.display()), error))?;
            }
        }
        let mut directory = Directory::open_existing(path)?;
        directory.lock = directory.take_lock(exclusive)?;
        directory.ours = exclusive;
        marker::leave(&directory.fd);
        Ok(directory)
    }

    /// Open a directory to look at, without its lock.
    pub fn open_existing(path: &Path) -> Result<Directory> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = fs::open(path, flags, Mode::empty())
            .map_err(|error| Error::io(format!("cannot open the directory {}", path.display()), error.into()))?;
        marker::refuse_store(path, &fd)?;
        // Not from 0, so that the names of a process that had our number are not in the way.
        let start = std::time::UNIX_EPOCH.elapsed().unwrap_or_default().as_nanos() as u64;
        Ok(Directory {
            path: path.to_owned(),
            fd,
            descriptor: None,
            lock: None,
            ours: false,
            temporaries: AtomicU64::new(start),
            trimmed: AtomicU64::new(0),
            unsynced: Mutex::new(true),
        })
    }

    /// The lock: exclusive, or shared with those that share too; that is `None` where there are no locks.
    fn take_lock(&self, exclusive: bool) -> Result<Option<File>> {
        use rustix::io::Errno;
        let shown = self.path.display();
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = match fs::openat(&self.fd, LOCK, flags, Mode::from(0o600)) {
            Ok(file) => File::from(file),
            // Who cannot write here can still read rows.
            Err(Errno::ROFS | Errno::ACCESS) if !exclusive => return Ok(None),
            Err(error) => return Err(Error::io(format!("cannot open {shown}/{LOCK}"), error.into())),
        };
        let operation = match exclusive {
            true => FlockOperation::NonBlockingLockExclusive,
            false => FlockOperation::NonBlockingLockShared,
        };
        match fs::flock(&file, operation) {
            Ok(()) => {
                // For people who wonder who has it; of those that share it there may be many.
                let _ = file.set_len(0);
                if exclusive {
                    let id = std::process::id().to_string();
                    let _ = without_signal(libc::SIGXFSZ, || file.write_all_at(id.as_bytes(), 0));
                }
                Ok(Some(file))
            }
            Err(Errno::WOULDBLOCK) => {
                let mut owner = [0; 16];
                let n = file.read_at(&mut owner, 0).unwrap_or(0);
                let owner = String::from_utf8_lossy(owner.get(..n).unwrap_or_default()).into_owned();
                let message = match owner.as_str() {
                    "" => format!(
                        "{shown} is in use by caches that share it (exclusive = false); close those, or use another directory"
                    ),
                    owner => format!(
                        "{shown} belongs to another cache, of process {owner}; close that one, or use another directory"
                    ),
                };
                Err(Error::new(ErrorKind::Busy, message))
            }
            Err(Errno::NOLCK | Errno::OPNOTSUPP | Errno::NOSYS) if !exclusive => Ok(None),
            Err(error) => {
                let hint = match exclusive {
                    true => ": a file system without locks serves with exclusive = false, at the price of mapped views",
                    false => "",
                };
                Err(Error::io(format!("cannot lock {shown}/{LOCK}{hint}"), error.into()))
            }
        }
    }

    /// Whether nobody else changes its files, so that they can be mapped.
    pub fn is_ours(&self) -> bool {
        self.ours
    }

    pub fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    /// The name of a temporary file for this row, as no other writer has it.
    pub fn temporary_name(&self, key: &Key) -> String {
        let token = self.temporaries.fetch_add(1, Relaxed);
        format!("{key}{EXTENSION}.tmp.{}.{token:x}", std::process::id())
    }

    /// Every name in the directory.
    pub fn names(&self) -> io::Result<Vec<(String, Name)>> {
        let mut names = Vec::new();
        for entry in DirStream::read_from(&self.fd)? {
            let entry = entry?;
            // All of our names are ASCII.
            if let Ok(name) = entry.file_name().to_str()
                && name != "."
                && name != ".."
            {
                names.push((name.to_owned(), classify(name)));
            }
        }
        Ok(names)
    }

    pub fn open_file(&self, name: &str) -> io::Result<File> {
        // Not blocking, or a FIFO of that name would hang us.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let file = File::from(fs::openat(&self.fd, name, flags, Mode::empty())?);
        Ok(file)
    }

    /// Read a row's file up to its payload, and check all of that.
    pub fn inspect(&self, name: &str) -> std::result::Result<Found, Unread> {
        self.inspect_as(name, name)
    }

    /// The same of a file at `path`, whose name should be `name`.
    fn inspect_as(&self, path: &str, name: &str) -> std::result::Result<Found, Unread> {
        let file = match self.open_file(path) {
            // A link where a row should be.
            Err(error) if error.raw_os_error() == Some(libc::ELOOP) => return Err(Flaw::Foreign.into()),
            file => file?,
        };
        let found = inspect(file)?;
        match classify(name) {
            Name::Row(key) if found.metadata.key() != key => {
                Err(Flaw::Corrupt("its content is not that of its name").into())
            }
            _ if found.metadata.is_of_another(self.descriptor) => Err(Flaw::OtherDescriptor.into()),
            _ => Ok(found),
        }
    }

    /// A row has its name now, which a power cut may take.
    pub fn has_new_name(&self) {
        *self.unsynced.lock() = true;
    }

    /// Make the names of all rows last. False where nothing had to be done.
    pub fn sync_names(&self) -> io::Result<bool> {
        // Who comes meanwhile waits: the names that it asks for may be those that are being synchronised.
        let mut unsynced = self.unsynced.lock();
        if !std::mem::take(&mut *unsynced) {
            return Ok(false);
        }
        let synced = sync(&self.fd);
        *unsynced = synced.is_err();
        synced.map(|()| true)
    }

    /// How much has to be freed so that a file of so many bytes fits on the disk, which just had no room for it.
    pub fn bytes_to_free(&self, bytes: u64) -> u64 {
        let Ok(stat) = fs::fstatvfs(&self.fd) else { return bytes };
        let (block, free) = (stat.f_frsize.max(1), stat.f_bavail.saturating_mul(stat.f_frsize));
        // Some blocks more, for what a file system keeps of a file besides its content.
        let wanted = bytes.div_ceil(block).saturating_add(4).saturating_mul(block);
        match wanted.saturating_sub(free) {
            // A quota, of which nothing is told.
            0 => bytes,
            missing => missing,
        }
    }

    pub fn remove(&self, name: &str) -> io::Result<()> {
        fs::unlinkat(&self.fd, name, AtFlags::empty()).map_err(Into::into)
    }

    /// Move a file to where damaged ones are kept for people, and let the oldest of those go.
    ///
    /// Where others write here too, one of them may have put a good row in the place of the damaged one since that was looked
    /// at. So what was moved is looked at again, payload included, and put back if it is good.
    pub fn set_aside(&self, name: &str) -> io::Result<SetAside> {
        match fs::mkdirat(&self.fd, SET_ASIDE, Mode::from(0o700)) {
            Err(error) if error != rustix::io::Errno::EXIST => return Err(error.into()),
            _ => {}
        }
        let aside = format!("{SET_ASIDE}/{name}");
        if let Err(error) = fs::renameat(&self.fd, name, &self.fd, &aside) {
            // Whatever it is, it must not be found again.
            self.remove(name).map_err(|_| error)?;
            self.trimmed.fetch_add(1, Relaxed);
            return Ok(SetAside::Moved);
        }
        if !self.ours && self.is_to_be_kept(&aside, name) {
            // A row that came to the place meanwhile is as good.
            let _ = fs::linkat(&self.fd, &aside, &self.fd, name, AtFlags::empty());
            return self.remove(&aside).map(|()| SetAside::PutBack);
        }
        let trimmed = self.trim_set_aside(MAX_SET_ASIDE)?;
        self.trimmed.fetch_add(trimmed, Relaxed);
        Ok(SetAside::Moved)
    }

    /// Remove all files that were set aside. How many, with those that were removed since the last time.
    pub fn empty_set_aside(&self) -> io::Result<u64> {
        let removed = self.trim_set_aside(0)?;
        Ok(removed + self.trimmed.swap(0, Relaxed))
    }

    /// Whether the file at `path` is a whole row for the place `name`, or one of others.
    fn is_to_be_kept(&self, path: &str, name: &str) -> bool {
        match self.inspect_as(path, name) {
            Ok(found) => self.check_payload(&found).is_ok(),
            Err(Unread::Flaw(flaw)) => flaw.is_of_others(),
            Err(Unread::Io(_)) => false,
        }
    }

    /// Remove all but the newest `keep` of the files that were set aside. How many went.
    fn trim_set_aside(&self, keep: usize) -> io::Result<u64> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let folder = match fs::openat(&self.fd, SET_ASIDE, flags, Mode::empty()) {
            Err(rustix::io::Errno::NOENT) => return Ok(0),
            folder => folder?,
        };
        let mut files = Vec::new();
        for entry in DirStream::read_from(&folder)? {
            let entry = entry?;
            if let Ok(stat) = fs::statat(&folder, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW)
                && fs::FileType::from_raw_mode(stat.st_mode) != fs::FileType::Directory
            {
                // When it was moved here.
                files.push(((stat.st_ctime, stat.st_ctime_nsec), stat.st_size as u64, entry.file_name().to_owned()));
            }
        }
        files.sort();
        let (mut kept, mut bytes, mut gone) = (0, 0u64, 0);
        for (_, size, name) in files.iter().rev() {
            bytes = bytes.saturating_add(*size);
            if kept < keep && bytes <= MAX_SET_ASIDE_BYTES {
                kept += 1;
            } else {
                fs::unlinkat(&folder, name.as_c_str(), AtFlags::empty())?;
                gone += 1;
            }
        }
        Ok(gone)
    }

    /// Note the last use of a row, for the order in which a later process finds the rows.
    pub fn note_use(&self, name: &str, unix_nanos: u64) -> io::Result<()> {
        let used =
            fs::Timespec { tv_sec: (unix_nanos / 1_000_000_000) as i64, tv_nsec: (unix_nanos % 1_000_000_000) as _ };
        let times = fs::Timestamps { last_access: used, last_modification: used };
        fs::utimensat(&self.fd, name, &times, AtFlags::SYMLINK_NOFOLLOW).map_err(Into::into)
    }
}

/// Make the names in a directory last, where the file system has such a thing.
fn sync(directory: impl AsFd) -> io::Result<()> {
    match kv_platform::files::sync(directory) {
        Ok(()) | Err(rustix::io::Errno::INVAL | rustix::io::Errno::OPNOTSUPP) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

pub(crate) fn row_name(key: &Key) -> String {
    format!("{key}{EXTENSION}")
}

pub(crate) fn classify(name: &str) -> Name {
    if name == LOCK || name == SET_ASIDE || name == marker::NAME {
        return Name::Ours;
    }
    if let Some(stem) = name.strip_suffix(EXTENSION) {
        return Key::from_hex(stem).map_or(Name::Misnamed, Name::Row);
    }
    let temporary = || {
        let (row, rest) = name.split_once(".tmp.")?;
        Key::from_hex(row.strip_suffix(EXTENSION)?)?;
        let (pid, token) = rest.split_once('.')?;
        u64::from_str_radix(token, 16).ok()?;
        Some(Name::Temporary { pid: pid.parse().ok()? })
    };
    let of_others = || {
        let (row, writer) = name.strip_suffix(".tmp")?.split_once(EXTENSION)?;
        Key::from_hex(row)?;
        writer.starts_with('.').then_some(Name::OthersTemporary)
    };
    temporary().or_else(of_others).unwrap_or(Name::Stranger)
}

fn inspect(file: File) -> std::result::Result<Found, Unread> {
    let stat = fs::fstat(&file)?;
    if fs::FileType::from_raw_mode(stat.st_mode) != fs::FileType::RegularFile {
        return Err(Flaw::Foreign.into());
    }
    let file_bytes = stat.st_size as u64;
    let mut bytes = vec![0; crate::limits::SCAN_READ_BYTES.min(file_bytes as usize)];
    read_full(&file, &mut bytes, 0)?;
    let head = row::parse_head(&bytes, file_bytes)?;
    let metadata_bytes = head.payload_offset as usize;
    let read = bytes.len();
    if metadata_bytes > read {
        bytes.resize(metadata_bytes, 0);
        if let Some(rest) = bytes.get_mut(read..) {
            read_full(&file, rest, read as u64)?;
        }
    }
    let metadata = row::parse(&bytes, file_bytes)?;
    Ok(Found {
        metadata_crc32c: row::metadata_sum(bytes.get(..metadata_bytes).unwrap_or_default(), None),
        metadata,
        file,
        file_bytes,
        modified: i128::from(stat.st_mtime) * 1_000_000_000 + i128::from(stat.st_mtime_nsec),
    })
}

/// Read exactly; a file that became shorter is truncated.
pub(crate) fn read_full(file: &File, bytes: &mut [u8], offset: u64) -> std::result::Result<(), Unread> {
    file.read_exact_at(bytes, offset).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => Unread::Flaw(Flaw::Truncated),
        _ => Unread::Io(error),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The names that a tier finds again, of this software and of others.
    #[test]
    fn golden_names() {
        let folder = tempfile::tempdir().unwrap();
        let directory = Directory::open(folder.path(), true).unwrap();
        let key = Key(std::array::from_fn(|n| n as u8));
        let row = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f.kvc";
        assert_eq!(row_name(&key), row);
        let temporary = directory.temporary_name(&key);
        assert!(temporary.starts_with(&format!("{row}.tmp.{}.", std::process::id())), "{temporary}");
        std::fs::write(folder.path().join(row), "no row").unwrap();
        directory.set_aside(row).unwrap();
        assert!(folder.path().join("set-aside").join(row).exists());
        let own =
            [".lock", ".token-cache", "set-aside"].map(|name| (folder.path().join(name).exists(), classify(name)));
        assert_eq!(own, [(true, Name::Ours); 3]);
    }

    #[test]
    fn names_are_told_apart() {
        let key = Key([0xab; 32]);
        assert_eq!(classify(&row_name(&key)), Name::Row(key));
        assert_eq!(classify(&format!("{key}.kvc.tmp.12.ff")), Name::Temporary { pid: 12 });
        for stranger in [&key.to_string(), "a.tmp.1.2", &format!("{key}.kvc.tmp.x.1"), &format!("{key}.kvc.tmp.1"), "é"]
        {
            assert_eq!(classify(stranger), Name::Stranger, "{stranger}");
        }
        assert_eq!(classify(&format!("{key}.kvc.<0.123.0>.45.tmp")), Name::OthersTemporary);
        for stranger in
            ["x.kvc.1.tmp".into(), format!("{key}.kvc.tmp"), format!("{key}.kvcx.tmp"), format!("{key}.tmp")]
        {
            assert_eq!(classify(&stranger), Name::Stranger, "{stranger}");
        }
        assert_eq!(classify("model.kvc"), Name::Misnamed);
        assert_eq!((classify(".lock"), classify("set-aside")), (Name::Ours, Name::Ours));
    }

    #[test]
    fn only_the_newest_damaged_files_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let directory = Directory::open(folder.path(), true).unwrap();
        for i in 0..MAX_SET_ASIDE + 3 {
            std::fs::write(folder.path().join(format!("{i}.kvc")), "x").unwrap();
            directory.set_aside(&format!("{i}.kvc")).unwrap();
            // The times of change that the order rests on are coarse.
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        let kept: Vec<_> = std::fs::read_dir(folder.path().join(SET_ASIDE)).unwrap().collect();
        assert_eq!(kept.len(), MAX_SET_ASIDE);
        for i in 0..3 {
            assert!(!folder.path().join(SET_ASIDE).join(format!("{i}.kvc")).exists(), "{i} is older");
        }
        assert_eq!(directory.empty_set_aside().unwrap(), MAX_SET_ASIDE as u64 + 3);
        assert_eq!(directory.empty_set_aside().unwrap(), 0);
    }
}
