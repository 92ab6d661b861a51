//! Values that are not in the page cache, beside the disk itself: the same files, read around the cache (`O_DIRECT`) by 8 and by 32
//! threads, of which the better one counts. And saves that survive a power loss, beside 8 threads that do the same by hand.
//!
//! All sides take turns, [`PAIRS`] times. That each byte of a cold get came from the device is looked up in `/proc/self/io`.

pub mod processes;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use super::{fs, segments, size_name};
use crate::batch::{Batches, Blocks};
use crate::consumer::{key, noise};
use crate::measure::{Bench, Rounds, Unit, each};
use crate::peers::disk::{Device, Saves, device_bytes, drop_from_cache, files_below};

/// Turns of all sides.
pub const PAIRS: usize = 9;
/// What one round reads.
const BYTES: usize = 256 << 20;
/// Values of one call.
const BATCH: usize = 64;
/// Threads of the two ways to read the device.
const THREADS: [usize; 2] = [8, 32];

type Uri = fn(&Path) -> String;

pub fn run(bench: &Bench) -> Result<()> {
    for size in [64 << 10, 1 << 20, 4 << 20] {
        get_many(bench, &format!("disk/get-many/{}", size_name(size)), fs::uri, size)?;
        get_many(bench, &format!("disk/segments/get-many/{}", size_name(size)), segments::uri, size)?;
    }
    processes::run(bench)?;
    save(bench, 96, 64 << 10)?;
    save(bench, 64, 1 << 20)
}

/// A store whose values are not in the page cache, and memory for one call.
pub struct Cold<'a> {
    store: Batches<'a>,
    blocks: Blocks,
    batches: Vec<Vec<Vec<u8>>>,
    pub files: Vec<(PathBuf, u64)>,
    bytes: usize,
}

impl<'a> Cold<'a> {
    /// Make a store in a folder, of so many bytes.
    pub fn make(store: Batches<'a>, folder: &Path, size: usize, bytes: usize) -> Result<Self> {
        let mut cold = Cold::of(store, size, bytes);
        for keys in &cold.batches {
            cold.blocks.set_keys(keys.clone());
            cold.store.put(&mut cold.blocks)?;
        }
        cold.files = files_below(folder, bytes as u64)?;
        cold.blocks.block(5).fill(0);
        cold.round()?;
        ensure!(cold.blocks.block(5) == noise(size, 6), "other bytes came back");
        Ok(cold)
    }

    fn of(store: Batches<'a>, size: usize, bytes: usize) -> Self {
        let count = (bytes / size) as u64;
        let keys: Vec<Vec<u8>> = (0..count).map(|n| key(n).to_vec()).collect();
        let batches: Vec<Vec<Vec<u8>>> = keys.chunks(BATCH).map(<[_]>::to_vec).collect();
        let first = batches.first().cloned().unwrap_or_default();
        let blocks = Blocks::new(first, size, |n| noise(size, n as u64 + 1));
        Cold { store, blocks, batches, files: Vec::new(), bytes }
    }

    /// The store that another process has made in a folder.
    pub fn there(store: Batches<'a>, folder: &Path, size: usize, bytes: usize) -> Result<Self> {
        let mut cold = Cold::of(store, size, bytes);
        cold.files = files_below(folder, bytes as u64)?;
        Ok(cold)
    }

    /// The seconds that all gets took, of which each byte came from the device.
    pub fn round(&mut self) -> Result<f64> {
        drop_from_cache(&self.files)?;
        self.read()
    }

    /// The same of what is dropped already.
    pub fn read(&mut self) -> Result<f64> {
        let before = device_bytes()?;
        let seconds = each(1, |_| {
            self.batches.iter().try_for_each(|keys| {
                self.blocks.set_keys(keys.clone());
                self.store.get(&mut self.blocks)
            })
        })?;
        let read = device_bytes()? - before;
        ensure!(read >= self.bytes as u64, "only {read} of {} bytes came from the device", self.bytes);
        Ok(seconds)
    }
}

fn get_many(bench: &Bench, name: &str, uri: Uri, size: usize) -> Result<()> {
    if !bench.wants(name) {
        return Ok(());
    }
    let folder = bench.folder("ours")?;
    let mut ours = Cold::make(Batches::open(&bench.ours, &uri(&folder))?, &folder, size, BYTES)?;
    let files = ours.files.clone();
    beside_the_device(bench, name, BYTES, &files, size, &mut || ours.round())
}

/// Report reads of the library beside the better way to read the same files around the page cache.
pub fn beside_the_device(
    bench: &Bench,
    name: &str,
    bytes: usize,
    files: &[(PathBuf, u64)],
    size: usize,
    ours: &mut dyn FnMut() -> Result<f64>,
) -> Result<()> {
    let device = Device::new(files, size);
    let [few, many] = THREADS.map(|threads| {
        let device = &device;
        move || device.read(threads)
    });
    let [of_ours, of_few, of_many] = turns([ours, &mut { few }, &mut { many }])?;
    let best = [of_few, of_many].into_iter().min_by(|one, other| median(one).total_cmp(&median(other)));
    let rounds = Rounds { ours: of_ours, peer: best.context("there are two ways")? };
    bench.report(name, &rounds, Unit::MibPerSecond, bytes, Some(0.9))
}

/// The values of each side, which take turns, after one each that does not count.
pub fn turns<const SIDES: usize>(sides: [&mut dyn FnMut() -> Result<f64>; SIDES]) -> Result<[Vec<f64>; SIDES]> {
    let mut values = [const { Vec::new() }; SIDES];
    for turn in 0..=PAIRS {
        for number in 0..SIDES {
            let which = (turn + number) % SIDES;
            let value = sides[which]()?;
            if turn > 0 {
                values[which].push(value);
            }
        }
    }
    Ok(values)
}

fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// A batch and its commit, which ends when all of it survives a power loss.
fn save(bench: &Bench, count: u64, size: usize) -> Result<()> {
    let name = format!("disk/save/{count}x{}", size_name(size));
    if !bench.wants(&name) {
        return Ok(());
    }
    let folder = bench.folder("ours")?;
    let store = Batches::open(&bench.ours, &fs::uri(&folder))?;
    let peer = Saves::new(&bench.folder("peer")?)?;
    let keys = |first: u64| (first..first + count).map(|n| key(n).to_vec()).collect::<Vec<_>>();
    let mut blocks = Blocks::new(keys(0), size, |n| noise(size, n as u64 + 1));
    let values: Vec<Vec<u8>> = (0..count).map(|n| noise(size, n + 1)).collect();
    let manifest = noise(2 << 10, 7);
    let mut next = 0;
    let mut our_round = || {
        next += count;
        blocks.set_keys(keys(next));
        let seconds = each(1, |_| store.save(&mut blocks, c"conversation", &manifest))?;
        fs::empty(&folder.join("chunks"))?;
        Ok(seconds)
    };
    let mut peer_next = 0;
    let mut peer_round = || {
        peer_next += count;
        let seconds = each(1, |_| peer.save(&keys(peer_next), &values, "conversation", &manifest))?;
        peer.empty()?;
        Ok(seconds)
    };
    let [ours, peer] = turns([&mut our_round, &mut peer_round])?;
    bench.report(&name, &Rounds { ours, peer }, Unit::Millis, 0, Some(0.9))
}
