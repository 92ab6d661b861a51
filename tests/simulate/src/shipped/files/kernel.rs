//! The system calls on the files of a history: by which process, how long they take, and what befalls them. What each leaves is noted for the
//! rules before anybody else goes on.

use std::ffi::CString;
use std::os::fd::{OwnedFd, RawFd};
use std::sync::{Arc, Weak};

use kv_store_core::process::Clock;
use rustix::fs::{FlockOperation, OFlags, Stat, StatVfs, Timestamps};
use rustix::io::{Errno, Result};
use rustix::{At, System};
use simulated_files::Disk;
use simulated_files::tree::{Node, ROOT, Tree};

use super::faults::{fails, stand_still, struck};
use super::{Files, PLACE, STORE, State};
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

    /// Do something with the files.
    fn with<T>(sim: &Sim, what: impl FnOnce(&mut Disk) -> Result<T>) -> Result<T> {
        let files = sim.files.as_ref().ok_or(Errno::IO)?;
        what(&mut files.state.lock().disk)
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
            let log = state.disk.tree.resolve(ROOT, &format!("{STORE}/index"));
            log.is_ok_and(|log| state.disk.node(fd) == Ok(log))
        };
        if sim.plan.shape.backend.has_records() && sim.files.as_ref().is_some_and(is_log) {
            Self::changed(sim);
        }
    }
}

impl System for Kernel {
    fn knows(&self, fd: RawFd) -> bool {
        let Ok(sim) = self.sim() else { return false };
        sim.files.as_ref().is_some_and(|files| files.state.lock().disk.open.contains_key(&fd))
    }

    fn holds(&self, path: &str) -> bool {
        path.starts_with(PLACE)
    }

    fn open(&self, at: Option<At>, path: &str, flags: OFlags, cached: bool) -> Result<OwnedFd> {
        let sim = self.begin(if flags.contains(OFlags::CREATE) { Asks::Room } else { Asks::Memory })?;
        let files = sim.files.as_ref().ok_or(Errno::IO)?;
        let wall = Self::wall(&sim);
        let mut state = files.state.lock();
        if cached && state.dice.met(100) {
            return Err(Errno::AGAIN);
        }
        state.disk.open(at, path, flags, wall)
    }

    fn make_directory(&self, at: At, path: &str) -> Result<()> {
        let sim = self.begin(Asks::Room)?;
        let wall = Self::wall(&sim);
        Self::with(&sim, |disk| disk.make_directory(at, path, wall))
    }

    fn rename(&self, from: (At, &str), to: (At, &str), replace: bool) -> Result<()> {
        let sim = self.begin(Asks::Room)?;
        Self::with(&sim, |disk| disk.rename(from, to, replace))?;
        Self::changed(&sim);
        Ok(())
    }

    fn remove(&self, at: At, path: &str, directory: bool) -> Result<()> {
        let sim = self.begin(Asks::Memory)?;
        Self::with(&sim, |disk| disk.remove(at, path, directory))?;
        Self::changed(&sim);
        Ok(())
    }

    fn stat(&self, at: Option<At>, path: &str) -> Result<Stat> {
        // What is open, and where it is, is asked under locks of `core`: that takes no time, and goes well.
        let sim = if at.is_none() || path.is_empty() { self.sim()? } else { self.begin(Asks::Memory)? };
        Self::with(&sim, |disk| disk.stat(at, path))
    }

    fn set_times(&self, at: At, path: &str, times: &Timestamps) -> Result<()> {
        let sim = self.begin(Asks::Memory)?;
        let wall = Self::wall(&sim);
        Self::with(&sim, |disk| disk.set_times(at, path, times, wall))
    }

    fn mode(&self, fd: RawFd) -> Result<OFlags> {
        Self::with(&*self.sim()?, |disk| disk.mode(fd))
    }

    fn allocate(&self, fd: RawFd, bytes: u64) -> Result<()> {
        let sim = self.begin(Asks::Room)?;
        match sim.plan.shape.backend.allocates() {
            true => Self::with(&sim, |disk| disk.set_length(fd, bytes)),
            false => Err(Errno::OPNOTSUPP),
        }
    }

    fn set_length(&self, fd: RawFd, bytes: u64) -> Result<()> {
        let sim = self.begin(Asks::Memory)?;
        Self::with(&sim, |disk| disk.set_length(fd, bytes))
    }

