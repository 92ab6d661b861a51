//! Numbers of bytes as people write them, in flags, config files and limits: one syntax for all programs of the project.
//!
//! `1048576`, `512 MiB`, `1.5GiB`, `20MB`. A unit is `B`, `KiB` to `TiB` (powers of 1024) or `kB` to `TB` (powers of 1000); the space
//! before it may be left out.

use std::str::FromStr;

use serde::de::{self, Deserialize, Deserializer, Visitor};

/// A number of bytes.
///
/// ```
/// use kv_size::Bytes;
/// assert_eq!("1.5 GiB".parse(), Ok(Bytes(3 << 29)));
/// assert_eq!("20MB".parse(), Ok(Bytes(20_000_000)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
pub struct Bytes(pub u64);

const UNITS: [(&str, u64); 10] = [
    ("", 1),
    ("B", 1),
    ("kB", 1000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
];

impl Bytes {
    /// The number that a text stands for; none: it is no size, or does not fit 64 bits.
    pub fn parse(text: &str) -> Option<Bytes> {
        let text = text.trim();
        let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, unit) = text.split_at_checked(digits)?;
        let factor = UNITS.iter().find(|(name, _)| *name == unit.trim())?.1;
        if let Ok(whole) = number.parse::<u64>() {
            return whole.checked_mul(factor).map(Bytes);
        }
        let bytes = number.parse::<f64>().ok()? * factor as f64;
        (bytes.is_finite() && (0.0..u64::MAX as f64).contains(&bytes)).then_some(Bytes(bytes as u64))
    }

    /// The number that a flag's text stands for, for clap.
    pub fn flag(text: &str) -> Result<u64, String> {
        text.parse().map(|Bytes(bytes)| bytes)
    }
}

impl FromStr for Bytes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Bytes::parse(text).ok_or_else(|| {
            format!("'{text}' is no size: write bytes, or as in 512 MiB, 1.5GiB, 20MB (KiB, MiB, GiB, TiB)")
        })
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;

        impl Visitor<'_> for Either {
            type Value = Bytes;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a number of bytes, or a text such as \"512 MiB\"")
            }

            fn visit_u64<E: de::Error>(self, bytes: u64) -> Result<Bytes, E> {
                Ok(Bytes(bytes))
            }

            fn visit_i64<E: de::Error>(self, bytes: i64) -> Result<Bytes, E> {
                u64::try_from(bytes).map(Bytes).map_err(|_| E::custom(format!("{bytes} is less than 0")))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Bytes, E> {
                text.parse().map_err(E::custom)
            }
        }

        deserializer.deserialize_any(Either)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        for (text, bytes) in [
            ("0", 0),
            ("7", 7),
            ("7B", 7),
            ("4 KiB", 4096),
            ("64KiB", 65_536),
            ("1.5GiB", 3 << 29),
            (" 2 TiB ", 2 << 40),
            ("20MB", 20_000_000),
            ("1 kB", 1000),
        ] {
            assert_eq!(Bytes::parse(text), Some(Bytes(bytes)), "{text}");
        }
        for wrong in ["", "GiB", "-1", "1 gb", "1K", "1e9", "1.2.3", ".", "99999999999 TiB", "é", "1 GiB 2"] {
            assert_eq!(Bytes::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn no_number_is_too_large_to_be_refused() {
        assert_eq!(Bytes::parse("18446744073709551615"), Some(Bytes(u64::MAX)));
        assert_eq!(Bytes::parse("18446744073709551616"), None);
        assert_eq!(
            Bytes::flag("1 XB").unwrap_err(),
            "'1 XB' is no size: write bytes, or as in 512 MiB, 1.5GiB, 20MB (KiB, MiB, GiB, TiB)"
        );
    }
}

// The programs of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
