//! Against an oracle: whatever the backend and other processes do, what is answered is what the chunk is, and no older than it may be.

use super::*;

/// A generator whose seed replays a run.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }
}

/// What may be answered of one chunk in one store.
#[derive(Clone, Copy, Default)]
struct May {
    there: bool,
    /// When another process deleted it, on the test's clock.
    deleted: Option<u64>,
    /// Deleted through this process, or told to be gone, after it was last there.
    seen_gone: bool,
}

impl May {
    /// Whether this may be answered now; `lying`: the backend may have given other bytes.
    fn check(&self, found: Option<Got>, data: &[u8], clock: u64, lying: bool, at: &str) {
        match found {
            None => assert!(!self.there, "{at}: it is there"),
            Some(Got::Buffer(found)) => {
                // A lie comes from the backend, and so from what is there.
                assert!(found[..] == *data || lying && self.there, "{at}: other bytes");
                let young = self.deleted.is_some_and(|deleted| clock - deleted < TTL);
                assert!(self.there || young && !self.seen_gone, "{at}: it is gone since {:?}", self.deleted);
            }
            Some(other) => panic!("{at}: {other:?}"),
        }
    }
}

const CHUNKS: u64 = 40;

fn run(seed: u64, memory: u64, disk: Option<PathBuf>) {
    let mut dice = Dice(seed | 1);
    let level = open(&settings(memory, disk.map(|path| (path, 1 << 20))));
    let stores = ["one", "two"].map(|name| layer(&Arc::default(), &level, name));
    let mut may = [[May::default(); CHUNKS as usize]; 2];
    let mut clock = 0_u64;
    for step in 0..3000 {
        let which = dice.roll(2) as usize;
        let (store, may) = (&stores[which], &mut may[which]);
        let number = dice.roll(CHUNKS);
        let (hash, chunk) = (key(&data(number)), number as usize);
        store.far.most.store([0, 0, 1, 2][dice.roll(4) as usize], SeqCst);
        store.far.failing.store(usize::from(dice.roll(10) == 0), SeqCst);
        store.far.lying.store(usize::from(dice.roll(10) == 0), SeqCst);
        let failing = store.far.failing.load(SeqCst) != 0;
        match dice.roll(10) {
            0..=1 => {
                let bytes = data(number);
                let put = store.near.put(&[(hash, Bytes::Borrowed(&bytes))], false, &store.until);
                assert_eq!(put.is_err(), failing);
                if !failing {
                    may[chunk] = May { there: true, ..May::default() };
                }
            }
            2 => {
                let deleted = store.near.delete(&[hash], &store.until);
                assert_eq!(deleted.is_err(), failing);
                may[chunk].seen_gone |= !failing;
                may[chunk].there &= failing;
            }
            // Another process deletes it, or it is evicted.
            3 => {
                if store.far.chunks().remove(&hash).is_some() {
                    (may[chunk].there, may[chunk].deleted) = (false, Some(clock));
                }
            }
            // Another process puts it.
            4 => {
                store.far.chunks().insert(hash, data(number));
                may[chunk] = May { there: true, ..May::default() };
            }
            5 => {
                let seconds = dice.roll(TTL);
                clock += seconds;
                store.pass(Duration::from_secs(seconds));
            }
            6 => {
                if let Ok(present) = store.near.exists(&[hash], &store.until) {
                    let present = matches!(present[..], [Ok(Presence::Present(_))]);
                    assert_eq!(present, may[chunk].there, "seed {seed}, step {step}: existence is the backend's");
                    may[chunk].seen_gone |= !present;
                }
            }
            _ => {
                let numbers: Vec<u64> = (0..1 + dice.roll(6)).map(|_| dice.roll(CHUNKS)).collect();
                let hashes: Vec<ChunkHash> = numbers.iter().map(|number| key(&data(*number))).collect();
                let Ok(answers) = store.near.get(&hashes, &mut [], &store.until) else {
                    assert!(failing, "seed {seed}, step {step}");
                    continue;
                };
                assert!((1..=hashes.len()).contains(&answers.len()));
                let lying = store.far.lying.load(SeqCst) != 0;
                for (number, answer) in numbers.iter().zip(answers) {
                    let at = format!("seed {seed}, step {step}, chunk {number}");
                    match answer {
                        Err(_) => assert!(failing, "{at}"),
                        Ok(found) => may[*number as usize].check(found, &data(*number), clock, lying, &at),
                    }
                }
            }
        }
        assert!(level.usage().memory_bytes <= memory);
        if dice.roll(50) == 0 {
            settle();
        }
    }
}

#[test]
fn in_memory() {
    (1..13).for_each(|seed| run(seed, 1 << 20, None));
}

#[test]
fn in_little_memory_and_on_disk() {
    for seed in 1..7 {
        let scratch = tempfile::tempdir().unwrap();
        run(seed, 8 << 10, Some(scratch.path().join("near")));
    }
}

#[test]
fn on_disk_alone() {
    for seed in 1..7 {
        let scratch = tempfile::tempdir().unwrap();
        run(seed, 0, Some(scratch.path().join("near")));
    }
}

/// Threads that put, get and delete the same chunks: bytes are right all the time, and what a thread has deleted, and nobody puts again,
/// is gone.
#[test]
fn on_several_threads() {
    let scratch = tempfile::tempdir().unwrap();
    let store = around(&settings(16 << 10, Some((scratch.path().join("near"), 1 << 20))));
    let next = AtomicU64::new(1000);
    std::thread::scope(|scope| {
        for thread in 1..5 {
            let (store, next) = (&store, &next);
            scope.spawn(move || {
                let mut dice = Dice(thread * 7919);
                for _ in 0..1000 {
                    let number = dice.roll(50);
                    let hash = key(&data(number));
                    match dice.roll(4) {
                        0 => drop(store.put(&data(number))),
                        1 => store.delete(&hash),
                        _ => assert!(store.get(&hash).is_none_or(|found| found == data(number))),
                    }
                    // One that this thread alone knows.
                    let own = next.fetch_add(1, SeqCst);
                    let hash = store.put(&data(own));
                    assert!(store.get(&hash).is_some());
                    store.delete(&hash);
                    assert_eq!(store.get(&hash), None);
                }
            });
        }
    });
    settle();
    (0..50).for_each(|number| store.delete(&key(&data(number))));
    assert!((0..50).all(|number| store.get(&key(&data(number))).is_none()));
    assert_eq!(store.level.usage().memory_bytes, 0);
}
