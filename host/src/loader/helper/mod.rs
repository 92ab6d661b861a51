//! Compiling in a process of its own, which ends with the compilation and takes nothing of the engine's with it.
//!
//! The compiler's memory and time follow from the component, which is a stranger's, and a Rust program that finds no memory
//! ends: inside the engine's process it would end the engine. So the compiler runs in the program `kv-store-compile` (the
//! crate `compiler`), under limits of memory, processor time and output, confined to computing. What is trusted of it is what
//! was trusted of the compiler in this process: that its code is what the component says.

use std::ffi::CString;
use std::fs::{File, Metadata};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use kv_platform::child::{self, Bounds, End, Until};
use kv_platform::{memory, paths};
use kv_store_compiler::{PROGRAM, engine_hash, exit};
use rustix::fs::{Mode, OFlags};
use wasmtime::Engine;

use super::aot::check_sealed;
use super::find::library_path;
use super::ownership::{check_way, others_write, owned_by_us};
use super::source::Sealed;
use crate::config::Helper;
use crate::error::{Error, ErrorKind};
use crate::limits;

pub(super) use kv_platform::child::Until as Deadline;

/// The program, checked: what runs is the file that was looked at.
pub(crate) struct Program {
    pub path: PathBuf,
    file: OwnedFd,
}

/// What one compilation may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Allowance {
    /// Bytes of memory.
    pub memory: u64,
    /// How long it may take by the clock, for the bound on processor time.
    pub milliseconds: u64,
}

/// Why there is no code.
pub(super) struct Failed {
    pub error: Error,
    /// It would fail again, with no more allowance.
    pub lasting: bool,
    /// A signal ended the helper that none of its bounds explains.
    signal: Option<libc::c_int>,
}

/// The program to compile with. `Err`: there is none, and why.
pub(crate) fn find(helper: &Helper) -> Result<Program, String> {
    match helper {
        Helper::InProcess => Err("the config says `compile = \"in-process\"`".into()),
        Helper::At(path) => check(path),
        Helper::Beside => {
            let library = library_path().and_then(|path| path.canonicalize().ok()).ok_or("no path of the library")?;
            let folder = library.parent().ok_or("no folder of the library")?;
            let places = [folder.join(PROGRAM), folder.join("../libexec").join(PROGRAM)];
            match places.iter().find(|path| path.exists()) {
                Some(path) => check(path),
                None => Err(format!("there is no {PROGRAM} in {} or in ../libexec beside it", folder.display())),
            }
        }
    }
}

/// Whether root or this user, and nobody else, decides what lies at a path.
fn check(path: &Path) -> Result<Program, String> {
    let doing = |why: &dyn std::fmt::Display| format!("{}: {why}", path.display());
    let real = path.canonicalize().map_err(|error| doing(&error))?;
    let flags = paths::LOOK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(&real, flags, Mode::empty()).map_err(|error| doing(&error))?);
    let meta = file.metadata().map_err(|error| doing(&error))?;
    check_file(&meta).map_err(|why| doing(&why))?;
    check_way(&real).map_err(|why| doing(&why))?;
    Ok(Program { path: real, file: file.into() })
}

fn check_file(meta: &Metadata) -> Result<(), &'static str> {
    if !meta.is_file() || meta.mode() & 0o111 == 0 {
        return Err("is no program");
    }
    if !owned_by_us(meta) && meta.uid() != 0 {
        return Err("belongs to another user");
    }
    if others_write(meta.mode(), meta.uid() == meta.gid()) {
        return Err("others can write to it (chmod go-w)");
    }
    // S_ISUID and S_ISGID, whose type is not the same on every system.
    if meta.mode() & 0o6000 != 0 {
        return Err("changes the user that it runs as (chmod ug-s)");
    }
    Ok(())
}

/// Do it once more where a signal ended the first attempt that no bound explains: somebody killed it, or the kernel did for want of memory that
/// others hold. That is no word about the component. What the program raises against itself both times is.
fn twice<T>(mut attempt: impl FnMut() -> Result<T, Failed>) -> Result<T, Failed> {
    let first = match attempt() {
        Err(Failed { signal: Some(signal), .. }) => signal,
        other => return other,
    };
    attempt().map_err(|failed| {
        let again = failed.signal == Some(first) && is_own(first);
        // The first attempt has taken a part of its time.
        let late = failed.error.kind() == ErrorKind::Unavailable;
        Failed { lasting: again || failed.lasting && !late, ..failed }
    })
}

