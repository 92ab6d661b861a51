//! The system calls on files: what each does, at once.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::OnceLock;

use rustix::fs::{FileType, OFlags, Stat, StatVfs, StatVfsMountFlags, Timespec, Timestamps, UTIME_OMIT};
use rustix::io::{Errno, Result};
use rustix::{At, descriptor, is_open};

use crate::pages::Pick;
use crate::tree::{File, Node, ROOT, Tree, What};

const NAME_BYTES: usize = 255;
/// What the disk has room for, in blocks.
const BLOCK: u64 = 4096;
const BLOCKS: u64 = 1 << 28;

/// A file system, and who has its files open.
pub struct Disk {
    pub tree: Tree,
    pub open: BTreeMap<RawFd, Open>,
    locks: BTreeMap<Node, Lock>,
    /// Where it is mounted.
    place: &'static str,
}

/// A file or directory that is open.
pub struct Open {
    pub node: Node,
    /// Where the next write goes.
    end: u64,
    mode: OFlags,
    /// A sync through another descriptor has failed, and this one was not told yet.
    pub failed: bool,
}

/// Who has the lock of a file: through which descriptors, and which processes.
#[derive(Default)]
struct Lock {
    shared: bool,
    holders: Vec<(RawFd, usize)>,
}

impl Disk {
    /// An empty one.
    pub fn new(place: &'static str) -> Self {
        Disk { tree: Tree::new(), open: BTreeMap::new(), locks: BTreeMap::new(), place }
    }

    /// What a descriptor leads to.
    pub fn node(&self, fd: RawFd) -> Result<Node> {
        self.open.get(&fd).map(|open| open.node).ok_or(Errno::BADF)
    }

