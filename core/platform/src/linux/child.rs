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
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{WaitId, WaitIdOptions, waitid};

pub use super::confine::confine;
use crate::child::{Bounds, End, Program, Resource, Until, all_signals};

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
    limits: Vec<(Resource, libc::rlimit)>,
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

pub fn run(
    descriptors: [BorrowedFd; 3],
    program: &Program,
    arguments: &[CString],
    bounds: &Bounds,
    until: &Until,
) -> io::Result<End> {
    let (cancelled, cancel) = io::pipe()?;
    let mut held = Vec::new();
    for descriptor in descriptors.into_iter().chain([program.file, cancelled.as_fd()]) {
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
        limits: bounds.limits()?,
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
    while matches!(waitid(WaitId::PidFd(between.as_fd()), options), Err(rustix::io::Errno::INTR)) {}
    cancel.is_none()
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
