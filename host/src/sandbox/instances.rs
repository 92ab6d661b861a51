//! The instances of a store as its backend: each call is one call of a guest, and the shape of what it answers is checked here.

use std::sync::Arc;

use super::hashes::{from_guest, of_one_width, to_guest, to_guest_by_width};
use super::pool::{Call, Pool};
use crate::backend::{
    Answers, Backend, Bytes, ChunkHash, ChunkToPut, Committed, Got, Presence, Put, Target, expect_some,
};
use crate::contract::bindings::kv_store::backend::store_types::{
    self as store, CommitOutcome, DeleteOutcome, GetOutcome, Manifest,
};
use crate::error::{Error, contract_violation};
use crate::payload::Buffer;
use crate::until::Until;

/// Hashes of several widths are several calls: the answer ends where the width changes.
impl Backend for Pool {
    fn exists(&self, hashes: &[ChunkHash], until: &Until) -> Answers<Presence> {
        let asked = of_one_width(hashes);
        let list = to_guest(asked.iter());
        self.call(until, async |call: &mut Call<'_>| {
            let answers = call.guest.call_exists(&mut *call.store, &list).await?;
            let presence = |presence| {
                Ok(match presence {
                    store::Presence::Absent => Presence::Absent,
                    store::Presence::Present(len) => Presence::Present(len),
                })
            };
            let answers = answers.map_err(Error::from).and_then(|answers| expect_some(answers, asked.len()));
            Ok(answers.map(|answers| answers.into_iter().map(presence).collect()))
        })
    }

    fn put(&self, chunks: &[ChunkToPut<'_>], replace: bool, until: &Until) -> Answers<Put> {
        let Some((first, _)) = chunks.first() else { return Ok(Vec::new()) };
        let width = first.as_slice().len();
        let same = chunks.iter().take_while(|(hash, _)| hash.as_slice().len() == width).count();
        let chunks = chunks.get(..same).unwrap_or(chunks);
        let lens: Vec<u64> = chunks.iter().map(|(_, data)| data.len() as u64).collect();
        let hashes = to_guest(chunks.iter().map(|(hash, _)| hash));
        until.grant(lens.iter().sum());
        self.call(until, async |call: &mut Call<'_>| {
            // SAFETY: the pool ends the items before `call` returns, and if this unwinds the instance, with them, is dropped on
            // the way; `chunks` lives longer than both.
            let sources = chunks.iter().map(|(_, data)| unsafe { data.source() });
            call.store.data_mut().items().begin_put(sources.collect());
            let answers = call.guest.call_put_chunks(&mut *call.store, &hashes, &lens, replace).await?;
            let outcome = |answer| match answer {
                store::PutOutcome::Stored => Ok(Put::New),
                store::PutOutcome::Existed if replace => {
                    Err(contract_violation("answered `existed` to a chunk that it was to replace"))
                }
                store::PutOutcome::Existed => Ok(Put::Existed),
                store::PutOutcome::Failed(error) => Err(Error::from(error)),
            };
            let answers = answers.map_err(Error::from).and_then(|answers| expect_some(answers, chunks.len()));
            Ok(answers.map(|answers| answers.into_iter().map(outcome).collect()))
        })
    }

    fn get(&self, hashes: &[ChunkHash], targets: &mut [Target<'_>], until: &Until) -> Answers<Option<Got>> {
        let asked = of_one_width(hashes);
        let list = to_guest(asked.iter());
        self.call(until, async |call: &mut Call<'_>| {
            // SAFETY: `targets` is borrowed for longer than the call: the pool ends the items before it returns, and if this
            // unwinds the instance, with the items, is dropped on the way.
            let room = |target: &Target<'_>| (unsafe { target.room() }, target.covering().cloned());
            // SAFETY: as above.
            unsafe { call.store.data_mut().items().begin_get(targets.iter().take(asked.len()).map(room)) };
            let answers = call.guest.call_get_chunks(&mut *call.store, &list).await?;
            let answers = match answers.map_err(Error::from).and_then(|answers| expect_some(answers, asked.len())) {
                Ok(answers) => answers,
                Err(error) => return Ok(Err(error)),
            };
            let answers = answers.into_iter().map(|answer| match answer {
                GetOutcome::Missing => Ok(None),
                GetOutcome::Failed(error) => Err(error.into()),
                GetOutcome::Found(payload) => Ok(Some(payload)),
            });
            let state = call.store.data_mut();
            let landed = state.place_answers(answers);
            for (target, item) in targets.iter_mut().zip(0..).filter(|(target, _)| target.covering().is_some()) {
                target.set_sum(state.items().sum(item));
            }
            Ok(landed)
        })
    }

    fn delete(&self, hashes: &[ChunkHash], until: &Until) -> Answers<()> {
        let asked = of_one_width(hashes);
        let list = to_guest(asked.iter());
        self.call(until, async |call: &mut Call<'_>| {
            let answers = call.guest.call_delete_chunks(&mut *call.store, &list).await?;
            let outcome = |answer| match answer {
                DeleteOutcome::Gone => Ok(()),
                DeleteOutcome::Failed(error) => Err(error.into()),
            };
            let answers = answers.map_err(Error::from).and_then(|answers| expect_some(answers, asked.len()));
            Ok(answers.map(|answers| answers.into_iter().map(outcome).collect()))
        })
    }

    fn commit(
        &self,
        manifest: Option<(&str, &[u8])>,
        fresh: &[ChunkHash],
        bytes: u64,
        until: &Until,
    ) -> Result<Committed, Error> {
        let list = to_guest_by_width(fresh);
        let data = manifest.map(|(_, data)| Bytes::Borrowed(data));
        let manifest = manifest.map(|(name, data)| Manifest { name: name.to_owned(), len: data.len() as u64 });
        until.grant(bytes.saturating_add(manifest.as_ref().map_or(0, |manifest| manifest.len)));
        self.call(until, async |call: &mut Call<'_>| {
            // SAFETY: as in `put`; `data` lives longer than the call.
            let sources = data.iter().map(|data| unsafe { data.source() });
            call.store.data_mut().items().begin_put(sources.collect());
            let answer = call.guest.call_commit(&mut *call.store, &list, manifest.as_ref()).await?;
            Ok(answer.map_err(Error::from).and_then(|outcome| match outcome {
                CommitOutcome::Published => Ok(Committed::Published),
                CommitOutcome::Absent(named) => match from_guest(&named, fresh)? {
                    absent if absent.is_empty() => Err(contract_violation("answered `absent` and named no chunk")),
                    absent => Ok(Committed::Absent(absent)),
                },
            }))
        })
    }

    fn get_manifest(&self, name: &str, until: &Until) -> Result<Option<Arc<Buffer>>, Error> {
        self.call(until, async |call: &mut Call<'_>| {
            call.store.data_mut().expect_manifest();
            let answer = call.guest.call_get_manifest(&mut *call.store, name).await?;
            let state = call.store.data_mut();
            Ok(answer
                .map_err(Error::from)
                .and_then(|found| found.map(|payload| state.take_buffer(payload)).transpose()))
        })
    }

    fn delete_manifest(&self, name: &str, until: &Until) -> Result<(), Error> {
        self.call(until, async |call: &mut Call<'_>| {
            let answer = call.guest.call_delete_manifest(&mut *call.store, name).await?;
            Ok(answer.map_err(Error::from))
        })
    }

    fn retire(&self) {
        self.retire_idle();
    }

    fn drop_connections(&self) {
        self.close_idle_connections();
    }
}
