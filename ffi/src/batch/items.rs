//! Items of a batch: C's arrays checked once and made into what the store takes, and the outcomes written back.

use std::time::Duration;

use super::super::arguments::bytes;
use super::save::Begun;
use super::{Operation, status};
use kv_store_abi::batch::*;
use kv_store_abi::status::{KV_STORE_EXISTED, KV_STORE_MISSING, KV_STORE_OK, KV_STORE_TOO_LONG};
use kv_store_wasm::Buffer;
use kv_store_wasm::limits;
use kv_store_wasm::raw::Until;
use kv_store_wasm::raw::log;
use kv_store_wasm::raw::{FetchItem, Opened};
use kv_store_wasm::{BatchOptions, Fetched, NewChunk, Presence, Put, Save};
use kv_store_wasm::{Error, ErrorKind};

/// How a batch is carried out, read from C.
pub(super) struct Call {
    pub options: BatchOptions,
    allocate: bool,
    pub save: Option<Save>,
}

impl Call {
    /// # Safety
    /// `call` is NULL or a struct whose `size` is set, and its save is NULL or live.
    pub(super) unsafe fn read(call: *const kv_store_call_t, operation: Operation) -> Result<Self, Error> {
        // SAFETY: by this function's own condition.
        let Some(call) = (unsafe { call.as_ref() }) else {
            return Ok(Call { options: BatchOptions::default(), allocate: false, save: None });
        };
        if (call.size as usize) < size_of::<kv_store_call_t>() {
            let (size, needed) = (call.size, size_of::<kv_store_call_t>());
            return Err(Error::invalid(format!("kv_store_call_t.size is {size}, not {needed}")));
        }
        let allowed = match operation {
            Operation::Put => KV_STORE_DURABLE | KV_STORE_REPLACE | KV_STORE_SEALED | KV_STORE_SELF_CHECKED,
            Operation::Get => KV_STORE_SEALED | KV_STORE_ALLOCATE | KV_STORE_XXH3_KEYS | KV_STORE_SELF_CHECKED,
            Operation::Exists => KV_STORE_SEALED | KV_STORE_SELF_CHECKED,
            Operation::Delete => 0,
        };
        let unknown = call.flags & !allowed;
        if unknown != 0 {
            return Err(Error::invalid(format!("{} does not take the flags {unknown:#x}", operation.name())));
        }
        if !call.save.is_null() && operation != Operation::Put {
            return Err(Error::invalid(format!("{} takes no save", operation.name())));
        }
        let has = |flag| call.flags & flag != 0;
        if has(KV_STORE_SEALED) && has(KV_STORE_SELF_CHECKED) {
            return Err(Error::invalid(
                "KV_STORE_SEALED and KV_STORE_SELF_CHECKED exclude each other: seal values, or check them",
            ));
        }
        let mut options = BatchOptions::default();
        options.durable = has(KV_STORE_DURABLE);
        options.replace = has(KV_STORE_REPLACE);
        options.sealed = has(KV_STORE_SEALED);
        options.xxh3_keys = has(KV_STORE_XXH3_KEYS);
        if has(KV_STORE_SELF_CHECKED) {
            options = options.with_values_that_check_themselves();
        }
        options.timeout = (call.timeout_ms > 0).then(|| Duration::from_millis(call.timeout_ms));
        // SAFETY: by this function's own condition.
        let save = unsafe { Begun::of(call.save) }.map(|begun| begun.save.clone());
        Ok(Call { options, allocate: has(KV_STORE_ALLOCATE), save })
    }
}

/// The items of a batch, which the caller has lent.
pub(super) struct Items {
    first: *mut kv_store_item_t,
    count: usize,
}

// SAFETY: the caller touches neither the items nor what they point to until the request is complete.
unsafe impl Send for Items {}

impl Items {
    /// # Safety
    /// `first` is NULL or points to `count` items, which nobody else uses while this lives.
    pub(super) unsafe fn new(first: *mut kv_store_item_t, count: usize) -> Result<Self, Error> {
        if first.is_null() && count > 0 {
            return Err(Error::invalid(format!("the items are NULL, their number {count}")));
        }
        if count > limits::MAX_ITEMS {
            return Err(Error::invalid(format!("{count} items in one batch; at most {}", limits::MAX_ITEMS)));
        }
        Ok(Items { first, count })
    }

