//! A program that computes something for this process and is not trusted with it: it is bounded, it is given three descriptors and no
//! environment, and this process notices nothing of it.

use std::ffi::{CString, c_int};
use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use crate::way;

#[cfg(target_os = "linux")]
pub(crate) type Resource = libc::__rlimit_resource_t;
#[cfg(not(target_os = "linux"))]
pub(crate) type Resource = c_int;

/// Until when somebody waits. It can be put off while it runs.
pub struct Until {
    begun: Instant,
    milliseconds: AtomicU64,
}

impl Until {
    pub fn new(patience: Duration) -> Self {
        let until = Until { begun: Instant::now(), milliseconds: AtomicU64::new(0) };
        until.put_off(patience);
        until
    }

    /// Not before this has passed from now.
    pub fn put_off(&self, patience: Duration) {
        let end = self.begun.elapsed().saturating_add(patience).as_millis();
        self.milliseconds.fetch_max(u64::try_from(end).unwrap_or(u64::MAX), SeqCst);
    }

    pub(crate) fn left(&self) -> Duration {
        Duration::from_millis(self.milliseconds.load(SeqCst)).saturating_sub(self.begun.elapsed())
    }
}

/// What the kernel holds the program to.
pub struct Bounds {
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
pub enum End {
    Exited(i32),
    /// By this signal, after so much processor time.
    Killed(c_int, Duration),
    /// It was killed because nobody waits any more.
    Late,
    NotStarted(io::Error),
}

/// A program, open (with [`crate::paths::LOOK`]) and by its path.
pub struct Program<'a> {
    pub file: BorrowedFd<'a>,
    pub path: &'a Path,
}

/// Run a program to its end, with input, output and errors.
///
/// Linux: what runs is the open file. It is no child in the sense of SIGCHLD and `waitpid`, ends when this process ends, and the kernel holds
/// it to its bounds from its first instruction on. Portable: what lies at the path, if that is the open file; a child (`posix_spawn`) that
/// is handed its bounds as four further arguments, and takes them on by [`confine`]: `compile-child` is lacking.
pub fn run(
    descriptors: [BorrowedFd; 3],
    program: &Program,
    arguments: &[CString],
    bounds: &Bounds,
    until: &Until,
) -> io::Result<End> {
    way::child::run(descriptors, program, arguments, bounds, until)
}

/// Take from this process, which [`run`] has started, whatever computing does not need. All its threads are confined, which must be running
/// already. `bounds`: the arguments that `run` has added, if it has.
///
/// Linux: a filter of system calls (seccomp). Portable: the bounds alone, and `compile-sandbox` is lacking.
pub fn confine(bounds: impl Iterator<Item = String>) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    way::child::confine(bounds)
}

