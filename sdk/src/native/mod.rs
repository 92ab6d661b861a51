//! A backend as native code, over a host that is a value: the feature `native-host`, for programs that run shipped backends without
//! WebAssembly (`tests/simulate` does, by simulated time).
//!
//! It takes the place of the interfaces `payloads`, `net`, `http`, `files`, `records`, `system` and `changes` of the contract: their functions ask
//! the [`Host`] of the running call. A component is never built with this feature.
//!
//! A host may run several calls on one thread by turns, as long as it changes over only inside its own functions: while one of them runs,
//! the thread has no host.

pub mod changes;
pub mod files;
pub mod http;
pub mod net;
pub mod payloads;
pub mod records;
pub mod system;

use std::any::Any;
use std::cell::RefCell;
use std::rc::Rc;

use crate::bindings::kv_store::backend::store_types as store;
use crate::{
    Backend, ChunkPage, CommitOutcome, DeleteOutcome, Error, Evicted, Eviction, Features, GetOutcome, Hashes,
    Maintenance, Manifest, ManifestPage, Options, Payload, Presence, PutOutcome, Result, Totals, batch,
};

/// What a host does for the running call. Its functions may wait.
pub trait Host {
    /// The bytes of an item of the running call. None: it has no such item.
    fn item(&self, item: u32) -> Option<Rc<[u8]>>;

    /// A connection, and whether it was parked under this session.
    fn connect(&self, authority: &str, session: Option<&str>) -> Result<(Box<dyn Stream>, bool)>;

    /// Keep an idle connection.
    fn park(&self, authority: &str, session: Option<&str>, stream: Box<dyn Stream>);

    /// Wait until some of these can be received from without a wait, and say which, ascending. `patience`: see [`Stream::set_patience`].
    fn ready(&self, streams: &[&dyn Stream], patience: Option<u64>) -> Result<Vec<usize>> {
        let _ = (streams, patience);
        Err(Error::unsupported("the host does not wait for several connections"))
    }

    /// Make requests, side by side. Each has an answer, in their order.
    fn exchange(&self, requests: Vec<http::Message>) -> Vec<Result<http::Reply>> {
        requests.iter().map(|_| Err(Error::unsupported("the host makes no requests over HTTP"))).collect()
    }

    /// A directory that the operator granted.
    fn directory(&self, grant: &str) -> Result<Rc<dyn files::Granted>> {
        Err(Error::denied(format!("no directory is granted under the name {grant:?}")))
    }

    /// A store of records in a directory that the operator granted.
    fn open_records(&self, grant: &str, options: &records::RecordOptions) -> Result<Rc<dyn Any>> {
        let _ = (grant, options);
        records::none()
    }

    /// What it opened, for the running call.
    fn records(&self, opened: &Rc<dyn Any>) -> Result<Rc<dyn records::Recorded>> {
        let _ = opened;
        records::none()
    }

    /// A secret by its short name.
    fn secret(&self, name: &str) -> Result<Option<String>>;

    /// A fact by its name.
    fn fact(&self, name: &str) -> Option<String>;

    /// Nanoseconds since 1970-01-01 UTC.
    fn wall(&self) -> u64;

    /// Nanoseconds on a clock that never goes back.
    fn monotonic(&self) -> u64;

    /// Nanoseconds until the deadline of the running call.
    fn remaining(&self) -> u64;

    /// Wait, for a retry.
    fn sleep(&self, nanoseconds: u64) -> Result<()>;

    /// 64 bits.
    fn random(&self) -> u64;

    /// A line for the operator.
    fn log(&self, level: system::Level, message: &str);

    /// See [`crate::changes::begin`].
    fn begin(&self, items: &[u32], token: &[u8]) -> Vec<Vec<u8>>;

    /// See [`crate::changes::not_done`].
    fn not_done(&self, items: &[u32]);
}

/// A byte stream to a server. Dropped, it is closed both ways.
pub trait Stream: Any {
    /// Take all of these bytes.
    fn send(&self, bytes: &[u8]) -> Result<()>;

    /// At least 1 and at most `limit` bytes, as they come; none when the peer has finished.
    fn receive(&self, limit: usize) -> Result<Vec<u8>>;

    /// For the waits that follow, in nanoseconds.
    fn set_patience(&self, patience: u64);
}

thread_local! {
    static HOST: RefCell<Option<Rc<dyn Host>>> = const { RefCell::new(None) };
}

/// Puts the host back that the thread had, however what runs meanwhile ends.
struct Back(Option<Rc<dyn Host>>);

impl Drop for Back {
    fn drop(&mut self) {
        HOST.set(self.0.take());
    }
}

/// Run a call of a backend over a host.
pub fn over<T>(host: Rc<dyn Host>, call: impl FnOnce() -> T) -> T {
    let _back = Back(HOST.replace(Some(host)));
    call()
}

/// Of a host that answers fewer requests than it was given.
fn unanswered() -> Error {
    Error::other("the host did not answer a request")
}

/// Ask the host of the running call.
fn host<T>(ask: impl FnOnce(&dyn Host) -> T) -> T {
    apart(|host| ask(&**host))
}

