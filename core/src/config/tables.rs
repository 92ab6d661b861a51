//! The tables of the config file, as they are written.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::{Direct, Layout1, Near, Tls, Verify};
use crate::descriptor::Descriptor;
use crate::limits::GivenLimits;
use crate::policy::{Folder, Pattern, Prefix, SecretSource, Variable};
use crate::quota::Quota;

/// What the operator says of compiling: the `[compile]` table, or `compile = "in-process"`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(try_from = "CompileGiven")]
pub(super) struct Compile {
    pub helper: Helper,
}

/// The same as it is written.
enum CompileGiven {
    Word(String),
    Table(CompileTable),
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct CompileTable {
    helper: Helper,
}

/// By hand, so that what is wrong in the table is told as it is in others.
impl<'de> Deserialize<'de> for CompileGiven {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;

        impl<'de> Visitor<'de> for Either {
            type Value = CompileGiven;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("\"in-process\" or a table")
            }

            fn visit_str<E: serde::de::Error>(self, word: &str) -> Result<CompileGiven, E> {
                Ok(CompileGiven::Word(word.to_owned()))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<CompileGiven, A::Error> {
                CompileTable::deserialize(MapAccessDeserializer::new(map)).map(CompileGiven::Table)
            }
        }

        deserializer.deserialize_any(Either)
    }
}

impl TryFrom<CompileGiven> for Compile {
    type Error = String;

    fn try_from(given: CompileGiven) -> Result<Self, String> {
        match given {
            CompileGiven::Table(CompileTable { helper }) => Ok(Compile { helper }),
            CompileGiven::Word(word) if word == "in-process" => Ok(Compile { helper: Helper::InProcess }),
            CompileGiven::Word(word) => Err(format!("{word:?} is not \"in-process\"")),
        }
    }
}

/// The program that compiles components in a process of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum Helper {
    /// The one beside the library; where there is none, only components whose compiled code is in the cache can be opened.
    #[default]
    Beside,
    /// This one, absolute, and no other.
    At(PathBuf),
    /// None: components are compiled in the engine's process, without bounds on memory and time.
    InProcess,
}

impl TryFrom<String> for Helper {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let path = PathBuf::from(&text);
        match text.as_str() {
            // As versions up to 0.2 have it.
            "off" => Ok(Helper::InProcess),
            _ if path.is_absolute() => Ok(Helper::At(path)),
            _ => Err(format!("{text:?} is neither \"off\" nor an absolute path")),
        }
    }
}

/// What the operator says of one backend: a `[backend.<scheme>]` table.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct BackendTable {
    /// The component's file, absolute.
    pub component: Option<PathBuf>,
    /// The only component that is accepted, by its SHA-256.
    pub sha256: Option<Digest>,
    /// Where the store's path ends. What follows in a URI prefixes the names of manifests; chunks are shared.
    pub root: Option<String>,
    /// Where what a URI without a server names is: `https://HOST[:PORT]`.
    pub endpoint: Option<String>,
    pub verify: Verify,
    pub layout1: Layout1,
    /// What the values of its stores are.
    pub descriptor: Descriptor,
    /// Who leaves something of it unsaid is refused.
    pub require_descriptor: bool,
    pub direct: Direct,
    /// Handed to the backend's `open`.
    pub options: BTreeMap<String, Value>,
    pub tls: Tls,
    pub connect: Vec<Pattern>,
    pub private_networks: bool,
    pub fs: BTreeMap<String, Folder>,
    pub env: Vec<Variable>,
    pub secrets: BTreeMap<String, SecretSource>,
    pub limits: GivenLimits,
    pub quota: Quota,
    pub near: Option<Near>,
    pub fault: Option<FaultTable>,
}

/// The value of an option, which backends take as text: a TOML string, whole number or boolean.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "toml::Value")]
pub(super) struct Value(pub String);

impl TryFrom<toml::Value> for Value {
    type Error = &'static str;

    fn try_from(value: toml::Value) -> Result<Self, Self::Error> {
        match value {
            toml::Value::String(text) => Ok(Value(text)),
            toml::Value::Integer(number) => Ok(Value(number.to_string())),
            toml::Value::Boolean(truth) => Ok(Value(truth.to_string())),
            _ => Err("an option is a text, a whole number, true or false"),
        }
    }
}

/// The faults that a test wants injected, as the text of a table: what is in it is known where they are linked in.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(try_from = "toml::Table")]
pub struct FaultTable(String);

impl FaultTable {
    pub fn text(&self) -> &str {
        &self.0
    }
}

impl TryFrom<toml::Table> for FaultTable {
    type Error = toml::ser::Error;

    fn try_from(table: toml::Table) -> Result<Self, Self::Error> {
        toml::to_string(&table).map(FaultTable)
    }
}

/// One of those that the process serves: a `[[tenant]]` table.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Tenant {
    /// The URIs that are this tenant's begin with it.
    pub uri: Prefix,
    pub root: Option<String>,
    pub verify: Option<Verify>,
    pub layout1: Option<Layout1>,
    pub direct: Option<Direct>,
    #[serde(default)]
    pub descriptor: Descriptor,
    pub require_descriptor: Option<bool>,
    #[serde(default)]
    pub options: BTreeMap<String, Value>,
    #[serde(default)]
    pub tls: Tls,
    #[serde(default)]
    pub connect: Vec<Pattern>,
    #[serde(default)]
    pub private_networks: bool,
    #[serde(default)]
    pub fs: BTreeMap<String, Folder>,
    #[serde(default)]
    pub env: Vec<Variable>,
    #[serde(default)]
    pub secrets: BTreeMap<String, SecretSource>,
    #[serde(default)]
    pub limits: GivenLimits,
    #[serde(default)]
    pub quota: Quota,
    pub near: Option<Near>,
}

/// A SHA-256.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(try_from = "String")]
pub struct Digest(pub [u8; 32]);

impl TryFrom<String> for Digest {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let mut digest = [0; 32];
        hex::decode_to_slice(&text, &mut digest)
            .map_err(|_| format!("{text:?} is no SHA-256: 64 hexadecimal digits, as `sha256sum` prints them"))?;
        Ok(Digest(digest))
    }
}
