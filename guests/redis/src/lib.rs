//! `redis://[USER@]HOST[:PORT][,HOST[:PORT]...][/DB]`, or `rediss://` for TLS: chunks and manifests as strings of a Redis or Valkey
//! server, or of a cluster of them, over RESP2.
//!
//! A chunk lies under `<prefix>c:<hash>`, a manifest under `<prefix>m:<name>`, both binary and as they are, so that the two
//! never meet. A value is set by one command, so a reader sees it whole. What may not be carried out late is a [`change`]. The password is the secret `password`
//! (`REDIS_PASSWORD`). Option `prefix` (default `kv:`) sets a store apart from what else the database holds. Option `ttl_s`: the
//! server removes what no save has named for so many seconds, a manifest before its chunks. Without it the server keeps all that
//! its `maxmemory-policy` lets it.

mod change;
mod cluster;
mod maintenance;
mod one;
mod resp;
mod server;
mod uri;

use std::rc::Rc;

use kv_store_sdk::payloads::Part;
use kv_store_sdk::{
    Backend, Chunk, CommitOutcome, DeleteOutcome, Error, ErrorKind, Features, GetOutcome, Hashes, Manifest, Options,
    Payload, Presence, Properties, PutOutcome, Result, absent, export, key, system,
};

use change::{Change, Done, Failure, Fence, Onward};
use cluster::Cluster;
use one::One;
use resp::Keys;
use server::{Login, Session};

/// What Redis takes in one string (`proto-max-bulk-len`, unless it was changed).
const MAX_VALUE_BYTES: u64 = 512 << 20;
/// Commands in one pipeline. A batch of chunks rarely has more; the replies to as many fit any buffer.
const PIPELINE: u32 = 256;
/// Bytes in one pipeline: enough to fill a network, little enough for a server's memory.
const PIPELINE_BYTES: u64 = 32 << 20;

/// What keys begin with after the prefix: of a chunk, of a chunk in a cluster whose hash would be taken for a hash tag, of a manifest, of a
/// value that is about to be given one of these names.
const CHUNK: &str = "c:";
const IN_HEX: &str = "x:";
const MANIFEST: &str = "m:";
const TEMPORARY: &str = "t:";

/// The width of a key that may be the hash of its content, in bytes. A put of such a chunk that replaces nothing changes nothing that
/// matters, whenever it is carried out.
const CONTENT_KEY: usize = 8;

/// A value to set.
struct NewValue<'a> {
    key: Vec<u8>,
    part: Part<'a>,
    /// Bytes.
    len: u64,
    /// How long it lives; none: until it is removed.
    seconds: Option<u64>,
}

/// Strings by key, on one server or on many. An outcome belongs to the key at its place; item n of the running call is the value of
/// key n.
trait Strings {
    fn exist(&self, keys: &Keys) -> Result<Vec<Presence>>;
    /// `only_new`: what exists is left as it is.
    fn set(&self, values: &[NewValue], only_new: bool) -> Result<Vec<PutOutcome>>;
    /// The values that the host has room for; those of the last keys may be left out.
    fn get(&self, keys: &Keys) -> Result<Vec<GetOutcome>>;
    fn delete(&self, keys: &Keys) -> Result<Vec<DeleteOutcome>>;
    /// Let values live for so many seconds from now. False: there is none.
    fn expire(&self, keys: &Keys, seconds: u64) -> Result<Vec<bool>>;
    /// A value that is no item.
    fn get_one(&self, key: Vec<u8>) -> Result<Option<Payload>>;
    /// Whether under a key lies what a deleted manifest leaves.
    fn is_deleted(&self, key: Vec<u8>) -> Result<bool>;
    /// `host:port` of the servers that the keys lie on.
    fn servers(&self) -> Vec<String>;

    /// Which server a key lies on, as far as is known.
    fn serves(&self, key: &[u8]) -> Option<String>;
    /// Where a refused command goes next; none: nowhere.
    fn redirected(&self, refusal: &str, asked: &str) -> Option<Result<Onward>>;
    /// Ask again which server has what, because these failed. False: none told.
    fn learn(&self, failed: &[String]) -> bool;
    /// A name that no other value has, for a value that a command is to move to `key`. None: there is none that lies with it.
    fn beside(&self, prefix: &str, key: &[u8]) -> Option<Vec<u8>>;
}

