//! Check a config file as a whole, without a URI: what an open would refuse, and what no backend would use.

use std::path::{Path, PathBuf};

use super::Problem;
use super::values::{self, Checked};
use crate::config::{Config, Table};
use crate::counters::check_address;
use crate::error::Error;
use crate::inspect::{Inspection, inspect};
use crate::loader;
use crate::setup::Setup;
use crate::store::Process;
use crate::suggest::nearest;

/// What was found in a config file.
#[derive(Clone, Debug, serde::Serialize)]
pub struct ConfigReport {
    /// The file that was read. None: there is none.
    pub config: Option<PathBuf>,
    /// `[backend.X]` tables.
    pub backends: usize,
    /// `[[tenant]]` tables.
    pub tenants: usize,
    /// Those that are fatal make some open fail, or are ignored by all.
    pub problems: Vec<Problem>,
}

/// Check a config file, or the one that an open would read. Components are run only to check their options and URIs, with no network and no
/// right to change a file.
///
/// An error where the file cannot be read or parsed.
pub fn check_config(path: Option<&Path>) -> Result<ConfigReport, Error> {
    let setup = Setup::of_process();
    let config = match path {
        Some(path) => Config::load_from(path, &Process::current().configs)?,
        None => setup.load_config()?,
    };
    let tables = config.tables();
    let backends = tables.iter().filter(|table| table.name.starts_with("backend.")).count();
    let (tenants, shown) = (tables.len() - backends, config.path.clone());
    let mut report = ConfigReport { config: shown, backends, tenants, problems: Vec::new() };
    for what in config.misspelt(|scheme| setup.places.serve(scheme, &config).is_ok(), &setup.places.names()) {
        report.problem(true, what, "correct the table's name, or install its component");
    }
    tables.iter().for_each(|table| report.check(table, &config, &setup));
    for scheme in config.schemes_of_tenants() {
        let port = setup.places.serve(scheme, &config).ok().and_then(|found| found.served.port(scheme));
        if let Err(error) = config.check_tenants(scheme, port) {
            report.problem(true, error, "correct the tenant's uri");
        }
    }
    if let Some(Err(why)) = config.metrics.as_deref().map(check_address) {
        report.problem(true, format!("metrics: {why}"), "correct the address; no counters are served at this one");
    }
    if let Err(why) = loader::find_helper(&config.helper())
        && matches!(config.helper(), crate::config::Helper::At(_))
    {
        report.problem(true, format!("compile.helper: {why}"), "correct the path, or install kv-store-compile there");
    }
    Ok(report)
}

impl ConfigReport {
    fn problem(&mut self, fatal: bool, what: impl std::fmt::Display, remedy: &str) {
        self.problems.push(Problem { what: what.to_string(), remedy: remedy.to_owned(), fatal });
    }

    fn fatal(&self) -> usize {
        self.problems.iter().filter(|problem| problem.fatal).count()
    }

    fn check(&mut self, table: &Table, config: &Config, setup: &Setup) {
        let name = &table.name;
        for (secret, source) in table.secrets {
            match source.read() {
                Ok(Some(_)) => {}
                Ok(None) => {
                    let what = format!("{name}: the secret {secret} is not set: {source} is not there");
                    self.problem(false, what, "set it where the engine runs");
                }
                Err(error) => {
                    let what = format!("{name}: the secret {secret} is {source}: {error}");
                    self.problem(true, what, "correct the file, or the path");
                }
            }
        }
        for file in table.files.iter().filter(|file| !file.is_file()) {
            self.problem(false, format!("{name}: {} is no file", file.display()), "put the PEM file there");
        }
        let found = match setup.places.serve(table.scheme, config) {
            Ok(found) => found,
            Err(error) => return self.problem(false, format!("{name}: {error}"), "install the component"),
        };
        if name.starts_with("backend.")
            && let Err(error) = config.check_aliases(&found.served)
            && found.served.backend != table.scheme
        {
            self.problem(true, error, "move its keys there");
        }
        let before = self.fatal();
        match inspect(&found.component) {
            Ok(component) => self.check_with(table, &component),
            Err(error) => self.problem(true, format!("{name}: {error}"), "name the backend's .wasm as `component`"),
        }
        // What is known to be wrong with it would be found once more.
        if self.fatal() > before {
            return;
        }
        match values::check(table, config, &found, setup) {
            Checked::Good => {}
            Checked::Refused(error) => self.problem(true, format!("{name}: {error}"), "correct the value, or the URI"),
            Checked::Stopped(error) => {
                let what = format!("{name}: not checked further than this: {error}");
                self.problem(false, what, "kv-store doctor URI checks it for a store, where the engine runs");
            }
        }
    }

    /// Hold a table against what its component says of itself.
    fn check_with(&mut self, table: &Table, component: &Inspection) {
        let name = &table.name;
        if let Some(pinned) = table.sha256.map(|pin| hex::encode(pin.0)).filter(|pin| *pin != component.sha256) {
            let what =
                format!("{name}: the component's SHA-256 is {}, and sha256 accepts only {pinned}", component.sha256);
            self.problem(true, what, "put the right component back, or change `sha256` if it was replaced on purpose");
        }
        for problem in &component.problems {
            self.problem(
                true,
                format!("{name}: the component {problem}"),
                "ask its vendor for one built for this host",
            );
        }
        let secrets: Vec<&str> = table.secrets.keys().map(String::as_str).collect();
        for (what, given, known) in [
            ("option", table.options.as_slice(), component.names("options")),
            ("secret", secrets.as_slice(), component.names("secrets")),
        ] {
            let Some(known) = known else { continue };
            for unknown in given.iter().filter(|given| !known.contains(given)) {
                let meant = nearest(unknown, known.iter().copied());
                let meant = meant.map(|meant| format!("; did you mean `{meant}`?")).unwrap_or_default();
                let all = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
                let message = format!("{name}: the backend knows no {what} `{unknown}`{meant}");
                self.problem(true, message, &format!("its {what}s: {all}"));
            }
        }
    }
}
