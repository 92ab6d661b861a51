//! A store as the far level of the block cache: `kv_blocks` over the batches of the Rust API.
//!
//! Blocks are written and read straight from and to the slots of the cache. Each call has the time that the cache gives it, and
//! never more than the operator's deadlines.
//!
//! A block has a tail with a checksum, so it lies plain. A plain value has no room for a descriptor: of a store whose values are described,
//! blocks lie in envelopes, and what was put plain before is found behind them, as anything of layout 1 is.

use std::sync::Arc;
use std::time::{Duration, Instant};

pub use kv_blocks::{Acquired, Cache, Config, Dtype, Error as BlockError, Layout, Spec};
use kv_blocks::{Blocking, DamagedItem, Features, GetItem, Outcome, PutItem, Workers};

use crate::descriptor::{Descriptor, Field, short};
use crate::error::{Error, ErrorKind};
use crate::store::{BatchOptions, Damage, Fetch, Fetched, Memory, NewChunk, Presence, Put, Store};

/// The least time for a call that follows another one of the same request.
const LEAST: Duration = Duration::from_millis(1);

/// What the tail of a block is, for descriptors.
const FORMAT: &str = "KVB1";

/// A store, as the cache calls it.
pub struct StoreFar {
    store: Arc<Store>,
    /// Its values are described.
    enveloped: bool,
}

impl StoreFar {
    /// A far level of so many threads over a store. [`describe`] it before.
    pub fn start(store: Arc<Store>, threads: usize) -> Result<Workers<StoreFar>, Error> {
        let enveloped = !store.descriptor()?.is_empty();
        Ok(Workers::start(StoreFar { store, enveloped }, threads)?)
    }
}

/// Say of a store what the blocks of a cache are, before its first use: what the cache's config says, and beside it what the spec and the
/// operator do. Where neither config nor operator says anything, nothing is said: the spec is part of each key as it is.
///
/// # Errors
/// `Invalid`: a field that there is not, a text that is none, or one of which the operator says something else. `Denied`: the store's config has
/// `require_descriptor`, and a field is unset.
pub fn describe(store: &Store, config: &Config, spec: &Spec) -> Result<(), Error> {
    let said = said(config)?;
    let operator = store.descriptor()?;
    if said.is_empty() && operator.is_empty() {
        return Ok(());
    }
    let known = known(config, spec)?;
    store.describe(&said.over(&operator.over(&known)))
}

/// What the config of a cache says of its blocks.
///
/// # Errors
/// As [`describe`].
pub fn said(config: &Config) -> Result<Descriptor, Error> {
    config.descriptor.iter().try_fold(Descriptor::default(), |descriptor, (name, text)| {
        let field = Field::of(name).ok_or_else(|| Error::invalid(format!("descriptor: there is no field {name:?}")))?;
        descriptor.with(field, text)
    })
}

/// What a spec says of blocks.
fn known(config: &Config, spec: &Spec) -> Result<Descriptor, Error> {
    let all = Spec::new("", 0, 0);
    let range = |range: &std::ops::Range<u32>, all: &std::ops::Range<u32>| match range == all {
        true => "all".to_owned(),
        false => format!("{}-{}", range.start, range.end - 1),
    };
    let (rank, ranks) = spec.tensor_parallel;
    let block_tokens = usize::try_from(config.block_size).unwrap_or(spec.engine_block_tokens);
    [
        (Field::Model, short(&spec.model)),
        (Field::Layout, spec.layout.to_string()),
        (Field::Dtype, spec.dtype.name().to_owned()),
        (Field::BlockTokens, block_tokens.to_string()),
        (Field::Layers, range(&spec.layers, &all.layers)),
        (Field::Heads, range(&spec.heads, &all.heads)),
        (Field::Rank, rank.to_string()),
        (Field::Ranks, format!("tp {ranks}")),
        (Field::Format, FORMAT.to_owned()),
    ]
    .into_iter()
    .try_fold(Descriptor::default(), |descriptor, (field, text)| descriptor.with(field, &text))
}

