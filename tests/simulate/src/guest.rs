//! What stands for a component: it opens any URI, and takes each call to the simulated storage system, late, twice, in part or not at
//! all, as chance has it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kv_store_core::backend::{Answers, Backend, ChunkHash, ChunkToPut, Committed, Got, Presence, Put, Target};
use kv_store_core::config::{Config, Digest, Helper};
use kv_store_core::limits::Limits;
use kv_store_core::policy::Served;
use kv_store_core::sandbox::{
    Component, Components, Features, FoundComponent, Instances, Maintenance, Properties, Reach,
};
use kv_store_core::threads::Whose;
use kv_store_core::until::Until;
use kv_store_core::{Buffer, Error, ErrorKind};

use crate::calls::{self, Asked};
use crate::names::{self, Stored};
use crate::plan::{self, Shape};
use crate::shipped::{self, Shipped};
use crate::sim::Sim;
use crate::world::{Reply, Request};

/// The components of one process.
#[derive(Clone)]
pub struct Guest {
    pub sim: Arc<Sim>,
    pub process: usize,
}

impl std::fmt::Debug for Guest {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Guest({})", self.process)
    }
}

impl Components for Guest {
    fn serve(&self, scheme: &str, _: &Config) -> Result<FoundComponent, Error> {
        let component = PathBuf::from("/simulated.wasm");
        // `s3+http` is a scheme of s3.
        let name = scheme.split('+').next().unwrap_or(scheme);
        Ok(FoundComponent { component, by_config: false, ships: true, served: Served::by_name(name), identity: None })
    }

    fn names(&self) -> BTreeSet<String> {
        BTreeSet::new()
    }

    fn guarded(&self) -> Vec<(&'static str, PathBuf)> {
        Vec::new()
    }

    fn load(
        &self,
        _: &Path,
        _: Option<Digest>,
        _: &Limits,
        _: &Helper,
        _: &Whose,
    ) -> Result<Arc<dyn Component>, Error> {
        Ok(Arc::new(self.clone()))
    }
}

impl Component for Guest {
    fn digest(&self) -> [u8; 32] {
        [7; 32]
    }

    fn open(
        self: Arc<Self>,
        reach: Arc<Reach>,
        uri: &str,
        options: Vec<(String, String)>,
        until: &Until,
    ) -> Result<(Arc<dyn Instances>, Features), Error> {
        if self.sim.plan.shape.backend != plan::Backend::Contract {
            let (of, features) = shipped::open(&self, uri, options, &reach, until)?;
            return Ok((Arc::new(Shipped(of)), features));
        }
        let features = features(&self.sim.plan.shape);
        Ok((self, features))
    }
}

fn features(shape: &Shape) -> Features {
    Features {
        label: "simulated".into(),
        properties: Properties {
            durable: shape.durable,
            shared: !shape.holds_data,
            cheap_repeat: shape.cheap_repeat,
            write_through: shape.write_through,
            holds_data: shape.holds_data,
            wants_fresh: shape.wants_fresh,
            evicts: shape.evicts,
            settles: shape.settles,
        },
        batch_items: Some(shape.batch_items),
        ..Features::default()
    }
}

impl Instances for Guest {
    fn max_instances(&self) -> usize {
        if self.sim.plan.shape.holds_data { 1 } else { 8 }
    }

    fn lost(&self) -> u64 {
        self.sim.world().lost
    }

    fn maintenance(&self) -> Option<&dyn Maintenance> {
        None
    }
}

fn chunk(hash: &ChunkHash) -> Stored {
    names::of_chunk(hash.as_slice())
}

/// What was read for an item.
type Read = Result<Option<Arc<Vec<u8>>>, Error>;

fn wrong() -> Error {
    Error::new(ErrorKind::Other, "the simulated storage system answered something else than it was asked")
}

impl Guest {
    /// The first items, as many as are answered, each with its failure where it has one.
    fn items<T>(asked: Asked, answers: Vec<T>) -> Answers<T> {
        let Asked { most, failing, .. } = asked;
        let item = |(at, answer)| match failing.get(&at) {
            Some(error) => Err(error.clone()),
            None => Ok(answer),
        };
        Ok(answers.into_iter().enumerate().take(most).map(item).collect())
    }
}

