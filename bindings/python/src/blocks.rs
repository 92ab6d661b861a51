//! `BlockCache` and `AcquiredBlocks`: the two-level block cache. `_lib.pyi` documents each method.
//!
//! Invariant: memory of Python's is used only until the call returns, and memory of the cache's that Python sees is held by the view
//! that shows it: giving it back, or closing the cache, takes it from nobody.

use std::ffi::c_int;
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::sync::Arc;

use kv_platform::sync::Mutex;
use kv_store_wasm::blocks::{self, Acquired, BlockError, Cache, Config, Dtype, Layout, Spec};
use kv_store_wasm::raw::log::{self, Level};
use kv_store_wasm::{Error, ErrorKind};
use pyo3::buffer::{PyBuffer, PyUntypedBuffer};
use pyo3::exceptions::{PyBufferError, PyIndexError, PyOverflowError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyIterator, PyList, PyMemoryView, PyTuple};

use crate::abi::detached;

/// An open cache.
#[pyclass(frozen, module = "kv_store_wasm.blocks", weakref)]
pub struct BlockCache {
    /// Calls that run keep it open.
    opened: Mutex<Option<Arc<Opened>>>,
    #[pyo3(get)]
    block_tokens: usize,
    #[pyo3(get)]
    block_bytes: usize,
}

struct Opened {
    cache: ManuallyDrop<Cache>,
    /// A child that was forked off has none of its threads.
    process: u32,
}

impl Drop for Opened {
    fn drop(&mut self) {
        // In a child a thread of the parent may hold a lock for ever: nothing is freed.
        if self.process == std::process::id() {
            // SAFETY: it is not used again.
            let cache = unsafe { ManuallyDrop::take(&mut self.cache) };
            detached(move || drop(cache));
        }
    }
}

#[pyfunction]
#[pyo3(signature = (uri = None, config = "", *, model, block_tokens, block_bytes, layout = "LCND", dtype = "f16", layers = None, heads = None, rank = None))]
#[allow(clippy::too_many_arguments)]
pub fn open_blocks(
    py: Python<'_>,
    uri: Option<&str>,
    config: &str,
    model: &str,
    block_tokens: usize,
    block_bytes: usize,
    layout: &str,
    dtype: &str,
    layers: Option<(u32, u32)>,
    heads: Option<(u32, u32)>,
    rank: Option<(u32, u32)>,
) -> PyResult<BlockCache> {
    crate::log::start(py);
    let invalid = |error: String| crate::Error::new_err(error);
    let mut spec = Spec::new(model, block_tokens, block_bytes);
    spec.layout = Layout::try_from(layout.to_owned()).map_err(invalid)?;
    spec.dtype = dtype.parse::<Dtype>().map_err(invalid)?;
    let range = |(first, end): (u32, u32)| Range { start: first, end };
    spec.layers = layers.map_or(spec.layers, range);
    spec.heads = heads.map_or(spec.heads, range);
    spec.tensor_parallel = rank.unwrap_or(spec.tensor_parallel);
    let opened = py.detach(|| {
        let mut config = Config::from_env(config).map_err(Error::from)?;
        for told in config.ignored.iter().chain(&config.former) {
            log::line(Level::Warn, format_args!("kv_store_wasm.blocks: {told}"));
        }
        if let Some(uri) = uri {
            uri.clone_into(&mut config.l2.backend);
        }
        blocks::open(config, spec)
    });
    let cache = opened.map_err(|error| crate::Error::new_err(error.to_string()))?;
    let (block_tokens, block_bytes) = (cache.block_tokens(), cache.block_bytes());
    let opened = Opened { cache: ManuallyDrop::new(cache), process: std::process::id() };
    Ok(BlockCache { opened: Mutex::new(Some(Arc::new(opened))), block_tokens, block_bytes })
}

/// What a mistake of the caller raises, and what else went wrong.
fn failed(error: BlockError) -> PyErr {
    let error = Error::from(error);
    match error.kind() {
        ErrorKind::Invalid | ErrorKind::Cancelled => PyValueError::new_err(error.to_string()),
        _ => crate::Error::new_err(error.to_string()),
    }
}

/// Tokens as Python has them: 32-bit or 64-bit integers in a buffer, or a sequence of ints.
pub fn tokens(object: &Bound<'_, PyAny>) -> PyResult<Vec<i32>> {
    let py = object.py();
    if let Ok(buffer) = PyBuffer::<i32>::get(object) {
        return buffer.to_vec(py);
    }
    if let Ok(buffer) = PyBuffer::<i64>::get(object) {
        let narrow = |token| i32::try_from(token).map_err(|_| too_large(token));
        return buffer.to_vec(py)?.into_iter().map(narrow).collect();
    }
    if PyUntypedBuffer::get(object).is_ok() {
        return Err(PyTypeError::new_err("tokens are 32-bit or 64-bit integers"));
    }
    object.extract()
}

fn too_large(token: i64) -> PyErr {
    PyOverflowError::new_err(format!("token {token} has more than 32 bits"))
}

/// The query, and the prefix before it.
struct Query {
    prefix: Vec<i32>,
    query: Vec<i32>,
}

