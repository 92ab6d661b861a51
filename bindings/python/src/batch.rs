//! The items of a batch in C's layout, made from Python's objects, and Python's outcomes made from their statuses.
//!
//! Invariant: a batch holds what its items point to. Keys are copied (32 bytes each), values never: a value's memory is kept by
//! the buffer that its object has lent, or named by address and length, where the caller answers for it.

use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::{PyBufferError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyString, PyTuple};

use kv_store_abi::batch::{
    KV_STORE_DURABLE, KV_STORE_REPLACE, KV_STORE_SEALED, kv_store_call_t, kv_store_item_t, kv_store_piece_t,
};

use crate::abi::{Operation, SaveHandle, StoreHandle};

/// What `exists_many` answers where a chunk is there and its length is not known.
pub const LEN_UNKNOWN: i64 = i64::MAX;

/// How a call is carried out.
#[derive(Clone, Copy, Default)]
pub struct Options {
    flags: u32,
    timeout_ms: u64,
}

impl Options {
    pub fn new(sealed: bool, timeout: Option<f64>) -> PyResult<Self> {
        let timeout_ms = match timeout {
            None => 0,
            Some(seconds) if seconds > 0.0 => ((seconds * 1000.0).ceil() as u64).max(1),
            Some(seconds) => {
                return Err(PyValueError::new_err(format!("a timeout is more than 0 seconds, not {seconds}")));
            }
        };
        Ok(Options { flags: if sealed { KV_STORE_SEALED } else { 0 }, timeout_ms })
    }

    pub fn of_put(self, durable: bool, replace: bool) -> Self {
        let more = if durable { KV_STORE_DURABLE } else { 0 } | if replace { KV_STORE_REPLACE } else { 0 };
        Options { flags: self.flags | more, ..self }
    }

    /// For an operation, which takes only flags that mean something to it.
    pub fn call(self, operation: Operation, save: Option<&SaveHandle>) -> kv_store_call_t {
        let flags = if operation == Operation::Delete { 0 } else { self.flags };
        let save = save.map_or(std::ptr::null_mut(), SaveHandle::raw);
        kv_store_call_t { size: size_of::<kv_store_call_t>() as u32, flags, timeout_ms: self.timeout_ms, save }
    }
}

pub struct Batch {
    operation: Operation,
    items: Vec<kv_store_item_t>,
    /// What the items point to.
    _pieces: Vec<kv_store_piece_t>,
    _keys: Vec<u8>,
    _lent: Vec<PyUntypedBuffer>,
}

// SAFETY: the pointers lead to what the batch owns, and to memory that its caller has lent for as long as it lives.
unsafe impl Send for Batch {}

impl Batch {
    /// A batch of keys alone.
    pub fn of_keys(operation: Operation, keys: &Bound<'_, PyAny>) -> PyResult<Self> {
        Builder::default().keys(keys)?.finish(operation)
    }

    /// A batch of keys and their values, or the memory for them.
    pub fn new(operation: Operation, keys: &Bound<'_, PyAny>, values: &Bound<'_, PyAny>) -> PyResult<Self> {
        Builder { written: operation == Operation::Get, ..Builder::default() }
            .keys(keys)?
            .values(values)?
            .finish(operation)
    }

    pub fn operation(&self) -> Operation {
        self.operation
    }

    pub fn items(&mut self) -> &mut [kv_store_item_t] {
        &mut self.items
    }

    /// Carry it out, while other Python threads go on.
    pub fn run(mut self, py: Python<'_>, store: &StoreHandle, options: Options, save: Option<&SaveHandle>) -> Vec<i64> {
        let status = py.detach(|| self.carry_out(store, options, save));
        self.outcomes(status)
    }

    fn carry_out(&mut self, store: &StoreHandle, options: Options, save: Option<&SaveHandle>) -> i32 {
        let call = options.call(self.operation, save);
        // SAFETY: the batch holds what its items point to, or its caller keeps it until the call returns.
        unsafe { store.many(self.operation, &mut self.items, &call) }
    }

