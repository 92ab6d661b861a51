//! Where a scheme's component lies: the config file, then `KV_STORE_WASM_PATH`, then beside the library.

use std::ffi::CStr;
use std::path::{Path, PathBuf};

use crate::error::Error;

/// The file of the component that serves a scheme.
pub(crate) fn find(scheme: &str, configured: Option<&Path>) -> Result<PathBuf, Error> {
    if let Some(path) = configured {
        return Ok(path.to_owned());
    }
    let name = format!("{scheme}.wasm");
    let directories = search_directories();
    if let Some(found) = directories.iter().map(|directory| directory.join(&name)).find(|path| path.is_file()) {
        return Ok(found);
    }
    let places: Vec<String> = directories.iter().map(|directory| directory.display().to_string()).collect();
    Err(Error::invalid(format!(
        "no component for the scheme {scheme}: no {name} in {}; put it there, or name its directory in \
         KV_STORE_WASM_PATH",
        places.join(", ")
    )))
}

/// The directories that are searched, in order. A relative or empty one would mean the consumer's working directory, so
/// only absolute ones count.
pub(crate) fn search_directories() -> Vec<PathBuf> {
    let named = std::env::var_os("KV_STORE_WASM_PATH").unwrap_or_default();
    let named = std::env::split_paths(&named);
    // As the library was linked, then where the links lead.
    let library = library_path();
    let real = library.as_ref().and_then(|path| path.canonicalize().ok());
    let beside = library.into_iter().chain(real).flat_map(|path| {
        let directory = path.parent().map(Path::to_owned).unwrap_or_default();
        [directory.join("components"), directory.join("../components")]
    });
    let mut directories: Vec<PathBuf> = Vec::new();
    for directory in named.chain(beside).filter(|directory| directory.is_absolute()) {
        if !directories.contains(&directory) {
            directories.push(directory);
        }
    }
    directories
}

/// The file that this code was loaded from: the library, or the program where it is linked in.
pub(super) fn library_path() -> Option<PathBuf> {
    use std::os::unix::ffi::OsStrExt;
    let mut info = std::mem::MaybeUninit::<libc::Dl_info>::uninit();
    let here = library_path as fn() -> Option<PathBuf> as *const libc::c_void;
    // SAFETY: dladdr takes any address and fills `info` where it does not answer 0; the name that it then holds is a
    // C string of the loader's, which stays because this library is never unloaded.
    let name = unsafe {
        if libc::dladdr(here, info.as_mut_ptr()) == 0 {
            return None;
        }
        let name = info.assume_init().dli_fname;
        (!name.is_null()).then(|| CStr::from_ptr(name))?
    };
    let path = PathBuf::from(std::ffi::OsStr::from_bytes(name.to_bytes()));
    // A relative name was relative to a working directory that may have changed since.
    if path.is_absolute() { Some(path) } else { mapped_path(here as usize) }
}

/// The file that is mapped at an address, as the kernel has it.
fn mapped_path(address: usize) -> Option<PathBuf> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    maps.lines().find_map(|line| {
        let (range, _) = line.split_once(' ')?;
        let (start, end) = range.split_once('-')?;
        let bound = |text| usize::from_str_radix(text, 16).ok();
        let path = line.get(line.find('/')?..)?;
        (bound(start)?..bound(end)?).contains(&address).then(|| PathBuf::from(path))
    })
}
