//! Files for what the store has: each value in a file of its own, which appears whole by a rename or not at all.
//!
//! `DIR/objects/<xx>/<name>` holds a value, where `name` is the SHA-256 of the entry's name in hex and `xx` its first two
//! digits; `DIR/new` what is being written; `DIR/damaged` what was found damaged at a start. A file is a magic, the XXH3 of
//! the rest, the entry's name, the names of a manifest's chunks, and the value.

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, File};
use std::hash::Hasher;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::SystemTime;

use sha2::{Digest, Sha256};
use twox_hash::XxHash3_64;

use crate::names::{Name, Value};

const MAGIC: &[u8; 8] = b"MKVFILE1";

pub struct Disk {
    root: PathBuf,
    written: AtomicU64,
    /// Held for as long as this process uses the folder.
    _lock: File,
}

/// What a file holds.
pub struct Found {
    pub name: Name,
    pub value: Value,
    pub chunks: Vec<Name>,
}

/// What a sync that failed leaves in doubt: a second one would succeed and prove nothing.
pub enum Doubt {
    /// Nothing was tried.
    None,
    /// The bytes of this entry.
    File(Name),
    /// Which files that were not synced before are in this folder.
    Folder(PathBuf),
}

/// A file that is written and does not appear yet. Dropped, it never does.
pub struct Staged {
    from: PathBuf,
    to: PathBuf,
}

impl Staged {
    pub fn appear(self) -> io::Result<()> {
        fs::rename(&self.from, &self.to)
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        // Gone already if it has appeared.
        let _ = fs::remove_file(&self.from);
    }
}

/// A folder for this user alone, as are the files in it.
fn open_folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

fn create_file(path: &Path) -> io::Result<File> {
    File::options().write(true).create(true).truncate(true).mode(0o600).open(path)
}

