//! Listing and evicting. S3 knows when an object was put and not when it was read, so `evict` removes what was put first. Uploads in
//! parts that a killed process has left are no objects and cost space: they are counted with the usage, and aborted with an eviction.

use kv_store_sdk::eviction::{Candidate, Candidates, Victims, lag};
use kv_store_sdk::{
    ChunkEntry, ChunkPage, Error, Evicted, Eviction, Maintenance, ManifestEntry, ManifestPage, Result, Totals, system,
};

use crate::bucket::Call;
use crate::listing::{self, ListedObject, ListingPart, Upload, Uploads};
use crate::record::{ELSEWHERE, HEAD, TOMBSTONE};
use crate::removal::{MAX_DELETED, remove};
use crate::{S3, key};

/// Keys of one listing. S3 has no larger ones.
const LISTED: u32 = 1000;
const SECOND: u64 = 1_000_000_000;
/// How long a tombstone stays, and bytes of a long manifest that no record names: longer than the 15 minutes for which a request that was
/// signed before is taken.
const SETTLED: u64 = 24 * 3600 * SECOND;
/// Begins the place in a listing of manifests that is among those of former versions.
const AMONG_FORMER: char = 'm';
const AMONG_RECORDS: char = 'r';

impl Maintenance for S3 {
    fn list_chunks(&mut self, after: Option<&str>, limit: u32) -> Result<ChunkPage> {
        let ListingPart { objects, next } = self.list(key::CHUNKS, after, limit)?;
        let entry = |ListedObject { key, size, modified, .. }| {
            Some(ChunkEntry { hash: key::hash(&key)?, size: Some(size), stored: modified, used: None })
        };
        Ok(ChunkPage { entries: objects.into_iter().filter_map(entry).collect(), next })
    }

