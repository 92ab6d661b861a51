//! Ctrl-C and SIGTERM in the middle of a long command: say what was kept, remove what is half made, and end with 130.
//!
//! The signals are taken by a thread of their own, which can do more than a handler may.

use std::path::PathBuf;

use kv_platform::sync::{Mutex, MutexGuard};

/// What is said and removed when the command is interrupted. None: it is over.
static UNDER_WAY: Mutex<Option<UnderWay>> = Mutex::new(None);

struct UnderWay {
    kept: &'static str,
    unfinished: Option<PathBuf>,
}

/// Ends with the part of a command that can be interrupted.
pub struct Guard(());

/// From now on an interrupt says `kept`. Before any other thread is made, so that all of them leave the signals to ours.
pub fn says(kept: &'static str) -> Guard {
    *lock() = Some(UnderWay { kept, unfinished: None });
    // SAFETY: the set is filled by sigemptyset before it is read, and lives as long as the calls.
    let set = unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, libc::SIGINT);
        libc::sigaddset(&mut set, libc::SIGTERM);
        libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
        set
    };
    let waits = move || {
        let mut signal = 0;
        // SAFETY: both are ours.
        while unsafe { libc::sigwait(&set, &mut signal) } != 0 {}
        match lock().take() {
            Some(UnderWay { kept, unfinished }) => {
                if let Some(path) = unfinished {
                    let _ = std::fs::remove_file(path);
                }
                eprintln!("kv-store: interrupted: {kept}");
            }
            None => eprintln!("kv-store: interrupted"),
        }
        std::process::exit(130)
    };
    if std::thread::Builder::new().name("interrupt".into()).spawn(waits).is_err() {
        // SAFETY: as above. Nobody waits for the signals: they end the process as ever.
        unsafe { libc::pthread_sigmask(libc::SIG_UNBLOCK, &set, std::ptr::null_mut()) };
    }
    Guard(())
}

impl Guard {
    /// A file that is removed on an interrupt.
    pub fn removes(&self, unfinished: PathBuf) {
        if let Some(under_way) = lock().as_mut() {
            under_way.unfinished = Some(unfinished);
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        *lock() = None;
    }
}

fn lock() -> MutexGuard<'static, Option<UnderWay>> {
    UNDER_WAY.lock()
}
