//! A store behind the library's C ABI, as this crate uses it: batches of chunks that check themselves, saves and manifests.

use std::ffi::{CStr, CString};
use std::ptr;

use kv_store_abi::batch::*;
use kv_store_abi::describe::kv_store_descriptor_t;
use kv_store_abi::status::{KV_STORE_EXISTED, KV_STORE_LOST, KV_STORE_MISSING, KV_STORE_OK, KV_STORE_TOO_LONG};
use kv_store_abi::store::kv_store_v1;
use sha2::{Digest, Sha256};

use crate::library::Library;

/// The longest text of a descriptor, in bytes.
const MAX_TEXT: usize = 512;

/// Of the records and chunks of states: `docs/formats.md`.
const FORMAT: &CStr = c"kvllama 1";

/// An open store.
pub struct Store {
    library: Library,
    handle: *mut kv_store_v1,
}

// SAFETY: any function of the ABI may be called from any number of threads at once, and the handle is closed once, by the last owner.
unsafe impl Send for Store {}
// SAFETY: the same.
unsafe impl Sync for Store {}

/// A save that is under way.
pub struct Save<'a> {
    store: &'a Store,
    save: *mut kv_store_save_t,
}

// SAFETY: puts of several threads may name one save at once, and it is ended once, by its owner.
unsafe impl Sync for Save<'_> {}

/// A chunk to put: its key, and the bytes that lie in pieces one after another.
pub struct New<'a> {
    pub key: &'a [u8],
    pub pieces: &'a [&'a [u8]],
}

/// A chunk to get, into pieces one after another.
pub struct Wanted<'a, 'm> {
    pub key: &'a [u8],
    pub pieces: &'a mut [&'m mut [u8]],
}

/// How a save ended.
pub enum Committed {
    Published,
    /// The store lost these chunks meanwhile; nothing is published.
    Lost(Vec<Vec<u8>>),
}

impl Store {
    /// Open a store of states. `model`: what its caller calls the model. The names of states tell the rest: a fingerprint of it is in each.
    ///
    /// # Errors
    /// The library's text: it cannot be loaded, the store cannot be opened, or the config says something else of its values.
    pub fn open(uri: &str, model: Option<&str>) -> Result<Store, String> {
        let library = Library::get()?;
        let uri = CString::new(uri).map_err(|_| "the URI has a NUL".to_owned())?;
        let open = library.store.open.ok_or_else(lacking)?;
        // SAFETY: a C string.
        let handle = unsafe { open(uri.as_ptr()) };
        if handle.is_null() {
            return Err(last_error(library));
        }
        let store = Store { library, handle };
        store.describe(model)?;
        Ok(store)
    }

    /// Say what the values are.
    fn describe(&self, model: Option<&str>) -> Result<(), String> {
        let model = model.map(|model| CString::new(short(model))).transpose();
        let model = model.map_err(|_| "the model has a NUL".to_owned())?;
        let said = kv_store_descriptor_t {
            model: model.as_deref().map_or(ptr::null(), CStr::as_ptr),
            engine: c"llama.cpp".as_ptr(),
            format: FORMAT.as_ptr(),
            ..kv_store_descriptor_t::default()
        };
        // SAFETY: the handle is open, and the texts are C strings that live until the call returns.
        match unsafe { (self.library.describe.describe)(self.handle, &raw const said) } {
            KV_STORE_OK => Ok(()),
            _ => Err(last_error(self.library)),
        }
    }

