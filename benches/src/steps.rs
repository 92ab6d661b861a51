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
pub fn instructions(command: &mut Command) -> Result<Option<u64>> {
    let mut steps = 0;
    let count = &mut steps;
    let counted = each(command, |_| Ok(Box::new(move |_| *count += 1)))?;
    Ok(counted.then_some(steps))
}

/// What is done with each instruction.
pub type Step<'a> = Box<dyn FnMut(Instruction) + 'a>;

/// An instruction that is to be run.
#[derive(Clone, Copy)]
pub struct Instruction {
    pub address: u64,
    /// It asks the kernel.
    pub is_system_call: bool,
}

/// Run a program that calls [`counted`], and be told of each instruction between. `begin` is given the process when it stands before the
/// first. False: this machine is of another kind, and nothing was run.
#[cfg(target_arch = "x86_64")]
pub fn each<'a>(command: &mut Command, begin: impl FnOnce(u32) -> Result<Step<'a>>) -> Result<bool> {
    let mut process = command.spawn()?;
    let (id, mut others) = (process.id() as pid_t, Vec::new());
    let counted = count(id, &mut others, begin);
    // A thread that is still traced would be waited for.
    for thread in others {
        // SAFETY: of a thread of our own child.
        unsafe { libc::ptrace(libc::PTRACE_DETACH, thread, 0, 0) };
    }
    process.kill()?;
    process.wait()?;
    counted.map(|()| true)
}

#[cfg(not(target_arch = "x86_64"))]
pub fn each<'a>(_: &mut Command, _: impl FnOnce(u32) -> Result<Step<'a>>) -> Result<bool> {
    Ok(false)
}

/// `syscall`.
#[cfg(target_arch = "x86_64")]
const SYSCALL: [u8; 2] = [0x0f, 0x05];

#[cfg(target_arch = "x86_64")]
fn count<'a>(process: pid_t, others: &mut Vec<pid_t>, begin: impl FnOnce(u32) -> Result<Step<'a>>) -> Result<()> {
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
    let mut step = begin(process as u32)?;
    let place = std::mem::offset_of!(libc::user_regs_struct, rip);
    let mut last = 0;
    loop {
        // SAFETY: our own child, which is stopped.
        if unsafe { libc::ptrace(libc::PTRACE_SINGLESTEP, process, 0, 0) } != 0 {
            bail!("it cannot be stepped: {}", std::io::Error::last_os_error());
        }
        match stopped_by(process)? {
            libc::SIGTRAP => {}
            libc::SIGSTOP => return Ok(()),
            signal => bail!("it was stopped by signal {signal}"),
        }
        // SAFETY: as above; a register is read.
        let at = unsafe { libc::ptrace(libc::PTRACE_PEEKUSER, process, place, 0) };
        if at != last {
            // SAFETY: as above; what is mapped there is code.
            let bytes = unsafe { libc::ptrace(libc::PTRACE_PEEKTEXT, process, at, 0) };
            step(Instruction { address: at as u64, is_system_call: bytes.to_le_bytes()[..2] == SYSCALL });
        }
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
