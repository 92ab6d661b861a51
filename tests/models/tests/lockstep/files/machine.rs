//! The machine of a walk: its time, and its system calls, before each of which its process stops.

use std::ffi::CString;
use std::os::fd::{OwnedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use kv_store_core::process::{Time, WaitAddress};
use rustix::fs::{FlockOperation, OFlags, Stat, StatVfs, Timestamps};
use rustix::io::{Errno, Result};
use rustix::{At, System};
use simulated_files::Disk;
use simulated_files::tree::{Node, ROOT};

use crate::actors::{Stop, stop};

const PLACE: &str = "/simulated";
const STORE: &str = "store";
/// Where the store is.
pub const DIRECTORY: &str = "/simulated/store";
/// What the name of a manifest is as a file.
pub const FILE: &str = "m%02";
/// Of the calendar, in nanoseconds.
const BEGINS: u64 = 2_000_000_000_000_000_000;

/// What a process has done that the model has a step for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Did {
    /// It looked at the clock while it had the lock of the directory.
    Looked,
    /// It had the file replaced, or removed.
    Changed,
    /// It had the names of the directory synced.
    Synced,
}

pub struct Machine {
    now: AtomicU64,
    begun: Instant,
    state: Mutex<State>,
}

struct State {
    disk: Disk,
    /// Whose system calls are made.
    client: u8,
    process: usize,
    /// Which client has the lock of the directory.
    holder: Option<u8>,
    did: Vec<Did>,
}

impl Machine {
    pub fn new() -> Arc<Self> {
        let disk = Disk::new(PLACE);
        let state = State { disk, client: 0, process: 0, holder: None, did: Vec::new() };
        Arc::new(Machine { now: AtomicU64::new(0), begun: Instant::now(), state: Mutex::new(state) })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no call panics with it")
    }

    /// Nanoseconds.
    pub fn now(&self) -> u64 {
        self.now.load(Relaxed)
    }

    pub fn passes(&self, nanoseconds: u64) {
        self.now.fetch_add(nanoseconds, Relaxed);
    }

    pub fn moment(&self, nanoseconds: u64) -> Instant {
        self.begun + Duration::from_nanos(nanoseconds)
    }

    /// Who makes the calls that follow.
    pub fn runs(&self, client: u8, process: usize) {
        let mut state = self.state();
        (state.client, state.process) = (client, process);
    }

    /// What was done since this was last asked.
    pub fn did(&self) -> Vec<Did> {
        std::mem::take(&mut self.state().did)
    }

    /// A process has been killed.
    pub fn ended(&self, process: usize, clients: &[u8]) {
        let mut state = self.state();
        state.disk.ended(process);
        state.holder = state.holder.filter(|holder| !clients.contains(holder));
    }

    /// The kernel writes out the names of the directory, and no bytes of files.
    pub fn writes_out(&self) {
        let disk = &mut self.state().disk;
        let node = disk.tree.resolve(ROOT, STORE).expect("it was made");
        disk.tree.synced(node, disk.tree.order());
    }

    /// What the disk has is left, and nothing else.
    pub fn loses_power(&self) {
        let mut state = self.state();
        state.disk.lose_power(&mut |_| 0);
        state.holder = None;
    }

    /// What lies under the key.
    pub fn content(&self) -> Option<Vec<u8>> {
        let tree = &self.state().disk.tree;
        let node = tree.resolve(ROOT, &format!("{STORE}/{FILE}")).ok()?;
        tree.file(node).ok().map(|file| file.bytes().to_vec())
    }

    /// What a power loss leaves there, as far as it is sure which bytes those are.
    pub fn on_disk(&self) -> Option<Vec<u8>> {
        let (versions, _) = self.state().disk.tree.left(&format!("{STORE}/{FILE}")).remove(0)?;
        Some(match versions.as_slice() {
            [bytes] => bytes.to_vec(),
            _ => b"a part of a file".to_vec(),
        })
    }
}

/// The system calls of the machine.
pub struct Kernel(pub Arc<Machine>);

impl Kernel {
    /// A call is made, when its process goes on.
    fn call<T>(&self, call: impl FnOnce(&mut Disk, u64) -> Result<T>) -> Result<T> {
        // The process has ended.
        if std::thread::panicking() {
            return Err(Errno::BADF);
        }
        stop(Stop::Calls);
        self.at_once(call)
    }

    fn at_once<T>(&self, call: impl FnOnce(&mut Disk, u64) -> Result<T>) -> Result<T> {
        call(&mut self.0.state().disk, BEGINS + self.0.now())
    }

    fn is_store(&self, at: At) -> bool {
        let disk = &self.0.state().disk;
        disk.tree.resolve(ROOT, STORE).is_ok_and(|store| disk.node(at) == Ok(store))
    }

    fn did(&self, did: Did) {
        self.0.state().did.push(did);
    }

    fn changed(&self, at: At, name: &str) {
        if name == FILE && self.is_store(at) {
            self.did(Did::Changed);
        }
    }