/// Whether a program raises a signal by what it does, and is not sent it by others.
fn is_own(signal: libc::c_int) -> bool {
    matches!(
        signal,
        libc::SIGSEGV | libc::SIGBUS | libc::SIGILL | libc::SIGFPE | libc::SIGABRT | libc::SIGSYS | libc::SIGTRAP
    )
}

impl Program {
    /// Compile a component, in a second attempt if the first was killed. The answer is a sealed file: code for this engine with its seal behind it, checked.
    pub(super) fn compile(
        &self,
        engine: &Engine,
        digest: &[u8; 32],
        component: &Sealed,
        allowance: Allowance,
        until: &Until,
    ) -> Result<File, Failed> {
        twice(|| self.attempt(engine, digest, component, allowance, until))
    }

    fn attempt(
        &self,
        engine: &Engine,
        digest: &[u8; 32],
        component: &Sealed,
        allowance: Allowance,
        until: &Until,
    ) -> Result<File, Failed> {
        let passing = |what: &str, error: &dyn std::fmt::Display| Failed {
            error: Error::new(ErrorKind::Exhausted, format!("cannot {what}: {error}")),
            lasting: false,
            signal: None,
        };
        let file = |name| memory::file(name).map_err(|error| passing("make a file in memory", &error));
        let (code, said) = (file(c"kv-store-code")?, file(c"kv-store-said")?);
        let hash = engine_hash(engine);
        let threads = std::thread::available_parallelism().map_or(1, usize::from).min(limits::MAX_COMPILE_THREADS);
        let arguments = [PROGRAM.to_owned(), format!("{hash:016x}"), threads.to_string()];
        let arguments = arguments.map(|argument| CString::new(argument).unwrap_or_default());
        let bounds = Bounds {
            memory: allowance.memory,
            // Reservations of the allocator for each thread, and the program itself.
            addresses: allowance.memory.saturating_add((threads as u64 + 4) * (128 << 20)),
            output: limits::MAX_CODE_BYTES,
            seconds: (allowance.milliseconds / 1000).saturating_add(1).saturating_mul(threads as u64),
        };
        let component = component.file().ok_or_else(|| passing("hand the component on", &"it is in no file"))?;
        // The program reads on from where the one before it has ended: descriptors of one file share their place in it.
        rustix::fs::seek(component, rustix::fs::SeekFrom::Start(0))
            .map_err(|error| passing("hand the component on", &error))?;
        let descriptors = [component, code.as_fd(), said.as_fd()];
        let program = child::Program { file: self.file.as_fd(), path: &self.path };
        let end = child::run(descriptors, &program, &arguments, &bounds, until)
            .map_err(|error| passing("start the compile helper", &error))?;

        let words = said_by(&said);
        match end {
            End::Exited(status) if status == i32::from(exit::DONE) => {}
            other => return Err(explain(&other, &words, allowance, bounds.seconds)),
        }
        memory::seal(&code).map_err(|error| passing("seal compiled code", &error))?;
        let len = code.metadata().map_err(|error| passing("look at compiled code", &error))?.len();
        check_sealed(&code, len, digest, hash).map_err(|why| Failed {
            error: Error::new(ErrorKind::Other, format!("the compile helper's code {why}")),
            lasting: false,
            signal: None,
        })?;
        Ok(code)
    }
}

/// What the program wrote to its standard error, cleaned and cut.
fn said_by(file: &File) -> String {
    let mut text = [0; limits::MAX_LOG_LINE_BYTES];
    let len = file.read_at(&mut text, 0).unwrap_or_default();
    let text = String::from_utf8_lossy(text.get(..len).unwrap_or_default()).into_owned();
    crate::log::clean(text.trim())
}

