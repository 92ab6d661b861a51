//! What a block is: whose tokens, how many bytes, and what the bytes mean. All of it is part of the scope, which is part of
//! every key: two models, layouts, dtypes or ranks never meet.

use std::fmt;
use std::ops::Range;

use serde::Deserialize;
use sha2::{Digest, Sha256};

use crate::config::Config;
use crate::error::{Error, Result};
use crate::key::SCOPE_BYTES;
use crate::limits;

/// The blocks of one cache: those of one rank of one model.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spec {
    /// The model, and whatever else of it decides what the values are: its revision, adapters, RoPE scaling. 1 to 1,024 bytes.
    pub model: String,
    /// Bytes of a block: of all its tokens, layers and heads, keys and values.
    pub block_bytes: usize,
    /// Tokens of a block, for `block_size = -1`, which means those of the engine.
    #[serde(default)]
    pub engine_block_tokens: usize,
    /// The order of the dimensions.
    #[serde(default)]
    pub layout: Layout,
    /// The type of the values.
    #[serde(default)]
    pub dtype: Dtype,
    /// The layers that this rank holds.
    #[serde(default = "all")]
    pub layers: Range<u32>,
    /// The heads that this rank holds.
    #[serde(default = "all")]
    pub heads: Range<u32>,
    /// The tensor-parallel rank, and how many there are.
    #[serde(default = "alone")]
    pub tensor_parallel: (u32, u32),
}

fn all() -> Range<u32> {
    0..u32::MAX
}

fn alone() -> (u32, u32) {
    (0, 1)
}

/// The order of a block's dimensions, by their letters: L layers, C keys and values, N tokens, H heads, D the elements of a head (or
/// of all heads). AIBrix has `LCND` and `NCLD`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Layout(String);

impl Default for Layout {
    fn default() -> Self {
        Layout("LCND".to_owned())
    }
}

impl TryFrom<String> for Layout {
    type Error = String;

    fn try_from(name: String) -> std::result::Result<Self, String> {
        let distinct = name.char_indices().all(|(at, letter)| name.find(letter) == Some(at));
        if !name.is_empty() && distinct && name.chars().all(|letter| "LCNHD".contains(letter)) {
            return Ok(Layout(name));
        }
        Err(format!("{name:?} is no layout: each of the letters L, C, N, H and D at most once, as in LCND"))
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(&self.0)
    }
}

/// The type of the values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
#[allow(missing_docs, reason = "the names say it")]
pub enum Dtype {
    F32,
    #[default]
    F16,
    Bf16,
    #[serde(rename = "fp8_e4m3")]
    Fp8E4m3,
    #[serde(rename = "fp8_e5m2")]
    Fp8E5m2,
    I8,
    I4,
}

impl Dtype {
    /// As a config names it.
    pub fn name(self) -> &'static str {
        match self {
            Dtype::F32 => "f32",
            Dtype::F16 => "f16",
            Dtype::Bf16 => "bf16",
            Dtype::Fp8E4m3 => "fp8_e4m3",
            Dtype::Fp8E5m2 => "fp8_e5m2",
            Dtype::I8 => "i8",
            Dtype::I4 => "i4",
        }
    }
}

impl std::str::FromStr for Dtype {
    type Err = String;

    fn from_str(name: &str) -> std::result::Result<Self, String> {
        use serde::de::IntoDeserializer;
        use serde::de::value::Error as ValueError;
        Dtype::deserialize(name.into_deserializer()).map_err(|error: ValueError| error.to_string())
    }
}

impl Spec {
    /// Blocks of a model, with everything else at its default.
    pub fn new(model: impl Into<String>, engine_block_tokens: usize, block_bytes: usize) -> Self {
        Spec {
            model: model.into(),
            block_bytes,
            engine_block_tokens,
            layout: Layout::default(),
            dtype: Dtype::default(),
            layers: all(),
            heads: all(),
            tensor_parallel: alone(),
        }
    }

    /// Refuse what makes no sense.
    pub(crate) fn check(&self) -> Result<()> {
        let (rank, ranks) = self.tensor_parallel;
        let problem = if self.model.is_empty() || self.model.len() > limits::MAX_NAME_BYTES {
            format!("the model's name has {} bytes; it needs 1 to {}", self.model.len(), limits::MAX_NAME_BYTES)
        } else if self.block_bytes == 0 || self.block_bytes > limits::MAX_BLOCK_BYTES {
            format!("block_bytes is {}; it must be 1 to {}", self.block_bytes, limits::MAX_BLOCK_BYTES)
        } else if rank >= ranks {
            format!("the tensor-parallel rank is {rank}; it must be below ranks = {ranks}")
        } else if self.layers.is_empty() || self.heads.is_empty() {
            format!("the range of layers {:?} or of heads {:?} is empty", self.layers, self.heads)
        } else {
            return Ok(());
        };
        Err(Error::invalid(problem))
    }

