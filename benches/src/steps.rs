//! Instructions of an operation, counted one by one with ptrace: for machines that keep their performance counters to themselves, as
//! virtual ones do.
//!
//! The thread that works is counted. All others of its process stand still meanwhile: each step takes microseconds, and so many
//! ticks of the clock would come during one call that they would be most of what is counted. For the same reason time stands still for it:
//! what is remembered for a second would be forgotten within a call.

use std::ops::Range;
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
    // Shows where clocks are read.
    std::hint::black_box(std::time::Instant::now());
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

/// The addresses of a line of `/proc/PID/maps`.
pub fn mapped(line: &str) -> Result<Range<u64>> {
    let range = line.split_ascii_whitespace().next().unwrap_or_default();
    let (begin, end) = range.split_once('-').context("a mapping has two ends")?;
    Ok(u64::from_str_radix(begin, 16)?..u64::from_str_radix(end, 16)?)
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
    let mut clocks = Clocks::new(process)?;
    walk(process, |instruction| {
        clocks.find(instruction.address);
        Ok(())
    })?;
    let mut step = begin(process as u32)?;
    walk(process, |instruction| {
        clocks.stand_still(instruction.address)?;
        step(instruction);
        Ok(())
    })
}

/// Look at each instruction up to the next `SIGSTOP`.
#[cfg(target_arch = "x86_64")]
fn walk(process: pid_t, mut step: impl FnMut(Instruction) -> Result<()>) -> Result<()> {
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
        let at = register(process, std::mem::offset_of!(libc::user_regs_struct, rip));
        if at != last {
            // SAFETY: as above; what is mapped there is code.
            let bytes = unsafe { libc::ptrace(libc::PTRACE_PEEKTEXT, process, at, 0) };
            step(Instruction { address: at, is_system_call: bytes.to_le_bytes()[..2] == SYSCALL })?;
        }
        last = at;
    }
}

/// A register of a child that is stopped, by its place among them.
#[cfg(target_arch = "x86_64")]
fn register(process: pid_t, place: usize) -> u64 {
    // SAFETY: of our own child, which is stopped; a register is read.
    unsafe { libc::ptrace(libc::PTRACE_PEEKUSER, process, place, 0) as u64 }
}

/// Has each clock answer what it answered first. They are read in code that the kernel maps (the vDSO).
#[cfg(target_arch = "x86_64")]
struct Clocks {
    process: pid_t,
    code: Range<u64>,
    /// Where `clock_gettime` begins.
    begin: Option<u64>,
    inside: bool,
    /// The clock that is being read, and where its two numbers go.
    asked: Option<(u64, u64)>,
    first: std::collections::HashMap<u64, [i64; 2]>,
}

#[cfg(target_arch = "x86_64")]
impl Clocks {
    fn new(process: pid_t) -> Result<Self> {
        let maps = std::fs::read_to_string(format!("/proc/{process}/maps"))?;
        let line = maps.lines().find(|line| line.ends_with("[vdso]")).context("it has no vDSO")?;
        let code = mapped(line)?;
        Ok(Clocks { process, code, begin: None, inside: false, asked: None, first: Default::default() })
    }

    /// While nothing but a clock is read.
    fn find(&mut self, address: u64) {
        if self.begin.is_none() && self.code.contains(&address) {
            self.begin = Some(address);
        }
    }

    fn stand_still(&mut self, address: u64) -> Result<()> {
        let was_inside = std::mem::replace(&mut self.inside, self.code.contains(&address));
        if self.inside && !was_inside && Some(address) == self.begin {
            let place = |place| register(self.process, place);
            let clock = place(std::mem::offset_of!(libc::user_regs_struct, rdi));
            self.asked = Some((clock, place(std::mem::offset_of!(libc::user_regs_struct, rsi))));
        } else if was_inside
            && !self.inside
            && let Some((clock, at)) = self.asked.take()
        {
            // SAFETY: of our own child, which is stopped; it has just been given both numbers there.
            let answered = [at, at + 8].map(|at| unsafe { libc::ptrace(libc::PTRACE_PEEKDATA, self.process, at, 0) });
            for (at, number) in [at, at + 8].into_iter().zip(self.first.entry(clock).or_insert(answered)) {
                // SAFETY: as above.
                if unsafe { libc::ptrace(libc::PTRACE_POKEDATA, self.process, at, *number) } != 0 {
                    bail!("its clock cannot be held: {}", std::io::Error::last_os_error());
                }
            }
        }
        Ok(())
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
