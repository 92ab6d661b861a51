//! The AOT cache: compiled components on disk, so that a process starts in milliseconds.
//!
//! Compiled code is trusted like our own, so the cache is ours alone: a directory of this user with mode 0700 that no link
//! leads to. Where that does not hold the cache is not used, and the log says so. A file's name is the component's digest
//! and the engine's, so that code for another component, wasmtime or processor is never taken.
//!
//! A file ends with a [`Seal`]: what the code is of, and its checksum, which is looked at before the code is. It stands
//! behind the code and not before it, because wasmtime maps the file and wants the code at its beginning. It guards
//! against a disk that lies, not against who can write to the directory, who could as well change this library.

use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{ErrorKind::NotFound, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use wasmtime::Engine;
use wasmtime::component::Component;
use xxhash_rust::xxh3::{Xxh3Default, xxh3_64};

use super::hex;
use super::seal::{SEAL_BYTES, Seal};
use crate::log::{self, Level};
use crate::signals::without_signal;

pub(super) struct Cache {
    directory: PathBuf,
    engine: u64,
}

/// Where the cache is: `KV_STORE_WASM_CACHE`, or `kv-store-wasm/aot` below `$XDG_CACHE_HOME` or `~/.cache`.
pub(crate) fn cache_directory() -> Option<PathBuf> {
    let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    absolute("KV_STORE_WASM_CACHE").or_else(|| {
        let user = absolute("XDG_CACHE_HOME").or_else(|| absolute("HOME").map(|home| home.join(".cache")))?;
        Some(user.join("kv-store-wasm/aot"))
    })
}

impl Cache {
    pub(super) fn open(engine: &Engine) -> Option<Self> {
        let directory = cache_directory()?;
        if let Err(why) = make_private(&directory) {
            let directory = directory.display();
            log::line(Level::Warn, format_args!("components are compiled at each start: the cache {directory} {why}"));
            return None;
        }
        let mut hasher = DefaultHasher::new();
        engine.precompile_compatibility_hash().hash(&mut hasher);
        Some(Cache { directory, engine: hasher.finish() })
    }

    fn path(&self, digest: &[u8; 32]) -> PathBuf {
        self.directory.join(format!("{}-{:016x}.cwasm", hex(digest), self.engine))
    }

    pub(super) fn get(&self, engine: &Engine, digest: &[u8; 32]) -> Option<Component> {
        let path = self.path(digest);
        let ignored = |why: &dyn std::fmt::Display| {
            log::line(Level::Warn, format_args!("{}: {why}; compiling again", path.display()));
        };
        let file = match self.check(&path, digest) {
            Ok(Some(file)) => file,
            Ok(None) => return None,
            Err(why) => {
                ignored(&why);
                return None;
            }
        };
        // By its descriptor: what lies under the name may be another file by now.
        let checked = format!("/proc/self/fd/{}", file.as_raw_fd());
        // SAFETY: the file was written by `put`, in a directory that only this user can write to, and its checksum is that
        // of what was written.
        match unsafe { Component::deserialize_file(engine, checked) } {
            Ok(component) => Some(component),
            Err(error) => {
                ignored(&error);
                None
            }
        }
    }

    /// Whether there is sound code for a component.
    pub(super) fn holds(&self, digest: &[u8; 32]) -> bool {
        matches!(self.check(&self.path(digest), digest), Ok(Some(_)))
    }

    /// The file, if it is there, and ours, and what was written. `Err`: it is there and is not.
    fn check(&self, path: &Path, digest: &[u8; 32]) -> Result<Option<File>, String> {
        let mut options = std::fs::OpenOptions::new();
        let file = match options.read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path) {
            Err(error) if error.kind() == NotFound => return Ok(None),
            opened => opened.map_err(|error| format!("cannot be opened: {error}"))?,
        };
        let meta = file.metadata().map_err(|error| error.to_string())?;
        if !meta.is_file() || !owned_by_us(&meta) || meta.mode() & 0o022 != 0 {
            return Err("is not a private file of this user: ignored".into());
        }
        let broken = |error: std::io::Error| format!("cannot be read: {error}");
        let code_len = meta.len().checked_sub(SEAL_BYTES as u64).ok_or("is cut off")?;
        let mut seal = [0; SEAL_BYTES];
        file.read_exact_at(&mut seal, code_len).map_err(broken)?;
        let seal = Seal::parse(&seal)?;
        let wanted = Seal {
            code_len,
            code_sum: checksum(&file, code_len).map_err(broken)?,
            digest: *digest,
            engine: self.engine,
        };
        if seal == wanted { Ok(Some(file)) } else { Err("is damaged".into()) }
    }

    /// Best effort: what cannot be kept is compiled again next time.
    pub(super) fn put(&self, digest: &[u8; 32], component: &Component) {
        let path = self.path(digest);
        let kept = component.serialize().map_err(|error| error.to_string()).and_then(|code| {
            let (code_len, code_sum) = (code.len() as u64, xxh3_64(&code));
            let seal = Seal { code_len, code_sum, digest: *digest, engine: self.engine };
            let written = write_whole(&self.directory, &path, &[&code, &seal.to_bytes()]);
            written.map_err(|error| error.to_string())
        });
        if let Err(error) = kept {
            log::line(Level::Warn, format_args!("cannot keep compiled code at {}: {error}", path.display()));
        }
    }
}

fn write_whole(directory: &Path, path: &Path, parts: &[&[u8]]) -> std::io::Result<()> {
    let mut random = [0; 8];
    getrandom::fill(&mut random).map_err(|error| std::io::Error::other(error.to_string()))?;
    let temporary = directory.join(format!("tmp-{}", hex(&random)));
    let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
    let written = without_signal(libc::SIGXFSZ, || parts.iter().try_for_each(|part| file.write_all(part)))
        .and_then(|()| file.sync_data())
        .and_then(|()| std::fs::rename(&temporary, path));
    if written.is_err() {
        let _ = std::fs::remove_file(&temporary);
    }
    written
}

/// The XXH3 of the first `len` bytes of a file.
fn checksum(file: &File, len: u64) -> std::io::Result<u64> {
    // Into one small buffer again and again: faster than to map the file only to read it once.
    let mut buffer = vec![0; 256 << 10];
    let mut hasher = Xxh3Default::new();
    let mut at = 0;
    while at < len {
        let piece = usize::try_from(len - at).unwrap_or(usize::MAX).min(buffer.len());
        let Some(piece) = buffer.get_mut(..piece) else { break };
        file.read_exact_at(piece, at)?;
        hasher.update(piece);
        at += piece.len() as u64;
    }
    Ok(hasher.digest())
}

fn make_private(directory: &Path) -> Result<(), String> {
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(directory);
    made.map_err(|error| format!("cannot be made: {error}"))?;
    check_private(directory)
}

/// Whether a directory is this user's alone.
pub(crate) fn is_private(directory: &Path) -> bool {
    check_private(directory).is_ok()
}

fn check_private(directory: &Path) -> Result<(), String> {
    let meta = directory.symlink_metadata().map_err(|error| error.to_string())?;
    if !meta.is_dir() {
        return Err("is not a directory, or a link leads to it".into());
    }
    if !owned_by_us(&meta) || meta.mode() & 0o077 != 0 {
        return Err("must belong to this user alone (chmod 700)".into());
    }
    Ok(())
}

fn owned_by_us(meta: &std::fs::Metadata) -> bool {
    meta.uid() == rustix::process::geteuid().as_raw()
}
