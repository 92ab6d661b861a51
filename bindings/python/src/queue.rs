//! `Queue`: requests over the caller's memory, which the queue keeps until they are drained.

use std::collections::HashMap;
use std::sync::Arc;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use kv_platform::sync::Mutex;
use kv_store_abi::batch::kv_store_completion_t;

use crate::abi::{self, Operation};
use crate::batch::{Batch, Options};
use crate::save::Save;

/// Requests of one store that are carried out while the caller goes on. `_lib.pyi` documents each method.
#[pyclass(frozen, module = "kv_store_wasm", weakref)]
pub struct Queue {
    sealed: bool,
    timeout: Option<f64>,
    /// The lock is never held while the GIL is given away: so a child that is forked off finds it free.
    state: Mutex<State>,
}

struct State {
    /// Dropped before the requests, and only then is their memory not in use.
    queue: Option<Arc<abi::QueueHandle>>,
    requests: HashMap<u64, Request>,
    next: u64,
}

struct Request {
    batch: Batch,
    /// Kept until the put is done.
    _save: Option<Arc<abi::SaveHandle>>,
}

impl Queue {
    pub fn new(queue: abi::QueueHandle, (sealed, timeout): (bool, Option<f64>)) -> Self {
        let state = State { queue: Some(Arc::new(queue)), requests: HashMap::new(), next: 0 };
        Queue { sealed, timeout, state: Mutex::new(state) }
    }

    fn options(&self, sealed: Option<bool>, timeout: Option<f64>) -> PyResult<Options> {
        Options::new(sealed.unwrap_or(self.sealed), timeout.or(self.timeout))
    }

    fn submit(&self, mut batch: Batch, options: Options, save: Option<&Save>) -> PyResult<i64> {
        let save = save.map(|save| Arc::clone(&save.save));
        let call = options.call(batch.operation(), save.as_deref());
        let mut state = self.state.lock();
        let queue = state.usable()?;
        state.next += 1;
        let (ticket, operation) = (state.next, batch.operation());
        // SAFETY: `requests` keeps the batch, whose items stay where they are when it moves, until it is drained or the queue is
        // closed; what is named by address the caller keeps as long.
        let status = unsafe { queue.submit(ticket, operation, batch.items(), &call) };
        if status < 0 {
            return Ok(status.into());
        }
        state.requests.insert(ticket, Request { batch, _save: save });
        Ok(ticket as i64)
    }
}

impl State {
    fn usable(&self) -> PyResult<Arc<abi::QueueHandle>> {
        self.queue.clone().ok_or_else(|| PyValueError::new_err("the queue is closed"))
    }
}

#[pymethods]
impl Queue {
    #[pyo3(signature = (keys, values, *, durable = false, replace = false, sealed = None, save = None, timeout = None))]
    #[allow(clippy::too_many_arguments)]
    fn submit_put(
        &self,
        keys: &Bound<'_, PyAny>,
        values: &Bound<'_, PyAny>,
        durable: bool,
        replace: bool,
        sealed: Option<bool>,
        save: Option<&Save>,
        timeout: Option<f64>,
    ) -> PyResult<i64> {
        let options = self.options(sealed, timeout)?.of_put(durable, replace);
        self.submit(Batch::new(Operation::Put, keys, values)?, options, save)
    }

    #[pyo3(signature = (keys, values, *, sealed = None, timeout = None))]
    fn submit_get(
        &self,
        keys: &Bound<'_, PyAny>,
        values: &Bound<'_, PyAny>,
        sealed: Option<bool>,
        timeout: Option<f64>,
    ) -> PyResult<i64> {
        self.submit(Batch::new(Operation::Get, keys, values)?, self.options(sealed, timeout)?, None)
    }

    #[pyo3(signature = (keys, *, sealed = None, timeout = None))]
    fn submit_exists(&self, keys: &Bound<'_, PyAny>, sealed: Option<bool>, timeout: Option<f64>) -> PyResult<i64> {
        self.submit(Batch::of_keys(Operation::Exists, keys)?, self.options(sealed, timeout)?, None)
    }

    #[pyo3(signature = (keys, *, timeout = None))]
    fn submit_delete(&self, keys: &Bound<'_, PyAny>, timeout: Option<f64>) -> PyResult<i64> {
        self.submit(Batch::of_keys(Operation::Delete, keys)?, self.options(None, timeout)?, None)
    }

    fn fileno(&self) -> PyResult<i32> {
        match self.state.lock().usable()?.fd() {
            status if status < 0 => Err(crate::Error::new_err(abi::last_error())),
            fd => Ok(fd),
        }
    }

    #[pyo3(signature = (most = 64))]
    fn drain(&self, most: usize) -> PyResult<Vec<(u64, Vec<i64>)>> {
        let mut state = self.state.lock();
        let queue = state.usable()?;
        let nothing = kv_store_completion_t { cookie: 0, status: 0, reserved: 0 };
        let mut completions = vec![nothing; most.min(state.requests.len())];
        // An empty call too clears the descriptor.
        let count = usize::try_from(queue.drain(&mut completions)).unwrap_or(0);
        let done = |completion: &kv_store_completion_t| {
            let request = state.requests.remove(&completion.cookie)?;
            Some((completion.cookie, request.batch.outcomes(completion.status)))
        };
        Ok(completions.iter().take(count).filter_map(done).collect())
    }

    fn cancel(&self, ticket: u64) -> PyResult<i64> {
        Ok(self.state.lock().usable()?.cancel(ticket))
    }

    fn __len__(&self) -> usize {
        self.state.lock().requests.len()
    }

    fn close(&self) {
        let (queue, requests) = {
            let mut state = self.state.lock();
            (state.queue.take(), std::mem::take(&mut state.requests))
        };
        // Waits until no request's memory is in use; a thread that is in a call of its own drops it instead.
        drop(queue);
        drop(requests);
    }

    fn __enter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    fn __exit__(&self, _kind: &Bound<'_, PyAny>, _error: &Bound<'_, PyAny>, _trace: &Bound<'_, PyAny>) {
        self.close();
    }

    fn __repr__(&self) -> String {
        let state = self.state.lock();
        match state.queue {
            Some(_) => format!("<kv_store_wasm.Queue with {} requests>", state.requests.len()),
            None => "<kv_store_wasm.Queue (closed)>".into(),
        }
    }
}
