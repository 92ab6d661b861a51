//! The system calls on the files of a history: by which process, how long they take, and what befalls them. What each leaves is noted for the
//! rules before anybody else goes on.

use std::ffi::CString;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::{Arc, OnceLock, Weak};

use kv_store_core::process::Clock;
use rustix::fs::{
    FileType, FlockOperation, OFlags, Stat, StatVfs, StatVfsMountFlags, Timespec, Timestamps, UTIME_OMIT,
};
use rustix::io::{Errno, Result};
use rustix::{At, System, descriptor, is_open};

use super::faults::{fails, stand_still, struck};
use super::tree::{File, Node, ROOT, Tree, What};
use super::{Files, Open, PLACE, STORE, State};
use crate::calls::Fate;
use crate::sim::Sim;
use crate::threads::{MICROSECOND, MILLISECOND};

pub struct Kernel(pub Weak<Sim>);

/// What a call asks of the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asks {
    Memory,
    /// Room for a new file, or for a name.
    Room,
    Bytes,
    /// That bytes are on it.
    Sync,
}

const NAME_BYTES: usize = 255;
/// What the disk has room for, in blocks.
const BLOCK: u64 = 4096;
const BLOCKS: u64 = 1 << 28;

impl Kernel {
    fn sim(&self) -> Result<Arc<Sim>> {
        self.0.upgrade().ok_or(Errno::IO)
    }

    /// A call begins. It has no effect where its process has ended, or fails for another reason.
    fn begin(&self, asks: Asks) -> Result<Arc<Sim>> {
        let sim = self.sim()?;
        // What is dropped while a history ends asks nobody, and waits for nobody.
        if sim.threads.current().is_none() || std::thread::panicking() {
            return Err(Errno::BADF);
        }
        let task = sim.threads.task();
        let files = sim.files.as_ref().ok_or(Errno::IO)?;
        // To open its store nothing is in the way of an engine.
        let calm = task.operation == 0 || sim.world().calm;
        if !calm {
            stand_still(&sim, files, task.process, asks);
        }
        let (long, strikes) = {
            let mut state = files.state.lock();
            let long = match (state.dice.below(10), asks) {
                (0..=5, Asks::Memory | Asks::Room) | (0..=2, _) => 0,
                (_, Asks::Sync) => state.dice.within(50 * MICROSECOND, 4 * MILLISECOND),
                _ => state.dice.within(MICROSECOND, 40 * MICROSECOND),
            };
            let trouble = sim.plan.shape.trouble;
            (long, !calm && state.dice.below(8000) < trouble && state.spared != Some(task.operation))
        };
        if long > 0 {
            sim.threads.pause(long);
        }
        if sim.world().dead.get(task.process).copied().unwrap_or(true) {
            return Err(Errno::BADF);
        }
        if calm {
            return Ok(sim);
        }
        let full = files.state.lock().full_until > sim.threads.moment();
        match strikes || (full && matches!(asks, Asks::Room | Asks::Bytes)) {
            true => fails(&sim, files, asks, full).map(|()| sim),
            false => Ok(sim),
        }
    }

    fn wall(sim: &Sim) -> u64 {
        Clock::of(sim.threads.clone()).wall_ns()
    }

    /// Do something with what a descriptor leads to.
    fn with<T>(&self, sim: &Sim, fd: RawFd, what: impl FnOnce(&mut State, Node) -> Result<T>) -> Result<T> {
        let files = sim.files.as_ref().ok_or(Errno::IO)?;
        let mut state = files.state.lock();
        let node = state.open.get(&fd).map(|open| open.node).ok_or(Errno::BADF)?;
        what(&mut state, node)
    }
}

impl Kernel {
    /// A call has changed what others see, or what is on the disk.
    fn changed(sim: &Arc<Sim>) {
        if let Some(files) = &sim.files {
            let by = sim.threads.current().and_then(|thread| files.state.lock().calls.get(&thread).cloned());
            super::look(sim, files, by.as_ref());
        }
    }

    /// A file has other bytes. Those of the others are seen when they get a name.
    fn written(sim: &Arc<Sim>, fd: RawFd) {
        let is_log = |files: &Files| {
            let state = files.state.lock();
            let log = state.tree.resolve(ROOT, &format!("{STORE}/index")).ok();
            state.open.get(&fd).is_some_and(|open| Some(open.node) == log)
        };
        if sim.plan.shape.backend.has_records() && sim.files.as_ref().is_some_and(is_log) {
            Self::changed(sim);
        }
    }