impl From<kv_blocks::Error> for Error {
    fn from(error: kv_blocks::Error) -> Self {
        use kv_blocks::ErrorKind as Kind;
        let kind = match error.kind() {
            Kind::NotFound => ErrorKind::Missing,
            Kind::Invalid => ErrorKind::Invalid,
            Kind::OutOfMemory => ErrorKind::Exhausted,
            Kind::Timeout | Kind::Denied => ErrorKind::Unavailable,
            Kind::Cancelled => ErrorKind::Cancelled,
            Kind::Corrupt => ErrorKind::Corrupt,
            _ => ErrorKind::Other,
        };
        Error::new(kind, error.to_string())
    }
}

fn failed(error: &Error) -> Outcome {
    use kv_blocks::ErrorKind as Kind;
    Outcome::Failed(match error.kind() {
        ErrorKind::Denied | ErrorKind::Exhausted | ErrorKind::Mismatch => Kind::Denied,
        ErrorKind::Invalid | ErrorKind::Unsupported => Kind::Invalid,
        ErrorKind::Corrupt => Kind::Corrupt,
        ErrorKind::Cancelled => Kind::Cancelled,
        _ => Kind::Error,
    })
}

impl StoreFar {
    /// How batches of blocks are carried out. A time of nothing is one that nobody waits for: the operator's deadlines hold.
    fn options(&self, timeout: Duration) -> BatchOptions {
        let options = BatchOptions::default();
        // A block has a tail of its own.
        let options = if self.enveloped { options } else { options.with_values_that_check_themselves() };
        if timeout.is_zero() { options } else { options.with_timeout(timeout) }
    }
}

/// An outcome for each item, or the failure of the whole call for each.
fn each<T>(
    answers: Result<Vec<Result<T, Error>>, Error>,
    items: usize,
    outcome: impl Fn(T) -> Outcome,
) -> Vec<Outcome> {
    match answers {
        Ok(answers) => answers.into_iter().map(|answer| answer.map_or_else(|error| failed(&error), &outcome)).collect(),
        Err(error) => vec![failed(&error); items],
    }
}

impl Blocking for StoreFar {
    fn features(&self) -> Features {
        let deletes = self.store.opened().is_ok_and(|opened| opened.batch_info().deletes);
        if deletes { Features::default() } else { Features::default().without_deletes() }
    }

    fn put_many(&self, items: &[PutItem], timeout: Duration) -> Vec<Outcome> {
        let pieces: Vec<[&[u8]; 2]> = items.iter().map(PutItem::pieces).collect();
        let items_and_pieces = items.iter().zip(&pieces);
        let chunks: Vec<NewChunk<'_>> =
            items_and_pieces.map(|(item, pieces)| NewChunk::new(item.key(), pieces)).collect();
        let begun = Instant::now();
        let answers = self.store.put_many(&chunks, &self.options(timeout), None);
        // What is there under the same tokens may have other bytes: nobody has compared them. It is rare, since what is there is mostly got and
        // not put.
        let existed: Vec<usize> = answers
            .iter()
            .flatten()
            .enumerate()
            .filter_map(|(at, put)| matches!(put, Ok(Put::Existed)).then_some(at))
            .collect();
        let mut outcomes = each(answers, items.len(), |_| Outcome::Done);
        if existed.is_empty() {
            return outcomes;
        }
        let left = if timeout.is_zero() { timeout } else { timeout.saturating_sub(begun.elapsed()).max(LEAST) };
        let again: Vec<NewChunk<'_>> = existed.iter().filter_map(|at| chunks.get(*at).copied()).collect();
        let replaced = self.store.put_many(&again, &self.options(left).with_replace(), None);
        for (at, outcome) in existed.iter().zip(each(replaced, again.len(), |_| Outcome::Done)) {
            outcomes.get_mut(*at).into_iter().for_each(|place| *place = outcome);
        }
        outcomes
    }

