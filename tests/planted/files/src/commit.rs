//! Manifests, and what must hold before one is published.

use kv_store_sdk::key::escape_listed;
use kv_store_sdk::payloads::Part;
use kv_store_sdk::{CommitOutcome, Error, Hashes, Manifest, Payload, Result, absent, system};

use crate::named::Files as Bug;
use crate::{Files, grow, keys};

/// The names of the manifests, one in a line, where a bug has them in one file.
const INDEX: &str = "index";

impl Files {
    fn gone<'a>(&self, fresh: &[Hashes<'a>]) -> Result<Vec<&'a [u8]>> {
        let lists = if self.is(Bug::FirstWidthOnly) { fresh.get(..1).unwrap_or(fresh) } else { fresh };
        let looked_at = match self.bug {
            Bug::PublishesOverGone => 0,
            Bug::ChecksFirstFresh => 1,
            _ => usize::MAX,
        };
        let mut gone = Vec::new();
        for hash in lists.iter().flat_map(|hashes| hashes.iter()).take(looked_at) {
            let there = match self.bug {
                Bug::KeepsInInstance => self.memory.chunks.contains_key(hash),
                Bug::WidthEight => self.size(self.path(hash.get(..8).unwrap_or(hash)))?.is_some(),
                _ => self.size(self.path(hash))?.is_some(),
            };
            if !there {
                gone.push(hash);
            }
        }
        if self.is(Bug::AbsentNamesAll) && !gone.is_empty() {
            gone = fresh.iter().flat_map(|hashes| hashes.iter()).collect();
        }
        Ok(gone)
    }

    fn sync(&self, fresh: &[Hashes]) -> Result<()> {
        let mut paths: Vec<String> =
            fresh.iter().flat_map(|hashes| hashes.iter()).map(|hash| self.path(hash)).collect();
        match self.bug {
            Bug::NeverSyncs | Bug::KeepsInInstance | Bug::WidthEight => return Ok(()),
            Bug::SyncsFirstFresh | Bug::FirstWidthOnly => paths.truncate(1),
            // Chunks that are gone are named by nobody here.
            Bug::PublishesOverGone | Bug::ChecksFirstFresh | Bug::PublishesAbsent => {
                let mut there = Vec::new();
                for path in paths {
                    if self.size(path.clone())?.is_some() {
                        there.push(path);
                    }
                }
                paths = there;
            }
            _ => {}
        }
        paths.chunks(1024).try_for_each(|paths| self.directory.sync(paths))
    }

    pub fn publish(&mut self, fresh: &[Hashes], manifest: Option<Manifest>) -> Result<CommitOutcome> {
        let count: usize = fresh.iter().map(|hashes| hashes.len()).sum();
        match self.bug {
            Bug::NeedsManifest if manifest.is_none() => return Err(Error::invalid("a commit needs a manifest")),
            Bug::NeedsFresh if count == 0 => return Err(Error::invalid("there is nothing to commit")),
            Bug::RefusesManyFresh if count > 100 => return Err(Error::invalid("too many fresh chunks")),
            Bug::GrowsOnCommit => grow(),
            _ => {}
        }
        self.write_waiting()?;
        let gone = absent(self.gone(fresh)?);
        if let Some(gone) = gone.clone().filter(|_| !self.is(Bug::PublishesAbsent)) {
            return Ok(gone);
        }
        if !self.is(Bug::SyncsLate) {
            self.sync(fresh)?;
        }
        if let Some(manifest) = manifest {
            self.publish_manifest(manifest)?;
        }
        if self.is(Bug::SyncsLate) {
            self.sync(fresh)?;
        }
        if self.is(Bug::CollectsOthers) {
            let kept: Vec<String> = fresh.iter().flat_map(|hashes| hashes.iter()).map(|hash| self.path(hash)).collect();
            let others: Vec<String> = self.all("chunks")?.into_iter().filter(|path| !kept.contains(path)).collect();
            self.remove(&others)?;
        }
        Ok(gone.unwrap_or(CommitOutcome::Published))
    }

    fn publish_manifest(&mut self, manifest: Manifest) -> Result<()> {
        let (name, path) = (manifest.name, keys::manifest(self.bug, manifest.name));
        let durable = !matches!(self.bug, Bug::VolatileManifest | Bug::NeverSyncs);
        let replace = !self.is(Bug::KeepsOldManifest);
        let part = match self.bug {
            Bug::CutsManifests => manifest.range(0, manifest.len.min(4096)),
            _ => manifest.part(),
        };
        match self.bug {
            Bug::RefusesDots if name.starts_with('.') => return Err(Error::invalid("a name begins with a dot")),
            Bug::TrapsOnLongName if name.len() > 1000 => panic!("a long name"),
            Bug::PublishesLate => {
                self.memory.late = Some((path, manifest.keep()?));
                return Ok(());
            }
            Bug::TearsManifests => {
                self.write(path.clone(), vec![manifest.range(0, manifest.len / 2)], true, durable)?;
                system::sleep(2_000_000)?;
            }
            Bug::CachesManifests => drop(self.memory.manifests.insert(name.to_owned(), manifest.keep()?)),
            Bug::IndexWithoutLock => {
                let mut index = self.index()?;
                index.push(path.clone());
                self.write_index(&index)?;
            }
            _ => {}
        }
        self.write(path, vec![part], replace, durable).map(drop)
    }

    fn index(&self) -> Result<Vec<String>> {
        let Some(data) = self.read(INDEX.into())? else { return Ok(Vec::new()) };
        let bytes = data.read(0, u32::try_from(data.len()).unwrap_or(u32::MAX))?;
        Ok(String::from_utf8_lossy(&bytes).lines().map(str::to_owned).collect())
    }

    fn write_index(&self, paths: &[String]) -> Result<()> {
        self.write(INDEX.into(), vec![Part::Bytes(paths.join("\n").into_bytes())], true, false).map(drop)
    }

    /// Also of a name that a listing has in place of a long one.
    fn manifest_path(&self, name: &str) -> String {
        match name.starts_with('\0') {
            true => format!("manifests/{}", escape_listed(name)),
            false => keys::manifest(self.bug, name),
        }
    }

    pub fn manifest(&mut self, name: &str) -> Result<Option<Payload>> {
        if let Some(data) = self.memory.manifests.get(name) {
            return data.share().map(Some);
        }
        let path = self.manifest_path(name);
        if self.is(Bug::IndexWithoutLock) && !self.index()?.contains(&path) {
            return Ok(None);
        }
        if let Some((late, data)) = &self.memory.late
            && *late == path
        {
            return data.share().map(Some);
        }
        match (self.bug, self.read(path)?) {
            (Bug::CachesManifests, Some(data)) => {
                self.memory.manifests.insert(name.to_owned(), data.share()?);
                Ok(Some(data))
            }
            (Bug::FailsManifestMisses, None) => Err(Error::other("there is no such manifest")),
            (Bug::EmptyForManifestMiss, None) => Payload::from_bytes(&[]).map(Some),
            (_, found) => Ok(found),
        }
    }

    pub fn remove_manifest(&mut self, name: &str) -> Result<()> {
        let path = self.manifest_path(name);
        self.memory.manifests.remove(name);
        self.memory.late.take_if(|(late, _)| *late == path);
        match self.bug {
            Bug::KeepsManifest => return Ok(()),
            Bug::FailsAbsentManifest if self.size(path.clone())?.is_none() => {
                return Err(Error::invalid("there is no such manifest"));
            }
            Bug::ManifestTakesChunks => self.remove(&self.all("chunks")?)?,
            Bug::ManifestTakesOthers => {
                let mut others = self.all("manifests")?;
                others.retain(|other| other.starts_with(&path));
                self.remove(&others)?;
            }
            Bug::IndexWithoutLock => {
                let mut index = self.index()?;
                index.retain(|other| *other != path);
                self.write_index(&index)?;
            }
            _ => {}
        }
        self.remove(&[path])
    }
}
