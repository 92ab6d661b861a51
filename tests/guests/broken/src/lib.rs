//! Backends with one fault each, which `kv-store check` must find. A component is known by its file's name, so each is this
//! component under another name: the URI's scheme says which fault it has. But for that it keeps files in the directory
//! that the URI names, and does it well.

use std::cell::Cell;
use std::collections::{HashMap, HashSet};

use kv_store_sdk::files::{
    Directory, ReadOutcome, ReadRequest, SizeOutcome, WriteOutcome, WriteRequest, open_directory,
};
use kv_store_sdk::key::{escape, hex};
use kv_store_sdk::payloads::Part;
use kv_store_sdk::uri::without_query;
use kv_store_sdk::{
    Backend, Chunk, CommitOutcome, DeleteOutcome, Error, Features, GetOutcome, Hashes, Manifest, Options, Payload,
    Presence, Properties, PutOutcome, Result, absent, export, system,
};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    /// One chunk in ten is said to be stored, and is not.
    LosesChunks,
    /// A manifest is written in two steps.
    TearsManifests,
    /// A chunk that is there is said to be new.
    NeverExisted,
    /// The last byte of a chunk is left out.
    WrongLength,
    /// It keeps everything in the instance, and says that it lasts.
    Forgets,
    /// A damaged chunk is said to be removed, and stays.
    KeepsDamaged,
    /// Each instance knows only its own chunks, and it says that there may be many.
    NotThreadSafe,
    /// It answers one item of a batch, slowly.
    AnswersSlowly,
    /// It keeps each payload that it has answered.
    Leaks,
    /// It remembers the manifests that it has seen, and asks no more.
    CachesManifests,
    /// It publishes a manifest before it writes the chunks that came before.
    WritesLate,
    /// `exists` says of every chunk that it is there.
    AlwaysExists,
    /// A parameter of the URI that it does not know is passed over.
    IgnoresParameters,
    /// The bytes of item n + 1 are stored under hash n.
    ShiftsItems,
    /// The answers of a put come in the order of the last item first.
    SwapsAnswers,
    /// What was stored once is said to be there, whoever has removed it.
    StaleExisted,
    /// A chunk that is not there is answered as a failure.
    FailsMisses,
    /// With a chunk all others are removed.
    RemovesOthers,
    /// A chunk that is not there cannot be removed.
    RefusesAbsent,
    /// There is no commit without a manifest.
    NeedsManifest,
    /// A manifest is published whichever of its chunks are gone.
    PublishesOverGone,
    /// Names that differ only in a `/` at their end are one.
    TrimsNames,
}

impl Fault {
    fn of(scheme: &str) -> Option<Self> {
        Some(match scheme {
            "sound" => Fault::None,
            "loses-chunks" => Fault::LosesChunks,
            "tears-manifests" => Fault::TearsManifests,
            "never-existed" => Fault::NeverExisted,
            "wrong-length" => Fault::WrongLength,
            "forgets" => Fault::Forgets,
            "keeps-damaged" => Fault::KeepsDamaged,
            "not-thread-safe" => Fault::NotThreadSafe,
            "answers-slowly" => Fault::AnswersSlowly,
            "leaks" => Fault::Leaks,
            "caches-manifests" => Fault::CachesManifests,
            "writes-late" => Fault::WritesLate,
            "always-exists" => Fault::AlwaysExists,
            "ignores-parameters" => Fault::IgnoresParameters,
            "shifts-items" => Fault::ShiftsItems,
            "swaps-answers" => Fault::SwapsAnswers,
            "stale-existed" => Fault::StaleExisted,
            "fails-misses" => Fault::FailsMisses,
            "removes-others" => Fault::RemovesOthers,
            "refuses-absent" => Fault::RefusesAbsent,
            "needs-manifest" => Fault::NeedsManifest,
            "trims-names" => Fault::TrimsNames,
            "publishes-over-gone" => Fault::PublishesOverGone,
            _ => return None,
        })
    }

    /// Whether chunks are kept in the instance.
    fn keeps_chunks(self) -> bool {
        matches!(self, Fault::Forgets | Fault::NotThreadSafe)
    }

    /// Whether it would show in one process already if there were several instances.
    fn needs_one_instance(self) -> bool {
        matches!(self, Fault::CachesManifests | Fault::WritesLate | Fault::StaleExisted)
    }
}

struct Broken {
    fault: Fault,
    directory: Directory,
    chunks: HashMap<Vec<u8>, Payload>,
    manifests: HashMap<String, Payload>,
    puts: Cell<u64>,
    /// The hashes of all chunks that were ever put.
    seen: HashSet<Vec<u8>>,
}

