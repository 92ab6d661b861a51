//! `Rows` and `Row`: the token-exact cache of the crate `kv-cache`. `_lib.pyi` documents each method.
//!
//! Invariant: memory of Python's is used only until the call returns; a row's memory is held by the view that shows it.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::path::PathBuf;
use std::time::Duration;

use kv_cache::{
    Bytes, Cache, Config, Descriptor, Error, ErrorKind, FileTier, Fingerprint, Identity, MemoryTier, Payload, Policy,
    Query, Reason, Save, Saved, TierKind, View,
};
use kv_platform::sync::Mutex;
use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyMemoryView, PyTuple};

use crate::abi::{KV_STORE_INVALID, detached};
use crate::blocks;
use crate::log;

const OK: i32 = 0;
const EXISTED: i32 = 1;
const UNAVAILABLE: i32 = -1;
const EXHAUSTED: i32 = -3;
const MISMATCH: i32 = -10;
const OTHER: i32 = -8;

/// Rows that are tried where the longest turns out damaged.
const TRIES: usize = 4;
/// Seconds that closing waits for rows that are being written.
const CLOSING: Duration = Duration::from_secs(30);

/// An open cache.
#[pyclass(frozen, module = "kv_store_wasm.rows", weakref)]
pub struct Rows {
    /// Calls that run keep it open.
    cache: Mutex<Option<Cache>>,
    tiers: Vec<TierKind>,
    #[pyo3(get)]
    step: usize,
}

#[pyfunction]
#[pyo3(signature = (*, ram_bytes = 0, directory = None, disk_bytes = 0, step = 16, descriptor = None))]
pub fn open_rows(
    py: Python<'_>,
    ram_bytes: u64,
    directory: Option<PathBuf>,
    disk_bytes: u64,
    step: usize,
    descriptor: Option<&Bound<'_, PyDict>>,
) -> PyResult<Rows> {
    if directory.is_some() != (disk_bytes > 0) {
        return Err(PyValueError::new_err("a directory and disk_bytes come together"));
    }
    log::start(py);
    let ram = (ram_bytes > 0).then_some(MemoryTier { budget: Bytes(ram_bytes) });
    let disk = directory.map(|path| FileTier { path, budget: Bytes(disk_bytes), exclusive: true });
    let tiers: Vec<TierKind> =
        [ram.as_ref().map(|_| TierKind::Ram), disk.as_ref().map(|_| TierKind::Disk)].into_iter().flatten().collect();
    // What is worth keeping is for the caller to say.
    let policy = Policy { min_tokens: 1, boundary_align_tokens: step, ..Policy::default() };
    let descriptor = descriptor.map(said).transpose()?.unwrap_or_default();
    let config = Config { ram, disk, policy, descriptor, ..Config::default() };
    let cache = py.detach(|| Cache::open(config)).map_err(|error| match error.kind() {
        ErrorKind::InvalidArgument => PyValueError::new_err(error.to_string()),
        _ => crate::Error::new_err(error.to_string()),
    })?;
    Ok(Rows { cache: Mutex::new(Some(cache)), tiers, step })
}

/// Texts and whole numbers by their names. What is None is not said.
fn said(fields: &Bound<'_, PyDict>) -> PyResult<Descriptor> {
    let said = fields.iter().filter(|(_, value)| !value.is_none());
    let said = said.map(|(name, value)| Ok((name.extract()?, value.str()?.extract()?)));
    Ok(Descriptor(said.collect::<PyResult<BTreeMap<String, String>>>()?))
}

/// Whose state it is: the name of a model is 32 bytes, and everything that shapes a state is in it.
fn identity(model: &[u8]) -> PyResult<Identity> {
    let bytes = model.try_into().map_err(|_| PyValueError::new_err("a model is 32 bytes; see key()"))?;
    Ok(Identity { fingerprint: Fingerprint::given(bytes), quant: 0, context_hash: [0; 32] })
}

