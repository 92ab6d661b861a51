//! The C ABI from the consumer's side. The raw calls stay reachable, for the arguments that nobody sane passes.

use std::ffi::{CString, c_int};
use std::path::Path;

use kv_store_abi::batch::{
    KV_STORE_ALLOCATE, KV_STORE_BATCH_GET_VTABLE_SYMBOL, kv_store_batch_get_vtable_fn, kv_store_batch_vtable_t,
    kv_store_call_t, kv_store_item_t, kv_store_piece_t, kv_store_save_t,
};
use kv_store_abi::describe::{
    KV_STORE_DESCRIBE_GET_VTABLE_SYMBOL, kv_store_describe_get_vtable_fn, kv_store_describe_vtable_t,
    kv_store_descriptor_t,
};
use kv_store_abi::store::{KV_STORE_GET_VTABLE_SYMBOL, kv_store_get_vtable_fn, kv_store_v1, kv_store_vtable};

/// A loaded library. It stays loaded.
pub struct Library {
    vtable: &'static kv_store_vtable,
    /// `kv_store_batch.h`. None: the library has none.
    batches: Option<&'static kv_store_batch_vtable_t>,
    /// `kv_store_describe.h`. None: the library has none.
    describes: Option<&'static kv_store_describe_vtable_t>,
    /// None: it is linked in.
    loaded: Option<&'static libloading::Library>,
}

// SAFETY: a vtable is constant, and its functions may be called from any thread.
unsafe impl Send for Library {}
// SAFETY: as above.
unsafe impl Sync for Library {}

macro_rules! function {
    ($vtable:expr, $name:ident) => {
        $vtable.$name.ok_or_else(|| format!("{} is NULL", stringify!($name)))?
    };
}

impl Library {
    /// A library that is linked in.
    pub fn linked(vtable: &'static kv_store_vtable, batches: Option<&'static kv_store_batch_vtable_t>) -> Self {
        Library { vtable, batches, describes: None, loaded: None }
    }

    /// The same with `kv_store_describe.h`.
    #[must_use]
    pub fn describing(self, describes: &'static kv_store_describe_vtable_t) -> Self {
        Library { describes: Some(describes), ..self }
    }

    /// Load a library as a consumer does.
    pub fn load(path: &Path) -> Result<Self, String> {
        let name = path.display();
        // SAFETY: the library is the subject of the test; it stays loaded because it is leaked here.
        unsafe {
            let library = libloading::Library::new(path).map_err(|error| match no_library(path) {
                Some(what) => format!("cannot load {name}: it is {what}"),
                None => format!("cannot load {name}: {error}"),
            })?;
            let no_library =
                || format!("{name} does not export kv_store_get_vtable, so it is no library of the ABI kv_store_v1");
            let get: libloading::Symbol<kv_store_get_vtable_fn> =
                library.get(KV_STORE_GET_VTABLE_SYMBOL.to_bytes_with_nul()).map_err(|_| no_library())?;
            let vtable = get.ok_or_else(no_library)?()
                .as_ref()
                .ok_or_else(|| format!("{name}: kv_store_get_vtable answered NULL"))?;
            let batches = library
                .get::<kv_store_batch_get_vtable_fn>(KV_STORE_BATCH_GET_VTABLE_SYMBOL.to_bytes_with_nul())
                .ok()
                .and_then(|get| (*get)?().as_ref());
            let describes = library
                .get::<kv_store_describe_get_vtable_fn>(KV_STORE_DESCRIBE_GET_VTABLE_SYMBOL.to_bytes_with_nul())
                .ok()
                .and_then(|get| (*get)?().as_ref());
            Ok(Library { vtable, batches, describes, loaded: Some(Box::leak(Box::new(library))) })
        }
    }

    /// A further function of the library.
    ///
    /// # Safety
    /// `T` is the type of the function with that name.
    pub unsafe fn function<T: Copy>(&self, name: &str) -> Result<T, String> {
        let library = self.loaded.ok_or("the library is linked in")?;
        // SAFETY: by this function's own condition.
        unsafe { library.get::<T>(name.as_bytes()) }.map(|symbol| *symbol).map_err(|error| format!("{name}: {error}"))
    }

