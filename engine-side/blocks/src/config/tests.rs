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
        ("KV_BLOCKS_CHUNK_SIZE", "128"),
        ("AIBRIX_KV_CACHE_OL_L1_CACHE_EVICTION_POLICY", "LRU"),
        ("KV_BLOCKS_DOUBLE_GET_THRESHOLD", "2, 0.5"),
        ("KV_BLOCKS_L2_CACHE_KEY_HASH", "sha256"),
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
        ("KV_BLOCKS_CHUNK_SIZE", "many"),
        ("KV_BLOCKS_CHUNK_SIZE", "0"),
        ("KV_BLOCKS_BLOCK_SIZE", "-2"),
        ("KV_BLOCKS_MAX_SEQ_LEN", "0"),
        ("KV_BLOCKS_DOUBLE_GET_THRESHOLD", "4,1.5"),
        ("KV_BLOCKS_TOKEN_VALIDATION_ENABLED", "maybe"),
        ("KV_BLOCKS_DEVICE", "cuda"),
        ("KV_BLOCKS_L1_CACHE_EVICTION_POLICY", "MRU"),
        ("KV_BLOCKS_L1_CACHE_CAPACITY_GB", "-1"),
        ("KV_BLOCKS_L1_CACHE_CAPACITY_GB", "NaN"),
        ("KV_BLOCKS_S3FIFO_SMALL_TO_MAIN_PROMO_THRESHOLD", "4"),
        ("KV_BLOCKS_S3FIFO_SMALL_FIFO_CAPACITY_RATIO", "1"),
        ("KV_BLOCKS_L2_CACHE_OP_BATCH", "0"),
        ("KV_BLOCKS_L2_CACHE_NAMESPACE", ""),
        ("KV_BLOCKS_L2_CACHE_KEY_HASH", "Weakened"),
        ("KV_BLOCKS_L2_CACHE_INGESTION_TYPE", "COLD"),
        ("KV_BLOCKS_L2_CACHE_NUM_ASYNC_WORKERS", "0"),
        ("AIBRIX_KV_CACHE_OL_L2_CACHE_BACKEND", "ROCKSDB"),
    ] {
        assert_eq!(with(&[(name, text)]).unwrap_err().kind(), crate::ErrorKind::Invalid, "{name}={text}");
    }
    assert!(with(&[("KV_BLOCKS_CHUNK_SIZE", "many")]).unwrap_err().to_string().contains("KV_BLOCKS_CHUNK_SIZE"));
    for text in ["chunk_sise = 1", "[l1]\ncapacity = 1", "[l3]", "x", "ignored = ['x']"] {
        assert!(Config::parse(text).is_err(), "{text}");
    }
}