/// `<prefix>`, and 64 random bits.
fn temporary(prefix: &str) -> Vec<u8> {
    format!("{prefix}{:016x}", system::random()).into_bytes()
}

/// How much longer chunks live than the manifests that name them, in seconds: they are set one after another.
const LONGER: u64 = 60;

struct Redis {
    login: Rc<Login>,
    strings: Box<dyn Strings>,
    prefix: String,
    is_cluster: bool,
    /// Seconds that a manifest lives.
    ttl: Option<u64>,
    /// None: the server runs no scripts for us, and late changes are not refused.
    fence: Option<Fence>,
}

impl Redis {
    fn chunk_key(&self, hash: &[u8]) -> Vec<u8> {
        chunk_key(&self.prefix, self.is_cluster, hash)
    }

    fn chunk_keys(&self, hashes: Hashes) -> Keys {
        match self.is_cluster {
            true => hashes.iter().map(|hash| self.chunk_key(hash)).collect(),
            false => Keys::ending_in(hashes, [self.prefix.as_bytes(), CHUNK.as_bytes()]),
        }
    }

    fn chunk_ttl(&self) -> Option<u64> {
        self.ttl.map(|ttl| ttl.saturating_add(LONGER))
    }

    fn manifest_key(&self, name: &str) -> Vec<u8> {
        manifest_key(&self.prefix, name)
    }
}

fn chunk_key(prefix: &str, is_cluster: bool, hash: &[u8]) -> Vec<u8> {
    // A hash tag in a hash would put chunks on one node that have nothing in common.
    if is_cluster && hash.contains(&b'{') {
        return [prefix.as_bytes(), IN_HEX.as_bytes(), key::hex(hash).as_bytes()].concat();
    }
    [prefix.as_bytes(), CHUNK.as_bytes(), hash].concat()
}

fn manifest_key(prefix: &str, name: &str) -> Vec<u8> {
    [prefix.as_bytes(), MANIFEST.as_bytes(), name.as_bytes()].concat()
}

impl Backend for Redis {
    fn open(uri: &str, mut options: Options) -> Result<(Self, Features)> {
        let prefix = options.take("prefix").unwrap_or_else(|| "kv:".into());
        let ttl = options.take_number("ttl_s", 1..=u64::from(u32::MAX))?;
        options.finish()?;
        let uri::Target { user, servers, tls, database } = uri::parse(uri)?;
        let login = Rc::new(Login::new(user, tls, database));
        let Reached { authority, version, is_cluster, no_fence } = reach(&login, &servers)?;
        if is_cluster && database != 0 {
            return Err(Error::invalid("a Redis Cluster has database 0 only: leave /DB out of the URI"));
        }
        if !is_cluster && servers.len() > 1 {
            let message = format!("the URI names several servers, and {authority} is not part of a cluster: name one");
            return Err(Error::invalid(message));
        }
        let (strings, label): (Box<dyn Strings>, _) = if is_cluster {
            let cluster = Cluster::open(login.clone(), servers, &authority)?;
            let label = format!("{version}, a cluster of {} masters, at {authority}", cluster.servers().len());
            (Box::new(cluster), label)
        } else {
            (Box::new(One::new(login.clone(), authority.clone())), format!("{version} at {authority}/{database}"))
        };
        let label = no_fence.iter().fold(label, |label, why| format!("{label}; late changes are not refused: {why}"));
        if let Some(why) = &no_fence {
            system::log(system::Level::Warn, &format!("{authority} does not refuse changes that come late: {why}"));
        }
        let fence = no_fence.is_none().then(|| Fence::new(login.clone(), format!("{prefix}{TEMPORARY}")));
        let features = Features {
            label,
            batch_items: Some(PIPELINE),
            batch_bytes: Some(PIPELINE_BYTES),
            max_value_bytes: Some(MAX_VALUE_BYTES),
            // What a save names must live as long as its manifest.
            properties: match ttl {
                Some(_) => Properties::SHARED | Properties::EVICTS | Properties::WANTS_FRESH,
                None => Properties::SHARED,
            },
            ..Default::default()
        };
        Ok((Redis { login, strings, prefix, is_cluster, ttl, fence }, features))
    }

