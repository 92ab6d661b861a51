//! What a lookup found.

use std::mem::MaybeUninit;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Instant;

use serde::Serialize;

use crate::cache::Cache;
use crate::counters::{add, add_since};
use crate::error::{Error, Result};
use crate::key::Key;
use crate::kind::TierKind;
use crate::tier::{Bytes, Pinned, as_uninit};

/// How a row was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum HitKind {
    /// The row is of exactly the tokens.
    Exact,
    /// The row is the parent's, and the tokens extend it.
    Resume,
    /// The row is of the longest prefix that there is.
    LongestPrefix,
}

/// A row that was found. While it lives the row is not evicted, and the cache's directories stay locked.
#[derive(Clone)]
pub struct Hit(Arc<PinnedHit>);

struct PinnedHit {
    row: Pinned,
    kind: HitKind,
    // After the row: the row is released first.
    cache: Cache,
}

impl Hit {
    pub(crate) fn new(cache: Cache, row: Pinned, kind: HitKind) -> Hit {
        Hit(Arc::new(PinnedHit { row, kind, cache }))
    }

    /// How it was found.
    pub fn kind(&self) -> HitKind {
        self.0.kind
    }

    /// The row's key: the `parent` of a later query.
    pub fn key(&self) -> Key {
        self.0.row.row().key
    }

    /// How many of the query's tokens it covers; the rest is to be prefilled.
    pub fn tokens(&self) -> usize {
        self.0.row.row().tokens as usize
    }

    /// Where it lies.
    pub fn tier(&self) -> TierKind {
        self.0.row.tier()
    }

    /// The size of its payload in bytes.
    pub fn payload_len(&self) -> usize {
        self.0.row.row().payload_bytes as usize
    }

    /// Copy the payload into a buffer of [`payload_len`](Hit::payload_len) bytes, checked on the way.
    ///
    /// # Errors
    /// `Miss`: the row is damaged or gone; it is not found again, and another lookup may find another. `InvalidArgument`: the
    /// buffer is of another size. `Io`: the system refused. The buffer may have anything in it then.
    pub fn load_into(&self, buffer: &mut [u8]) -> Result<()> {
        self.load_into_uninit(as_uninit(buffer)).map(drop)
    }

    /// The same into memory that need not have been written, which is answered once it is.
    ///
    /// ```
    /// # use kv_cache::{Cache, Config, Fingerprint, Identity, Query, Save};
    /// # fn main() -> kv_cache::Result<()> {
    /// # let cache = Cache::open(Config::parse("[ram]\nbudget = 100000\n")?)?;
    /// # let identity = Identity { fingerprint: Fingerprint::given([7; 32]), quant: 1, context_hash: [9; 32] };
    /// # cache.save(Save::new(&identity, &[1, 2], b"state"))?;
    /// let hit = cache.lookup(&Query::new(&identity, &[1, 2]))?.expect("it was just saved");
    /// let mut state = Box::new_uninit_slice(hit.payload_len());
    /// assert_eq!(hit.load_into_uninit(&mut state)?, b"state");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`load_into`](Hit::load_into).
    pub fn load_into_uninit<'a>(&self, buffer: &'a mut [MaybeUninit<u8>]) -> Result<&'a mut [u8]> {
        if buffer.len() != self.payload_len() {
            return Err(Error::invalid(format!(
                "the payload has {} bytes, the buffer {}",
                self.payload_len(),
                buffer.len()
            )));
        }
        self.timed(|| self.0.row.read(buffer))
    }

    /// The payload without a copy, checked: memory of the tier `ram`, or the row's file mapped. Where the directory is not
    /// exclusively ours it is a copy after all.
    ///
    /// # Errors
    /// As [`load_into`](Hit::load_into).
    pub fn view(&self) -> Result<View> {
        let bytes = self.timed(|| self.0.row.view())?;
        Ok(View { bytes, _hit: self.clone() })
    }

    fn timed<T>(&self, load: impl FnOnce() -> Result<T>) -> Result<T> {
        self.0.cache.check_process()?;
        let start = Instant::now();
        let loaded = load()?;
        let counters = &self.0.cache.shared().counters;
        add_since(&counters.load_nanos, start);
        add(&counters.loads, 1);
        add(&counters.loaded_bytes, self.payload_len() as u64);
        Ok(loaded)
    }
}

/// The payload of a row, in place. It keeps the row alive.
pub struct View {
    bytes: Bytes,
    _hit: Hit,
}

impl Deref for View {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.bytes.as_slice()
    }
}
