//! The C interface of the library that is linked in. `include/kv_store_abi.h` and `include/kv_store_batch.h` document each
//! call, and the conditions under which memory is used; here they get Rust's names and owners.
//!
//! The extension calls the C interface and not the Rust one because a queue over memory that somebody else owns is there,
//! with its conditions written down: see `docs/decisions/wheel.md`.

use std::ffi::{CStr, CString, c_char};
use std::ptr::NonNull;

use kv_store_abi::batch::*;
use kv_store_abi::describe::{KV_STORE_DESCRIPTOR_BYTES, kv_store_describe_vtable_t, kv_store_descriptor_t};
pub use kv_store_abi::status::KV_STORE_INVALID;
use kv_store_abi::store::{kv_store_v1, kv_store_vtable};
use kv_store_ffi::{kv_store_batch_get_vtable, kv_store_describe_get_vtable, kv_store_get_vtable};
use pyo3::prelude::*;

unsafe extern "C" {
    fn free(memory: *mut std::ffi::c_void);
}

fn handles() -> &'static kv_store_vtable {
    // SAFETY: never NULL, and static.
    unsafe { &*kv_store_get_vtable() }
}

fn batches() -> &'static kv_store_batch_vtable_t {
    // SAFETY: never NULL, and static.
    unsafe { &*kv_store_batch_get_vtable() }
}

fn describing() -> &'static kv_store_describe_vtable_t {
    // SAFETY: never NULL, and static.
    unsafe { &*kv_store_describe_get_vtable() }
}

/// What is said of values: of each field its name and its text.
pub struct Descriptor(Vec<(usize, CString)>);

type Field = fn(&mut kv_store_descriptor_t) -> &mut *const c_char;

/// The fields of a descriptor: the name of each, and where it lies.
const FIELDS: [(&str, Field); 14] = [
    ("model", |said| &mut said.model),
    ("architecture", |said| &mut said.architecture),
    ("layout", |said| &mut said.layout),
    ("dtype", |said| &mut said.dtype),
    ("scales", |said| &mut said.scales),
    ("block_tokens", |said| &mut said.block_tokens),
    ("layers", |said| &mut said.layers),
    ("heads", |said| &mut said.heads),
    ("rank", |said| &mut said.rank),
    ("ranks", |said| &mut said.ranks),
    ("rope", |said| &mut said.rope),
    ("adapters", |said| &mut said.adapters),
    ("engine", |said| &mut said.engine),
    ("format", |said| &mut said.format),
];

impl Descriptor {
    /// Nothing is said.
    pub fn new() -> Self {
        Descriptor(Vec::new())
    }

    /// Say a field. `Err`: the names that there are.
    pub fn say(&mut self, name: &str, text: CString) -> Result<(), String> {
        let at = FIELDS.iter().position(|(field, _)| *field == name);
        let at = at.ok_or_else(|| FIELDS.map(|(field, _)| field).join(", "))?;
        self.0.push((at, text));
        Ok(())
    }

    fn raw(&self) -> kv_store_descriptor_t {
        let mut raw = kv_store_descriptor_t::default();
        for (at, text) in &self.0 {
            if let Some((_, place)) = FIELDS.get(*at) {
                *place(&mut raw) = text.as_ptr();
            }
        }
        raw
    }
}

/// What is done with the items of a batch; the numbers are the header's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Put = KV_STORE_PUT as isize,
    Get = KV_STORE_GET as isize,
    Exists = KV_STORE_EXISTS as isize,
    Delete = KV_STORE_DELETE as isize,
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
pub struct StoreHandle(NonNull<kv_store_v1>);

// SAFETY: any function may be called on a handle from any number of threads.
unsafe impl Send for StoreHandle {}
// SAFETY: as above.
unsafe impl Sync for StoreHandle {}

impl StoreHandle {
    pub fn open(uri: &CStr) -> Option<Self> {
        // SAFETY: a C string.
        NonNull::new(unsafe { handles().open?(uri.as_ptr()) }).map(StoreHandle)
    }

    /// Say what its values are. Negative: a status.
    pub fn describe(&self, descriptor: &Descriptor) -> i32 {
        // SAFETY: the handle is open; the texts live until the call returns.
        unsafe { (describing().describe)(self.0.as_ptr(), &descriptor.raw()) }
    }

    /// The digest that its values have; zeros: nothing is said.
    pub fn descriptor(&self) -> [u8; KV_STORE_DESCRIPTOR_BYTES as usize] {
        let mut digest = [0; KV_STORE_DESCRIPTOR_BYTES as usize];
        // SAFETY: the handle is open, and there is room for so many bytes.
        let _ = unsafe { (describing().digest)(self.0.as_ptr(), digest.as_mut_ptr()) };
        digest
    }

