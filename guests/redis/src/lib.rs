//! `redis://[USER@]HOST[:PORT][,HOST[:PORT]...][/DB]`, or `rediss://` for TLS: chunks and manifests as strings of a Redis or Valkey
//! server, or of a cluster of them, over RESP2.
//!
//! A chunk lies under `<prefix>c:<hash>`, a manifest under `<prefix>m:<name>`, both binary and as they are, so that the two
//! never meet. A value is set by one command, so a reader sees it whole. The password is the secret `password`
//! (`REDIS_PASSWORD`). Option `prefix` (default `kv:`) sets a store apart from what else the database holds. Option `ttl_s`: the
//! server removes what no save has named for so many seconds, a manifest before its chunks. Without it the server keeps all that
//! its `maxmemory-policy` lets it.

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
    Payload, Presence, Properties, PutOutcome, Result, absent, export, key,
};

use cluster::Cluster;
use one::One;
use server::Login;

/// What Redis takes in one string (`proto-max-bulk-len`, unless it was changed).
const MAX_VALUE_BYTES: u64 = 512 << 20;
/// Commands in one pipeline. A batch of chunks rarely has more; the replies to as many fit any buffer.
const PIPELINE: u32 = 256;
/// Bytes in one pipeline: enough to fill a network, little enough for a server's memory.
const PIPELINE_BYTES: u64 = 32 << 20;

/// What keys begin with after the prefix: of a chunk, of a chunk in a cluster whose hash would be taken for a hash tag, of a manifest.
const CHUNK: &str = "c:";
const IN_HEX: &str = "x:";
const MANIFEST: &str = "m:";

/// A value to set.
struct Value<'a> {
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
    fn exist(&self, keys: &[Vec<u8>]) -> Result<Vec<Presence>>;
    /// `only_new`: what exists is left as it is.
    fn set(&self, values: &[Value], only_new: bool) -> Result<Vec<PutOutcome>>;
    /// The values that the host has room for; those of the last keys may be left out.
    fn get(&self, keys: &[Vec<u8>]) -> Result<Vec<GetOutcome>>;
    fn delete(&self, keys: &[Vec<u8>]) -> Result<Vec<DeleteOutcome>>;
    /// Let values live for so many seconds from now. False: there is none.
    fn expire(&self, keys: &[Vec<u8>], seconds: u64) -> Result<Vec<bool>>;
    /// A value that is no item.
    fn get_one(&self, key: Vec<u8>) -> Result<Option<Payload>>;
    /// `host:port` of the servers that the keys lie on.
    fn servers(&self) -> Vec<String>;
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
}

impl Redis {
    fn chunk_key(&self, hash: &[u8]) -> Vec<u8> {
        chunk_key(&self.prefix, self.is_cluster, hash)
    }

    fn chunk_keys(&self, hashes: Hashes) -> Vec<Vec<u8>> {
        hashes.iter().map(|hash| self.chunk_key(hash)).collect()
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
        let Reached { authority, version, is_cluster } = reach(&login, &servers)?;
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
        Ok((Redis { login, strings, prefix, is_cluster, ttl }, features))
    }

    fn exists(&mut self, hashes: Hashes) -> Result<Vec<Presence>> {
        self.strings.exist(&self.chunk_keys(hashes))
    }

    fn put_chunks(&mut self, chunks: &[Chunk], replace: bool) -> Result<Vec<PutOutcome>> {
        let seconds = self.chunk_ttl();
        let value =
            |chunk: &Chunk| Value { key: self.chunk_key(chunk.hash), part: chunk.part(), len: chunk.len, seconds };
        self.strings.set(&chunks.iter().map(value).collect::<Vec<_>>(), !replace)
    }

    fn get_chunks(&mut self, hashes: Hashes) -> Result<Vec<GetOutcome>> {
        self.strings.get(&self.chunk_keys(hashes.first(PIPELINE as usize)))
    }

    fn delete_chunks(&mut self, hashes: Hashes) -> Result<Vec<DeleteOutcome>> {
        self.strings.delete(&self.chunk_keys(hashes.first(PIPELINE as usize)))
    }

    fn commit(&mut self, fresh: &[Hashes], manifest: Option<Manifest>) -> Result<CommitOutcome> {
        if let gone @ CommitOutcome::Absent(_) = self.renew(fresh)? {
            return Ok(gone);
        }
        let Some(manifest) = manifest else { return Ok(CommitOutcome::Published) };
        let value = Value {
            key: self.manifest_key(manifest.name),
            part: manifest.part(),
            len: manifest.len,
            seconds: self.ttl,
        };
        match self.strings.set(&[value], false)?.pop() {
            Some(PutOutcome::Stored) => Ok(CommitOutcome::Published),
            Some(PutOutcome::Failed(error)) => Err(error),
            other => Err(Error::corrupt(format!("a manifest that was set was answered by {other:?}"))),
        }
    }

    fn get_manifest(&mut self, name: &str) -> Result<Option<Payload>> {
        self.strings.get_one(self.manifest_key(name))
    }

    fn delete_manifest(&mut self, name: &str) -> Result<()> {
        match self.strings.delete(&[self.manifest_key(name)])?.pop() {
            Some(DeleteOutcome::Failed(error)) => Err(error),
            _ => Ok(()),
        }
    }
}

impl Redis {
    /// Let chunks live as long as the manifest that is about to name them, and say which are gone.
    fn renew(&self, fresh: &[Hashes]) -> Result<CommitOutcome> {
        let Some(ttl) = self.chunk_ttl() else { return Ok(CommitOutcome::Published) };
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
}

/// The first of these servers that answers. One that is not reached is one of several; a refusal is for people, at once.
fn reach(login: &Login, servers: &[String]) -> Result<Reached> {
    let mut failure = Error::invalid("the URI names no server");
    for authority in servers {
        let names = ["redis_version", "valkey_version", "redis_mode", "server_mode"];
        match login.with_session(authority, |session| session.info("server", names)) {
            Ok([redis, valkey, redis_mode, server_mode]) => {
                let redis = || format!("Redis {}", redis.unwrap_or_else(|| "of unknown version".into()));
                let version = valkey.map_or_else(redis, |version| format!("Valkey {version}"));
                let is_cluster = redis_mode.or(server_mode).as_deref() == Some("cluster");
                return Ok(Reached { authority: authority.clone(), version, is_cluster });
            }
            Err(error) if error.kind == ErrorKind::Unavailable => failure = error,
            Err(error) => return Err(error),
        }
    }
    Err(failure)
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
}