    fn to_disk(&self, fd: RawFd, done: impl FnOnce(&mut Disk, Node)) -> Result<()> {
        self.call(|disk, _| {
            let node = disk.node(fd)?;
            done(disk, node);
            Ok(())
        })
    }
}

impl System for Kernel {
    fn knows(&self, fd: RawFd) -> bool {
        self.0.state().disk.open.contains_key(&fd)
    }

    fn holds(&self, path: &str) -> bool {
        path.starts_with(PLACE)
    }

    fn open(&self, at: Option<At>, path: &str, flags: OFlags, _: bool) -> Result<OwnedFd> {
        self.call(|disk, wall| disk.open(at, path, flags, wall))
    }

    fn make_directory(&self, at: At, path: &str) -> Result<()> {
        self.call(|disk, wall| disk.make_directory(at, path, wall))
    }

    fn rename(&self, from: (At, &str), to: (At, &str), replace: bool) -> Result<()> {
        self.call(|disk, _| disk.rename(from, to, replace))?;
        self.changed(to.0, to.1);
        Ok(())
    }

    fn remove(&self, at: At, path: &str, directory: bool) -> Result<()> {
        let removed = self.call(|disk, _| disk.remove(at, path, directory));
        if matches!(removed, Ok(()) | Err(Errno::NOENT)) {
            self.changed(at, path);
        }
        removed
    }

    fn stat(&self, at: Option<At>, path: &str) -> Result<Stat> {
        // What is open is asked under locks of `core`.
        match at.is_none() || path.is_empty() {
            true => self.at_once(|disk, _| disk.stat(at, path)),
            false => self.call(|disk, _| disk.stat(at, path)),
        }
    }

    fn set_times(&self, at: At, path: &str, times: &Timestamps) -> Result<()> {
        self.call(|disk, wall| disk.set_times(at, path, times, wall))
    }

    fn mode(&self, fd: RawFd) -> Result<OFlags> {
        self.at_once(|disk, _| disk.mode(fd))
    }

    fn allocate(&self, fd: RawFd, bytes: u64) -> Result<()> {
        self.set_length(fd, bytes)
    }

    fn set_length(&self, fd: RawFd, bytes: u64) -> Result<()> {
        self.call(|disk, _| disk.set_length(fd, bytes))
    }

    fn set_room_aside(&self, _: RawFd) -> Result<()> {
        self.call(|_, _| Ok(()))
    }

    fn space(&self, fd: RawFd) -> Result<StatVfs> {
        self.call(|disk, _| disk.space(fd, false))
    }

    fn list(&self, fd: RawFd) -> Result<Vec<CString>> {
        self.call(|disk, _| disk.list(fd))
    }

    fn lock(&self, fd: RawFd, how: FlockOperation) -> Result<()> {
        if how == FlockOperation::Unlock {
            self.call(|disk, _| disk.unlock(fd))?;
            self.0.state().holder = None;
            return Ok(());
        }
        let (process, shared) = (self.0.state().process, how == FlockOperation::NonBlockingLockShared);
        self.call(|disk, _| disk.lock(fd, process, shared))?;
        let mut state = self.0.state();
        state.holder = Some(state.client);
        Ok(())
    }

    fn write(&self, fd: RawFd, at: Option<u64>, bytes: &[u8]) -> Result<usize> {
        self.call(|disk, wall| disk.write(fd, at, bytes, wall)).map(|()| bytes.len())
    }

    fn read(&self, fd: RawFd, at: u64, most: usize, _: bool) -> Result<Vec<u8>> {
        self.call(|disk, _| {
            let bytes = disk.tree.file(disk.node(fd)?)?.bytes();
            Ok(bytes.iter().skip(at as usize).take(most).copied().collect())
        })
    }

    fn sync(&self, fd: RawFd) -> Result<()> {
        self.to_disk(fd, |disk, node| disk.tree.synced(node, disk.tree.order()))?;
        if self.is_store(fd) {
            self.did(Did::Synced);
        }
        Ok(())
    }

    fn write_out(&self, fd: RawFd) -> Result<()> {
        self.to_disk(fd, |disk, node| disk.tree.written_out(node, disk.tree.order()))
    }
}

/// The time of the machine, as one of its processes has it.
pub struct Clock {
    pub machine: Arc<Machine>,
    /// The process stops before it looks. One with several threads may have a lock then that they share, and does not.
    pub stops: bool,
}

impl Time for Clock {
    fn now(&self) -> Instant {
        if self.stops {
            stop(Stop::Calls);
        }
        let mut state = self.machine.state();
        if state.holder == Some(state.client) {
            state.did.push(Did::Looked);
        }
        self.machine.moment(self.machine.now())
    }

    fn wall(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_nanos(BEGINS + self.machine.now())
    }

    fn has_threads(&self) -> bool {
        true
    }

    fn wait(&self, _: WaitAddress, _: Option<Instant>) {
        // Who waits looks again.
        stop(Stop::Calls);
    }

    fn wait_for_lock(&self, _: WaitAddress) {
        stop(Stop::Calls);
    }
}
