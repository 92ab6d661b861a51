//! What a cache is opened with: TOML, variables, or the same as a struct.
//!
//! Later sources win: defaults, the TOML, `AIBRIX_KV_CACHE_OL_<NAME>`, `KV_BLOCKS_<NAME>` (before 0.3 `KV_CACHE_<NAME>`). `docs/blocks.md` has every name. An unknown
//! key, or a value that cannot be read, is an error: a misspelt bound must not be a bound that is not there.

mod env;

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;

use crate::error::{Error, Result};
use crate::key::{KeyBuilder, KeyHash};
use crate::limits;
use crate::policy::{PolicyKind, S3FifoOptions};

/// The config of a cache.
///
/// ```
/// let config = kv_blocks::Config::parse(r#"
///     block_size = 16
///     [l1]
///     capacity_gb = 0.5
///     [l2]
///     backend = "redis://cache.svc:6379/3"
///     namespace = "tenant-7"
///     ingestion_type = "ALL"
/// "#).unwrap();
/// assert_eq!(config.l1.capacity_bytes(), 512 << 20);
/// ```
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Tokens of one pass, rounded down to whole blocks, at least 4 blocks. 512.
    pub chunk_size: usize,
    /// Tokens of a block; -1: those of the engine, which the [`Spec`](crate::Spec) says.
    pub block_size: i64,
    /// Tokens of a prompt beyond which the rest is ignored; -1: 16,777,216.
    pub max_seq_len: i64,
    /// Measure how long operations take.
    pub time_measurement: bool,
    /// Measure the stages of operations.
    pub breakdown_measurement: bool,
    /// The far level is asked for what the near one has not if that is at least so many blocks, and at least this fraction of the
    /// query. (4, 0.1). Without a near level it is always asked.
    pub double_get_threshold: (usize, f64),
    /// Store the tokens with each block, and compare them when it is found, in both levels.
    pub token_validation: bool,
    /// The near level.
    pub l1: NearConfig,
    /// The far level.
    pub l2: FarConfig,
    /// What the engine says of its blocks, beside what the spec says: texts by the names of a descriptor's fields (`docs/envelope.md`). Who makes a
    /// far level of `l2.backend` says it of its values.
    pub descriptor: BTreeMap<String, String>,
    /// Variables that were found and have no effect here, each with why. Nothing to set.
    #[serde(skip)]
    pub ignored: Vec<String>,
    /// Variables that were found under the name that they had in 0.2, each with its new one. Nothing to set.
    #[serde(skip)]
    pub former: Vec<String>,
}

/// The near level: the table `[l1]`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NearConfig {
    /// Whether there is one.
    pub enabled: bool,
    /// What is given up first.
    pub eviction_policy: PolicyKind,
    /// Its blocks, in GiB.
    pub capacity_gb: f64,
    /// Of S3-FIFO: accesses until an entry is moved from the small queue to the main one, 1 to 3.
    pub s3fifo_promotion_threshold: u8,
    /// Of S3-FIFO: the share of the small queue, above 0 and below 1.
    pub s3fifo_small_ratio: f64,
}

/// The far level: the table `[l2]`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FarConfig {
    /// A store's URI; `noop` for a far level that keeps nothing; empty for none. Who opens the cache makes a far level of it.
    pub backend: String,
    /// Blocks of two namespaces never meet.
    pub namespace: String,
    /// Blocks of one batch. 32.
    pub op_batch: usize,
    /// The time for a get, an existence check or a removal, for each token asked for. 20.
    pub per_token_timeout_ms: u64,
    /// How keys are built.
    pub key_builder: KeyBuilder,
    /// What keys are hashed with.
    pub key_hash: KeyHash,
    /// Which blocks are written to it.
    pub ingestion_type: Ingestion,
    /// Tokens that may be on their way to it; what comes on top is dropped and counted. 0: a call waits for its writes.
    pub ingestion_max_inflight_tokens: usize,
    /// Threads of a far level that blocks. 8.
    pub num_async_workers: usize,
}

/// Which blocks are written to the far level.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub enum Ingestion {
    /// Each that is put.
    #[serde(rename = "ALL")]
    All,
    /// Each at its hot access.
    #[default]
    #[serde(rename = "HOT")]
    Hot,
    /// Each that the near level gives up.
    #[serde(rename = "EVICTED")]
    Evicted,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            chunk_size: 512,
            block_size: -1,
            max_seq_len: -1,
            time_measurement: true,
            breakdown_measurement: true,
            double_get_threshold: (4, 0.1),
            token_validation: false,
            l1: NearConfig::default(),
            l2: FarConfig::default(),
            descriptor: BTreeMap::new(),
            ignored: Vec::new(),
            former: Vec::new(),
        }
    }
}

impl Default for NearConfig {
    fn default() -> Self {
        let S3FifoOptions { promotion, small_ratio } = S3FifoOptions::default();
        NearConfig {
            enabled: true,
            eviction_policy: PolicyKind::default(),
            capacity_gb: 10.0,
            s3fifo_promotion_threshold: promotion,
            s3fifo_small_ratio: small_ratio,
        }
    }
}