    fn get_many(&self, items: &mut [GetItem], timeout: Duration) -> Vec<Outcome> {
        let count = items.len();
        let (hashes, mut rooms): (Vec<&[u8]>, Vec<[&mut [u8]; 2]>) = items.iter_mut().map(GetItem::parts).unzip();
        let fetch = |(hash, room)| Fetch::new(hash, Memory::Pieces(room));
        let mut fetches: Vec<Fetch<'_>> =
            hashes.into_iter().zip(rooms.iter_mut().map(|room| room.as_mut_slice())).map(fetch).collect();
        each(self.store.get_many(&mut fetches, &self.options(timeout)), count, |found| match found {
            Some(Fetched::Placed(len) | Fetched::TooLong(len)) => Outcome::Found(len),
            // Nobody has asked for a buffer.
            Some(Fetched::Buffer(_)) | None => Outcome::Missing,
        })
    }

    fn exists_many(&self, keys: &[Vec<u8>], timeout: Duration) -> Vec<Outcome> {
        let hashes: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
        each(self.store.exists_many(&hashes, &self.options(timeout)), keys.len(), |presence| match presence {
            Presence::Present(_) => Outcome::Done,
            Presence::Absent => Outcome::Missing,
        })
    }

    fn delete_many(&self, keys: &[Vec<u8>], _timeout: Duration) -> Vec<Outcome> {
        let hashes: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
        each(self.store.delete_many_with(&hashes, &self.options(Duration::ZERO)), keys.len(), |()| Outcome::Done)
    }

