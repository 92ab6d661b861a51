//! What a store holds and what may leave it: listing, counting and evicting, through the component's `maintenance`. Each call has
//! a deadline of its own.

use super::contents::{ChunkEntry, Evicted, Eviction, ManifestEntry, Page, Usage};
use super::open_store::OpenStore;
use super::upkeep::MaintainedStore;
use super::{Store, owned};
use crate::backend::{ChunkHash, Got, Layout};
use crate::counters::Event;
use crate::envelope::{TAIL_BYTES, consumer_key, consumer_name};
use crate::error::{Error, ErrorKind};
use crate::limits::{self, Limits};
use crate::payload::Buffer;
use crate::sandbox::Maintenance;
use crate::until::Until;

/// What was found of a chunk, whether or not it is what was put.
pub(super) type Unchecked = Result<Option<Buffer>, Error>;

fn unchecked(answer: Result<Option<Got>, Error>) -> Unchecked {
    match answer? {
        Some(Got::Buffer(data)) => owned(data).map(Some),
        Some(Got::Damaged(damaged)) => {
            let message = format!("its {} bytes do not match their checksum", damaged.len);
            Err(Error::new(ErrorKind::Corrupt, message))
        }
        // There is no memory that it could be in.
        Some(Got::Placed(_) | Got::TooLong(_)) | None => Ok(None),
    }
}

impl Store {
    /// Whether the backend can list and clean what it holds. Otherwise the calls below answer `Unsupported`.
    pub fn is_maintained(&self) -> Result<bool, Error> {
        Ok(self.opened()?.shared().is_maintained())
    }

    /// One page of the chunks, of at most `limit` entries. `after`: `next` of the page before.
    pub fn list_chunks(&self, after: Option<&str>, limit: usize) -> Result<Page<ChunkEntry>, Error> {
        self.opened()?.shared().list_chunks(after, limit)
    }

    /// One page of the manifests, of at most `limit` entries. `after`: `next` of the page before.
    pub fn list_manifests(&self, after: Option<&str>, limit: usize) -> Result<Page<ManifestEntry>, Error> {
        let opened = self.opened()?;
        let mut page = opened.shared().list_manifests(after, limit)?;
        if let Some(prefix) = opened.prefix() {
            // Those of other URIs below the same root are not this store's.
            page.entries.retain_mut(|entry| {
                let own = entry.name.strip_prefix(prefix).and_then(|rest| rest.strip_prefix('/')).map(str::to_owned);
                own.map(|own| entry.name = own).is_some()
            });
        }
        Ok(page)
    }

    /// Chunks as the backend answers them: nothing is checked against its hash, and nothing damaged is removed. An answer for each.
    ///
    /// # Errors
    /// Of the whole call: the backend could not be asked.
    pub fn get_unchecked(&self, hashes: &[&[u8]]) -> Result<Vec<Result<Option<Buffer>, Error>>, Error> {
        let shared = self.opened()?.shared();
        let hashes: Vec<ChunkHash> = hashes.iter().map(|hash| ChunkHash::new(hash)).collect::<Result<_, _>>()?;
        let mut found = Vec::with_capacity(hashes.len());
        while let Some(rest) = hashes.get(found.len()..).filter(|rest| !rest.is_empty()) {
            let batch = rest.get(..shared.batch_items()).unwrap_or(rest);
            let until = &shared.until();
            until.expect(limits::KV_BATCH_BYTES);
            found.extend(shared.get_unchecked(batch, until)?);
        }
        Ok(found)
    }

    /// The length of a manifest, for a caller that looks for damage; `None` if there is none.
    ///
    /// # Errors
    /// `Corrupt`: it is not what was put. What asking the backend comes to.
    pub fn examine_manifest(&self, name: &str) -> Result<Option<u64>, Error> {
        let opened = self.opened()?;
        let shared = opened.shared();
        let until = shared.until();
        until.expect(shared.max_value_bytes());
        let found = shared.enveloped.examine_manifest(&opened.full_name(name)?, &until)?;
        Ok(found.map(|found| found.bytes))
    }

    /// What the store holds, as far as the backend knows without a listing.
    pub fn usage(&self) -> Result<Usage, Error> {
        self.opened()?.shared().usage()
    }

    /// Remove what was not used. All URIs below the same root are one store here.
    pub fn evict(&self, what: &Eviction) -> Result<Evicted, Error> {
        self.opened()?.shared().evict(what)
    }
}

/// The length of a value, from that of its envelope. None: it is not known, or too short for one.
fn without_tail(bytes: Option<u64>) -> Option<u64> {
    bytes?.checked_sub(TAIL_BYTES as u64)
}

