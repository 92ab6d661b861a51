//! What values of another meaning come to: whole stores over a backend in memory, with several handles of one URI.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use xxhash_rust::xxh3::xxh3_64;

use super::tests::Standing;
use super::{BatchOptions, NewChunk, Presence, Process, ProcessParts, Put, Setup, Store};
use crate::backend::fake::Fake;
use crate::descriptor::{Descriptor, Field};
use crate::error::{Error, ErrorKind};
use crate::limits::{LOSS_TOLD_FOR, MEANING_REMEMBERED_FOR};
use crate::process::Clock;
use crate::sandbox::fake::Fakes;
use crate::sandbox::{Features, Properties};

const URI: &str = "fake://h:1/store";
const KEY: &[u8] = b"a hash of tokens, and of no more";

type DescribedFields<'a> = &'a [(Field, &'a str)];

/// A backend, and the process whose handles are on it. Its time stands still.
struct DescribedStore {
    backend: Arc<Fake>,
    process: Arc<Process>,
    time: Arc<Standing>,
    setup: Setup,
}

impl DescribedStore {
    fn new(write_through: bool, config: &str) -> Self {
        let (time, process) = Standing::process();
        let properties = Properties { write_through, cheap_repeat: write_through, ..Properties::default() };
        let fakes = Arc::new(Fakes::of(Features { properties, ..Features::default() }));
        let setup = Setup { process: process.clone(), ..fakes.setup(config) };
        DescribedStore { backend: fakes.store(URI), process, time, setup }
    }

    fn open(&self) -> Store {
        Store::open_with(URI, &self.setup).unwrap()
    }

    /// A handle of an engine that says this of its values.
    fn of(&self, fields: DescribedFields<'_>) -> Store {
        let store = self.open();
        store.describe(&said(fields)).unwrap();
        store
    }

    /// Another process on the same backend, which knows nothing of what this one has seen.
    fn elsewhere(&self) -> Self {
        let process = Process::new(ProcessParts { clock: Clock::of(self.time.clone()), ..ProcessParts::default() });
        let setup = Setup { process: process.clone(), ..self.setup.clone() };
        DescribedStore { backend: self.backend.clone(), process, time: self.time.clone(), setup }
    }

    fn reason(&self, reason: &str) -> u64 {
        self.process.metrics().series.iter().map(|series| series.unanswered[reason]).sum()
    }

    fn event(&self, event: &str) -> u64 {
        self.process.metrics().series.iter().map(|series| series.events[event]).sum()
    }

    fn later(&self, by: Duration) {
        *self.time.0.lock().unwrap() += by;
    }
}

fn said(fields: DescribedFields<'_>) -> Descriptor {
    fields.iter().fold(Descriptor::default(), |descriptor, (field, text)| descriptor.with(*field, text).unwrap())
}

fn put_with(store: &Store, key: &[u8], value: &[u8], options: BatchOptions) -> Result<Put, Error> {
    store.put_many(&[NewChunk::new(key, &[value])], &options, None)?.remove(0)
}

fn put(store: &Store, value: &[u8]) -> Result<Put, Error> {
    put_with(store, KEY, value, BatchOptions::default())
}

fn got(store: &Store) -> Option<Vec<u8>> {
    store.get_chunk(KEY).unwrap().map(|data| data.to_vec())
}

fn exists(store: &Store) -> bool {
    let presence = store.exists_many(&[KEY], &BatchOptions::default()).unwrap().remove(0).unwrap();
    matches!(presence, Presence::Present(_))
}

fn is_mismatch<T>(outcome: &Result<T, Error>) -> bool {
    outcome.as_ref().is_err_and(|error| error.kind() == ErrorKind::Mismatch)
}

const VLLM: DescribedFields<'_> = &[
    (Field::Model, "sha256:1f0c"),
    (Field::Architecture, "Qwen2ForCausalLM"),
    (Field::Layout, "NHD"),
    (Field::Dtype, "bfloat16"),
    (Field::Scales, "none"),
    (Field::BlockTokens, "16"),
    (Field::Layers, "28"),
    (Field::Heads, "2x128"),
    (Field::Rank, "0"),
    (Field::Ranks, "tp 1, pp 1"),
    (Field::Rope, "theta 1000000"),
    (Field::Adapters, "none"),
    (Field::Engine, "vllm"),
    (Field::Format, "direct 1"),
];

/// What was stored as one thing and read as another, each with where it was reported: what the writer and the reader say in which
/// they differ.
const CONFUSIONS: &[(&str, DescribedFields<'_>, DescribedFields<'_>)] = &[
    ("vLLM #55904: HND after NHD", &[(Field::Layout, "NHD")], &[(Field::Layout, "HND")]),
    ("vLLM #55904: NHD after HND", &[(Field::Layout, "HND")], &[(Field::Layout, "NHD")]),
    ("vLLM #55904: blocks across layers", &[(Field::Layout, "LBNHC")], &[(Field::Layout, "BLHNC")]),
    ("vLLM #49012: blocks of fp4 in another order", &[(Field::Layout, "NHD nvfp4")], &[(Field::Layout, "HND nvfp4")]),
    ("vLLM #55191: TP 2 after TP 1", &[(Field::Ranks, "tp 1")], &[(Field::Ranks, "tp 2")]),
    ("vLLM #55191: TP 1 after TP 2", &[(Field::Ranks, "tp 2")], &[(Field::Ranks, "tp 1")]),
    ("vLLM #55191: the second rank reads the first's", &[(Field::Rank, "0")], &[(Field::Rank, "1")]),
    ("vLLM #48414: canonical after direct", &[(Field::Format, "direct 1")], &[(Field::Format, "canonical 1")]),
    ("vLLM #49440: another model runner", &[(Field::Format, "runner 1")], &[(Field::Format, "runner 2")]),
    ("vLLM #49440: another part of the layers", &[(Field::Layers, "0-13 of 28")], &[(Field::Layers, "14-27 of 28")]),
    ("vLLM #42125: an adapter after none", &[(Field::Adapters, "none")], &[(Field::Adapters, "sha256:70e4 x1")]),
    ("vLLM #42125: none after an adapter", &[(Field::Adapters, "sha256:70e4 x1")], &[(Field::Adapters, "none")]),
    ("vLLM #44250: another adapter", &[(Field::Adapters, "sha256:70e4 x1")], &[(Field::Adapters, "sha256:cfb5 x1")]),
    (
        "vLLM #42125: the same with another weight",
        &[(Field::Adapters, "sha256:70e4 x1")],
        &[(Field::Adapters, "sha256:70e4 x0.5")],
    ),
    ("LMCache #4463: K and V fused", &[(Field::Layout, "NB,BS,2,NH*HS")], &[(Field::Layout, "NB,BS,NH,2*HS")]),
    ("LMCache #4463: the engine's next version", &[(Field::Format, "vllm 0.25")], &[(Field::Format, "vllm 0.26")]),
    ("LMCache #4253: heads for tokens", &[(Field::BlockTokens, "1600")], &[(Field::BlockTokens, "1")]),
    ("LMCache #4463: heads and sizes that multiply to the same", &[(Field::Heads, "2x128")], &[(Field::Heads, "4x64")]),
    ("LMCache: dtype left to a salt", &[(Field::Dtype, "bfloat16")], &[(Field::Dtype, "float16")]),
    ("LMCache: another FP8", &[(Field::Dtype, "float8_e4m3fn")], &[(Field::Dtype, "float8_e5m2")]),
    ("LMCache: scales of another grain", &[(Field::Scales, "tensor")], &[(Field::Scales, "head")]),
    ("ds4 #805: other weights under one name", &[(Field::Model, "sha256:1f0c")], &[(Field::Model, "sha256:9a44")]),
    ("ds4 #805: another quantisation", &[(Field::Model, "q4_k_m 1f0c")], &[(Field::Model, "q8_0 1f0c")]),
    (
        "ds4 #805: another architecture with this shape",
        &[(Field::Architecture, "Qwen2ForCausalLM")],
        &[(Field::Architecture, "LlamaForCausalLM")],
    ),
    ("SGLang #31926: ranks share a folder", &[(Field::Rank, "0 of 8")], &[(Field::Rank, "7 of 8")]),
    ("SGLang #15175: stages share a folder", &[(Field::Rank, "pp 0")], &[(Field::Rank, "pp 1")]),
    ("SGLang #24758: the served name stays", &[(Field::Model, "rev 3f2a")], &[(Field::Model, "rev 77b0")]),
    ("SGLang #24758: another page size", &[(Field::BlockTokens, "64")], &[(Field::BlockTokens, "128")]),
    (
        "SGLang #24758: positions are stretched",
        &[(Field::Rope, "theta 1000000")],
        &[(Field::Rope, "theta 1000000, yarn 4")],
    ),
    ("SGLang #24758: another engine's pages", &[(Field::Engine, "sglang")], &[(Field::Engine, "vllm")]),
];

fn with(fields: DescribedFields<'_>) -> Descriptor {
    said(fields).over(&said(VLLM))
}

/// Each of them is a miss whichever way it is asked for, refuses a put and stays as it is; and its writer has it back, in another
/// process too.
#[test]
fn thirty_confusions_are_thirty_misses_and_nobody_misses_its_own() {
    assert_eq!(CONFUSIONS.len(), 30);
    for write_through in [true, false] {
        for (what, writes, reads) in CONFUSIONS {
            let tested = DescribedStore::new(write_through, "");
            let open = |tested: &DescribedStore, descriptor: &Descriptor| {
                let store = tested.open();
                store.describe(descriptor).unwrap();
                store
            };
            let (writer, reader) = (with(writes), with(reads));
            assert_ne!(writer.digest(), reader.digest(), "{what}");
            let own = open(&tested, &writer);
            own.put_chunk(KEY, b"KV of one meaning").unwrap();
            own.put_manifest("conversation", b"one").unwrap();

            // A reader of this process, and one that has seen nothing.
            for tested in [&tested, &tested.elsewhere()] {
                let other = open(tested, &reader);
                let before = (tested.reason("descriptor"), tested.event("hits"));
                assert_eq!(got(&other), None, "{what}");
                assert!(other.get_manifest("conversation").unwrap().is_none(), "{what}");
                let risen = (tested.reason("descriptor") - before.0, tested.event("hits") - before.1);
                assert_eq!(risen, (2, 0), "{what}");
                assert!(!exists(&other), "{what}: it was read, and is known to be another's");
                assert!(is_mismatch(&put(&other, b"KV of another one")), "{what}");
                let replacing = BatchOptions::default().with_replace();
                assert!(is_mismatch(&put_with(&other, KEY, b"KV of another one", replacing)), "{what}");
                let published = other.put_manifest("conversation", b"another");
                assert!(is_mismatch(&published), "{what}: {published:?}");
            }

            // Nothing was lost by it.
            for tested in [&tested, &tested.elsewhere()] {
                let own = open(tested, &writer);
                let before = tested.event("hits");
                assert_eq!(got(&own).as_deref(), Some(&b"KV of one meaning"[..]), "{what}");
                assert_eq!(&*own.get_manifest("conversation").unwrap().unwrap(), b"one", "{what}");
                assert!(exists(&own) && tested.event("hits") == before + 2, "{what}");
                assert!(matches!(put(&own, b"KV of one meaning"), Ok(Put::Existed)), "{what}");
                own.put_manifest("conversation", b"one").unwrap();
            }
        }
    }
}

const ONE: DescribedFields<'_> = &[(Field::Model, "one")];
const TWO: DescribedFields<'_> = &[(Field::Model, "two")];

#[test]
fn a_put_that_waits_is_refused_by_its_manifest() {
    let tested = DescribedStore::new(false, "");
    put(&tested.of(ONE), b"one's").unwrap();
    let two = tested.elsewhere().of(TWO);
    let before = tested.backend.keys();
    assert_eq!(two.put_chunk(KEY, b"two's").unwrap(), Put::New, "nobody was asked yet");
    let refused = two.put_manifest("m", b"names it").unwrap_err();
    assert!(refused.kind() == ErrorKind::Mismatch && refused.to_string().contains("descriptor"), "{refused}");
    assert_eq!(tested.backend.stored_manifest("m\u{2}"), None);
    assert_eq!(tested.backend.keys(), before);
    assert_eq!(got(&tested.of(ONE)).as_deref(), Some(&b"one's"[..]));
    // It is told for a while, and does not stand in the way of later ones.
    tested.later(LOSS_TOLD_FOR);
    two.put_chunk(b"another key", b"two's").unwrap();
    two.put_manifest("m", b"names the other").unwrap();
}

#[test]
fn what_nobody_described_is_as_before() {
    let tested = DescribedStore::new(true, "");
    let (unset, one) = (tested.open(), tested.of(ONE));
    put(&unset, b"plain").unwrap();
    unset.put_manifest("m", b"plain").unwrap();
    // Of it nothing is known: it is answered.
    assert_eq!(got(&one).as_deref(), Some(&b"plain"[..]));
    assert!(matches!(put(&one, b"plain"), Ok(Put::Existed)) && exists(&one));
    one.put_manifest("m", b"described").unwrap();
    put_with(&one, KEY, b"described", BatchOptions::default().with_replace()).unwrap();
    // Who says nothing reads everything.
    assert_eq!(got(&unset).as_deref(), Some(&b"described"[..]));
    assert_eq!(&*unset.get_manifest("m").unwrap().unwrap(), b"described");
    assert!(matches!(put(&unset, b"x"), Ok(Put::Existed)));
    assert_eq!((tested.reason("descriptor"), tested.event("other_descriptors")), (0, 0));
    // What it puts over them has none.
    unset.put_manifest("m", b"plain again").unwrap();
    let two = tested.of(TWO);
    assert_eq!(&*two.get_manifest("m").unwrap().unwrap(), b"plain again");
    two.put_manifest("m", b"two's").unwrap();
    assert!(one.get_manifest("m").unwrap().is_none());
}

#[test]
fn chunks_under_hashes_of_their_content_are_shared_and_their_manifest_is_not() {
    let tested = DescribedStore::new(true, "");
    let (one, two) = (tested.of(ONE), tested.of(TWO));
    let key = xxh3_64(b"content").to_le_bytes();
    one.put_chunk(&key, b"content").unwrap();
    one.put_manifest("m", &key).unwrap();
    assert_eq!(&*two.get_chunk(&key).unwrap().unwrap(), b"content");
    assert!(two.get_manifest("m").unwrap().is_none());
}

#[test]
fn what_is_gone_makes_room_for_another() {
    let tested = DescribedStore::new(true, "");
    let (one, two) = (tested.of(ONE), tested.of(TWO));
    put(&one, b"one's").unwrap();
    one.put_manifest("m", b"one's").unwrap();
    assert!(got(&two).is_none() && !exists(&two));
    one.delete_many(&[KEY]).unwrap().remove(0).unwrap();
    one.delete_manifest("m").unwrap();
    assert!(matches!(put(&two, b"two's"), Ok(Put::New)));
    two.put_manifest("m", b"two's").unwrap();
    assert!(exists(&two) && got(&one).is_none() && !exists(&one));
    assert!(is_mismatch(&put(&one, b"one's")), "it does not count on what it put before");
    assert!(is_mismatch(&one.put_manifest("m", b"one's")));
}

#[test]
fn what_another_process_put_since_is_noticed_after_a_while_at_the_latest() {
    let tested = DescribedStore::new(true, "");
    let one = tested.of(ONE);
    put(&one, b"one's").unwrap();
    one.put_manifest("m", b"one's").unwrap();
    let elsewhere = tested.elsewhere();
    elsewhere.open().delete_many(&[KEY]).unwrap().remove(0).unwrap();
    elsewhere.open().delete_manifest("m").unwrap();
    let two = elsewhere.of(TWO);
    put(&two, b"two's").unwrap();
    two.put_manifest("m", b"two's").unwrap();
    // A read is never wrong, whatever is remembered.
    assert_eq!(got(&one), None);
    assert!(one.get_manifest("m").unwrap().is_none());
    let unread = tested.elsewhere().of(ONE);
    assert!(is_mismatch(&put(&unread, b"one's")));
    tested.later(MEANING_REMEMBERED_FOR);
    assert!(is_mismatch(&put(&one, b"one's")) && is_mismatch(&one.put_manifest("m", b"one's")));
}

#[test]
fn a_repeated_put_reads_what_lies_there_once() {
    for write_through in [true, false] {
        let tested = DescribedStore::new(write_through, "");
        put(&tested.of(ONE), b"one's").unwrap();
        let tested = tested.elsewhere();
        let one = tested.of(ONE);
        let calls = |run: &dyn Fn()| {
            let before = tested.backend.calls();
            run();
            tested.backend.calls() - before
        };
        let again = || assert!(matches!(put(&one, b"one's"), Ok(Put::Existed)));
        let (first, second) = (calls(&again), calls(&again));
        assert_eq!(first, second + 1);
        let unset = tested.open();
        assert_eq!(calls(&|| assert!(matches!(put(&unset, b"x"), Ok(Put::Existed)))), second);
    }
}

#[test]
fn a_damaged_value_is_replaced_whosever_it_was() {
    let tested = DescribedStore::new(true, "");
    put(&tested.of(ONE), b"one's").unwrap();
    let key = [KEY, b"\x02kv2"].concat();
    let mut stored = tested.backend.stored(&key).unwrap();
    stored[0] ^= 1;
    tested.backend.store(&key, &stored);
    let two = tested.elsewhere().of(TWO);
    assert!(matches!(put(&two, b"two's"), Ok(Put::New)));
    assert_eq!(got(&two).as_deref(), Some(&b"two's"[..]));
}

#[test]
fn a_value_of_layout_1_is_not_answered_in_place_of_anothers() {
    let tested = DescribedStore::new(true, "");
    tested.backend.store(KEY, b"of a former version");
    let (one, two) = (tested.of(ONE), tested.of(TWO));
    assert_eq!(got(&two).as_deref(), Some(&b"of a former version"[..]));
    put(&one, b"one's").unwrap();
    assert_eq!(got(&two), None);
    let items = &mut [super::Fetch::new(KEY, super::Memory::Allocate)];
    assert!(two.get_many(items, &BatchOptions::default()).unwrap().remove(0).unwrap().is_none());
}

#[test]
fn a_handle_is_described_before_it_is_used_and_once() {
    let tested = DescribedStore::new(true, "[backend.fake.descriptor]\nmodel = \"one\"\nrank = 3\n");
    let store = tested.open();
    assert_eq!(store.descriptor().unwrap(), said(&[(Field::Model, "one"), (Field::Rank, "3")]));
    store.describe(&said(&[(Field::Dtype, "int8")])).unwrap();
    store.describe(&said(&[(Field::Dtype, "int8")])).unwrap();
    let refused = store.describe(&said(&[(Field::Dtype, "int4")])).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Invalid);
    assert_eq!(store.descriptor().unwrap(), said(&[(Field::Model, "one"), (Field::Rank, "3"), (Field::Dtype, "int8")]));

    let used = tested.open();
    put(&used, b"value").unwrap();
    assert!(used.describe(&said(&[(Field::Dtype, "int8")])).is_err(), "it was put as the config says");
    used.describe(&Descriptor::default()).unwrap();
    assert_eq!(got(&store), None, "the config says less than this engine");

    let contradicts = tested.open().describe(&said(&[(Field::Rank, "4")])).unwrap_err();
    assert!(contradicts.to_string().contains("rank"), "{contradicts}");
}