    fn exists(&mut self, hashes: Hashes) -> Result<Vec<Presence>> {
        self.strings.exist(&self.chunk_keys(hashes))
    }

    fn put_chunks(&mut self, chunks: &[Chunk], replace: bool) -> Result<Vec<PutOutcome>> {
        let seconds = self.chunk_ttl();
        let value =
            |chunk: &Chunk| NewValue { key: self.chunk_key(chunk.hash), part: chunk.part(), len: chunk.len, seconds };
        let values: Vec<NewValue> = chunks.iter().map(value).collect();
        // A batch has hashes of one width.
        let is_change = replace || chunks.iter().any(|chunk| chunk.hash.len() != CONTENT_KEY);
        let Some(fence) = self.fence.as_ref().filter(|_| is_change) else {
            return self.strings.set(&values, !replace);
        };
        let set = |value| Change::Set { value, only_new: !replace, is_manifest: false };
        let changes: Vec<Change> = values.into_iter().map(set).collect();
        let outcome = |outcome: std::result::Result<Done, Failure>| match outcome {
            Ok(Done::Changed) => PutOutcome::Stored,
            Ok(Done::Existed) => PutOutcome::Existed,
            Err(failure) => PutOutcome::Failed(failure.error),
        };
        Ok(fence.carry_out(&*self.strings, &changes, true).into_iter().map(outcome).collect())
    }

    fn get_chunks(&mut self, hashes: Hashes) -> Result<Vec<GetOutcome>> {
        self.strings.get(&self.chunk_keys(hashes.first(PIPELINE as usize)))
    }

    fn delete_chunks(&mut self, hashes: Hashes) -> Result<Vec<DeleteOutcome>> {
        self.delete(&self.chunk_keys(hashes.first(PIPELINE as usize)), false, true)
    }

    fn commit(&mut self, fresh: &[Hashes], manifest: Option<Manifest>) -> Result<CommitOutcome> {
        if let Some(gone) = self.renew(fresh)? {
            return Ok(gone);
        }
        let Some(manifest) = manifest else { return Ok(CommitOutcome::Published) };
        let value = NewValue {
            key: self.manifest_key(manifest.name),
            part: manifest.part(),
            len: manifest.len,
            seconds: self.ttl,
        };
        let Some(fence) = &self.fence else {
            return match self.strings.set(&[value], false)?.pop() {
                Some(PutOutcome::Stored) => Ok(CommitOutcome::Published),
                Some(PutOutcome::Failed(error)) => Err(error),
                other => Err(Error::corrupt(format!("a manifest that was set was answered by {other:?}"))),
            };
        };
        let change = Change::Set { value, only_new: false, is_manifest: true };
        match fence.carry_out(&*self.strings, &[change], true).pop() {
            Some(Err(Failure { error, .. })) => Err(error),
            _ => Ok(CommitOutcome::Published),
        }
    }

    fn get_manifest(&mut self, name: &str) -> Result<Option<Payload>> {
        let key = self.manifest_key(name);
        let is_other = |error: &Error| error.code.as_deref() == Some("WRONGTYPE");
        match self.strings.get_one(key.clone()) {
            // Perhaps only the generation of a manifest that was deleted.
            Err(error) if is_other(&error) => match self.strings.is_deleted(key.clone()) {
                Ok(true) => Ok(None),
                Err(error) if !is_other(&error) => Err(error),
                // Another process has published it anew meanwhile.
                _ => self.strings.get_one(key),
            },
            answer => answer,
        }
    }

    fn delete_manifest(&mut self, name: &str) -> Result<()> {
        let key = self.manifest_key(name);
        match self.delete(&[key].into_iter().collect(), true, true)?.pop() {
            Some(DeleteOutcome::Failed(error)) => Err(error),
            _ => Ok(()),
        }
    }
}

impl Redis {
    /// Remove what lies under these keys. `items`: key n is item n of the running call.
    fn delete(&self, keys: &Keys, is_manifest: bool, items: bool) -> Result<Vec<DeleteOutcome>> {
        let Some(fence) = &self.fence else { return self.strings.delete(keys) };
        let changes: Vec<Change> = keys.iter().map(|key| Change::Delete { key: key.to_vec(), is_manifest }).collect();
        let outcome = |outcome: std::result::Result<Done, Failure>| match outcome {
            Ok(_) => DeleteOutcome::Gone,
            Err(Failure { error, .. }) => DeleteOutcome::Failed(error),
        };
        Ok(fence.carry_out(&*self.strings, &changes, items).into_iter().map(outcome).collect())
    }
}