    /// As of any chunk: what is damaged is removed only when it is found so again, with the same bytes, later and over another connection.
    fn look_at_damaged(&self, items: &[DamagedItem], timeout: Duration) -> Vec<Outcome> {
        let look = |item: &DamagedItem| {
            let mut fetches = [Fetch::new(item.key(), Memory::Allocate)];
            let fetched = self.store.get_many(&mut fetches, &self.options(timeout))?.pop().transpose()?.flatten();
            let Some(Fetched::Buffer(data)) = fetched else { return Ok(Outcome::Missing) };
            if item.is_sound(&data) {
                return Ok(Outcome::Missing);
            }
            let store = self.store.within(Some(timeout).filter(|timeout| !timeout.is_zero()));
            let damage = store.found_damaged(item.key(), &data, &|again| item.is_sound(again))?;
            Ok(if matches!(damage, Damage::Removed) { Outcome::Done } else { Outcome::Missing })
        };
        items.iter().map(|item| look(item).unwrap_or_else(|error: Error| failed(&error))).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::time::{Instant, SystemTime};

    use kv_blocks::metrics::{Level, Op};

    use super::*;
    use crate::backend::fake::Fake;
    use crate::process::{Clock, Time};
    use crate::sandbox::fake::Fakes;
    use crate::sandbox::{Features, Properties};
    use crate::store::{Process, ProcessParts, Setup};

    const URI: &str = "fake://h:1/blocks";
    const BLOCK: usize = 4;

    /// A time that stands still until it is told to pass.
    struct Standing(Mutex<Duration>, Instant);

    impl Time for Standing {
        fn now(&self) -> Instant {
            self.1 + *self.0.lock().unwrap()
        }

        fn wall(&self) -> SystemTime {
            SystemTime::UNIX_EPOCH
        }
    }

    /// A store whose time stands still, and its backend.
    struct Tested {
        time: Arc<Standing>,
        store: Arc<Store>,
        backend: Arc<Fake>,
        setup: Setup,
    }

    impl Tested {
        fn new() -> Self {
            Tested::with("[backend.fake.limits]\nbreaker_failures = 0\n")
        }

        fn with(config: &str) -> Self {
            let time = Arc::new(Standing(Mutex::default(), Instant::now()));
            let process = Process::new(ProcessParts { clock: Clock::of(time.clone()), ..ProcessParts::default() });
            let properties = Properties { write_through: true, cheap_repeat: true, ..Properties::default() };
            let fakes = Arc::new(Fakes::of(Features { properties, ..Features::default() }));
            let setup = Setup { process, ..fakes.setup(config) };
            let store = Arc::new(Store::open_with(URI, &setup).unwrap());
            Tested { time, store, backend: fakes.store(URI), setup }
        }

        /// A cache of its own over the store, of blocks of 4 tokens and 100 bytes.
        fn cache(&self, l2: &str) -> Cache {
            cache_over(self.store.clone(), l2).unwrap()
        }

        /// One over another handle, of which this is said.
        fn described(&self, descriptor: &str) -> Result<Cache, Error> {
            let store = Arc::new(Store::open_with(URI, &self.setup)?);
            cache_over(store, &format!("ingestion_type = 'ALL'\n[descriptor]\n{descriptor}"))
        }

        fn later(&self, by: Duration) {
            *self.time.0.lock().unwrap() += by;
        }
    }

    fn cache_over(store: Arc<Store>, l2: &str) -> Result<Cache, Error> {
        let config = format!("block_size = 4\ndouble_get_threshold = [1, 0.0]\n[l1]\ncapacity_gb = 0.01\n[l2]\n{l2}");
        let (config, spec) = (Config::parse(&config)?, Spec::new("m", 0, 100));
        describe(&store, &config, &spec)?;
        let far = StoreFar::start(store, 2)?;
        Ok(Cache::open(config, spec, Some(Arc::new(far)))?)
    }

    /// The one block of a cache that has just been opened; none: it is not there.
    fn block(cache: &Cache) -> Option<[u8; 100]> {
        let mut room = [0; 100];
        let found = cache.get(&[], &[1, 2, 3, 4], &mut [&mut room]).unwrap();
        (found == BLOCK).then_some(room)
    }

    #[test]
    fn a_damaged_block_is_removed_only_when_it_is_found_so_again_later() {
        let tested = Tested::new();
        let cache = tested.cache("ingestion_type = 'ALL'");
        let put = |value: u8| cache.put(&[], &[1, 2, 3, 4], &[&[value; 100]]).unwrap();
        put(1);
        cache.flush().unwrap();
        let key = tested.backend.keys().remove(0);
        let mut damaged = tested.backend.stored(&key).unwrap();
        damaged[7] ^= 4;
        tested.backend.store(&key, &damaged);
        let looks = || {
            let cache = tested.cache("per_token_timeout_ms = 60000");
            assert_eq!(block(&cache), None);
            // The far level looks at it on a thread of its own.
            while cache.metrics().of(Level::L2, Op::Delete).is_none_or(|op| op.count == 0) {
                std::thread::yield_now();
            }
            tested.backend.stored(&key)
        };
        assert_eq!((looks(), looks()), (Some(damaged.clone()), Some(damaged.clone())));
        tested.later(Duration::from_secs(5));
        assert_eq!(looks(), None);
        // Found once, it is replaced by the next put.
        put(2);
        tested.backend.store(&key, &damaged);
        assert_eq!(looks(), Some(damaged));
        put(3);
        assert_eq!(block(&tested.cache("")), Some([3; 100]));
    }

    #[test]
    fn other_bytes_of_the_same_tokens_replace_those_of_another_process() {
        let tested = Tested::new();
        for value in [1, 2] {
            // A near level that knows of nothing.
            let cache = tested.cache("ingestion_type = 'ALL'");
            assert_eq!(cache.put(&[], &[1, 2, 3, 4], &[&[value; 100]]).unwrap(), BLOCK);
            cache.flush().unwrap();
            assert_eq!(block(&tested.cache("")), Some([value; 100]));
        }
    }

    #[test]
    fn a_block_is_not_gone_while_a_write_of_it_may_still_be_carried_out() {
        let tested = Tested::new();
        let cache = tested.cache("ingestion_type = 'ALL'\nper_token_timeout_ms = 20");
        let backend = &tested.backend;
        backend.during_changes(|until| drop(until.change().unwrap().begin(&[0, 1, 2, 3], b"")));
        backend.fail_calls(Some(Error::new(ErrorKind::Unavailable, "the connection was lost")));
        let tokens: Vec<i32> = (0..4 * BLOCK as i32).collect();
        let value = [1; 100];
        cache.put(&[], &tokens, &[&value[..]; 4]).unwrap();
        cache.flush().unwrap();
        backend.fail_calls(None);
        assert_eq!(cache.delete(&[], &tokens[..BLOCK]).unwrap(), 0, "its time is over before that of the write");
        tested.later(Duration::from_secs(60));
        backend.during_changes(|_| ());
        assert_eq!(cache.delete(&[], &tokens).unwrap(), tokens.len());
    }
    /// Keys say model, layout, dtype and rank; of the weights behind a name they know nothing.
    #[test]
    fn blocks_of_another_descriptor_are_missed_and_left_alone() {
        let tested = Tested::new();
        let (one, two) = ("model = 'sha256:1'", "model = 'sha256:2'");
        let put = |cache: &Cache, value: u8| {
            let taken = cache.put(&[], &[1, 2, 3, 4], &[&[value; 100]]).unwrap();
            cache.flush().unwrap();
            taken
        };
        put(&tested.described(one).unwrap(), 1);
        let stored = tested.backend.keys();
        let key = stored.first().unwrap();
        assert!(stored.len() == 1 && key.ends_with(b"\x02kv2"), "in an envelope: {key:?}");
        let before = tested.backend.stored(key);
        assert_eq!(block(&tested.described(two).unwrap()), None);
        let other = tested.described(two).unwrap();
        put(&other, 2);
        assert!(other.metrics().of(Level::L2, Op::Put).is_some_and(|put| put.errors.contains(&("denied", 1))));
        assert_eq!((tested.backend.keys(), tested.backend.stored(key)), (stored.clone(), before));
        assert_eq!(block(&tested.described(one).unwrap()), Some([1; 100]));
        // Other bytes of one's own replace the former ones, as without a descriptor.
        put(&tested.described(one).unwrap(), 3);
        assert_eq!(block(&tested.described(one).unwrap()), Some([3; 100]));
        assert_eq!(tested.backend.keys(), stored);
        // And a delete takes them away.
        let cache = tested.described(one).unwrap();
        assert_eq!(cache.delete(&[], &[1, 2, 3, 4]).unwrap(), BLOCK);
        assert!(tested.backend.keys().is_empty());
    }

    #[test]
    fn blocks_that_nobody_described_stay_readable() {
        let tested = Tested::new();
        let plain = tested.cache("ingestion_type = 'ALL'");
        plain.put(&[], &[1, 2, 3, 4], &[&[1; 100]]).unwrap();
        plain.flush().unwrap();
        assert!(tested.backend.keys().iter().all(|key| !key.ends_with(b"\x02kv2")));
        let cache = tested.described("model = 'sha256:1'").unwrap();
        assert_eq!(cache.exists(&[], &[1, 2, 3, 4]).unwrap(), BLOCK);
        assert_eq!(block(&cache), Some([1; 100]));
        assert_eq!(block(&tested.cache("")), Some([1; 100]), "and who says nothing has them as before");
    }

    #[test]
    fn what_is_said_of_blocks_is_what_spec_config_and_operator_say_together() {
        let spec = Spec { layers: 0..16, tensor_parallel: (1, 4), ..Spec::new("llama-3", 16, 64) };
        let known = known(&Config::default(), &spec).unwrap().to_string();
        assert_eq!(
            known,
            "model \"llama-3\", layout \"LCND\", dtype \"f16\", block_tokens \"16\", layers \"0-15\", heads \"all\", rank \"1\", \
             ranks \"tp 4\", format \"KVB1\""
        );
        let tested = Tested::with("[backend.fake.descriptor]\nrope = 'theta 10000'\ndtype = 'bfloat16'\n");
        let refused = tested.described("rope = 'theta 500000'").err().unwrap().to_string();
        assert!(refused.contains("rope"), "{refused}");
        assert!(tested.described("rop = 'theta 500000'").err().unwrap().to_string().contains("rop"));
        // The operator's word of what the spec says too holds: the spec is in the keys.
        tested.described("rope = 'theta 10000'").unwrap();
        let required = Tested::with("[backend.fake]\nrequire_descriptor = true\n");
        let refused = required.described("rope = 'theta 10000'").err().unwrap();
        assert!(refused.kind() == ErrorKind::Denied && refused.to_string().contains("engine"), "{refused}");
        let rest = ["architecture", "scales", "rope", "adapters", "engine"].map(|name| format!("{name} = 'none'\n"));
        required.described(&rest.concat()).unwrap();
    }
}