    fn set_room_aside(&self, _: RawFd) -> Result<()> {
        self.begin(Asks::Room).map(drop)
    }

    fn space(&self, fd: RawFd) -> Result<StatVfs> {
        let sim = self.begin(Asks::Memory)?;
        let now = sim.threads.moment();
        let is_full = sim.files.as_ref().is_some_and(|files| files.state.lock().full_until > now);
        Self::with(&sim, |disk| disk.space(fd, is_full))
    }

    fn list(&self, fd: RawFd) -> Result<Vec<CString>> {
        let sim = self.begin(Asks::Memory)?;
        Self::with(&sim, |disk| disk.list(fd))
    }

    fn lock(&self, fd: RawFd, how: FlockOperation) -> Result<()> {
        if how == FlockOperation::Unlock {
            return Self::with(&*self.sim()?, |disk| disk.unlock(fd));
        }
        let sim = self.begin(Asks::Memory)?;
        let process = sim.threads.task().process;
        let shared = how == FlockOperation::NonBlockingLockShared;
        Self::with(&sim, |disk| disk.lock(fd, process, shared))
    }

    fn write(&self, fd: RawFd, at: Option<u64>, bytes: &[u8]) -> Result<usize> {
        let sim = self.begin(Asks::Bytes)?;
        let wall = Self::wall(&sim);
        let files = sim.files.as_ref().ok_or(Errno::IO)?;
        let mut state = files.state.lock();
        state.disk.node(fd)?;
        // A write may take less than it was given.
        let taken = match bytes.len() {
            2.. if state.dice.below(4000) < sim.plan.shape.trouble => 1 + state.dice.index(bytes.len() - 1),
            all => all,
        };
        state.disk.write(fd, at, bytes.get(..taken).unwrap_or(bytes), wall)?;
        drop(state);
        Self::written(&sim, fd);
        Ok(taken)
    }

    fn read(&self, fd: RawFd, at: u64, most: usize, cached: bool) -> Result<Vec<u8>> {
        let sim = self.begin(if cached { Asks::Memory } else { Asks::Sync })?;
        let files = sim.files.as_ref().ok_or(Errno::IO)?;
        let State { disk, dice, .. } = &mut *files.state.lock();
        let node = disk.node(fd)?;
        if cached && dice.met(150) {
            return Err(Errno::AGAIN);
        }
        let bytes = disk.tree.file(node)?.bytes();
        let rest = bytes.get(at as usize..).unwrap_or_default();
        let most = match rest.len().min(most) {
            2.. if dice.met(20) => 1 + dice.index(rest.len().min(most) - 1),
            all => all,
        };
        Ok(rest[..most].to_vec())
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
        let (node, begun) = Self::with(&sim, |disk| Ok((disk.node(fd)?, disk.tree.order())))?;
        let mut outcome = self.begin(Asks::Sync);
        // Linux tells each descriptor once that was open then.
        let told = |disk: &mut Disk| Ok(disk.open.get_mut(&fd).is_some_and(|open| std::mem::take(&mut open.failed)));
        if outcome.is_ok() && !sim.world().calm && Self::with(&sim, told)? {
            sim.say(|| "  a sync is told what another one through another descriptor has lost".to_owned());
            struck(&sim, sim.files.as_ref().ok_or(Errno::IO)?, Fate::Failing);
            outcome = Err(Errno::IO);
        }
        if matches!(outcome, Err(Errno::IO)) {
            self.lost(&sim, fd)?;
            Self::changed(&sim);
        }
        outcome?;
        Self::with(&sim, |disk| {
            disk.node(fd)?;
            done(&mut disk.tree, node, begun);
            Ok(())
        })?;
        Self::changed(&sim);
        Ok(())
    }

    /// A sync has failed.
    fn lost(&self, sim: &Sim, fd: RawFd) -> Result<()> {
        let files = sim.files.as_ref().ok_or(Errno::IO)?;
        let State { disk, dice, spared, .. } = &mut *files.state.lock();
        let node = disk.node(fd)?;
        let Disk { tree, open, .. } = disk;
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
            *spared = Some(sim.threads.task().operation);
        }
        Ok(())
    }
}