fn tokens(object: &Bound<'_, PyAny>) -> PyResult<Vec<u32>> {
    Ok(blocks::tokens(object)?.into_iter().map(i32::cast_unsigned).collect())
}

/// Memory that the caller lends for a call, piece by piece.
struct LentPieces {
    pieces: Vec<(*const u8, usize)>,
    _buffers: Vec<PyUntypedBuffer>,
}

// SAFETY: the pointers lead to memory that its caller has lent for as long as this lives.
unsafe impl Send for LentPieces {}

impl LentPieces {
    fn new(state: &Bound<'_, PyAny>) -> PyResult<Self> {
        let mut lent = LentPieces { pieces: Vec::new(), _buffers: Vec::new() };
        if let Ok(pieces) = state.cast::<PyList>() {
            pieces.iter().try_for_each(|piece| lent.piece(&piece))?;
        } else if let Ok(pieces) = state.cast::<PyTuple>() {
            pieces.iter().try_for_each(|piece| lent.piece(&piece))?;
        } else {
            lent.piece(state)?;
        }
        Ok(lent)
    }

    fn piece(&mut self, piece: &Bound<'_, PyAny>) -> PyResult<()> {
        let buffer = PyUntypedBuffer::get(piece)?;
        if !buffer.is_c_contiguous() {
            return Err(PyBufferError::new_err("the memory of a state is not contiguous"));
        }
        if buffer.len_bytes() > 0 {
            self.pieces.push((buffer.buf_ptr().cast(), buffer.len_bytes()));
        }
        self._buffers.push(buffer);
        Ok(())
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.pieces.iter().map(|(_, len)| len).sum());
        for (data, len) in &self.pieces {
            // SAFETY: so many bytes are lent for as long as this lives.
            bytes.extend_from_slice(unsafe { std::slice::from_raw_parts(*data, *len) });
        }
        bytes
    }
}

impl Rows {
    /// The lock is held for a moment only.
    fn usable(&self) -> PyResult<Cache> {
        let cache = self.cache.lock().clone();
        cache.ok_or_else(|| PyValueError::new_err("the cache is closed"))
    }
}

impl Drop for Rows {
    fn drop(&mut self) {
        // Where it is not closed, its end waits for what is being written.
        let cache = self.cache.get_mut().take();
        detached(move || drop(cache));
    }
}

#[pymethods]
impl Rows {
    #[getter]
    fn closed(&self) -> bool {
        self.cache.lock().is_none()
    }

    fn put(&self, py: Python<'_>, model: &[u8], tokens: &Bound<'_, PyAny>, state: &Bound<'_, PyAny>) -> PyResult<i32> {
        let (cache, identity) = (self.usable()?, identity(model)?);
        let (tokens, lent) = (self::tokens(tokens)?, LentPieces::new(state)?);
        Ok(py.detach(|| {
            let lent = lent;
            let mut bytes = lent.bytes();
            let mut outcome = None;
            for (left, tier) in self.tiers.iter().enumerate().rev() {
                // Memory has it when the call returns; a disk gets a copy, and the caller goes on.
                let reason = if *tier == TierKind::Ram { Reason::Evict } else { Reason::Finish };
                let state: Payload<'_> = if left == 0 { std::mem::take(&mut bytes).into() } else { (&bytes).into() };
                let saved = status(cache.save(Save::new(&identity, &tokens, state).reason(reason).tier(*tier)));
                // Stored in one of them is stored, and there in one of them is better than in none.
                outcome = Some(match (outcome, saved) {
                    (Some(OK), _) | (_, OK) => OK,
                    (Some(EXISTED), _) | (_, EXISTED) => EXISTED,
                    (Some(first), _) => first,
                    (None, only) => only,
                });
            }
            outcome.unwrap_or(KV_STORE_INVALID)
        }))
    }

