//! A backend on the directory that the URI names, sound but for the one bug that its scheme names.

mod chunks;
mod commit;
mod keys;
mod listing;
#[path = "../../named.rs"]
mod named;

use std::collections::{HashMap, HashSet};

use kv_store_sdk::files::{
    Directory, ReadOutcome, ReadRequest, SizeOutcome, WriteOutcome, WriteRequest, open_directory,
};
use kv_store_sdk::payloads::Part;
use kv_store_sdk::uri::without_query;
use kv_store_sdk::{
    Backend, Chunk, CommitOutcome, DeleteOutcome, Error, Features, GetOutcome, Hashes, Manifest, Options, Payload,
    Presence, Properties, PutOutcome, Result, Totals, export, system,
};

use named::Files as Bug;

struct Files {
    bug: Bug,
    directory: Directory,
    /// The directory of the chunks.
    folder: String,
    /// What an instance remembers by mistake.
    memory: Memory,
}

#[derive(Default)]
struct Memory {
    chunks: HashMap<Vec<u8>, Payload>,
    manifests: HashMap<String, Payload>,
    hashes: HashSet<Vec<u8>>,
    waiting: Vec<(Vec<u8>, Payload)>,
    /// A manifest that is not yet published.
    late: Option<(String, Payload)>,
    puts: u64,
    usage: Option<Totals>,
}

impl Files {
    fn is(&self, bug: Bug) -> bool {
        self.bug == bug
    }

    fn path(&self, hash: &[u8]) -> String {
        keys::chunk(self.bug, &self.folder, hash)
    }

    fn size(&self, path: String) -> Result<Option<u64>> {
        match self.directory.sizes(&[path])?.pop() {
            Some(SizeOutcome::Size(size)) => Ok(Some(size)),
            Some(SizeOutcome::Failed(error)) => Err(error),
            Some(SizeOutcome::Missing) | None => Ok(None),
        }
    }

    fn read(&self, path: String) -> Result<Option<Payload>> {
        match self.directory.read(&[ReadRequest { path, offset: 0, len: None, item: None }])?.pop() {
            Some(ReadOutcome::Found(data)) => Ok(Some(data)),
            Some(ReadOutcome::Failed(error)) => Err(error),
            Some(ReadOutcome::Missing) | None => Ok(None),
        }
    }

    fn write(&self, path: String, content: Vec<Part>, replace: bool, durable: bool) -> Result<PutOutcome> {
        match self.directory.write(&[WriteRequest { path, content, replace }], durable)?.pop() {
            Some(WriteOutcome::Written) => Ok(PutOutcome::Stored),
            Some(WriteOutcome::Existed) => Ok(PutOutcome::Existed),
            Some(WriteOutcome::Failed(error)) => Err(error),
            None => Err(Error::other("the host answered nothing for a file")),
        }
    }

    /// All files of a directory, by path.
    fn all(&self, folder: &str) -> Result<Vec<String>> {
        let mut paths = Vec::new();
        let mut after: Option<String> = None;
        loop {
            let page = self.directory.entries(folder, after.as_deref(), 4096)?;
            let Some(last) = page.last() else { return Ok(paths) };
            after = Some(last.name.clone());
            paths.extend(page.iter().filter(|entry| !entry.directory).map(|entry| format!("{folder}/{}", entry.name)));
        }
    }

    fn remove(&self, paths: &[String]) -> Result<()> {
        paths.chunks(256).try_for_each(|paths| self.directory.remove(paths, false).map(drop))
    }

    fn publish_late(&mut self) -> Result<()> {
        let Some((path, data)) = self.memory.late.take() else { return Ok(()) };
        self.write(path, vec![Part::Payload(&data)], true, true).map(drop)
    }
}

/// 64 KiB of linear memory that nobody frees.
fn grow() {
    std::mem::forget(std::hint::black_box(vec![1_u8; 64 << 10]));
}

fn instance() -> String {
    format!("{:016x}", system::random())
}

impl Backend for Files {
    fn open(uri: &str, options: Options) -> Result<(Self, Features)> {
        let bug = Bug::named(uri)?;
        if bug != Bug::AcceptsOptions {
            options.finish()?;
        }
        if bug != Bug::IgnoresParameters {
            without_query(uri);
        }
        let folder = match bug {
            Bug::SharedByName => format!("chunks-{}", instance()),
            _ => "chunks".to_owned(),
        };
        let files = Files { bug, directory: open_directory("")?, folder, memory: Memory::default() };
        match bug {
            Bug::ClearsAtOpen => files.remove(&files.all("chunks")?)?,
            Bug::OpensOnce => {
                let lock = files.write("lock".into(), Vec::new(), false, false)?;
                if matches!(lock, PutOutcome::Existed) {
                    return Err(Error::unavailable("the directory is in use"));
                }
            }
            _ => {}
        }
        let buffered = matches!(bug, Bug::ShiftsItemsBuffered | Bug::AnswersSlowly | Bug::AbsentBeyondEight);
        // Bugs that one instance hides from itself.
        let one = matches!(
            bug,
            Bug::OpensOnce
                | Bug::StaleExisted
                | Bug::CachesManifests
                | Bug::RemembersAbsent
                | Bug::RemembersMisses
                | Bug::CachesChunks
                | Bug::WritesBehind
                | Bug::PublishesLate
                | Bug::SharedByName
                | Bug::HidesRemoved
                | Bug::NeverAgain
        );
        let odd = bug == Bug::ChangesFeatures && system::random() % 2 == 1;
        let features = Features {
            label: "a directory".into(),
            properties: Properties::DURABLE
                | Properties::SHARED
                | Properties::WRITE_THROUGH.when(!buffered)
                | Properties::CHEAP_REPEAT.when(bug == Bug::SwapsAnswers || odd),
            max_instances: one.then_some(1),
            ..Default::default()
        };
        Ok((files, features))
    }

    fn exists(&mut self, hashes: Hashes) -> Result<Vec<Presence>> {
        self.publish_late()?;
        self.presence(hashes)
    }

    fn put_chunks(&mut self, chunks: &[Chunk], replace: bool) -> Result<Vec<PutOutcome>> {
        self.publish_late()?;
        self.put(chunks, replace)
    }

    fn get_chunks(&mut self, hashes: Hashes) -> Result<Vec<GetOutcome>> {
        self.publish_late()?;
        self.get(hashes)
    }

    fn delete_chunks(&mut self, hashes: Hashes) -> Result<Vec<DeleteOutcome>> {
        self.delete(hashes)
    }

    fn commit(&mut self, fresh: &[Hashes], manifest: Option<Manifest>) -> Result<CommitOutcome> {
        self.publish_late()?;
        self.publish(fresh, manifest)
    }

    fn get_manifest(&mut self, name: &str) -> Result<Option<Payload>> {
        self.manifest(name)
    }

    fn delete_manifest(&mut self, name: &str) -> Result<()> {
        self.remove_manifest(name)
    }
}

export!(Files, maintenance, wishes: ["the directory in the URI"]);
