//! Takes from this process whatever compiling does not need. From then on it can compute, take memory up to the bounds that
//! it was started with, read and write the three descriptors that it has, and end.

use std::collections::BTreeMap;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen::Qword, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    TargetArch, apply_filter_all_threads,
};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// None of this process's threads can be started after it. The bounds hold already.
pub fn confine(_: impl Iterator<Item = String>) -> Result<()> {
    // If the machine runs out of memory, this process is to end and not the one that waits for it. Best effort.
    let _ = std::fs::write("/proc/self/oom_score_adj", "1000");
    let program: BpfProgram = filter()?.try_into()?;
    apply_filter_all_threads(&program)?;
    Ok(())
}

/// Every system call that is not named answers EPERM: what glibc only tries, it does without.
fn filter() -> Result<SeccompFilter> {
    let free = [
        libc::SYS_read,
        libc::SYS_write,
        libc::SYS_fstat,
        libc::SYS_close,
        libc::SYS_munmap,
        libc::SYS_mremap,
        libc::SYS_madvise,
        libc::SYS_brk,
        libc::SYS_futex,
        libc::SYS_sched_yield,
        libc::SYS_clock_gettime,
        libc::SYS_clock_nanosleep,
        libc::SYS_getrandom,
        libc::SYS_gettid,
        libc::SYS_getpid,
        libc::SYS_rt_sigprocmask,
        libc::SYS_rt_sigaction,
        libc::SYS_rt_sigreturn,
        libc::SYS_sigaltstack,
        libc::SYS_restart_syscall,
        libc::SYS_exit,
        libc::SYS_exit_group,
    ];
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = free.into_iter().map(|call| (call, Vec::new())).collect();
    let masked = |arg, mask: i32, value: i32| {
        SeccompCondition::new(arg, Qword, SeccompCmpOp::MaskedEq(mask as u64), value as u64)
    };
    // Memory of its own, and none that can be run.
    let anonymous = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let not_run = masked(2, libc::PROT_EXEC, 0)?;
    rules.insert(
        libc::SYS_mmap,
        vec![SeccompRule::new(vec![not_run.clone(), masked(3, anonymous | libc::MAP_SHARED, anonymous)?])?],
    );
    rules.insert(libc::SYS_mprotect, vec![SeccompRule::new(vec![not_run])?]);
    // What `abort` does; to itself and to nobody else.
    let own = SeccompCondition::new(0, Qword, SeccompCmpOp::Eq, u64::from(std::process::id()))?;
    rules.insert(libc::SYS_tgkill, vec![SeccompRule::new(vec![own])?]);
    let arch: TargetArch = std::env::consts::ARCH.try_into()?;
    Ok(SeccompFilter::new(rules, SeccompAction::Errno(libc::EPERM as u32), SeccompAction::Allow, arch)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a confined child answers. It uses no thread, no lock and no memory that another thread of the tests may hold.
    fn in_a_child(check: impl FnOnce() -> i32) -> i32 {
        // SAFETY: the child calls only what is usable in the child of a threaded process, and ends by `_exit`.
        let child = unsafe { libc::fork() };
        assert!(child >= 0, "no child");
        if child == 0 {
            // SAFETY: as above; no_new_privs is what an unprivileged filter needs.
            unsafe {
                libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
                libc::_exit(if confine(std::iter::empty()).is_err() { 99 } else { check() });
            }
        }
        let mut status = -1;
        // SAFETY: `status` is ours.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert!(libc::WIFEXITED(status), "status {status}");
        libc::WEXITSTATUS(status)
    }

    fn refused(answer: i64) -> bool {
        answer == -1 && std::io::Error::last_os_error().raw_os_error() == Some(libc::EPERM)
    }

    #[test]
    fn it_can_take_memory_and_nothing_else() {
        // Each is what a compiler that obeys its input would be used for.
        let done = in_a_child(|| {
            let map = |prot: i32, flags: i32| {
                // SAFETY: a new mapping, or none.
                unsafe { libc::syscall(libc::SYS_mmap, 0_usize, 4096_usize, prot, flags, -1, 0_usize) }
            };
            let anonymous = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let (readable, rw) = (libc::PROT_READ, libc::PROT_READ | libc::PROT_WRITE);
            // SAFETY: each is refused, or does what its name says to nobody but this process.
            let refusals = unsafe {
                [
                    libc::syscall(libc::SYS_openat, libc::AT_FDCWD, c"/etc/passwd".as_ptr(), libc::O_RDONLY),
                    libc::syscall(libc::SYS_socket, libc::AF_INET, libc::SOCK_STREAM, 0),
                    libc::syscall(libc::SYS_tgkill, libc::getppid(), libc::getppid(), 0),
                    libc::syscall(libc::SYS_kill, libc::getppid(), 0),
                    libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0),
                    libc::syscall(libc::SYS_execve, c"/bin/true".as_ptr(), 0, 0),
                    libc::syscall(libc::SYS_ptrace, 0, 0, 0, 0),
                    map(readable | libc::PROT_EXEC, anonymous),
                    map(rw, libc::MAP_SHARED | libc::MAP_ANONYMOUS),
                ]
            };
            let first_allowed = refusals.iter().position(|answer| !refused(*answer));
            match first_allowed {
                Some(at) => at as i32 + 1,
                None if map(rw, anonymous) == -1 => 98,
                None => 0,
            }
        });
        assert_eq!(done, 0, "the first that was not as it should be");
    }
}
