//! Whatever order the C functions are called in, with whatever arguments: what they answer is what the header says, and what was
//! put is what is got. Held against a map; from one thread, because the conformance suite has the others.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test that fails panics")]

use std::collections::HashMap;
use std::ffi::CString;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use kv_store_abi::store::{kv_store_v1, kv_store_vtable};
use kv_store_hostile::prepare;
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Call {
    Open,
    Close,
    /// What a chunk holds follows from its hash: how often its first byte.
    /// Or NULL with a length, if that is not 0.
    PutChunk(Bytes, usize),
    GetChunk(Bytes, Outputs),
    PutManifest(Name, Bytes),
    GetManifest(Name, Outputs),
    DeleteManifest(Name),
    Prefetch(Bytes, usize, usize),
}

/// A pointer and a length: both right, or NULL with that length.
#[derive(Clone, Debug)]
enum Bytes {
    There(Vec<u8>),
    Null(usize),
}

#[derive(Clone, Debug)]
enum Name {
    There(Vec<u8>),
    Null,
}

#[derive(Clone, Copy, Debug)]
enum Outputs {
    Both,
    NoData,
    NoLength,
    None,
}

impl Bytes {
    fn raw(&self) -> (*const u8, usize) {
        match self {
            Bytes::There(bytes) => (bytes.as_ptr(), bytes.len()),
            Bytes::Null(len) => (null(), *len),
        }
    }

    /// What it stands for, where that is legal: NULL with a length of 0 is empty.
    fn legal(&self) -> Option<&[u8]> {
        match self {
            Bytes::There(bytes) => Some(bytes),
            Bytes::Null(0) => Some(&[]),
            Bytes::Null(_) => None,
        }
    }

    fn hash(&self) -> Option<&[u8]> {
        self.legal().filter(|hash| (1..=64).contains(&hash.len()))
    }
}

impl Name {
    fn c(&self) -> Option<CString> {
        match self {
            Name::There(name) => CString::new(name.clone()).ok(),
            Name::Null => None,
        }
    }

    fn legal(&self) -> Option<String> {
        let name = String::from_utf8(self.c()?.into_bytes()).ok()?;
        (1..=4096).contains(&name.len()).then_some(name)
    }
}

fn bytes(most: usize) -> impl Strategy<Value = Bytes> {
    prop_oneof![
        10 => prop::collection::vec(any::<u8>(), 0..=most).prop_map(Bytes::There),
        1 => prop::sample::select(vec![0, 1, usize::MAX]).prop_map(Bytes::Null),
    ]
}

/// Few, so that they meet again; and some that are none.
fn hash() -> impl Strategy<Value = Bytes> {
    prop_oneof![10 => (0..6_u8).prop_map(|n| Bytes::There(vec![n; 9])), 1 => bytes(70)]
}

fn name() -> impl Strategy<Value = Name> {
    prop_oneof![
        10 => prop::sample::select(vec!["a", "b", "a/b", "../c", "ü"]).prop_map(|name| Name::There(name.into())),
        1 => prop::collection::vec(1..=255_u8, 0..20).prop_map(Name::There),
        1 => Just(Name::There(vec![b'x'; 4097])),
        1 => Just(Name::Null),
    ]
}

fn outputs() -> impl Strategy<Value = Outputs> {
    prop_oneof![20 => Just(Outputs::Both), 1 => Just(Outputs::NoData), 1 => Just(Outputs::NoLength), 1 => Just(Outputs::None)]
}

fn call() -> impl Strategy<Value = Call> {
    prop_oneof![
        1 => Just(Call::Open),
        1 => Just(Call::Close),
        4 => (hash(), prop::sample::select(vec![0, 0, 0, 1, usize::MAX])).prop_map(|(hash, wrong)| {
            Call::PutChunk(hash, wrong)
        }),
        4 => (hash(), outputs()).prop_map(|(hash, outputs)| Call::GetChunk(hash, outputs)),
        4 => (name(), bytes(40)).prop_map(|(name, data)| Call::PutManifest(name, data)),
        4 => (name(), outputs()).prop_map(|(name, outputs)| Call::GetManifest(name, outputs)),
        2 => name().prop_map(Call::DeleteManifest),
        1 => (bytes(80), 0..70_usize, prop::sample::select(vec![0, 1, 2, usize::MAX])).prop_map(|(hashes, len, count)| {
            // A number of hashes that are there, or one that cannot be.
            let count = match hashes.legal() {
                Some(bytes) if len > 0 && count != usize::MAX => count.min(bytes.len() / len),
                _ if len == 0 => count,
                _ => usize::MAX,
            };
            Call::Prefetch(hashes, len, count)
        }),
    ]
}