    fn list_manifests(&mut self, after: Option<&str>, limit: u32) -> Result<ManifestPage> {
        let place = after.map(|after| after.strip_prefix(AMONG_FORMER).ok_or(after.strip_prefix(AMONG_RECORDS)));
        let (kind, after) = match place {
            None => (key::RECORDS, None),
            Some(Ok(token)) => (key::FORMER, Some(token).filter(|token| !token.is_empty())),
            Some(Err(Some(token))) => (key::RECORDS, Some(token)),
            Some(Err(None)) => return Err(Error::invalid("no place in a listing of manifests")),
        };
        let ListingPart { objects, next } = self.list(kind, after, limit)?;
        let is_record = kind == key::RECORDS;
        let entry = |ListedObject { key, size, modified, .. }| {
            let size = match size {
                size if !is_record => Some(size),
                TOMBSTONE => return None,
                // It is that of another object.
                ELSEWHERE => None,
                size => Some(size.saturating_sub(HEAD)),
            };
            Some(ManifestEntry { name: key::name(&key)?, size, stored: modified, used: None })
        };
        let next = match next {
            Some(token) => Some(format!("{}{token}", if is_record { AMONG_RECORDS } else { AMONG_FORMER })),
            None => is_record.then(|| AMONG_FORMER.to_string()),
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
            for ListedObject { key, size, modified, .. } in part.objects {
                if let Some(used) = modified.filter(|_| key::hash(&key).is_some()) {
                    candidates.add(Candidate { key, size, used });
                }
            }
            cut_short = candidates.end_page() || system::remaining() < begun / 2;
            if part.next.is_none() || part.next == next {
                next = None;
                break;
            }
            next = part.next;
        }
        let Victims { chunks, manifests_before } = candidates.victims(lag(&what, now));
        let mut evicted = Evicted { bytes: 0, chunks: 0, manifests: 0, more: cut_short && next.is_some() };
        if manifests_before > 0 {
            (evicted.manifests, evicted.bytes) = self.evict_former(manifests_before)?;
        }
        let (removed, bytes) = self.evict_records(manifests_before, now)?;
        evicted.manifests += removed;
        evicted.bytes += bytes;
        self.collect_long(now)?;
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
    fn list(&self, kind: &str, after: Option<&str>, limit: u32) -> Result<ListingPart> {
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

    /// All objects of a kind, part by part.
    fn each(&self, kind: &str, mut of_part: impl FnMut(Vec<ListedObject>) -> Result<()>) -> Result<()> {
        let mut next = None;
        loop {
            let part = self.list(kind, next.as_deref(), LISTED)?;
            of_part(part.objects)?;
            // A server that names the same place again would be asked for ever.
            if part.next.is_none() || part.next == next {
                return Ok(());
            }
            next = part.next;
        }
    }

    /// Remove the manifests of former versions that were put before. Answers how many, and their bytes.
    fn evict_former(&self, before: u64) -> Result<(u64, u64)> {
        let (mut removed, mut bytes) = (0, 0);
        self.each(key::FORMER, |objects| {
            let old = objects.iter().filter(|object| {
                key::name(&object.key).is_some() && object.modified.is_some_and(|modified| modified < before)
            });
            let old = old.map(|object| (self.key(key::FORMER, &object.key), object.size)).collect();
            let (of_part, bytes_of_part) = self.remove(old)?;
            removed += of_part;
            bytes += bytes_of_part;
            Ok(())
        })?;
        Ok((removed, bytes))
    }

    /// Remove the manifests that were put before, and tombstones that are no longer needed. Answers how many manifests, and their bytes.
    ///
    /// What was put anew since it was listed stays. A request that was sent before may still come as long as its signature is taken, so
    /// a younger manifest leaves a tombstone, and a tombstone stays where the server takes no condition with DELETE.
    fn evict_records(&self, before: u64, now: u64) -> Result<(u64, u64)> {
        let (mut removed, mut bytes) = (0, 0);
        self.each(key::RECORDS, |objects| {
            let (mut calls, mut sizes, mut plain) = (Vec::new(), Vec::new(), Vec::new());
            for object in objects.into_iter().filter(|object| key::name(&object.key).is_some()) {
                let Some(modified) = object.modified else { continue };
                let (key, is_tombstone) = (self.key(key::RECORDS, &object.key), object.size == TOMBSTONE);
                let is_settled = modified.saturating_add(SETTLED) < now;
                let call = match object.tag {
                    _ if !(modified < before || is_tombstone && is_settled) => continue,
                    Some(tag) if self.conditions.deletes && is_settled => {
                        Call::new("DELETE", key).header("if-match", tag)
                    }
                    Some(tag) if self.conditions.writes && !is_tombstone => self.tombstone_call(&key, tag)?,
                    _ if self.conditions.writes => continue,
                    _ => {
                        plain.push((key, object.size));
                        continue;
                    }
                };
                calls.push(call);
                sizes.push((u64::from(!is_tombstone), object.size));
            }
            for (answer, (manifests, size)) in self.bucket.ask_all(calls).into_iter().zip(sizes) {
                match answer?.status {
                    200..300 => {
                        removed += manifests;
                        bytes += size * manifests;
                    }
                    404 | 412 => {}
                    status => {
                        return Err(Error::other(format!("the server answered an eviction with status {status}")));
                    }
                }
            }
            for group in plain.chunks(MAX_DELETED) {
                let (of_group, bytes_of_group) = self.remove(group.to_vec())?;
                removed += of_group;
                bytes += bytes_of_group;
            }
            Ok(())
        })?;
        Ok((removed, bytes))
    }

    /// Remove the bytes of long manifests that no record names: of saves that failed, and of manifests that were evicted.
    fn collect_long(&self, now: u64) -> Result<()> {
        self.each(key::LONG, |objects| {
            for object in
                objects.iter().filter(|object| object.modified.is_some_and(|time| time.saturating_add(SETTLED) < now))
            {
                let Some((name, id)) = key::long_of(&object.key) else { continue };
                if self.long_id(&name)? != Some(id) {
                    self.remove(vec![(self.key(key::LONG, &object.key), object.size)])?;
                }
            }
            Ok(())
        })
    }

    /// Remove objects, by key and length. Answers how many are gone, and their bytes.
    fn remove(&self, objects: Vec<(String, u64)>) -> Result<(u64, u64)> {
        let (keys, sizes): (Vec<String>, Vec<u64>) = objects.into_iter().unzip();
        let (mut removed, mut bytes) = (0, 0);
        for (outcome, size) in remove(&self.bucket, &keys)?.into_iter().zip(sizes) {
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
