//! Starting a program from inside a process that has threads, children and signals of its own, so that it notices nothing.
//!
//! - No fork: `clone` with CLONE_VM copies no page tables, runs no handler of `pthread_atfork`, and takes no lock.
//! - No child: an execve makes the kernel report the end of a process by SIGCHLD again, whatever signal it was started with, so an
//!   engine that calls `waitpid(-1)` would be given ours. So a process stands between: it is started with exit signal 0, never
//!   executes a program, starts the program as its own child, and waits for it. No `waitpid` without `__WALL` or `__WCLONE`
//!   answers such a process, no SIGCHLD tells of it, and an ignored SIGCHLD does not reap it.
//! - No wait with a signal pending: the thread that starts it goes on, and waits for a pidfd.
//!
//! The process between shares this process's memory and the thread-local storage of the thread that started it, which therefore
//! makes no call that may write `errno` until it has ended: rustix makes system calls without it.

use std::ffi::{CString, c_char, c_int, c_void};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{WaitId, WaitIdOptions, waitid};

/// Until when somebody waits. It can be put off while it runs.
pub(in super::super) struct Until {
    begun: Instant,
    milliseconds: AtomicU64,
}

impl Until {
    pub(in super::super) fn new(patience: Duration) -> Self {
        let until = Until { begun: Instant::now(), milliseconds: AtomicU64::new(0) };
        until.put_off(patience);
        until
    }

    /// Not before this has passed from now.
    pub(in super::super) fn put_off(&self, patience: Duration) {
        let end = self.begun.elapsed().saturating_add(patience).as_millis();
        self.milliseconds.fetch_max(u64::try_from(end).unwrap_or(u64::MAX), SeqCst);
    }

    fn left(&self) -> Duration {
        Duration::from_millis(self.milliseconds.load(SeqCst)).saturating_sub(self.begun.elapsed())
    }
}

/// What the kernel holds the program to.
pub(super) struct Bounds {
    /// Private memory that can be written to.
    pub memory: u64,
    /// Addresses, whether there is memory behind them or not.
    pub addresses: u64,
    /// Bytes of each file that it writes.
    pub output: u64,
    /// Of processor time.
    pub seconds: u64,
}

/// How the program ended.
#[derive(Debug)]
pub(super) enum End {
    Exited(i32),
    /// By this signal, after so much processor time.
    Killed(c_int, Duration),
    /// It was killed because nobody waits any more.
    Late,
    NotStarted(io::Error),
}

/// Descriptors of the process between: input, output, errors, the program, and the pipe that is closed when it is to end.
const PROGRAM: RawFd = 3;
const CANCEL: RawFd = 4;
/// Above all of these.
const OUT_OF_THE_WAY: RawFd = 10;

/// All that the two processes need, made beforehand: they take no memory and call nothing but the kernel.
struct Plan {
    parent: libc::pid_t,
    descriptors: [RawFd; 5],
    arguments: Vec<*const c_char>,
    environment: [*const c_char; 1],
    limits: Vec<(libc::__rlimit_resource_t, libc::rlimit)>,
    mask: libc::sigset_t,
    stack: *mut c_void,
    /// The process between, for the program to know its parent by.
    between: AtomicI32,
    /// What the program ended with, as `waitpid` says it. -1: nothing yet.
    status: AtomicI32,
    /// Milliseconds of processor time that the program has taken.
    worked: AtomicU64,
    /// The `errno` that one of the processes failed with before the program ran.
    failed: AtomicI32,
}

const STACK_BYTES: usize = 64 << 10;

/// A stack for a process in this memory.
struct Stack(Vec<u128>);

impl Stack {
    fn new() -> Self {
        Stack(vec![0; STACK_BYTES / size_of::<u128>()])
    }

    /// Where it begins: stacks grow downwards.
    fn top(&mut self) -> *mut c_void {
        self.0.as_mut_ptr_range().end.cast()
    }
}

