//! Where the chunks of one call go: into the memory that the caller named for each, or into buffers of the host's own.

use std::marker::PhantomData;

use super::hash::ChunkHash;
use super::hashes::{of_one_width, to_guest};
use super::shared::{Fetched, Shared, expect_some};
use crate::bindings::exports::kv_store::backend::store::GetOutcome;
use crate::error::{Error, ErrorKind};
use crate::guest::lie;
use crate::payload::{Got, Memory};
use crate::pool::Call;
use crate::until::Until;

/// Where one chunk goes.
#[derive(Clone, Copy, Default)]
pub(crate) struct Target<'a> {
    /// None: the host allocates.
    pieces: Option<&'a [libc::iovec]>,
    _exclusive: PhantomData<&'a mut [u8]>,
}

// SAFETY: it stands for memory that is the target's alone; see `Target::memory`.
unsafe impl Send for Target<'_> {}
// SAFETY: as above; it is written only where it is borrowed mutably.
unsafe impl Sync for Target<'_> {}

impl<'a> Target<'a> {
    /// A buffer that the host makes when the length is known.
    pub(crate) const ALLOCATE: Target<'static> = Target { pieces: None, _exclusive: PhantomData };

    /// Memory of the caller, one piece after another.
    ///
    /// # Safety
    /// Each piece must stay valid for writes, and be used by nobody else, as long as the target is. It need not be initialised.
    pub(crate) unsafe fn memory(pieces: &'a [libc::iovec]) -> Self {
        Target { pieces: Some(pieces), _exclusive: PhantomData }
    }
}

impl Shared {
    /// The backend's answers to one call, for some of the hashes, from the first on. Nothing is checked. Chunk n goes to target n,
    /// and to a buffer where there are fewer targets. What lies in the memory of a chunk that is missing, failed or too long is
    /// undefined.
    pub(super) fn get_into(
        &self,
        hashes: &[ChunkHash],
        targets: &mut [Target<'_>],
        until: &Until,
    ) -> Result<Vec<Result<Option<Got>, Error>>, Error> {
        let asked = of_one_width(hashes);
        let list = to_guest(asked.iter());
        let answers = self.pool.call(until, async |call: &mut Call<'_>| {
            let rooms = targets.iter().take(asked.len()).map(|target| {
                // SAFETY: `Target::memory` was promised that the pieces are valid and nobody else's as long as `targets` is borrowed,
                // which is longer than the call: the pool ends the items before it returns, and if this unwinds the instance, with
                // the items, is dropped on the way.
                target.pieces.map(|pieces| unsafe { Memory::room(pieces) })
            });
            // SAFETY: as above.
            unsafe { call.store.data_mut().items().begin_get(rooms) };
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
            Ok(call.store.data_mut().land(answers.collect()))
        })?;
        for (hash, answer) in asked.iter().zip(&answers) {
            match answer {
                Ok(Some(Got::Placed(len) | Got::TooLong(len))) => self.saw_len(*len),
                Ok(Some(Got::Buffer(data))) => self.saw_len(data.len()),
                Err(error) if error.kind() == ErrorKind::Corrupt => {
                    self.mark_damaged(hash);
                }
                Ok(None) | Err(_) => {}
            }
        }
        Ok(answers)
    }

    /// [`Shared::get_into`] buffers.
    pub(super) fn get_answers(&self, hashes: &[ChunkHash], until: &Until) -> Result<Vec<Fetched>, Error> {
        let buffer = |got| match got {
            Got::Buffer(data) => Ok(data),
            // There is no memory that it could be in, or be too small.
            Got::Placed(_) | Got::TooLong(_) => Err(lie("answered bytes that are nowhere")),
        };
        let answers = self.get_into(hashes, &mut [], until)?;
        Ok(answers.into_iter().map(|answer| answer?.map(buffer).transpose()).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::payload::counts::{self, Counts};
    use crate::store::Store;

    /// In a process of its own, whose environment says where the components are.
    #[test]
    fn a_chunk_goes_where_its_caller_wants_it() {
        const INSIDE: &str = "KV_STORE_TEST_TARGETS";
        if std::env::var_os(INSIDE).is_some() {
            return get_into_memory();
        }
        let target = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../target").canonicalize().unwrap();
        let components = target.join("dist/components");
        assert!(components.join("local-fs.wasm").exists(), "run `cargo xtask test`, which builds the components");
        let name = std::thread::current().name().expect("a test's thread has its name").to_owned();
        let child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", &name])
            .env(INSIDE, "1")
            .env("KV_STORE_WASM_PATH", components)
            .env("KV_STORE_WASM_CACHE", target.join("test-consumers/cache"))
            .output()
            .unwrap();
        let [stdout, stderr] = [&child.stdout, &child.stderr].map(|text| String::from_utf8_lossy(text));
        assert!(child.status.success() && stdout.contains("1 passed"), "{stdout}{stderr}");
    }

    fn get_into_memory() {
        let scratch = tempfile::tempdir().unwrap();
        let store = Store::open(&format!("local-fs://{}", scratch.path().display())).unwrap();
        let long: Vec<u8> = (0..100_000).map(|n| (n % 251) as u8).collect();
        store.put_chunk(b"short", b"0123456789").unwrap();
        store.put_chunk(b"long.", &long).unwrap();
        let hash = |text: &[u8]| ChunkHash::new(text).unwrap();
        let hashes =
            [hash(b"short"), hash(b"long."), hash(b"none."), hash(b"long."), hash(b"short"), hash(b"of 8 len")];
        let mut memory = vec![0_u8; 10 + 120_000 + 4 + 9];
        let mut rest = memory.as_mut_slice();
        let mut piece = |len: usize| {
            let (piece, behind) = std::mem::take(&mut rest).split_at_mut(len);
            rest = behind;
            libc::iovec { iov_base: piece.as_mut_ptr().cast(), iov_len: len }
        };
        let pieces = [vec![piece(10)], vec![piece(1), piece(59_999), piece(60_000)], vec![piece(4)], vec![piece(9)]];
        // SAFETY: the pieces do not overlap, and nobody uses `memory` while the targets are.
        let mut targets: Vec<Target> = pieces.iter().map(|pieces| unsafe { Target::memory(pieces) }).collect();
        counts::take();
        let (shared, until) = (&store.opened.shared, Until::new(&crate::limits::Limits::default()));
        let got = shared.get_into(&hashes[..3], &mut targets[..3], &until).unwrap();
        assert!(matches!(got[..], [Ok(Some(Got::Placed(10))), Ok(Some(Got::Placed(100_000))), Ok(None)]));
        assert_eq!(counts::take(), Counts { copied: 0, placed: 100_010 }, "nothing is copied on the way");
        // Another width is another call.
        let mut others = [Target::ALLOCATE, targets[3], Target::ALLOCATE];
        let got = shared.get_into(&hashes[3..], &mut others, &until).unwrap();
        assert!(matches!(&got[..], [Ok(Some(Got::Buffer(data))), Ok(Some(Got::TooLong(10)))] if data[..] == long[..]));
        assert!(memory[..10] == *b"0123456789" && memory[10..100_010] == long[..]);
        assert!(memory[100_010..].iter().all(|byte| *byte == 0));
    }
}
