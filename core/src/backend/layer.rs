//! A layer that is put around the instances of each store that a host opens: how a test injects faults. The library that is
//! shipped has none, and refuses a config that asks for one.

use std::sync::Arc;

use super::Backend;
use crate::error::Error;
use crate::until::Until;

/// A layer of one store.
pub trait Layer: Send + Sync {
    /// What the log says of it when the store is opened.
    fn note(&self) -> String;

    /// Called before the component opens the store; a failure is the open's.
    fn opening(&self, until: &Until) -> Result<(), Error>;

    /// Put it around the instances.
    fn around(self: Box<Self>, inner: Arc<dyn Backend>) -> Arc<dyn Backend>;
}

/// Makes a layer of the `fault` table of a backend's config.
pub type MakeLayer = fn(&str) -> Result<Box<dyn Layer>, Error>;

/// The layer that a config's `fault` table asks for.
pub fn make_layer(make: Option<MakeLayer>, table: Option<&str>) -> Result<Option<Box<dyn Layer>>, Error> {
    let Some(table) = table else { return Ok(None) };
    match make {
        Some(make) => make(table).map(Some).map_err(|error| error.context("the table `fault` of the config")),
        None => Err(Error::invalid(
            "the config has a table `fault`, and this library injects no faults: remove the table, or use the library of \
             the tests (docs/torture.md)",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_without_faults_refuses_the_table() {
        assert!(make_layer(None, None).is_ok_and(|layer| layer.is_none()));
        let error = make_layer(None, Some("flip = 0.1")).err().unwrap();
        assert!(
            error.to_string().contains("table `fault`") && error.to_string().contains("remove the table"),
            "{error}"
        );
    }
}