/// `seconds`: what it may take of processor time.
fn explain(end: &End, words: &str, allowance: Allowance, seconds: u64) -> Failed {
    let Allowance { memory, milliseconds } = allowance;
    let mut unexplained = None;
    let (kind, message, lasting) = match end {
        End::Exited(status) if *status == i32::from(exit::REFUSED) => {
            (ErrorKind::Invalid, format!("does not compile: {words}"), true)
        }
        End::Exited(status) if *status == i32::from(exit::OTHER_BUILD) => (
            ErrorKind::Other,
            format!("the compile helper is of another build than this library: {words}; install both together"),
            false,
        ),
        End::Exited(status) => {
            (ErrorKind::Other, format!("the compile helper failed (exit code {status}): {words}"), false)
        }
        End::NotStarted(error) => (ErrorKind::Other, format!("cannot run the compile helper: {error}"), false),
        End::Late => (
            ErrorKind::Unavailable,
            format!("compiling takes longer than {milliseconds} ms (compile_ms), and was ended"),
            true,
        ),
        // The kernel counts what it bounds by ticks, and what it reports otherwise.
        End::Killed(libc::SIGKILL | libc::SIGXCPU, worked) if worked.as_secs_f64() >= 0.8 * seconds as f64 => (
            ErrorKind::Exhausted,
            format!("compiling needs more than {seconds} s of processor time (compile_ms), and was ended"),
            true,
        ),
        // Of a Rust program that finds no memory.
        End::Killed(libc::SIGABRT, _) if words.contains("memory allocation") => (
            ErrorKind::Exhausted,
            format!("compiling needs more than {memory} bytes of memory (compile_bytes), and was ended"),
            true,
        ),
        End::Killed(signal, _) => {
            unexplained = Some(*signal);
            let why = match is_own(*signal) {
                true => "a mistake of the compiler; please report it",
                false => "somebody killed it, or the machine has no memory left; try again later",
            };
            (
                ErrorKind::Unavailable,
                format!("the compile helper was ended twice by signal {signal}: {why} {words}"),
                false,
            )
        }
    };
    Failed { error: Error::new(kind, message), lasting, signal: unexplained }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_signal_that_no_bound_explains_is_a_passing_failure_after_one_more_attempt() {
        use std::time::Duration;
        let allowance = Allowance { memory: 1 << 30, milliseconds: 120_000 };
        let killed =
            |signal, worked, words| explain(&End::Killed(signal, Duration::from_secs(worked)), words, allowance, 240);
        let lasting = |failed: &Failed| (failed.lasting, failed.signal.is_some());
        assert_eq!(lasting(&killed(libc::SIGKILL, 3, "")), (false, true), "the OOM killer, or an operator");
        assert_eq!(lasting(&killed(libc::SIGKILL, 240, "")), (true, false), "its processor time is over");
        assert_eq!(lasting(&killed(libc::SIGABRT, 1, "memory allocation of 5 bytes failed")), (true, false));
        assert_eq!(lasting(&explain(&End::Late, "", allowance, 240)), (true, false));

        let after = |signals: &[libc::c_int]| {
            let mut left = signals.iter();
            let outcome = twice(|| left.next().map_or(Ok("code"), |signal| Err(killed(*signal, 1, ""))));
            (outcome.map_err(|failed| failed.lasting), left.count())
        };
        assert_eq!(after(&[]), (Ok("code"), 0));
        assert_eq!(after(&[libc::SIGKILL]), (Ok("code"), 0));
        assert_eq!(after(&[libc::SIGKILL; 3]), (Err(false), 1), "two attempts, and no verdict about the component");
        assert_eq!(after(&[libc::SIGSEGV, libc::SIGKILL]), (Err(false), 0));
        assert_eq!(after(&[libc::SIGSEGV; 2]), (Err(true), 0), "it does so by itself each time");
    }

    #[test]
    fn only_a_program_that_nobody_else_can_change_is_run() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(PROGRAM);
        let refused = |helper: &Helper| find(helper).err();
        assert!(refused(&Helper::At(path.clone())).unwrap().contains("No such file"));
        std::fs::write(&path, "").unwrap();
        for (mode, said) in [
            (0o600, Some("is no program")),
            (0o702, Some("others can write to it")),
            (0o4755, Some("changes the user")),
            (0o2755, Some("changes the user")),
            (0o755, None),
            (0o700, None),
        ] {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            let why = refused(&Helper::At(path.clone()));
            assert_eq!(why.is_some(), said.is_some(), "{mode:o}: {why:?}");
            assert!(why.is_none_or(|why| why.contains(said.unwrap_or_default())), "{mode:o}");
        }
        // Who can write to a directory on the way puts another program there.
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
        assert!(refused(&Helper::At(path)).unwrap().contains("others can put another"));
        assert!(refused(&Helper::InProcess).unwrap().contains("in-process"));
    }
}
