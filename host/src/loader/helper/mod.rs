//! Compiling in a process of its own, which ends with the compilation and takes nothing of the engine's with it.
//!
//! The compiler's memory and time follow from the component, which is a stranger's, and a Rust program that finds no memory
//! ends: inside the engine's process it would end the engine. So the compiler runs in the program `kv-store-compile` (the
//! crate `compiler`), under limits of memory, processor time and output, confined to computing. What is trusted of it is what
//! was trusted of the compiler in this process: that its code is what the component says.

mod process;

use std::ffi::CString;
use std::fs::{File, Metadata};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use kv_store_compiler::{PROGRAM, engine_hash, exit};
use wasmtime::Engine;

use super::aot::check_sealed;
use super::find::library_path;
use super::ownership::{check_way, others_write, owned_by_us};
use super::source::{Sealed, memory_file, seal};
use crate::config::Helper;
use crate::error::{Error, ErrorKind};
use crate::limits;
use process::{Bounds, End, Until};

pub(super) use process::Until as Deadline;

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
}

/// The program to compile with. `Err`: there is none, and why; components are then compiled in this process.
pub(crate) fn find(helper: &Helper) -> Result<Program, String> {
    match helper {
        Helper::Off => Err("the config says `compile.helper = \"off\"`".into()),
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
    let mut options = File::options();
    options.read(true).custom_flags(libc::O_PATH | libc::O_NOFOLLOW);
    let file = options.open(&real).map_err(|error| doing(&error))?;
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
    if meta.mode() & (libc::S_ISUID | libc::S_ISGID) != 0 {
        return Err("changes the user that it runs as (chmod ug-s)");
    }
    Ok(())
}

impl Program {
    /// Compile a component. The answer is a sealed file: code for this engine with its seal behind it, checked.
    pub(super) fn compile(
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
        };
        let file = |name| memory_file(name).map_err(|error| passing("make a file in memory", &error));
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
        let descriptors = [component, code.as_fd(), said.as_fd(), self.file.as_fd()];
        let end = process::run(descriptors, &arguments, &bounds, until)
            .map_err(|error| passing("start the compile helper", &error))?;

        let words = said_by(&said);
        match end {
            End::Exited(status) if status == i32::from(exit::DONE) => {}
            other => return Err(explain(&other, &words, allowance)),
        }
        seal(&code).map_err(|error| passing("seal compiled code", &error))?;
        let len = code.metadata().map_err(|error| passing("look at compiled code", &error))?.len();
        check_sealed(&code, len, digest, hash).map_err(|why| Failed {
            error: Error::new(ErrorKind::Other, format!("the compile helper's code {why}")),
            lasting: false,
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

fn explain(end: &End, words: &str, allowance: Allowance) -> Failed {
    let Allowance { memory, milliseconds } = allowance;
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
        // Of a Rust program that finds no memory, and of the kernel for one that passes its processor time.
        End::Killed(libc::SIGABRT) if words.contains("memory allocation") => (
            ErrorKind::Exhausted,
            format!("compiling needs more than {memory} bytes of memory (compile_bytes), and was ended"),
            true,
        ),
        End::Killed(signal) => (
            ErrorKind::Exhausted,
            format!(
                "compiling was ended by signal {signal}, for want of memory or time, or by a mistake of the compiler: {words}"
            ),
            true,
        ),
    };
    Failed { error: Error::new(kind, message), lasting }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

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
        assert!(refused(&Helper::Off).unwrap().contains("off"));
    }
}
