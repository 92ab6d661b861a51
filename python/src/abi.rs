//! The C interface of the library that is linked in. `include/kv_store_abi.h` and `include/kv_store_batch.h` document each
//! call, and the conditions under which memory is used; here they get Rust's names and owners.
//!
//! The extension calls the C interface and not the Rust one because a queue over memory that somebody else owns is there,
//! with its conditions written down: see `docs/decisions/wheel.md`.

use std::ffi::{CStr, c_char};
use std::ptr::NonNull;

use pyo3::prelude::*;

// The functions below are in it.
use kv_store_wasm as _;

#[repr(C)]
struct RawStore {
    _opaque: [u8; 0],
}

#[repr(C)]
pub struct RawSave {
    _opaque: [u8; 0],
}

#[repr(C)]
struct RawQueue {
    _opaque: [u8; 0],
}

#[repr(C)]
pub struct Piece {
    pub data: *mut u8,
    pub len: usize,
}

#[repr(C)]
pub struct Item {
    pub hash: *const u8,
    pub hash_len: usize,
    pub pieces: *const Piece,
    pub n_pieces: usize,
    pub len: u64,
    pub data: *mut u8,
    pub status: i32,
    pub reserved: u32,
}

#[repr(C)]
pub struct Call {
    pub size: u32,
    pub flags: u32,
    pub timeout_ms: u64,
    pub save: *mut RawSave,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Completion {
    pub cookie: u64,
    pub status: i32,
    pub reserved: u32,
}

#[repr(C)]
struct Hash {
    len: u8,
    bytes: [u8; 64],
}

#[repr(C)]
pub struct Info {
    size: u32,
    pub durable: u8,
    pub shared: u8,
    pub deletes: u8,
    pub write_through: u8,
    pub max_value_bytes: u64,
    pub batch_items: u64,
    pub batch_bytes: u64,
}

type Many = unsafe extern "C" fn(*mut RawStore, *mut Item, usize, *const Call) -> i32;

#[repr(C)]
struct Batches {
    size: u32,
    version: u32,
    put_many: Many,
    get_many: Many,
    exists_many: Many,
    delete_many: Many,
    save_begin: unsafe extern "C" fn(*mut RawStore) -> *mut RawSave,
    save_commit: unsafe extern "C" fn(*mut RawSave, *const c_char, *const u8, usize, *mut *mut Hash, *mut usize) -> i32,
    save_end: unsafe extern "C" fn(*mut RawSave),
    queue_open: unsafe extern "C" fn(*mut RawStore, usize) -> *mut RawQueue,
    queue_fd: unsafe extern "C" fn(*mut RawQueue) -> i32,
    queue_submit: unsafe extern "C" fn(*mut RawQueue, u64, u32, *mut Item, usize, *const Call) -> i32,
    queue_drain: unsafe extern "C" fn(*mut RawQueue, *mut Completion, usize) -> i64,
    queue_cancel: unsafe extern "C" fn(*mut RawQueue, u64) -> i64,
    queue_close: unsafe extern "C" fn(*mut RawQueue),
    info: unsafe extern "C" fn(*mut RawStore, *mut Info) -> i32,
    last_error: unsafe extern "C" fn() -> *const c_char,
}

#[repr(C)]
struct Handles {
    version: u32,
    open: unsafe extern "C" fn(*const c_char) -> *mut RawStore,
    close: unsafe extern "C" fn(*mut RawStore),
    put_chunk: unsafe extern "C" fn(*mut RawStore, *const u8, usize, *const u8, usize) -> i32,
    get_chunk: unsafe extern "C" fn(*mut RawStore, *const u8, usize, *mut *mut u8, *mut usize) -> i32,
    put_manifest: unsafe extern "C" fn(*mut RawStore, *const c_char, *const u8, usize) -> i32,
    get_manifest: unsafe extern "C" fn(*mut RawStore, *const c_char, *mut *mut u8, *mut usize) -> i32,
    delete_manifest: unsafe extern "C" fn(*mut RawStore, *const c_char) -> i32,
}

// Links the functions that are declared below.
use kv_store_ffi as _;

unsafe extern "C" {
    safe fn kv_store_get_vtable() -> *const Handles;
    safe fn kv_store_get_batch_vtable() -> *const Batches;
    fn free(memory: *mut std::ffi::c_void);
}

fn handles() -> &'static Handles {
    // SAFETY: never NULL, and static.
    unsafe { &*kv_store_get_vtable() }
}

