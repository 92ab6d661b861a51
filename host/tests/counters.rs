//! What counting costs a call.

#![allow(clippy::expect_used, clippy::unwrap_used, clippy::indexing_slicing)]

mod common;

use kv_store_wasm::{Host, Series, metrics};

/// The most counters that one call of the consumer may add to.
const MOST: usize = 8;

/// The counters of a tenant.
fn series(tenant: &str) -> Series {
    let found = metrics().unwrap().series.into_iter().find(|series| series.tenant.as_deref() == Some(tenant));
    found.expect("the tenant has counters")
}

/// How many counters are other than before. Each is added to once a call, so this is the number of additions; a latency is a bucket
/// and a sum.
fn changed(before: &Series, after: &Series) -> usize {
    let of = |(name, count): (&&str, &u64), before: &std::collections::BTreeMap<&str, u64>| before[*name] != *count;
    let events = after.events.iter().filter(|entry| of(*entry, &before.events)).count();
    let errors = after.errors.iter().filter(|entry| of(*entry, &before.errors)).count();
    let latencies = after.latencies.iter().zip(&before.latencies);
    events + errors + 2 * latencies.filter(|(after, before)| after.count != before.count).count()
}

#[test]
fn a_call_adds_to_at_most_eight_counters() {
    common::prepare();
    let folder = tempfile::tempdir().unwrap();
    let tenant = format!("local-fs://{}", folder.path().display());
    // With each meter that there is: two more additions, of the operation and of its bytes.
    let quota = "quota = { bytes_in_per_s = '1GiB', bytes_out_per_s = '1GiB', operations_per_s = 1000000, cpu_ms_per_s = 1000000 }";
    let config = format!("[[tenant]]\nuri = '{tenant}'\n{quota}\n");
    let store = Host::builder().config_text(config).build().unwrap().open(&tenant).unwrap();
    type Call<'a> = (&'a str, &'a dyn Fn());
    let calls: [Call<'_>; 5] = [
        ("put_chunk", &|| assert!(store.put_chunk(b"key", b"value").is_ok())),
        ("put_chunk again", &|| assert!(store.put_chunk(b"key", b"value").is_ok())),
        ("get_chunk", &|| assert!(store.get_chunk(b"key").unwrap().is_some())),
        ("get_chunk of none", &|| assert!(store.get_chunk(b"none").unwrap().is_none())),
        ("put_manifest", &|| store.put_manifest("name", b"key").unwrap()),
    ];
    for (name, call) in calls {
        let before = series(&tenant);
        call();
        let additions = changed(&before, &series(&tenant)) + 2;
        println!("{name}: {additions} additions");
        assert!((3..=MOST).contains(&additions), "{name}: {additions}");
    }
}
