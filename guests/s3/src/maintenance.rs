//! Listing and evicting. S3 knows when an object was put and not when it was read, so `evict` removes what was put first. Uploads in
//! parts that a killed process has left are no objects and cost space: they are counted with the usage, and aborted with an eviction.

use kv_store_sdk::eviction::{Candidate, Candidates, Victims, lag};
use kv_store_sdk::{
    ChunkEntry, ChunkPage, Error, Evicted, Eviction, Maintenance, ManifestEntry, ManifestPage, Result, Totals, system,
};

use crate::bucket::Call;
use crate::listing::{self, Object, Objects, Upload, Uploads};
use crate::{MAX_DELETED, S3, key};

/// Keys of one listing. S3 has no larger ones.
const LISTED: u32 = 1000;
const SECOND: u64 = 1_000_000_000;

impl Maintenance for S3 {
    fn list_chunks(&mut self, after: Option<&str>, limit: u32) -> Result<ChunkPage> {
        let Objects { objects, next } = self.list(key::CHUNKS, after, limit)?;
        let entry = |Object { key, size, modified }| {
            Some(ChunkEntry { hash: key::hash(&key)?, size: Some(size), stored: modified, used: None })
        };
        Ok(ChunkPage { entries: objects.into_iter().filter_map(entry).collect(), next })
    }

    fn list_manifests(&mut self, after: Option<&str>, limit: u32) -> Result<ManifestPage> {
        let Objects { objects, next } = self.list(key::MANIFESTS, after, limit)?;
        let entry = |Object { key, size, modified }| {
            Some(ManifestEntry { name: key::name(&key)?, size: Some(size), stored: modified, used: None })
        };
        Ok(ManifestPage { entries: objects.into_iter().filter_map(entry).collect(), next })
    }

    fn usage(&mut self) -> Result<Totals> {
        match self.uploads() {
            Ok(uploads) => {
                if let Some(oldest) = uploads.iter().filter_map(|upload| upload.begun).min() {
                    let (count, minutes) = (uploads.len(), system::now().saturating_sub(oldest) / SECOND / 60);
                    warn(&format!(
                        "uploads in parts that are under way, or were left by writers that were killed: {count}, the first begun {minutes} \
                         minutes ago; an eviction (`kv-store gc`) aborts those that are older than its grace"
                    ));
                }
            }
            Err(error) => warn(&not_listed(&error)),
        }
        Ok(Totals { bytes: None, chunks: None, manifests: None, capacity: None })
    }

    fn evict(&mut self, what: Eviction) -> Result<Evicted> {
        let (now, begun) = (system::now(), system::remaining());
        // What is asked for goes on without: the keys may have no right to these, and not every server knows them.
        if let Err(error) = self.abort_uploads(what.keep_since) {
            warn(&not_listed(&error));
        }
        let mut candidates = Candidates::new(what);
        let (mut cut_short, mut next) = (false, None);
        while !cut_short {
            let part = self.list(key::CHUNKS, next.as_deref(), LISTED)?;
            for Object { key, size, modified } in part.objects {
                if let Some(used) = modified.filter(|_| key::hash(&key).is_some()) {
                    candidates.add(Candidate { key, size, used });
                }
            }
            cut_short = candidates.end_page() || system::remaining() < begun / 2;
            next = part.next;
            if next.is_none() {
                break;
            }
        }
        let Victims { chunks, manifests_before } = candidates.victims(lag(&what, now));
        let mut evicted = Evicted { bytes: 0, chunks: 0, manifests: 0, more: cut_short && next.is_some() };
        if manifests_before > 0 {
            (evicted.manifests, evicted.bytes) = self.evict_manifests(manifests_before)?;
        }
        for group in chunks.chunks(MAX_DELETED) {
            let sizes = group.iter().map(|victim| (self.key(key::CHUNKS, &victim.key), victim.size)).collect();
            let (removed, bytes) = self.remove(sizes)?;
            evicted.chunks += removed;
            evicted.bytes += bytes;
        }
        evicted.more &= evicted.chunks > 0;
        Ok(evicted)
    }
}

fn warn(message: &str) {
    system::log(system::Level::Warn, message);
}