    /// Put chunks, as chunks of a save. Answers of each whether it is new.
    ///
    /// # Errors
    /// The library's text for the first that failed.
    pub fn put_many(&self, chunks: &[New<'_>], save: &Save<'_>) -> Result<Vec<bool>, String> {
        let piece = |piece: &&[u8]| kv_store_piece_t { data: piece.as_ptr().cast_mut().cast(), len: piece.len() };
        let pieces: Vec<Vec<_>> = chunks.iter().map(|chunk| chunk.pieces.iter().map(piece).collect()).collect();
        let mut items: Vec<_> = chunks.iter().zip(&pieces).map(|(chunk, pieces)| item(chunk.key, pieces)).collect();
        let call = call(KV_STORE_SELF_CHECKED, save.save);
        self.run(self.library.batch.put_many, &mut items, &call)?;
        let outcome = |item: &kv_store_item_t| match item.status {
            KV_STORE_OK => Ok(true),
            KV_STORE_EXISTED => Ok(false),
            _ => Err(last_error(self.library)),
        };
        items.iter().map(outcome).collect()
    }

    /// Get chunks. Answers the length of each; `None`: it is not there, or is longer than its pieces. `by_content`: keys are the XXH3-64 of the
    /// bytes, and the library looks again where they are not.
    ///
    /// # Errors
    /// The library's text for the first that failed.
    pub fn get_many(&self, wanted: &mut [Wanted<'_, '_>], by_content: bool) -> Result<Vec<Option<usize>>, String> {
        let piece = |piece: &mut &mut [u8]| kv_store_piece_t { data: piece.as_mut_ptr().cast(), len: piece.len() };
        let pieces: Vec<Vec<_>> = wanted.iter_mut().map(|chunk| chunk.pieces.iter_mut().map(piece).collect()).collect();
        let mut items: Vec<_> = wanted.iter().zip(&pieces).map(|(chunk, pieces)| item(chunk.key, pieces)).collect();
        let flags = if by_content { KV_STORE_SELF_CHECKED | KV_STORE_XXH3_KEYS } else { KV_STORE_SELF_CHECKED };
        self.run(self.library.batch.get_many, &mut items, &call(flags, ptr::null_mut()))?;
        let outcome = |item: &kv_store_item_t| match item.status {
            KV_STORE_OK => Ok(usize::try_from(item.len).ok()),
            KV_STORE_MISSING | KV_STORE_TOO_LONG => Ok(None),
            _ => Err(last_error(self.library)),
        };
        items.iter().map(outcome).collect()
    }

    fn run(&self, many: Many, items: &mut [kv_store_item_t], call: &kv_store_call_t) -> Result<(), String> {
        // SAFETY: the handle is open; items and what they point to are borrowed by the caller until this returns, for writing where `many`
        // is a get.
        let status = unsafe { many(self.handle, items.as_mut_ptr(), items.len(), call) };
        if status == KV_STORE_OK { Ok(()) } else { Err(last_error(self.library)) }
    }

    /// # Errors
    /// The library's text.
    pub fn begin_save(&self) -> Result<Save<'_>, String> {
        // SAFETY: the handle is open.
        let save = unsafe { (self.library.batch.save_begin)(self.handle) };
        if save.is_null() { Err(last_error(self.library)) } else { Ok(Save { store: self, save }) }
    }

    /// The bytes of a manifest; `None` if there is none.
    ///
    /// # Errors
    /// The library's text.
    pub fn manifest(&self, name: &str) -> Result<Option<Vec<u8>>, String> {
        let name = c_name(name)?;
        let get = self.library.store.get_manifest.ok_or_else(lacking)?;
        let (mut data, mut len) = (ptr::null_mut(), 0);
        // SAFETY: the handle is open, and the rest are C's arguments.
        match unsafe { get(self.handle, name.as_ptr(), &raw mut data, &raw mut len) } {
            KV_STORE_OK if data.is_null() => Ok(Some(Vec::new())),
            KV_STORE_OK => {
                // SAFETY: so many bytes that malloc gave, which are this caller's now.
                unsafe {
                    let bytes = std::slice::from_raw_parts(data, len).to_vec();
                    libc::free(data.cast());
                    Ok(Some(bytes))
                }
            }
            KV_STORE_MISSING => Ok(None),
            _ => Err(last_error(self.library)),
        }
    }