/// Each variable that sets something: a value, whether a config has it, and a value that cannot be.
type Row = (&'static str, &'static str, fn(&Config) -> bool, &'static str);

const ROWS: &[Row] = &[
    ("CHUNK_SIZE", "64", |config| config.chunk_size == 64, "16777217"),
    ("BLOCK_SIZE", "32", |config| config.block_size == 32, "65537"),
    ("MAX_SEQ_LEN", "4096", |config| config.max_seq_len == 4096, "0"),
    ("TIME_MEASUREMENT_ENABLED", "0", |config| !config.time_measurement, "2"),
    ("BREAKDOWN_MEASUREMENT_ENABLED", "False", |config| !config.breakdown_measurement, "never"),
    ("DOUBLE_GET_THRESHOLD", "2,0.25", |config| config.double_get_threshold == (2, 0.25), "4;0.1"),
    ("TOKEN_VALIDATION_ENABLED", "1", |config| config.token_validation, "maybe"),
    ("L1_CACHE_ENABLED", "0", |config| !config.l1.enabled, "-1"),
    ("L1_CACHE_EVICTION_POLICY", "FIFO", |config| config.l1.eviction_policy == PolicyKind::Fifo, "MRU"),
    ("L1_CACHE_CAPACITY_GB", "0.5", |config| config.l1.capacity_bytes() == 1 << 29, "inf"),
    ("DEVICE", "cpu", |config| *config == Config::default(), "cuda"),
    ("S3FIFO_SMALL_TO_MAIN_PROMO_THRESHOLD", "3", |config| config.l1.s3fifo_promotion_threshold == 3, "0"),
    ("S3FIFO_SMALL_FIFO_CAPACITY_RATIO", "0.1", |config| config.l1.s3fifo_small_ratio == 0.1, "0"),
    ("L2_CACHE_BACKEND", "redis://h/1", |config| config.l2.backend == "redis://h/1", "HPKV"),
    ("L2_CACHE_NAMESPACE", "tenant", |config| config.l2.namespace == "tenant", ""),
    ("L2_CACHE_OP_BATCH", "4096", |config| config.l2.op_batch == 4096, "4097"),
    ("L2_CACHE_PER_TOKEN_TIMEOUT_MS", "0", |config| config.l2.per_token_timeout_ms == 0, "-1"),
    ("L2_CACHE_KEY_BUILDER", "RAW", |config| config.l2.key_builder == KeyBuilder::Raw, "HASH"),
    ("L2_CACHE_KEY_HASH", "farm128", |config| config.l2.key_hash == KeyHash::Farm128, "md5"),
    ("L2_CACHE_INGESTION_TYPE", "EVICTED", |config| config.l2.ingestion_type == Ingestion::Evicted, "COLD"),
    ("L2_CACHE_INGESTION_MAX_INFLIGHT_TOKENS", "77", |config| config.l2.ingestion_max_inflight_tokens == 77, "1.5"),
    ("L2_CACHE_NUM_ASYNC_WORKERS", "256", |config| config.l2.num_async_workers == 256, "257"),
];

#[test]
fn each_variable_sets_its_value_and_a_bad_one_is_named() {
    let sets = env::VARIABLES.iter().filter(|(_, effect)| matches!(effect, env::Effect::Sets(_)));
    let (names, rows): (Vec<&str>, Vec<&str>) = sets.map(|row| row.0).zip(ROWS.iter().map(|row| row.0)).unzip();
    assert_eq!((names, ROWS.len()), (rows, 22), "a row for each, in the order of the table");
    for prefix in ["KV_BLOCKS_", "KV_CACHE_", "AIBRIX_KV_CACHE_OL_"] {
        for &(name, good, is_set, bad) in ROWS {
            let whole = format!("{prefix}{name}");
            let config = with(&[(whole.as_str(), good)]).unwrap_or_else(|error| panic!("{whole}={good}: {error}"));
            assert_eq!(config.former.len(), usize::from(prefix == "KV_CACHE_"), "{whole}");
            let config = Config { former: Vec::new(), ..config };
            assert!(is_set(&config) && config.ignored.is_empty(), "{whole}={good}: {config:?}");
            // Blanks around a value mean nothing.
            let blanks = with(&[(whole.as_str(), format!(" {good}\n").as_str())]).unwrap();
            assert_eq!(Config { former: Vec::new(), ..blanks }, config, "{whole}");
            let error = with(&[(whole.as_str(), bad)]).unwrap_err();
            assert!(error.to_string().contains(name), "{whole}={bad}: {error}");
            assert!(Config::default() == with(&[(name, bad)]).unwrap(), "without a prefix it is nobody's");
        }
        for (name, _) in env::VARIABLES.iter().filter(|(_, effect)| matches!(effect, env::Effect::None(_))) {
            let config = with(&[(format!("{prefix}{name}").as_str(), "anything")]).unwrap();
            assert!(config.ignored.len() == 1 && config.ignored[0].starts_with(&format!("{prefix}{name} ")), "{name}");
            assert_eq!(Config { ignored: Vec::new(), former: Vec::new(), ..config }, Config::default(), "{name}");
        }
    }
}

/// 0.2 took `KV_CACHE_<NAME>`, which is the name of another cache.
#[test]
fn a_variable_of_0_2_works_and_is_told_its_new_name() {
    let config = with(&[("KV_CACHE_CHUNK_SIZE", "128"), ("AIBRIX_KV_CACHE_OL_CHUNK_SIZE", "64")]).unwrap();
    assert_eq!(config.chunk_size, 128);
    assert_eq!(config.former, ["KV_CACHE_CHUNK_SIZE is now KV_BLOCKS_CHUNK_SIZE, and will be ignored from 0.4 on"]);
    let both = with(&[("KV_CACHE_CHUNK_SIZE", "128"), ("KV_BLOCKS_CHUNK_SIZE", "256")]).unwrap();
    assert_eq!((both.chunk_size, both.former.len()), (256, 1), "ours wins");
    assert!(with(&[("KV_BLOCKS_CHUNK_SIZE", "256")]).unwrap().former.is_empty());
}

#[test]
fn a_variable_is_not_blamed_for_the_file_and_may_mend_it() {
    let read = |name: &'static str, text: &'static str| {
        Config::read("chunk_size = 0", move |asked| (asked == name).then(|| text.to_owned()))
    };
    let error = read("KV_BLOCKS_MAX_SEQ_LEN", "9").unwrap_err().to_string();
    assert!(error.contains("chunk_size") && !error.contains("MAX_SEQ_LEN"), "{error}");
    assert_eq!(read("KV_BLOCKS_CHUNK_SIZE", "9").unwrap().chunk_size, 9);
}

#[test]
fn the_time_for_tokens_is_exact_and_at_most_a_day() {
    let far = |per_token_timeout_ms| FarConfig { per_token_timeout_ms, ..FarConfig::default() };
    for (each, tokens, milliseconds) in [
        (0, 1 << 20, 0),
        (20, 0, 0),
        (20, 1, 20),
        (20, 512, 10_240),
        (1, 86_400_001, 86_400_000),
        (u64::MAX, 2, 86_400_000),
    ] {
        assert_eq!(far(each).time_for(tokens), Duration::from_millis(milliseconds), "{tokens} tokens of {each} ms");
    }
}

/// The page names every variable, and says of each what the code does.
#[test]
fn the_page_has_every_variable() {
    let page = include_str!("../../../../docs/blocks.md");
    for (name, effect) in env::VARIABLES {
        let row = page.lines().find(|line| line.starts_with(&format!("| `{name}`")));
        let row = row.unwrap_or_else(|| panic!("docs/blocks.md has no row of {name}"));
        assert_eq!(row.contains("not used"), matches!(effect, env::Effect::None(_)), "{row}");
    }
    let rows = page.lines().filter(|line| line.starts_with("| `") && line.matches('|').count() == 5);
    assert_eq!(rows.count(), env::VARIABLES.len(), "and names no other");
}
