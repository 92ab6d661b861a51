//! `redis://[USER@]HOST[:PORT][/DB]`, or `rediss://` for TLS: chunks and manifests as strings of a Redis server, over RESP2.
//!
//! A chunk lies under `<prefix>c:<hash>`, a manifest under `<prefix>m:<name>`, both binary and as they are, so that the two
//! never meet. A value is set by one command, so a reader sees it whole. The password is the secret `password`
//! (`REDIS_PASSWORD`). Option `prefix` (default `kv:`) sets a store apart from what else the database holds.

mod resp;
mod server;
mod uri;

use kv_store_sdk::payload::Part;
use kv_store_sdk::{
    Backend, Chunk, CommitOutcome, DeleteOutcome, Error, ErrorKind, Features, GetOutcome, Hashes, Manifest, Options,
    Payload, Presence, PutOutcome, Result, export,
};

use resp::Reply;
use server::{Server, Session};

/// What Redis takes in one string (`proto-max-bulk-len`, unless it was changed).
const MAX_VALUE_BYTES: u64 = 512 << 20;
/// Commands in one pipeline. A batch of chunks rarely has more; the replies to as many fit any buffer.
const PIPELINE: u32 = 256;
/// Bytes in one pipeline: enough to fill a network, little enough for a server's memory.
const PIPELINE_BYTES: u64 = 32 << 20;

struct Redis {
    server: Server,
    prefix: String,
}

impl Redis {
    fn chunk_key(&self, hash: &[u8]) -> Vec<u8> {
        [self.prefix.as_bytes(), b"c:", hash].concat()
    }

    fn manifest_key(&self, name: &str) -> Vec<u8> {
        [self.prefix.as_bytes(), b"m:", name.as_bytes()].concat()
    }
}

impl Backend for Redis {
    fn open(uri: &str, mut options: Options) -> Result<(Self, Features)> {
        let prefix = options.take("prefix").unwrap_or_else(|| "kv:".into());
        options.finish()?;
        let server = Server::new(uri::parse(uri)?);
        let version = server.with_session(|session| session.version())?;
        let features = Features {
            label: format!("Redis {version} at {}", server.describe()),
            max_batch_items: Some(PIPELINE),
            max_batch_bytes: Some(PIPELINE_BYTES),
            max_value_bytes: Some(MAX_VALUE_BYTES),
            shared: true,
            ..Default::default()
        };
        Ok((Redis { server, prefix }, features))
    }

    fn exists(&mut self, hashes: Hashes) -> Result<Vec<Presence>> {
        self.server.with_session(|session| {
            // Of several keys EXISTS only counts those that are there; mostly it is all of them, or none.
            let mut command = vec![b"EXISTS".to_vec()];
            command.extend(hashes.iter().map(|hash| self.chunk_key(hash)));
            session.send(&[Part::Bytes(resp::command(&command))])?;
            match session.reply()? {
                Reply::Integer(0) => return Ok(vec![Presence::Absent; hashes.len()]),
                Reply::Integer(all) if all == hashes.len() as i64 => {
                    return Ok(vec![Presence::Present(None); hashes.len()]);
                }
                Reply::Integer(_) => {}
                other => return Err(session.unexpected(&other, "EXISTS")),
            }
            let ask = |hash| Part::Bytes(resp::command(&[b"EXISTS".to_vec(), self.chunk_key(hash)]));
            session.send(&hashes.iter().map(ask).collect::<Vec<_>>())?;
            let replies = session.replies(hashes.len())?;
            let known = |reply| match reply? {
                Reply::Integer(count) => Ok(Presence::from(count > 0)),
                other => Err(session.unexpected(&other, "EXISTS")),
            };
            replies.into_iter().map(known).collect()
        })
    }

    fn put_chunks(&mut self, chunks: &[Chunk], replace: bool) -> Result<Vec<PutOutcome>> {
        self.server.with_session(|session| {
            let mut parts = Vec::with_capacity(chunks.len() * 3);
            for chunk in chunks {
                parts.extend(resp::set(&self.chunk_key(chunk.hash), chunk.part(), chunk.len, !replace));
            }
            session.send(&parts)?;
            let outcome = |reply| match reply {
                Ok(Reply::Status(_)) => PutOutcome::Stored,
                Ok(Reply::Nothing) => PutOutcome::Existed,
                Ok(other) => PutOutcome::Failed(session.unexpected(&other, "SET")),
                Err(refused) => PutOutcome::Failed(refused),
            };
            Ok(session.replies(chunks.len())?.into_iter().map(outcome).collect())
        })
    }

