//! Where components lie: the directories of the host, which are `KV_STORE_WASM_PATH` and those beside the library where it names
//! none. Which of them serves a scheme is `served`.

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use super::aot::cache_directory;
use crate::error::Error;
use crate::log::{self, Level};
use crate::process::PerProcess;
use crate::suggest::nearest;

/// Where a host looks for components, and keeps their compiled code.
#[derive(Clone, Debug, Default)]
pub(crate) struct Places {
    /// In place of those that are searched by themselves.
    pub components: Option<Vec<PathBuf>>,
    /// In place of the cache that the environment names.
    pub cache: Option<PathBuf>,
    /// Components are compiled in this process, whatever the config says.
    pub compile_in_process: bool,
    /// In place of the directories of components beside the library. For tests.
    pub beside: Option<Vec<PathBuf>>,
}

impl Places {
    /// The directories that are searched for components, in order.
    pub(crate) fn directories(&self) -> Vec<PathBuf> {
        self.components.clone().unwrap_or_else(search_directories)
    }

    /// Where compiled code is kept. None: nowhere.
    pub(crate) fn cache(&self) -> Option<PathBuf> {
        self.cache.clone().or_else(cache_directory)
    }

    /// The directories of components that ship with the library.
    pub(super) fn beside_library(&self) -> Vec<PathBuf> {
        self.beside.clone().unwrap_or_else(|| beside_library().to_vec())
    }

    /// The file of a backend's component, in the first directory that has it.
    pub(super) fn in_directories(&self, backend: &str) -> Option<PathBuf> {
        let name = format!("{backend}.wasm");
        self.directories().iter().map(|directory| directory.join(&name)).find(|path| path.is_file())
    }

    /// What somebody may have meant by a scheme that nobody serves. Empty where nothing is near.
    fn meant(&self, scheme: &str) -> String {
        let names = self.names();
        let meant = match scheme {
            "file" | "fs" | "dir" => names.get("local-fs").map(String::as_str),
            _ => nearest(scheme, names.iter().map(String::as_str)),
        };
        meant.map_or_else(String::new, |meant| format!(" (did you mean {meant}://?)"))
    }

    /// No component serves a scheme.
    pub(super) fn not_found(&self, scheme: &str) -> Error {
        let by_itself = self.components.is_none();
        let relative = if by_itself { relative_directories() } else { Vec::new() };
        let ignored = match relative.is_empty() {
            true => String::new(),
            false => {
                format!(" (not in {}: a relative directory in KV_STORE_WASM_PATH is ignored)", relative.join(", "))
            }
        };
        let places: Vec<String> = self.directories().iter().map(|place| place.display().to_string()).collect();
        let remedy = if by_itself { ", or name its directory in KV_STORE_WASM_PATH" } else { "" };
        Error::invalid(format!(
            "no component for the scheme {scheme}{}: no {scheme}.wasm, and no other that lists {scheme}, in {}{ignored}; put it \
             there{remedy}",
            self.meant(scheme),
            places.join(", ")
        ))
    }
}

/// The directories that are searched where a host names none, in order. A relative or empty one would mean the consumer's working directory, so
/// only absolute ones count.
fn search_directories() -> Vec<PathBuf> {
    let named = std::env::var_os("KV_STORE_WASM_PATH").unwrap_or_default();
    let named = std::env::split_paths(&named);
    let mut directories: Vec<PathBuf> = Vec::new();
    for directory in named.chain(beside_library().iter().cloned()).filter(|directory| directory.is_absolute()) {
        if !directories.contains(&directory) {
            directories.push(directory);
        }
    }
    directories
}

/// The directories of components beside the library: as it was linked, then where the links lead. Looked for once: the library stays
/// where it was loaded from, and each open asks several times. Once for each process and no `OnceLock`, which a fork in another thread
/// could leave half done for ever.
fn beside_library() -> &'static [PathBuf] {
    static BESIDE: PerProcess<Vec<PathBuf>> = PerProcess::new();
    let Ok(beside) = BESIDE.get_or_make(|| {
        let library = library_path();
        let real = library.as_ref().and_then(|path| path.canonicalize().ok());
        let beside = library.into_iter().chain(real).flat_map(|path| {
            let directory = path.parent().map(Path::to_owned).unwrap_or_default();
            [directory.join("components"), directory.join("../components")]
        });
        Ok::<_, Infallible>(beside.filter(|directory| directory.is_absolute()).collect())
    });
    beside
}

/// The directories of `KV_STORE_WASM_PATH` that do not count.
pub(crate) fn relative_directories() -> Vec<String> {
    let named = std::env::var_os("KV_STORE_WASM_PATH").unwrap_or_default();
    let relative = |path: &PathBuf| path.is_relative() && *path != Path::new("");
    std::env::split_paths(&named).filter(relative).map(|path| path.display().to_string()).collect()
}

/// Say once that there are such directories.
pub(crate) fn tell_relative_directories() {
    static TOLD: AtomicBool = AtomicBool::new(false);
    if TOLD.load(Relaxed) || TOLD.swap(true, Relaxed) {
        return;
    }
    for path in relative_directories() {
        let message = format!("KV_STORE_WASM_PATH: {path} is ignored: a directory must be absolute");
        log::line(Level::Warn, message);
    }
}

/// The file that this code was loaded from: the library, or the program where it is linked in.
pub(super) fn library_path() -> Option<PathBuf> {
    kv_platform::system::loaded_from(library_path as fn() -> Option<PathBuf> as usize)
}
