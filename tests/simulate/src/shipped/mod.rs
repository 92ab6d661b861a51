//! A shipped backend in a history: its sources, run natively over simulated connections to the sources of its server. The promises are
//! those of `docs/backends.md`; the rules look into the server.
//!
//! What the host does for a component in `host/src/sandbox` and `host/src/contract` is done here by simulated time: instances, each with one
//! call at a time; parked connections; the end of an instance that traps.

mod calendar;
mod call;
mod exchange;
pub mod files;
mod maintenance;
mod memkv;
pub mod mooncake;
mod net;
pub mod redis;
pub mod s3;
mod seen;
pub mod server;

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use kv_platform::sync::Mutex;
use kv_store_core::backend::{
    Answers, Backend, ChunkHash, ChunkToPut, Committed, Got, Presence, Put, Target, expect_some,
};
use kv_store_core::directory::Directory;
use kv_store_core::limits::Limits;
use kv_store_core::sandbox::{Features, Instances as OfComponent, Maintenance, Properties, Reach};
use kv_store_core::segments;
use kv_store_core::until::Until;
use kv_store_core::{Buffer, Error, ErrorKind};
use kv_store_sdk as sdk;
use kv_store_sdk::native::{Opened, Stream, lists, over};
use kv_store_sdk::{CommitOutcome, DeleteOutcome, GetOutcome, Hashes, PutOutcome};

use self::call::{Call, LONG, Trap};
use self::net::Near;
use crate::guest::Guest;
use crate::sim::Sim;
use crate::threads::MICROSECOND;
use crate::world::Request;
use crate::{names, plan};

/// Opens a backend.
type Open = fn(&str, Vec<(String, String)>) -> sdk::Result<(Box<dyn Opened>, sdk::Features)>;

/// Instances that serve one process at once.
const MAX_INSTANCES: usize = 8;

/// What only the thread of a history uses.
struct Kept<T>(T);

// SAFETY: all simulated threads of a history run on one thread of the machine, which also drops what they leave.
unsafe impl<T> Send for Kept<T> {}

/// The instances of the backend in one process.
pub struct Instances {
    pub sim: Arc<Sim>,
    pub process: usize,
    uri: String,
    options: Vec<(String, String)>,
    /// The directory that the URI names.
    directory: Option<Arc<Directory>>,
    /// The segment stores of the process.
    segments: Arc<segments::SegmentStores>,
    limits: Limits,
    slots: Mutex<Slots>,
    parked: Mutex<BTreeMap<String, Vec<Kept<Near>>>>,
    lost: AtomicU64,
}

#[derive(Default)]
struct Slots {
    idle: Vec<Kept<Box<dyn Opened>>>,
    /// Idle, at work, or being made.
    live: usize,
}

/// Gives a place back, as gone where it has no instance.
struct Slot<'a> {
    of: &'a Instances,
    instance: Option<Box<dyn Opened>>,
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        let mut slots = self.of.slots.lock();
        match self.instance.take() {
            Some(instance) => slots.idle.push(Kept(instance)),
            None => {
                slots.live -= 1;
                self.of.lost.fetch_add(1, Relaxed);
            }
        }
    }
}

/// Open the store from a process. Nothing goes wrong meanwhile: an engine that cannot open its store has no history.
pub fn open(
    guest: &Guest,
    uri: &str,
    options: Vec<(String, String)>,
    reach: &Reach,
    until: &Until,
) -> Result<(Arc<Instances>, Features), Error> {
    let of = Arc::new(Instances {
        sim: guest.sim.clone(),
        process: guest.process,
        uri: uri.to_owned(),
        options,
        directory: reach.directory.clone(),
        segments: reach.segments.clone(),
        limits: reach.limits.clone(),
        slots: Mutex::default(),
        parked: Mutex::default(),
        lost: AtomicU64::new(0),
    });
    let (opened, features) = loop {
        match of.instantiate(until, true) {
            // The server was started anew meanwhile.
            Err(error) if error.kind() == ErrorKind::Unavailable && until.check().is_ok() => {}
            opened => break opened?,
        }
    };
    *of.slots.lock() = Slots { idle: vec![Kept(opened)], live: 1 };
    let sdk::Features { label, properties, batch_items, batch_bytes, max_value_bytes, more, .. } = features;
    let has = |property| properties & property == property;
    let properties = Properties {
        durable: has(sdk::Properties::DURABLE),
        shared: has(sdk::Properties::SHARED),
        cheap_repeat: has(sdk::Properties::CHEAP_REPEAT),
        write_through: has(sdk::Properties::WRITE_THROUGH),
        holds_data: has(sdk::Properties::HOLDS_DATA),
        wants_fresh: has(sdk::Properties::WANTS_FRESH),
        evicts: has(sdk::Properties::EVICTS),
        settles: has(sdk::Properties::SETTLES),
    };
    if !properties.settles {
        of.sim.world().unfenced.insert(of.process);
    }
    let max_instances = Some(MAX_INSTANCES as u32);
    Ok((of, Features { label, properties, max_instances, batch_items, batch_bytes, max_value_bytes, more }))
}

