//! The file that the server names for a slot, on this machine.
//!
//! Since llama.cpp 0.7.0 the server appends its context checkpoints to the file of a state when `llama_state_seq_save_file` has
//! returned, and reads them from the offset that `llama_state_seq_load_file` answered. The state itself is in the store. So the file
//! is a hole of the state's length, with what the server appends behind it; what was appended goes to the store too, and is put
//! behind the hole before a load returns. The file is removed when the server is done with it.
//!
//! Invariant: behind the hole are the checkpoints of the state that was saved or loaded last, or nothing.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use kv_platform::sync::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify;

/// The most that the server may append to a state and have stored.
pub const MAX_APPENDIX: u64 = 1 << 30;
/// How long the server has to open the file after a save or load returned; it does so at once.
const PATIENCE: Duration = Duration::from_secs(1);
/// The server may append more than once, one part right after another.
const NEXT_PART: Duration = Duration::from_millis(100);

/// Which use of a file is the last one: an older one does not remove it.
static USES: Mutex<(u64, Option<HashMap<PathBuf, u64>>)> = Mutex::new((0, None));

/// A file that the server is about to use.
pub struct Local {
    path: PathBuf,
    /// Of [`USES`].
    use_number: u64,
    /// Bytes of the hole.
    state_bytes: u64,
    /// Readable when the server has closed the file.
    closed: Option<OwnedFd>,
    since: Instant,
}

impl Local {
    /// Before a save returns: a hole of the state's length. `None`: there can be no file, and the server cannot append to it either.
    ///
    /// # Errors
    /// There is a file of another state, and it cannot be made short.
    pub fn for_save(path: &Path, state_bytes: u64) -> Result<Option<Local>, String> {
        Local::new(path, state_bytes, &[], inotify::WatchFlags::CLOSE_WRITE)
    }

    /// Before a load returns: the hole, and what was appended to the state.
    ///
    /// # Errors
    /// As [`Local::for_save`].
    pub fn for_load(path: &Path, state_bytes: u64, appendix: &[u8]) -> Result<Option<Local>, String> {
        Local::new(path, state_bytes, appendix, inotify::WatchFlags::CLOSE_NOWRITE)
    }

