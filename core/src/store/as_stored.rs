//! Values as they lie, whatever their descriptors are: for tools that show a store, or copy it.

use super::{Store, owned};
use crate::backend::{Backend, ChunkHash};
use crate::descriptor::{Described, Descriptor, DescriptorDigest};
use crate::error::{Error, ErrorKind};
use crate::limits;
use crate::payload::Buffer;

/// A value, and whose it is.
#[derive(Debug)]
#[non_exhaustive]
pub struct Stored {
    /// The consumer's bytes.
    pub value: Buffer,
    /// Under which descriptor it lies.
    pub descriptor: Option<DescriptorDigest>,
}

#[doc(hidden)]
impl Store {
    /// Take this handle, which was not used yet, for a tool's: it finds values of any descriptor, whatever the config says, and what it
    /// puts lies under this digest.
    pub fn as_it_lies(&self, descriptor: Option<DescriptorDigest>) -> Result<(), Error> {
        let opened = self.usable()?;
        let described = opened.shared().enveloped.descriptors().number(descriptor)?;
        opened.takes(Descriptor::default(), described)
    }

    /// As [`Store::get_unchecked`], with whose each is.
    pub fn get_stored(&self, hashes: &[&[u8]]) -> Result<Vec<Result<Option<Stored>, Error>>, Error> {
        let shared = self.opened()?.shared();
        let hashes: Vec<ChunkHash> = hashes.iter().map(|hash| ChunkHash::new(hash)).collect::<Result<_, _>>()?;
        let mut found = Vec::with_capacity(hashes.len());
        while let Some(rest) = hashes.get(found.len()..).filter(|rest| !rest.is_empty()) {
            let batch = rest.get(..shared.batch_items()).unwrap_or(rest);
            let until = &shared.until().noting_descriptors();
            until.expect(limits::KV_BATCH_BYTES);
            let answers = shared.get_unchecked(batch, until)?;
            found.extend(batch.iter().zip(answers).map(|(hash, answer)| {
                let stored = |value| Stored { value, descriptor: until.descriptor_of_chunk(hash) };
                answer.map(|value| value.map(stored))
            }));
        }
        Ok(found)
    }

    /// A manifest, and whose it is.
    pub fn get_stored_manifest(&self, name: &str) -> Result<Option<Stored>, Error> {
        let opened = self.opened()?;
        let shared = opened.shared();
        let until = shared.until().noting_descriptors();
        until.expect(shared.max_value_bytes());
        let Some(value) = shared.backend.get_manifest(&opened.full_name(name)?, &until)? else { return Ok(None) };
        Ok(Some(Stored { value: owned(value)?, descriptor: until.descriptor_of_manifest() }))
    }
}

impl super::Opened {
    /// The values of this handle are so, whatever the config requires.
    fn takes(&self, descriptor: Descriptor, described: Described) -> Result<(), Error> {
        let said = super::describe::HandleDescription::accepted(descriptor, described);
        self.said.set(said).map_err(|_| Error::new(ErrorKind::Invalid, "the handle was used, or described, before"))
    }
}