    pub fn vtable(&self) -> &'static kv_store_vtable {
        self.vtable
    }

    /// Whether it has `kv_store_describe.h`.
    pub fn describes(&self) -> bool {
        self.describes.is_some()
    }

    pub fn open(&self, uri: &str) -> Option<Handle<'_>> {
        let uri = CString::new(uri).ok()?;
        // SAFETY: a C string.
        let raw = unsafe { self.vtable.open?(uri.as_ptr()) };
        (!raw.is_null()).then_some(Handle { library: self, raw })
    }
}

/// What a file is that cannot be a library of this machine; none: it may be one.
fn no_library(path: &Path) -> Option<String> {
    let bytes = std::fs::read(path).ok()?;
    let own: u16 = match std::env::consts::ARCH {
        "x86_64" => 62,
        "aarch64" => 183,
        _ => return None,
    };
    let text = |byte: &u8| byte.is_ascii_graphic() || byte.is_ascii_whitespace();
    match bytes.get(..20).unwrap_or(&bytes) {
        [] => Some("empty".into()),
        [0, b'a', b's', b'm', ..] => Some("WebAssembly: name it NAME.wasm to have it checked as a component".into()),
        [0x7f, b'E', b'L', b'F', .., low, high] => {
            let machine = match u16::from_le_bytes([*low, *high]) {
                number if number == own => return None,
                62 => "x86-64".to_owned(),
                183 => "AArch64".to_owned(),
                number => format!("machine {number}"),
            };
            Some(format!("built for {machine}, and this machine is {}", std::env::consts::ARCH))
        }
        [0xcf | 0xce, 0xfa, 0xed, 0xfe, ..] => Some("a library of macOS".into()),
        first if first.iter().all(text) => Some("a text file, not a library".into()),
        _ => Some("not a library".into()),
    }
}

/// An open store. Closed when it is dropped.
pub struct Handle<'a> {
    library: &'a Library,
    pub raw: *mut kv_store_v1,
}

// SAFETY: the ABI asks that a handle can be used from any thread, and from several at once.
unsafe impl Send for Handle<'_> {}
// SAFETY: as above.
unsafe impl Sync for Handle<'_> {}

impl Drop for Handle<'_> {
    fn drop(&mut self) {
        if let Some(close) = self.library.vtable.close {
            // SAFETY: the handle came from `open` and is closed once.
            unsafe { close(self.raw) }
        }
    }
}

type Call = Result<c_int, String>;