impl Query {
    fn new(query: &Bound<'_, PyAny>, prefix: Option<&Bound<'_, PyAny>>) -> PyResult<Self> {
        Ok(Query { prefix: prefix.map(tokens).transpose()?.unwrap_or_default(), query: tokens(query)? })
    }
}

/// Memory that the caller lends for a call: one place for each block, of a block's length.
struct LentBlocks {
    places: Vec<*mut u8>,
    block_bytes: usize,
    _buffers: Vec<PyUntypedBuffer>,
}

// SAFETY: the pointers lead to memory that its caller has lent for as long as this lives.
unsafe impl Send for LentBlocks {}

impl LentBlocks {
    /// `written`: blocks are copied there.
    fn new(blocks: &Bound<'_, PyAny>, block_bytes: usize, written: bool) -> PyResult<Self> {
        let (mut places, mut buffers) = (Vec::new(), Vec::new());
        for block in blocks.try_iter()? {
            let block = block?;
            let (data, len): (*mut u8, usize) = if let Ok(place) = block.cast::<PyTuple>() {
                let wrong = |_| PyTypeError::new_err("a block is a buffer or a tuple (address, length)");
                let (address, len): (usize, usize) = place.extract().map_err(wrong)?;
                (address as *mut u8, len)
            } else {
                let buffer = PyUntypedBuffer::get(&block)?;
                if !buffer.is_c_contiguous() {
                    return Err(PyBufferError::new_err("the memory of a block is not contiguous"));
                }
                if written && buffer.readonly() {
                    return Err(PyBufferError::new_err("a block cannot be copied into read-only memory"));
                }
                let place = (buffer.buf_ptr().cast(), buffer.len_bytes());
                buffers.push(buffer);
                place
            };
            if len != block_bytes || data.is_null() {
                let number = places.len();
                let message = format!("block {number} has {len} bytes of memory, and not {block_bytes}");
                return Err(PyValueError::new_err(message));
            }
            places.push(data);
        }
        let lent = LentBlocks { places, block_bytes, _buffers: buffers };
        if written && lent.overlaps() {
            return Err(PyValueError::new_err("two blocks share memory"));
        }
        Ok(lent)
    }

    fn overlaps(&self) -> bool {
        let mut begins: Vec<usize> = self.places.iter().map(|place| place.addr()).collect();
        begins.sort_unstable();
        begins.iter().zip(begins.iter().skip(1)).any(|(one, next)| next - one < self.block_bytes)
    }

    fn readable(&self) -> Vec<&[u8]> {
        // SAFETY: so many bytes are lent for as long as this lives.
        self.places.iter().map(|place| unsafe { std::slice::from_raw_parts(*place, self.block_bytes) }).collect()
    }

    fn writable(&mut self) -> Vec<&mut [u8]> {
        // SAFETY: as in `readable`; it may be written to, and no two blocks overlap.
        let room = |place: &*mut u8| unsafe { std::slice::from_raw_parts_mut(*place, self.block_bytes) };
        self.places.iter().map(room).collect()
    }
}

impl BlockCache {
    /// Run something while other Python threads go on. The lock is held for a moment only.
    fn run<T: Send>(&self, py: Python<'_>, run: impl FnOnce(&Cache) -> Result<T, BlockError> + Send) -> PyResult<T> {
        let opened = self.opened.lock().clone();
        let opened = opened.ok_or_else(|| PyValueError::new_err("the cache is closed"))?;
        if opened.process != std::process::id() {
            return Err(crate::Error::new_err("the cache was opened before a fork: open one in this process"));
        }
        py.detach(|| run(&opened.cache)).map_err(failed)
    }
}

#[pymethods]
impl BlockCache {
    #[getter]
    fn closed(&self) -> bool {
        self.opened.lock().is_none()
    }

