//! Shares of what the process has: tenants whose server is down hold their share of the write buffers, and another tenant's saves go on.
//! A process of its own, for the budgets are the process's.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test that fails panics")]

use std::time::{Duration, Instant};

use kv_store_tests::redis::RedisServer;
use kv_store_tests::{Handle, Library, library_path, metrics};

/// `PROCESS_WRITE_BUFFER_BYTES` of docs/limits.md, and what the stores of one tenant may have of it.
const OF_PROCESS: usize = 512 << 20;
const OF_TENANT: usize = OF_PROCESS / 2;
const LARGE: usize = 4 << 20;
const SMALL: usize = 64 << 10;

/// What is held of write buffers by all stores of the process.
fn held(library: &Library) -> usize {
    let text = metrics(library);
    let line = text.lines().find_map(|line| line.strip_prefix("kv_store_write_buffer_bytes "));
    line.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("{text}"))
}

/// Put until nothing more is accepted, on each handle. Returns how many of them accepted something.
fn fill(handles: &[Handle], data: &[u8]) -> usize {
    let accepts = |handle: &Handle, at: usize| -> bool {
        // The small ones fill what the large ones leave.
        let (mut accepted, mut number) = (false, 0_u32);
        for size in [LARGE, SMALL] {
            while handle.put_chunk(&[at as u32, number].map(u32::to_le_bytes).concat(), &data[..size]).unwrap() == 0 {
                (accepted, number) = (true, number + 1);
            }
        }
        accepted
    };
    handles.iter().enumerate().filter(|(at, handle)| accepts(handle, *at)).count()
}

#[test]
fn tenants_whose_server_is_down_leave_another_its_saves() {
    // A tenant of redis has a password.
    let [down, well] = ["down", "well"].map(|_| RedisServer::start(&["--requirepass", "word"]));
    let stores = [(down.port, 1), (down.port, 2), (well.port, 1)];
    let uris = stores.map(|(port, database)| format!("redis://127.0.0.1:{port}/{database}"));
    let scratch = tempfile::tempdir().unwrap();
    let config = scratch.path().join("config.toml");
    let tenant =
        |uri: &String| format!("[[tenant]]\nuri = '{uri}'\nsecrets.password = {{ env = 'SHARES_PASSWORD' }}\n");
    std::fs::write(&config, uris.each_ref().map(tenant).concat()).unwrap();
    // SAFETY: the library is loaded after this, and nothing else reads the environment.
    unsafe {
        std::env::set_var("KV_STORE_WASM_CONFIG", &config);
        std::env::set_var("KV_STORE_WASM_CACHE", scratch.path().join("cache"));
        std::env::set_var("SHARES_PASSWORD", "word");
    }
    let library = Library::load(&library_path()).unwrap();
    let eight = |uri: &str| -> Vec<Handle> { (0..8).map(|_| library.open(uri).expect("it opens")).collect() };
    let (first, second) = (eight(&uris[0]), eight(&uris[1]));
    drop(down);
    let data = vec![7; LARGE];

    let filled = fill(&first, &data);
    let of_first = held(&library);
    assert!(of_first <= OF_TENANT, "one tenant holds {of_first} bytes");
    assert!(of_first > OF_TENANT - 2 * SMALL, "one tenant may hold no more than {of_first} bytes");
    assert!((4..8).contains(&filled), "{filled} of 8 handles, each of 64 MiB, fill the share");

    let healthy = library.open(&uris[2]).expect("it opens");
    let stored = || well.ask("AUTH word\r\nSELECT 1\r\nDBSIZE");
    // A small one: a helper stores much at once before it is asked to.
    let small = &data[..SMALL];
    assert_eq!(healthy.put_chunk(b"waits", small).unwrap(), 0);
    let of_both = held(&library);
    assert!(
        of_both >= of_first + SMALL && stored().contains(":0"),
        "a healthy tenant's chunk does not wait: {of_both} bytes are held, {of_first} before; the server has {:?}",
        stored()
    );
    assert_eq!(healthy.put_manifest("m", b"x").unwrap(), 0);
    assert!(healthy.get_chunk(b"waits").unwrap().as_deref() == Ok(small), "it is not what was put");

    // With all of it held, a chunk is stored at once.
    fill(&second, &data);
    let all = held(&library);
    assert!(all <= OF_PROCESS && all > OF_PROCESS - 4 * SMALL, "the process holds {all} bytes");
    assert!(stored().contains(":2"), "{}", stored());
    assert_eq!(healthy.put_chunk(b"at once", &data).unwrap(), 0);
    assert!(stored().contains(":3"), "a chunk for which there is no buffer is not stored at once");
    assert_eq!(healthy.put_manifest("m", b"y").unwrap(), 0);

    drop((first, second));
    // A helper may still be at it.
    let begun = Instant::now();
    while held(&library) > 0 {
        assert!(begun.elapsed().as_secs() < 60, "{} bytes are not given back", held(&library));
        std::thread::sleep(Duration::from_millis(20));
    }
}