impl Handle<'_> {
    pub fn put_chunk(&self, hash: &[u8], data: &[u8]) -> Call {
        let put = function!(self.library.vtable, put_chunk);
        // SAFETY: pointers to as many bytes as said.
        Ok(unsafe { put(self.raw, hash.as_ptr(), hash.len(), data.as_ptr(), data.len()) })
    }

    /// What was found, or the negative answer.
    pub fn get_chunk(&self, hash: &[u8]) -> Result<Result<Vec<u8>, c_int>, String> {
        let get = function!(self.library.vtable, get_chunk);
        // SAFETY: as in `put_chunk`; the outputs are valid.
        fetch("get_chunk", |data, len| unsafe { get(self.raw, hash.as_ptr(), hash.len(), data, len) })
    }

    pub fn put_manifest(&self, name: &str, data: &[u8]) -> Call {
        let put = function!(self.library.vtable, put_manifest);
        let name = CString::new(name).map_err(|error| error.to_string())?;
        // SAFETY: a C string, and a pointer to as many bytes as said.
        Ok(unsafe { put(self.raw, name.as_ptr(), data.as_ptr(), data.len()) })
    }

    pub fn get_manifest(&self, name: &str) -> Result<Result<Vec<u8>, c_int>, String> {
        let get = function!(self.library.vtable, get_manifest);
        let name = CString::new(name).map_err(|error| error.to_string())?;
        // SAFETY: a C string; the outputs are valid.
        fetch("get_manifest", |data, len| unsafe { get(self.raw, name.as_ptr(), data, len) })
    }

    pub fn delete_manifest(&self, name: &str) -> Call {
        let delete = function!(self.library.vtable, delete_manifest);
        let name = CString::new(name).map_err(|error| error.to_string())?;
        // SAFETY: a C string.
        Ok(unsafe { delete(self.raw, name.as_ptr()) })
    }

    /// Say of the handle's values that they are of a model.
    pub fn describe(&self, model: &str) -> Call {
        let describes = self.library.describes.ok_or("the library has no descriptors")?;
        let model = CString::new(model).map_err(|error| error.to_string())?;
        let said = kv_store_descriptor_t { model: model.as_ptr(), ..kv_store_descriptor_t::default() };
        // SAFETY: the handle is open, and the text is a C string that lives until the call returns.
        Ok(unsafe { (describes.describe)(self.raw, &said) })
    }

    /// The same store by `kv_store_batch.h`. None: the library has none.
    pub fn batches(&self) -> Option<Batches<'_>> {
        Some(Batches { raw: self.raw, vtable: self.library.batches?, _store: self })
    }

    /// None: the library is of version 1.
    pub fn prefetch_chunks(&self, hashes: &[u8], hash_len: usize) -> Option<c_int> {
        let vtable = self.library.vtable;
        let prefetch = vtable.prefetch_chunks.filter(|_| vtable.version >= 2)?;
        // SAFETY: a pointer to as many bytes as said.
        Some(unsafe { prefetch(self.raw, hashes.as_ptr(), hash_len, hashes.len() / hash_len.max(1)) })
    }
}

/// A store by `kv_store_batch.h`.
pub struct Batches<'a> {
    raw: *mut kv_store_v1,
    vtable: &'static kv_store_batch_vtable_t,
    _store: &'a Handle<'a>,
}

/// What became of an item.
pub type Status = c_int;

impl Batches<'_> {
    /// None: it failed.
    pub fn save(&self) -> Option<Save<'_>> {
        // SAFETY: the handle is open.
        let raw = unsafe { (self.vtable.save_begin)(self.raw) };
        (!raw.is_null()).then_some(Save { raw, batches: self })
    }

    /// Each value, or the negative status of its item.
    pub fn get_many(&self, hashes: &[&[u8]]) -> Result<Vec<Result<Vec<u8>, Status>>, String> {
        let call = call(KV_STORE_ALLOCATE, std::ptr::null_mut());
        let mut items: Vec<kv_store_item_t> = hashes.iter().map(|hash| item(hash, &[])).collect();
        // SAFETY: the items point to memory that lives until the call returns.
        let answer = unsafe { (self.vtable.get_many)(self.raw, items.as_mut_ptr(), items.len(), &call) };
        if answer > 0 {
            return Err(format!("get_many answered {answer}"));
        }
        let value = |item: &kv_store_item_t| match (item.status, item.data.is_null()) {
            (0, false) => {
                // SAFETY: `len` bytes of malloc, the consumer's to free.
                let value = unsafe {
                    let value = std::slice::from_raw_parts(item.data.cast::<u8>(), item.len as usize).to_vec();
                    libc::free(item.data);
                    value
                };
                Ok(Ok(value))
            }
            (status @ ..0, true) => Ok(Err(status)),
            (status, null) => {
                let data = if null { "no value" } else { "a value" };
                Err(format!("get_many answered an item {status} and {data}"))
            }
        };
        items.iter().map(value).collect()
    }
}

/// A save by `kv_store_batch.h`. Ended when it is dropped.
pub struct Save<'a> {
    raw: *mut kv_store_save_t,
    batches: &'a Batches<'a>,
}

impl Drop for Save<'_> {
    fn drop(&mut self) {
        // SAFETY: it came from `save_begin` and is ended once.
        unsafe { (self.batches.vtable.save_end)(self.raw) }
    }
}

