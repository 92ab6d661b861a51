//! The contract's `system` interface: log, secrets, clocks, random numbers, facts; and `types` and `store-types`, which have no functions.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::{State, answered};
use crate::contract::bindings::kv_store::backend::{store_types, system, types};
use crate::engine::before;
use crate::error::{Error, ErrorKind};
use crate::limits;
use crate::log::{self, Level};
use crate::policy::check_secret_name;

impl types::Host for State {}

impl store_types::Host for State {}

/// The version of the contract that this host serves, as its text and the components built for it say it.
const CONTRACT_VERSION: &str = "1.1.0-rc";

impl system::Host for State {
    fn log(&mut self, level: system::Level, message: String) -> wasmtime::Result<()> {
        let level = match level {
            system::Level::Debug => Level::Debug,
            system::Level::Info => Level::Info,
            system::Level::Warn => Level::Warn,
            system::Level::Error => Level::Error,
        };
        log::component_line(level, &self.access.reach.name, &message, &self.access.log);
        Ok(())
    }

    fn secret(&mut self, name: String) -> wasmtime::Result<Result<Option<String>, types::Error>> {
        let grants = &self.access.reach.grants;
        let secret = match check_secret_name(&name) {
            // Not there, and not refused: the backend may not need it.
            Ok(()) if !grants.has_secret(&name) => Ok(None),
            Ok(()) => grants.secret(&name).and_then(|source| source.read()),
            Err(bad) => Err(bad),
        };
        if !matches!(secret, Ok(Some(_))) {
            self.access.missing.note(&name);
        }
        answered(secret)
    }

    fn now(&mut self) -> wasmtime::Result<u64> {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Ok(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
    }

    fn monotonic(&mut self) -> wasmtime::Result<u64> {
        Ok(u64::try_from(self.born.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    fn remaining(&mut self) -> wasmtime::Result<u64> {
        Ok(u64::try_from(State::remaining(self).as_nanos()).unwrap_or(u64::MAX))
    }

    async fn sleep(&mut self, duration: types::Duration) -> wasmtime::Result<Result<(), types::Error>> {
        let wanted = Duration::from_nanos(duration);
        if wanted >= State::remaining(self) {
            let message = "the deadline of the call would be reached";
            return answered(Err(Error::new(ErrorKind::Unavailable, message)));
        }
        before(Instant::now() + wanted, std::future::pending::<()>()).await;
        Ok(Ok(()))
    }

    fn random(&mut self) -> wasmtime::Result<u64> {
        let mut bytes = [0; 8];
        getrandom::fill(&mut bytes).map_err(|error| wasmtime::Error::msg(error.to_string()))?;
        Ok(u64::from_ne_bytes(bytes))
    }

    fn fact(&mut self, name: String) -> wasmtime::Result<Option<String>> {
        let limits = &self.access.reach.limits;
        Ok(match name.as_str() {
            "contract" => Some(CONTRACT_VERSION.to_owned()),
            "host" => Some(concat!("kv-store-wasm ", env!("CARGO_PKG_VERSION")).to_owned()),
            "memory-bytes" => Some(limits.memory_bytes.to_string()),
            "payload-bytes" => Some(limits.payload_bytes.to_string()),
            "connections" => Some(limits.connections.to_string()),
            "patience-ms" => Some(limits.patience_ms.to_string()),
            "batch-items" => Some(limits::MAX_BATCH_ITEMS.to_string()),
            _ => None,
        })
    }
}
