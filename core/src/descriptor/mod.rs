//! What the values of a store are: of which weights, in which layout, of which dtype.
//!
//! A checksum tells that a value is the one that was put. It does not tell that the value means to its reader what it meant to its
//! writer: KV of another model, rank or layout has the right size and the wrong meaning. A [`Descriptor`] names what decides the
//! meaning. Its digest lies in the envelope of each value (`docs/envelope.md`), and a reader with another one has a miss.
//!
//! Fields are compared as text, byte by byte. What nobody says of a value is unset, and takes part in nothing.

mod table;

use std::fmt;

use serde::Deserialize;
use serde::de::{self, Deserializer, MapAccess, Visitor};
use sha2::{Digest as _, Sha256};

use crate::error::Error;
use crate::limits::MAX_DESCRIPTOR_FIELD_BYTES;

pub use table::{Described, Descriptors};

/// Declares the fields: a variant, its name, what it says.
macro_rules! fields {
    ($($field:ident $name:literal $text:literal;)*) => {
        /// What a descriptor may say.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        #[non_exhaustive]
        pub enum Field { $(#[doc = $text] $field,)* }

        impl Field {
            /// All of them.
            pub const ALL: [Field; [$($name),*].len()] = [$(Field::$field,)*];

            /// As the config, the C ABI and Python name it.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Field::$field => $name,)* }
            }
        }

        /// In the order of [`Field::ALL`].
        const NAMES: [&str; Field::ALL.len()] = [$($name),*];
    };
}

fields! {
    Model "model" "The digest of the weights, or the model's revision.";
    Architecture "architecture" "The architecture of the model.";
    Layout "layout" "The layout of a value, and the order of its dimensions.";
    Dtype "dtype" "The type of the elements.";
    Scales "scales" "How quantised elements are scaled, and where the scales lie.";
    BlockTokens "block_tokens" "Tokens of one value.";
    Layers "layers" "How many layers, or which.";
    Heads "heads" "KV heads and the elements of each: `8x128`.";
    Rank "rank" "Which part of the model this process has.";
    Ranks "ranks" "Into how many parts the model is divided, and how.";
    Rope "rope" "How positions are encoded.";
    Adapters "adapters" "The adapters (LoRA) that are applied.";
    Engine "engine" "The engine that makes the values.";
    Format "format" "The version of the engine's format.";
}

impl Field {
    /// The field of a name.
    #[must_use]
    pub fn of(name: &str) -> Option<Self> {
        Field::ALL.into_iter().find(|field| field.name() == name)
    }
}

/// What the values of a store are, as far as somebody says it.
///
/// ```
/// # use kv_store_core as kv_store_wasm;
/// use kv_store_wasm::{Descriptor, Field};
/// let said = Descriptor::default().with(Field::Model, "sha256:9f86d081")?.with(Field::Dtype, "bfloat16")?;
/// let other = said.clone().with(Field::Dtype, "float16")?;
/// assert_ne!(said.digest(), other.digest());
/// assert!(said.unset().any(|field| field == Field::Rope));
/// # Ok::<(), kv_store_wasm::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Descriptor {
    said: [Option<String>; Field::ALL.len()],
}

/// What an envelope has of a descriptor: the first 16 bytes of the SHA-256 of its canonical bytes. Never zeros.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DescriptorDigest([u8; DIGEST_BYTES]);

const DIGEST_BYTES: usize = 16;

/// Begins the canonical bytes.
const MAGIC: [u8; 8] = *b"KVDESC1\n";

impl Descriptor {
    /// The same, and this.
    ///
    /// # Errors
    /// `Invalid`: the text is empty, longer than [`MAX_DESCRIPTOR_FIELD_BYTES`], or has control characters. Say `none` of what there
    /// is not.
    pub fn with(mut self, field: Field, text: &str) -> Result<Self, Error> {
        let name = field.name();
        if text.is_empty() || text.len() > MAX_DESCRIPTOR_FIELD_BYTES {
            let len = text.len();
            return Err(Error::invalid(format!(
                "descriptor: {name} has 1 to {MAX_DESCRIPTOR_FIELD_BYTES} bytes, this one {len}: write \"none\" for what there is \
                 not, and a digest for what is longer"
            )));
        }
        if text.chars().any(char::is_control) {
            return Err(Error::invalid(format!("descriptor: {name} has control characters")));
        }
        if let Some(place) = self.said.get_mut(field as usize) {
            *place = Some(text.to_owned());
        }
        Ok(self)
    }