    /// # Safety
    /// As [`Items::new`].
    unsafe fn all(&self) -> &[kv_store_item_t] {
        match self.count {
            0 => &[],
            // SAFETY: by this function's own condition.
            count => unsafe { std::slice::from_raw_parts(self.first, count) },
        }
    }

    /// # Safety
    /// As [`Items::new`].
    unsafe fn set(&self, index: usize, status: i32, len: u64, data: *mut u8) {
        // SAFETY: `index` is below the count; by this function's own condition nobody else uses the item.
        unsafe {
            let item = self.first.add(index);
            (*item).status = status;
            (*item).len = len;
            (*item).data = data.cast();
        }
    }

    /// Every item has this status.
    ///
    /// # Safety
    /// As [`Items::new`].
    pub(super) unsafe fn set_all(&self, status: i32) {
        // SAFETY: by this function's own condition.
        (0..self.count).for_each(|index| unsafe { self.set(index, status, 0, std::ptr::null_mut()) });
    }

    /// Carry out a batch, and write what became of each item.
    ///
    /// # Safety
    /// As [`Items::new`]; and what the items point to is valid and nobody else's until this returns.
    pub(super) unsafe fn run(
        &self,
        store: &Opened,
        operation: Operation,
        call: &Call,
        until: &Until,
    ) -> Result<(), Error> {
        // SAFETY: by this function's own condition, for the whole of it.
        unsafe {
            let mut failures = Failures::default();
            match operation {
                Operation::Put => {
                    let values = self.all().iter().map(|item| pieces_of(item)).collect::<Result<Vec<_>, _>>()?;
                    let chunks =
                        self.all().iter().zip(&values).map(|(item, pieces)| {
                            Ok(NewChunk::new(bytes(item.hash, item.hash_len, "the hash")?, pieces))
                        });
                    let chunks = chunks.collect::<Result<Vec<_>, Error>>()?;
                    let outcomes = store.put_many(&chunks, &call.options, call.save.as_ref(), until)?;
                    for (index, outcome) in outcomes.into_iter().enumerate() {
                        let status = match outcome {
                            Ok(Put::New) => KV_STORE_OK,
                            Ok(Put::Existed) => KV_STORE_EXISTED,
                            Err(error) => failures.add(error),
                        };
                        self.set(index, status, 0, std::ptr::null_mut());
                    }
                }
                Operation::Get => {
                    let wanted = self.all().iter().map(|item| {
                        let hash = bytes(item.hash, item.hash_len, "the hash")?;
                        match (call.allocate, item.n_pieces) {
                            (false, _) => FetchItem::placed(hash, memory_of(item)?),
                            (true, 0) => Ok(FetchItem::allocated(hash)),
                            (true, count) => Err(Error::invalid(format!(
                                "an item has {count} pieces, and KV_STORE_ALLOCATE takes none"
                            ))),
                        }
                    });
                    let wanted = wanted.collect::<Result<Vec<_>, Error>>()?;
                    for (index, outcome) in store.get_many(&wanted, &call.options, until)?.into_iter().enumerate() {
                        let (status, len, data) = match outcome {
                            Ok(Some(Fetched::Placed(len))) => (KV_STORE_OK, len as u64, None),
                            Ok(Some(Fetched::TooLong(len))) => (KV_STORE_TOO_LONG, len as u64, None),
                            Ok(Some(Fetched::Buffer(buffer))) => (KV_STORE_OK, buffer.len() as u64, Some(buffer)),
                            Ok(None) => (KV_STORE_MISSING, 0, None),
                            Err(error) => (failures.add(error), 0, None),
                        };
                        let data = data.map_or(std::ptr::null_mut(), |data: Buffer| data.into_raw().0.as_ptr());
                        self.set(index, status, len, data);
                    }
                }
                Operation::Exists => {
                    let hashes = self.hashes()?;
                    let outcomes = store.exists_many(&hashes, &call.options, until)?;
                    for (index, outcome) in outcomes.into_iter().enumerate() {
                        let (status, len) = match outcome {
                            Ok(Presence::Present(len)) => (KV_STORE_OK, len.unwrap_or(KV_STORE_LEN_UNKNOWN)),
                            Ok(_) => (KV_STORE_MISSING, 0),
                            Err(error) => (failures.add(error), 0),
                        };
                        self.set(index, status, len, std::ptr::null_mut());
                    }
                }
                Operation::Delete => {
                    let hashes = self.hashes()?;
                    for (index, outcome) in store.delete_many(&hashes, until)?.into_iter().enumerate() {
                        let status = outcome.map_or_else(|error| failures.add(error), |()| 0);
                        self.set(index, status, 0, std::ptr::null_mut());
                    }
                }
            }
            failures.report(operation, store.uri());
        }
        Ok(())
    }

