//! A backend on a Redis or Valkey server, sound but for the one bug that its scheme names. `SCHEME://HOST:PORT/DB`.

mod link;
#[path = "../../named.rs"]
mod named;

use kv_store_sdk::payloads::Part;
use kv_store_sdk::uri::without_query;
use kv_store_sdk::{
    Backend, Chunk, CommitOutcome, DeleteOutcome, Error, Features, GetOutcome, Hashes, Manifest, Options, Payload,
    Presence, Properties, PutOutcome, Result, export, system,
};

use link::{Link, Reply, command};
use named::Net as Bug;

struct Store {
    bug: Bug,
    link: Link,
}

fn chunk_key(hash: &[u8]) -> Vec<u8> {
    [b"c:", hash].concat()
}

fn manifest_key(name: &str) -> Vec<u8> {
    [b"m:", name.as_bytes()].concat()
}

impl Store {
    fn is(&self, bug: Bug) -> bool {
        self.bug == bug
    }

    /// All commands of a batch, and their replies.
    fn ask(&mut self, commands: Vec<Vec<Part<'static>>>, items: bool) -> Result<Vec<Reply>> {
        let count = commands.len();
        let parts: Vec<Part> = commands.into_iter().flatten().collect();
        loop {
            let answered = self.link.ask(&parts, count, items);
            match answered {
                Err(error) if self.is(Bug::WaitsOn) => {
                    if system::remaining() < 100_000_000 {
                        return Err(error);
                    }
                    drop(system::sleep(10_000_000));
                }
                answered => return answered,
            }
        }
    }

    fn ask_one(&mut self, command: Vec<Part<'static>>) -> Result<Reply> {
        self.ask(vec![command], false)?.pop().ok_or_else(|| Error::corrupt("the server answered nothing"))
    }
}

impl Backend for Store {
    fn open(uri: &str, options: Options) -> Result<(Self, Features)> {
        let bug = Bug::named(uri)?;
        options.finish()?;
        let rest = without_query(uri).split_once("://").map_or("", |(_, rest)| rest);
        let (authority, database) = rest.split_once('/').unwrap_or((rest, ""));
        let database = if database.is_empty() { "0" } else { database };
        let database: u32 = database.parse().map_err(|_| Error::invalid(format!("{uri}: expected a database")))?;
        let mut store = Store { bug, link: Link::new(bug, authority, database)? };
        store.ask_one(command(&[b"PING"], None))?.ok()?;
        let features = Features {
            label: format!("a server at {authority}"),
            properties: Properties::SHARED
                | Properties::CHEAP_REPEAT
                | Properties::DURABLE.when(bug == Bug::UnsyncedDurable),
            batch_items: Some(64),
            // Bugs of which an instance keeps the state.
            max_instances: matches!(bug, Bug::GivesUp | Bug::KeepsBroken).then_some(1),
            ..Default::default()
        };
        Ok((store, features))
    }

    fn exists(&mut self, hashes: Hashes) -> Result<Vec<Presence>> {
        let commands = hashes.iter().map(|hash| command(&[b"EXISTS", &chunk_key(hash)], None)).collect();
        self.ask(commands, false)?.into_iter().map(|reply| Ok((reply.number()? > 0).into())).collect()
    }

    fn put_chunks(&mut self, chunks: &[Chunk], replace: bool) -> Result<Vec<PutOutcome>> {
        let put = |chunk: &Chunk| {
            let value = Some((chunk.part(), chunk.len));
            match replace {
                true => command(&[b"SET", &chunk_key(chunk.hash)], value),
                false => link::with_end(command(&[b"SET", &chunk_key(chunk.hash)], value), b"NX"),
            }
        };
        let commands = chunks.iter().map(put).collect();
        if self.is(Bug::PutsUnanswered) {
            self.link.say(commands)?;
            return Ok(chunks.iter().map(|_| PutOutcome::Stored).collect());
        }
        let replies = match self.ask(commands, false) {
            Err(_) if self.is(Bug::PutsClosed) => return Ok(chunks.iter().map(|_| PutOutcome::Stored).collect()),
            replies => replies?,
        };
        let outcome = |reply: Reply| match reply {
            Reply::Error(_) if self.bug == Bug::PutsRefused => PutOutcome::Stored,
            Reply::Nothing => PutOutcome::Existed,
            reply => reply.ok().map_or_else(PutOutcome::Failed, |()| PutOutcome::Stored),
        };
        Ok(replies.into_iter().map(outcome).collect())
    }

    fn get_chunks(&mut self, hashes: Hashes) -> Result<Vec<GetOutcome>> {
        let commands = hashes.iter().map(|hash| command(&[b"GET", &chunk_key(hash)], None)).collect();
        let replies = match self.ask(commands, true) {
            Err(_) if self.is(Bug::MissesClosed) => return Ok(hashes.iter().map(|_| GetOutcome::Missing).collect()),
            replies => replies?,
        };
        let outcome = |reply| match reply {
            Reply::Value(data) => GetOutcome::Found(data),
            Reply::Nothing => GetOutcome::Missing,
            Reply::Error(_) if self.bug == Bug::MissesRefused => GetOutcome::Missing,
            reply => GetOutcome::Failed(reply.unexpected()),
        };
        Ok(replies.into_iter().map(outcome).collect())
    }

    fn delete_chunks(&mut self, hashes: Hashes) -> Result<Vec<DeleteOutcome>> {
        let commands = hashes.iter().map(|hash| command(&[b"DEL", &chunk_key(hash)], None)).collect();
        let bug = self.bug;
        let outcome = |reply: Reply| match reply {
            Reply::Error(_) if bug == Bug::RemovesRefused => DeleteOutcome::Gone,
            reply => reply.number().map_or_else(DeleteOutcome::Failed, |_| DeleteOutcome::Gone),
        };
        let replies = self.ask(commands, false)?;
        Ok(replies.into_iter().map(outcome).collect())
    }

    fn commit(&mut self, _fresh: &[Hashes], manifest: Option<Manifest>) -> Result<CommitOutcome> {
        let Some(manifest) = manifest else { return Ok(CommitOutcome::Published) };
        let set = command(&[b"SET", &manifest_key(manifest.name)], Some((manifest.part(), manifest.len)));
        if self.is(Bug::CommitsUnanswered) {
            self.link.say(vec![set])?;
            return Ok(CommitOutcome::Published);
        }
        match self.ask_one(set)? {
            Reply::Error(_) if self.is(Bug::CommitsRefused) => {}
            reply => reply.ok()?,
        }
        Ok(CommitOutcome::Published)
    }

    fn get_manifest(&mut self, name: &str) -> Result<Option<Payload>> {
        match self.ask_one(command(&[b"GET", &manifest_key(name)], None))? {
            Reply::Value(data) => Ok(Some(data)),
            Reply::Nothing => Ok(None),
            reply => Err(reply.unexpected()),
        }
    }

    fn delete_manifest(&mut self, name: &str) -> Result<()> {
        self.ask_one(command(&[b"DEL", &manifest_key(name)], None))?.number().map(drop)
    }
}

export!(Store, wishes: ["the server in the URI"]);
