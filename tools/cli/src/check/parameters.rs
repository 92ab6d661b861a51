//! What the contract asks of `open`: a query parameter of the URI that the backend does not know is refused. Until the text is frozen, a
//! warning that names it will do.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use super::CaseResult;

use kv_store_wasm::{ErrorKind, Store};

pub const NAME: &str = "unknown-parameter";
pub const ASKS: &str =
    "open refuses a query parameter that it does not know as `invalid`, or logs a warning that names it";

/// The same of options.
pub const OPTION: &str = "unknown-option";
pub const OPTION_ASKS: &str = "open refuses an option of the config that it does not know as `invalid`";

pub const PARAMETER: &str = "kv-store-check-unknown";

/// Notes whether a component has named the parameter in a warning.
struct Warnings(Arc<AtomicBool>);

impl log::Log for Warnings {
    fn enabled(&self, _: &log::Metadata) -> bool {
        true
    }

    fn log(&self, record: &log::Record) {
        let text = record.args().to_string();
        // `NAME: what it says`; the host's own lines begin with what it was doing, and may have the URI in it.
        let said = text.split_once(": ").filter(|(who, _)| !who.contains("://")).map_or("", |(_, said)| said);
        if record.level() <= log::Level::Warn && said.contains(PARAMETER) {
            self.0.store(true, Relaxed);
        }
    }

    fn flush(&self) {}
}

/// Open a store that has nothing to lose, with a parameter that no backend knows.
pub fn run(uri: &str) -> CaseResult {
    let warned = Arc::new(AtomicBool::new(false));
    kv_store_wasm::raw::log::set_sink(Some(Box::new(Warnings(warned.clone()))));
    let separator = if uri.contains('?') { '&' } else { '?' };
    let opened = Store::open(&format!("{uri}{separator}{PARAMETER}=1"));
    kv_store_wasm::raw::log::set_sink(None);
    match opened {
        Err(error) if error.kind() == ErrorKind::Invalid => Ok(()),
        Err(error) => Err(format!("the parameter {PARAMETER} was refused, and not as `invalid`: {error}")),
        Ok(_) if warned.load(Relaxed) => Ok(()),
        Ok(_) => Err(format!(
            "with the parameter {PARAMETER} it opened as if it were not there: answer `invalid`, or log a warning that names it; \
             1.0 of the contract takes `invalid` only"
        )),
    }
}