struct Machine {
    vtable: &'static kv_store_vtable,
    uri: CString,
    handle: *mut kv_store_v1,
    chunks: HashMap<Vec<u8>, Vec<u8>>,
    manifests: HashMap<String, Vec<u8>>,
}

type Checked = Result<(), TestCaseError>;

fn pointer(name: &Option<CString>) -> *const std::ffi::c_char {
    name.as_ref().map_or(null(), |name| name.as_ptr())
}

impl Machine {
    fn new(uri: &str) -> Self {
        // SAFETY: what the library answers is constant.
        let vtable = unsafe { &*kv_store_ffi::kv_store_get_vtable() };
        let uri = CString::new(uri).expect("no NUL");
        Machine { vtable, uri, handle: null_mut(), chunks: HashMap::new(), manifests: HashMap::new() }
    }

    fn get(
        &self,
        outputs: Outputs,
        expected: Option<&Vec<u8>>,
        get: impl FnOnce(*mut *mut u8, *mut usize) -> i32,
    ) -> Checked {
        let (mut data, mut len) = (std::ptr::dangling_mut::<u8>(), 12345_usize);
        let (to_data, to_len): (*mut *mut u8, *mut usize) = match outputs {
            Outputs::Both => (&mut data, &mut len),
            Outputs::NoData => (null_mut(), &mut len),
            Outputs::NoLength => (&mut data, null_mut()),
            Outputs::None => (null_mut(), null_mut()),
        };
        let answer = get(to_data, to_len);
        if !matches!(outputs, Outputs::Both) {
            prop_assert!(answer < 0, "nowhere to answer to, and it answers {answer}");
            return Ok(());
        }
        match expected {
            Some(expected) => {
                prop_assert_eq!(answer, 0);
                prop_assert!(!data.is_null());
                // SAFETY: `len` bytes that are ours, from malloc.
                let got = unsafe { std::slice::from_raw_parts(data, len) }.to_vec();
                // SAFETY: as above, once.
                unsafe { libc::free(data.cast()) };
                prop_assert_eq!(&got, expected);
            }
            None => {
                prop_assert!(answer < 0, "{answer}");
                prop_assert!(data.is_null() && len == 0, "a failure leaves {data:?} and {len}");
            }
        }
        Ok(())
    }

    fn is_open(&self) -> bool {
        !self.handle.is_null()
    }

    fn call(&mut self, call: &Call) -> Checked {
        match call {
            Call::Open if self.is_open() => Ok(()),
            Call::Open => self.open(),
            Call::Close => {
                // SAFETY: the handle is NULL or open.
                unsafe { self.vtable.close.expect("close")(self.handle) };
                self.handle = null_mut();
                Ok(())
            }
            Call::PutChunk(hash, null) => self.put_chunk(hash, *null),
            Call::GetChunk(hash, outputs) => self.get_chunk(hash, *outputs),
            Call::PutManifest(name, data) => self.put_manifest(name, data),
            Call::GetManifest(name, outputs) => self.get_manifest(name, *outputs),
            Call::DeleteManifest(name) => self.delete_manifest(name),
            Call::Prefetch(hashes, len, count) => self.prefetch(hashes, *len, *count),
        }
    }

    // In each of these, pointers are NULL or to as many bytes as said, for as long as the call; the handle is NULL or open; outputs
    // are NULL or places for one.

    fn open(&mut self) -> Checked {
        // SAFETY: see above.
        self.handle = unsafe { self.vtable.open.expect("open")(self.uri.as_ptr()) };
        prop_assert!(self.is_open());
        Ok(())
    }