fn ended() -> Error {
    Error::new(ErrorKind::Unavailable, "the process has ended")
}

/// As the host has it for a component.
fn failed(error: sdk::Error) -> Error {
    let kind = match error.kind {
        sdk::ErrorKind::Unavailable => ErrorKind::Unavailable,
        sdk::ErrorKind::Busy => return Error::busy(error.message),
        sdk::ErrorKind::Denied => ErrorKind::Denied,
        sdk::ErrorKind::Exhausted => ErrorKind::Exhausted,
        sdk::ErrorKind::Invalid => ErrorKind::Invalid,
        sdk::ErrorKind::Corrupt => ErrorKind::Corrupt,
        sdk::ErrorKind::Unsupported => ErrorKind::Unsupported,
        sdk::ErrorKind::Other => ErrorKind::Other,
    };
    Error::new(kind, error.message)
}

/// The first hashes, as far as they have one width, and their bytes.
fn of_one_width(hashes: &[ChunkHash]) -> (usize, Vec<u8>) {
    let width = hashes.first().map_or(1, |hash| hash.as_slice().len());
    let same = hashes.iter().take_while(|hash| hash.as_slice().len() == width);
    (width, same.flat_map(|hash| hash.as_slice()).copied().collect())
}

fn places(hashes: Hashes) -> Vec<names::Stored> {
    hashes.iter().map(names::of_chunk).collect()
}

impl Instances {
    fn take_parked(&self, session: &str) -> Option<Near> {
        self.parked.lock().get_mut(session)?.pop().map(|Kept(near)| near)
    }

    fn park(&self, session: &str, stream: Box<dyn Stream>) {
        let stream: Box<dyn Any> = stream;
        if let Ok(near) = stream.downcast::<Near>() {
            self.parked.lock().entry(session.to_owned()).or_default().push(Kept(*near));
        }
    }

    fn acquire(&self, until: &Until) -> Result<Slot<'_>, Error> {
        let (begun, end) = (self.sim.threads.moment(), self.sim.threads.moment_of(until.deadline()));
        loop {
            // What befalls the calls that have all instances leaves less time to this one. Who waits looks now and then, and others may be quicker.
            let now = self.sim.threads.moment();
            if now - begun > LONG || now >= end {
                self.sim.world().faulty.insert(self.sim.threads.task().operation);
            }
            let mut slots = self.slots.lock();
            if let Some(Kept(instance)) = slots.idle.pop() {
                return Ok(Slot { of: self, instance: Some(instance) });
            }
            if slots.live < MAX_INSTANCES {
                slots.live += 1;
                return Ok(Slot { of: self, instance: None });
            }
            drop(slots);
            if now >= end {
                return Err(Error::busy("busy: all instances were in use until the deadline"));
            }
            self.sim.threads.pause(100 * MICROSECOND);
        }
    }

    /// Run something of the backend. `Err(None)`: it trapped.
    fn run<T>(&self, call: &Rc<Call>, what: impl FnOnce() -> sdk::Result<T>) -> Result<T, Option<Error>> {
        let outcome = catch_unwind(AssertUnwindSafe(|| over(call.clone(), what)));
        call.ended();
        match outcome {
            Ok(answer) => answer.map_err(|error| Some(failed(error))),
            Err(panic) if panic.is::<Trap>() => Err(None),
            Err(panic) => resume_unwind(panic),
        }
    }

    fn instantiate(self: &Arc<Self>, until: &Until, calm: bool) -> Result<(Box<dyn Opened>, sdk::Features), Error> {
        let call = Call::begin(self, Request::Exists(Vec::new()), Vec::new(), until, calm);
        let open: Open = match self.sim.plan.shape.backend {
            plan::Backend::LocalFs { .. } => local_fs::open,
            plan::Backend::Segments { .. } => ::segments::open,
            plan::Backend::Redis(_) => ::redis::open,
            plan::Backend::S3(_) => ::s3::open,
            plan::Backend::Mooncake(_) => ::mooncake::open,
            _ => ::memkv::open,
        };
        self.run(&call, || open(&self.uri, self.options.clone()))
            .map_err(|error| error.unwrap_or_else(|| self.trapped()))
    }

    fn trapped(&self) -> Error {
        match self.sim.world().dead.get(self.process).copied().unwrap_or(true) {
            true => ended(),
            false => Error::new(ErrorKind::Component, "trapped"),
        }
    }
}