    fn new(
        path: &Path,
        state_bytes: u64,
        appendix: &[u8],
        closed: inotify::WatchFlags,
    ) -> Result<Option<Local>, String> {
        let mut uses = USES.lock();
        let file = match OpenOptions::new().write(true).create(true).truncate(true).open(path) {
            Ok(file) => file,
            // A load reads what lies there, so it must not be another state's.
            Err(error) if path.exists() => {
                return Err(format!("{}: what it holds is another state's, and stays: {error}", path.display()));
            }
            Err(_) => return Ok(None),
        };
        if !file.metadata().is_ok_and(|metadata| metadata.is_file()) {
            return Ok(None);
        }
        let filled = file.set_len(state_bytes).and_then(|()| file.write_all_at(appendix, state_bytes));
        drop(file);
        if let Err(error) = filled {
            // A file that is too short has no checkpoints. Nothing more can be done about one that stays.
            let _ = std::fs::remove_file(path);
            return Err(format!("{}: {error}", path.display()));
        }
        uses.0 += 1;
        let use_number = uses.0;
        uses.1.get_or_insert_default().insert(path.to_owned(), use_number);
        let watch = || {
            let watch = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK)?;
            inotify::add_watch(&watch, path, closed)?;
            rustix::io::Result::Ok(watch)
        };
        let local =
            Local { path: path.to_owned(), use_number, state_bytes, closed: watch().ok(), since: Instant::now() };
        Ok(Some(local))
    }

    /// Wait until the server has closed the file, or has had time enough to.
    pub fn wait(&self) {
        let mut end = self.since + PATIENCE;
        while let Some(left) = end.checked_duration_since(Instant::now()) {
            let Some(closed) = &self.closed else {
                // Too many watches in use: it is waited for long enough.
                std::thread::sleep(left);
                return;
            };
            let timeout = Timespec { tv_sec: left.as_secs() as _, tv_nsec: left.subsec_nanos() as _ };
            match poll(&mut [PollFd::new(closed, PollFlags::IN)], Some(&timeout)) {
                Ok(0) => return,
                Err(rustix::io::Errno::INTR) => {}
                Err(_) => return,
                Ok(_) => {
                    let mut events = [MaybeUninit::<u8>::uninit(); 1024];
                    let mut events = inotify::Reader::new(closed, &mut events);
                    while events.next().is_ok() {}
                    end = Instant::now() + NEXT_PART;
                }
            }
        }
    }

    /// What the server has appended; empty if nothing.
    ///
    /// # Errors
    /// It cannot be read, or is longer than [`MAX_APPENDIX`].
    pub fn appendix(&self) -> io::Result<Vec<u8>> {
        if !self.is_last_use() {
            return Ok(Vec::new());
        }
        let mut file = match File::open(&self.path) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        file.seek(SeekFrom::Start(self.state_bytes))?;
        let mut appendix = Vec::new();
        let read = file.take(MAX_APPENDIX + 1).read_to_end(&mut appendix)? as u64;
        if read > MAX_APPENDIX {
            return Err(io::Error::new(ErrorKind::FileTooLarge, format!("more than {MAX_APPENDIX} bytes")));
        }
        Ok(appendix)
    }

    fn is_last_use(&self) -> bool {
        let uses = USES.lock();
        uses.1.as_ref().and_then(|uses| uses.get(&self.path)) == Some(&self.use_number)
    }

    /// Remove the file, unless it was used again meanwhile.
    pub fn remove(self) {
        let mut uses = USES.lock();
        let Some(uses) = &mut uses.1 else { return };
        if uses.get(&self.path) == Some(&self.use_number) {
            uses.remove(&self.path);
            // One that stays is a hole, and the next use makes it anew.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn append(path: &Path, bytes: &[u8]) {
        OpenOptions::new().append(true).open(path).unwrap().write_all(bytes).unwrap();
    }

    #[test]
    fn what_is_appended_after_a_save_is_found_behind_the_state() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("slot");
        std::fs::write(&path, vec![7; 100_000]).unwrap();
        let local = Local::for_save(&path, 5000).unwrap().unwrap();
        append(&path, b"one ");
        append(&path, b"two");
        local.wait();
        assert_eq!(local.appendix().unwrap(), b"one two");
        assert_eq!(std::fs::read(&path).unwrap()[..5000], [0; 5000], "nothing of the former file is left");
        local.remove();
        assert!(!path.exists());
    }

    #[test]
    fn a_load_reads_what_was_appended_to_this_state() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("slot");
        std::fs::write(&path, vec![7; 100_000]).unwrap();
        let local = Local::for_load(&path, 5000, b"checkpoints").unwrap().unwrap();
        assert_eq!(std::fs::read(&path).unwrap()[5000..], *b"checkpoints");
        local.wait();
        local.remove();
        assert!(!path.exists());
    }

    #[test]
    fn an_older_use_neither_reads_nor_removes_the_file_of_a_later_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("slot");
        let first = Local::for_save(&path, 10).unwrap().unwrap();
        let second = Local::for_save(&path, 20).unwrap().unwrap();
        append(&path, b"of the second");
        assert!(first.appendix().unwrap().is_empty());
        first.remove();
        assert_eq!(second.appendix().unwrap(), b"of the second");
    }

    #[test]
    fn where_no_file_can_be_there_is_none() {
        assert!(Local::for_save(Path::new("/nowhere/slot"), 10).unwrap().is_none());
        assert!(Local::for_load(Path::new("/nowhere/slot"), 10, b"x").unwrap().is_none());
        assert!(Local::for_save(Path::new("/dev/null"), 10).unwrap().is_none());
    }
}