    /// Carry out a batch. Negative: the items have no statuses.
    ///
    /// # Safety
    /// Until this returns the items and what they point to are valid, for writes where it is a get, and nobody else's.
    pub unsafe fn many(&self, operation: Operation, items: &mut [kv_store_item_t], call: &kv_store_call_t) -> i32 {
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

    pub fn info(&self) -> Option<kv_store_info_t> {
        let mut info = kv_store_info_t { size: size_of::<kv_store_info_t>() as u32, ..kv_store_info_t::default() };
        // SAFETY: the handle is open, the struct ours.
        (unsafe { (batches().info)(self.0.as_ptr(), &mut info) } == 0).then_some(info)
    }

    /// A manifest, or a negative status.
    pub fn manifest(&self, name: &CStr) -> Result<Malloced, i32> {
        let (mut data, mut len) = (std::ptr::null_mut(), 0);
        let get = handles().get_manifest.ok_or(KV_STORE_INVALID)?;
        // SAFETY: the handle is open, the name a C string, the outputs ours.
        match unsafe { get(self.0.as_ptr(), name.as_ptr(), &mut data, &mut len) } {
            0 => Ok(Malloced { data, len }),
            status => Err(status),
        }
    }

    pub fn delete_manifest(&self, name: &CStr) -> i32 {
        // SAFETY: the handle is open, the name a C string.
        handles().delete_manifest.map_or(KV_STORE_INVALID, |delete| unsafe { delete(self.0.as_ptr(), name.as_ptr()) })
    }

    pub fn begin_save(&self) -> Option<SaveHandle> {
        // SAFETY: the handle is open.
        NonNull::new(unsafe { (batches().save_begin)(self.0.as_ptr()) }).map(SaveHandle)
    }

    pub fn open_queue(&self, depth: usize) -> Option<QueueHandle> {
        // SAFETY: the handle is open.
        NonNull::new(unsafe { (batches().queue_open)(self.0.as_ptr(), depth) }).map(QueueHandle)
    }
}

impl Drop for StoreHandle {
    fn drop(&mut self) {
        let store = StoreHandle(self.0);
        detached(move || {
            let store = std::mem::ManuallyDrop::new(store);
            if let Some(close) = handles().close {
                // SAFETY: this was the last user of the handle.
                unsafe { close(store.0.as_ptr()) }
            }
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
pub struct SaveHandle(NonNull<kv_store_save_t>);

// SAFETY: as for a store.
unsafe impl Send for SaveHandle {}
// SAFETY: as for a store.
unsafe impl Sync for SaveHandle {}

impl SaveHandle {
    pub fn raw(&self) -> *mut kv_store_save_t {
        self.0.as_ptr()
    }

    /// Publish, or only make durable where there is no name. The status, and the hashes that are lost.
    pub fn commit(&self, manifest: Option<(&CStr, &[u8])>) -> (i32, Vec<Vec<u8>>) {
        let name = manifest.map_or(std::ptr::null(), |(name, _)| name.as_ptr());
        let data = manifest.map_or(&[][..], |(_, data)| data);
        let (mut lost, mut count) = (std::ptr::null_mut::<kv_store_hash_t>(), 0);
        // SAFETY: the save is live, the name NULL or a C string, the outputs ours.
        let status =
            unsafe { (batches().save_commit)(self.0.as_ptr(), name, data.as_ptr(), data.len(), &mut lost, &mut count) };
        if lost.is_null() {
            return (status, Vec::new());
        }
        // SAFETY: the library has written so many hashes.
        let hashes = unsafe { std::slice::from_raw_parts(lost, count) };
        let bytes = |hash: &kv_store_hash_t| hash.bytes.iter().copied().take(hash.len.into()).collect();
        let hashes = hashes.iter().map(bytes).collect();
        // SAFETY: from malloc, by the header.
        unsafe { free(lost.cast()) };
        (status, hashes)
    }
}

impl Drop for SaveHandle {
    fn drop(&mut self) {
        let save = SaveHandle(self.0);
        detached(move || {
            let save = std::mem::ManuallyDrop::new(save);
            // SAFETY: this was the last user of the save.
            unsafe { (batches().save_end)(save.0.as_ptr()) }
        });
    }
}

/// An open queue.
pub struct QueueHandle(NonNull<kv_store_queue_t>);

// SAFETY: as for a store.
unsafe impl Send for QueueHandle {}
// SAFETY: as for a store.
unsafe impl Sync for QueueHandle {}

impl QueueHandle {
    pub fn fd(&self) -> i32 {
        // SAFETY: the queue is open.
        unsafe { (batches().queue_fd)(self.0.as_ptr()) }
    }

    /// # Safety
    /// As [`StoreHandle::many`], until the completion with this cookie is drained or the queue is dropped.
    pub unsafe fn submit(
        &self,
        cookie: u64,
        operation: Operation,
        items: &mut [kv_store_item_t],
        call: &kv_store_call_t,
    ) -> i32 {
        let (first, count) = (items.as_mut_ptr(), items.len());
        // SAFETY: the queue is open; the rest by this function's own condition.
        unsafe { (batches().queue_submit)(self.0.as_ptr(), cookie, operation as u32, first, count, call) }
    }

    /// How many completions were taken; negative: a status.
    pub fn drain(&self, completions: &mut [kv_store_completion_t]) -> i64 {
        // SAFETY: the queue is open, and there is room for so many.
        unsafe { (batches().queue_drain)(self.0.as_ptr(), completions.as_mut_ptr(), completions.len()) }
    }

    pub fn cancel(&self, cookie: u64) -> i64 {
        // SAFETY: the queue is open.
        unsafe { (batches().queue_cancel)(self.0.as_ptr(), cookie) }
    }
}

impl Drop for QueueHandle {
    fn drop(&mut self) {
        let queue = QueueHandle(self.0);
        detached(move || {
            let queue = std::mem::ManuallyDrop::new(queue);
            // SAFETY: this was the last user of the queue.
            unsafe { (batches().queue_close)(queue.0.as_ptr()) }
        });
    }
}