    /// Publish a manifest that names no chunks.
    ///
    /// # Errors
    /// The library's text.
    pub fn put_manifest(&self, name: &str, bytes: &[u8]) -> Result<(), String> {
        let name = c_name(name)?;
        let put = self.library.store.put_manifest.ok_or_else(lacking)?;
        // SAFETY: the handle is open, and the rest are C's arguments.
        let status = unsafe { put(self.handle, name.as_ptr(), bytes.as_ptr(), bytes.len()) };
        if status == KV_STORE_OK { Ok(()) } else { Err(last_error(self.library)) }
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        if let Some(close) = self.library.store.close {
            // SAFETY: the handle is open, and nobody has it any more.
            unsafe { close(self.handle) };
        }
    }
}

impl Save<'_> {
    /// Publish a manifest over what was put; all of it is durable then where the backend can make it so.
    ///
    /// # Errors
    /// The library's text.
    pub fn commit(&self, name: &str, bytes: &[u8]) -> Result<Committed, String> {
        let library = self.store.library;
        let name = c_name(name)?;
        let (mut lost, mut count) = (ptr::null_mut::<kv_store_hash_t>(), 0);
        let commit = library.batch.save_commit;
        // SAFETY: a save that has not ended, and C's arguments.
        let status =
            unsafe { commit(self.save, name.as_ptr(), bytes.as_ptr(), bytes.len(), &raw mut lost, &raw mut count) };
        let mut hashes = Vec::new();
        if !lost.is_null() {
            // SAFETY: so many hashes that malloc gave, which are this caller's now.
            unsafe {
                let all = std::slice::from_raw_parts(lost, count).iter();
                hashes.extend(all.filter_map(|hash| hash.bytes.get(..usize::from(hash.len)).map(<[u8]>::to_vec)));
                libc::free(lost.cast());
            }
        }
        match status {
            KV_STORE_OK => Ok(Committed::Published),
            KV_STORE_LOST => Ok(Committed::Lost(hashes)),
            _ => Err(last_error(library)),
        }
    }
}

impl Drop for Save<'_> {
    fn drop(&mut self) {
        // SAFETY: it has not ended, and nobody has it any more.
        unsafe { (self.store.library.batch.save_end)(self.save) };
    }
}

fn item(key: &[u8], pieces: &[kv_store_piece_t]) -> kv_store_item_t {
    kv_store_item_t {
        hash: key.as_ptr(),
        hash_len: key.len(),
        pieces: pieces.as_ptr(),
        n_pieces: pieces.len(),
        len: 0,
        data: ptr::null_mut(),
        status: KV_STORE_OK,
        reserved: 0,
    }
}

fn call(flags: u32, save: *mut kv_store_save_t) -> kv_store_call_t {
    kv_store_call_t { size: size_of::<kv_store_call_t>() as u32, flags, timeout_ms: 0, save }
}

fn c_name(name: &str) -> Result<CString, String> {
    CString::new(name).map_err(|_| "the name of a state has a NUL".to_owned())
}

fn lacking() -> String {
    "the store library lacks a function of its ABI: is it of another build?".to_owned()
}

/// A text that a descriptor takes: a digest of one that is none.
fn short(text: &str) -> String {
    match text.is_empty() || text.len() > MAX_TEXT || text.chars().any(char::is_control) {
        true => format!("sha256:{}", hex::encode(Sha256::digest(text))),
        false => text.to_owned(),
    }
}

/// What the library says of this thread's last failure.
fn last_error(library: Library) -> String {
    // SAFETY: NULL, or a C string that stays until the thread's next failure.
    let text = unsafe {
        let text = (library.batch.last_error)();
        (!text.is_null()).then(|| CStr::from_ptr(text).to_string_lossy().into_owned())
    };
    text.filter(|text| !text.is_empty()).unwrap_or_else(|| "the store library does not say why".to_owned())
}