fn batches() -> &'static Batches {
    // SAFETY: never NULL, and static.
    unsafe { &*kv_store_get_batch_vtable() }
}

pub const INVALID: i32 = -4;

/// What is done with the items of a batch; the numbers are the header's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Put = 1,
    Get = 2,
    Exists = 3,
    Delete = 4,
}

/// Why the last failed call of this thread failed.
pub fn last_error() -> String {
    // SAFETY: a C string that stays until the next failure of this thread.
    unsafe { CStr::from_ptr((batches().last_error)()) }.to_string_lossy().into_owned()
}

/// Run what may take long without holding up other Python threads, from where there may be no token: a destructor.
pub fn detached(run: impl FnOnce() + Send) {
    let mut run = Some(run);
    let attached = Python::try_attach(|py| {
        if let Some(run) = run.take() {
            py.detach(run);
        }
    });
    if attached.is_none()
        && let Some(run) = run.take()
    {
        run();
    }
}

/// An open store.
pub struct Store(NonNull<RawStore>);

// SAFETY: any function may be called on a handle from any number of threads.
unsafe impl Send for Store {}
// SAFETY: as above.
unsafe impl Sync for Store {}

impl Store {
    pub fn open(uri: &CStr) -> Option<Self> {
        // SAFETY: a C string.
        NonNull::new(unsafe { (handles().open)(uri.as_ptr()) }).map(Store)
    }

    /// Carry out a batch. Negative: the items have no statuses.
    ///
    /// # Safety
    /// Until this returns the items and what they point to are valid, for writes where it is a get, and nobody else's.
    pub unsafe fn many(&self, operation: Operation, items: &mut [Item], call: &Call) -> i32 {
        let table = batches();
        let many = match operation {
            Operation::Put => table.put_many,
            Operation::Get => table.get_many,
            Operation::Exists => table.exists_many,
            Operation::Delete => table.delete_many,
        };
        // SAFETY: the handle is open; the rest by this function's own condition.
        unsafe { many(self.0.as_ptr(), items.as_mut_ptr(), items.len(), call) }
    }

    pub fn info(&self) -> Option<Info> {
        let mut info = Info {
            size: size_of::<Info>() as u32,
            durable: 0,
            shared: 0,
            deletes: 0,
            write_through: 0,
            max_value_bytes: 0,
            batch_items: 0,
            batch_bytes: 0,
        };
        // SAFETY: the handle is open, the struct ours.
        (unsafe { (batches().info)(self.0.as_ptr(), &mut info) } == 0).then_some(info)
    }

    /// A manifest, or a negative status.
    pub fn manifest(&self, name: &CStr) -> Result<Malloced, i32> {
        let (mut data, mut len) = (std::ptr::null_mut(), 0);
        // SAFETY: the handle is open, the name a C string, the outputs ours.
        match unsafe { (handles().get_manifest)(self.0.as_ptr(), name.as_ptr(), &mut data, &mut len) } {
            0 => Ok(Malloced { data, len }),
            status => Err(status),
        }
    }

    pub fn delete_manifest(&self, name: &CStr) -> i32 {
        // SAFETY: the handle is open, the name a C string.
        unsafe { (handles().delete_manifest)(self.0.as_ptr(), name.as_ptr()) }
    }

    pub fn begin_save(&self) -> Option<Save> {
        // SAFETY: the handle is open.
        NonNull::new(unsafe { (batches().save_begin)(self.0.as_ptr()) }).map(Save)
    }

    pub fn open_queue(&self, depth: usize) -> Option<Queue> {
        // SAFETY: the handle is open.
        NonNull::new(unsafe { (batches().queue_open)(self.0.as_ptr(), depth) }).map(Queue)
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        let store = Store(self.0);
        detached(move || {
            let store = std::mem::ManuallyDrop::new(store);
            // SAFETY: this was the last user of the handle.
            unsafe { (handles().close)(store.0.as_ptr()) }
        });
    }
}

