//! The block cache over a store that this crate opens.

use std::sync::Arc;

use kv_blocks::{Far, Noop};
pub use kv_store_core::blocks::*;

use crate::error::Error;
use crate::open::Store;

/// Open a block cache over the store that its config names: `l2.backend` is a store's URI, `noop`, or empty. What the config and the spec say
/// of the blocks is said of the store's values ([`describe`]).
///
/// ```no_run
/// # fn main() -> Result<(), kv_store_wasm::Error> {
/// use kv_store_wasm::blocks::{self, Config, Spec};
/// let config = Config::from_env("[l2]\nbackend = 'redis://127.0.0.1:6379/3'").expect("the config");
/// let cache = blocks::open(config, Spec::new("model", 16, 1 << 20))?;
/// assert_eq!(cache.exists(&[], &[0; 64]).unwrap_or_default(), 0);
/// # Ok(())
/// # }
/// ```
pub fn open(config: Config, spec: Spec) -> Result<Cache, Error> {
    said(&config)?;
    let far: Option<Arc<dyn Far>> = match config.l2.backend.as_str() {
        "" => None,
        "noop" => Some(Arc::new(Noop)),
        uri => {
            let store: kv_store_core::Store = Store::open(uri)?.into();
            describe(&store, &config, &spec)?;
            Some(Arc::new(StoreFar::start(Arc::new(store), config.l2.num_async_workers)?))
        }
    };
    Ok(Cache::open(config, spec, far)?)
}