impl Backend for Guest {
    fn exists(&self, hashes: &[ChunkHash], until: &Until) -> Answers<Presence> {
        let request = Request::Exists(hashes.iter().map(chunk).collect());
        match calls::ask(self, request, until)? {
            (asked, Reply::Exists(answers)) => Self::items(asked, answers),
            _ => Err(wrong()),
        }
    }

    fn put(&self, chunks: &[ChunkToPut<'_>], replace: bool, until: &Until) -> Answers<Put> {
        let stored = |(hash, bytes): &ChunkToPut<'_>| (chunk(hash), Arc::new(bytes.pieces().concat()));
        let request = Request::Put { chunks: chunks.iter().map(stored).collect(), replace };
        match calls::ask(self, request, until)? {
            (asked, Reply::Put(answers)) => Self::items(asked, answers),
            _ => Err(wrong()),
        }
    }

    fn get(&self, hashes: &[ChunkHash], targets: &mut [Target<'_>], until: &Until) -> Answers<Option<Got>> {
        let request = Request::Get(hashes.iter().map(chunk).collect());
        let (asked, Reply::Get(answers)) = calls::ask(self, request, until)? else { return Err(wrong()) };
        let damage = asked.damage.clone();
        let answers = Self::items(asked, answers)?;
        let mut targets = targets.iter_mut();
        let place = |(at, answer): (usize, Read)| {
            let target = targets.next();
            let Some(data) = answer? else { return Ok(None) };
            let data =
                damage.as_ref().filter(|damage| damage.item == at).map_or(data.clone(), |damage| damage.of(&data));
            until.moved(data.len() as u64);
            match target.and_then(|target| target.place(&data)) {
                Some(placed) => Ok(Some(placed)),
                None => Ok(Some(Got::Buffer(Arc::new(Buffer::concat(&[&data])?)))),
            }
        };
        Ok(answers.into_iter().enumerate().map(place).collect())
    }

    fn delete(&self, hashes: &[ChunkHash], until: &Until) -> Answers<()> {
        match calls::ask(self, Request::Delete(hashes.iter().map(chunk).collect()), until)? {
            (asked, Reply::Delete(count)) => Self::items(asked, vec![(); count]),
            _ => Err(wrong()),
        }
    }

    fn commit(
        &self,
        manifest: Option<(&str, &[u8])>,
        fresh: &[ChunkHash],
        _: u64,
        until: &Until,
    ) -> Result<Committed, Error> {
        let request = Request::Commit {
            fresh: fresh.iter().map(chunk).collect(),
            manifest: manifest.map(|(name, data)| (names::of_manifest(name), Arc::new(data.to_vec()))),
        };
        match calls::ask(self, request, until)? {
            (_, Reply::Commit(absent)) if absent.is_empty() => Ok(Committed::Published),
            (_, Reply::Commit(absent)) => {
                Ok(Committed::Absent(absent.into_iter().filter_map(|at| fresh.get(at).copied()).collect()))
            }
            _ => Err(wrong()),
        }
    }

    fn get_manifest(&self, name: &str, until: &Until) -> Result<Option<Arc<Buffer>>, Error> {
        match calls::ask(self, Request::GetManifest(names::of_manifest(name)), until)? {
            (asked, Reply::Manifest(Some(data))) => {
                let data = asked.damage.map_or(data.clone(), |damage| damage.of(&data));
                Ok(Some(Arc::new(Buffer::concat(&[&data])?)))
            }
            (_, Reply::Manifest(None)) => Ok(None),
            _ => Err(wrong()),
        }
    }

    fn delete_manifest(&self, name: &str, until: &Until) -> Result<(), Error> {
        match calls::ask(self, Request::DeleteManifest(names::of_manifest(name)), until)? {
            (_, Reply::Done) => Ok(()),
            _ => Err(wrong()),
        }
    }

    fn retire(&self) {
        let now = self.sim.threads.moment();
        self.sim.world().retire(now);
    }
}