/// Run a program to its end, with input, output, errors, and the program's own file.
pub(super) fn run(
    descriptors: [BorrowedFd; 4],
    arguments: &[CString],
    bounds: &Bounds,
    until: &Until,
) -> io::Result<End> {
    let (cancelled, cancel) = io::pipe()?;
    let mut held = Vec::new();
    for descriptor in descriptors.into_iter().chain([std::os::fd::AsFd::as_fd(&cancelled)]) {
        held.push(rustix::io::fcntl_dupfd_cloexec(descriptor, OUT_OF_THE_WAY)?);
    }
    let mut numbers = [-1; 5];
    numbers.iter_mut().zip(&held).for_each(|(number, held)| *number = held.as_raw_fd());
    let mut inner = Stack::new();
    let mut outer = Stack::new();
    let null = std::ptr::null();
    let plan = Plan {
        // SAFETY: has no condition.
        parent: unsafe { libc::getpid() },
        descriptors: numbers,
        arguments: arguments.iter().map(|argument| argument.as_ptr()).chain([null]).collect(),
        environment: [null],
        limits: limits(bounds)?,
        mask: all_signals(),
        stack: inner.top(),
        between: AtomicI32::new(0),
        status: AtomicI32::new(-1),
        worked: AtomicU64::new(0),
        failed: AtomicI32::new(0),
    };
    let mut pidfd: c_int = -1;
    // SAFETY: `stand_between` runs on a stack of its own with a plan that both outlive it, for this does not return before it
    // has ended. Until then this thread leaves `errno` alone, which the two share. No signal handler of this process runs in
    // it: the threads that compile have all signals blocked, and it inherits that.
    let started = unsafe {
        let plan: *const Plan = &plan;
        libc::clone(stand_between, outer.top(), libc::CLONE_VM | libc::CLONE_PIDFD, plan.cast_mut().cast(), &mut pidfd)
    };
    if started < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel made it for us, and nobody else knows it.
    let between = unsafe { OwnedFd::from_raw_fd(pidfd) };
    let late = wait(&between, until, cancel);

    let failed = plan.failed.load(SeqCst);
    let status = plan.status.load(SeqCst);
    let worked = Duration::from_millis(plan.worked.load(SeqCst));
    Ok(match () {
        () if late => End::Late,
        () if failed != 0 => End::NotStarted(io::Error::from_raw_os_error(failed)),
        () if status != -1 && libc::WIFEXITED(status) => End::Exited(libc::WEXITSTATUS(status)),
        () if status != -1 && libc::WIFSIGNALED(status) => End::Killed(libc::WTERMSIG(status), worked),
        // Somebody killed the process between.
        () => End::Killed(libc::SIGKILL, worked),
    })
}

/// Wait until the process between has ended and is reaped. True: it was told to end, for it was late.
fn wait(between: &OwnedFd, until: &Until, cancel: io::PipeWriter) -> bool {
    let mut cancel = Some(cancel);
    loop {
        let left = until.left();
        let timeout = Timespec { tv_sec: left.as_secs() as _, tv_nsec: left.subsec_nanos().into() };
        let mut ended = [PollFd::new(between, PollFlags::IN)];
        // Nothing to wait for but the end, once it was told.
        let answer = poll(&mut ended, cancel.as_ref().map(|_| &timeout));
        if matches!(answer, Ok(1..)) {
            break;
        }
        if until.left().is_zero()
            && let Some(cancel) = cancel.take()
        {
            // A byte and not the end of the pipe alone: a child that the engine forked meanwhile may hold that open.
            let _ = rustix::io::write(&cancel, &[0]);
        }
    }
    // It is no child in the sense of SIGCHLD.
    let options = WaitIdOptions::EXITED | WaitIdOptions::from_bits_retain(libc::__WALL as u32);
    while matches!(waitid(WaitId::PidFd(std::os::fd::AsFd::as_fd(between)), options), Err(rustix::io::Errno::INTR)) {}
    cancel.is_none()
}

