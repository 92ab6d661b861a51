//! Chunks: asking, putting, fetching, removing.

use kv_store_sdk::files::open_directory;
use kv_store_sdk::payloads::Part;
use kv_store_sdk::{Chunk, DeleteOutcome, Error, GetOutcome, Hashes, Payload, Presence, PutOutcome, Result, system};

use crate::named::Files as Bug;
use crate::{Files, grow};

/// What hides a removed chunk: an empty file beside it.
fn hidden(path: &str) -> String {
    path.replacen("chunks", "hidden", 1)
}

impl Files {
    fn has(&mut self, hash: &[u8]) -> Result<Option<u64>> {
        match self.bug {
            Bug::KeepsInInstance => return Ok(self.memory.chunks.get(hash).map(Payload::len)),
            Bug::RemembersAbsent if self.memory.hashes.contains(hash) => return Ok(None),
            Bug::HidesRemoved if self.size(hidden(&self.path(hash)))?.is_some() => return Ok(None),
            _ => {}
        }
        if let Some((_, data)) = self.memory.waiting.iter().find(|(waiting, _)| waiting == hash) {
            return Ok(Some(data.len()));
        }
        let size = self.size(self.path(hash))?;
        if self.is(Bug::RemembersAbsent) && size.is_none() {
            self.memory.hashes.insert(hash.to_vec());
        }
        Ok(size)
    }

    pub fn presence(&mut self, hashes: Hashes) -> Result<Vec<Presence>> {
        if self.is(Bug::WidthEight) {
            return hashes.iter().flat_map(|hash| hash.chunks(8)).map(|hash| Ok(self.has(hash)?.into())).collect();
        }
        let mut sizes = hashes.iter().map(|hash| self.has(hash)).collect::<Result<Vec<_>>>()?;
        match self.bug {
            Bug::AllIfOne if sizes.iter().any(Option::is_some) => {
                return Ok(sizes.iter().map(|_| Presence::from(true)).collect());
            }
            Bug::PresentForMiss => return Ok(sizes.iter().map(|_| Presence::from(true)).collect()),
            Bug::AbsentBeyondEight => sizes.iter_mut().skip(8).for_each(|size| *size = None),
            Bug::WrongLength => sizes.iter_mut().flatten().for_each(|size| *size += 1),
            _ => {}
        }
        Ok(sizes.into_iter().map(Presence::from).collect())
    }

    pub fn put(&mut self, chunks: &[Chunk], replace: bool) -> Result<Vec<PutOutcome>> {
        let count = chunks.len();
        match self.bug {
            Bug::AnswersSlowly => {
                system::sleep(50_000_000)?;
                return chunks.iter().take(1).map(|chunk| self.put_one(chunk, chunk.part(), replace)).collect();
            }
            Bug::ShiftsItems | Bug::ShiftsItemsBuffered => {
                let under = chunks.iter().zip(chunks.iter().cycle().skip(1));
                return under.map(|(chunk, next)| self.put_one(chunk, next.part(), replace)).collect();
            }
            Bug::ExistedFailsBatch if count > 1 && !replace => {
                for chunk in chunks {
                    if self.has(chunk.hash)?.is_some() {
                        return Err(Error::invalid("one of the chunks is there"));
                    }
                }
            }
            Bug::FirstLength => {
                let first = chunks.first().map_or(0, |chunk| chunk.len);
                let cut = |chunk: &Chunk| chunk.range(0, chunk.len.min(first));
                return chunks.iter().map(|chunk| self.put_one(chunk, cut(chunk), replace)).collect();
            }
            Bug::WidthEight => {
                for chunk in chunks {
                    self.write(
                        self.path(chunk.hash.get(..8).unwrap_or(chunk.hash)),
                        vec![chunk.part()],
                        replace,
                        false,
                    )?;
                }
                return Ok(chunks.iter().map(|_| PutOutcome::Stored).collect());
            }
            _ => {}
        }
        let stored = match self.bug {
            Bug::DropsBeyondEight => count.min(8),
            Bug::LosesLast if count > 1 => count - 1,
            _ => count,
        };
        let put = chunks.iter().take(stored).map(|chunk| self.put_one(chunk, chunk.part(), replace));
        let mut answers = put.collect::<Result<Vec<_>>>()?;
        answers.resize_with(count, || PutOutcome::Stored);
        if self.is(Bug::SwapsAnswers) {
            answers.reverse();
        }
        Ok(answers)
    }

