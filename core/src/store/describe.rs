//! What the values of a handle are: what its engine says, together with what the operator says of the store in the config.
//!
//! It holds from the first use of a handle on, and does not change: values that were put under one descriptor and read under another would
//! be another's.

use super::open_store::OpenStore;
use super::{Opened, Store};
use crate::counters::{Event, Unanswered};
use crate::descriptor::{Described, Descriptor, DescriptorDigest};
use crate::error::{Error, ErrorKind};
use crate::limits::DESCRIPTORS;
use crate::log::{self, Level};

/// What is said of the values of one handle.
pub(super) struct HandleDescription {
    descriptor: Descriptor,
    described: Described,
    /// Why it may neither put nor get.
    refused: Option<String>,
}

impl HandleDescription {
    /// So it is, and nobody is refused.
    pub fn accepted(descriptor: Descriptor, described: Described) -> Self {
        HandleDescription { descriptor, described, refused: None }
    }
}

impl Store {
    /// Say what the values of this handle are, before it is used: what is put later lies under this descriptor, and what lies under
    /// another one is a miss. What the config says of the store is added. Handles of one URI may say different things.
    ///
    /// Values whose key of 8 bytes is the hash of their content, and values that check themselves, have no descriptor: the manifest that
    /// names them has.
    ///
    /// # Errors
    /// `Invalid`: the config says something else of a field, or the handle was used or described otherwise before. `Exhausted`: the
    /// handles of the store have said [`DESCRIPTORS`] different ones. `Denied`: the config has `require_descriptor`, and a field is unset.
    pub fn describe(&self, descriptor: &Descriptor) -> Result<(), Error> {
        let opened = self.usable()?;
        let shared = opened.shared();
        let joined = descriptor.joined(&shared.said.descriptor, "the engine", "the config")?;
        let said = shared.say(joined)?;
        let refused = said.refused.clone();
        if let Err(said) = opened.said.set(said)
            && opened.said.get().is_none_or(|before| before.descriptor != said.descriptor)
        {
            let message =
                "describe: this handle was used, or described otherwise, before: open another one for other values";
            return Err(Error::invalid(message));
        }
        refused.map_or(Ok(()), |why| Err(Error::new(ErrorKind::Denied, why)))
    }

    /// What is said of the values of this handle, by its engine and in the config.
    ///
    /// # Errors
    /// The store was opened before a fork.
    pub fn descriptor(&self) -> Result<Descriptor, Error> {
        let opened = self.usable()?;
        Ok(opened.said.get().map_or_else(|| opened.shared().said.descriptor.clone(), |said| said.descriptor.clone()))
    }
}

impl Opened {
    fn said(&self) -> &HandleDescription {
        self.said.get_or_init(|| {
            let shared = self.shared();
            let unsaid = |error: Error| HandleDescription {
                descriptor: Descriptor::default(),
                described: Described::NOT,
                refused: Some(error.to_string()),
            };
            shared.say(shared.said.descriptor.clone()).unwrap_or_else(unsaid)
        })
    }

    /// What is put is this.
    ///
    /// `Denied`: somebody must say more of it.
    pub(super) fn described(&self) -> Result<Described, Error> {
        let HandleDescription { described, refused, .. } = self.said();
        match refused {
            None => Ok(*described),
            Some(why) => Err(Error::new(ErrorKind::Denied, why.clone())),
        }
    }

    /// What so many chunks or manifests are asked for as. `None`: they are misses, and are counted.
    pub(super) fn asks_as(&self, items: usize) -> Option<Described> {
        let HandleDescription { described, refused, .. } = self.said();
        if refused.is_none() {
            return Some(*described);
        }
        let counters = &self.shared().counters;
        counters.add(Event::Misses, items as u64);
        counters.unanswered(Unanswered::Descriptor, items as u64);
        None
    }
}

impl OpenStore {
    /// A handle's values are so.
    fn say(&self, descriptor: Descriptor) -> Result<HandleDescription, Error> {
        let digest = descriptor.digest();
        let described = self.enveloped.descriptors().number(digest)?;
        let unset: Vec<&str> = descriptor.unset().map(crate::descriptor::Field::name).collect();
        let unset = unset.join(", ");
        let refused = (self.said.required && !unset.is_empty()).then(|| {
            format!(
                "the config has require_descriptor = true, and neither the engine nor the config says this of the values: {unset}; add \
                 it to the table `descriptor` of the config (\"none\" for what there is not), or take require_descriptor out"
            )
        });
        self.tell_said(&descriptor, digest, &unset, refused.as_deref());
        Ok(HandleDescription { descriptor, described, refused })
    }

    /// One line for each descriptor.
    fn tell_said(&self, descriptor: &Descriptor, digest: Option<DescriptorDigest>, unset: &str, refused: Option<&str>) {
        let mut told = self.said.told.lock();
        if told.len() > DESCRIPTORS || !told.insert(digest) {
            return;
        }
        drop(told);
        let uri = &self.uri;
        match (refused, digest) {
            (Some(why), _) => log::line(Level::Error, format_args!("{uri}: {why}: nothing is put or found")),
            (None, None) => log::line(
                Level::Info,
                format_args!(
                    "{uri}: neither the engine nor the config says what its values are (docs/envelope.md#descriptors)"
                ),
            ),
            (None, Some(digest)) if unset.is_empty() => {
                log::line(Level::Info, format_args!("{uri}: values have descriptor {digest}: {descriptor}"));
            }
            (None, Some(digest)) => log::line(
                Level::Info,
                format_args!("{uri}: values have descriptor {digest}: {descriptor}; nobody says: {unset}"),
            ),
        }
    }
}