fn limits(bounds: &Bounds) -> io::Result<Vec<(libc::__rlimit_resource_t, libc::rlimit)>> {
    let wanted = [
        (libc::RLIMIT_DATA, bounds.memory),
        (libc::RLIMIT_AS, bounds.addresses),
        (libc::RLIMIT_FSIZE, bounds.output),
        (libc::RLIMIT_CPU, bounds.seconds),
        (libc::RLIMIT_CORE, 0),
        (libc::RLIMIT_NOFILE, 16),
    ];
    let within = wanted.into_iter().map(|(resource, bound)| {
        let mut own = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: `own` is ours.
        if unsafe { libc::getrlimit(resource, &mut own) } != 0 {
            return Err(io::Error::last_os_error());
        }
        let bound = bound.min(own.rlim_max);
        Ok((resource, libc::rlimit { rlim_cur: bound, rlim_max: bound }))
    });
    within.collect()
}

fn all_signals() -> libc::sigset_t {
    let mut all = std::mem::MaybeUninit::uninit();
    // SAFETY: sigfillset fills it before it is read.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        all.assume_init()
    }
}

fn errno() -> c_int {
    // SAFETY: glibc's own, of this thread or of the one that lent its storage.
    unsafe { *libc::__errno_location() }
}

/// The process between: starts the program, waits for it, notes how it ended.
extern "C" fn stand_between(plan: *mut c_void) -> c_int {
    // SAFETY: see `run`. Every call below is a system call without further conditions, on numbers and on what the plan holds.
    unsafe {
        let plan = &*plan.cast::<Plan>();
        let failed = |plan: &Plan| {
            plan.failed.store(errno(), SeqCst);
            1
        };
        // What this process has open is not to be kept open by another one, and a program must find nothing else.
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        libc::sigprocmask(libc::SIG_SETMASK, &plan.mask, std::ptr::null_mut());
        for (to, from) in plan.descriptors.iter().enumerate() {
            if libc::dup2(*from, to as c_int) < 0 {
                return failed(plan);
            }
        }
        if libc::syscall(libc::SYS_close_range, CANCEL + 1, c_int::MAX, 0) != 0 || libc::chdir(c"/".as_ptr()) != 0 {
            return failed(plan);
        }
        // This process has its own dispositions: with the engine's the program would be reaped where SIGCHLD is ignored.
        libc::signal(libc::SIGCHLD, libc::SIG_DFL);
        plan.between.store(libc::getpid(), SeqCst);
        if libc::getppid() != plan.parent {
            return 1;
        }
        let mut pidfd: c_int = -1;
        let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_PIDFD | libc::SIGCHLD;
        let argument: *const Plan = plan;
        let program = libc::clone(start_program, plan.stack, flags, argument.cast_mut().cast(), &mut pidfd);
        if program < 0 {
            return failed(plan);
        }
        let mut watched = [
            libc::pollfd { fd: pidfd, events: libc::POLLIN, revents: 0 },
            libc::pollfd { fd: CANCEL, events: libc::POLLIN, revents: 0 },
        ];
        while libc::poll(watched.as_mut_ptr(), 2, -1) < 0 && errno() == libc::EINTR {}
        // It is this process's child and not reaped, so the number is its own. Where it has ended, nothing happens.
        if watched[0].revents == 0 {
            libc::kill(program, libc::SIGKILL);
        }
        let mut status = -1;
        let mut usage: libc::rusage = std::mem::zeroed();
        while libc::wait4(program, &mut status, 0, &mut usage) < 0 {
            if errno() != libc::EINTR {
                return failed(plan);
            }
        }
        let milliseconds =
            |time: libc::timeval| (time.tv_sec as u64).wrapping_mul(1000).wrapping_add(time.tv_usec as u64 / 1000);
        plan.worked.store(milliseconds(usage.ru_utime).wrapping_add(milliseconds(usage.ru_stime)), SeqCst);
        plan.status.store(status, SeqCst);
        0
    }
}

