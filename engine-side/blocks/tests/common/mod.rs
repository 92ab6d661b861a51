//! A far level that can be told to misbehave, and what tests share.

#![allow(dead_code, reason = "each test uses a part")]

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kv_blocks::{Cache, Config, DamagedItem, ErrorKind, Far, Features, Outcome, Request, Spec, Work};

pub const BLOCK: usize = 4;
pub const BYTES: usize = 48;

/// How a far level behaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// As it should.
    #[default]
    Sound,
    /// Holds each request until [`TestFar::release`]. What a get is answered is decided when it comes.
    Hang,
    /// Carries out each request when it comes, and holds its answer until [`TestFar::release`].
    Late,
    /// Fails each item.
    Fail,
    /// Drops each request.
    Drop,
    /// Says that it stored, and did not; does not have what it has.
    Forget,
    /// Answers too few items.
    Short,
    /// Answers each item with the value of another key.
    Swap,
    /// Answers values of which one bit is wrong.
    Flip,
    /// Answers lengths that are wrong.
    Lengths,
    /// Says that it has everything, and answers what the slots hold.
    Boast,
}

pub const MODES: [Mode; 10] = [
    Mode::Sound,
    Mode::Hang,
    Mode::Fail,
    Mode::Drop,
    Mode::Forget,
    Mode::Short,
    Mode::Swap,
    Mode::Flip,
    Mode::Lengths,
    Mode::Boast,
];

#[derive(Default)]
pub struct State {
    pub mode: Mode,
    pub values: HashMap<Vec<u8>, Vec<u8>>,
    held: Vec<(Request, Option<Vec<Outcome>>)>,
    /// Items of each request, by what was asked for.
    pub puts: Vec<usize>,
    pub gets: Vec<usize>,
    pub exists: Vec<usize>,
    pub deletes: Vec<usize>,
    pub damaged: Vec<usize>,
    /// The time that each request had left.
    pub times: Vec<Duration>,
}

pub struct TestFar {
    pub state: Mutex<State>,
    pub features: Features,
}

impl TestFar {
    pub fn new() -> Arc<Self> {
        TestFar::with(Features::default())
    }

    pub fn with(features: Features) -> Arc<Self> {
        Arc::new(TestFar { state: Mutex::default(), features })
    }

    pub fn set(&self, mode: Mode) {
        self.state.lock().unwrap().mode = mode;
    }

    /// Values that are there.
    pub fn len(&self) -> usize {
        self.state.lock().unwrap().values.len()
    }

    /// Values that were asked for.
    pub fn asked(&self) -> usize {
        self.state.lock().unwrap().gets.iter().sum()
    }

    /// Requests that are held.
    pub fn held(&self) -> usize {
        self.state.lock().unwrap().held.len()
    }

    /// Complete what is held, and what is asked for meanwhile; from now on it is sound.
    pub fn release(&self) {
        self.set(Mode::Sound);
        let held = std::mem::take(&mut self.state.lock().unwrap().held);
        for (mut request, outcomes) in held {
            let outcomes = outcomes.unwrap_or_else(|| {
                let mut state = self.state.lock().unwrap();
                carry_out(&mut state.values, request.work().expect("it is not completed"), Mode::Sound)
            });
            request.complete(outcomes);
        }
    }
}

impl Far for TestFar {
    fn features(&self) -> Features {
        self.features
    }

    fn submit(&self, mut request: Request) {
        let mut state = self.state.lock().unwrap();
        state.times.push(request.time_left());
        let work = request.work().expect("it is not completed");
        match work {
            Work::Put(items) => state.puts.push(items.len()),
            Work::Get(items) => state.gets.push(items.len()),
            Work::Exists(keys) => state.exists.push(keys.len()),
            Work::Delete(keys) => state.deletes.push(keys.len()),
            Work::Damaged(items) => state.damaged.push(items.len()),
        }
        let mode = state.mode;
        match mode {
            Mode::Hang | Mode::Late => {
                let now = mode == Mode::Late || matches!(work, Work::Get(_));
                let outcomes = now.then(|| carry_out(&mut state.values, work, Mode::Sound));
                state.held.push((request, outcomes));
            }
            Mode::Drop => {
                drop(state);
                drop(request);
            }
            _ => {
                let outcomes = carry_out(&mut state.values, work, mode);
                drop(state);
                request.complete(outcomes);
            }
        }
    }
}