fn not_listed(error: &Error) -> String {
    format!("uploads in parts that were left cannot be listed or aborted: {}", error.message)
}

impl S3 {
    fn key(&self, kind: &str, rest: &str) -> String {
        [self.bucket.prefix(), kind, rest].concat()
    }

    /// A part of the objects of a kind. Of their keys what follows the kind.
    fn list(&self, kind: &str, after: Option<&str>, limit: u32) -> Result<Objects> {
        let prefix = self.key(kind, "");
        let call = Call::new("GET", "")
            .query("list-type", "2")
            .query("max-keys", limit.clamp(1, LISTED).to_string())
            .query("prefix", prefix.clone());
        let call = after.into_iter().fold(call, |call, token| call.query("continuation-token", token));
        let mut part = listing::objects(&self.listed(call)?)?;
        part.objects.retain_mut(|object| match object.key.strip_prefix(&prefix) {
            Some(rest) => {
                object.key = rest.to_owned();
                true
            }
            None => false,
        });
        Ok(part)
    }

    /// The body of a listing.
    fn listed(&self, call: Call) -> Result<String> {
        let answer = self.bucket.ask(call)?;
        match answer.status {
            200 => answer.text(),
            status => Err(Error::other(format!("the server answered a listing with status {status}"))),
        }
    }

    /// Remove the manifests that were put before. Answers how many, and their bytes.
    fn evict_manifests(&self, before: u64) -> Result<(u64, u64)> {
        let (mut removed, mut bytes, mut next) = (0, 0, None);
        loop {
            let part = self.list(key::MANIFESTS, next.as_deref(), LISTED)?;
            let old = part.objects.iter().filter(|object| {
                key::name(&object.key).is_some() && object.modified.is_some_and(|modified| modified < before)
            });
            let old = old.map(|object| (self.key(key::MANIFESTS, &object.key), object.size)).collect();
            let (of_part, bytes_of_part) = self.remove(old)?;
            removed += of_part;
            bytes += bytes_of_part;
            next = part.next;
            if next.is_none() {
                return Ok((removed, bytes));
            }
        }
    }

    /// Remove objects, by key and length. Answers how many are gone, and their bytes.
    fn remove(&self, objects: Vec<(String, u64)>) -> Result<(u64, u64)> {
        let (keys, sizes): (Vec<String>, Vec<u64>) = objects.into_iter().unzip();
        let (mut removed, mut bytes) = (0, 0);
        for (outcome, size) in self.delete(&keys)?.into_iter().zip(sizes) {
            // What the server refuses it would refuse again and again.
            outcome?;
            removed += 1;
            bytes += size;
        }
        Ok((removed, bytes))
    }

    /// Uploads in parts to keys of this store that were neither completed nor aborted.
    fn uploads(&self) -> Result<Vec<Upload>> {
        let (mut found, mut after) = (Vec::new(), None::<(String, String)>);
        loop {
            let call = Call::new("GET", "").query("uploads", "").query("prefix", self.bucket.prefix());
            let call = match &after {
                Some((key, id)) => call.query("key-marker", key.clone()).query("upload-id-marker", id.clone()),
                None => call,
            };
            let Uploads { uploads, next } = listing::uploads(&self.listed(call)?)?;
            let own = |upload: &Upload| upload.key.starts_with(self.bucket.prefix());
            found.extend(uploads.into_iter().filter(own));
            // A server that names the same place again would be asked for ever.
            if next.is_none() || next == after {
                return Ok(found);
            }
            after = next;
        }
    }

    /// Abort the uploads that were begun before.
    fn abort_uploads(&self, before: u64) -> Result<()> {
        let old = self.uploads()?.into_iter().filter(|upload| upload.begun.is_some_and(|begun| begun < before));
        let aborts: Vec<Call> =
            old.map(|upload| Call::new("DELETE", upload.key).query("uploadId", upload.id)).collect();
        for answer in self.bucket.ask_all(aborts) {
            match answer?.status {
                200..300 | 404 => {}
                status => {
                    return Err(Error::other(format!("the server answered the end of an upload with status {status}")));
                }
            }
        }
        Ok(())
    }
}
