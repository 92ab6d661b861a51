use std::collections::HashMap;

use super::*;

fn with(variables: &[(&str, &str)]) -> Result<Config> {
    let variables: HashMap<&str, &str> = variables.iter().copied().collect();
    Config::read("", |name| variables.get(name).map(|text| (*text).to_owned()))
}

#[test]
fn defaults_are_those_of_aibrix() {
    let config = Config::parse("").unwrap();
    assert_eq!(config, Config::default());
    assert_eq!((config.chunk_size, config.block_size, config.max_seq_len), (512, -1, -1));
    assert_eq!(config.double_get_threshold, (4, 0.1));
    assert!(config.time_measurement && config.breakdown_measurement && !config.token_validation);
    assert_eq!(config.l1.eviction_policy, PolicyKind::S3Fifo);
    assert_eq!((config.l1.s3fifo_promotion_threshold, config.l1.s3fifo_small_ratio), (1, 0.3));
    assert_eq!(config.l1.capacity_bytes(), 10 << 30);
    let FarConfig { namespace, op_batch, per_token_timeout_ms, key_builder, ingestion_type, .. } = config.l2;
    assert_eq!((namespace.as_str(), op_batch, per_token_timeout_ms), ("aibrix", 32, 20));
    assert_eq!((key_builder, ingestion_type), (KeyBuilder::Rolling, Ingestion::Hot));
}

#[test]
fn our_names_win_over_aibrix_own_and_both_over_the_file() {
    let variables = [
        ("AIBRIX_KV_CACHE_OL_CHUNK_SIZE", "64"),
        ("KV_CACHE_CHUNK_SIZE", "128"),
        ("AIBRIX_KV_CACHE_OL_L1_CACHE_EVICTION_POLICY", "LRU"),
        ("KV_CACHE_DOUBLE_GET_THRESHOLD", "2, 0.5"),
        ("KV_CACHE_L2_CACHE_KEY_HASH", "sha256"),
        ("AIBRIX_KV_CACHE_OL_L2_CACHE_BACKEND", "MOCK"),
        ("AIBRIX_KV_CACHE_OL_META_SERVICE_URL", "redis://x"),
    ];
    let find = |name: &str| variables.iter().find(|(of, _)| *of == name).map(|(_, text)| (*text).to_owned());
    let config = Config::read("chunk_size = 32\nmax_seq_len = 99\n[l1]\neviction_policy = 'FIFO'", find).unwrap();
    assert_eq!((config.chunk_size, config.max_seq_len), (128, 99));
    assert_eq!(config.l1.eviction_policy, PolicyKind::Lru);
    assert_eq!(config.double_get_threshold, (2, 0.5));
    assert_eq!((config.l2.key_hash, config.l2.backend.as_str()), (KeyHash::Sha256, "noop"));
    assert!(config.ignored.len() == 1 && config.ignored[0].contains("Redis Cluster"), "{:?}", config.ignored);
}

#[test]
fn what_cannot_be_read_is_an_error_that_names_it() {
    for (name, text) in [
        ("KV_CACHE_CHUNK_SIZE", "many"),
        ("KV_CACHE_CHUNK_SIZE", "0"),
        ("KV_CACHE_BLOCK_SIZE", "-2"),
        ("KV_CACHE_MAX_SEQ_LEN", "0"),
        ("KV_CACHE_DOUBLE_GET_THRESHOLD", "4,1.5"),
        ("KV_CACHE_TOKEN_VALIDATION_ENABLED", "maybe"),
        ("KV_CACHE_DEVICE", "cuda"),
        ("KV_CACHE_L1_CACHE_EVICTION_POLICY", "MRU"),
        ("KV_CACHE_L1_CACHE_CAPACITY_GB", "-1"),
        ("KV_CACHE_L1_CACHE_CAPACITY_GB", "NaN"),
        ("KV_CACHE_S3FIFO_SMALL_TO_MAIN_PROMO_THRESHOLD", "4"),
        ("KV_CACHE_S3FIFO_SMALL_FIFO_CAPACITY_RATIO", "1"),
        ("KV_CACHE_L2_CACHE_OP_BATCH", "0"),
        ("KV_CACHE_L2_CACHE_NAMESPACE", ""),
        ("KV_CACHE_L2_CACHE_KEY_HASH", "Weakened"),
        ("KV_CACHE_L2_CACHE_INGESTION_TYPE", "COLD"),
        ("KV_CACHE_L2_CACHE_NUM_ASYNC_WORKERS", "0"),
        ("AIBRIX_KV_CACHE_OL_L2_CACHE_BACKEND", "ROCKSDB"),
    ] {
        assert_eq!(with(&[(name, text)]).unwrap_err().kind(), crate::ErrorKind::Invalid, "{name}={text}");
    }
    assert!(with(&[("KV_CACHE_CHUNK_SIZE", "many")]).unwrap_err().to_string().contains("KV_CACHE_CHUNK_SIZE"));
    for text in ["chunk_sise = 1", "[l1]\ncapacity = 1", "[l3]", "x", "ignored = ['x']"] {
        assert!(Config::parse(text).is_err(), "{text}");
    }
}

/// The page names every variable, and says of each what the code does.
#[test]
fn the_page_has_every_variable() {
    let page = include_str!("../../../docs/blocks.md");
    for (name, effect) in env::VARIABLES {
        let row = page.lines().find(|line| line.starts_with(&format!("| `{name}`")));
        let row = row.unwrap_or_else(|| panic!("docs/blocks.md has no row of {name}"));
        assert_eq!(row.contains("not used"), matches!(effect, env::Effect::None(_)), "{row}");
    }
    let rows = page.lines().filter(|line| line.starts_with("| `") && line.matches('|').count() == 5);
    assert_eq!(rows.count(), env::VARIABLES.len(), "and names no other");
}
