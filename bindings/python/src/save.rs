//! `Save`.

use std::ffi::CString;
use std::sync::Arc;

use kv_platform::sync::Mutex;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::abi::{self, KV_STORE_INVALID};

/// The chunks that are put with it become durable, and a manifest is published over them.
#[pyclass(frozen, module = "kv_store_wasm")]
pub struct Save {
    pub save: Arc<abi::SaveHandle>,
    state: Mutex<SaveState>,
}

struct SaveState {
    name: Option<String>,
    manifest: Vec<u8>,
    status: Option<i32>,
    lost: Vec<Vec<u8>>,
}

impl Save {
    pub fn new(save: Arc<abi::SaveHandle>, name: Option<String>, manifest: Vec<u8>) -> Self {
        Save { save, state: Mutex::new(SaveState { name, manifest, status: None, lost: Vec::new() }) }
    }
}

#[pymethods]
impl Save {
    #[pyo3(signature = (name = None, manifest = None))]
    fn commit(&self, py: Python<'_>, name: Option<&str>, manifest: Option<Vec<u8>>) -> i32 {
        let data = manifest.unwrap_or_default();
        let (status, lost) = match name.map(CString::new).transpose() {
            Ok(name) => py.detach(|| self.save.commit(name.as_deref().map(|name| (name, &data[..])))),
            Err(_) => (KV_STORE_INVALID, Vec::new()),
        };
        let mut state = self.state.lock();
        (state.status, state.lost) = (Some(status), lost);
        status
    }

    /// Status of the last commit. None: there was none.
    #[getter]
    fn status(&self) -> Option<i32> {
        self.state.lock().status
    }

    /// Keys that the last commit found lost.
    #[getter]
    fn lost<'py>(&self, py: Python<'py>) -> Vec<Bound<'py, PyBytes>> {
        let lost = self.state.lock().lost.clone();
        lost.iter().map(|hash| PyBytes::new(py, hash)).collect()
    }

    #[getter]
    fn manifest<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.state.lock().manifest)
    }

    #[setter]
    fn set_manifest(&self, manifest: Vec<u8>) {
        self.state.lock().manifest = manifest;
    }

    fn __enter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    /// Commits, unless the block raised.
    fn __exit__(&self, py: Python<'_>, kind: &Bound<'_, PyAny>, _error: &Bound<'_, PyAny>, _trace: &Bound<'_, PyAny>) {
        if kind.is_none() {
            let (name, manifest) = {
                let state = self.state.lock();
                (state.name.clone(), state.manifest.clone())
            };
            self.commit(py, name.as_deref(), Some(manifest));
        }
    }
}
