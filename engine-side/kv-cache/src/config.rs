//! What a cache is opened with: TOML, or the same as a struct. An unknown key is an error, since a misspelt budget must not
//! be a budget that is not there.

use std::path::{Path, PathBuf};

pub use kv_size::Bytes;
use serde::{Deserialize, Serialize};

use crate::descriptor::Descriptor;
use crate::error::{Error, Result};
use crate::kind::TierKind;
use crate::policy::Policy;

/// The config of a cache. At least one tier has to be there.
///
/// ```
/// let config = kv_cache::Config::parse(r#"
///     save_to = "disk"
///     [ram]
///     budget = "4 GiB"
///     [disk]
///     path = "/var/cache/kv"
///     budget = "200 GiB"
///     [policy]
///     boundary_align_tokens = 512
/// "#).unwrap();
/// assert_eq!(config.ram.unwrap().budget.0, 4 << 30);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Where saves go that name no tier; by default the last one that is there, of `ram`, `ram_file`, `disk`.
    pub save_to: Option<TierKind>,
    /// The memory of the process.
    pub ram: Option<MemoryTier>,
    /// A directory on a tmpfs.
    pub ram_file: Option<FileTier>,
    /// A directory on a disk.
    pub disk: Option<FileTier>,
    /// What is worth saving.
    pub policy: Policy,
    /// How many saves may wait, for each tier.
    pub queue: QueueConfig,
    /// Eviction under memory pressure.
    pub pressure: PressureConfig,
    /// What the states are, beside what their keys say.
    pub descriptor: Descriptor,
}

/// The tier `ram`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemoryTier {
    /// Bytes of all rows.
    pub budget: Bytes,
}

/// A tier of files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileTier {
    /// The directory, absolute; made if it is not there.
    pub path: PathBuf,
    /// Bytes of all row files.
    pub budget: Bytes,
    /// Whether the directory is this process's alone, which its lock ensures. `false` is for file systems without locks and
    /// for directories that processes share: rows are then read, never mapped.
    #[serde(default = "yes")]
    pub exclusive: bool,
}

fn yes() -> bool {
    true
}

/// The bounds of a tier's queue of saves. Past them saves are dropped, and counted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct QueueConfig {
    /// Saves. 64.
    pub saves: usize,
    /// Their bytes. 1 GiB.
    pub bytes: Bytes,
}

impl Default for QueueConfig {
    fn default() -> Self {
        QueueConfig { saves: 64, bytes: Bytes(1 << 30) }
    }
}

/// When memory runs short, the oldest rows of `ram` and then of `ram_file` are evicted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PressureConfig {
    /// Who says how much memory is used.
    pub source: PressureKind,
    /// Used/total from which on rows are evicted. 0.85.
    pub high: f64,
    /// Used/total below which that ends. 0.75.
    pub low: f64,
    /// Time between two looks at the source, in milliseconds. 5,000.
    pub interval_ms: u64,
}

impl Eq for PressureConfig {}

impl Default for PressureConfig {
    fn default() -> Self {
        PressureConfig { source: PressureKind::None, high: 0.85, low: 0.75, interval_ms: 5000 }
    }
}

/// Who says how much memory is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PressureKind {
    /// Nobody looks by itself; the caller may, with `relieve` (`kv_cache_relieve` in C).
    #[default]
    None,
    /// The system's memory, as the kernel counts it.
    System,
}

impl Config {
    /// Read a config file.
    pub fn load(path: &Path) -> Result<Config> {
        let text = std::fs::read_to_string(path);
        let text = text.map_err(|error| Error::io(format!("cannot read the config {}", path.display()), error))?;
        Config::parse_named(&text, &path.display().to_string())
    }

    /// Parse the text of a config file.
    pub fn parse(text: &str) -> Result<Config> {
        Config::parse_named(text, "the config")
    }