impl Default for FarConfig {
    fn default() -> Self {
        FarConfig {
            backend: String::new(),
            namespace: "aibrix".to_owned(),
            op_batch: 32,
            per_token_timeout_ms: 20,
            key_builder: KeyBuilder::default(),
            key_hash: KeyHash::default(),
            ingestion_type: Ingestion::default(),
            ingestion_max_inflight_tokens: 0,
            num_async_workers: 8,
        }
    }
}

impl NearConfig {
    /// Its capacity in bytes.
    pub fn capacity_bytes(&self) -> u64 {
        (self.capacity_gb * f64::from(1 << 30)) as u64
    }

    pub(crate) fn s3fifo(&self) -> S3FifoOptions {
        S3FifoOptions { promotion: self.s3fifo_promotion_threshold, small_ratio: self.s3fifo_small_ratio }
    }
}

impl FarConfig {
    /// The time for so many tokens.
    pub(crate) fn time_for(&self, tokens: usize) -> Duration {
        // A day is as good as for ever, and is no overflow anywhere.
        Duration::from_millis(self.per_token_timeout_ms.saturating_mul(tokens as u64).min(86_400_000))
    }
}

impl Config {
    /// Read a config from TOML alone.
    pub fn parse(toml: &str) -> Result<Self> {
        Config::read(toml, |_| None)
    }

    /// Read a config from TOML, and from variables that `variable` looks up by their whole names.
    pub fn read(toml: &str, variable: impl Fn(&str) -> Option<String>) -> Result<Self> {
        if toml.len() > limits::MAX_CONFIG_BYTES {
            return Err(Error::invalid(format!("the config has more than {} bytes", limits::MAX_CONFIG_BYTES)));
        }
        let mut config: Config =
            toml::from_str(toml).map_err(|cause| Error::invalid(format!("the config: {}", one_line(&cause))))?;
        env::apply(&mut config, &variable)?;
        config.check()?;
        Ok(config)
    }

    /// Read a config from TOML, and from the variables of this process.
    pub fn from_env(toml: &str) -> Result<Self> {
        Config::read(toml, |name| std::env::var(name).ok())
    }

    /// Refuse values that make no sense.
    pub(crate) fn check(&self) -> Result<()> {
        let Config { l1, l2, .. } = self;
        let within = |name: &str, ok: bool, range: &str| match ok {
            true => Ok(()),
            false => Err(Error::invalid(format!("{name} is out of range: {range}"))),
        };
        let most_tokens = limits::MAX_SEQ_TOKENS as i64;
        within("chunk_size", (1..=limits::MAX_SEQ_TOKENS).contains(&self.chunk_size), "1 to 16777216 tokens")?;
        let block = self.block_size;
        within(
            "block_size",
            block == -1 || (1..=limits::MAX_BLOCK_TOKENS as i64).contains(&block),
            "-1, or 1 to 65536",
        )?;
        let longest = self.max_seq_len;
        within("max_seq_len", longest == -1 || (1..=most_tokens).contains(&longest), "-1, or 1 to 16777216")?;
        let (blocks, fraction) = self.double_get_threshold;
        within(
            "double_get_threshold",
            blocks <= limits::MAX_SEQ_TOKENS && (0.0..=1.0).contains(&fraction),
            "blocks, and 0 to 1",
        )?;
        within("l1.capacity_gb", l1.capacity_gb >= 0.0 && l1.capacity_gb <= 1048576.0, "0 to 1048576")?;
        within("l1.s3fifo_promotion_threshold", (1..=3).contains(&l1.s3fifo_promotion_threshold), "1 to 3")?;
        let ratio = l1.s3fifo_small_ratio;
        within("l1.s3fifo_small_ratio", ratio > 0.0 && ratio < 1.0, "above 0 and below 1")?;
        within("l2.namespace", (1..=limits::MAX_NAME_BYTES).contains(&l2.namespace.len()), "1 to 1024 bytes")?;
        within("l2.op_batch", (1..=limits::MAX_BATCH).contains(&l2.op_batch), "1 to 4096")?;
        within("l2.num_async_workers", (1..=limits::MAX_WORKERS).contains(&l2.num_async_workers), "1 to 256")
    }

    /// Tokens of a block; `of_the_engine`: those of the engine, as the spec says them.
    pub(crate) fn block_tokens(&self, of_the_engine: usize) -> Result<usize> {
        let tokens = usize::try_from(self.block_size).unwrap_or(of_the_engine);
        if (1..=limits::MAX_BLOCK_TOKENS).contains(&tokens) {
            return Ok(tokens);
        }
        let message =
            format!("a block has {tokens} tokens: set block_size, or block_tokens of the spec, to 1 to 65536");
        Err(Error::invalid(message))
    }

    /// The most tokens of a prompt.
    pub(crate) fn max_tokens(&self) -> usize {
        usize::try_from(self.max_seq_len).unwrap_or(limits::MAX_SEQ_TOKENS)
    }
}

/// An error of TOML without its picture of the text.
fn one_line(cause: &toml::de::Error) -> String {
    cause.message().lines().next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests;