    /// What is said of a field.
    #[must_use]
    pub fn get(&self, field: Field) -> Option<&str> {
        self.said.get(field as usize)?.as_deref()
    }

    /// The fields that are said, with what is said.
    pub fn said(&self) -> impl Iterator<Item = (Field, &str)> {
        Field::ALL.into_iter().filter_map(|field| Some((field, self.get(field)?)))
    }

    /// The fields of which nobody says anything.
    pub fn unset(&self) -> impl Iterator<Item = Field> {
        Field::ALL.into_iter().filter(|field| self.get(*field).is_none())
    }

    /// Whether nothing is said.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.said.iter().all(Option::is_none)
    }

    /// What this and another say together.
    ///
    /// # Errors
    /// `Invalid`: they say different things of a field. `own` and `others` name who says what.
    #[doc(hidden)]
    pub fn joined(&self, other: &Descriptor, own: &str, others: &str) -> Result<Self, Error> {
        let mut joined = self.clone();
        for (field, text) in other.said() {
            match self.get(field) {
                Some(before) if before != text => {
                    let name = field.name();
                    let message = format!(
                        "descriptor: {own} says {name} = {before:?} and {others} {text:?}: they must agree, or one must say nothing"
                    );
                    return Err(Error::invalid(message));
                }
                _ => joined = joined.with(field, text)?,
            }
        }
        Ok(joined)
    }

    /// What this says, and of what it does not say what another does.
    #[doc(hidden)]
    #[must_use]
    pub fn over(self, other: &Descriptor) -> Self {
        let said = self.said.into_iter().zip(&other.said).map(|(own, below)| own.or_else(|| below.clone()));
        let mut over = Descriptor::default();
        over.said.iter_mut().zip(said).for_each(|(place, said)| *place = said);
        over
    }

    /// The bytes that its digest is of: a magic, then name and text of each field that is said, each behind its length (u16), in the
    /// order of the names.
    #[must_use]
    pub fn canonical(&self) -> Vec<u8> {
        let mut said: Vec<(&str, &str)> = self.said().map(|(field, text)| (field.name(), text)).collect();
        said.sort_unstable();
        let mut bytes = MAGIC.to_vec();
        for part in said.iter().flat_map(|(name, text)| [name, text]) {
            // A text has at most so many bytes.
            bytes.extend_from_slice(&(part.len() as u16).to_le_bytes());
            bytes.extend_from_slice(part.as_bytes());
        }
        bytes
    }

    /// What an envelope has of it. `None`: nothing is said.
    #[must_use]
    pub fn digest(&self) -> Option<DescriptorDigest> {
        if self.is_empty() {
            return None;
        }
        let whole: [u8; 32] = Sha256::digest(self.canonical()).into();
        let first = whole.first_chunk().copied().unwrap_or_default();
        // Zeros stand for none: no descriptor has them.
        Some(DescriptorDigest::read(&first).unwrap_or(DescriptorDigest([1; DIGEST_BYTES])))
    }
}

/// A text that a descriptor takes: the SHA-256 of one that is too long, or has control characters.
#[must_use]
pub(crate) fn short(text: &str) -> String {
    if text.len() <= MAX_DESCRIPTOR_FIELD_BYTES && !text.chars().any(char::is_control) {
        return text.to_owned();
    }
    format!("sha256:{}", hex::encode(Sha256::digest(text)))
}

impl DescriptorDigest {
    /// As it lies in an envelope; `None` for zeros.
    #[doc(hidden)]
    #[must_use]
    pub fn read(bytes: &[u8; DIGEST_BYTES]) -> Option<Self> {
        (*bytes != [0; DIGEST_BYTES]).then_some(DescriptorDigest(*bytes))
    }

    /// Its bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8; DIGEST_BYTES] {
        &self.0
    }
}

impl fmt::Display for DescriptorDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl fmt::Debug for DescriptorDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// `dtype "bfloat16", rank "0"`
impl fmt::Display for Descriptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (field, text)) in self.said().enumerate() {
            let comma = if at > 0 { ", " } else { "" };
            write!(f, "{comma}{} {text:?}", field.name())?;
        }
        Ok(())
    }
}

/// A table of the config: each field a text, or a whole number.
impl<'de> Deserialize<'de> for Descriptor {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct DescriptorVisitor;

