//! The batch interface as an engine uses it: one array of items, memory that stays.

use std::ffi::CStr;

use anyhow::{Context, Result, anyhow, bail, ensure};
use kv_store_abi::batch::*;
use kv_store_abi::store::kv_store_v1;
use kv_store_conformance::{Handle, Library};

/// An open store with its batches.
pub struct Batches<'a> {
    handle: Handle<'a>,
    vtable: &'static kv_store_batch_vtable_t,
}

/// Blocks of one size, with their keys, in memory that is used again and again.
#[derive(Clone)]
pub struct Blocks {
    memory: Vec<u8>,
    size: usize,
    keys: Vec<Vec<u8>>,
}

impl Blocks {
    pub fn new(keys: Vec<Vec<u8>>, size: usize, fill: impl Fn(usize) -> Vec<u8>) -> Self {
        Blocks { memory: (0..keys.len()).flat_map(fill).collect(), size, keys }
    }

    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Other keys for the same memory.
    pub fn set_keys(&mut self, keys: Vec<Vec<u8>>) {
        assert_eq!(keys.len(), self.keys.len(), "a key for each block");
        self.keys = keys;
    }

    pub fn keys(&self) -> &[Vec<u8>] {
        &self.keys
    }

    pub fn block(&mut self, index: usize) -> &mut [u8] {
        &mut self.memory[index * self.size..][..self.size]
    }
}

// SAFETY: the ABI asks that a handle can be used from any thread.
unsafe impl Sync for Batches<'_> {}

impl<'a> Batches<'a> {
    pub fn open(library: &'a Library, uri: &str) -> Result<Self> {
        let handle = library.open(uri).with_context(|| format!("cannot open {uri}"))?;
        // By its name of 0.2, which a former library has too.
        let get: unsafe extern "C" fn() -> *const kv_store_batch_vtable_t =
            // SAFETY: the type that the header gives the function.
            unsafe { library.function("kv_store_get_batch_vtable") }.map_err(|error| anyhow!(error))?;
        // SAFETY: never NULL, and static.
        let vtable = unsafe { &*get() };
        ensure!(vtable.size as usize >= size_of::<kv_store_batch_vtable_t>(), "the vtable is too short");
        Ok(Batches { handle, vtable })
    }

    /// Say that values are of a model.
    pub fn describe(&self, model: &str) -> Result<()> {
        let answer = self.handle.describe(model).map_err(|error| anyhow!(error))?;
        ensure!(answer == 0, "describe answered {answer}");
        Ok(())
    }

    /// Store the blocks; none of them may be there.
    pub fn put(&self, blocks: &mut Blocks) -> Result<()> {
        self.run(self.vtable.put_many, blocks, |item, _| item.status == 0)
    }

    /// Store the blocks, in place of those that are there.
    pub fn replace(&self, blocks: &mut Blocks) -> Result<()> {
        let size = size_of::<kv_store_call_t>() as u32;
        let call = kv_store_call_t { size, flags: KV_STORE_REPLACE, timeout_ms: 0, save: std::ptr::null_mut() };
        self.run_with(self.vtable.put_many, blocks, &raw const call, |item, _| item.status == 0)
    }

    /// Store the blocks in a save and publish a manifest over them, whether they are there or not.
    pub fn save(&self, blocks: &mut Blocks, name: &CStr, manifest: &[u8]) -> Result<()> {
        // SAFETY: the handle is open.
        let save = unsafe { (self.vtable.save_begin)(self.handle.raw) };
        ensure!(!save.is_null(), "no save was begun");
        let call = kv_store_call_t { size: size_of::<kv_store_call_t>() as u32, flags: 0, timeout_ms: 0, save };
        let put = self.run_with(self.vtable.put_many, blocks, &raw const call, |item, _| item.status >= 0);
        let (null, none) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the save was begun above and is ended once; name and manifest outlive the call.
        let committed = unsafe {
            let committed =
                (self.vtable.save_commit)(save, name.as_ptr(), manifest.as_ptr(), manifest.len(), null, none);
            (self.vtable.save_end)(save);
            committed
        };
        ensure!(committed == 0, "the commit answered {committed}");
        put
    }

    /// Fetch all blocks into their memory.
    pub fn get(&self, blocks: &mut Blocks) -> Result<()> {
        self.run(self.vtable.get_many, blocks, |item, size| item.status == 0 && item.len == size as u64)
    }

