//! The contract's `system` interface: log, secrets, clocks, random numbers; and `types`, which has no functions.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::{State, answered};
use crate::contract::bindings::kv_store::backend::{system, types};
use crate::engine::before;
use crate::error::{Error, ErrorKind};
use crate::log::{self, Level};

impl types::Host for State {}

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
        let secret = self.access.reach.grants.secret(&name).and_then(|source| source.read());
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
}