    /// # Safety
    /// As [`Items::run`].
    unsafe fn hashes(&self) -> Result<Vec<&[u8]>, Error> {
        let mut hashes = Vec::with_capacity(self.count);
        // SAFETY: by this function's own condition.
        for item in unsafe { self.all() } {
            // SAFETY: as above.
            hashes.push(unsafe { bytes(item.hash, item.hash_len, "the hash") }?);
        }
        Ok(hashes)
    }
}

/// The items of a batch that failed.
#[derive(Default)]
struct Failures {
    first: Option<Error>,
    count: usize,
}

impl Failures {
    /// Returns the item's status.
    fn add(&mut self, error: Error) -> i32 {
        let status = status(&error);
        self.count += 1;
        self.first.get_or_insert(error);
        status
    }

    /// The log line, and the text for `last_error`.
    fn report(self, operation: Operation, uri: &str) {
        let Some(first) = self.first else { return };
        super::last_error::remember(&first);
        // Who cancelled it knows.
        if first.kind() != ErrorKind::Cancelled {
            let (operation, count) = (operation.name(), self.count);
            let doing = format_args!("{operation} {uri}");
            let text = format_args!("{count} items failed; the first: {}", first.message());
            log::failure(operation, uri, &first, doing, text);
        }
    }
}

/// # Safety
/// The item's pieces are NULL or `n_pieces` of them.
unsafe fn pieces(item: &kv_store_item_t) -> Result<&[kv_store_piece_t], Error> {
    if item.n_pieces > limits::MAX_PIECES {
        let (count, most) = (item.n_pieces, limits::MAX_PIECES);
        return Err(Error::invalid(format!("an item has {count} pieces; at most {most}")));
    }
    match (item.pieces.is_null(), item.n_pieces) {
        (_, 0) => Ok(&[]),
        (true, count) => Err(Error::invalid(format!("the pieces of an item are NULL, their number {count}"))),
        // SAFETY: by this function's own condition.
        (false, count) => Ok(unsafe { std::slice::from_raw_parts(item.pieces, count) }),
    }
}

/// The value of an item.
///
/// # Safety
/// As [`pieces`]; each piece is NULL or points to as many bytes as it says.
unsafe fn pieces_of<'a>(item: &kv_store_item_t) -> Result<Vec<&'a [u8]>, Error> {
    // SAFETY: by this function's own condition.
    unsafe { pieces(item)?.iter().map(|piece| bytes(piece.data.cast(), piece.len, "a piece")).collect() }
}

/// The memory of an item.
///
/// # Safety
/// As [`pieces`].
unsafe fn memory_of(item: &kv_store_item_t) -> Result<impl Iterator<Item = Result<libc::iovec, Error>>, Error> {
    // SAFETY: by this function's own condition.
    let pieces = unsafe { pieces(item) }?;
    let checked = |piece: &kv_store_piece_t| match (piece.data.is_null(), piece.len) {
        (true, len) if len > 0 => Err(Error::invalid(format!("a piece is NULL, its length {len}"))),
        (_, len) if len > isize::MAX as usize => Err(Error::invalid(format!("a piece has {len} bytes"))),
        (_, len) => Ok(libc::iovec { iov_base: piece.data, iov_len: len }),
    };
    Ok(pieces.iter().map(checked))
}
