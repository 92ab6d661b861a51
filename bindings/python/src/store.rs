//! `Store`.

use std::ffi::CString;
use std::sync::Arc;

use kv_platform::sync::Mutex;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use crate::abi::{self, Operation};
use crate::batch::{Batch, Options};
use crate::log;
use crate::queue::Queue;
use crate::save::Save;

/// What a store is.
#[pyclass(frozen, get_all, module = "kv_store_wasm")]
pub struct StoreInfo {
    durable: bool,
    shared: bool,
    deletes: bool,
    write_through: bool,
    max_value_bytes: u64,
    batch_items: u64,
    batch_bytes: u64,
}

#[pymethods]
impl StoreInfo {
    fn __repr__(&self) -> String {
        let word = |value| if value { "True" } else { "False" };
        format!(
            "StoreInfo(durable={}, shared={}, deletes={}, write_through={}, max_value_bytes={}, batch_items={}, \
             batch_bytes={})",
            word(self.durable),
            word(self.shared),
            word(self.deletes),
            word(self.write_through),
            self.max_value_bytes,
            self.batch_items,
            self.batch_bytes
        )
    }
}

/// An opened store. `_lib.pyi` documents each method.
#[pyclass(frozen, module = "kv_store_wasm", weakref)]
pub struct Store {
    uri: String,
    sealed: bool,
    timeout: Option<f64>,
    /// Calls that run keep it open.
    handle: Mutex<Option<Arc<abi::StoreHandle>>>,
}

#[pyfunction]
#[pyo3(signature = (uri, *, sealed = false, timeout = None, descriptor = None))]
pub fn open(
    py: Python<'_>,
    uri: &str,
    sealed: bool,
    timeout: Option<f64>,
    descriptor: Option<&Bound<'_, PyDict>>,
) -> PyResult<Store> {
    Options::new(sealed, timeout)?;
    log::start(py);
    let descriptor = descriptor.map(described).transpose()?;
    let c_uri = CString::new(uri).map_err(|_| crate::Error::new_err("the URI has a NUL byte"))?;
    let open = || {
        let store = abi::StoreHandle::open(&c_uri).ok_or_else(abi::last_error)?;
        match descriptor.is_none_or(|descriptor| store.describe(&descriptor) >= 0) {
            true => Ok(store),
            // Before the store is closed, which may fail too.
            false => Err(abi::last_error()),
        }
    };
    let opened = py.detach(open);
    let handle = opened.map_err(crate::Error::new_err)?;
    let uri = uri.strip_prefix("wasm://").unwrap_or(uri).to_owned();
    Ok(Store { uri, sealed, timeout, handle: Mutex::new(Some(Arc::new(handle))) })
}

/// A descriptor, of texts and whole numbers by their names. What is None is not said.
fn described(said: &Bound<'_, PyDict>) -> PyResult<abi::Descriptor> {
    let mut descriptor = abi::Descriptor::new();
    for (name, text) in said.iter().filter(|(_, text)| !text.is_none()) {
        let (name, text) = (name.extract::<String>()?, text.str()?.to_string());
        let text =
            CString::new(text).map_err(|_| PyValueError::new_err(format!("descriptor: {name} has a NUL byte")))?;
        let unknown = |names| PyValueError::new_err(format!("descriptor: there is no {name}; there are {names}"));
        descriptor.say(&name, text).map_err(unknown)?;
    }
    Ok(descriptor)
}

impl Store {
    /// The open handle; the lock is held for a moment only, and never while the GIL is given away.
    fn usable(&self) -> PyResult<Arc<abi::StoreHandle>> {
        let handle = self.handle.lock();
        handle.clone().ok_or_else(|| PyValueError::new_err("the store is closed"))
    }

    fn options(&self, sealed: Option<bool>, timeout: Option<f64>) -> PyResult<Options> {
        Options::new(sealed.unwrap_or(self.sealed), timeout.or(self.timeout))
    }
}

#[pymethods]
impl Store {
    #[getter]
    fn uri(&self) -> &str {
        &self.uri
    }

    #[getter]
    fn descriptor(&self) -> PyResult<Option<String>> {
        let digest = self.usable()?.descriptor();
        let hex = || hex::encode(digest);
        Ok(digest.iter().any(|byte| *byte != 0).then(hex))
    }

    #[getter]
    fn closed(&self) -> bool {
        self.handle.lock().is_none()
    }