/// Memory of C.
pub struct Malloced {
    data: *mut u8,
    len: usize,
}

// SAFETY: it is nobody else's.
unsafe impl Send for Malloced {}

impl std::ops::Deref for Malloced {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self.len {
            0 => &[],
            // SAFETY: the library has filled so many bytes.
            len => unsafe { std::slice::from_raw_parts(self.data, len) },
        }
    }
}

impl Drop for Malloced {
    fn drop(&mut self) {
        // SAFETY: the library's outputs come from malloc, or are NULL.
        unsafe { free(self.data.cast()) }
    }
}

/// A save that has begun.
pub struct Save(NonNull<RawSave>);

// SAFETY: as for a store.
unsafe impl Send for Save {}
// SAFETY: as for a store.
unsafe impl Sync for Save {}

impl Save {
    pub fn raw(&self) -> *mut RawSave {
        self.0.as_ptr()
    }

    /// Publish, or only make durable where there is no name. The status, and the hashes that are lost.
    pub fn commit(&self, manifest: Option<(&CStr, &[u8])>) -> (i32, Vec<Vec<u8>>) {
        let name = manifest.map_or(std::ptr::null(), |(name, _)| name.as_ptr());
        let data = manifest.map_or(&[][..], |(_, data)| data);
        let (mut lost, mut count) = (std::ptr::null_mut::<Hash>(), 0);
        // SAFETY: the save is live, the name NULL or a C string, the outputs ours.
        let status =
            unsafe { (batches().save_commit)(self.0.as_ptr(), name, data.as_ptr(), data.len(), &mut lost, &mut count) };
        if lost.is_null() {
            return (status, Vec::new());
        }
        // SAFETY: the library has written so many hashes.
        let hashes = unsafe { std::slice::from_raw_parts(lost, count) };
        let bytes = |hash: &Hash| hash.bytes.iter().copied().take(hash.len.into()).collect();
        let hashes = hashes.iter().map(bytes).collect();
        // SAFETY: from malloc, by the header.
        unsafe { free(lost.cast()) };
        (status, hashes)
    }
}

impl Drop for Save {
    fn drop(&mut self) {
        let save = Save(self.0);
        detached(move || {
            let save = std::mem::ManuallyDrop::new(save);
            // SAFETY: this was the last user of the save.
            unsafe { (batches().save_end)(save.0.as_ptr()) }
        });
    }
}

/// An open queue.
pub struct Queue(NonNull<RawQueue>);

// SAFETY: as for a store.
unsafe impl Send for Queue {}
// SAFETY: as for a store.
unsafe impl Sync for Queue {}

impl Queue {
    pub fn fd(&self) -> i32 {
        // SAFETY: the queue is open.
        unsafe { (batches().queue_fd)(self.0.as_ptr()) }
    }

    /// # Safety
    /// As [`Store::many`], until the completion with this cookie is drained or the queue is dropped.
    pub unsafe fn submit(&self, cookie: u64, operation: Operation, items: &mut [Item], call: &Call) -> i32 {
        let (first, count) = (items.as_mut_ptr(), items.len());
        // SAFETY: the queue is open; the rest by this function's own condition.
        unsafe { (batches().queue_submit)(self.0.as_ptr(), cookie, operation as u32, first, count, call) }
    }

    /// How many completions were taken; negative: a status.
    pub fn drain(&self, completions: &mut [Completion]) -> i64 {
        // SAFETY: the queue is open, and there is room for so many.
        unsafe { (batches().queue_drain)(self.0.as_ptr(), completions.as_mut_ptr(), completions.len()) }
    }

    pub fn cancel(&self, cookie: u64) -> i64 {
        // SAFETY: the queue is open.
        unsafe { (batches().queue_cancel)(self.0.as_ptr(), cookie) }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        let queue = Queue(self.0);
        detached(move || {
            let queue = std::mem::ManuallyDrop::new(queue);
            // SAFETY: this was the last user of the queue.
            unsafe { (batches().queue_close)(queue.0.as_ptr()) }
        });
    }
}
