//! The contract's `changes` interface: what the host remembers of changes whose end is unknown (`kv_store_core`'s table of changes).

use super::State;
use crate::contract::bindings::kv_store::backend::changes;
use crate::limits::MAX_CHANGE_TOKEN_BYTES;

impl changes::Host for State {
    fn begin(&mut self, items: Vec<u32>, token: Vec<u8>) -> wasmtime::Result<Vec<Vec<u8>>> {
        if token.len() > MAX_CHANGE_TOKEN_BYTES {
            let message =
                format!("the token of a change has {} bytes, and at most {MAX_CHANGE_TOKEN_BYTES}", token.len());
            return Err(wasmtime::Error::msg(message));
        }
        Ok(self.until.change().map(|change| change.begin(&items, &token)).unwrap_or_default())
    }

    fn not_done(&mut self, items: Vec<u32>) -> wasmtime::Result<()> {
        if let Some(change) = self.until.change() {
            change.not_done(&items);
        }
        Ok(())
    }
}