    #[pyo3(signature = (keys, values, *, durable = false, replace = false, sealed = None, save = None, timeout = None))]
    #[allow(clippy::too_many_arguments)]
    fn put_many(
        &self,
        py: Python<'_>,
        keys: &Bound<'_, PyAny>,
        values: &Bound<'_, PyAny>,
        durable: bool,
        replace: bool,
        sealed: Option<bool>,
        save: Option<&Save>,
        timeout: Option<f64>,
    ) -> PyResult<Vec<i64>> {
        let (handle, options) = (self.usable()?, self.options(sealed, timeout)?.of_put(durable, replace));
        let save = save.map(|save| &*save.save);
        Ok(Batch::new(Operation::Put, keys, values)?.run(py, &handle, options, save))
    }

    #[pyo3(signature = (keys, values, *, sealed = None, timeout = None))]
    fn get_many_into(
        &self,
        py: Python<'_>,
        keys: &Bound<'_, PyAny>,
        values: &Bound<'_, PyAny>,
        sealed: Option<bool>,
        timeout: Option<f64>,
    ) -> PyResult<Vec<i64>> {
        let (handle, options) = (self.usable()?, self.options(sealed, timeout)?);
        Ok(Batch::new(Operation::Get, keys, values)?.run(py, &handle, options, None))
    }

    #[pyo3(signature = (keys, *, sealed = None, timeout = None))]
    fn exists_many(
        &self,
        py: Python<'_>,
        keys: &Bound<'_, PyAny>,
        sealed: Option<bool>,
        timeout: Option<f64>,
    ) -> PyResult<Vec<i64>> {
        let (handle, options) = (self.usable()?, self.options(sealed, timeout)?);
        Ok(Batch::of_keys(Operation::Exists, keys)?.run(py, &handle, options, None))
    }

    #[pyo3(signature = (keys, *, timeout = None))]
    fn delete_many(&self, py: Python<'_>, keys: &Bound<'_, PyAny>, timeout: Option<f64>) -> PyResult<Vec<i64>> {
        let (handle, options) = (self.usable()?, self.options(None, timeout)?);
        Ok(Batch::of_keys(Operation::Delete, keys)?.run(py, &handle, options, None))
    }

    #[pyo3(signature = (name = None, manifest = None))]
    fn save(&self, py: Python<'_>, name: Option<&str>, manifest: Option<Vec<u8>>) -> PyResult<Save> {
        if name.is_none() && manifest.is_some() {
            return Err(PyValueError::new_err("a manifest needs a name"));
        }
        let handle = self.usable()?;
        let begun = py.detach(|| handle.begin_save().ok_or_else(abi::last_error));
        let save = Arc::new(begun.map_err(crate::Error::new_err)?);
        Ok(Save::new(save, name.map(str::to_owned), manifest.unwrap_or_default()))
    }

    fn get_manifest<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let (handle, name) = (self.usable()?, manifest_name(name)?);
        let found = py.detach(|| handle.manifest(&name));
        Ok(found.ok().map(|data| PyBytes::new(py, &data)))
    }

    fn delete_manifest(&self, py: Python<'_>, name: &str) -> PyResult<i32> {
        let (handle, name) = (self.usable()?, manifest_name(name)?);
        Ok(py.detach(|| handle.delete_manifest(&name)))
    }

    #[pyo3(signature = (depth = 64))]
    fn queue(&self, py: Python<'_>, depth: usize) -> PyResult<Queue> {
        let (handle, options) = (self.usable()?, (self.sealed, self.timeout));
        let opened = py.detach(|| handle.open_queue(depth).ok_or_else(abi::last_error));
        opened.map(|queue| Queue::new(queue, options)).map_err(crate::Error::new_err)
    }

    #[getter]
    fn info(&self) -> PyResult<StoreInfo> {
        let info = self.usable()?.info().ok_or_else(|| crate::Error::new_err(abi::last_error()))?;
        Ok(StoreInfo {
            durable: info.durable != 0,
            shared: info.shared != 0,
            deletes: info.deletes != 0,
            write_through: info.write_through != 0,
            max_value_bytes: info.max_value_bytes,
            batch_items: info.batch_items,
            batch_bytes: info.batch_bytes,
        })
    }

    fn metrics(&self) -> PyResult<String> {
        crate::metrics()
    }

    /// Accepted, and nothing is done: no transport of the library needs memory to be registered.
    fn register_memory(&self, _address: usize, _length: usize) {}

    fn unregister_memory(&self, _address: usize) {}

    fn close(&self) {
        drop(self.handle.lock().take());
    }

    fn __enter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    fn __exit__(&self, _kind: &Bound<'_, PyAny>, _error: &Bound<'_, PyAny>, _trace: &Bound<'_, PyAny>) {
        self.close();
    }

    fn __repr__(&self) -> String {
        let closed = if self.closed() { " (closed)" } else { "" };
        format!("<kv_store_wasm.Store {}{closed}>", self.uri)
    }
}

fn manifest_name(name: &str) -> PyResult<CString> {
    CString::new(name).map_err(|_| PyValueError::new_err("a manifest's name has no NUL byte"))
}
