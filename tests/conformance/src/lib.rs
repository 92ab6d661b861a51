//! What the ABI `kv_store_v1` asks of every library, as one suite over the public ABI. It knows nothing of WebAssembly: it
//! runs against our library with any backend behind it, and against a native one.
//!
//! A [`Subject`] is what is tested; each [`Case`] gets stores of its own from it, so that cases can run at once.

mod abi;
mod cases;

pub use abi::{Handle, Library, RawHandle, Vtable};
pub use cases::CASES;

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

/// What a case needs of a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    Nothing,
    /// What was stored is there for another handle on the same URI, also after all handles were closed.
    Lasting,
}

/// A library, and where it can store things.
pub struct Subject<'a> {
    pub library: &'a Library,
    /// A URI at which nothing is stored yet, other than any answered before.
    pub fresh_uri: &'a (dyn Fn() -> String + Sync),
    /// See [`Needs::Lasting`].
    pub lasting: bool,
}

impl Subject<'_> {
    /// Why a case makes no sense here, if it makes none.
    pub fn skips(&self, case: &Case) -> Option<&'static str> {
        (case.needs == Needs::Lasting && !self.lasting).then_some("the backend keeps nothing after its last handle")
    }

    /// A store with nothing in it.
    pub fn fresh(&self) -> Result<Handle<'_>, String> {
        self.open(&(self.fresh_uri)())
    }

    pub fn open(&self, uri: &str) -> Result<Handle<'_>, String> {
        self.library.open(uri).ok_or_else(|| format!("open({uri:?}) answered NULL"))
    }
}
