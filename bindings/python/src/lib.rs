//! The extension module `kv_store_wasm._lib`. `kv_store_wasm/_lib.pyi` is its documentation.
//!
//! `abi` is the C interface with owners, `batch` turns Python's objects into its items, `store`, `save` and `queue` are the classes. `blocks`
//! is the block cache, `rows` the token-exact one, `log` the way of the library's lines to `logging`.

mod abi;
mod batch;
mod blocks;
mod log;
mod queue;
mod rows;
mod save;
mod store;

use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::{PyBufferError, PyRuntimeError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyString, PyTuple};
use sha2::{Digest, Sha256};

pyo3::create_exception!(
    kv_store_wasm,
    Error,
    PyRuntimeError,
    "A store cannot be opened; the message says why, in one line."
);

#[pymodule]
fn _lib(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("LEN_UNKNOWN", batch::LEN_UNKNOWN)?;
    module.add("Error", module.py().get_type::<Error>())?;
    module.add_class::<store::Store>()?;
    module.add_class::<store::StoreInfo>()?;
    module.add_class::<save::Save>()?;
    module.add_class::<queue::Queue>()?;
    module.add_class::<blocks::BlockCache>()?;
    module.add_class::<blocks::AcquiredBlocks>()?;
    module.add_class::<rows::Rows>()?;
    module.add_class::<rows::Row>()?;
    module.add_function(wrap_pyfunction!(store::open, module)?)?;
    module.add_function(wrap_pyfunction!(blocks::open_blocks, module)?)?;
    module.add_function(wrap_pyfunction!(rows::open_rows, module)?)?;
    module.add_function(wrap_pyfunction!(key, module)?)?;
    module.add_function(wrap_pyfunction!(keys, module)?)?;
    module.add_function(wrap_pyfunction!(last_error, module)?)?;
    module.add_function(wrap_pyfunction!(metrics, module)?)?;
    module.add_function(wrap_pyfunction!(doctor, module)?)?;
    module.add_function(wrap_pyfunction!(log::log_begin, module)?)?;
    module.add_function(wrap_pyfunction!(log::log_next, module)?)?;
    module.add_function(wrap_pyfunction!(log::log_end, module)?)?;
    module.add_function(wrap_pyfunction!(log::log_rest, module)?)
}

/// Hashes parts so that no two lists of them make the same bytes.
struct Parts(Sha256);

impl Parts {
    fn new(parts: &Bound<'_, PyTuple>) -> PyResult<Self> {
        let mut hash = Parts(Sha256::new());
        parts.iter().try_for_each(|part| hash.object(&part))?;
        Ok(hash)
    }

    fn object(&mut self, part: &Bound<'_, PyAny>) -> PyResult<()> {
        if let Ok(text) = part.cast::<PyString>() {
            // A lone surrogate has no UTF-8, and raises.
            self.bytes(text.encode_utf8()?.as_bytes());
            return Ok(());
        }
        if let Ok(bytes) = part.cast::<PyBytes>() {
            self.bytes(bytes.as_bytes());
            return Ok(());
        }
        let buffer = PyUntypedBuffer::get(part)
            .map_err(|_| PyTypeError::new_err("a part of a key is str, bytes or another buffer"))?;
        if !buffer.is_c_contiguous() {
            return Err(PyBufferError::new_err("a part of a key is not contiguous"));
        }
        let bytes = match buffer.len_bytes() {
            0 => &[][..],
            // SAFETY: the exporter has lent so many bytes, and the GIL is held: no Python code changes them.
            len => unsafe { std::slice::from_raw_parts(buffer.buf_ptr().cast::<u8>(), len) },
        };
        self.bytes(bytes);
        Ok(())
    }

    fn bytes(&mut self, part: &[u8]) {
        self.0.update((part.len() as u64).to_le_bytes());
        self.0.update(part);
    }
}

#[pyfunction]
#[pyo3(signature = (*parts))]
fn key<'py>(py: Python<'py>, parts: &Bound<'py, PyTuple>) -> PyResult<Bound<'py, PyBytes>> {
    Ok(PyBytes::new(py, &Parts::new(parts)?.0.finalize()))
}

#[pyfunction]
#[pyo3(signature = (names, *parts))]
fn keys<'py>(py: Python<'py>, names: &Bound<'py, PyAny>, parts: &Bound<'py, PyTuple>) -> PyResult<Bound<'py, PyList>> {
    let common = Parts::new(parts)?;
    let list = PyList::empty(py);
    for name in names.try_iter()? {
        let mut hash = Parts(common.0.clone());
        hash.object(&name?)?;
        list.append(PyBytes::new(py, &hash.0.finalize()))?;
    }
    Ok(list)
}

#[pyfunction]
fn last_error() -> String {
    abi::last_error()
}

#[pyfunction]
fn metrics() -> PyResult<String> {
    kv_store_wasm::metrics().map(|metrics| metrics.to_string()).map_err(|error| Error::new_err(error.to_string()))
}

/// What an open would do, as JSON.
#[pyfunction]
#[pyo3(signature = (uri, depth = "connect"))]
fn doctor(py: Python<'_>, uri: &str, depth: &str) -> PyResult<String> {
    let depth = match depth {
        "offline" => kv_store_wasm::Depth::Offline,
        "connect" => kv_store_wasm::Depth::Connect,
        "probe" => kv_store_wasm::Depth::Probe,
        other => return Err(PyValueError::new_err(format!("a depth is offline, connect or probe, not {other}"))),
    };
    let found = py.detach(|| kv_store_wasm::doctor(uri, depth));
    serde_json::to_string(&found).map_err(|error| Error::new_err(error.to_string()))
}
