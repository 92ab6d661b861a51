//! Variables: what each of AIBrix's names means here. The table in `docs/blocks.md` is checked against this one.

use serde::Deserialize;
use serde::de::IntoDeserializer;
use serde::de::value::Error as ValueError;

use super::Config;
use crate::error::{Error, Result};

/// The names that a variable may have: ours, which wins, the one that ours had in 0.2, and AIBrix's own.
const OURS: &str = "KV_BLOCKS_";
/// It is that of the token-exact cache, which reads no variables. It goes with 0.4.
const FORMER: &str = "KV_CACHE_";
const AIBRIX: &str = "AIBRIX_KV_CACHE_OL_";

type Set = fn(&mut Config, &str) -> std::result::Result<(), String>;

/// What a variable does.
pub(super) enum Effect {
    /// It sets a value.
    Sets(Set),
    /// It has no effect, and this is why.
    None(&'static str),
}

use Effect::{None as Unused, Sets};

/// Every variable of AIBrix's documentation, without its prefix, and ours.
pub(super) const VARIABLES: &[(&str, Effect)] = &[
    ("CHUNK_SIZE", Sets(|config, text| number(text).map(|value| config.chunk_size = value))),
    ("BLOCK_SIZE", Sets(|config, text| number(text).map(|value| config.block_size = value))),
    ("MAX_SEQ_LEN", Sets(|config, text| number(text).map(|value| config.max_seq_len = value))),
    ("TIME_MEASUREMENT_ENABLED", Sets(|config, text| switch(text).map(|value| config.time_measurement = value))),
    (
        "BREAKDOWN_MEASUREMENT_ENABLED",
        Sets(|config, text| switch(text).map(|value| config.breakdown_measurement = value)),
    ),
    ("DOUBLE_GET_THRESHOLD", Sets(|config, text| pair(text).map(|value| config.double_get_threshold = value))),
    ("TOKEN_VALIDATION_ENABLED", Sets(|config, text| switch(text).map(|value| config.token_validation = value))),
    ("TRANSPORT_RDMA_ADDR_RANGE", Unused("transports are the backend's")),
    ("PROFILING_ENABLED", Unused("no profiler is built in; `perf` sees the functions")),
    ("PROFILING_SERVER_ADDRESS", Unused("no profiler is built in")),
    ("L1_CACHE_ENABLED", Sets(|config, text| switch(text).map(|value| config.l1.enabled = value))),
    ("L1_CACHE_EVICTION_POLICY", Sets(|config, text| named(text).map(|value| config.l1.eviction_policy = value))),
    ("L1_CACHE_CAPACITY_GB", Sets(|config, text| number(text).map(|value| config.l1.capacity_gb = value))),
    (
        "DEVICE",
        Sets(|_, text| match text {
            "cpu" => Ok(()),
            _ => Err("blocks are in the memory of the CPU: cpu".to_owned()),
        }),
    ),
    (
        "S3FIFO_SMALL_TO_MAIN_PROMO_THRESHOLD",
        Sets(|config, text| number(text).map(|value| config.l1.s3fifo_promotion_threshold = value)),
    ),
    (
        "S3FIFO_SMALL_FIFO_CAPACITY_RATIO",
        Sets(|config, text| number(text).map(|value| config.l1.s3fifo_small_ratio = value)),
    ),
    (
        "L2_CACHE_BACKEND",
        Sets(|config, text| {
            text.clone_into(&mut config.l2.backend);
            Ok(())
        }),
    ),
    (
        "L2_CACHE_NAMESPACE",
        Sets(|config, text| {
            text.clone_into(&mut config.l2.namespace);
            Ok(())
        }),
    ),
    ("L2_CACHE_OP_BATCH", Sets(|config, text| number(text).map(|value| config.l2.op_batch = value))),
    (
        "L2_CACHE_PER_TOKEN_TIMEOUT_MS",
        Sets(|config, text| number(text).map(|value| config.l2.per_token_timeout_ms = value)),
    ),
    ("L2_CACHE_KEY_BUILDER", Sets(|config, text| named(text).map(|value| config.l2.key_builder = value))),
    ("L2_CACHE_KEY_HASH", Sets(|config, text| named(text).map(|value| config.l2.key_hash = value))),
    ("L2_CACHE_INGESTION_TYPE", Sets(|config, text| named(text).map(|value| config.l2.ingestion_type = value))),
    (
        "L2_CACHE_INGESTION_MAX_INFLIGHT_TOKENS",
        Sets(|config, text| number(text).map(|value| config.l2.ingestion_max_inflight_tokens = value)),
    ),
    ("L2_CACHE_NUM_ASYNC_WORKERS", Sets(|config, text| number(text).map(|value| config.l2.num_async_workers = value))),
    ("L2_CACHE_PLACEMENT_POLICY", Unused(PLACEMENT)),
    ("META_SERVICE_BACKEND", Unused(PLACEMENT)),
    ("META_SERVICE_REFRESH_INTERVAL_S", Unused(PLACEMENT)),
    ("META_SERVICE_URL", Unused(PLACEMENT)),
    ("META_SERVICE_CLUSTER_META_KEY", Unused(PLACEMENT)),
    ("INFINISTORE_HOST_ADDR", Unused(CONNECTOR)),
    ("INFINISTORE_SERVICE_PORT", Unused(CONNECTOR)),
    ("INFINISTORE_CONNECTION_TYPE", Unused(CONNECTOR)),
    ("INFINISTORE_IB_PORT", Unused(CONNECTOR)),
    ("INFINISTORE_LINK_TYPE", Unused(CONNECTOR)),
    ("INFINISTORE_VISIBLE_DEV_LIST", Unused(CONNECTOR)),
    ("HPKV_REMOTE_ADDR", Unused(CONNECTOR)),
    ("HPKV_REMOTE_PORT", Unused(CONNECTOR)),
    ("HPKV_LOCAL_ADDR", Unused(CONNECTOR)),
    ("HPKV_LOCAL_PORT", Unused(CONNECTOR)),
    ("PRIS_REMOTE_ADDR", Unused(CONNECTOR)),
    ("PRIS_REMOTE_PORT", Unused(CONNECTOR)),
    ("PRIS_USE_MPUT_MGET", Unused(CONNECTOR)),
    ("PRIS_PASSWORD", Unused(CONNECTOR)),
    ("EIC_CONFIG_FILE", Unused(CONNECTOR)),
    ("MOCK_USE_RDMA", Unused(CONNECTOR)),
    ("MOCK_USE_MPUT_MGET", Unused(CONNECTOR)),
    ("MOCK_USE_NOOP", Unused("the far level `noop` is always without effect: L2_CACHE_BACKEND=noop")),
    ("ROCKSDB_ROOT", Unused(CONNECTOR)),
    ("ROCKSDB_TTL_S", Unused(CONNECTOR)),
    ("ROCKSDB_WRITE_BUFFER_SIZE", Unused(CONNECTOR)),
    ("ROCKSDB_TARGET_FILE_SIZE_BASE", Unused(CONNECTOR)),
    ("ROCKSDB_MAX_WRITE_BUFFER_NUMBER", Unused(CONNECTOR)),
    ("ROCKSDB_MAX_TOTAL_WAL_SIZE", Unused(CONNECTOR)),
    ("ROCKSDB_MAX_BACKGROUND_JOBS", Unused(CONNECTOR)),
];

const PLACEMENT: &str =
    "placement and membership are those of the engine behind the backend: Redis Cluster or Mooncake";
const CONNECTOR: &str = "vendor connectors are not built in; the backend is a store's URI, with options of its own";

/// AIBrix's names of backends that are no URIs.
const CONNECTORS: [&str; 6] = ["INFINISTORE", "HPKV", "PRIS", "EIC", "ROCKSDB", "SHFS"];

pub(super) fn apply(config: &mut Config, variable: &dyn Fn(&str) -> Option<String>) -> Result<()> {
    for prefix in [AIBRIX, FORMER, OURS] {
        for (name, effect) in VARIABLES {
            let whole = format!("{prefix}{name}");
            let Some(text) = variable(&whole) else { continue };
            if prefix == FORMER {
                config.former.push(format!("{whole} is now {OURS}{name}, and will be ignored from 0.4 on"));
            }
            let named = |problem: String| Error::invalid(format!("{whole} is {text:?}; {problem}"));
            match effect {
                Sets(set) => {
                    let made_sense = config.check().is_ok();
                    set(config, text.trim()).map_err(named)?;
                    // What the file has got wrong is not the variable's doing.
                    config.check().or_else(|error| if made_sense { Err(named(error.to_string())) } else { Ok(()) })?;
                }
                Unused(why) => config.ignored.push(format!("{whole} has no effect: {why}")),
            }
        }
    }
    if CONNECTORS.contains(&config.l2.backend.as_str()) {
        let backend = &config.l2.backend;
        let message =
            format!("L2_CACHE_BACKEND, or l2.backend: {backend} is a connector of AIBrix; here it is a store's URI");
        return Err(Error::invalid(message));
    }
    if config.l2.backend == "MOCK" {
        "noop".clone_into(&mut config.l2.backend);
    }
    Ok(())
}

fn number<T: std::str::FromStr>(text: &str) -> std::result::Result<T, String> {
    text.parse().map_err(|_| "it needs to be a number".to_owned())
}

fn switch(text: &str) -> std::result::Result<bool, String> {
    match text.to_ascii_lowercase().as_str() {
        "1" | "true" | "yes" | "on" => Ok(true),
        "" | "0" | "false" | "no" | "off" => Ok(false),
        _ => Err("it needs to be 1 or 0".to_owned()),
    }
}

fn pair(text: &str) -> std::result::Result<(usize, f64), String> {
    let problem = || "it needs to be a number of blocks, a comma, and a fraction, as in 4,0.1".to_owned();
    let (blocks, fraction) = match text.split_once(',') {
        Some((blocks, fraction)) => (blocks, fraction.trim().parse().map_err(|_| problem())?),
        None => (text, 0.0),
    };
    Ok((blocks.trim().parse().map_err(|_| problem())?, fraction))
}

fn named<T: for<'de> Deserialize<'de>>(text: &str) -> std::result::Result<T, String> {
    T::deserialize(text.into_deserializer()).map_err(|error: ValueError| error.to_string())
}