    fn put_chunk(&mut self, hash: &Bytes, null: usize) -> Checked {
        let content = |hash: &[u8]| vec![hash.first().copied().unwrap_or(0); hash.len() * 3];
        let data = match null {
            0 => Bytes::There(content(hash.legal().unwrap_or_default())),
            len => Bytes::Null(len),
        };
        let ((hash_at, hash_len), (at, len)) = (hash.raw(), data.raw());
        // SAFETY: see above.
        let answer = unsafe { self.vtable.put_chunk.expect("put_chunk")(self.handle, hash_at, hash_len, at, len) };
        match (hash.hash(), data.legal()) {
            (Some(hash), Some(data)) if self.is_open() => {
                // A chunk is immutable: the first stays.
                let there = self.chunks.contains_key(hash);
                prop_assert_eq!(answer, i32::from(there));
                self.chunks.entry(hash.to_vec()).or_insert(data.to_vec());
            }
            _ => prop_assert!(answer < 0, "{answer}"),
        }
        Ok(())
    }

    fn get_chunk(&self, hash: &Bytes, outputs: Outputs) -> Checked {
        let (at, len) = hash.raw();
        let expected = hash.hash().filter(|_| self.is_open()).and_then(|hash| self.chunks.get(hash));
        self.get(outputs, expected, |data, out| {
            // SAFETY: see above.
            unsafe { self.vtable.get_chunk.expect("get_chunk")(self.handle, at, len, data, out) }
        })
    }

    fn put_manifest(&mut self, name: &Name, data: &Bytes) -> Checked {
        let ((at, len), c) = (data.raw(), name.c());
        // SAFETY: see above.
        let answer = unsafe { self.vtable.put_manifest.expect("put_manifest")(self.handle, pointer(&c), at, len) };
        match (name.legal(), data.legal()) {
            (Some(name), Some(data)) if self.is_open() => {
                prop_assert_eq!(answer, 0);
                self.manifests.insert(name, data.to_vec());
            }
            _ => prop_assert!(answer < 0, "{answer}"),
        }
        Ok(())
    }

    fn get_manifest(&self, name: &Name, outputs: Outputs) -> Checked {
        let c = name.c();
        let expected = name.legal().filter(|_| self.is_open()).and_then(|name| self.manifests.get(&name));
        self.get(outputs, expected, |data, len| {
            // SAFETY: see above.
            unsafe { self.vtable.get_manifest.expect("get_manifest")(self.handle, pointer(&c), data, len) }
        })
    }

    fn delete_manifest(&mut self, name: &Name) -> Checked {
        let c = name.c();
        // SAFETY: see above.
        let answer = unsafe { self.vtable.delete_manifest.expect("delete_manifest")(self.handle, pointer(&c)) };
        match name.legal().filter(|_| self.is_open()) {
            Some(name) => {
                prop_assert_eq!(answer, 0);
                self.manifests.remove(&name);
            }
            None => prop_assert!(answer < 0, "{answer}"),
        }
        Ok(())
    }

    fn prefetch(&self, hashes: &Bytes, len: usize, count: usize) -> Checked {
        let prefetch = self.vtable.prefetch_chunks.expect("prefetch_chunks");
        // SAFETY: see above.
        let answer = unsafe { prefetch(self.handle, hashes.raw().0, len, count) };
        prop_assert!(answer <= 0 && (self.is_open() || answer < 0), "{answer}");
        Ok(())
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // SAFETY: NULL, or open and closed once.
        unsafe { self.vtable.close.expect("close")(self.handle) }
    }
}

/// Stores in memory outlive their handles for a while, so each run has another.
static FRESH: AtomicU64 = AtomicU64::new(0);

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_sequence_of_calls_is_too_strange(calls in prop::collection::vec(call(), 1..60)) {
        prepare("");
        let folder = tempfile::tempdir().expect("a temporary directory");
        for uri in [format!("local-fs://{}", folder.path().display()), format!("memory://{}", FRESH.fetch_add(1, SeqCst))] {
            let mut machine = Machine::new(&uri);
            machine.call(&Call::Open)?;
            for call in &calls {
                machine.call(call).map_err(|error| TestCaseError::fail(format!("{uri}: {call:?}: {error}")))?;
            }
        }
    }
}