    fn put_one(&mut self, chunk: &Chunk, part: Part<'static>, replace: bool) -> Result<PutOutcome> {
        let path = self.path(chunk.hash);
        self.memory.puts += 1;
        match self.bug {
            Bug::RefusesLong if chunk.len > 100_000 => {
                return Ok(PutOutcome::Failed(Error::invalid("the chunk is too long")));
            }
            Bug::TrapsOnEmpty if chunk.len == 0 => panic!("an empty chunk"),
            Bug::TrapsOnLongHash if chunk.hash.len() > 32 => panic!("a long hash"),
            Bug::HangsAtHundred if self.memory.puts == 100 => loop {
                std::hint::black_box(&self.memory.puts);
            },
            Bug::StaleExisted if !self.memory.hashes.insert(chunk.hash.to_vec()) => return Ok(PutOutcome::Existed),
            Bug::GrowsOnPut => grow(),
            Bug::KeepsPayloads => std::mem::forget(chunk.keep()?),
            Bug::KeepsInInstance => {
                let kept = self.memory.chunks.insert(chunk.hash.to_vec(), chunk.keep()?);
                return Ok(if kept.is_some() && !replace { PutOutcome::Existed } else { PutOutcome::Stored });
            }
            Bug::NeverAgain | Bug::HidesRemoved if self.size(hidden(&path))?.is_some() => {
                let answer = if self.is(Bug::NeverAgain) { PutOutcome::Stored } else { PutOutcome::Existed };
                return Ok(answer);
            }
            _ => {}
        }
        if replace {
            let there = self.size(path.clone())?;
            match self.bug {
                Bug::IgnoresReplace if there.is_some() => return Ok(PutOutcome::Stored),
                Bug::ReplaceExisted if there.is_some() => return Ok(PutOutcome::Existed),
                Bug::ReplacesOtherLength if there == Some(chunk.len) => return Ok(PutOutcome::Stored),
                Bug::ReplacesInSteps if there.is_some() => {
                    self.remove(&[path.clone()])?;
                    system::sleep(20_000_000)?;
                }
                _ => {}
            }
        }
        match self.bug {
            Bug::WritesBehind => {
                self.memory.waiting.push((chunk.hash.to_vec(), chunk.keep()?));
                if self.memory.waiting.len() >= 4 {
                    self.write_waiting()?;
                }
                Ok(PutOutcome::Stored)
            }
            Bug::SharedTemporary => {
                if !replace && self.size(path.clone())?.is_some() {
                    return Ok(PutOutcome::Existed);
                }
                self.write("temporary".into(), vec![part], true, false)?;
                let data = self.read("temporary".into())?.ok_or_else(|| Error::other("it is gone"))?;
                self.write(path, vec![Part::Payload(&data)], true, false)
            }
            Bug::TrimsZeros | Bug::SpoilsPages => {
                let data = Payload::from_parts(&[part])?;
                let mut bytes = data.read(0, u32::try_from(data.len()).unwrap_or(u32::MAX))?;
                if self.is(Bug::TrimsZeros) {
                    bytes.truncate(bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1));
                } else if bytes.len() % 4096 == 0
                    && let Some(last) = bytes.last_mut()
                {
                    *last ^= 1;
                }
                self.write(path, vec![Part::Bytes(bytes)], replace, false)
            }
            Bug::CutsLong => self.write(path, vec![chunk.range(0, chunk.len.min(65_536))], replace, false),
            Bug::PadsToEight => {
                let zeros = vec![0; 8_u64.saturating_sub(chunk.len) as usize];
                self.write(path, vec![part, Part::Bytes(zeros)], replace, false)
            }
            _ => self.write(path, vec![part], replace, false),
        }
    }

    pub fn write_waiting(&mut self) -> Result<()> {
        for (hash, data) in std::mem::take(&mut self.memory.waiting) {
            self.write(self.path(&hash), vec![Part::Payload(&data)], true, false)?;
        }
        Ok(())
    }

    fn missing(&self) -> GetOutcome {
        match self.bug {
            Bug::FailsMisses => GetOutcome::Failed(Error::other("there is no such chunk")),
            Bug::UnavailableMisses => GetOutcome::Failed(Error::unavailable("there is no such chunk")),
            Bug::CorruptForMiss => GetOutcome::Failed(Error::corrupt("there is no such chunk")),
            Bug::EmptyForMiss => Payload::from_bytes(&[]).map_or_else(GetOutcome::Failed, GetOutcome::Found),
            _ => GetOutcome::Missing,
        }
    }

    pub fn get(&mut self, hashes: Hashes) -> Result<Vec<GetOutcome>> {
        let mut found = Vec::new();
        for hash in hashes.iter() {
            found.push(self.get_one(hash)?);
        }
        if self.is(Bug::MissFailsBatch) && found.len() > 1 && found.iter().any(Option::is_none) {
            return Err(Error::other("a chunk is missing"));
        }
        if self.is(Bug::ReversesGets) {
            found.reverse();
        }
        Ok(found.into_iter().map(|data| data.map_or_else(|| self.missing(), GetOutcome::Found)).collect())
    }

    fn get_one(&mut self, hash: &[u8]) -> Result<Option<Payload>> {
        let hash = if self.is(Bug::WidthEight) { hash.get(..8).unwrap_or(hash) } else { hash };
        match self.bug {
            Bug::KeepsInInstance => return self.memory.chunks.get(hash).map(Payload::share).transpose(),
            Bug::CachesChunks if let Some(data) = self.memory.chunks.get(hash) => return data.share().map(Some),
            Bug::RemembersMisses if self.memory.hashes.contains(hash) => return Ok(None),
            Bug::LeaksDirectories => std::mem::forget(open_directory("")?),
            Bug::GrowsOnGet => grow(),
            _ => {}
        }
        if let Some((_, data)) = self.memory.waiting.iter().find(|(waiting, _)| waiting == hash) {
            return data.share().map(Some);
        }
        let data = self.read(self.path(hash))?;
        match (self.bug, &data) {
            (Bug::EmptyIsMissing, Some(data)) if data.len() == 0 => return Ok(None),
            (Bug::CachesChunks, Some(data)) => drop(self.memory.chunks.insert(hash.to_vec(), data.share()?)),
            (Bug::RemembersMisses, None) => drop(self.memory.hashes.insert(hash.to_vec())),
            (Bug::LeaksReads, Some(data)) => std::mem::forget(data.share()?),
            _ => {}
        }
        Ok(data)
    }

    pub fn delete(&mut self, hashes: Hashes) -> Result<Vec<DeleteOutcome>> {
        let paths: Vec<String> = hashes.iter().map(|hash| self.path(hash)).collect();
        for path in &paths {
            let there = self.size(path.clone())?.is_some();
            match self.bug {
                Bug::RefusesAbsent if !there => {
                    return Ok(paths.iter().map(|_| DeleteOutcome::Failed(Error::invalid("no such chunk"))).collect());
                }
                Bug::TrapsOnAbsent if !there => panic!("there is no such chunk"),
                Bug::NeverAgain | Bug::HidesRemoved => {
                    self.write(hidden(path), Vec::new(), true, false)?;
                }
                _ => {}
            }
        }
        for hash in hashes.iter() {
            self.memory.chunks.remove(hash);
            self.memory.waiting.retain(|(waiting, _)| waiting != hash);
        }
        match self.bug {
            Bug::KeepsDamaged | Bug::HidesRemoved => {}
            Bug::RemovesOthers => self.remove(&self.all("chunks")?)?,
            Bug::RemovesFirstOnly => self.remove(paths.get(..1).unwrap_or_default())?,
            Bug::WidthEight => {
                let cut = |hash: &[u8]| self.path(hash.get(..8).unwrap_or(hash));
                self.remove(&hashes.iter().map(cut).collect::<Vec<_>>())?;
            }
            _ => self.remove(&paths)?,
        }
        Ok(hashes.iter().map(|_| DeleteOutcome::Gone).collect())
    }
}