    fn place<'p>(state: &State, at: Option<At>, path: &'p str) -> Result<(Node, &'p str)> {
        match at {
            Some(at) => Ok((state.open.get(&at).map(|open| open.node).ok_or(Errno::BADF)?, path)),
            None => Ok((ROOT, path.strip_prefix(PLACE).ok_or(Errno::NOENT)?.trim_start_matches('/'))),
        }
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

impl System for Kernel {
    fn knows(&self, fd: RawFd) -> bool {
        let Ok(sim) = self.sim() else { return false };
        sim.files.as_ref().is_some_and(|files| files.state.lock().open.contains_key(&fd))
    }

    fn holds(&self, path: &str) -> bool {
        path.starts_with(PLACE)
    }

    fn open(&self, at: Option<At>, path: &str, flags: OFlags, cached: bool) -> Result<OwnedFd> {
        let creates = flags.contains(OFlags::CREATE);
        let sim = self.begin(if creates { Asks::Room } else { Asks::Memory })?;
        let files = sim.files.as_ref().ok_or(Errno::IO)?;
        let opened = {
            let mut state = files.state.lock();
            if cached && state.dice.met(100) {
                return Err(Errno::AGAIN);
            }
            let (from, path) = Self::place(&state, at, path)?;
            let node = match state.tree.resolve(from, path) {
                Ok(found) if flags.contains(OFlags::TRUNC) => {
                    state.tree.set_length(found, 0)?;
                    found
                }
                Ok(_) if creates && flags.contains(OFlags::EXCL) => return Err(Errno::EXIST),
                Err(Errno::NOENT) if creates => {
                    let (parent, name) = state.tree.parent(from, path)?;
                    let wall = Self::wall(&sim);
                    state.tree.make(parent, name, What::File(File::default()), wall)?
                }
                found => found?,
            };
            if flags.contains(OFlags::DIRECTORY) && matches!(state.tree.inode(node).what, What::File(_)) {
                return Err(Errno::NOTDIR);
            }
            node
        };
        let fd = descriptor()?;
        let mut state = files.state.lock();
        // The kernel gives a number again that was closed.
        state.locks.values_mut().for_each(|lock| lock.holders.retain(|(holder, _)| *holder != fd.as_raw_fd()));
        let mode = flags & (OFlags::RDWR | OFlags::WRONLY);
        state.open.insert(fd.as_raw_fd(), Open { node: opened, end: 0, mode, failed: false });
        Ok(fd)
    }

    fn make_directory(&self, at: At, path: &str) -> Result<()> {
        let sim = self.begin(Asks::Room)?;
        let wall = Self::wall(&sim);
        self.with(&sim, at, |state, node| {
            let (parent, name) = state.tree.parent(node, path)?;
            match state.tree.look(parent, name) {
                Ok(_) => Err(Errno::EXIST),
                Err(Errno::NOENT) => state.tree.make(parent, name, What::Directory(Default::default()), wall).map(drop),
                Err(errno) => Err(errno),
            }
        })
    }

    fn rename(&self, from: (At, &str), to: (At, &str), replace: bool) -> Result<()> {
        let sim = self.begin(Asks::Room)?;
        if to.1.len() > NAME_BYTES {
            return Err(Errno::NAMETOOLONG);
        }
        self.with(&sim, from.0, |state, from_directory| {
            let to_directory = state.open.get(&to.0).map(|open| open.node).ok_or(Errno::BADF)?;
            let node = state.tree.look(from_directory, from.1)?;
            match state.tree.look(to_directory, to.1) {
                Ok(_) if !replace => return Err(Errno::EXIST),
                Ok(there) if state.tree.file(there).is_err() => return Err(Errno::ISDIR),
                _ => {}
            }
            state.tree.enter(to_directory, to.1, Some(node))?;
            state.tree.enter(from_directory, from.1, None)
        })?;
        Self::changed(&sim);
        Ok(())
    }

    fn remove(&self, at: At, path: &str, directory: bool) -> Result<()> {
        let sim = self.begin(Asks::Memory)?;
        self.with(&sim, at, |state, node| {
            let (parent, name) = state.tree.parent(node, path)?;
            let there = state.tree.look(parent, name)?;
            match (state.tree.list(there), directory) {
                (Ok(_), false) => return Err(Errno::ISDIR),
                (Err(_), true) => return Err(Errno::NOTDIR),
                (Ok(names), true) if !names.is_empty() => return Err(Errno::NOTEMPTY),
                _ => {}
            }
            state.tree.enter(parent, name, None)
        })?;
        Self::changed(&sim);
        Ok(())
    }

    fn stat(&self, at: Option<At>, path: &str) -> Result<Stat> {
        // What is open, and where it is, is asked under locks of `core`: that takes no time, and goes well.
        let sim = if at.is_none() || path.is_empty() { self.sim()? } else { self.begin(Asks::Memory)? };
        let files = sim.files.as_ref().ok_or(Errno::IO)?;
        let state = files.state.lock();
        let (from, path) = Self::place(&state, at, path)?;
        // A file that is open has no name to be looked up.
        let node = if path.is_empty() { from } else { state.tree.resolve(from, path)? };
        stat_of(&state.tree, node)
    }

    fn set_times(&self, at: At, path: &str, times: &Timestamps) -> Result<()> {
        let sim = self.begin(Asks::Memory)?;
        let wall = Self::wall(&sim);
        self.with(&sim, at, |state, node| {
            let node = if path.is_empty() { node } else { state.tree.resolve(node, path)? };
            let inode = state.tree.inode_mut(node);
            let of = |time: Timespec| (time.tv_sec as u64) * 1_000_000_000 + time.tv_nsec as u64;
            if times.last_access.tv_nsec != UTIME_OMIT {
                inode.times.accessed = of(times.last_access);
            }
            if times.last_modification.tv_nsec != UTIME_OMIT {
                inode.times.modified = of(times.last_modification);
            }
            inode.times.changed = wall;
            Ok(())
        })
    }

    fn mode(&self, fd: RawFd) -> Result<OFlags> {
        let sim = self.sim()?;
        let files = sim.files.as_ref().ok_or(Errno::IO)?;
        files.state.lock().open.get(&fd).map(|open| open.mode).ok_or(Errno::BADF)
    }

    fn allocate(&self, fd: RawFd, bytes: u64) -> Result<()> {
        let sim = self.begin(Asks::Room)?;
        match sim.plan.shape.backend.allocates() {
            true => self.with(&sim, fd, |state, node| state.tree.set_length(node, bytes as usize)),
            false => Err(Errno::OPNOTSUPP),
        }
    }

    fn set_length(&self, fd: RawFd, bytes: u64) -> Result<()> {
        let sim = self.begin(Asks::Memory)?;
        self.with(&sim, fd, |state, node| state.tree.set_length(node, bytes as usize))
    }

    fn set_room_aside(&self, _: RawFd) -> Result<()> {
        self.begin(Asks::Room).map(drop)
    }

    fn space(&self, fd: RawFd) -> Result<StatVfs> {
        let sim = self.begin(Asks::Memory)?;
        let now = sim.threads.moment();
        self.with(&sim, fd, |state, _| {
            let left = if state.full_until > now { 0 } else { BLOCKS / 2 };
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
        })
    }

    fn list(&self, fd: RawFd) -> Result<Vec<CString>> {
        let sim = self.begin(Asks::Memory)?;
        self.with(&sim, fd, |state, node| {
            let names = state.tree.list(node)?.into_iter();
            names.map(|name| CString::new(name).map_err(|_| Errno::INVAL)).collect()
        })
    }

    fn lock(&self, fd: RawFd, how: FlockOperation) -> Result<()> {
        if how == FlockOperation::Unlock {
            let sim = self.sim()?;
            let locked = |state: &mut State, node| {
                if let Some(lock) = state.locks.get_mut(&node) {
                    lock.holders.retain(|(holder, _)| *holder != fd);
                }
                Ok(())
            };
            return self.with(&sim, fd, locked);
        }
        let sim = self.begin(Asks::Memory)?;
        let process = sim.threads.task().process;
        let shared = how == FlockOperation::NonBlockingLockShared;
        self.with(&sim, fd, |state, node| {
            let State { locks, open, .. } = state;
            let lock = locks.entry(node).or_default();
            // Whoever has closed it has given it back, and what this one has becomes another lock.
            lock.holders.retain(|(holder, _)| *holder != fd && open.contains_key(holder) && is_open(*holder));
            let may_have_it = lock.holders.is_empty() || (shared && lock.shared);
            if !may_have_it {
                return Err(Errno::AGAIN);
            }
            lock.shared = shared;
            lock.holders.push((fd, process));
            Ok(())
        })
    }

    fn write(&self, fd: RawFd, at: Option<u64>, bytes: &[u8]) -> Result<usize> {
        let sim = self.begin(Asks::Bytes)?;
        let wall = Self::wall(&sim);
        self.with(&sim, fd, |state, node| {
            // A write may take less than it was given.
            let taken = match bytes.len() {
                2.. if state.dice.below(4000) < sim.plan.shape.trouble => 1 + state.dice.index(bytes.len() - 1),
                all => all,
            };
            let open = state.open.get_mut(&fd).ok_or(Errno::BADF)?;
            let from = at.unwrap_or(open.end);
            if at.is_none() {
                open.end += taken as u64;
            }
            state.tree.write(node, from, bytes.get(..taken).unwrap_or(bytes))?;
            let times = &mut state.tree.inode_mut(node).times;
            (times.modified, times.changed) = (wall, wall);
            Ok(taken)
        })
        .inspect(|_| Self::written(&sim, fd))
    }

    fn read(&self, fd: RawFd, at: u64, most: usize, cached: bool) -> Result<Vec<u8>> {
        let sim = self.begin(if cached { Asks::Memory } else { Asks::Sync })?;
        self.with(&sim, fd, |state, node| {
            if cached && state.dice.met(150) {
                return Err(Errno::AGAIN);
            }
            let bytes = state.tree.file(node)?.bytes();
            let rest = bytes.get(at as usize..).unwrap_or_default();
            let most = match rest.len().min(most) {
                2.. if state.dice.met(20) => 1 + state.dice.index(rest.len().min(most) - 1),
                all => all,
            };
            Ok(rest[..most].to_vec())
        })
    }

    fn sync(&self, fd: RawFd) -> Result<()> {
        self.to_disk(fd, Tree::synced)
    }

    fn write_out(&self, fd: RawFd) -> Result<()> {
        let sim = self.sim()?;
        // Not every file system can.
        if !sim.plan.shape.backend.writes_out() {
            return Err(Errno::INVAL);
        }
        self.to_disk(fd, Tree::written_out)
    }
}

impl Kernel {
    /// Have bytes or names reach the disk, with those that are there now.
    fn to_disk(&self, fd: RawFd, done: impl FnOnce(&mut Tree, Node, u64)) -> Result<()> {
        let sim = self.sim()?;
        let (node, begun) = self.with(&sim, fd, |state, node| Ok((node, state.tree.order())))?;
        let mut outcome = self.begin(Asks::Sync);
        // Linux tells each descriptor once that was open then.
        let told =
            |state: &mut State, _| Ok(state.open.get_mut(&fd).is_some_and(|open| std::mem::take(&mut open.failed)));
        if outcome.is_ok() && !sim.world().calm && self.with(&sim, fd, told)? {
            sim.say(|| "  a sync is told what another one through another descriptor has lost".to_owned());
            struck(&sim, sim.files.as_ref().ok_or(Errno::IO)?, Fate::Failing);
            outcome = Err(Errno::IO);
        }
        if matches!(outcome, Err(Errno::IO)) {
            self.with(&sim, fd, |state, node| {
                let State { tree, dice, open, .. } = state;
                if sim.plan.shape.backend.has_records() && tree.file(node).is_ok() {
                    let others = open.iter_mut().filter(|(other, open)| **other != fd && open.node == node);
                    others.for_each(|(_, open)| open.failed = true);
                }
                // A log of which a part is forgotten is one that nobody can follow.
                let log = tree.resolve(ROOT, &format!("{STORE}/index")).ok() == Some(node);
                let forgets = dice.met(400) && !log;
                tree.lose(node, sim.threads.task().process, forgets, &mut |options| dice.index(options));
                // A file that one process can neither sync nor remove another one takes for synced: only the process itself knows better.
                if sim.plan.engines.len() > 1 {
                    state.spared = Some(sim.threads.task().operation);
                }
                Ok(())
            })?;
            Self::changed(&sim);
        }
        outcome?;
        self.with(&sim, fd, |state, _| {
            done(&mut state.tree, node, begun);
            Ok(())
        })?;
        Self::changed(&sim);
        Ok(())
    }
}