    /// How many of these are there.
    pub fn exist(&self, keys: &[Vec<u8>]) -> Result<usize> {
        let item = |key: &Vec<u8>| kv_store_item_t {
            hash: key.as_ptr(),
            hash_len: key.len(),
            pieces: std::ptr::null(),
            n_pieces: 0,
            len: 0,
            data: std::ptr::null_mut(),
            status: 77,
            reserved: 0,
        };
        let mut items: Vec<kv_store_item_t> = keys.iter().map(item).collect();
        // SAFETY: the items and what they point to live until the call returns.
        let answer =
            unsafe { (self.vtable.exists_many)(self.handle.raw, items.as_mut_ptr(), items.len(), std::ptr::null()) };
        ensure!(answer == 0, "the batch answered {answer}");
        Ok(items.iter().filter(|item| item.status == 0).count())
    }

    /// Remove the blocks, whether they are there or not.
    pub fn remove(&self, blocks: &mut Blocks) -> Result<()> {
        self.run(self.vtable.delete_many, blocks, |item, _| item.status == 0)
    }

    fn run(&self, many: Many, blocks: &mut Blocks, well: impl Fn(&kv_store_item_t, usize) -> bool) -> Result<()> {
        self.run_with(many, blocks, std::ptr::null(), well)
    }

    fn run_with(
        &self,
        many: Many,
        blocks: &mut Blocks,
        call: *const kv_store_call_t,
        well: impl Fn(&kv_store_item_t, usize) -> bool,
    ) -> Result<()> {
        let size = blocks.size;
        let pieces: Vec<kv_store_piece_t> = (0..blocks.len())
            .map(|index| kv_store_piece_t { data: blocks.block(index).as_mut_ptr().cast(), len: size })
            .collect();
        let item = |(key, piece): (&Vec<u8>, &kv_store_piece_t)| kv_store_item_t {
            hash: key.as_ptr(),
            hash_len: key.len(),
            pieces: piece,
            n_pieces: 1,
            len: 0,
            data: std::ptr::null_mut(),
            status: 77,
            reserved: 0,
        };
        let mut items: Vec<kv_store_item_t> = blocks.keys.iter().zip(&pieces).map(item).collect();
        // SAFETY: the items and what they point to live until the call returns.
        let answer = unsafe { many(self.handle.raw, items.as_mut_ptr(), items.len(), call) };
        ensure!(answer == 0, "the batch answered {answer}");
        match items.iter().find(|item| !well(item, size)) {
            Some(item) => bail!("an item answered {}", item.status),
            None => Ok(()),
        }
    }
}

/// The native store's peer of a get.
pub struct Native<'a> {
    handle: Handle<'a>,
    get_into: unsafe extern "C" fn(*mut kv_store_v1, *const u8, usize, *mut u8, usize) -> i64,
}

// SAFETY: as for `Batches`.
unsafe impl Sync for Native<'_> {}

impl<'a> Native<'a> {
    pub fn open(library: &'a Library, uri: &str) -> Result<Self> {
        let handle = library.open(uri).with_context(|| format!("cannot open {uri}"))?;
        // SAFETY: the type of the function in tests/native.
        let get_into = unsafe { library.function("native_get_into") }.map_err(|error| anyhow!(error))?;
        Ok(Native { handle, get_into })
    }

    /// Store the blocks, one call each.
    pub fn put(&self, blocks: &mut Blocks) -> Result<()> {
        for index in 0..blocks.len() {
            let key = blocks.keys[index].clone();
            let answer = self.handle.put_chunk(&key, blocks.block(index)).map_err(|error| anyhow!(error))?;
            ensure!(answer == 0, "put_chunk answered {answer}");
        }
        Ok(())
    }

    /// Fetch all blocks into their memory, one call each.
    pub fn get(&self, blocks: &mut Blocks) -> Result<()> {
        for index in 0..blocks.len() {
            let (key, len) = (blocks.keys[index].as_ptr(), blocks.keys[index].len());
            let block = blocks.block(index);
            // SAFETY: pointers to as many bytes as said.
            let got = unsafe { (self.get_into)(self.handle.raw, key, len, block.as_mut_ptr(), block.len()) };
            ensure!(got == block.len() as i64, "get_into answered {got}");
        }
        Ok(())
    }
}