impl Broken {
    fn manifest_path(&self, name: &str) -> String {
        let name = if self.fault == Fault::TrimsNames { name.trim_end_matches('/') } else { name };
        format!("manifests/{}", escape(name))
    }

    fn has(&self, hash: &[u8]) -> Result<bool> {
        if self.fault.keeps_chunks() || self.chunks.contains_key(hash) {
            return Ok(self.chunks.contains_key(hash));
        }
        Ok(matches!(self.directory.sizes(&[chunk_path(hash)])?.first(), Some(SizeOutcome::Size(_))))
    }

    fn put(&mut self, chunk: &Chunk, replace: bool) -> Result<PutOutcome> {
        if self.fault == Fault::StaleExisted && !self.seen.insert(chunk.hash.to_vec()) {
            return Ok(PutOutcome::Existed);
        }
        if !replace && self.has(chunk.hash)? {
            return Ok(if self.fault == Fault::NeverExisted { PutOutcome::Stored } else { PutOutcome::Existed });
        }
        self.puts.set(self.puts.get() + 1);
        if self.fault == Fault::LosesChunks && self.puts.get() % 10 == 0 {
            return Ok(PutOutcome::Stored);
        }
        if self.fault.keeps_chunks() || self.fault == Fault::WritesLate {
            self.chunks.insert(chunk.hash.to_vec(), chunk.keep()?);
            return Ok(PutOutcome::Stored);
        }
        let len = match self.fault {
            Fault::WrongLength => chunk.len.saturating_sub(1),
            _ => chunk.len,
        };
        self.write(chunk_path(chunk.hash), chunk.range(0, len), replace)
    }

    fn write(&self, path: String, content: Part, replace: bool) -> Result<PutOutcome> {
        let request = WriteRequest { path, content: vec![content], replace };
        match self.directory.write(&[request], false)?.pop() {
            Some(WriteOutcome::Written) => Ok(PutOutcome::Stored),
            Some(WriteOutcome::Existed) => Ok(PutOutcome::Existed),
            Some(WriteOutcome::Failed(error)) => Err(error),
            None => Err(Error::other("the host answered nothing")),
        }
    }

    /// Make chunks durable, or tell which of them are gone.
    fn make_durable(&self, fresh: &[Hashes]) -> Result<Option<CommitOutcome>> {
        let mut gone = Vec::new();
        for hash in fresh.iter().flat_map(|hashes| hashes.iter()) {
            if !self.has(hash)? {
                gone.push(hash);
            } else if !self.chunks.contains_key(hash) {
                self.directory.sync(&[chunk_path(hash)])?;
            }
        }
        Ok(absent(gone))
    }

    fn read(&self, path: String) -> Result<Option<Payload>> {
        match self.directory.read(&[ReadRequest { path, offset: 0, len: None, item: None }])?.pop() {
            Some(ReadOutcome::Found(data)) if self.fault == Fault::Leaks => {
                let answered = data.share()?;
                std::mem::forget(data);
                Ok(Some(answered))
            }
            Some(ReadOutcome::Found(data)) => Ok(Some(data)),
            Some(ReadOutcome::Failed(error)) => Err(error),
            Some(ReadOutcome::Missing) | None => Ok(None),
        }
    }
}

fn chunk_path(hash: &[u8]) -> String {
    format!("chunks/{}", hex(hash))
}

impl Backend for Broken {
    fn open(uri: &str, options: Options) -> Result<(Self, Features)> {
        options.finish()?;
        let scheme = uri.split("://").next().unwrap_or_default();
        let fault = Fault::of(scheme).ok_or_else(|| Error::invalid(format!("{scheme} is none of the faults")))?;
        if fault != Fault::IgnoresParameters {
            without_query(uri);
        }
        let properties = Properties::DURABLE
            | Properties::SHARED
            | Properties::WRITE_THROUGH.when(fault != Fault::AnswersSlowly)
            | Properties::CHEAP_REPEAT.when(fault == Fault::SwapsAnswers)
            | Properties::HOLDS_DATA.when(fault == Fault::Forgets);
        let features = Features {
            label: format!("a backend with a fault: {scheme}"),
            properties,
            max_instances: fault.needs_one_instance().then_some(1),
            ..Default::default()
        };
        let directory = open_directory("")?;
        let (chunks, manifests, puts, seen) = Default::default();
        Ok((Broken { fault, directory, chunks, manifests, puts, seen }, features))
    }

    fn exists(&mut self, hashes: Hashes) -> Result<Vec<Presence>> {
        if self.fault == Fault::AlwaysExists {
            return Ok(hashes.iter().map(|_| Presence::from(true)).collect());
        }
        hashes.iter().map(|hash| self.has(hash).map(Presence::from)).collect()
    }

