//! A store as programs open it: that of the core crate, with the components of this one.

use std::ops::Deref;

use crate::error::Error;
use crate::setup::Setup;
use crate::store;

/// One opened store. Any number of threads may use it at once. Its calls are those of the type that it dereferences to.
///
/// ```no_run
/// # fn main() -> Result<(), kv_store_wasm::Error> {
/// let store = kv_store_wasm::Store::open("local-fs:///var/cache/kv")?;
/// store.put_chunk(b"some-key", b"bytes")?;
/// store.put_manifest("conversation-7", b"some-key")?;
/// assert_eq!(&*store.get_chunk(b"some-key")?.unwrap(), b"bytes");
/// # Ok(())
/// # }
/// ```
pub struct Store(store::Store);

impl Store {
    /// Open the store that a URI names, with what the environment says: as [`Host::default`](crate::Host) does. See
    /// `include/kv_store_abi.h` for the URI.
    ///
    /// # Errors
    /// As [`Host::open`](crate::Host::open).
    pub fn open(uri: &str) -> Result<Self, Error> {
        Store::open_with(uri, &Setup::of_process())
    }

    pub(crate) fn open_with(uri: &str, setup: &Setup) -> Result<Self, Error> {
        store::Store::open_with(uri, &setup.of_stores()).map(Store)
    }
}

impl Deref for Store {
    type Target = store::Store;

    fn deref(&self) -> &store::Store {
        &self.0
    }
}

impl From<Store> for store::Store {
    fn from(store: Store) -> Self {
        store.0
    }
}