impl Save<'_> {
    /// The status of each chunk.
    pub fn put_many(&self, chunks: &[(&[u8], &[u8])]) -> Result<Vec<Status>, String> {
        let piece =
            |(_, data): &(&[u8], &[u8])| kv_store_piece_t { data: data.as_ptr().cast_mut().cast(), len: data.len() };
        let pieces: Vec<kv_store_piece_t> = chunks.iter().map(piece).collect();
        let mut items: Vec<kv_store_item_t> =
            chunks.iter().zip(pieces.chunks(1)).map(|((hash, _), pieces)| item(hash, pieces)).collect();
        let call = call(0, self.raw);
        let Batches { vtable, raw, .. } = self.batches;
        // SAFETY: the items point to memory that lives until the call returns, and is only read.
        let answer = unsafe { (vtable.put_many)(*raw, items.as_mut_ptr(), items.len(), &call) };
        match answer {
            ..=0 => Ok(items.iter().map(|item| item.status).collect()),
            answer => Err(format!("put_many answered {answer}")),
        }
    }

    /// Publish a manifest over the save's chunks.
    pub fn commit(&self, name: &str, data: &[u8]) -> Call {
        let name = CString::new(name).map_err(|error| error.to_string())?;
        let none = std::ptr::null_mut();
        // SAFETY: a C string, and a pointer to as many bytes as said; the outputs may be NULL.
        Ok(unsafe {
            (self.batches.vtable.save_commit)(self.raw, name.as_ptr(), data.as_ptr(), data.len(), none, none.cast())
        })
    }
}

fn call(flags: u32, save: *mut kv_store_save_t) -> kv_store_call_t {
    kv_store_call_t { size: size_of::<kv_store_call_t>() as u32, flags, timeout_ms: 0, save }
}

fn item(hash: &[u8], pieces: &[kv_store_piece_t]) -> kv_store_item_t {
    kv_store_item_t {
        hash: hash.as_ptr(),
        hash_len: hash.len(),
        pieces: if pieces.is_empty() { std::ptr::null() } else { pieces.as_ptr() },
        n_pieces: pieces.len(),
        len: 0,
        data: std::ptr::null_mut(),
        status: 0,
        reserved: 0,
    }
}

/// Call a function with two outputs, check what the ABI says of them, copy what was found and free it.
fn fetch(name: &str, call: impl FnOnce(*mut *mut u8, *mut usize) -> c_int) -> Result<Result<Vec<u8>, c_int>, String> {
    // Not what a failure must leave there, so that leaving them alone shows.
    let (mut data, mut len) = (std::ptr::dangling_mut::<u8>(), 12345);
    let answer = call(&mut data, &mut len);
    if answer < 0 {
        if !data.is_null() || len != 0 {
            return Err(format!("{name} failed and left its outputs as {data:?} and {len}, not NULL and 0"));
        }
        return Ok(Err(answer));
    }
    if answer > 0 {
        return Err(format!("{name} answered {answer}: only 0 is success"));
    }
    if data.is_null() {
        return Err(format!("{name} answered 0 and a NULL output"));
    }
    // SAFETY: on success the output is `len` bytes of malloc, the consumer's to free.
    let bytes = unsafe {
        let bytes = std::slice::from_raw_parts(data, len).to_vec();
        libc::free(data.cast());
        bytes
    };
    Ok(Ok(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_loaded_is_named_as_what_it_is() {
        let path = std::env::temp_dir().join(format!("libkv_store_none-{}.so", std::process::id()));
        let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let mut other = own.clone();
        other[18..20].copy_from_slice(&243_u16.to_le_bytes());
        for (content, said) in [
            (b"#!/bin/sh\necho no library at all\n".to_vec(), "a text file, not a library"),
            (b"\0asm\x0d\0\x01\0".to_vec(), "WebAssembly: name it NAME.wasm"),
            (other, "built for machine 243"),
            (Vec::new(), "empty"),
        ] {
            std::fs::write(&path, content).unwrap();
            let refused = Library::load(&path).err().expect("it is no library");
            assert!(refused.contains(said), "{refused}");
        }
        std::fs::remove_file(path).unwrap();
    }
}