    fn from<'p>(&self, at: Option<At>, path: &'p str) -> Result<(Node, &'p str)> {
        match at {
            Some(at) => Ok((self.node(at)?, path)),
            None => Ok((ROOT, path.strip_prefix(self.place).ok_or(Errno::NOENT)?.trim_start_matches('/'))),
        }
    }

    /// `at`: none for an absolute path. `wall`: what the clock of the calendar says, in nanoseconds, here and below.
    pub fn open(&mut self, at: Option<At>, path: &str, flags: OFlags, wall: u64) -> Result<OwnedFd> {
        let creates = flags.contains(OFlags::CREATE);
        let (from, path) = self.from(at, path)?;
        let node = match self.tree.resolve(from, path) {
            Ok(found) if flags.contains(OFlags::TRUNC) => {
                self.tree.set_length(found, 0)?;
                found
            }
            Ok(_) if creates && flags.contains(OFlags::EXCL) => return Err(Errno::EXIST),
            Err(Errno::NOENT) if creates => {
                let (parent, name) = self.tree.parent(from, path)?;
                self.tree.make(parent, name, What::File(File::default()), wall)?
            }
            found => found?,
        };
        if flags.contains(OFlags::DIRECTORY) && matches!(self.tree.inode(node).what, What::File(_)) {
            return Err(Errno::NOTDIR);
        }
        let fd = descriptor()?;
        // The kernel gives a number again that was closed.
        self.locks.values_mut().for_each(|lock| lock.holders.retain(|(holder, _)| *holder != fd.as_raw_fd()));
        let mode = flags & (OFlags::RDWR | OFlags::WRONLY);
        self.open.insert(fd.as_raw_fd(), Open { node, end: 0, mode, failed: false });
        Ok(fd)
    }

    pub fn make_directory(&mut self, at: At, path: &str, wall: u64) -> Result<()> {
        let (parent, name) = self.tree.parent(self.node(at)?, path)?;
        match self.tree.look(parent, name) {
            Ok(_) => Err(Errno::EXIST),
            Err(Errno::NOENT) => self.tree.make(parent, name, What::Directory(BTreeMap::new()), wall).map(drop),
            Err(errno) => Err(errno),
        }
    }

    /// `replace`: over what is there.
    pub fn rename(&mut self, from: (At, &str), to: (At, &str), replace: bool) -> Result<()> {
        if to.1.len() > NAME_BYTES {
            return Err(Errno::NAMETOOLONG);
        }
        let (from_directory, to_directory) = (self.node(from.0)?, self.node(to.0)?);
        let node = self.tree.look(from_directory, from.1)?;
        match self.tree.look(to_directory, to.1) {
            Ok(_) if !replace => return Err(Errno::EXIST),
            Ok(there) if self.tree.file(there).is_err() => return Err(Errno::ISDIR),
            _ => {}
        }
        self.tree.enter(to_directory, to.1, Some(node))?;
        self.tree.enter(from_directory, from.1, None)
    }

    pub fn remove(&mut self, at: At, path: &str, directory: bool) -> Result<()> {
        let (parent, name) = self.tree.parent(self.node(at)?, path)?;
        let there = self.tree.look(parent, name)?;
        match (self.tree.list(there), directory) {
            (Ok(_), false) => return Err(Errno::ISDIR),
            (Err(_), true) => return Err(Errno::NOTDIR),
            (Ok(names), true) if !names.is_empty() => return Err(Errno::NOTEMPTY),
            _ => {}
        }
        self.tree.enter(parent, name, None)
    }

    /// An empty path is what is open itself.
    pub fn stat(&self, at: Option<At>, path: &str) -> Result<Stat> {
        let (from, path) = self.from(at, path)?;
        // A file that is open has no name to be looked up.
        let node = if path.is_empty() { from } else { self.tree.resolve(from, path)? };
        stat_of(&self.tree, node)
    }

    /// The same.
    pub fn set_times(&mut self, at: At, path: &str, times: &Timestamps, wall: u64) -> Result<()> {
        let from = self.node(at)?;
        let node = if path.is_empty() { from } else { self.tree.resolve(from, path)? };
        let inode = self.tree.inode_mut(node);
        let of = |time: Timespec| (time.tv_sec as u64) * 1_000_000_000 + time.tv_nsec as u64;
        if times.last_access.tv_nsec != UTIME_OMIT {
            inode.times.accessed = of(times.last_access);
        }
        if times.last_modification.tv_nsec != UTIME_OMIT {
            inode.times.modified = of(times.last_modification);
        }
        inode.times.changed = wall;
        Ok(())
    }

    /// How it was opened.
    pub fn mode(&self, fd: RawFd) -> Result<OFlags> {
        self.open.get(&fd).map(|open| open.mode).ok_or(Errno::BADF)
    }

    pub fn set_length(&mut self, fd: RawFd, bytes: u64) -> Result<()> {
        self.tree.set_length(self.node(fd)?, bytes as usize)
    }

    pub fn space(&self, fd: RawFd, is_full: bool) -> Result<StatVfs> {
        self.node(fd)?;
        let left = if is_full { 0 } else { BLOCKS / 2 };
        Ok(StatVfs {
            f_bsize: BLOCK,
            f_frsize: BLOCK,
            f_blocks: BLOCKS,
            f_bfree: left,
            f_bavail: left,
            f_files: 1 << 20,
            f_ffree: 1 << 19,
            f_favail: 1 << 19,
            f_fsid: 7,
            f_flag: StatVfsMountFlags::empty(),
            f_namemax: NAME_BYTES as u64,
        })
    }

    pub fn list(&self, fd: RawFd) -> Result<Vec<CString>> {
        let names = self.tree.list(self.node(fd)?)?.into_iter();
        names.map(|name| CString::new(name).map_err(|_| Errno::INVAL)).collect()
    }

    /// Take the lock of a file for a process, if nobody has it, or if all that have it share it.
    pub fn lock(&mut self, fd: RawFd, process: usize, shared: bool) -> Result<()> {
        let node = self.node(fd)?;
        let (open, lock) = (&self.open, self.locks.entry(node).or_default());
        // Whoever has closed it has given it back, and what this one has becomes another lock.
        lock.holders.retain(|(holder, _)| *holder != fd && open.contains_key(holder) && is_open(*holder));
        let may_have_it = lock.holders.is_empty() || (shared && lock.shared);
        if !may_have_it {
            return Err(Errno::AGAIN);
        }
        lock.shared = shared;
        lock.holders.push((fd, process));
        Ok(())
    }

    pub fn unlock(&mut self, fd: RawFd) -> Result<()> {
        let node = self.node(fd)?;
        if let Some(lock) = self.locks.get_mut(&node) {
            lock.holders.retain(|(holder, _)| *holder != fd);
        }
        Ok(())
    }

    /// A process has ended: the locks that it had are free.
    pub fn ended(&mut self, process: usize) {
        self.locks.values_mut().for_each(|lock| lock.holders.retain(|(_, holder)| *holder != process));
    }

    /// `at`: none behind what was written before.
    pub fn write(&mut self, fd: RawFd, at: Option<u64>, bytes: &[u8], wall: u64) -> Result<()> {
        let open = self.open.get_mut(&fd).ok_or(Errno::BADF)?;
        let (node, from) = (open.node, at.unwrap_or(open.end));
        if at.is_none() {
            open.end += bytes.len() as u64;
        }
        self.tree.write(node, from, bytes)?;
        let times = &mut self.tree.inode_mut(node).times;
        (times.modified, times.changed) = (wall, wall);
        Ok(())
    }

    /// The power fails: nobody has anything open any more. See [`Tree::lose_power`].
    pub fn lose_power(&mut self, pick: Pick<'_>) {
        self.tree.lose_power(pick);
        self.open.clear();
        self.locks.clear();
    }
}

fn stat_of(tree: &Tree, node: Node) -> Result<Stat> {
    // One of the kernel's, of which all that is looked at is set.
    static OF_KERNEL: OnceLock<Result<Stat>> = OnceLock::new();
    let mut stat = (*OF_KERNEL.get_or_init(|| rustix::fs::stat("/")))?;
    let inode = tree.inode(node);
    let (kind, len) = match &inode.what {
        What::Directory(_) => (FileType::Directory, 0),
        What::File(file) => (FileType::RegularFile, file.bytes().len()),
    };
    stat.st_mode = kind.as_raw_mode() | 0o600;
    stat.st_size = len as _;
    stat.st_nlink = inode.links as _;
    stat.st_ino = node as _;
    let parts = |ns: u64| ((ns / 1_000_000_000) as _, (ns % 1_000_000_000) as _);
    (stat.st_atime, stat.st_atime_nsec) = parts(inode.times.accessed);
    (stat.st_mtime, stat.st_mtime_nsec) = parts(inode.times.modified);
    (stat.st_ctime, stat.st_ctime_nsec) = parts(inode.times.changed);
    Ok(stat)
}