impl OpenStore {
    /// Chunks wherever they lie, for a caller that checks them: an answer for some of them, from the first on.
    pub(super) fn get_unchecked(&self, hashes: &[ChunkHash], until: &Until) -> Result<Vec<Unchecked>, Error> {
        let first_of = |hash: &ChunkHash| if hash.may_be_of_content() { Layout::Plain } else { Layout::Enveloped };
        let first: Vec<ChunkHash> = hashes.iter().map(|hash| hash.lying(first_of(hash))).collect();
        let mut found: Vec<Unchecked> = self.far().get(&first, &mut [], until)?.into_iter().map(unchecked).collect();
        let absent = |(hash, found): &(&ChunkHash, &mut Unchecked)| {
            matches!(found, Ok(None)).then(|| hash.lying(hash.layout().other()))
        };
        let mut rest: Vec<(ChunkHash, &mut Unchecked)> = Vec::new();
        for item in first.iter().zip(&mut found) {
            if let Some(other) = absent(&item) {
                rest.push((other, item.1));
            }
        }
        while !rest.is_empty() {
            let asked: Vec<ChunkHash> = rest.iter().map(|(hash, _)| *hash).collect();
            let answers = self.far().get(&asked, &mut [], until)?;
            let answered = answers.len().clamp(1, rest.len());
            for ((_, place), answer) in rest.drain(..answered).zip(answers) {
                *place = unchecked(answer);
            }
        }
        Ok(found)
    }

    /// Whether the component can list what it stores, and clean it.
    pub(super) fn is_maintained(&self) -> bool {
        self.instances.maintenance().is_some()
    }

    /// The component's `maintenance`, for one call. It is not tried while the breaker is open; what it comes to says nothing of
    /// how well consumers are served, so the breaker does not hear of it.
    fn maintenance(&self) -> Result<(&dyn Maintenance, Until), Error> {
        self.breaker.admit().inspect_err(|_| self.counters.count(Event::BreakerRefused))?.give_back();
        let limits = &self.reach.limits;
        let limits = Limits { deadline_ms: limits.maintenance_ms, ..limits.clone() };
        let until = Until::with(&self.process.clock, &limits, None, None);
        until.check()?;
        let none = || {
            let message =
                "the component does not export kv-store:backend/maintenance: it can be neither listed nor cleaned";
            Error::new(ErrorKind::Unsupported, message)
        };
        Ok((self.instances.maintenance().ok_or_else(none)?, until))
    }

    pub(super) fn list_chunks(&self, after: Option<&str>, limit: usize) -> Result<Page<ChunkEntry>, Error> {
        let (maintenance, until) = self.maintenance()?;
        let mut page = maintenance.list_chunks(after, limit.clamp(1, limits::MAX_LISTED), &until)?;
        for entry in &mut page.entries {
            let (hash, layout) = consumer_key(&entry.hash);
            if layout == Layout::Enveloped {
                (entry.layout, entry.bytes) = (2, without_tail(entry.bytes));
                entry.hash = hash.to_vec();
            }
        }
        Ok(page)
    }

    pub(super) fn list_manifests(&self, after: Option<&str>, limit: usize) -> Result<Page<ManifestEntry>, Error> {
        let (maintenance, until) = self.maintenance()?;
        let mut page = maintenance.list_manifests(after, limit.clamp(1, limits::MAX_LISTED), &until)?;
        for entry in &mut page.entries {
            let (name, layout) = consumer_name(&entry.name);
            if layout == Layout::Enveloped {
                (entry.layout, entry.bytes) = (2, without_tail(entry.bytes));
                entry.name = name.to_owned();
            }
        }
        Ok(page)
    }

    pub(super) fn usage(&self) -> Result<Usage, Error> {
        let (maintenance, until) = self.maintenance()?;
        maintenance.usage(&until)
    }

    pub(super) fn evict(&self, what: &Eviction) -> Result<Evicted, Error> {
        let (maintenance, until) = self.maintenance()?;
        let evicted = maintenance.evict(what, &until)?;
        if evicted.chunks > 0 {
            // Which ones is not said.
            self.known().forget_present();
        }
        self.counters.add(Event::Evicted, evicted.chunks.saturating_add(evicted.manifests));
        self.counters.add(Event::BytesEvicted, evicted.bytes);
        Ok(evicted)
    }
}

impl MaintainedStore for OpenStore {
    fn uri(&self) -> &str {
        &self.uri
    }

    fn is_maintained(&self) -> bool {
        self.is_maintained()
    }

    fn usage(&self) -> Result<Usage, Error> {
        self.usage()
    }

    fn evict(&self, what: &Eviction) -> Result<Evicted, Error> {
        self.evict(what)
    }
}