    fn longest(&self, py: Python<'_>, model: &[u8], tokens: &Bound<'_, PyAny>) -> PyResult<Option<Row>> {
        let (cache, identity, tokens) = (self.usable()?, identity(model)?, self::tokens(tokens)?);
        Ok(py.detach(|| {
            for _ in 0..TRIES {
                let hit = cache.lookup(&Query::new(&identity, &tokens)).ok().flatten()?;
                match hit.view() {
                    Ok(view) => return Some(Row { tokens: hit.tokens(), view }),
                    // Damaged, and not found again: the next best may serve.
                    Err(error) if error.kind() == ErrorKind::Miss => {}
                    Err(_) => return None,
                }
            }
            None
        }))
    }

    /// False: not all was written in this time.
    fn flush(&self, py: Python<'_>, timeout: f64) -> PyResult<bool> {
        let cache = self.usable()?;
        let timeout = Duration::try_from_secs_f64(timeout);
        let timeout = timeout.map_err(|_| PyValueError::new_err("a timeout is some seconds"))?;
        Ok(py.detach(|| cache.flush(timeout)))
    }

    fn stats(&self) -> PyResult<String> {
        let stats = self.usable()?.stats();
        serde_json::to_string(&stats).map_err(|error| crate::Error::new_err(error.to_string()))
    }

    fn close(&self, py: Python<'_>) {
        let cache = self.cache.lock().take();
        if let Some(cache) = cache {
            py.detach(|| cache.shutdown(CLOSING));
        }
    }

    fn __enter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    fn __exit__(&self, py: Python<'_>, _kind: &Bound<'_, PyAny>, _error: &Bound<'_, PyAny>, _trace: &Bound<'_, PyAny>) {
        self.close(py);
    }

    fn __repr__(&self) -> String {
        let closed = if self.closed() { " (closed)" } else { "" };
        format!("<kv_store_wasm.rows.Rows in {:?}{closed}>", self.tiers)
    }
}

/// What became of a save, as a status of the batches.
fn status(saved: Result<Saved, Error>) -> i32 {
    match saved {
        Ok(Saved::Stored | Saved::Queued) => OK,
        Ok(Saved::Known) => EXISTED,
        Ok(Saved::Dropped) => EXHAUSTED,
        Ok(Saved::Gated(_)) => KV_STORE_INVALID,
        Err(error) => match error.kind() {
            ErrorKind::InvalidArgument => KV_STORE_INVALID,
            ErrorKind::Full => EXHAUSTED,
            ErrorKind::Mismatch => MISMATCH,
            ErrorKind::Timeout | ErrorKind::Busy => UNAVAILABLE,
            _ => OTHER,
        },
    }
}

/// A row that was found, and holds its memory.
#[pyclass(frozen, module = "kv_store_wasm.rows")]
pub struct Row {
    view: View,
    #[pyo3(get)]
    tokens: usize,
}

#[pymethods]
impl Row {
    #[getter]
    fn state<'py>(this: &Bound<'py, Self>) -> PyResult<Bound<'py, PyMemoryView>> {
        PyMemoryView::from(this.as_any())
    }

    fn __len__(&self) -> usize {
        self.view.len()
    }

    /// # Safety
    /// `view` is NULL or a buffer of Python's to be filled.
    unsafe fn __getbuffer__(this: Bound<'_, Self>, view: *mut pyo3::ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let py = this.py();
        if view.is_null() {
            return Err(PyBufferError::new_err("there is no view to fill"));
        }
        let state: &[u8] = &this.get().view;
        let (data, len) = (state.as_ptr().cast_mut().cast(), state.len().try_into().unwrap_or(0));
        // SAFETY: the view holds this object, which holds the row's memory, which nobody changes; the view is read-only.
        match unsafe { pyo3::ffi::PyBuffer_FillInfo(view, this.as_ptr(), data, len, 1, flags) } {
            0 => Ok(()),
            _ => Err(PyErr::fetch(py)),
        }
    }
}
