//! The AOT cache: compiled components on disk, so that a process starts in milliseconds.
//!
//! Compiled code is trusted like our own, so the cache is ours alone: a directory of this user with mode 0700 that no link
//! leads to, below directories in which no other user can put another in its place. Where that does not hold the cache is not
//! used, and the log says so. A file's name is the component's digest and the engine's, so that code for another component,
//! wasmtime or processor is never taken.
//!
//! What nobody has used for long, and what killed writers left, is removed when something is added.
//!
//! A file ends with a [`Seal`]: what the code is of, and its checksum, which is looked at before the code is. It stands
//! behind the code and not before it, because wasmtime maps the file and wants the code at its beginning. It guards
//! against a disk that lies, not against who can write to the directory, who could as well change this library. Behind the seal
//! stands what was measured of the component, so that it need not be read again.

use std::fs::File;
use std::hash::Hasher;
use std::io::{ErrorKind::NotFound, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use twox_hash::XxHash3_64;
use wasmtime::Engine;
use wasmtime::component::Component;

use kv_store_compiler::{SEAL_BYTES, Seal, engine_hash};

use super::ownership::{check_way, owned_by_us};
use crate::limits;
use crate::log::{self, Level};
use crate::signals::without_signal;

pub(super) struct Cache {
    directory: PathBuf,
    engine: u64,
}

/// What a file holds besides the code. Another number where that changes: files of former versions then have other names.
const FORMAT: u64 = 2;

/// What an instance costs, and a checksum over the digest and that: 8 bytes each, little-endian.
const MEASURED_BYTES: usize = 16;

fn measured_to_bytes(digest: &[u8; 32], instance_bytes: u64) -> [u8; MEASURED_BYTES] {
    let value = instance_bytes.to_le_bytes();
    let sum = XxHash3_64::oneshot(&[&digest[..], &value].concat()).to_le_bytes();
    let mut bytes = [0; MEASURED_BYTES];
    for (to, from) in bytes.iter_mut().zip(value.into_iter().chain(sum)) {
        *to = from;
    }
    bytes
}

fn parse_measured(digest: &[u8; 32], bytes: [u8; MEASURED_BYTES]) -> Option<u64> {
    let instance_bytes = u64::from_le_bytes(*bytes.first_chunk()?);
    (measured_to_bytes(digest, instance_bytes) == bytes).then_some(instance_bytes)
}

/// Where the cache is: `KV_STORE_WASM_CACHE`, or `kv-store-wasm/aot` below `$XDG_CACHE_HOME` or `~/.cache`.
pub(super) fn cache_directory() -> Option<PathBuf> {
    let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    absolute("KV_STORE_WASM_CACHE").or_else(|| {
        let user = absolute("XDG_CACHE_HOME").or_else(|| absolute("HOME").map(|home| home.join(".cache")))?;
        Some(user.join("kv-store-wasm/aot"))
    })
}

impl Cache {
    /// The cache in a directory, if it is fit for one.
    pub(super) fn open(engine: &Engine, directory: &Path) -> Option<Self> {
        let directory = match make_private(directory) {
            Ok(real) => real,
            Err(why) => {
                let directory = directory.display();
                log::line(
                    Level::Warn,
                    format_args!("components are compiled at each start: the cache {directory} {why}"),
                );
                return None;
            }
        };
        Some(Cache { directory, engine: engine_hash(engine) })
    }

    fn path(&self, digest: &[u8; 32]) -> PathBuf {
        self.directory.join(format!("{}-{:016x}.cwasm", hex::encode(digest), self.engine.wrapping_add(FORMAT)))
    }

    /// The component, and what an instance of it costs.
    pub(super) fn get(&self, engine: &Engine, digest: &[u8; 32]) -> Option<(Component, u64)> {
        let path = self.path(digest);
        let ignored = |why: &dyn std::fmt::Display| {
            log::line(Level::Warn, format_args!("{}: {why}; compiling again", path.display()));
        };
        let (file, instance_bytes) = match self.check(&path, digest) {
            Ok(Some(found)) => found,
            Ok(None) => return None,
            Err(why) => {
                ignored(&why);
                return None;
            }
        };
        // SAFETY: the file was written by `keep`, in a directory that only this user can write to, and its checksum is that
        // of what was written.
        match unsafe { load_checked(engine, &file) } {
            Ok(component) => {
                note_use(&file);
                Some((component, instance_bytes))
            }
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
    fn check(&self, path: &Path, digest: &[u8; 32]) -> Result<Option<(File, u64)>, String> {
        let mut options = std::fs::OpenOptions::new();
        let file = match options.read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path) {
            Err(error) if error.kind() == NotFound => return Ok(None),
            opened => opened.map_err(|error| format!("cannot be opened: {error}"))?,
        };
        let meta = file.metadata().map_err(|error| error.to_string())?;
        if !meta.is_file() || !owned_by_us(&meta) || meta.mode() & 0o022 != 0 {
            return Err("is not a private file of this user: ignored".into());
        }
        let sealed_len = meta.len().checked_sub(MEASURED_BYTES as u64).ok_or("is cut off")?;
        check_sealed(&file, sealed_len, digest, self.engine)?;
        let mut measured = [0; MEASURED_BYTES];
        file.read_exact_at(&mut measured, sealed_len).map_err(|error| format!("cannot be read: {error}"))?;
        let instance_bytes = parse_measured(digest, measured).ok_or("is damaged")?;
        Ok(Some((file, instance_bytes)))
    }

    /// Keep the code of a component that was compiled in this process. Best effort: what cannot be kept is compiled again next time.
    pub(super) fn put(&self, digest: &[u8; 32], instance_bytes: u64, component: &Component) {
        let code = component.serialize().map_err(|error| std::io::Error::other(error.to_string()));
        self.keep(digest, instance_bytes, |file| {
            let code = code?;
            let (code_len, code_sum) = (code.len() as u64, XxHash3_64::oneshot(&code));
            let seal = Seal { code_len, code_sum, digest: *digest, engine: self.engine };
            file.write_all(&code)?;
            file.write_all(&seal.to_bytes())
        });
    }

    /// Keep code with its seal, as a helper wrote it.
    pub(super) fn put_sealed(&self, digest: &[u8; 32], instance_bytes: u64, sealed: &File) {
        self.keep(digest, instance_bytes, |file| {
            let len = sealed.metadata()?.len();
            each_piece(sealed, len, |piece| file.write_all(piece))
        });
    }

    fn keep(&self, digest: &[u8; 32], instance_bytes: u64, write: impl FnOnce(&mut File) -> std::io::Result<()>) {
        let path = self.path(digest);
        let write = |file: &mut File| {
            write(file)?;
            file.write_all(&measured_to_bytes(digest, instance_bytes))
        };
        if let Err(error) = write_whole(&self.directory, &path, write) {
            log::line(Level::Warn, format_args!("cannot keep compiled code at {}: {error}", path.display()));
        }
        reap(&self.directory);
    }
}

/// Map compiled code. By its descriptor: what lies under a name may be another file by now.
///
/// # Safety
/// The file holds what this engine's compiler made, and nobody changes it while it is mapped.
pub(super) unsafe fn load_checked(engine: &Engine, file: &File) -> wasmtime::Result<Component> {
    // SAFETY: the caller's promise.
    unsafe { Component::deserialize_file(engine, kv_platform::paths::of_descriptor(file.as_fd())) }
}

/// The time of a file's last change says when it was last loaded, to a day.
fn note_use(file: &File) {
    let now = SystemTime::now();
    let noted = file.metadata().and_then(|meta| meta.modified());
    if noted.is_ok_and(|noted| now.duration_since(noted).is_ok_and(|age| age > limits::AOT_USE_NOTED)) {
        // It is removed too early, and compiled again, where this fails.
        let _ = file.set_modified(now);
    }
}

/// Remove what dead writers left, and code that nobody has loaded for long: of former components, engines and processors. A
/// process that runs such code keeps it, for it has it mapped. Best effort, and bounded: what is left is for the next time.
fn reap(directory: &Path) {
    let Ok(entries) = std::fs::read_dir(directory) else { return };
    let now = SystemTime::now();
    for entry in entries.flatten().take(limits::AOT_REAPED) {
        let name = entry.file_name();
        let name = name.to_str().unwrap_or_default();
        let patience = match () {
            () if is_temporary(name) => limits::STALE_TEMPORARY,
            () if is_code(name) => limits::AOT_UNUSED,
            () => continue,
        };
        let changed = entry.metadata().and_then(|meta| meta.modified());
        let age = changed.ok().and_then(|changed| now.duration_since(changed).ok()).unwrap_or(Duration::ZERO);
        if age > patience {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// Whether a name is one that [`write_whole`] makes: the directory may be used for other things too.
fn is_temporary(name: &str) -> bool {
    name.strip_prefix("tmp-").is_some_and(|random| is_hex(random, 16))
}

/// Whether a name is one that [`Cache::path`] makes.
fn is_code(name: &str) -> bool {
    let parts = name.strip_suffix(".cwasm").and_then(|name| name.split_once('-'));
    parts.is_some_and(|(digest, engine)| is_hex(digest, 64) && is_hex(engine, 16))
}

fn is_hex(text: &str, digits: usize) -> bool {
    text.len() == digits && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

fn write_whole(
    directory: &Path,
    path: &Path,
    write: impl FnOnce(&mut File) -> std::io::Result<()>,
) -> std::io::Result<()> {
    let mut random = [0; 8];
    getrandom::fill(&mut random).map_err(|error| std::io::Error::other(error.to_string()))?;
    let temporary = directory.join(format!("tmp-{}", hex::encode(random)));
    let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
    let written = without_signal(libc::SIGXFSZ, || write(&mut file))
        .and_then(|()| file.sync_data())
        .and_then(|()| std::fs::rename(&temporary, path));
    if written.is_err() {
        let _ = std::fs::remove_file(&temporary);
    }
    written
}

/// Whether the first `len` bytes of a file are what the seal at their end says: code of a component, for an engine. All is checked
/// before any of it is used.
pub(super) fn check_sealed(file: &File, len: u64, digest: &[u8; 32], engine: u64) -> Result<(), String> {
    let broken = |error: std::io::Error| format!("cannot be read: {error}");
    let code_len = len.checked_sub(SEAL_BYTES as u64).ok_or("is cut off")?;
    let mut seal = [0; SEAL_BYTES];
    file.read_exact_at(&mut seal, code_len).map_err(broken)?;
    let seal = Seal::parse(&seal)?;
    let mut hasher = XxHash3_64::new();
    let read = each_piece(file, code_len, |piece| {
        hasher.write(piece);
        Ok(())
    });
    read.map_err(broken)?;
    let wanted = Seal { code_len, code_sum: hasher.finish(), digest: *digest, engine };
    if seal == wanted { Ok(()) } else { Err("is damaged".into()) }
}

/// Hand over the first `len` bytes of a file piece by piece, with one small buffer again and again: faster than to map the file
/// only to read it once.
fn each_piece(file: &File, len: u64, mut each: impl FnMut(&[u8]) -> std::io::Result<()>) -> std::io::Result<()> {
    let mut buffer = vec![0; 256 << 10];
    let mut at = 0;
    while at < len {
        let piece = usize::try_from(len - at).unwrap_or(usize::MAX).min(buffer.len());
        let Some(piece) = buffer.get_mut(..piece) else { break };
        file.read_exact_at(piece, at)?;
        each(piece)?;
        at += piece.len() as u64;
    }
    Ok(())
}

/// Where a directory really is, which is made if it is not there and is this user's alone.
fn make_private(directory: &Path) -> Result<PathBuf, String> {
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(directory);
    made.map_err(|error| format!("cannot be made: {error}"))?;
    check_private(directory)
}

/// Why a directory would not be used as the cache; none if it would.
pub(crate) fn why_cache_unused(directory: &Path) -> Option<String> {
    check_private(directory).err()
}

/// Where it really is: a link on the way may lead elsewhere later, and what it leads to was not checked then.
fn check_private(directory: &Path) -> Result<PathBuf, String> {
    let is_link = directory.symlink_metadata().map_err(|error| error.to_string())?.is_symlink();
    let real = directory.canonicalize().map_err(|error| error.to_string())?;
    let meta = real.symlink_metadata().map_err(|error| error.to_string())?;
    if is_link || !meta.is_dir() {
        return Err("is not a directory, or a link leads to it".into());
    }
    if !owned_by_us(&meta) || meta.mode() & 0o077 != 0 {
        return Err("must belong to this user alone (chmod 700)".into());
    }
    check_way(&real)?;
    Ok(real)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn what_was_measured_is_of_its_component_and_whole() {
        let bytes = measured_to_bytes(&[1; 32], 123_456);
        assert_eq!(parse_measured(&[1; 32], bytes), Some(123_456));
        assert_eq!(parse_measured(&[2; 32], bytes), None);
        for bit in 0..MEASURED_BYTES * 8 {
            let mut damaged = bytes;
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(parse_measured(&[1; 32], damaged), None, "bit {bit}");
        }
    }

    fn mode(path: &Path, mode: u32) {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn a_directory_that_others_can_exchange_is_refused() {
        let scratch = tempfile::tempdir().unwrap();
        let upper = scratch.path().join("upper");
        let cache = upper.join("between/aot");
        make_private(&cache).unwrap();
        for open in [0o777, 0o772, 0o702] {
            mode(&upper, open);
            let why = make_private(&cache).unwrap_err();
            assert!(
                why.contains("others can put another") && why.contains(&format!("go-w {}", upper.display())),
                "{why}"
            );
        }
        // Only the owner renames what is in a sticky directory.
        for tame in [0o1777, 0o755, 0o700] {
            mode(&upper, tame);
            make_private(&cache).unwrap();
        }
        // It is the way that the links lead which counts.
        let link = scratch.path().join("link");
        std::os::unix::fs::symlink(&upper, &link).unwrap();
        assert_eq!(make_private(&link.join("between/aot")), cache.canonicalize().map_err(|error| error.to_string()));
        mode(&upper, 0o777);
        assert!(make_private(&link.join("between/aot")).is_err());
    }

    #[test]
    fn what_nobody_uses_is_removed_and_nothing_else() {
        let scratch = tempfile::tempdir().unwrap();
        let place = |name: &str, age: Duration| {
            let file = File::create(scratch.path().join(name)).unwrap();
            file.set_modified(SystemTime::now() - age).unwrap();
        };
        let hour = Duration::from_secs(3600);
        let temporary = |n: u8| format!("tmp-{}", hex::encode([n; 8]));
        let code = |n: u8| format!("{}-{}.cwasm", hex::encode([n; 32]), hex::encode([n; 8]));
        place(&temporary(1), hour * 2);
        place(&temporary(2), hour / 2);
        place(&code(1), limits::AOT_UNUSED + hour);
        place(&code(2), limits::AOT_UNUSED - hour);
        let others = ["not ours", "tmp-notes.txt", "vendor.cwasm"];
        others.iter().for_each(|name| place(name, limits::AOT_UNUSED * 2));
        File::create(scratch.path().join(code(3))).unwrap().set_modified(SystemTime::now() + hour).unwrap();
        std::fs::create_dir(scratch.path().join(temporary(4))).unwrap();
        reap(scratch.path());
        let left = std::fs::read_dir(scratch.path()).unwrap().flatten();
        let mut left: Vec<String> = left.map(|entry| entry.file_name().into_string().unwrap()).collect();
        left.sort();
        let mut right: Vec<String> = others.map(str::to_owned).into();
        right.extend([temporary(2), temporary(4), code(2), code(3)]);
        right.sort();
        assert_eq!(left, right);
    }

    #[test]
    fn a_file_that_is_loaded_is_used() {
        let scratch = tempfile::tempdir().unwrap();
        let file = File::create(scratch.path().join("x.cwasm")).unwrap();
        let old = SystemTime::now() - limits::AOT_UNUSED;
        file.set_modified(old).unwrap();
        // As the cache opens it.
        note_use(&File::open(scratch.path().join("x.cwasm")).unwrap());
        assert!(file.metadata().unwrap().modified().unwrap() > old + limits::AOT_USE_NOTED);
        let recent = SystemTime::now() - limits::AOT_USE_NOTED / 2;
        file.set_modified(recent).unwrap();
        note_use(&file);
        assert_eq!(file.metadata().unwrap().modified().unwrap(), recent, "once a day is enough");
    }
}