fn carry_out(values: &mut HashMap<Vec<u8>, Vec<u8>>, work: &mut Work, mode: Mode) -> Vec<Outcome> {
    let mut outcomes: Vec<Outcome> = match work {
        _ if mode == Mode::Fail => vec![Outcome::Failed(ErrorKind::Error); work.len()],
        Work::Put(items) => {
            if mode != Mode::Forget {
                for item in items.iter() {
                    values.insert(item.key().to_vec(), item.pieces().concat());
                }
            }
            vec![Outcome::Done; items.len()]
        }
        Work::Get(items) => {
            let other = |key: &[u8]| values.iter().find(|(of, _)| **of != key).map(|(_, value)| value);
            let get = |(index, item): (usize, &mut kv_blocks::GetItem)| {
                let (key, [room, tail]) = item.parts();
                let len = room.len() + tail.len();
                let value = match mode {
                    Mode::Forget => None,
                    Mode::Swap => other(key),
                    _ => values.get(key),
                };
                match value {
                    None if mode == Mode::Boast => Outcome::Found(len),
                    None => Outcome::Missing,
                    Some(value) if value.len() != len => Outcome::Found(value.len()),
                    Some(value) => {
                        let (own, behind) = value.split_at(room.len());
                        room.copy_from_slice(own);
                        tail.copy_from_slice(behind);
                        if mode == Mode::Flip {
                            let at = key[0] as usize % room.len();
                            room[at] ^= 1 << (key[1] % 8);
                        }
                        Outcome::Found(if mode == Mode::Lengths { len + index - 1 } else { len })
                    }
                }
            };
            items.iter_mut().enumerate().map(get).collect()
        }
        Work::Exists(keys) => {
            let exists = |key: &Vec<u8>| match mode {
                Mode::Forget => Outcome::Missing,
                Mode::Boast => Outcome::Done,
                _ if values.contains_key(key) => Outcome::Done,
                _ => Outcome::Missing,
            };
            keys.iter().map(exists).collect()
        }
        Work::Delete(keys) => {
            keys.iter().for_each(|key| drop(values.remove(key)));
            vec![Outcome::Done; keys.len()]
        }
        Work::Damaged(items) => {
            let is_sound = |item: &DamagedItem| values.get(item.key()).is_some_and(|value| item.is_sound(value));
            items.iter().map(|item| if is_sound(item) { Outcome::Missing } else { Outcome::Done }).collect()
        }
    };
    if mode == Mode::Short {
        outcomes.pop();
    }
    outcomes
}

/// A config of blocks of 4 tokens, `blocks` of them near, where the far level has all the time that it needs.
pub fn config(blocks: usize, more: &str) -> Config {
    let slot = BYTES;
    let mut config = Config::parse(more).expect("the test's config");
    config.block_size = BLOCK as i64;
    config.l1.capacity_gb = (blocks * slot) as f64 / f64::from(1 << 30);
    if config.token_validation {
        config.l1.capacity_gb = (blocks * (slot + BLOCK * 4 + 32)) as f64 / f64::from(1 << 30);
    }
    config
}

pub fn spec() -> Spec {
    Spec::new("model", 0, BYTES)
}

pub fn open(config: Config, far: &Arc<TestFar>) -> Cache {
    Cache::open(config, spec(), Some(far.clone())).expect("the cache opens")
}

/// A prompt of so many blocks.
pub fn prompt(seed: i32, blocks: usize) -> Vec<i32> {
    (0..(blocks * BLOCK) as i32).map(|n| seed * 1000 + n).collect()
}

/// The bytes of a block: those of its prompt up to its end, and of a version.
pub fn block(tokens: &[i32], version: u8) -> Vec<u8> {
    let mut state = u64::from(version) + 1;
    for token in tokens {
        state = (state ^ *token as u32 as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23);
    }
    let byte = |_| {
        state = state.wrapping_mul(0x2545_f491_4f6c_dd1d).wrapping_add(1);
        (state >> 40) as u8
    };
    (0..BYTES).map(byte).collect()
}

/// The blocks of a prompt.
pub fn blocks(tokens: &[i32], version: u8) -> Vec<Vec<u8>> {
    (1..=tokens.len() / BLOCK).map(|end| block(&tokens[..end * BLOCK], version)).collect()
}

/// Put a prompt. Returns how many blocks were taken.
pub fn put(cache: &Cache, tokens: &[i32]) -> usize {
    let blocks = blocks(tokens, 0);
    let blocks: Vec<&[u8]> = blocks.iter().map(Vec::as_slice).collect();
    cache.put(&[], tokens, &blocks).expect("the call makes sense") / BLOCK
}

/// Get a prompt, and check what comes. Returns how many blocks there were.
pub fn get(cache: &Cache, tokens: &[i32]) -> usize {
    let mut into = vec![vec![0xaa_u8; BYTES]; tokens.len() / BLOCK];
    let mut rooms: Vec<&mut [u8]> = into.iter_mut().map(Vec::as_mut_slice).collect();
    let found = cache.get(&[], tokens, &mut rooms).expect("the call makes sense") / BLOCK;
    for (index, (found, own)) in into.iter().zip(blocks(tokens, 0)).take(found).enumerate() {
        assert!(*found == own, "block {index} has wrong bytes");
    }
    found
}