/// The backend in one process, as the library calls it.
#[derive(Clone)]
pub struct Shipped(pub Arc<Instances>);

impl OfComponent for Shipped {
    fn max_instances(&self) -> usize {
        MAX_INSTANCES
    }

    fn lost(&self) -> u64 {
        self.0.lost.load(Relaxed)
    }

    fn maintenance(&self) -> Option<&dyn Maintenance> {
        // Of the others nothing is bounded by the host.
        self.0.sim.files.is_some().then_some(self)
    }
}

impl Shipped {
    fn call<T>(
        &self,
        request: Request,
        items: Vec<Rc<[u8]>>,
        until: &Until,
        what: impl FnOnce(&mut dyn Opened) -> sdk::Result<T>,
    ) -> Result<T, Error> {
        let of = &self.0;
        let mut slot = of.acquire(until)?;
        let mut instance = match slot.instance.take() {
            Some(idle) => idle,
            None => of.instantiate(until, false)?.0,
        };
        let count = request.items() as u64;
        let call = Call::begin(of, request, items, until, false);
        let outcome = of.run(&call, || what(&mut *instance));
        match outcome {
            Ok(answer) => {
                of.sim.world().operations += count;
                slot.instance = Some(instance);
                Ok(answer)
            }
            Err(Some(error)) => {
                slot.instance = Some(instance);
                Err(error)
            }
            Err(None) => Err(of.trapped()),
        }
    }
}

impl Backend for Shipped {
    fn exists(&self, hashes: &[ChunkHash], until: &Until) -> Answers<Presence> {
        let (width, bytes) = of_one_width(hashes);
        let hashes = Hashes::new(width, &bytes);
        let answers = self.call(Request::Exists(places(hashes)), Vec::new(), until, |guest| guest.exists(hashes))?;
        let presence = |answer| match answer {
            sdk::Presence::Present(len) => Ok(Presence::Present(len)),
            sdk::Presence::Absent => Ok(Presence::Absent),
        };
        expect_some(answers.into_iter().map(presence).collect(), hashes.len())
    }

