//! What the ABI `kv_store_v1` asks of every library, as one suite over the public ABI. It knows nothing of WebAssembly: it
//! runs against our library with any backend behind it, and against a native one. `kv-store check` is its program.
//!
//! A [`Subject`] is what is tested. Each [`Case`] gets one of its own, so that cases can run at once; a [`Restart`] needs
//! two processes, one after the other.

mod abi;
mod cases;
mod soak;

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};

use kv_platform::sync::Mutex;

pub use abi::{Handle, Library};
pub use cases::{CASES, KILLED, PAIRS, RESTARTS};
pub use soak::{Soaked, soak, with_patience};

/// The version of the suite, for reports: which cases a backend has passed.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// A case's verdict: nothing, or what was wrong, in words for the author of the backend.
pub type Verdict = Result<(), String>;

/// One thing that the ABI asks for.
pub struct Case {
    pub name: &'static str,
    /// What the ABI asks for, in a sentence.
    pub asks: &'static str,
    /// What the backend must be for the case to make sense.
    pub needs: Needs,
    pub run: fn(&Subject) -> Verdict,
}

/// One thing that the ABI asks for of two processes: `after` runs in another one, when that of `before` has ended. Both see
/// the same [`Subject`]. Only for a backend that is [`Facts::lasting`].
pub struct Restart {
    pub name: &'static str,
    pub asks: &'static str,
    pub before: fn(&Subject) -> Verdict,
    pub after: fn(&Subject) -> Verdict,
}

/// One thing that the ABI asks for of two processes that run at the same time and see the same [`Subject`]. Only for a backend that is
/// [`Facts::shared`].
pub struct Pair {
    pub name: &'static str,
    pub asks: &'static str,
    pub first: fn(&Subject) -> Verdict,
    pub second: fn(&Subject) -> Verdict,
}

/// One thing that the ABI asks for of what a killed process leaves: the process of `during` is killed some time after it has called its
/// second argument, then `after` runs in another one. Both see the same [`Subject`], round after round. Only for a backend that is
/// [`Facts::lasting`].
pub struct Killed {
    pub name: &'static str,
    pub asks: &'static str,
    pub during: fn(&Subject, &dyn Fn()) -> Verdict,
    pub after: fn(&Subject) -> Verdict,
}

/// What a case needs of a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    Nothing,
    /// See [`Facts::lasting`].
    Lasting,
    /// See [`Facts::shared`].
    Shared,
    /// Several stores that have nothing to do with each other.
    Apart,
    /// Version 2 of the vtable.
    Prefetch,
    /// `kv_store_describe.h`.
    Descriptors,
    /// Values of so many bytes.
    Values(u64),
    /// See [`Facts::held`].
    Held,
}

/// What a backend says of itself.
#[derive(Clone, Copy, Debug)]
pub struct Facts {
    /// What was stored is there for another process on the same URI, also after all handles were closed.
    pub lasting: bool,
    /// What was stored is there for another process that has the same URI open at the same time.
    pub shared: bool,
    /// The longest chunk or manifest in bytes.
    pub max_value_bytes: u64,
    /// Answers what all backends of the process hold now. `None`: the library does not tell.
    pub held: Option<fn() -> Held>,
}

/// What backends hold.
#[derive(Clone, Copy, Debug)]
pub struct Held {
    /// Bytes of chunks and manifests.
    pub payload_bytes: u64,
    /// What they cost beside those: their own memory, handles.
    pub memory_bytes: u64,
}

/// Where a library can store things.
pub enum Place<'a> {
    /// Answers a URI at which nothing is stored yet, other than any answered before.
    Fresh(&'a (dyn Fn() -> String + Sync)),
    /// One store, which may hold what is not ours. Hashes and names are chosen so that none is met, and manifests are
    /// removed after the case; chunks stay, because the ABI removes none.
    Given { uri: String, salt: u64 },
}

/// A library, and where one case can store things.
pub struct Subject<'a> {
    pub library: &'a Library,
    pub facts: Facts,
    place: Place<'a>,
    /// The names that the case has used in a store that was given.
    names: Mutex<BTreeSet<String>>,
}

impl<'a> Subject<'a> {
    /// What the case of this name is run with. The salt of [`Place::Given`] may be the same for all cases.
    pub fn new(library: &'a Library, facts: Facts, place: Place<'a>, case: &str) -> Self {
        let place = match place {
            Place::Given { uri, salt } => {
                let mut hasher = DefaultHasher::new();
                (case, salt).hash(&mut hasher);
                Place::Given { uri, salt: hasher.finish() }
            }
            fresh => fresh,
        };
        Subject { library, facts, place, names: Mutex::default() }
    }

    /// Why a case makes no sense here, if it makes none.
    pub fn skips(&self, needs: Needs) -> Option<String> {
        match needs {
            Needs::Lasting if !self.facts.lasting => Some("the backend keeps nothing after its last handle".into()),
            Needs::Shared if !self.facts.shared => Some("the backend is not shared by processes".into()),
            Needs::Apart if matches!(self.place, Place::Given { .. }) => Some("only one store was given".into()),
            Needs::Prefetch if self.library.vtable().version < 2 => {
                Some("the vtable is of version 1, which has no prefetch_chunks".into())
            }
            Needs::Descriptors if !self.library.describes() => Some("the library has no descriptors".into()),
            Needs::Held if self.facts.held.is_none() => Some("the library does not tell what it holds".into()),
            Needs::Values(bytes) if matches!(self.place, Place::Given { .. }) => {
                Some(format!("it would leave {bytes} bytes in a store that may be in use"))
            }
            Needs::Values(bytes) if self.facts.max_value_bytes < bytes => {
                Some(format!("the backend takes values of at most {} bytes", self.facts.max_value_bytes))
            }
            _ => None,
        }
    }

    /// A URI for this case. That of [`Place::Given`] is always the same.
    fn uri(&self) -> String {
        match &self.place {
            Place::Fresh(fresh) => fresh(),
            Place::Given { uri, .. } => uri.clone(),
        }
    }

    /// A store in which this case finds nothing.
    fn fresh(&self) -> Result<Handle<'_>, String> {
        self.open(&self.uri())
    }

    fn open(&self, uri: &str) -> Result<Handle<'_>, String> {
        self.library.open(uri).ok_or_else(|| format!("open({uri:?}) answered NULL"))
    }

    /// The store was given, and may be used by others.
    fn is_given(&self) -> bool {
        matches!(self.place, Place::Given { .. })
    }

    fn salt(&self) -> u64 {
        match self.place {
            Place::Fresh(_) => 0,
            Place::Given { salt, .. } => salt,
        }
    }

    /// A hash of 16 bytes that no other number gives. Not a digest of anything: a backend must not care.
    fn hash(&self, number: u64) -> Vec<u8> {
        cases::bytes(number ^ 0x5ee5_5ee5 ^ self.salt(), 16)
    }

    /// The name of a manifest: this one itself in a fresh store, and with something after it in one that was given.
    fn name(&self, name: &str) -> String {
        match self.place {
            Place::Fresh(_) => name.to_owned(),
            Place::Given { salt, .. } => {
                let name = format!("{name}~{salt:016x}");
                self.names.lock().insert(name.clone());
                name
            }
        }
    }

    /// Remove the manifests that the case has made in a store that was given.
    pub fn clean(&self) {
        let names = std::mem::take(&mut *self.names.lock());
        if names.is_empty() {
            return;
        }
        if let Ok(store) = self.fresh() {
            for name in names {
                let _ = store.delete_manifest(&name);
            }
        }
    }
}