/// The same for what may change over to another call meanwhile.
fn apart<T>(run: impl FnOnce(&Rc<dyn Host>) -> T) -> T {
    let own = HOST.take();
    let back = Back(own);
    run(back.0.as_ref().expect("a host function is called outside of any call of a backend"))
}

/// What an opened store does, whichever backend serves it: the methods of [`Backend`] as the host calls them.
pub trait Opened {
    #[allow(missing_docs)]
    fn exists(&mut self, hashes: Hashes) -> Result<Vec<Presence>>;
    /// `lens`: of the items, which are the bytes of the chunks.
    fn put_chunks(&mut self, hashes: Hashes, lens: &[u64], replace: bool) -> Result<Vec<PutOutcome>>;
    #[allow(missing_docs)]
    fn get_chunks(&mut self, hashes: Hashes) -> Result<Vec<GetOutcome>>;
    #[allow(missing_docs)]
    fn delete_chunks(&mut self, hashes: Hashes) -> Result<Vec<DeleteOutcome>>;
    /// Item 0 is the manifest.
    fn commit(&mut self, fresh: &[Hashes], manifest: Option<Manifest>) -> Result<CommitOutcome>;
    #[allow(missing_docs)]
    fn get_manifest(&mut self, name: &str) -> Result<Option<Payload>>;
    #[allow(missing_docs)]
    fn delete_manifest(&mut self, name: &str) -> Result<()>;
    /// None: it exports no maintenance.
    fn maintained(&mut self) -> Option<&mut dyn Maintained>;
}

/// The methods of [`Maintenance`], as the host calls them.
#[allow(missing_docs)]
pub trait Maintained {
    fn list_chunks(&mut self, after: Option<&str>, limit: u32) -> Result<ChunkPage>;
    fn list_manifests(&mut self, after: Option<&str>, limit: u32) -> Result<ManifestPage>;
    fn usage(&mut self) -> Result<Totals>;
    fn evict(&mut self, what: Eviction) -> Result<Evicted>;
}

impl<B: Maintenance> Maintained for B {
    fn list_chunks(&mut self, after: Option<&str>, limit: u32) -> Result<ChunkPage> {
        Maintenance::list_chunks(self, after, limit)
    }

    fn list_manifests(&mut self, after: Option<&str>, limit: u32) -> Result<ManifestPage> {
        Maintenance::list_manifests(self, after, limit)
    }

    fn usage(&mut self) -> Result<Totals> {
        Maintenance::usage(self)
    }

    fn evict(&mut self, what: Eviction) -> Result<Evicted> {
        Maintenance::evict(self, what)
    }
}

/// A backend, and how its maintenance is reached if it has one.
struct Native<B> {
    backend: B,
    maintained: fn(&mut B) -> Option<&mut dyn Maintained>,
}

impl<B: Backend> Opened for Native<B> {
    fn exists(&mut self, hashes: Hashes) -> Result<Vec<Presence>> {
        self.backend.exists(hashes)
    }

    fn put_chunks(&mut self, hashes: Hashes, lens: &[u64], replace: bool) -> Result<Vec<PutOutcome>> {
        self.backend.put_chunks(&batch::chunks(hashes, lens), replace)
    }

    fn get_chunks(&mut self, hashes: Hashes) -> Result<Vec<GetOutcome>> {
        self.backend.get_chunks(hashes)
    }

    fn delete_chunks(&mut self, hashes: Hashes) -> Result<Vec<DeleteOutcome>> {
        self.backend.delete_chunks(hashes)
    }

    fn commit(&mut self, fresh: &[Hashes], manifest: Option<Manifest>) -> Result<CommitOutcome> {
        self.backend.commit(fresh, manifest)
    }

    fn get_manifest(&mut self, name: &str) -> Result<Option<Payload>> {
        self.backend.get_manifest(name)
    }

    fn delete_manifest(&mut self, name: &str) -> Result<()> {
        self.backend.delete_manifest(name)
    }

    fn maintained(&mut self) -> Option<&mut dyn Maintained> {
        (self.maintained)(&mut self.backend)
    }
}

/// Open a store: what [`export!`](crate::export) makes a function of.
pub fn open<B: Backend>(uri: &str, options: Vec<(String, String)>) -> Result<(Box<dyn Opened>, Features)> {
    let (backend, features) = B::open(uri, Options::new(options))?;
    Ok((Box::new(Native { backend, maintained: |_| None }), features))
}

/// The same with its maintenance.
pub fn open_maintained<B: Maintenance>(
    uri: &str,
    options: Vec<(String, String)>,
) -> Result<(Box<dyn Opened>, Features)> {
    let (backend, features) = B::open(uri, Options::new(options))?;
    Ok((Box::new(Native { backend, maintained: |backend| Some(backend) }), features))
}

/// The hashes of an answer, as they lie in one byte string, each list of another width.
pub fn lists(hashes: &[store::Hashes]) -> impl Iterator<Item = Hashes<'_>> {
    hashes.iter().map(Hashes::of)
}