#[test]
fn a_tenant_says_more_than_its_backend() {
    let config = "[backend.fake.descriptor]\nmodel = \"one\"\nrank = 0\n[[tenant]]\nuri = \"fake://h:1/\"\ndescriptor.rank = 1\n";
    let tested = DescribedStore::new(true, config);
    assert_eq!(tested.open().descriptor().unwrap(), said(&[(Field::Model, "one"), (Field::Rank, "1")]));
}

#[test]
fn where_a_descriptor_is_required_whoever_leaves_a_field_unset_is_refused() {
    let tested = DescribedStore::new(true, "[backend.fake]\nrequire_descriptor = true\ndescriptor.rope = \"none\"\n");
    let plain = DescribedStore {
        setup: Setup { config: DescribedStore::new(true, "").setup.config, ..tested.setup.clone() },
        ..tested.elsewhere()
    };
    put(&plain.open(), b"of who says nothing").unwrap();
    plain.open().put_manifest("m", b"of who says nothing").unwrap();
    plain.backend.store(b"former", b"of a former version");

    let unset = tested.open();
    assert_eq!(got(&unset), None);
    assert!(unset.get_manifest("m").unwrap().is_none() && !exists(&unset));
    assert_eq!(tested.reason("descriptor"), 2);
    for refused in [put(&unset, b"x").map(drop), unset.put_manifest("n", b"x"), unset.put_chunk(KEY, b"x").map(drop)] {
        let error = refused.unwrap_err();
        assert!(error.kind() == ErrorKind::Denied && error.to_string().contains("model, architecture"), "{error}");
        assert!(!error.to_string().contains("rope"), "the config says it: {error}");
    }
    let partly = tested.open().describe(&said(ONE)).unwrap_err();
    assert!(partly.kind() == ErrorKind::Denied && !partly.to_string().contains("model"), "{partly}");

    let all = Field::ALL.into_iter().filter(|field| *field != Field::Rope);
    let all = all.fold(Descriptor::default(), |all, field| all.with(field, "x").unwrap());
    let store = tested.open();
    store.describe(&all).unwrap();
    // Of what nobody has described it is not known what it is.
    assert_eq!(got(&store), None);
    assert!(store.get_manifest("m").unwrap().is_none() && store.get_chunk(b"former").unwrap().is_none());
    assert_eq!(plain.event("removed_chunks"), 0);
    // It stands in nobody's way.
    assert!(matches!(put(&store, b"described"), Ok(Put::New)));
    store.put_manifest("m", b"described").unwrap();
    assert_eq!(got(&store).as_deref(), Some(&b"described"[..]));
    assert!(store.get_manifest("m").unwrap().is_some());
}

