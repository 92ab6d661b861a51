//! What the config says of the values of a store.

use std::collections::BTreeMap;

use super::Diagnosis;
use crate::config::Settings;

/// What the config says of the values of a store. An engine may say more.
#[derive(Clone, Debug, Default, serde::Serialize)]
#[non_exhaustive]
pub struct SaidOfValues {
    /// What the config says, by the names of the fields.
    pub said: BTreeMap<&'static str, String>,
    /// The fields that an engine has still to say, or nobody says.
    pub unset: Vec<&'static str>,
    /// The digest of values that are put where an engine says no more, in hex. None: they have none.
    pub digest: Option<String>,
    /// An engine that leaves a field unset is refused.
    pub required: bool,
}

impl Diagnosis {
    pub(super) fn look_described(&mut self, settings: &Settings) {
        let descriptor = &settings.descriptor;
        self.descriptor = SaidOfValues {
            said: descriptor.said().map(|(field, text)| (field.name(), text.to_owned())).collect(),
            unset: descriptor.unset().map(|field| field.name()).collect(),
            digest: descriptor.digest().map(|digest| digest.to_string()),
            required: settings.require_descriptor,
        };
    }
}
