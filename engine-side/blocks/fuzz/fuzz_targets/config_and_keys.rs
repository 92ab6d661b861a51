//! Any bytes as a config, and as tokens: refused or read, never a panic; keys of the same tokens are the same however they are
//! cut, and are keys that a store takes.

#![no_main]

use kv_blocks::{Cache, Config, Spec};
use libfuzzer_sys::fuzz_target;

/// Variables, so that their values are reached without finding their names first.
const VARIABLES: [&str; 6] = [
    "KV_BLOCKS_DOUBLE_GET_THRESHOLD",
    "KV_BLOCKS_L2_CACHE_KEY_BUILDER",
    "KV_BLOCKS_L2_CACHE_KEY_HASH",
    "KV_BLOCKS_BLOCK_SIZE",
    "AIBRIX_KV_CACHE_OL_L1_CACHE_CAPACITY_GB",
    "KV_BLOCKS_TOKEN_VALIDATION_ENABLED",
];

fuzz_target!(|bytes: &[u8]| {
    let mut parts = bytes.splitn(VARIABLES.len() + 2, |byte| *byte == 0);
    let toml = String::from_utf8_lossy(parts.next().unwrap_or_default());
    let values: Vec<String> =
        parts.by_ref().take(VARIABLES.len()).map(|value| String::from_utf8_lossy(value).into_owned()).collect();
    let variable = |name: &str| {
        let at = VARIABLES.iter().position(|of| *of == name)?;
        values.get(at).filter(|value| !value.is_empty()).cloned()
    };
    let Ok(mut config) = Config::read(&toml, variable) else { return };
    // No fuzzer needs gigabytes.
    config.l1.capacity_gb = config.l1.capacity_gb.min(0.0001);
    let Ok(cache) = Cache::open(config, Spec::new("model", 3, 8), None) else { return };
    let tokens: Vec<i32> = parts.next().unwrap_or_default().iter().map(|byte| i32::from(*byte) << 5).collect();
    let whole = cache.keys().of(&[], &tokens);
    let block = cache.block_tokens();
    assert_eq!(whole.len(), tokens.len() / block);
    let cut = whole.len() / 2;
    let (prefix, query) = tokens.split_at(cut * block);
    assert_eq!(cache.keys().of(prefix, query), whole[cut..]);
    let blocks = vec![&[7; 8][..]; whole.len()];
    let taken = cache.put(&[], &tokens, &blocks).expect("the call makes sense");
    assert!(taken <= whole.len() * block && cache.exists(&[], &tokens).expect("it is open") <= taken);
});