#[test]
fn a_batch_has_an_outcome_for_each_item() {
    for (write_through, most) in [(true, 0), (false, 0), (true, 1), (false, 1)] {
        let tested = DescribedStore::new(write_through, "");
        tested.backend.most_answered.store(most, Relaxed);
        let keys: Vec<Vec<u8>> = (0..9_u8).map(|n| [KEY, &[n]].concat()).collect();
        let batch = |store: &Store, keys: &[Vec<u8>], options: BatchOptions| {
            let chunks: Vec<NewChunk<'_>> = keys.iter().map(|key| NewChunk::new(key, &[b"value"])).collect();
            store.put_many(&chunks, &options, None).unwrap()
        };
        let (one, two) = (tested.of(ONE), tested.of(TWO));
        assert!(batch(&one, &keys[..3], BatchOptions::default()).iter().all(Result::is_ok));
        assert!(batch(&two, &keys[3..6], BatchOptions::default()).iter().all(Result::is_ok));
        let two = tested.elsewhere().of(TWO);
        for options in [BatchOptions::default(), BatchOptions::default().with_replace()] {
            let outcomes = batch(&two, &keys, options);
            let (others, own) = outcomes.split_at(3);
            assert!(others.iter().all(is_mismatch) && own.iter().all(Result::is_ok), "{outcomes:?}");
        }
    }
}
