//! The AOT cache: compiled components on disk, so that a process starts in milliseconds.
//!
//! Compiled code is trusted like our own, so the cache is ours alone: a directory of this user with mode 0700 that no link
//! leads to. Where that does not hold the cache is not used, and the log says so. A file's name is the component's digest
//! and the engine's, so that code for another component, wasmtime or processor is never taken.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{ErrorKind::NotFound, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use wasmtime::Engine;
use wasmtime::component::Component;

use super::hex;
use crate::log::{self, Level};

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
        match path.symlink_metadata() {
            Ok(meta) if meta.is_file() && owned_by_us(&meta) && meta.mode() & 0o022 == 0 => {}
            Err(error) if error.kind() == NotFound => return None,
            _ => {
                log::line(Level::Warn, format_args!("{} is not a private file of this user: ignored", path.display()));
                return None;
            }
        }
        // SAFETY: the file was written by `put`, in a directory that only this user can write to.
        match unsafe { Component::deserialize_file(engine, &path) } {
            Ok(component) => Some(component),
            Err(error) => {
                log::line(Level::Warn, format_args!("{}: {error}; compiling again", path.display()));
                None
            }
        }
    }

    /// Best effort: what cannot be kept is compiled again next time.
    pub(super) fn put(&self, digest: &[u8; 32], component: &Component) {
        let path = self.path(digest);
        let kept = component.serialize().map_err(|error| error.to_string()).and_then(|code| {
            let written = write_whole(&self.directory, &path, &code);
            written.map_err(|error| error.to_string())
        });
        if let Err(error) = kept {
            log::line(Level::Warn, format_args!("cannot keep compiled code at {}: {error}", path.display()));
        }
    }
}

fn write_whole(directory: &Path, path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let mut random = [0; 8];
    getrandom::fill(&mut random).map_err(|error| std::io::Error::other(error.to_string()))?;
    let temporary = directory.join(format!("tmp-{}", hex(&random)));
    let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
    let written =
        file.write_all(bytes).and_then(|()| file.sync_data()).and_then(|()| std::fs::rename(&temporary, path));
    if written.is_err() {
        let _ = std::fs::remove_file(&temporary);
    }
    written
}

fn make_private(directory: &Path) -> Result<(), String> {
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(directory);
    made.map_err(|error| format!("cannot be made: {error}"))?;
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