    /// The name of everything that two prompts must have in common to share a block, in 16 bytes.
    pub(crate) fn scope(&self, config: &Config, block_tokens: usize) -> [u8; SCOPE_BYTES] {
        let Spec { model, block_bytes, layout, dtype, layers, heads, tensor_parallel, engine_block_tokens: _ } = self;
        // Each part with its length before it, so that no two lists of parts are the same bytes.
        let parts = [
            "kv-blocks 1".to_owned(),
            config.l2.namespace.clone(),
            model.clone(),
            format!("{layout} {dtype:?} {block_tokens} {block_bytes}"),
            format!("{layers:?} {heads:?} {tensor_parallel:?}"),
            format!("{:?} {} {}", config.l2.key_builder, config.l2.key_hash.name(), config.token_validation),
        ];
        let mut hash = Sha256::new();
        for part in &parts {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        let mut scope = [0; SCOPE_BYTES];
        scope.iter_mut().zip(hash.finalize()).for_each(|(to, from)| *to = from);
        scope
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::{KeyBuilder, KeyHash};

    /// The scope is part of every key that a far level has. Computed with Python's hashlib, not with this code.
    #[test]
    fn golden_scope() {
        let config = Config::default();
        assert_eq!(hex::encode(Spec::new("model", 16, 64).scope(&config, 16)), "c4f5ff2694d04aa6560b8911de3c24d7");
        let mut other = Config { token_validation: true, ..config };
        other.l2.namespace = "tenant".to_owned();
        other.l2.key_builder = KeyBuilder::Simple;
        other.l2.key_hash = KeyHash::Sha256;
        let spec = Spec {
            layout: Layout::try_from("NCLD".to_owned()).unwrap(),
            dtype: Dtype::Fp8E4m3,
            layers: 0..16,
            heads: 8..16,
            tensor_parallel: (1, 4),
            ..Spec::new("llama-3-8b@main", 16, 4096)
        };
        assert_eq!(hex::encode(spec.scope(&other, 32)), "f55233958addbd85b443fa5b1ae94ff2");
        // The names of the other types, which are in the scope as Rust shows them.
        let names = [Dtype::F32, Dtype::F16, Dtype::Bf16, Dtype::Fp8E4m3, Dtype::Fp8E5m2, Dtype::I8, Dtype::I4];
        assert_eq!(format!("{names:?}"), "[F32, F16, Bf16, Fp8E4m3, Fp8E5m2, I8, I4]");
        assert_eq!(names.map(|dtype| dtype.name().parse()), names.map(Ok));
        let names = [KeyBuilder::Raw, KeyBuilder::Simple, KeyBuilder::Rolling];
        assert_eq!(format!("{names:?}"), "[Raw, Simple, Rolling]");
        assert_eq!(KeyHash::Farm128.name(), "farm-128");
    }

    #[test]
    fn every_part_makes_another_scope() {
        let (config, spec) = (Config::default(), Spec::new("model", 16, 64));
        let own = spec.scope(&config, 16);
        assert_eq!(own, spec.clone().scope(&config, 16));
        let layout = Layout::try_from("NCLD".to_owned()).unwrap();
        let others = [
            Spec { model: "model2".to_owned(), ..spec.clone() },
            Spec { block_bytes: 65, ..spec.clone() },
            Spec { layout, ..spec.clone() },
            Spec { dtype: Dtype::Bf16, ..spec.clone() },
            Spec { layers: 0..4, ..spec.clone() },
            Spec { heads: 0..4, ..spec.clone() },
            Spec { tensor_parallel: (0, 2), ..spec.clone() },
        ];
        let mut scopes: Vec<_> = others.iter().map(|spec| spec.scope(&config, 16)).collect();
        scopes.push(spec.scope(&config, 8));
        let mut tenant = config.clone();
        tenant.l2.namespace = "other".to_owned();
        scopes.push(spec.scope(&tenant, 16));
        scopes.push(spec.scope(&Config { token_validation: true, ..config }, 16));
        scopes.push(own);
        scopes.sort_unstable();
        scopes.dedup();
        assert_eq!(scopes.len(), others.len() + 4);
    }

    #[test]
    fn specs_that_make_no_sense_are_refused() {
        let spec = Spec::new("model", 16, 64);
        assert!(spec.check().is_ok());
        for bad in [
            Spec { model: String::new(), ..spec.clone() },
            Spec { block_bytes: 0, ..spec.clone() },
            Spec { tensor_parallel: (2, 2), ..spec.clone() },
            Spec { layers: 4..4, ..spec.clone() },
        ] {
            assert!(bad.check().is_err(), "{bad:?}");
        }
        for layout in ["", "LCX", "LL", "lcnd"] {
            assert!(Layout::try_from(layout.to_owned()).is_err(), "{layout}");
        }
    }
}