/// What of a resource a process may have: what is wanted, if it may have that much.
pub(crate) fn within(resource: Resource, wanted: u64) -> io::Result<libc::rlimit> {
    let mut own = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `own` is ours.
    if unsafe { libc::getrlimit(resource, &mut own) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let bound = wanted.min(own.rlim_max);
    Ok(libc::rlimit { rlim_cur: bound, rlim_max: bound })
}

impl Bounds {
    /// Each resource, and how much of it.
    pub(crate) fn limits(&self) -> io::Result<Vec<(Resource, libc::rlimit)>> {
        let wanted = [
            (libc::RLIMIT_DATA, self.memory),
            (libc::RLIMIT_AS, self.addresses),
            (libc::RLIMIT_FSIZE, self.output),
            (libc::RLIMIT_CPU, self.seconds),
            (libc::RLIMIT_CORE, 0),
            (libc::RLIMIT_NOFILE, 16),
        ];
        wanted.into_iter().map(|(resource, bound)| Ok((resource, within(resource, bound)?))).collect()
    }
}

pub(crate) fn all_signals() -> libc::sigset_t {
    let mut all = std::mem::MaybeUninit::uninit();
    // SAFETY: sigfillset fills it before it is read.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        all.assume_init()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::{Read, Seek};
    use std::os::fd::AsFd;

    const PLENTY: Bounds = Bounds { memory: 1 << 30, addresses: 1 << 34, output: 1 << 20, seconds: 60 };

    /// How a program ends, and what it writes to its output.
    fn ran(arguments: &[&str], bounds: &Bounds, patience: Duration) -> (End, String) {
        let mut output = tempfile::tempfile().unwrap();
        let none = File::open("/dev/null").unwrap();
        let path = std::path::Path::new(arguments[0]).canonicalize().unwrap();
        let program = rustix::fs::open(&path, crate::paths::LOOK, rustix::fs::Mode::empty()).unwrap();
        let program = Program { file: program.as_fd(), path: &path };
        let descriptors = [none.as_fd(), output.as_fd(), output.as_fd()];
        let arguments: Vec<CString> = arguments.iter().map(|text| CString::new(*text).unwrap()).collect();
        let end = crate::signals::with_signals_blocked(|| {
            run(descriptors, &program, &arguments, bounds, &Until::new(patience))
        });
        let mut text = String::new();
        output.rewind().unwrap();
        output.read_to_string(&mut text).unwrap();
        (end.unwrap(), text)
    }

    const LONG: Duration = Duration::from_secs(60);

    /// What the test below starts where the program itself takes on its bounds.
    #[test]
    #[ignore = "ends this process's files: it is run by the test below"]
    fn takes_on_its_bounds() {
        let given: Vec<String> = std::env::args().collect();
        confine(given[given.len() - 4..].iter().cloned()).unwrap();
        let open = std::fs::read_dir("/proc/self/fd").unwrap().count();
        let bound = |resource| within(resource, u64::MAX).unwrap().rlim_cur;
        let (data, output, files) = (bound(libc::RLIMIT_DATA), bound(libc::RLIMIT_FSIZE), bound(libc::RLIMIT_NOFILE));
        println!("{open} open; {data} {output} {files}; in {:?}", std::env::current_dir().unwrap());
    }

    #[test]
    fn a_child_takes_on_its_bounds() {
        if crate::promises("compile-child") {
            return;
        }
        let held = File::open("/dev/null").unwrap();
        rustix::io::fcntl_setfd(&held, rustix::io::FdFlags::empty()).unwrap();
        let own = std::env::current_exe().unwrap();
        let test = "child::tests::takes_on_its_bounds";
        let arguments = [own.to_str().unwrap(), "--exact", "--ignored", "--nocapture", "--test-threads=1", test];
        let (end, text) = ran(&arguments, &PLENTY, LONG);
        assert!(matches!(end, End::Exited(0)), "{end:?}: {text}");
        // The fourth is the listing's own.
        assert!(text.contains("4 open; 1073741824 1048576 16; in \"/\""), "{text}");
        drop(held);
    }

    #[test]
    fn it_has_three_descriptors_an_empty_environment_and_its_bounds() {
        let (end, text) = ran(&["/usr/bin/env"], &PLENTY, LONG);
        assert!(matches!(end, End::Exited(0 | 127)) && !text.contains('='), "{end:?}: {text}");
        if !crate::promises("compile-child") {
            return;
        }
        let held = File::open("/dev/null").unwrap();
        let script = "echo $(ls /proc/self/fd | wc -l); ulimit -d -f -t -n; cat /proc/self/environ; \
                      grep -E 'NoNewPrivs|SigBlk' /proc/self/status";
        let (end, text) = ran(&["/bin/bash", "-c", script], &PLENTY, LONG);
        drop(held);
        assert!(matches!(end, End::Exited(0)), "{end:?}: {text}");
        // The fourth is the listing's own.
        assert!(text.starts_with("4\n"), "{text}");
        assert!(text.contains(" 1048576\n") && text.contains("NoNewPrivs:\t1"), "{text}");
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
        // A directory is no program.
        assert!(matches!(ran(&["/usr"], &PLENTY, LONG).0, End::NotStarted(_)));
        if !crate::promises("compile-child") {
            return;
        }
        let bound = Bounds { seconds: 1, ..PLENTY };
        let (end, _) = ran(&["/bin/bash", "-c", "while :; do :; done"], &bound, LONG);
        assert!(matches!(end, End::Killed(libc::SIGKILL, worked) if worked >= Duration::from_millis(800)), "{end:?}");
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