    fn get_chunks(&mut self, hashes: Hashes) -> Result<Vec<GetOutcome>> {
        let asked = hashes.first(PIPELINE as usize);
        self.server.with_session(|session| {
            if let (Some(hash), 1) = (asked.iter().next(), asked.len()) {
                session.send(&[Part::Bytes(resp::command(&[b"GET".to_vec(), self.chunk_key(hash)]))])?;
                return session.whole(|| read_values(session, 1));
            }
            let mut command = vec![b"MGET".to_vec()];
            command.extend(asked.iter().map(|hash| self.chunk_key(hash)));
            session.send(&[Part::Bytes(resp::command(&command))])?;
            let count = session.array()?;
            // From here to the last value any failure leaves replies unread.
            session.whole(|| {
                if count != asked.len() {
                    return Err(Error::corrupt(format!("MGET of {} keys answered {count} values", asked.len())));
                }
                read_values(session, count)
            })
        })
    }

    fn delete_chunks(&mut self, hashes: Hashes) -> Result<Vec<DeleteOutcome>> {
        let asked = hashes.first(PIPELINE as usize);
        self.server.with_session(|session| {
            let ask = |hash| Part::Bytes(resp::command(&[b"DEL".to_vec(), self.chunk_key(hash)]));
            session.send(&asked.iter().map(ask).collect::<Vec<_>>())?;
            let outcome = |reply| match reply {
                Ok(Reply::Integer(_)) => DeleteOutcome::Gone,
                Ok(other) => DeleteOutcome::Failed(session.unexpected(&other, "DEL")),
                Err(refused) => DeleteOutcome::Failed(refused),
            };
            Ok(session.replies(asked.len())?.into_iter().map(outcome).collect())
        })
    }

    fn commit(&mut self, _fresh: &[Hashes], manifest: Option<Manifest>) -> Result<CommitOutcome> {
        let Some(manifest) = manifest else { return Ok(CommitOutcome::Published) };
        self.server.with_session(|session| {
            let key = self.manifest_key(manifest.name);
            session.send(&resp::set(&key, manifest.part(), manifest.len, false))?;
            match session.reply()? {
                Reply::Status(_) => Ok(CommitOutcome::Published),
                other => Err(session.unexpected(&other, "SET")),
            }
        })
    }

    fn get_manifest(&mut self, name: &str) -> Result<Option<Payload>> {
        self.server.with_session(|session| {
            session.send(&[Part::Bytes(resp::command(&[b"GET".to_vec(), self.manifest_key(name)]))])?;
            session.bulk_len()?.map(|len| session.whole(|| session.bulk(len, None))).transpose()
        })
    }

    fn delete_manifest(&mut self, name: &str) -> Result<()> {
        self.server.with_session(|session| {
            session.send(&[Part::Bytes(resp::command(&[b"DEL".to_vec(), self.manifest_key(name)]))])?;
            match session.reply()? {
                Reply::Integer(_) => Ok(()),
                other => Err(session.unexpected(&other, "DEL")),
            }
        })
    }
}

/// The values of an array. Where the host has no room for one, what was read so far is the answer; it asks again for the
/// rest, which is read here and forgotten.
fn read_values(session: &Session, count: usize) -> Result<Vec<GetOutcome>> {
    let mut outcomes = Vec::with_capacity(count);
    let mut full = false;
    for item in 0..count {
        match session.bulk_len()? {
            None if full => {}
            None => outcomes.push(GetOutcome::Missing),
            Some(len) if full => session.skip_bulk(len)?,
            Some(len) => match session.bulk(len, Some(item as u32)) {
                Ok(data) => outcomes.push(GetOutcome::Found(data)),
                Err(error) if error.kind == ErrorKind::Exhausted => {
                    session.skip_bulk(len)?;
                    full = true;
                    if outcomes.is_empty() {
                        outcomes.push(GetOutcome::Failed(error));
                    }
                }
                Err(error) => return Err(error),
            },
        }
    }
    Ok(outcomes)
}

export!(Redis, wishes: ["the server in the URI", "the secret password"]);
