//! local-fs beside the native store: the same layout, the same system calls, no sync on either side. Files are in the page
//! cache, which is the fastest that a disk can be, so what the library adds shows most.

use std::path::Path;

use anyhow::{Result, ensure};
use kv_store_conformance::Library;

use crate::consumer::{Client, Contents, content_key, key, noise};
use crate::measure::{Bench, Unit, each};

use super::size_name;

/// Bytes that a round moves, where that makes more than two operations.
const ROUND_BYTES: usize = 16 << 20;

pub fn run(bench: &Bench) -> Result<()> {
    for (size, goal) in [(64 << 10, Some(0.97)), (256 << 10, None), (1 << 20, Some(0.97)), (4 << 20, Some(0.97))] {
        if bench.quick && goal.is_none() {
            continue;
        }
        put(bench, &format!("fs/put/{}", size_name(size)), size, goal)?;
        get(bench, &format!("fs/get/{}", size_name(size)), size, goal)?;
    }
    put(bench, "fs/small/put", 4 << 10, Some(0.7))?;
    get(bench, "fs/small/get", 4 << 10, Some(0.7))?;
    get_checked(bench, "fs/get-checked/1MiB", 1 << 20)
}

/// The single calls, for a run against a former library: chunks under the hash of their content, which both compare, and (`fs/other-keys`)
/// those whose checksum versions before 0.3 did not have.
pub fn singles(bench: &Bench) -> Result<()> {
    for name in SINGLES.into_iter().filter(|name| bench.wants(name)) {
        let Some(single) = single(name) else { continue };
        let mut ours = Calls::new(&bench.ours, &bench.folder("ours")?, single)?;
        let mut former = Calls::new(&bench.native, &bench.folder("peer")?, single)?;
        let rounds = bench.rounds(|| ours.round(), || former.round())?;
        bench.report(name, &rounds, Unit::Micros, single.size, None)?;
    }
    Ok(())
}

const SINGLES: [&str; 10] = [
    "fs/small/put",
    "fs/small/get",
    "fs/put/64KiB",
    "fs/get/64KiB",
    "fs/put/1MiB",
    "fs/get/1MiB",
    "fs/other-keys/put/64KiB",
    "fs/other-keys/get/64KiB",
    "fs/other-keys/put/1MiB",
    "fs/other-keys/get/1MiB",
];

/// What the row of a single call does.
#[derive(Clone, Copy)]
pub struct Single {
    puts: bool,
    size: usize,
    /// Keys are the hash of the content.
    of_content: bool,
}

pub fn single(name: &str) -> Option<Single> {
    let name = name.strip_prefix("fs/")?;
    let (of_content, name) = name.strip_prefix("other-keys/").map_or((true, name), |name| (false, name));
    let (what, size) = match name.split_once('/')? {
        ("small", what) => (what, 4 << 10),
        (what, "64KiB") => (what, 64 << 10),
        (what, "1MiB") => (what, 1 << 20),
        _ => return None,
    };
    Some(Single { puts: what == "put", size, of_content })
}

/// One side of such a row.
pub struct Calls<'a> {
    client: Client<'a>,
    chunks: std::path::PathBuf,
    contents: Contents,
    single: Single,
}

impl<'a> Calls<'a> {
    pub fn new(library: &'a Library, folder: &Path, single: Single) -> Result<Self> {
        let client = Client::open(library, &uri(folder))?;
        let mut calls = Calls { client, chunks: folder.join("chunks"), contents: Contents::new(single.size), single };
        let count = count(single.size) as u64;
        calls.prepare(count);
        if !single.puts {
            (0..count).try_for_each(|number| calls.put(number))?;
        }
        Ok(calls)
    }

    /// Have so many chunks to put.
    pub fn prepare(&mut self, count: u64) {
        self.contents.prepare(0..count);
    }

    fn put(&mut self, number: u64) -> Result<()> {
        let (key_of_content, data) = self.contents.chunk(number)?;
        let put = match self.single.of_content {
            true => self.client.put(&key_of_content, data)?,
            false => self.client.put(&key(number), data)?,
        };
        ensure!(put == 0, "the chunk was there");
        Ok(())
    }

