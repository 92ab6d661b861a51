//! Instructions of an operation, counted one by one with ptrace: for machines that keep their performance counters to themselves, as
//! virtual ones do.
//!
//! The thread that works is counted. All others of its process stand still meanwhile: each step takes microseconds, and so many
//! ticks of the clock would come during one call that they would be most of what is counted.

use std::process::Command;

use anyhow::{Context, Result, bail};
use libc::pid_t;

/// In the process that is counted: count this work, and nothing before and after it.
pub fn counted<T>(work: impl FnOnce() -> T) -> T {
    // SAFETY: asks that the parent be told of signals, and sends some to this thread.
    let stop = || unsafe { libc::raise(libc::SIGSTOP) };
    // SAFETY: as above.
    unsafe { libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) };
    stop();
    let done = work();
    stop();
    done
}

/// Run a program that calls [`counted`]: the instructions between. A repeated instruction, such as `rep movsb`, is one.
#[cfg(target_arch = "x86_64")]
pub fn instructions(command: &mut Command) -> Result<Option<u64>> {
    let mut process = command.spawn()?;
    let (id, mut others) = (process.id() as pid_t, Vec::new());
    let counted = count(id, &mut others);
    // A thread that is still traced would be waited for.
    for thread in others {
        // SAFETY: of a thread of our own child.
        unsafe { libc::ptrace(libc::PTRACE_DETACH, thread, 0, 0) };
    }
    process.kill()?;
    process.wait()?;
    counted.map(Some)
}

#[cfg(not(target_arch = "x86_64"))]
pub fn instructions(_: &mut Command) -> Result<Option<u64>> {
    Ok(None)
}

#[cfg(target_arch = "x86_64")]
fn count(process: pid_t, others: &mut Vec<pid_t>) -> Result<u64> {
    if stopped_by(process)? != libc::SIGSTOP {
        bail!("it did not come to what is counted");
    }
    for thread in std::fs::read_dir(format!("/proc/{process}/task"))? {
        let thread: pid_t = thread?.file_name().to_str().and_then(|id| id.parse().ok()).context("no thread")?;
        if thread != process {
            // SAFETY: of a thread of our own child.
            unsafe { libc::ptrace(libc::PTRACE_SEIZE, thread, 0, 0) };
            // SAFETY: as above.
            unsafe { libc::ptrace(libc::PTRACE_INTERRUPT, thread, 0, 0) };
            stopped_by(thread)?;
            others.push(thread);
        }
    }
    let place = std::mem::offset_of!(libc::user_regs_struct, rip);
    let (mut steps, mut last) = (0, 0);
    loop {
        // SAFETY: our own child, which is stopped.
        if unsafe { libc::ptrace(libc::PTRACE_SINGLESTEP, process, 0, 0) } != 0 {
            bail!("it cannot be stepped: {}", std::io::Error::last_os_error());
        }
        match stopped_by(process)? {
            libc::SIGTRAP => {}
            libc::SIGSTOP => return Ok(steps),
            signal => bail!("it was stopped by signal {signal}"),
        }
        // SAFETY: as above; a register is read.
        let at = unsafe { libc::ptrace(libc::PTRACE_PEEKUSER, process, place, 0) };
        steps += u64::from(at != last);
        last = at;
    }
}

/// Wait until a thread stops: the signal that stopped it.
#[cfg(target_arch = "x86_64")]
fn stopped_by(thread: pid_t) -> Result<i32> {
    let mut status = 0;
    // SAFETY: the status is ours.
    if unsafe { libc::waitpid(thread, &mut status, libc::__WALL) } != thread {
        bail!("it cannot be waited for: {}", std::io::Error::last_os_error());
    }
    if !libc::WIFSTOPPED(status) {
        bail!("it ended with status {status:#x}");
    }
    Ok(libc::WSTOPSIG(status))
}
