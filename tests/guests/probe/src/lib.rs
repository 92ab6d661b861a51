//! A backend that tests steer: options set what it declares of itself, and a manifest's name makes it misbehave in one
//! way. Otherwise it keeps chunks and manifests in memory and counts its calls; the manifest `calls` tells the counts.

mod any;
mod echo;
mod lies;
mod misbehave;
mod records;
mod script;

use std::collections::{BTreeMap, HashMap, HashSet};

use kv_store_sdk::{
    Backend, Chunk, CommitOutcome, DeleteOutcome, Error, Features, GetOutcome, Hashes, Manifest, Options, Payload,
    Presence, Properties, PutOutcome, Result, export,
};
use kv_store_sdk::{changes, system};

#[derive(Default)]
struct Probe {
    chunks: HashMap<Vec<u8>, Payload>,
    manifests: HashMap<String, Payload>,
    rotten: HashSet<Vec<u8>>,
    calls: BTreeMap<&'static str, u64>,
    /// How often `put_chunks` fails before it works.
    failing_puts: u32,
    /// How `delete_chunks` fails, if it does.
    failing_deletes: Option<String>,
    /// How long `put_chunks` takes, in milliseconds.
    slow_puts: u64,
    /// How long `exists` and `get_chunks` take, in milliseconds.
    slow_reads: u64,
    /// Items that one answer holds at most.
    answers: usize,
    fresh: usize,
    /// The tokens that the last change was told of.
    told: Vec<Vec<u8>>,
}

impl Probe {
    fn count(&mut self, call: &'static str, items: usize) {
        *self.calls.entry(call).or_default() += 1;
        *self.calls.entry(items_of(call)).or_default() += items as u64;
    }

    fn read_slowly(&self) -> Result<()> {
        if self.slow_reads > 0 { system::sleep(self.slow_reads * 1_000_000) } else { Ok(()) }
    }
}

