//! The secrets that a component has asked for and that are not there.
//!
//! A component knows a secret by its short name only. What an operator must set is the source that the config names, or the variable
//! of the backend's own, so the host adds that to what the component says when it does not open.

use std::collections::BTreeSet;

use kv_platform::sync::Mutex;

use crate::error::Error;
use crate::policy::Grants;

/// Names that are remembered: a component asks for a handful.
const MOST: usize = 8;

/// The short names.
#[derive(Default)]
pub(crate) struct Missing(Mutex<BTreeSet<String>>);

impl Missing {
    pub(super) fn note(&self, name: &str) {
        let mut names = self.0.lock();
        if names.len() < MOST {
            names.insert(name.to_owned());
        }
    }

    /// The same failure, and where each missing secret would be taken from.
    pub(crate) fn explain(&self, error: Error, grants: &Grants) -> Error {
        let names = self.0.lock();
        let told = names.iter().filter_map(|name| {
            let named = error.to_string().contains(name.as_str());
            let source = match grants.secret(name) {
                Ok(source) => source,
                Err(denied) => return named.then(|| format!("; {denied}")),
            };
            let by_config = grants.secrets.contains_key(name);
            // Of those that the config does not name, many are optional.
            if !by_config && !named {
                return None;
            }
            let by = if by_config { " of the config" } else { "" };
            let why = match source.read() {
                Ok(None) => "is not there".to_owned(),
                Ok(Some(_)) => return None,
                Err(error) => error.to_string(),
            };
            let near = grants.misspelt_secret(name).map(|near| format!(", and the config has a secret {near}"));
            Some(format!("; the secret {name} is {source}{by}, which {why}{}", near.unwrap_or_default()))
        });
        let told: String = told.collect();
        if told.is_empty() { error } else { error.with_note(&told) }
    }
}