fn sync(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

/// A failure, and the doubt that it leaves if the kernel has tried.
fn if_tried(error: io::Error, doubt: impl FnOnce() -> Doubt) -> (io::Error, Doubt) {
    use rustix::io::Errno;
    const NOT_TRIED: [Errno; 6] = [Errno::INTR, Errno::NOMEM, Errno::INVAL, Errno::BADF, Errno::MFILE, Errno::NFILE];
    let was_tried = Errno::from_io_error(&error).is_none_or(|errno| !NOT_TRIED.contains(&errno));
    let doubt = if was_tried { doubt() } else { Doubt::None };
    (error, doubt)
}

impl Disk {
    /// Use a folder, which is made if it is missing. Only one server at a time can.
    pub fn open(root: &Path) -> io::Result<Self> {
        for folder in ["new", "damaged", "objects"] {
            open_folder(&root.join(folder))?;
        }
        let lock = create_file(&root.join("lock"))?;
        lock.try_lock().map_err(|error| match error {
            fs::TryLockError::WouldBlock => io::Error::other("another server uses this folder"),
            fs::TryLockError::Error(error) => error,
        })?;
        for unfinished in fs::read_dir(root.join("new"))? {
            fs::remove_file(unfinished?.path())?;
        }
        for first in 0..=u8::MAX {
            open_folder(&root.join(format!("objects/{first:02x}")))?;
        }
        sync(&root.join("objects"))?;
        sync(root)?;
        Ok(Disk { root: root.to_owned(), written: AtomicU64::new(0), _lock: lock })
    }

    fn path(&self, name: &[u8]) -> PathBuf {
        let digest = hex::encode(Sha256::digest(name));
        let folder = digest.get(..2).unwrap_or_default();
        self.root.join("objects").join(folder).join(&digest)
    }

    /// Write a file that does not appear yet.
    pub fn stage(&self, name: &Name, value: &[u8], chunks: &[Name], sync: bool) -> io::Result<Staged> {
        let mut head = Vec::new();
        push(&mut head, name);
        head.extend((chunks.len() as u32).to_le_bytes());
        chunks.iter().for_each(|chunk| push(&mut head, chunk));
        let mut checksum = XxHash3_64::new();
        checksum.write(&head);
        checksum.write(value);

        let from = self.root.join("new").join(self.written.fetch_add(1, Relaxed).to_string());
        let staged = Staged { from, to: self.path(name) };
        let mut file = create_file(&staged.from)?;
        let start = [&MAGIC[..], &checksum.finish().to_le_bytes(), &head].concat();
        file.write_all(&start)?;
        file.write_all(value)?;
        if sync {
            file.sync_all()?;
        }
        Ok(staged)
    }

    /// Make files last, and that they are there.
    pub fn sync<'a>(&self, names: impl Iterator<Item = &'a Name>) -> Result<(), (io::Error, Doubt)> {
        let mut folders = BTreeSet::new();
        for name in names {
            sync(&self.path(name)).map_err(|error| if_tried(error, || Doubt::File(name.clone())))?;
            folders.extend(self.folder(name));
        }
        folders
            .into_iter()
            .try_for_each(|folder| sync(&folder).map_err(|error| if_tried(error, || Doubt::Folder(folder.clone()))))
    }

    /// The folder of an entry's file.
    pub fn folder(&self, name: &Name) -> Option<PathBuf> {
        self.path(name).parent().map(Path::to_owned)
    }

    /// Make it last that a file has appeared or gone.
    pub fn sync_folder(&self, name: &Name) -> io::Result<()> {
        self.folder(name).map_or(Ok(()), |folder| sync(&folder))
    }

    /// Remove the file of an entry.
    pub fn remove(&self, name: &Name) -> io::Result<()> {
        match fs::remove_file(self.path(name)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Remove the file of an entry that was evicted. One that cannot be removed comes back at the next start, and is evicted
    /// again.
    pub fn evict(&self, name: &Name) {
        if let Err(error) = self.remove(name) {
            crate::say(format_args!("cannot remove {}: {error}", self.path(name).display()));
        }
    }

    /// All files with the time when they were written, the first ones before others.
    pub fn files(&self) -> io::Result<Vec<(SystemTime, PathBuf)>> {
        let mut files = Vec::new();
        for folder in fs::read_dir(self.root.join("objects"))? {
            let folder = folder?.path();
            if !folder.is_dir() {
                continue;
            }
            for file in fs::read_dir(folder)? {
                let file = file?;
                let metadata = file.metadata()?;
                if metadata.is_file() {
                    files.push((metadata.modified()?, file.path()));
                }
            }
        }
        files.sort();
        Ok(files)
    }

    /// What a file holds. One that is damaged is set aside; one that cannot be read may be sound, and stays.
    pub fn read(&self, path: &Path) -> io::Result<Option<Found>> {
        let bytes = fs::read(path).map_err(|error| {
            let what = format!("cannot read {}: {error} (move it away to start without it)", path.display());
            io::Error::new(error.kind(), what)
        })?;
        if let Some(found) = parse(&bytes).filter(|found| self.path(&found.name) == path) {
            return Ok(Some(found));
        }
        let aside = self.root.join("damaged").join(path.file_name().unwrap_or_default());
        let moved = fs::rename(path, &aside);
        let (path, aside) = (path.display(), aside.display());
        match moved {
            Ok(()) => crate::say(format_args!("{path} is damaged: moved to {aside}")),
            Err(error) => crate::say(format_args!("{path} is damaged, and cannot be moved to {aside}: {error}")),
        }
        Ok(None)
    }
}

fn push(bytes: &mut Vec<u8>, name: &[u8]) {
    // A kind, a namespace of at most 255 bytes and a key of at most 512.
    bytes.extend((name.len() as u16).to_le_bytes());
    bytes.extend(name);
}

fn parse(bytes: &[u8]) -> Option<Found> {
    let rest = bytes.strip_prefix(MAGIC)?;
    let (checksum, rest) = rest.split_first_chunk()?;
    if XxHash3_64::oneshot(rest) != u64::from_le_bytes(*checksum) {
        return None;
    }
    let (name, rest) = short(rest)?;
    let (count, mut rest) = rest.split_first_chunk()?;
    let mut chunks = Vec::new();
    for _ in 0..u32::from_le_bytes(*count) {
        let (chunk, after) = short(rest)?;
        chunks.push(Name::from(chunk));
        rest = after;
    }
    Some(Found { name: name.into(), value: Arc::new(rest.to_vec()), chunks })
}

fn short(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (len, rest) = bytes.split_first_chunk()?;
    rest.split_at_checked(u16::from_le_bytes(*len).into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    use crate::names::name;
    use crate::store::{Deleted, Put, Store, Terms};
    use memkv_wire::fields::Kind;

    fn open(root: &Path, bound: u64) -> Store {
        Store::open(bound, Some(Disk::open(root).unwrap())).unwrap()
    }

    fn chunk(n: u8) -> Name {
        name("ns", Kind::Chunk, &[n])
    }

    fn manifest() -> Name {
        name("ns", Kind::Manifest, b"m")
    }

    /// A folder with chunks 1 to 3 and a manifest of the first two.
    fn filled() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let store = open(folder.path(), 1 << 20);
        for n in 1..4 {
            assert_eq!(store.put_chunk(chunk(n), vec![n; 1000], false, 0), Put::Stored);
        }
        assert_eq!(
            store.put_manifest(manifest(), b"two".to_vec(), &[chunk(1), chunk(2)], Terms::default()),
            Put::Stored
        );
        folder
    }

    fn file_of(root: &Path, name: &Name) -> PathBuf {
        let digest = hex::encode(Sha256::digest(name));
        root.join("objects").join(&digest[..2]).join(digest)
    }

    /// The files of a manifest and of a chunk, which each later version finds again. Made by Python's struct, hashlib and xxhash, not
    /// with this code.
    #[test]
    fn golden_files() {
        let folder = tempfile::tempdir().unwrap();
        let store = open(folder.path(), 1 << 20);
        for n in [1, 2] {
            assert_eq!(store.put_chunk(chunk(n), vec![n; 5], false, 0), Put::Stored);
        }
        assert_eq!(
            store.put_manifest(manifest(), b"two".to_vec(), &[chunk(1), chunk(2)], Terms::default()),
            Put::Stored
        );
        for (path, expected) in [
            (
                "objects/b6/b69543cf8d6fb85632f12dc33b636a2ad37f5401a2cab3cae5109ac4855c63db",
                "4d4b5646494c45311bb208d9c62cc96c050002026e736d02000000050001026e7301050001026e730274776f",
            ),
            (
                "objects/9e/9ea332e93c0d835cb937269f5b6f89b4e68347890cf46fbf2b0dfeb399ce2d29",
                "4d4b5646494c45312aecdc4f81d300f6050001026e7301000000000101010101",
            ),
        ] {
            assert_eq!(hex::encode(fs::read(folder.path().join(path)).unwrap()), expected, "{path}");
        }
        let mut top: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        top.sort();
        assert_eq!(top, ["damaged", "lock", "new", "objects"]);
    }

    #[test]
    fn a_restart_finds_what_was_stored() {
        let folder = filled();
        let store = open(folder.path(), 1 << 20);
        assert_eq!(store.get(&manifest()).unwrap().as_slice(), b"two");
        assert_eq!(store.get(&chunk(3)).unwrap().as_slice(), [3; 1000]);
        assert_eq!((store.size().chunks, store.size().manifests), (3, 1));
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
        assert_eq!((mode(&file_of(folder.path(), &chunk(3))), mode(&folder.path().join("objects"))), (0o600, 0o700));
        assert_eq!(store.delete(&manifest(), 0), Deleted::Gone);
        drop(store);
        assert!(open(folder.path(), 1 << 20).get(&manifest()).is_none());
    }

    #[test]
    fn a_damaged_file_is_set_aside_and_a_manifest_that_names_it_goes() {
        for damage in [|bytes: &mut Vec<u8>| bytes[500] ^= 1, |bytes: &mut Vec<u8>| bytes.truncate(300), Vec::clear] {
            let folder = filled();
            let file = file_of(folder.path(), &chunk(2));
            let mut bytes = fs::read(&file).unwrap();
            damage(&mut bytes);
            fs::write(&file, bytes).unwrap();
            let store = open(folder.path(), 1 << 20);
            assert!(store.get(&chunk(2)).is_none() && store.get(&manifest()).is_none());
            assert!(store.get(&chunk(1)).is_some());
            assert!(folder.path().join("damaged").join(file.file_name().unwrap()).exists() && !file.exists());
            assert!(!file_of(folder.path(), &manifest()).exists());
        }
    }

    #[test]
    fn a_file_under_another_name_is_not_believed() {
        let folder = filled();
        fs::rename(file_of(folder.path(), &chunk(1)), file_of(folder.path(), &chunk(2))).unwrap();
        let store = open(folder.path(), 1 << 20);
        assert_eq!(store.exists(&[chunk(1), chunk(2), chunk(3)]), [false, false, true]);
        assert_eq!(fs::read_dir(folder.path().join("damaged")).unwrap().count(), 1);
    }

    #[test]
    fn what_was_being_written_is_removed() {
        let folder = filled();
        fs::write(folder.path().join("new/7"), b"half").unwrap();
        open(folder.path(), 1 << 20);
        assert_eq!(fs::read_dir(folder.path().join("new")).unwrap().count(), 0);
    }

    #[test]
    fn a_bound_that_is_too_small_is_refused_and_nothing_is_removed() {
        let folder = filled();
        let used = open(folder.path(), 1 << 20).size().bytes;
        for bound in [1, 2600, used - 1] {
            let error =
                Store::open(bound, Some(Disk::open(folder.path()).unwrap())).err().expect("too small").to_string();
            assert!(error.contains(&format!("{used} bytes")) && error.contains("--memory 1MiB"), "{error}");
        }
        let store = open(folder.path(), used);
        assert_eq!((store.size().chunks, store.size().manifests), (3, 1));
    }

    #[test]
    fn files_leave_with_their_entries() {
        let folder = filled();
        let used = open(folder.path(), 1 << 20).size().bytes;
        let store = open(folder.path(), used);
        assert_eq!(store.put_chunk(chunk(4), vec![4; 2000], false, 0), Put::Stored);
        let there: Vec<bool> = (1..5).map(|n| file_of(folder.path(), &chunk(n)).exists()).collect();
        assert_eq!(store.exists(&[chunk(1), chunk(2), chunk(3), chunk(4)]), there);
        assert!(there.contains(&false) && there.contains(&true));
    }

    #[test]
    fn a_file_that_cannot_be_read_is_no_damage() {
        let folder = filled();
        let disk = Disk::open(folder.path()).unwrap();
        // A folder cannot be read as a file, whoever asks.
        let file = file_of(folder.path(), &chunk(2));
        fs::remove_file(&file).unwrap();
        fs::create_dir(&file).unwrap();
        let error = disk.read(&file).err().expect("an error");
        assert_eq!(error.kind(), io::ErrorKind::IsADirectory);
        assert!(error.to_string().contains(&file.display().to_string()), "{error}");
        assert!(file.exists() && fs::read_dir(folder.path().join("damaged")).unwrap().count() == 0);
    }

    #[test]
    fn one_server_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let _first = Disk::open(folder.path()).unwrap();
        assert!(Disk::open(folder.path()).is_err());
    }
}