    /// What became of each item. `status`: that of the whole batch.
    pub fn outcomes(&self, status: i32) -> Vec<i64> {
        let of = |item: &kv_store_item_t| match (status, self.operation) {
            (status, _) if status < 0 => status.into(),
            (_, Operation::Get | Operation::Exists) if item.status == 0 => {
                i64::try_from(item.len).unwrap_or(LEN_UNKNOWN)
            }
            _ => item.status.into(),
        };
        self.items.iter().map(of).collect()
    }
}

#[derive(Default)]
struct Builder {
    /// Values are memory to be written to.
    written: bool,
    keys: Vec<u8>,
    key_lens: Vec<usize>,
    pieces: Vec<kv_store_piece_t>,
    piece_counts: Vec<usize>,
    lent: Vec<PyUntypedBuffer>,
}

impl Builder {
    fn keys(mut self, keys: &Bound<'_, PyAny>) -> PyResult<Self> {
        if keys.is_instance_of::<PyBytes>() || keys.is_instance_of::<PyString>() {
            return Err(PyTypeError::new_err("keys is a list of bytes, not one of them"));
        }
        for key in keys.try_iter()? {
            let key = key?;
            let key = key.cast::<PyBytes>().map_err(|_| PyTypeError::new_err("a key is bytes; see key()"))?;
            self.keys.extend_from_slice(key.as_bytes());
            self.key_lens.push(key.as_bytes().len());
        }
        Ok(self)
    }

    fn values(mut self, values: &Bound<'_, PyAny>) -> PyResult<Self> {
        for value in values.try_iter()? {
            let (value, before) = (value?, self.pieces.len());
            if let Ok(pieces) = value.cast::<PyList>() {
                pieces.iter().try_for_each(|piece| self.piece(&piece))?;
            } else if let Ok(pieces) = value.cast::<PyTuple>()
                && pieces.extract::<(usize, usize)>().is_err()
            {
                pieces.iter().try_for_each(|piece| self.piece(&piece))?;
            } else {
                self.piece(&value)?;
            }
            self.piece_counts.push(self.pieces.len() - before);
        }
        let (keys, values) = (self.key_lens.len(), self.piece_counts.len());
        if keys != values {
            return Err(PyValueError::new_err(format!("{keys} keys, but {values} values")));
        }
        Ok(self)
    }

    fn piece(&mut self, piece: &Bound<'_, PyAny>) -> PyResult<()> {
        if let Ok(place) = piece.cast::<PyTuple>() {
            let (address, len): (usize, usize) = place
                .extract()
                .map_err(|_| PyTypeError::new_err("a piece is a buffer or a tuple (address, length)"))?;
            self.pieces.push(kv_store_piece_t { data: address as *mut std::ffi::c_void, len });
            return Ok(());
        }
        let buffer = PyUntypedBuffer::get(piece)?;
        if !buffer.is_c_contiguous() {
            return Err(PyBufferError::new_err("the memory of a value is not contiguous"));
        }
        if self.written && buffer.readonly() {
            return Err(PyBufferError::new_err("a value cannot be fetched into read-only memory"));
        }
        self.pieces.push(kv_store_piece_t { data: buffer.buf_ptr(), len: buffer.len_bytes() });
        self.lent.push(buffer);
        Ok(())
    }

    fn finish(mut self, operation: Operation) -> PyResult<Batch> {
        self.piece_counts.resize(self.key_lens.len(), 0);
        let (mut key, mut piece) = (self.keys.as_ptr(), self.pieces.as_ptr());
        let mut item = |(key_len, count): (&usize, &usize)| {
            let item = kv_store_item_t {
                hash: key,
                hash_len: *key_len,
                pieces: piece,
                n_pieces: *count,
                len: 0,
                data: std::ptr::null_mut(),
                status: 0,
                reserved: 0,
            };
            // The sums of the lengths and counts are the lengths of the two vectors.
            (key, piece) = (key.wrapping_add(*key_len), piece.wrapping_add(*count));
            item
        };
        let items = self.key_lens.iter().zip(&self.piece_counts).map(&mut item).collect();
        Ok(Batch { operation, items, _pieces: self.pieces, _keys: self.keys, _lent: self.lent })
    }
}
