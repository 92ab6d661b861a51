//! Single calls and whole saves on servers, for `--against`: both libraries use one server.

use anyhow::{Context, Result, ensure};
use kv_store_conformance::Library;
use kv_store_tests::memkv::MemkvServer;
use kv_store_tests::redis::RedisServer;

use super::save::{CHUNKS, SIZE};
use crate::consumer::{Client, Contents, noise};
use crate::measure::{Bench, Unit, each};

pub const NAMES: [&str; 8] = [
    "redis/small/put",
    "redis/small/get",
    "redis/put/1MiB",
    "redis/get/1MiB",
    "save96/cold/redis",
    "save96/warm/redis",
    "save96/cold/memkv",
    "save96/warm/memkv",
];

/// Chunks of a row of 1 MiB.
const BATCH: u64 = 16;

/// A server of a row.
pub enum Server {
    Redis(RedisServer),
    Memkv(MemkvServer),
}

impl Server {
    pub fn start(name: &str) -> Self {
        match name.contains("memkv") {
            true => Server::Memkv(MemkvServer::start(&[])),
            false => Server::Redis(RedisServer::start(&[])),
        }
    }

    /// A store on it that is nobody else's.
    pub fn uri(&self, number: u32) -> String {
        match self {
            Server::Redis(server) => format!("redis://127.0.0.1:{}/{number}", server.port),
            Server::Memkv(server) => format!("memkv://127.0.0.1:{}/store-{number}", server.port),
        }
    }

    /// Have it forget what it holds, where it would only grow.
    fn empty(&self) {
        if let Server::Redis(server) = self {
            server.ask("FLUSHALL");
        }
    }
}

/// What a row does again and again.
pub struct Work<'a> {
    client: Client<'a>,
    name: String,
    len: usize,
    contents: Contents,
    manifest: Vec<u8>,
    next: u64,
}

impl<'a> Work<'a> {
    pub fn new(name: &str, library: &'a Library, uri: &str) -> Result<Self> {
        ensure!(NAMES.contains(&name), "{name} is none of the rows");
        let len = match name {
            small if small.contains("small") => 64,
            large if large.contains("1MiB") => 1 << 20,
            _ => SIZE,
        };
        let client = Client::open(library, uri)?;
        let (contents, manifest) = (Contents::new(len), noise(2 << 10, 7));
        let mut work = Work { client, name: name.to_owned(), len, contents, manifest, next: 1 << 40 };
        work.contents.prepare(0..CHUNKS.max(BATCH));
        if name.contains("get") {
            work.put(0, BATCH)?;
        }
        Ok(work)
    }

    fn put(&mut self, first: u64, count: u64) -> Result<()> {
        for n in first..first + count {
            let (key, data) = self.contents.chunk(n)?;
            self.client.put(&key, data)?;
        }
        self.client.publish("manifest", &self.manifest)
    }

    /// What the next [`Self::once`] needs, and what does not count.
    pub fn prepare(&mut self) {
        if !self.name.contains("warm") {
            self.next += CHUNKS;
            self.contents.prepare(self.next..self.next + CHUNKS);
        }
    }

    /// Do it once.
    pub fn once(&mut self) -> Result<()> {
        let len = self.len;
        match self.name.as_str() {
            "redis/small/put" => self.client.publish("small", self.contents.chunk(0)?.1),
            "redis/small/get" => self.client.get(&self.contents.key(0)?).map(drop),
            "redis/get/1MiB" => {
                let keys = (0..BATCH).map(|number| self.contents.key(number)).collect::<Result<Vec<_>>>()?;
                self.client.prefetch(&keys)?;
                keys.iter().try_for_each(|key| {
                    ensure!(self.client.get(key)?.bytes().len() == len);
                    Ok(())
                })
            }
            warm if warm.contains("warm") => self.put(0, CHUNKS),
            name => {
                let count = if name.contains("1MiB") { BATCH } else { CHUNKS };
                self.put(self.next, count)
            }
        }
    }
}

pub fn run(bench: &Bench) -> Result<()> {
    for name in NAMES.into_iter().filter(|name| bench.wants(name)) {
        let server = Server::start(name);
        let (mut ours, mut former) =
            (Work::new(name, &bench.ours, &server.uri(1))?, Work::new(name, &bench.native, &server.uri(2))?);
        let count = if name.contains("small") { 100 } else { 1 };
        let timed = |work: &mut Work<'_>| {
            if name.contains("put/1MiB") || name.contains("cold") {
                server.empty();
            }
            work.prepare();
            each(count, |_| work.once())
        };
        let rounds = bench.rounds(|| timed(&mut ours), || timed(&mut former))?;
        bench.report(name, &rounds, Unit::Micros, 0, None).with_context(|| name.to_owned())?;
    }
    Ok(())
}