/// The process that becomes the program.
extern "C" fn start_program(plan: *mut c_void) -> c_int {
    // SAFETY: as in `stand_between`, which waits until this process has executed the program or ended.
    unsafe {
        let plan = &*plan.cast::<Plan>();
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        let alone = libc::getppid() != plan.between.load(SeqCst);
        let mut bounded = libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0;
        for (resource, limit) in &plan.limits {
            bounded &= libc::setrlimit(*resource, limit) == 0;
        }
        let closes = libc::fcntl(PROGRAM, libc::F_SETFD, libc::FD_CLOEXEC) == 0
            && libc::fcntl(CANCEL, libc::F_SETFD, libc::FD_CLOEXEC) == 0
            && libc::syscall(libc::SYS_close_range, CANCEL + 1, c_int::MAX, 0) == 0;
        if !alone && bounded && closes {
            let (arguments, environment) = (plan.arguments.as_ptr(), plan.environment.as_ptr());
            libc::syscall(libc::SYS_execveat, PROGRAM, c"".as_ptr(), arguments, environment, libc::AT_EMPTY_PATH);
        }
        plan.failed.store(errno().max(1), SeqCst);
        libc::_exit(127)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::{Read, Seek};
    use std::os::fd::AsFd;
    use std::os::unix::fs::OpenOptionsExt;

    const PLENTY: Bounds = Bounds { memory: 1 << 30, addresses: 1 << 34, output: 1 << 20, seconds: 60 };

    /// How a program ends, and what it writes to its output.
    fn ran(arguments: &[&str], bounds: &Bounds, patience: Duration) -> (End, String) {
        let mut output = tempfile::tempfile().unwrap();
        let none = File::open("/dev/null").unwrap();
        let path = std::path::Path::new(arguments[0]).canonicalize().unwrap();
        let program = File::options().read(true).custom_flags(libc::O_PATH).open(path).unwrap();
        let descriptors = [none.as_fd(), output.as_fd(), output.as_fd(), program.as_fd()];
        let arguments: Vec<CString> = arguments.iter().map(|text| CString::new(*text).unwrap()).collect();
        let end = crate::signals::with_signals_blocked(|| run(descriptors, &arguments, bounds, &Until::new(patience)));
        let mut text = String::new();
        output.rewind().unwrap();
        output.read_to_string(&mut text).unwrap();
        (end.unwrap(), text)
    }

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn it_has_three_descriptors_an_empty_environment_and_its_bounds() {
        let held = File::open("/dev/null").unwrap();
        let script = "echo $(ls /proc/self/fd | wc -l); ulimit -d -f -t -n; cat /proc/self/environ; \
                      grep -E 'NoNewPrivs|SigBlk' /proc/self/status";
        let (end, text) = ran(&["/bin/bash", "-c", script], &PLENTY, LONG);
        drop(held);
        assert!(matches!(end, End::Exited(0)), "{end:?}: {text}");
        // The fourth is the listing's own.
        assert!(text.starts_with("4\n"), "{text}");
        assert!(text.contains(" 1048576\n") && text.contains("NoNewPrivs:\t1"), "{text}");
        let (end, text) = ran(&["/usr/bin/env"], &PLENTY, LONG);
        assert!(matches!(end, End::Exited(0)) && text.is_empty(), "{end:?}: {text}");
    }

    #[test]
    fn how_it_ends_is_told() {
        let sh = |script: &str, patience| ran(&["/bin/bash", "-c", script], &PLENTY, patience).0;
        assert!(matches!(sh("exit 7", LONG), End::Exited(7)));
        // All others it has blocked: a key at a terminal is the engine's to answer.
        assert!(
            matches!(sh("kill -TERM $$; kill -KILL $$", LONG), End::Killed(libc::SIGKILL, worked) if worked < Duration::from_secs(1))
        );
        let begun = Instant::now();
        assert!(matches!(sh("exec sleep 1000", Duration::from_millis(50)), End::Late));
        assert!(begun.elapsed() < LONG);
        let bound = Bounds { seconds: 1, ..PLENTY };
        let (end, _) = ran(&["/bin/bash", "-c", "while :; do :; done"], &bound, LONG);
        assert!(matches!(end, End::Killed(libc::SIGKILL, worked) if worked >= Duration::from_millis(800)), "{end:?}");
        // A directory is no program.
        assert!(matches!(ran(&["/usr"], &PLENTY, LONG).0, End::NotStarted(_)));
    }

    #[test]
    fn a_wait_can_be_put_off() {
        let until = Until::new(Duration::ZERO);
        assert!(until.left().is_zero());
        until.put_off(LONG);
        until.put_off(Duration::ZERO);
        assert!(until.left() > LONG / 2);
    }
}