        impl<'de> Visitor<'de> for DescriptorVisitor {
            type Value = Descriptor;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a map")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Descriptor, A::Error> {
                let mut descriptor = Descriptor::default();
                while let Some(name) = map.next_key::<String>()? {
                    let field = Field::of(&name).ok_or_else(|| de::Error::unknown_field(&name, &NAMES))?;
                    let FieldText(text) = map.next_value()?;
                    descriptor = descriptor.with(field, &text).map_err(de::Error::custom)?;
                }
                Ok(descriptor)
            }
        }

        deserializer.deserialize_map(DescriptorVisitor)
    }
}

/// What the config says of a field.
struct FieldText(String);

impl<'de> Deserialize<'de> for FieldText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match toml::Value::deserialize(deserializer)? {
            toml::Value::String(text) => Ok(FieldText(text)),
            toml::Value::Integer(number) => Ok(FieldText(number.to_string())),
            _ => Err(de::Error::custom("a field of a descriptor is a text or a whole number")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(fields: &[(Field, &str)]) -> Descriptor {
        fields.iter().fold(Descriptor::default(), |descriptor, (field, text)| descriptor.with(*field, text).unwrap())
    }

    /// Values whose descriptor has another digest are missed, so a digest that is made otherwise loses all of them. Computed with
    /// Python's hashlib, not with this code.
    #[test]
    fn golden_descriptor() {
        let one = said(&[(Field::Model, "m")]);
        let all: Vec<(Field, &str)> = Field::ALL.into_iter().map(|field| (field, field.name())).collect();
        for (descriptor, expected) in [
            (one, "bbfe34e58fcf3cd96fc78613bd715865"),
            (
                said(&[(Field::Dtype, "bfloat16"), (Field::Rank, "0"), (Field::Model, "sha256:9f86d081")]),
                "63aadbfe1191a61dec23eb4cdd3e712f",
            ),
            (said(&all), "02a65605be64a3c5361b0807648392ac"),
        ] {
            assert_eq!(descriptor.digest().unwrap().to_string(), expected, "{descriptor}");
        }
        assert_eq!(Descriptor::default().digest(), None);
    }

    #[test]
    fn each_field_and_where_a_text_ends_tell_descriptors_apart() {
        let mut digests = std::collections::BTreeSet::new();
        for field in Field::ALL {
            for text in ["a", "b", "none", "ab"] {
                assert!(digests.insert(said(&[(field, text)]).digest()), "{field:?} {text}");
            }
            assert_eq!(Field::of(field.name()), Some(field));
        }
        assert!(digests.insert(said(&[(Field::Rank, "a"), (Field::Ranks, "b")]).digest()));
        assert!(digests.insert(said(&[(Field::Rank, "b"), (Field::Ranks, "a")]).digest()));
        let (first, second) = ((Field::Model, "m"), (Field::Rope, "r"));
        assert_eq!(said(&[first, second]).digest(), said(&[second, first]).digest(), "whatever is said first");
    }

    #[test]
    fn what_is_no_text_of_one_line_is_refused() {
        for wrong in ["", "a\nb", "\0", &"x".repeat(MAX_DESCRIPTOR_FIELD_BYTES + 1)] {
            assert!(Descriptor::default().with(Field::Model, wrong).is_err(), "{wrong:?}");
        }
        assert!(Descriptor::default().with(Field::Model, &"x".repeat(MAX_DESCRIPTOR_FIELD_BYTES)).is_ok());
    }

    #[test]
    fn two_say_together_what_each_says_and_must_agree() {
        let (one, two) =
            (said(&[(Field::Model, "m"), (Field::Rank, "0")]), said(&[(Field::Model, "m"), (Field::Rope, "r")]));
        let joined = one.joined(&two, "the engine", "the config").unwrap();
        assert_eq!(joined, said(&[(Field::Model, "m"), (Field::Rank, "0"), (Field::Rope, "r")]));
        let error = one.joined(&said(&[(Field::Rank, "1")]), "the engine", "the config").unwrap_err().to_string();
        assert!(error.contains("the engine says rank = \"0\" and the config \"1\""), "{error}");
        assert_eq!(said(&[(Field::Rank, "1")]).over(&one), said(&[(Field::Model, "m"), (Field::Rank, "1")]));
    }

    #[test]
    fn a_table_has_known_names_with_texts_and_numbers() {
        let parse = toml::from_str::<Descriptor>;
        assert_eq!(parse("rank = 3\nmodel = 'm'").unwrap(), said(&[(Field::Rank, "3"), (Field::Model, "m")]));
        assert!(parse("rnk = 3").unwrap_err().message().starts_with("unknown field `rnk`"));
        assert!(parse("rank = 1.5").is_err() && parse("rank = ''").is_err());
    }
}