    /// Do it once, with the chunk of a number.
    pub fn once(&mut self, number: u64) -> Result<()> {
        if self.single.puts {
            return self.put(number);
        }
        let number = number % count(self.single.size) as u64;
        let got = match self.single.of_content {
            true => self.client.get(&self.contents.key(number)?)?,
            false => self.client.get(&key(number))?,
        };
        ensure!(got.bytes().len() == self.single.size);
        Ok(())
    }

    fn round(&mut self) -> Result<f64> {
        let seconds = each(count(self.single.size), |number| self.once(number as u64))?;
        if self.single.puts {
            empty(&self.chunks)?;
        }
        Ok(seconds)
    }
}

fn count(size: usize) -> usize {
    (ROUND_BYTES / size).clamp(2, 256)
}

/// One side of a row: a store in a folder of its own.
struct Side<'a> {
    client: Client<'a>,
    chunks: std::path::PathBuf,
}

impl<'a> Side<'a> {
    fn open(bench: &Bench, library: &'a Library, name: &str) -> Result<Self> {
        let folder = bench.folder(name)?;
        let client = Client::open(library, &uri(&folder))?;
        Ok(Side { client, chunks: folder.join("chunks") })
    }
}

/// Remove the chunks of a store, but not the directories that they are in.
pub fn empty(chunks: &Path) -> Result<()> {
    for directory in std::fs::read_dir(chunks)? {
        for file in std::fs::read_dir(directory?.path())? {
            std::fs::remove_file(file?.path())?;
        }
    }
    Ok(())
}

pub fn uri(folder: &Path) -> String {
    format!("local-fs://{}", folder.display())
}

fn put(bench: &Bench, name: &str, size: usize, goal: Option<f64>) -> Result<()> {
    if !bench.wants(name) {
        return Ok(());
    }
    let ours = Side::open(bench, &bench.ours, "ours")?;
    let peer = Side::open(bench, &bench.native, "peer")?;
    let data = noise(size, 1);
    let count = count(size);
    let round = |side: &Side| {
        let seconds = each(count, |n| {
            ensure!(side.client.put(&key(n as u64), &data)? == 0, "the chunk was there");
            Ok(())
        })?;
        empty(&side.chunks)?;
        Ok(seconds)
    };
    let rounds = bench.rounds(|| round(&ours), || round(&peer))?;
    bench.report(name, &rounds, Unit::Micros, size, goal)
}

fn get(bench: &Bench, name: &str, size: usize, goal: Option<f64>) -> Result<()> {
    if !bench.wants(name) {
        return Ok(());
    }
    let ours = Side::open(bench, &bench.ours, "ours")?;
    let peer = Side::open(bench, &bench.native, "peer")?;
    let count = count(size);
    for n in 0..count as u64 {
        let data = noise(size, n + 1);
        ours.client.put(&key(n), &data)?;
        peer.client.put(&key(n), &data)?;
        ensure!(ours.client.get(&key(n))?.bytes() == data && peer.client.get(&key(n))?.bytes() == data);
    }
    let round = |side: &Side| each(count, |n| side.client.get(&key(n as u64)).map(drop));
    let rounds = bench.rounds(|| round(&ours), || round(&peer))?;
    if size < 64 << 10 {
        let one = |side: &Side| side.client.get(&key(0)).map(drop);
        bench.latencies(name, || one(&ours), || one(&peer))?;
    }
    bench.report(name, &rounds, Unit::Micros, size, goal)
}

/// What it costs that chunks under their content's hash are checked: the native store does not.
fn get_checked(bench: &Bench, name: &str, size: usize) -> Result<()> {
    if !bench.wants(name) {
        return Ok(());
    }
    let ours = Side::open(bench, &bench.ours, "ours")?;
    let peer = Side::open(bench, &bench.native, "peer")?;
    let count = count(size);
    let mut keys = Vec::new();
    for n in 0..count as u64 {
        let data = noise(size, n + 1);
        keys.push(content_key(&data));
        ours.client.put(&content_key(&data), &data)?;
        peer.client.put(&content_key(&data), &data)?;
    }
    let round = |side: &Side| each(count, |n| side.client.get(&keys[n]).map(drop));
    let rounds = bench.rounds(|| round(&ours), || round(&peer))?;
    bench.report(name, &rounds, Unit::Micros, size, None)
}
