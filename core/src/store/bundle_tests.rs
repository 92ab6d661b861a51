//! Bundles on a backend that loses, tears and evicts their parts at any moment: whole stores over a backend in memory.

use std::sync::{Arc, Mutex};

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use super::{Setup, Store};
use crate::backend::fake::Fake;
use crate::backend::{
    Answers, Backend, BackendLayer, ChunkHash, ChunkToPut, Committed, Got, Opening, Presence, Put, Target, Wrap,
};
use crate::bundle::{self, Loaded, Part};
use crate::descriptor::{Descriptor, Field};
use crate::error::Error;
use crate::payload::Buffer;
use crate::sandbox::fake::Fakes;
use crate::sandbox::{Features, Properties};
use crate::until::Until;

const URI: &str = "fake://h:1/bundles";

/// Done to the backend before one of the calls to come.
type Harm = Box<dyn FnOnce(&Fake) + Send>;

/// How many calls there are until then.
#[derive(Clone, Default)]
struct Harmed(Arc<Mutex<Option<(usize, Harm)>>>);

impl Harmed {
    fn before_call(&self, number: usize, harm: impl FnOnce(&Fake) + Send + 'static) {
        *self.0.lock().unwrap() = Some((number, Box::new(harm)));
    }

    /// Whether it has still to be done.
    fn waits(&self) -> bool {
        self.0.lock().unwrap().take().is_some()
    }
}

/// A layer that harms the backend below it.
struct Harming(Arc<Fake>, Harmed);

impl Harming {
    fn call(&self) -> &Fake {
        let mut planned = self.1.0.lock().unwrap();
        match planned.take() {
            Some((0, harm)) => harm(&self.0),
            Some((more, harm)) => *planned = Some((more - 1, harm)),
            None => {}
        }
        &self.0
    }
}

struct HarmingLayer(Arc<Fake>, Harmed);

impl BackendLayer for HarmingLayer {
    fn open(&self, _: &Opening<'_>) -> Result<Option<Wrap>, Error> {
        let layer = Harming(self.0.clone(), self.1.clone());
        Ok(Some(Box::new(|_| Arc::new(layer))))
    }
}

impl Backend for Harming {
    fn exists(&self, hashes: &[ChunkHash], until: &Until) -> Answers<Presence> {
        self.call().exists(hashes, until)
    }