fn items_of(call: &'static str) -> &'static str {
    match call {
        "exists" => "exists-items",
        "put" => "put-items",
        "delete" => "delete-items",
        _ => "get-items",
    }
}

impl Probe {
    /// Under which key a chunk lies: its hash, or what is made of it where the chunk lies in an envelope.
    fn key_of(&self, hash: Vec<u8>) -> Vec<u8> {
        let suffix = if hash.len() == 4 { &b"\x02kv2\x02"[..] } else { b"\x02kv2" };
        let enveloped = [&hash[..], suffix].concat();
        if self.chunks.contains_key(&enveloped) { enveloped } else { hash }
    }
}

impl Backend for Probe {
    fn open(_uri: &str, mut options: Options) -> Result<(Self, Features)> {
        let number = |text: Option<String>| text.and_then(|text| text.parse().ok());
        if let Some(how) = options.take("open") {
            misbehave::act(&how)?;
        }
        let answers = number(options.take("answers")).unwrap_or(usize::MAX as u64) as usize;
        let properties = Properties::HOLDS_DATA
            | Properties::DURABLE.when(options.take("volatile").is_none())
            | Properties::CHEAP_REPEAT.when(options.take("cheap-repeat").is_some())
            | Properties::WRITE_THROUGH.when(options.take("write-through").is_some())
            | Properties::SETTLES.when(options.take("settles").is_some());
        let features = Features {
            label: "a probe".into(),
            properties,
            batch_items: number(options.take("batch")).map(|n| n as u32),
            max_value_bytes: number(options.take("max-value")),
            ..Default::default()
        };
        let failing_puts = number(options.take("failing-puts")).unwrap_or(0) as u32;
        let failing_deletes = options.take("failing-deletes");
        let slow_puts = number(options.take("slow-puts")).unwrap_or(0);
        let slow_reads = number(options.take("slow-reads")).unwrap_or(0);
        options.finish()?;
        Ok((Probe { answers, failing_puts, failing_deletes, slow_puts, slow_reads, ..Default::default() }, features))
    }

    fn exists(&mut self, hashes: Hashes) -> Result<Vec<Presence>> {
        self.count("exists", hashes.len());
        self.read_slowly()?;
        Ok(hashes.iter().take(self.answers).map(|hash| self.chunks.get(hash).map(Payload::len).into()).collect())
    }

    fn put_chunks(&mut self, chunks: &[Chunk], replace: bool) -> Result<Vec<PutOutcome>> {
        self.count("put", chunks.len());
        if self.slow_puts > 0 {
            system::sleep(self.slow_puts * 1_000_000)?;
        }
        if self.failing_puts > 0 {
            self.failing_puts -= 1;
            return Err(Error::unavailable("told to fail"));
        }
        chunks
            .iter()
            .take(self.answers)
            .map(|chunk| {
                if chunk.hash.starts_with(b"trap") {
                    misbehave::act("trap")?;
                }
                if chunk.hash.starts_with(b"denied") {
                    return Ok(PutOutcome::Failed(Error::denied("not this one")));
                }
                if !replace && self.chunks.contains_key(chunk.hash) {
                    return Ok(PutOutcome::Existed);
                }
                self.rotten.remove(chunk.hash);
                self.chunks.insert(chunk.hash.to_vec(), chunk.keep()?);
                Ok(PutOutcome::Stored)
            })
            .collect()
    }

    fn get_chunks(&mut self, hashes: Hashes) -> Result<Vec<GetOutcome>> {
        self.count("get", hashes.len());
        self.read_slowly()?;
        // What is to be done lies in an envelope too: its key has a mark behind it.
        let told = hashes.iter().next().and_then(|hash| std::str::from_utf8(hash).ok());
        if let Some(how) = told.and_then(|told| told.strip_prefix("do:")) {
            misbehave::act(how.strip_suffix("\u{2}kv2").unwrap_or(how))?;
        }
        hashes
            .iter()
            .take(self.answers)
            .map(|hash| {
                if self.rotten.contains(hash) {
                    return Ok(GetOutcome::Failed(Error::corrupt("its checksum is wrong")));
                }
                Ok(match self.chunks.get(hash) {
                    Some(data) => GetOutcome::Found(data.share()?),
                    None => GetOutcome::Missing,
                })
            })
            .collect()
    }

    fn delete_chunks(&mut self, hashes: Hashes) -> Result<Vec<DeleteOutcome>> {
        self.count("delete", hashes.len());
        match self.failing_deletes.as_deref() {
            None => {}
            Some("unsupported") => return Err(Error::unsupported("told to keep everything")),
            Some(_) => return Ok(vec![DeleteOutcome::Failed(Error::unavailable("told to fail"))]),
        }
        let delete = |hash| {
            self.chunks.remove(hash);
            self.rotten.remove(hash);
            DeleteOutcome::Gone
        };
        Ok(hashes.iter().take(self.answers).map(delete).collect())
    }

    fn commit(&mut self, fresh: &[Hashes], manifest: Option<Manifest>) -> Result<CommitOutcome> {
        self.fresh = fresh.iter().map(|hashes| hashes.len()).sum();
        let Some(manifest) = manifest else { return Ok(CommitOutcome::Published) };
        // What is to be done lies in an envelope: its name has a mark behind it, its content 64 bytes.
        let name = manifest.name.strip_suffix('\u{2}').unwrap_or(manifest.name);
        let content = || manifest.keep().and_then(|data| data.read(0, (manifest.len as u32).saturating_sub(64)));
        match name {
            // The chunk whose hash is the manifest's content gets other bytes of the same length.
            name if name.starts_with("damage:") => {
                let hash = self.key_of(content()?);
                let len = self.chunks.get(&hash).map_or(0, Payload::len) as usize;
                self.chunks.insert(hash, Payload::from_bytes(&vec![b'!'; len])?);
            }
            // The guest itself finds that chunk corrupt from now on.
            "rot" => {
                let hash = self.key_of(content()?);
                self.rotten.insert(hash);
            }
            // It loses that chunk.
            "lose" => {
                let hash = self.key_of(content()?);
                self.chunks.remove(&hash);
            }
            // Calls that a test has made up.
            "any" => any::run(&content()?)?,
            // A change that says what it sends: a token, and how it ends.
            "late" => {
                let content = content()?;
                let (end, token) = content.split_at_checked(1).unwrap_or_default();
                self.told = changes::begin(&[0], token);
                match end {
                    b"?" => return Err(Error::unavailable("told to lose it")),
                    b"-" => {
                        changes::not_done(&[0]);
                        return Err(Error::unavailable("told to be refused"));
                    }
                    _ => {}
                }
            }
            name if name.starts_with("do:") => misbehave::act(&name[3..])?,
            _ => {
                self.manifests.insert(manifest.name.into(), manifest.keep()?);
            }
        }
        Ok(CommitOutcome::Published)
    }

    fn get_manifest(&mut self, name: &str) -> Result<Option<Payload>> {
        // What is asked of the probe itself is answered under its own name alone, without an envelope.
        if name.ends_with('\u{2}') {
            return self.manifests.get(name).map(Payload::share).transpose();
        }
        if name == "calls" {
            let mut text: Vec<String> = self.calls.iter().map(|(call, count)| format!("{call}={count}")).collect();
            text.push(format!("fresh={}", self.fresh));
            return Payload::from_bytes(text.join(" ").as_bytes()).map(Some);
        }
        if name == "told" {
            return Payload::from_bytes(&self.told.join(&b' ')).map(Some);
        }
        if let Some(fact) = name.strip_prefix("fact:") {
            return system::fact(fact).map(|value| Payload::from_bytes(value.as_bytes())).transpose();
        }
        if let Some(how) = name.strip_prefix("do:") {
            misbehave::act(how)?;
        }
        if let Some(text) = name.strip_prefix("net:") {
            return Payload::from_bytes(script::run(text)?.as_bytes()).map(Some);
        }
        if let Some(server) = name.strip_prefix("echo:") {
            return echo::exchange(server).map(Some);
        }
        self.manifests.get(name).map(Payload::share).transpose()
    }

    fn delete_manifest(&mut self, name: &str) -> Result<()> {
        self.manifests.remove(name);
        Ok(())
    }
}

export!(Probe, wishes: ["nothing"]);
