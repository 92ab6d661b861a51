//! Where the bytes of a get go, with a component of ours: straight into the memory that its caller named.

use crate::backend::{ChunkHash, Got, Layout, Target};
use crate::payload::counts;
use crate::{ENVELOPE_BYTES, Store};

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
    let config = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&config, "compile = 'in-process'\n").unwrap();
    let name = std::thread::current().name().expect("a test's thread has its name").to_owned();
    let child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &name])
        .env(INSIDE, "1")
        .env("KV_STORE_WASM_CONFIG", config.path())
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
    // No hashes of their content: they lie in envelopes.
    let hash = |text: &[u8]| ChunkHash::new(text).unwrap().lying(Layout::Enveloped);
    let hashes = [hash(b"short"), hash(b"long."), hash(b"none."), hash(b"long."), hash(b"short"), hash(b"of 8 len")];
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
    let opened = store.opened().unwrap();
    let (backend, until) = (opened.backend(), || opened.until(None));
    let got = backend.get(&hashes[..3], &mut targets[..3], &until()).unwrap();
    assert!(matches!(got[..], [Ok(Some(Got::Placed(10))), Ok(Some(Got::Placed(100_000))), Ok(None)]));
    let placed = 100_010 + 2 * ENVELOPE_BYTES as usize;
    let expected = counts::of_files(scratch.path(), placed);
    assert_eq!(counts::take(), expected, "no more than that is copied on the way");
    // Another width is another call.
    let mut others = [Target::ALLOCATE, targets[3], Target::ALLOCATE];
    let got = backend.get(&hashes[3..], &mut others, &until()).unwrap();
    assert!(matches!(&got[..], [Ok(Some(Got::Buffer(data))), Ok(Some(Got::TooLong(10)))] if data[..] == long[..]));
    assert!(memory[..10] == *b"0123456789" && memory[10..100_010] == long[..]);
    // The envelope came behind the value, where there was room.
    assert!(memory[100_010 + ENVELOPE_BYTES as usize..].iter().all(|byte| *byte == 0));
}