impl Redis {
    /// Let chunks live as long as the manifest that is about to name them, and say which are gone.
    fn renew(&self, fresh: &[Hashes]) -> Result<Option<CommitOutcome>> {
        let Some(ttl) = self.chunk_ttl() else { return Ok(None) };
        let mut gone = Vec::new();
        for batch in fresh.iter().flat_map(|hashes| hashes.batches(PIPELINE as usize)) {
            let renewed = self.strings.expire(&self.chunk_keys(batch), ttl)?;
            gone.extend(batch.iter().zip(renewed).filter(|(_, renewed)| !renewed).map(|(hash, _)| hash));
        }
        Ok(absent(gone))
    }
}

/// A server that answers, and what it says of itself.
struct Reached {
    authority: String,
    /// `Redis 7.0.15`, for people.
    version: String,
    is_cluster: bool,
    /// Why it does not refuse late changes, for people.
    no_fence: Option<String>,
}

/// The first of these servers that answers. One that is not reached is one of several; a refusal is for people, at once.
fn reach(login: &Login, servers: &[String]) -> Result<Reached> {
    let mut failure = Error::invalid("the URI names no server");
    for authority in servers {
        let names = ["redis_version", "valkey_version", "redis_mode", "server_mode"];
        let ask = |session: &Session| Ok((session.info("server", names)?, session.no_scripts()?));
        match login.with_session(authority, ask) {
            Ok(([redis, valkey, redis_mode, server_mode], no_scripts)) => {
                let old = redis.as_deref().filter(|version| is_old(version));
                let no_fence = old.map(|version| format!("Redis {version} is older than 3.2")).or(no_scripts);
                let redis = || format!("Redis {}", redis.unwrap_or_else(|| "of unknown version".into()));
                let version = valkey.map_or_else(redis, |version| format!("Valkey {version}"));
                let is_cluster = redis_mode.or(server_mode).as_deref() == Some("cluster");
                return Ok(Reached { authority: authority.clone(), version, is_cluster, no_fence });
            }
            Err(error) if matches!(error.kind, ErrorKind::Unavailable | ErrorKind::Busy) => failure = error,
            Err(error) => return Err(error),
        }
    }
    Err(failure)
}

/// Before 3.2 a script that has asked for the time may change nothing.
fn is_old(version: &str) -> bool {
    let mut numbers = version.split('.').map(|number| number.parse::<u32>().ok());
    matches!((numbers.next().flatten(), numbers.next().flatten()), (Some(major), Some(minor)) if (major, minor) < (3, 2))
}

export!(Redis, maintenance, schemes: ["redis", "rediss"], port: 6379,
    wishes: ["the servers in the URI", "the other nodes of a cluster", "the secret password"],
    options: ["prefix", "ttl_s"], secrets: ["password"]);

#[cfg(test)]
mod tests {
    use super::*;

    /// Under these keys strings lie in servers that other versions wrote.
    #[test]
    fn golden_keys() {
        for is_cluster in [false, true] {
            assert_eq!(chunk_key("kv:", is_cluster, &[0, b'}', 0xff]), b"kv:c:\0}\xff");
        }
        assert_eq!(chunk_key("kv:", false, b"a{b}"), b"kv:c:a{b}");
        assert_eq!(chunk_key("kv:", true, b"a{b}"), b"kv:x:617b627d");
        assert_eq!(manifest_key("team:", "slot 7/\u{e4}"), "team:m:slot 7/\u{e4}".as_bytes());
    }

    #[test]
    fn servers_that_cannot_refuse_are_told_by_their_version() {
        for (version, old) in [
            ("2.4.18", true),
            ("2.8.19", true),
            ("3.0.7", true),
            ("3.2.0", false),
            ("4.0.14", false),
            ("7.0.15", false),
            ("10.1", false),
            ("", false),
            ("unstable", false),
        ] {
            assert_eq!(is_old(version), old, "{version}");
        }
    }
}