    fn put(&self, chunks: &[ChunkToPut<'_>], replace: bool, until: &Until) -> Answers<Put> {
        let keys: Vec<ChunkHash> = chunks.iter().map(|(hash, _)| *hash).collect();
        let (width, bytes) = of_one_width(&keys);
        let hashes = Hashes::new(width, &bytes);
        let values: Vec<Vec<u8>> = chunks.iter().take(hashes.len()).map(|(_, bytes)| bytes.pieces().concat()).collect();
        let lens: Vec<u64> = values.iter().map(|value| value.len() as u64).collect();
        let items = values.iter().map(|value| Rc::from(value.as_slice())).collect();
        let chunks = places(hashes).into_iter().zip(values.into_iter().map(Arc::new)).collect();
        let request = Request::Put { chunks, replace };
        let answers = self.call(request.clone(), items, until, |guest| guest.put_chunks(hashes, &lens, replace));
        let failed_any = |answers: &Vec<PutOutcome>| answers.iter().any(|put| matches!(put, PutOutcome::Failed(_)));
        if answers.as_ref().map_or(true, failed_any) {
            self.0.sim.world().may_end_unknown(&request);
        }
        let answers = answers?;
        let put = |answer| match answer {
            PutOutcome::Stored => Ok(Put::New),
            PutOutcome::Existed => Ok(Put::Existed),
            PutOutcome::Failed(error) => Err(failed(error)),
        };
        expect_some(answers.into_iter().map(put).collect(), hashes.len())
    }

    fn get(&self, hashes: &[ChunkHash], targets: &mut [Target<'_>], until: &Until) -> Answers<Option<Got>> {
        let (width, bytes) = of_one_width(hashes);
        let hashes = Hashes::new(width, &bytes);
        let answers = self.call(Request::Get(places(hashes)), Vec::new(), until, |guest| guest.get_chunks(hashes))?;
        let mut targets = targets.iter_mut();
        let got = |answer| {
            let target = targets.next();
            match answer {
                GetOutcome::Missing => Ok(None),
                GetOutcome::Failed(error) => Err(failed(error)),
                GetOutcome::Found(payload) => match target.and_then(|target| target.place(payload.bytes())) {
                    Some(placed) => Ok(Some(placed)),
                    None => Ok(Some(Got::Buffer(Arc::new(Buffer::concat(&[payload.bytes()])?)))),
                },
            }
        };
        expect_some(answers.into_iter().map(got).collect(), hashes.len())
    }

    fn delete(&self, hashes: &[ChunkHash], until: &Until) -> Answers<()> {
        let (width, bytes) = of_one_width(hashes);
        let hashes = Hashes::new(width, &bytes);
        let request = Request::Delete(places(hashes));
        let answers = self.call(request, Vec::new(), until, |guest| guest.delete_chunks(hashes))?;
        let deleted = |answer| match answer {
            DeleteOutcome::Gone => Ok(()),
            DeleteOutcome::Failed(error) => Err(failed(error)),
        };
        expect_some(answers.into_iter().map(deleted).collect(), hashes.len())
    }

    fn commit(
        &self,
        manifest: Option<(&str, &[u8])>,
        fresh: &[ChunkHash],
        _: u64,
        until: &Until,
    ) -> Result<Committed, Error> {
        let mut by_width: BTreeMap<usize, Vec<u8>> = BTreeMap::new();
        for hash in fresh {
            by_width.entry(hash.as_slice().len()).or_default().extend(hash.as_slice());
        }
        let named: Vec<Hashes> = by_width.iter().map(|(width, bytes)| Hashes::new(*width, bytes)).collect();
        let request = Request::Commit {
            fresh: named.iter().flat_map(|hashes| places(*hashes)).collect(),
            manifest: manifest.map(|(name, data)| (names::of_manifest(name), Arc::new(data.to_vec()))),
        };
        let items = manifest.iter().map(|(_, data)| Rc::from(*data)).collect();
        let published = manifest.map(|(name, data)| sdk::Manifest { name, len: data.len() as u64 });
        match self.call(request, items, until, |guest| guest.commit(&named, published))? {
            CommitOutcome::Published => Ok(Committed::Published),
            CommitOutcome::Absent(absent) => {
                let given: BTreeSet<&[u8]> = fresh.iter().map(ChunkHash::as_slice).collect();
                let absent = lists(&absent).flat_map(Hashes::iter).map(|hash| {
                    assert!(given.contains(hash), "the backend names a chunk that it was not given");
                    ChunkHash::new(hash)
                });
                Ok(Committed::Absent(absent.collect::<Result<_, _>>()?))
            }
        }
    }

    fn get_manifest(&self, name: &str, until: &Until) -> Result<Option<Arc<Buffer>>, Error> {
        let request = Request::GetManifest(names::of_manifest(name));
        let found = self.call(request, Vec::new(), until, |guest| guest.get_manifest(name))?;
        found.map(|payload| Ok(Arc::new(Buffer::concat(&[payload.bytes()])?))).transpose()
    }

    fn delete_manifest(&self, name: &str, until: &Until) -> Result<(), Error> {
        let request = Request::DeleteManifest(names::of_manifest(name));
        self.call(request, Vec::new(), until, |guest| guest.delete_manifest(name))
    }

    fn retire(&self) {
        let retired = self.0.slots.lock().idle.pop();
        if retired.is_some() {
            drop(Slot { of: &self.0, instance: None });
        }
    }

    fn drop_connections(&self) {
        let closed = std::mem::take(&mut *self.0.parked.lock());
        drop(closed);
    }
}
