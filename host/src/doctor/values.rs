//! Have the components of a config check its values: what an option may be, and a tenant's URI, only they know.
//!
//! Each component's own `open` is rehearsed. A backend's table names no store, so a URI is made up for it, and what is wrong with that one
//! must not be told of the table: an error counts that goes away, or becomes another one, without the options.

use std::collections::BTreeMap;

use super::rehearsal::rehearse;
use crate::config::{Config, Settings, Table};
use crate::error::{Error, ErrorKind};
use crate::sandbox_traits::FoundComponent;
use crate::setup::Setup;
use crate::uri::StoreUri;

/// What came of the check of a table.
pub(super) enum Checked {
    /// All that an open would read was accepted, or there is nothing to check.
    Good,
    /// An open would fail with this.
    Refused(Error),
    /// The component goes no further than this here, whatever the options are.
    Stopped(Error),
}

/// Check a table's options, and the URI of a tenant.
pub(super) fn check(table: &Table, config: &Config, found: &FoundComponent, setup: &Setup) -> Checked {
    if let Some(uri) = table.name.strip_prefix("tenant ") {
        return check_at(uri, config, found, setup);
    }
    if table.options.is_empty() {
        return Checked::Good;
    }
    let mut stopped = None;
    for uri in made_up(table.scheme, table.root, found.served.port(table.scheme)) {
        match check_at(&uri, config, found, setup) {
            // What is wrong with this URI of ours is nothing to tell.
            Checked::Stopped(error) if error.kind() == ErrorKind::Invalid => {}
            Checked::Stopped(error) => stopped = stopped.or(Some(error)),
            checked => return checked,
        }
    }
    let none_fits = || Error::invalid("the component accepts none of the URIs that this check makes up for its scheme");
    Checked::Stopped(stopped.unwrap_or_else(none_fits))
}

/// URIs of the forms that backends take, for one that no store has: a directory, a server with a path, a name.
fn made_up(scheme: &str, root: Option<&str>, port: Option<u16>) -> Vec<String> {
    let directory = std::env::temp_dir().join("kv-store-config-check");
    let port = port.unwrap_or(1);
    let places = match root {
        Some(root) => vec![root.to_owned(), format!("localhost:{port}{root}")],
        None => {
            let server = format!("localhost:{port}");
            vec![
                directory.display().to_string(),
                format!("{server}/0"),
                format!("{server}/bucket/prefix"),
                String::new(),
            ]
        }
    };
    places.into_iter().map(|place| format!("{scheme}://{place}")).collect()
}

fn check_at(uri: &str, config: &Config, found: &FoundComponent, setup: &Setup) -> Checked {
    let is_tenant = config.is_tenant(uri);
    let opened = StoreUri::parse(uri).and_then(|uri| {
        let uri = config.placed(uri, &found.served)?;
        Ok((config.settings(&uri, &found.served)?, uri))
    });
    let (settings, uri) = match opened {
        Ok(opened) => opened,
        // The table of a backend with tenants: theirs have its options too.
        Err(_) if !is_tenant => return Checked::Good,
        Err(error) => return Checked::Refused(error),
    };
    let tried = |settings: &Settings| {
        let target = settings.target(&uri, &found.served)?;
        rehearse(&found.component, &config.helper(), &target, settings, setup)
    };
    let Err(error) = tried(&settings) else { return Checked::Good };
    let bare = Settings { options: BTreeMap::new(), ..settings.clone() };
    match tried(&bare) {
        Err(other) if other.to_string() == error.to_string() => {
            // Where a check runs, secrets may be missing, and only the tenant's own URI is what a store is opened with.
            let is_of_uri = is_tenant && other.kind() == ErrorKind::Invalid;
            if is_of_uri { Checked::Refused(error) } else { Checked::Stopped(error) }
        }
        _ => Checked::Refused(error),
    }
}