    #[pyo3(signature = (tokens, blocks, *, prefix = None))]
    fn put(
        &self,
        py: Python<'_>,
        tokens: &Bound<'_, PyAny>,
        blocks: &Bound<'_, PyAny>,
        prefix: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<usize> {
        let (query, lent) = (Query::new(tokens, prefix)?, LentBlocks::new(blocks, self.block_bytes, false)?);
        self.run(py, |cache| {
            let lent = lent;
            cache.put(&query.prefix, &query.query, &lent.readable())
        })
    }

    #[pyo3(signature = (tokens, into, *, prefix = None))]
    fn get(
        &self,
        py: Python<'_>,
        tokens: &Bound<'_, PyAny>,
        into: &Bound<'_, PyAny>,
        prefix: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<usize> {
        let (query, lent) = (Query::new(tokens, prefix)?, LentBlocks::new(into, self.block_bytes, true)?);
        self.run(py, |cache| {
            let mut lent = lent;
            cache.get(&query.prefix, &query.query, &mut lent.writable())
        })
    }

    #[pyo3(signature = (tokens, *, prefix = None))]
    fn acquire(
        &self,
        py: Python<'_>,
        tokens: &Bound<'_, PyAny>,
        prefix: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<AcquiredBlocks> {
        let query = Query::new(tokens, prefix)?;
        let held = self.run(py, |cache| cache.acquire(&query.prefix, &query.query))?;
        let tokens = held.len() * self.block_tokens;
        Ok(AcquiredBlocks { held: Mutex::new(Some(Arc::new(held))), tokens })
    }

    #[pyo3(signature = (tokens, *, prefix = None))]
    fn exists(&self, py: Python<'_>, tokens: &Bound<'_, PyAny>, prefix: Option<&Bound<'_, PyAny>>) -> PyResult<usize> {
        let query = Query::new(tokens, prefix)?;
        self.run(py, |cache| cache.exists(&query.prefix, &query.query))
    }

    #[pyo3(signature = (tokens, *, prefix = None))]
    fn delete(&self, py: Python<'_>, tokens: &Bound<'_, PyAny>, prefix: Option<&Bound<'_, PyAny>>) -> PyResult<usize> {
        let query = Query::new(tokens, prefix)?;
        self.run(py, |cache| cache.delete(&query.prefix, &query.query))
    }

    #[pyo3(signature = (tokens, *, prefix = None))]
    fn prefetch(
        &self,
        py: Python<'_>,
        tokens: &Bound<'_, PyAny>,
        prefix: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<usize> {
        let query = Query::new(tokens, prefix)?;
        self.run(py, |cache| cache.prefetch(&query.prefix, &query.query))
    }

    /// False: not all was written in its time.
    fn flush(&self, py: Python<'_>) -> PyResult<bool> {
        self.run(py, |cache| Ok(cache.flush().is_ok()))
    }

    fn metrics(&self, py: Python<'_>) -> PyResult<String> {
        self.run(py, |cache| Ok(cache.metrics().to_prometheus("")))
    }

    fn close(&self, py: Python<'_>) {
        let opened = self.opened.lock().take();
        let Some(opened) = opened.filter(|opened| opened.process == std::process::id()) else { return };
        if let Err(error) = py.detach(|| opened.cache.close()) {
            log::line(Level::Warn, format_args!("kv_store_wasm.blocks: close: {error}"));
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
        format!("<kv_store_wasm.blocks.Cache of {} tokens, {} bytes{closed}>", self.block_tokens, self.block_bytes)
    }
}

/// Blocks in the cache's own memory.
#[pyclass(frozen, module = "kv_store_wasm.blocks")]
pub struct AcquiredBlocks {
    held: Mutex<Option<Arc<Acquired>>>,
    #[pyo3(get)]
    tokens: usize,
}

impl AcquiredBlocks {
    fn held(&self) -> Option<Arc<Acquired>> {
        self.held.lock().clone()
    }
}

#[pymethods]
impl AcquiredBlocks {
    fn __len__(&self) -> usize {
        self.held().map_or(0, |held| held.len())
    }

    fn __getitem__<'py>(&self, py: Python<'py>, index: isize) -> PyResult<Bound<'py, PyMemoryView>> {
        let none = || PyIndexError::new_err("there are not so many blocks");
        let held = self.held().ok_or_else(none)?;
        let from_end = if index < 0 { index.checked_add_unsigned(held.len()) } else { Some(index) };
        let index = from_end.and_then(|index| usize::try_from(index).ok()).filter(|index| *index < held.len());
        view(py, &held, index.ok_or_else(none)?)
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyIterator>> {
        let views = self.held().map(|held| (0..held.len()).map(|index| view(py, &held, index)).collect());
        let views: Vec<Bound<'py, PyMemoryView>> = views.transpose()?.unwrap_or_default();
        PyList::new(py, views)?.try_iter()
    }

    fn give_back(&self) {
        drop(self.held.lock().take());
    }

    fn __enter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    fn __exit__(&self, _kind: &Bound<'_, PyAny>, _error: &Bound<'_, PyAny>, _trace: &Bound<'_, PyAny>) {
        self.give_back();
    }
}

fn view<'py>(py: Python<'py>, held: &Arc<Acquired>, index: usize) -> PyResult<Bound<'py, PyMemoryView>> {
    PyMemoryView::from(Bound::new(py, BlockView { held: held.clone(), index })?.as_any())
}

/// One of them, which lends its memory to be read.
#[pyclass(frozen)]
struct BlockView {
    held: Arc<Acquired>,
    index: usize,
}

#[pymethods]
impl BlockView {
    /// # Safety
    /// `view` is NULL or a buffer of Python's to be filled.
    unsafe fn __getbuffer__(this: Bound<'_, Self>, view: *mut pyo3::ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let py = this.py();
        if view.is_null() {
            return Err(PyBufferError::new_err("there is no view to fill"));
        }
        let block = this.get().held.block(this.get().index).unwrap_or_default();
        let (data, len) = (block.as_ptr().cast_mut().cast(), block.len().try_into().unwrap_or(0));
        // SAFETY: the view holds this object, which holds the block, which nobody changes; the view is read-only.
        match unsafe { pyo3::ffi::PyBuffer_FillInfo(view, this.as_ptr(), data, len, 1, flags) } {
            0 => Ok(()),
            _ => Err(PyErr::fetch(py)),
        }
    }
}
