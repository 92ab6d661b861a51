//! The disk without a store: reads around the page cache, and durable writes, by as many threads as are told.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use anyhow::{Context, Result, ensure};

use crate::measure::side_by_side;

/// What one read asks for at most.
const PIECE: usize = 1 << 20;
/// Where reads around the page cache begin, how long they are, and where they go.
const BLOCK: usize = 4096;

/// Bytes that this process has read from devices.
pub fn device_bytes() -> Result<u64> {
    let text = fs::read_to_string("/proc/self/io")?;
    let line = text.lines().find_map(|line| line.strip_prefix("read_bytes: "));
    Ok(line.context("the kernel does not count what is read")?.parse()?)
}

/// The files below a folder, by name, up to so many bytes of them, which the disk has when this returns. Each with the bytes that count.
pub fn files_below(folder: &Path, mut bytes: u64) -> Result<Vec<(PathBuf, u64)>> {
    let (mut folders, mut files) = (vec![folder.to_owned()], Vec::new());
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            match entry.file_type()?.is_dir() {
                true => folders.push(entry.path()),
                false => files.push((entry.path(), entry.metadata()?.len())),
            }
        }
    }
    // The log of a store in segments, and what tells whose a folder is.
    files.retain(|(path, len)| *len >= BLOCK as u64 && path.file_name().is_some_and(|name| name != "index"));
    files.sort();
    for (path, len) in &mut files {
        File::open(path)?.sync_all()?;
        *len = bytes.min(*len);
        bytes -= *len;
    }
    ensure!(bytes == 0, "the files of the store are shorter than its values");
    Ok(files)
}

/// Have files read from the device again.
pub fn drop_from_cache(files: &[(PathBuf, u64)]) -> Result<()> {
    for (path, _) in files {
        let file = File::open(path)?;
        // SAFETY: an open descriptor; 0 and 0 are the whole file.
        let dropped = unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
        ensure!(dropped == 0, "the page cache keeps {}", path.display());
    }
    Ok(())
}

/// Files that are read around the page cache.
pub struct Device {
    files: Vec<(PathBuf, u64)>,
    /// Of which file, from where, how many bytes.
    pieces: Vec<(usize, u64, usize)>,
}

impl Device {
    /// `size`: how long one read is, up to [`PIECE`].
    pub fn new(files: &[(PathBuf, u64)], size: usize) -> Self {
        let step = size.min(PIECE);
        let mut pieces = Vec::new();
        for (file, (_, len)) in files.iter().enumerate() {
            let mut at = 0;
            while at < *len {
                let rest = (len - at) as usize;
                // What lies behind a value in its file is read with it.
                let piece = if rest <= step + BLOCK { rest } else { step };
                pieces.push((file, at, piece.next_multiple_of(BLOCK)));
                at += piece as u64;
            }
        }
        Device { files: files.to_vec(), pieces }
    }

    /// The seconds that it takes so many threads to read all.
    pub fn read(&self, threads: usize) -> Result<f64> {
        drop_from_cache(&self.files)?;
        let next = AtomicUsize::new(0);
        let memory: Vec<Aligned> = (0..threads).map(|_| Aligned::new(PIECE + 2 * BLOCK)).collect();
        side_by_side(memory, |memory| {
            while let Some((file, at, len)) = self.pieces.get(next.fetch_add(1, Relaxed)) {
                memory.read(&self.files[*file].0, *at, *len)?;
            }
            Ok(())
        })
    }
}

/// Memory where reads around the page cache may go.
struct Aligned(*mut u8, Layout);

// SAFETY: it is owned memory.
unsafe impl Send for Aligned {}

impl Aligned {
    fn new(len: usize) -> Self {
        let layout = Layout::from_size_align(len, BLOCK).unwrap();
        // SAFETY: the layout is not empty.
        let data = unsafe { alloc_zeroed(layout) };
        assert!(!data.is_null(), "no memory");
        // Touched before it is measured what a read takes.
        // SAFETY: so many bytes are there.
        unsafe { std::ptr::write_bytes(data, 1, len) };
        Aligned(data, layout)
    }

    fn read(&self, path: &Path, at: u64, len: usize) -> Result<()> {
        ensure!(len <= self.1.size(), "a read of {len} bytes");
        let file = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path)?;
        // SAFETY: so many bytes are there, and nobody else uses them.
        let read = unsafe { libc::pread(file.as_raw_fd(), self.0.cast(), len, at as i64) };
        // A file ends where it ends.
        ensure!(read > len as isize - BLOCK as isize, "a read answered {read} of {len}");
        Ok(())
    }
}

impl Drop for Aligned {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, and freed once.
        unsafe { dealloc(self.0, self.1) }
    }
}

/// Durable saves by hand: 8 threads that each write, sync and rename, then each directory synced once, then the manifest.
pub struct Saves {
    folder: PathBuf,
}

const WRITERS: usize = 8;

impl Saves {
    pub fn new(folder: &Path) -> Result<Self> {
        fs::create_dir(folder.join("tmp"))?;
        (0..16).try_for_each(|shard| fs::create_dir_all(folder.join(format!("chunks/{shard:x}"))))?;
        Ok(Saves { folder: folder.to_owned() })
    }

    pub fn save(&self, keys: &[Vec<u8>], values: &[Vec<u8>], name: &str, manifest: &[u8]) -> Result<()> {
        let next = AtomicUsize::new(0);
        side_by_side(vec![(); WRITERS], |()| {
            loop {
                let number = next.fetch_add(1, Relaxed);
                let (Some(key), Some(value)) = (keys.get(number), values.get(number)) else { return Ok(()) };
                self.write(&number.to_string(), value, &self.path(key))?;
            }
        })?;
        let mut shards: Vec<PathBuf> =
            keys.iter().filter_map(|key| Some(self.path(key).parent()?.to_owned())).collect();
        shards.sort();
        shards.dedup();
        let next = AtomicUsize::new(0);
        side_by_side(vec![(); WRITERS], |()| {
            while let Some(shard) = shards.get(next.fetch_add(1, Relaxed)) {
                File::open(shard)?.sync_all()?;
            }
            Ok(())
        })?;
        self.write("manifest", manifest, &self.folder.join(name))?;
        Ok(File::open(&self.folder)?.sync_all()?)
    }

    fn path(&self, key: &[u8]) -> PathBuf {
        let name = hex::encode(key);
        self.folder.join("chunks").join(&name[..1]).join(name)
    }

    fn write(&self, temporary: &str, value: &[u8], path: &Path) -> Result<()> {
        let temporary = self.folder.join("tmp").join(temporary);
        let mut file = OpenOptions::new().write(true).create_new(true).open(&temporary)?;
        file.write_all(value)?;
        file.sync_data()?;
        Ok(fs::rename(temporary, path)?)
    }

    pub fn empty(&self) -> Result<()> {
        crate::rows::fs::empty(&self.folder.join("chunks"))
    }
}