    fn put(&self, chunks: &[ChunkToPut<'_>], replace: bool, until: &Until) -> Answers<Put> {
        self.call().put(chunks, replace, until)
    }

    fn get(&self, hashes: &[ChunkHash], targets: &mut [Target<'_>], until: &Until) -> Answers<Option<Got>> {
        self.call().get(hashes, targets, until)
    }

    fn delete(&self, hashes: &[ChunkHash], until: &Until) -> Answers<()> {
        self.call().delete(hashes, until)
    }

    fn commit(
        &self,
        manifest: Option<(&str, &[u8])>,
        fresh: &[ChunkHash],
        bytes: u64,
        until: &Until,
    ) -> Result<Committed, Error> {
        self.call().commit(manifest, fresh, bytes, until)
    }

    fn get_manifest(&self, name: &str, until: &Until) -> Result<Option<Arc<Buffer>>, Error> {
        self.call().get_manifest(name, until)
    }

    fn delete_manifest(&self, name: &str, until: &Until) -> Result<(), Error> {
        self.call().delete_manifest(name, until)
    }
}

struct BundleStore {
    backend: Arc<Fake>,
    harmed: Harmed,
    setup: Setup,
}

impl BundleStore {
    fn new(write_through: bool) -> Self {
        let properties = Properties { write_through, wants_fresh: true, ..Properties::default() };
        let fakes = Arc::new(Fakes::of(Features { properties, ..Features::default() }));
        let (backend, harmed) = (fakes.store(URI), Harmed::default());
        let layers: Vec<Arc<dyn BackendLayer>> = vec![Arc::new(HarmingLayer(backend.clone(), harmed.clone()))];
        // No breaker: what the faults come to is not the backend's health.
        let setup = Setup { layers, ..fakes.setup("[backend.fake]\nlayout1 = \"off\"\nlimits.breaker_failures = 0\n") };
        BundleStore { backend, harmed, setup }
    }
}

/// The parts of a bundle: each version of it has others, but for one that both share.
fn contents(number: u64, version: u64, parts: u64) -> Vec<(String, Vec<u8>)> {
    let content = |part: u64| {
        let seed = if part == 0 { number } else { number.wrapping_mul(1000) + version };
        xxh3_64_with_seed(&part.to_le_bytes(), seed).to_le_bytes().repeat(1 + part as usize)
    };
    (0..parts).map(|part| (format!("part {part}"), content(part))).collect()
}

fn save(store: &Store, name: &str, contents: &[(String, Vec<u8>)]) -> Result<(), Error> {
    let pieces: Vec<[&[u8]; 1]> = contents.iter().map(|(_, content)| [content.as_slice()]).collect();
    let parts: Vec<Part<'_>> = contents.iter().zip(&pieces).map(|((name, _), pieces)| Part { name, pieces }).collect();
    bundle::save(store, name, &parts)
}

fn is(found: &[(String, Buffer)], contents: &[(String, Vec<u8>)]) -> bool {
    found.len() == contents.len()
        && found.iter().zip(contents).all(|((name, found), (part, content))| name == part && found[..] == content[..])
}

#[test]
fn a_bundle_is_loaded_whole_and_says_what_it_lacks() {
    for write_through in [true, false] {
        let tested = BundleStore::new(write_through);
        let store = Store::open_with(URI, &tested.setup).unwrap();
        let whole = contents(1, 0, 3);
        assert!(matches!(bundle::load(&store, "b").unwrap(), Loaded::Nothing));
        save(&store, "b", &whole).unwrap();
        let other = Store::open_with(URI, &tested.setup).unwrap();
        assert!(matches!(bundle::load(&other, "b").unwrap(), Loaded::Whole(found) if is(&found, &whole)));
        let key = |part: usize| xxh3_64(&whole[part].1).to_le_bytes();
        tested.backend.lose(&key(1));
        tested.backend.store(&key(2), b"torn");
        let Loaded::Lacks(lacks) = bundle::load(&other, "b").unwrap() else { panic!("a part is gone") };
        assert_eq!(lacks, ["part 1", "part 2"]);
        // Saved again, it is whole again, also where its process takes a part to be there.
        save(&other, "b", &whole).unwrap();
        assert!(matches!(bundle::load(&other, "b").unwrap(), Loaded::Whole(found) if is(&found, &whole)));
        // It is of its descriptor, though its parts have none.
        let described = |model| {
            let store = Store::open_with(URI, &tested.setup).unwrap();
            store.describe(&Descriptor::default().with(Field::Model, model).unwrap()).unwrap();
            store
        };
        save(&described("one"), "c", &whole).unwrap();
        assert!(matches!(bundle::load(&described("two"), "c").unwrap(), Loaded::Nothing));
        assert!(matches!(bundle::load(&described("one"), "c").unwrap(), Loaded::Whole(_)));
    }
}

/// What befalls one bundle, of one number.
fn befall(tested: &BundleStore, number: u64, parts: u64) -> (usize, impl FnOnce(&Fake) + Send + 'static) {
    let dice = |what: u64, sides: u64| xxh3_64_with_seed(&what.to_le_bytes(), number) % sides;
    let (version, part) = (dice(1, 2), dice(2, parts) as usize);
    let content = contents(number, version, parts).swap_remove(part).1;
    let (key, what) = (xxh3_64(&content).to_le_bytes(), dice(3, 5));
    let _ = tested;
    let harm = move |backend: &Fake| match (what, backend.stored(&key)) {
        (_, None) => {}
        (0 | 1, Some(_)) => backend.lose(&key),
        (2, Some(stored)) => backend.store(&key, &stored[..stored.len() / 2]),
        (3, Some(mut stored)) => {
            stored[0] ^= 64;
            backend.store(&key, &stored);
        }
        // All are evicted from this one on.
        _ => backend.keys().iter().filter(|other| **other >= key.to_vec()).for_each(|key| backend.lose(key)),
    };
    (dice(4, 12) as usize, harm)
}

/// A part goes, is torn or is evicted before any of the calls of two saves and the loads between and after them. What is loaded is one of the
/// two, whole, or nothing.
#[test]
fn of_a_hundred_thousand_bundles_none_is_found_in_part() {
    // Without the optimizer they take four minutes, and the same code runs with it.
    const BUNDLES: u64 = if cfg!(debug_assertions) { 5_000 } else { 100_000 };
    let (mut wholes, mut lacks, mut refused, mut spared) = (0, 0, 0, 0);
    for write_through in [true, false] {
        let tested = BundleStore::new(write_through);
        let store = Store::open_with(URI, &tested.setup).unwrap();
        for number in 0..BUNDLES / 2 {
            let parts = 2 + number % 4;
            let versions = [0, 1].map(|version| contents(number, version, parts));
            let (call, harm) = befall(&tested, number, parts);
            tested.harmed.before_call(call, harm);
            for version in &versions {
                // One that fails leaves the former bundle, or none.
                refused += u64::from(save(&store, "b", version).is_err());
                for _ in 0..2 {
                    match bundle::load(&store, "b").unwrap() {
                        Loaded::Whole(found) => {
                            assert!(versions.iter().any(|version| is(&found, version)), "bundle {number}: {found:?}");
                            wholes += 1;
                        }
                        Loaded::Lacks(names) => lacks += u64::from(!names.is_empty()),
                        Loaded::Nothing => {}
                    }
                }
            }
            spared += u64::from(tested.harmed.waits());
            store.delete_manifest("b").unwrap();
            tested.backend.keys().iter().for_each(|key| tested.backend.lose(key));
        }
    }
    assert!(wholes > BUNDLES && lacks > BUNDLES / 20, "{wholes} whole, {lacks} not, {refused} not saved");
    assert!(spared < BUNDLES / 2, "{spared} were spared");
}
