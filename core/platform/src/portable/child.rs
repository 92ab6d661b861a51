//! `posix_spawn`: the only way to start a program that copies no memory, runs no handler of `pthread_atfork` and takes no lock of this
//! process. What it starts is a child like any other, so an engine that waits for all of its children may be told of it, and of how it
//! ended; then what it wrote has to speak for itself.

use std::ffi::{CStr, CString, c_char, c_int};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::ptr;
use std::time::Duration;

use rustix::fs;

use crate::child::{Bounds, End, Program, Until, all_signals};

/// Between two looks at the program.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(10);
/// Descriptors that the engine may have left open to programs that it starts.
const DESCRIPTORS: c_int = 4096;

pub fn run(
    descriptors: [BorrowedFd; 3],
    program: &Program,
    arguments: &[CString],
    bounds: &Bounds,
    until: &Until,
) -> io::Result<End> {
    let path = CString::new(program.path.as_os_str().as_bytes())?;
    let (open, there) = (fs::fstat(program.file)?, fs::stat(&path)?);
    if (open.st_dev, open.st_ino) != (there.st_dev, there.st_ino) {
        return Ok(End::NotStarted(io::Error::other("another file took its place")));
    }
    let bounds = [bounds.memory, bounds.addresses, bounds.output, bounds.seconds];
    let bounds = bounds.map(|bound| CString::new(bound.to_string()).unwrap_or_default());
    let arguments: Vec<&CStr> = arguments.iter().chain(&bounds).map(CString::as_c_str).collect();
    match spawn(&path, &arguments, descriptors) {
        Ok(child) => Ok(wait(child, until)),
        Err(error) => Ok(End::NotStarted(error)),
    }
}

/// What the calls answer that return an error number.
fn done(answer: c_int) -> io::Result<()> {
    match answer {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

struct Actions(libc::posix_spawn_file_actions_t);

impl Drop for Actions {
    fn drop(&mut self) {
        // SAFETY: they were made by `posix_spawn_file_actions_init`.
        unsafe { libc::posix_spawn_file_actions_destroy(&mut self.0) };
    }
}

struct Attributes(libc::posix_spawnattr_t);

impl Drop for Attributes {
    fn drop(&mut self) {
        // SAFETY: they were made by `posix_spawnattr_init`.
        unsafe { libc::posix_spawnattr_destroy(&mut self.0) };
    }
}

fn spawn(path: &CStr, arguments: &[&CStr], descriptors: [BorrowedFd; 3]) -> io::Result<libc::pid_t> {
    #[cfg(target_vendor = "apple")]
    const ONLY_WHAT_IS_NAMED: c_int = libc::POSIX_SPAWN_CLOEXEC_DEFAULT;
    #[cfg(not(target_vendor = "apple"))]
    const ONLY_WHAT_IS_NAMED: c_int = 0;
    let held: Vec<_> = descriptors
        .into_iter()
        .map(|descriptor| rustix::io::fcntl_dupfd_cloexec(descriptor, 10))
        .collect::<Result<_, _>>()?;
    let arguments: Vec<*mut c_char> =
        arguments.iter().map(|argument| argument.as_ptr().cast_mut()).chain([ptr::null_mut()]).collect();
    let environment: [*mut c_char; 1] = [ptr::null_mut()];
    // SAFETY: each value is initialised by the call named so, which answers 0, before it is used, and destroyed once. The strings and
    // lists outlive the call that reads them.
    unsafe {
        let mut actions = MaybeUninit::uninit();
        done(libc::posix_spawn_file_actions_init(actions.as_mut_ptr()))?;
        let mut actions = Actions(actions.assume_init());
        for (number, held) in (0..).zip(&held) {
            done(libc::posix_spawn_file_actions_adddup2(&mut actions.0, held.as_raw_fd(), number))?;
        }
        let mut attributes = MaybeUninit::uninit();
        done(libc::posix_spawnattr_init(attributes.as_mut_ptr()))?;
        let mut attributes = Attributes(attributes.assume_init());
        let flags = libc::POSIX_SPAWN_SETSIGMASK as c_int | libc::POSIX_SPAWN_SETSIGDEF as c_int | ONLY_WHAT_IS_NAMED;
        done(libc::posix_spawnattr_setflags(&mut attributes.0, flags as _))?;
        let all = all_signals();
        done(libc::posix_spawnattr_setsigmask(&mut attributes.0, &all))?;
        done(libc::posix_spawnattr_setsigdefault(&mut attributes.0, &all))?;
        let mut child = 0;
        let (given, nothing) = (arguments.as_ptr(), environment.as_ptr());
        done(libc::posix_spawn(&mut child, path.as_ptr(), &actions.0, &attributes.0, given, nothing))?;
        Ok(child)
    }
}

fn wait(child: libc::pid_t, until: &Until) -> End {
    let (mut late, mut pause) = (false, FIRST_PAUSE);
    loop {
        let mut status = -1;
        let mut usage = MaybeUninit::<libc::rusage>::zeroed();
        // SAFETY: both are ours; zeroes are a usage of nothing.
        let (ended, usage) = unsafe {
            let ended = libc::wait4(child, &mut status, if late { 0 } else { libc::WNOHANG }, usage.as_mut_ptr());
            (ended, usage.assume_init())
        };
        let time = |time: libc::timeval| {
            Duration::from_secs(time.tv_sec as u64).saturating_add(Duration::from_micros(time.tv_usec as u64))
        };
        let worked = time(usage.ru_utime).saturating_add(time(usage.ru_stime));
        match ended {
            0 => {}
            _ if ended < 0 && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => continue,
            _ if late => return End::Late,
            // The engine has waited for it, or has its children reaped unseen.
            _ if ended < 0 => return End::Exited(0),
            _ if libc::WIFSIGNALED(status) => return End::Killed(libc::WTERMSIG(status), worked),
            _ => return End::Exited(libc::WEXITSTATUS(status)),
        }
        let left = until.left();
        if left.is_zero() {
            // SAFETY: it has not ended, a moment ago.
            unsafe { libc::kill(child, libc::SIGKILL) };
            late = true;
            continue;
        }
        std::thread::sleep(pause.min(left));
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

pub fn confine(bounds: impl Iterator<Item = String>) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let bounds: Vec<u64> = bounds.map(|bound| bound.parse()).collect::<Result<_, _>>()?;
    let [memory, addresses, output, seconds] = *bounds else { return Err("no bounds".into()) };
    for descriptor in 3..DESCRIPTORS {
        // SAFETY: what computes has three descriptors, and this process does nothing else.
        unsafe { libc::close(descriptor) };
    }
    std::env::set_current_dir("/")?;
    for (resource, limit) in (Bounds { memory, addresses, output, seconds }).limits()? {
        // SAFETY: reads `limit`.
        if unsafe { libc::setrlimit(resource, &limit) } != 0 && !is_lacking(resource) {
            return Err(io::Error::last_os_error().into());
        }
    }
    Ok(())
}

/// Whether the system knows no such bound.
fn is_lacking(resource: crate::child::Resource) -> bool {
    cfg!(target_vendor = "apple") && matches!(resource, libc::RLIMIT_AS | libc::RLIMIT_DATA)
}
