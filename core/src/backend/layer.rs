//! Layers that a host has put around the instances of the stores that it opens: a program's own measurements, or the faults of a test.
//! They lie next to the instances, inside the circuit breaker.

use std::sync::Arc;

use super::Backend;
use crate::error::Error;
use crate::until::Until;

/// Puts a layer around the instances of stores.
///
/// A layer must keep what [`Backend`] promises: an outcome for each item that it answers, in order, and an end soon after the deadline.
pub trait BackendLayer: Send + Sync {
    /// A store is about to be opened. What puts a layer around its instances; `None` where this store has none. An error is the
    /// open's, and the component is not asked.
    ///
    /// # Errors
    /// What the open is to fail with.
    fn open(&self, store: &Opening<'_>) -> Result<Option<Wrap>, Error>;

    /// Whether this layer obeys the table `fault` of a backend's config, and understands this one. `None`: it does not look at it.
    fn check_fault(&self, table: &str) -> Option<Result<(), Error>> {
        let _ = table;
        None
    }
}

/// Puts a layer around the instances of one store.
pub type Wrap = Box<dyn FnOnce(Arc<dyn Backend>) -> Arc<dyn Backend>>;

/// A store that is about to be opened.
pub struct Opening<'a> {
    /// Its own URI.
    pub uri: &'a str,
    /// The table `fault` of its backend's config.
    pub fault: Option<&'a str>,
    /// The time of the call that opens it.
    pub until: &'a Until,
}

/// Refuse a config with a table `fault` that no layer obeys, or that the layer which does takes for wrong.
pub fn check_fault(layers: &[Arc<dyn BackendLayer>], table: Option<&str>) -> Result<(), Error> {
    let Some(table) = table else { return Ok(()) };
    let checked = layers.iter().find_map(|layer| layer.check_fault(table));
    let checked = checked.map(|checked| checked.map_err(|error| error.context("the table `fault` of the config")));
    checked.unwrap_or_else(|| {
        Err(Error::invalid(
            "the config has a table `fault`, and this library injects no faults: remove the table, or use the library of \
             the tests (docs/torture.md)",
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_without_faults_refuses_the_table() {
        assert!(check_fault(&[], None).is_ok());
        let error = check_fault(&[], Some("flip = 0.1")).unwrap_err().to_string();
        assert!(error.contains("table `fault`") && error.contains("remove the table"), "{error}");
    }
}