    fn put_chunks(&mut self, chunks: &[Chunk], replace: bool) -> Result<Vec<PutOutcome>> {
        let answered = if self.fault == Fault::AnswersSlowly {
            system::sleep(50_000_000)?;
            1
        } else {
            chunks.len()
        };
        if self.fault == Fault::ShiftsItems {
            let under = chunks.iter().zip(chunks.iter().cycle().skip(1));
            return under.map(|(chunk, next)| self.write(chunk_path(chunk.hash), next.part(), replace)).collect();
        }
        let mut answers =
            chunks.iter().take(answered).map(|chunk| self.put(chunk, replace)).collect::<Result<Vec<_>>>()?;
        if self.fault == Fault::SwapsAnswers {
            answers.reverse();
        }
        Ok(answers)
    }

    fn get_chunks(&mut self, hashes: Hashes) -> Result<Vec<GetOutcome>> {
        let get = |hash: &[u8]| {
            let found = match self.fault.keeps_chunks() || self.chunks.contains_key(hash) {
                true => self.chunks.get(hash).map(Payload::share).transpose()?,
                false => self.read(chunk_path(hash))?,
            };
            Ok(match found {
                Some(data) => GetOutcome::Found(data),
                None if self.fault == Fault::FailsMisses => GetOutcome::Failed(Error::other("there is no such chunk")),
                None => GetOutcome::Missing,
            })
        };
        hashes.iter().map(get).collect()
    }

    fn delete_chunks(&mut self, hashes: Hashes) -> Result<Vec<DeleteOutcome>> {
        if self.fault == Fault::RefusesAbsent {
            let remove = |hash: &[u8]| match self.has(hash)? {
                false => Ok(DeleteOutcome::Failed(Error::invalid("there is no such chunk"))),
                true => self.directory.remove(&[chunk_path(hash)], false).map(|_| DeleteOutcome::Gone),
            };
            return hashes.iter().map(remove).collect();
        }
        if self.fault == Fault::RemovesOthers {
            let there = self.directory.entries("chunks", None, 10_000)?;
            let paths: Vec<String> = there.into_iter().map(|entry| format!("chunks/{}", entry.name)).collect();
            self.directory.remove(&paths, false)?;
        }
        if self.fault != Fault::KeepsDamaged {
            hashes.iter().for_each(|hash| drop(self.chunks.remove(hash)));
            self.directory.remove(&hashes.iter().map(|hash| chunk_path(hash)).collect::<Vec<_>>(), false)?;
        }
        Ok(hashes.iter().map(|_| DeleteOutcome::Gone).collect())
    }

    fn commit(&mut self, fresh: &[Hashes], manifest: Option<Manifest>) -> Result<CommitOutcome> {
        if self.fault == Fault::NeedsManifest && manifest.is_none() {
            return Err(Error::invalid("a commit needs a manifest"));
        }
        // Who loses chunks without knowing it cannot tell that they are gone.
        let tells = !matches!(self.fault, Fault::PublishesOverGone | Fault::LosesChunks) && !self.fault.keeps_chunks();
        if tells && let Some(gone) = self.make_durable(fresh)? {
            return Ok(gone);
        }
        let Some(manifest) = manifest else { return Ok(CommitOutcome::Published) };
        let path = self.manifest_path(manifest.name);
        match self.fault {
            Fault::Forgets => {
                self.manifests.insert(manifest.name.into(), manifest.keep()?);
                return Ok(CommitOutcome::Published);
            }
            Fault::TearsManifests => {
                self.write(path.clone(), manifest.range(0, manifest.len / 2), true)?;
                system::sleep(2_000_000)?;
            }
            Fault::CachesManifests => {
                self.manifests.insert(manifest.name.into(), manifest.keep()?);
            }
            _ => {}
        }
        self.write(path.clone(), manifest.part(), true)?;
        self.directory.sync(&[path])?;
        if self.fault == Fault::WritesLate {
            system::sleep(5_000_000)?;
            for (hash, data) in std::mem::take(&mut self.chunks) {
                self.write(chunk_path(&hash), Part::Payload(&data), true)?;
            }
        }
        Ok(CommitOutcome::Published)
    }

    fn get_manifest(&mut self, name: &str) -> Result<Option<Payload>> {
        if self.fault == Fault::Forgets || self.manifests.contains_key(name) {
            return self.manifests.get(name).map(Payload::share).transpose();
        }
        self.read(self.manifest_path(name))
    }

    fn delete_manifest(&mut self, name: &str) -> Result<()> {
        self.manifests.remove(name);
        self.directory.remove(&[self.manifest_path(name)], false).map(drop)
    }
}

export!(Broken, wishes: ["the directory in the URI"]);
