//! `libkv_store_wasm.so`, which this library calls through its C ABI: found beside it, and loaded when the first store is opened.
//!
//! It is not linked: this library is loaded into every program that is started with `LD_PRELOAD`, and most of them keep no state.

use std::ffi::{CStr, CString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use kv_platform::sync::Mutex;
use kv_store_abi::batch::{KV_STORE_BATCH_GET_VTABLE_SYMBOL, kv_store_batch_get_vtable_fn, kv_store_batch_vtable_t};
use kv_store_abi::describe::{
    KV_STORE_DESCRIBE_GET_VTABLE_SYMBOL, kv_store_describe_get_vtable_fn, kv_store_describe_vtable_t,
};
use kv_store_abi::store::{KV_STORE_GET_VTABLE_SYMBOL, kv_store_get_vtable_fn, kv_store_vtable};

/// Its file beside this one. Both are of one build.
const STEM: &str = "libkv_store_wasm";

/// The tables of functions that the library has.
#[derive(Clone, Copy)]
pub struct Library {
    pub store: &'static kv_store_vtable,
    pub batch: &'static kv_store_batch_vtable_t,
    pub describe: &'static kv_store_describe_vtable_t,
}

impl Library {
    /// The library of the process, which stays loaded. One that is not found is looked for again with the next store.
    ///
    /// # Errors
    /// Where it was looked for, and what the loader says.
    pub fn get() -> Result<Library, String> {
        static LOADED: Mutex<Option<Library>> = Mutex::new(None);
        let mut loaded = LOADED.lock();
        if let Some(library) = *loaded {
            return Ok(library);
        }
        Ok(*loaded.insert(load()?))
    }
}

fn load() -> Result<Library, String> {
    let name = format!("{STEM}{}", std::env::consts::DLL_SUFFIX);
    let here = load as fn() -> Result<Library, String> as usize;
    let beside = kv_platform::system::loaded_from(here).map(|own| places(&own, &name)).unwrap_or_default();
    // Where this library was copied elsewhere by itself, the loader may know the other one.
    let found = beside.iter().find(|path| path.is_file()).cloned().unwrap_or_else(|| PathBuf::from(&name));
    open(&found).map_err(|error| {
        let places: Vec<String> = beside.iter().map(|path| path.display().to_string()).collect();
        format!(
            "cannot load {name}: {error}; it is looked for at {}: keep the two libraries together",
            places.join(", ")
        )
    })
}

/// Beside the library as it was named, then where the links lead.
fn places(own: &Path, name: &str) -> Vec<PathBuf> {
    let mut places = vec![own.with_file_name(name)];
    let real = own.canonicalize().ok().map(|real| real.with_file_name(name));
    places.extend(real.filter(|real| !places.contains(real)));
    places
}

fn open(path: &Path) -> Result<Library, String> {
    let file = CString::new(path.as_os_str().as_bytes()).map_err(|_| "its path has a NUL")?;
    // SAFETY: a C string; what runs is the library's own beginning, which sets nothing up.
    let handle = unsafe { libc::dlopen(file.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL | libc::RTLD_NODELETE) };
    if handle.is_null() {
        return Err(loader_error());
    }
    let symbol = |name: &CStr| {
        // SAFETY: a handle of dlopen, which is never closed, and a C string.
        let found = unsafe { libc::dlsym(handle, name.as_ptr()) };
        if found.is_null() { Err(loader_error()) } else { Ok(found) }
    };
    let (store, batch) = (symbol(KV_STORE_GET_VTABLE_SYMBOL)?, symbol(KV_STORE_BATCH_GET_VTABLE_SYMBOL)?);
    let describe = symbol(KV_STORE_DESCRIBE_GET_VTABLE_SYMBOL)?;
    // SAFETY: the functions of these names have these types in every library of this name, and their tables are static.
    let (store, batch, describe) = unsafe {
        let store = std::mem::transmute::<*mut libc::c_void, kv_store_get_vtable_fn>(store);
        let batch = std::mem::transmute::<*mut libc::c_void, kv_store_batch_get_vtable_fn>(batch);
        let describe = std::mem::transmute::<*mut libc::c_void, kv_store_describe_get_vtable_fn>(describe);
        let (store, batch) = (store.and_then(|get| get().as_ref()), batch.and_then(|get| get().as_ref()));
        (store, batch, describe.and_then(|get| get().as_ref()))
    };
    match (store, batch, describe) {
        (Some(store), Some(batch), Some(describe)) if batch.size as usize >= size_of::<kv_store_batch_vtable_t>() => {
            Ok(Library { store, batch, describe })
        }
        _ => Err(format!("{} is of an earlier version than this library", path.display())),
    }
}

/// What dlopen or dlsym has failed for.
fn loader_error() -> String {
    // SAFETY: dlerror returns NULL or a C string of the thread.
    let error = unsafe { libc::dlerror().as_ref() }.map(|first| unsafe { CStr::from_ptr(first) });
    error.map_or_else(|| "the loader does not say why".to_owned(), |error| error.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_looked_for_beside_the_link_and_beside_the_file() {
        let scratch = tempfile::tempdir().unwrap();
        let real = scratch.path().canonicalize().unwrap();
        let (kept, linked) = (real.join("kept"), real.join("linked"));
        std::fs::create_dir(&kept).unwrap();
        std::fs::create_dir(&linked).unwrap();
        std::fs::write(kept.join("own.so"), "").unwrap();
        std::os::unix::fs::symlink(kept.join("own.so"), linked.join("own.so")).unwrap();
        assert_eq!(places(&kept.join("own.so"), "x.so"), [kept.join("x.so")]);
        assert_eq!(places(&linked.join("own.so"), "x.so"), [linked.join("x.so"), kept.join("x.so")]);
    }

    #[test]
    fn what_is_no_library_is_refused_with_the_loaders_words() {
        let scratch = tempfile::tempdir().unwrap();
        let file = scratch.path().join("libkv_store_wasm.so");
        std::fs::write(&file, "no library").unwrap();
        let Err(error) = open(&file) else { panic!("it was loaded") };
        assert!(error.contains("libkv_store_wasm.so"), "{error}");
        let Err(error) = open(&scratch.path().join("absent.so")) else { panic!("it was loaded") };
        assert!(error.contains("absent.so"), "{error}");
    }
}