    fn parse_named(text: &str, name: &str) -> Result<Config> {
        let config: Config = toml::from_str(text).map_err(|error| {
            let line = error.span().map_or(0, |span| text.bytes().take(span.start).filter(|b| *b == b'\n').count() + 1);
            Error::invalid(format!("{name}, line {line}: {}", error.message()))
        })?;
        config.check()?;
        Ok(config)
    }

    /// Whether it makes sense.
    pub(crate) fn check(&self) -> Result<()> {
        self.policy.check()?;
        self.descriptor.check()?;
        let files = [&self.ram_file, &self.disk].map(Option::as_ref);
        if files.into_iter().flatten().any(|tier| !tier.path.is_absolute()) {
            return Err(Error::invalid("the path of a tier must be absolute"));
        }
        if let (Some(ram_file), Some(disk)) = (&self.ram_file, &self.disk)
            && ram_file.path == disk.path
        {
            return Err(Error::invalid("ram_file and disk need a directory each"));
        }
        if self.target().is_none() {
            return Err(Error::invalid("the config has no tier: add [ram], [ram_file] or [disk]"));
        }
        if let Some(tier) = self.save_to
            && !self.has(tier)
        {
            return Err(Error::invalid("save_to names a tier that the config does not have"));
        }
        let PressureConfig { high, low, interval_ms, .. } = self.pressure;
        if !(0.0 < low && low <= high && high <= 1.0) || interval_ms == 0 {
            return Err(Error::invalid("pressure needs 0 < low <= high <= 1 and an interval"));
        }
        Ok(())
    }

    fn has(&self, tier: TierKind) -> bool {
        match tier {
            TierKind::Ram => self.ram.is_some(),
            TierKind::RamFile => self.ram_file.is_some(),
            TierKind::Disk => self.disk.is_some(),
        }
    }

    /// Where saves go that name no tier.
    pub(crate) fn target(&self) -> Option<TierKind> {
        self.save_to.or_else(|| TierKind::ALL.into_iter().rev().find(|tier| self.has(*tier)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_is_said_with_its_line() {
        let wrong = |text: &str| Config::parse(text).unwrap_err().to_string();
        assert_eq!(
            wrong("[ram]\nbudget = \"1 Gb\"\n"),
            "the config, line 2: '1 Gb' is no size: write bytes, or as in 512 MiB, 1.5GiB, 20MB (KiB, MiB, GiB, TiB)"
        );
        assert!(
            wrong("[ram]\nbugdet = 1\n").contains("line 2: unknown field `bugdet`"),
            "{}",
            wrong("[ram]\nbugdet = 1\n")
        );
        assert!(wrong("").contains("has no tier"));
        assert!(wrong("[disk]\npath = \"kv\"\nbudget = 1\n").contains("must be absolute"));
        assert!(wrong("save_to = \"disk\"\n[ram]\nbudget = 1\n").contains("does not have"));
        assert!(wrong("[ram]\nbudget = 1\n[pressure]\nlow = 0.9\n").contains("low <= high"));
        assert!(wrong("[ram]\nbudget = 1\n[policy]\nmin_tokens = 600\n").contains("cold_min_tokens"));
        let both = "budget = 1\npath = \"/a\"\n";
        assert!(wrong(&format!("[disk]\n{both}[ram_file]\n{both}")).contains("a directory each"));
    }

    #[test]
    fn saves_go_to_the_slowest_tier_unless_told() {
        let ram = "[ram]\nbudget = 1\n";
        let disk = "[disk]\npath = \"/a\"\nbudget = 1\n";
        assert_eq!(Config::parse(ram).unwrap().target(), Some(TierKind::Ram));
        assert_eq!(Config::parse(&format!("{ram}{disk}")).unwrap().target(), Some(TierKind::Disk));
        assert_eq!(Config::parse(&format!("save_to = \"ram\"\n{ram}{disk}")).unwrap().target(), Some(TierKind::Ram));
    }
}
