//! The operator's options for a backend, taken one by one so that a misspelt one is never ignored.

use crate::{Error, Result};

/// Options by name, from the operator's config file.
pub struct Options {
    given: Vec<(String, String)>,
    /// The names that were asked for: what the backend knows.
    known: Vec<String>,
}

impl Options {
    pub(crate) fn new(options: Vec<(String, String)>) -> Self {
        Options { given: options, known: Vec::new() }
    }

    /// The value of an option, if it was given. Each can be taken once.
    pub fn take(&mut self, name: &str) -> Option<String> {
        if !self.known.iter().any(|known| known == name) {
            self.known.push(name.to_owned());
        }
        let at = self.given.iter().position(|(key, _)| key == name)?;
        Some(self.given.swap_remove(at).1)
    }

    /// The value of an option that must be one of `choices`; the first is the default.
    pub fn take_choice<'a>(&mut self, name: &str, choices: &[&'a str]) -> Result<&'a str> {
        let Some(value) = self.take(name) else {
            return choices.first().copied().ok_or_else(|| Error::other("no choices"));
        };
        choices
            .iter()
            .find(|choice| **choice == value)
            .copied()
            .ok_or_else(|| Error::invalid(format!("option {name} = {value:?}: must be one of {}", choices.join(", "))))
    }

    /// The value of an option that is a whole number within bounds, if it was given.
    pub fn take_number(&mut self, name: &str, within: std::ops::RangeInclusive<u64>) -> Result<Option<u64>> {
        let Some(value) = self.take(name) else { return Ok(None) };
        let number = value.parse().ok().filter(|number| within.contains(number));
        let (least, most) = (within.start(), within.end());
        let wrong = || Error::invalid(format!("option {name} = {value:?}: must be a number from {least} to {most}"));
        number.map(Some).ok_or_else(wrong)
    }

    /// The value of an option that is a number of bytes within bounds, if it was given: `1048576`, `512 MiB`, `20MB`.
    pub fn take_bytes(&mut self, name: &str, within: std::ops::RangeInclusive<u64>) -> Result<Option<u64>> {
        let Some(value) = self.take(name) else { return Ok(None) };
        let bytes = bytes(&value).filter(|bytes| within.contains(bytes));
        let (least, most) = (within.start(), within.end());
        let wrong = || {
            let message = format!(
                "option {name} = {value:?}: must be bytes from {least} to {most}, as a number or as in 512 MiB, 20MB"
            );
            Error::invalid(message)
        };
        bytes.map(Some).ok_or_else(wrong)
    }

    /// `invalid` if an option is left that the backend does not know. The host adds which of the others was meant.
    pub fn finish(self) -> Result<()> {
        let Some((name, _)) = self.given.first() else { return Ok(()) };
        if self.known.is_empty() {
            return Err(Error::invalid(format!("unknown option `{name}`: this backend has none")));
        }
        let known: Vec<String> = self.known.iter().map(|known| format!("`{known}`")).collect();
        Err(Error::invalid(format!("unknown option `{name}`, expected one of {}", known.join(", "))))
    }
}

/// A number of bytes as people write it: what `kv-size` reads, which the programs of the project use.
fn bytes(text: &str) -> Option<u64> {
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
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at_checked(digits)?;
    let factor = UNITS.iter().find(|(name, _)| *name == unit.trim())?.1;
    // Without floating point, whose parser would be the larger part of some components.
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() {
        return None;
    }
    let digits = |digits: &str| if digits.is_empty() { Some(0) } else { digits.parse::<u64>().ok() };
    let parts = 10_u128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    let rest = u128::from(digits(fraction)?).checked_mul(factor.into())?.checked_div(parts)?;
    digits(whole)?.checked_mul(factor)?.checked_add(u64::try_from(rest).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(pairs: &[(&str, &str)]) -> Options {
        Options::new(pairs.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect())
    }

    #[test]
    fn what_is_not_taken_is_an_error() {
        let mut given = options(&[("durability", "rename"), ("durabilty", "full")]);
        assert_eq!(given.take_choice("durability", &["full", "rename"]).unwrap(), "rename");
        let error = given.finish().unwrap_err();
        assert_eq!(error.message, "unknown option `durabilty`, expected one of `durability`");
        let error = options(&[("x", "")]).finish().unwrap_err();
        assert_eq!(error.message, "unknown option `x`: this backend has none");
    }

    #[test]
    fn a_number_is_within_its_bounds() {
        let mut given = options(&[("a", "7"), ("b", "11"), ("c", "x")]);
        assert_eq!(given.take_number("a", 1..=10).unwrap(), Some(7));
        assert_eq!(given.take_number("a", 1..=10).unwrap(), None);
        for name in ["b", "c"] {
            assert!(given.take_number(name, 1..=10).unwrap_err().message.contains("from 1 to 10"));
        }
    }

    #[test]
    fn sizes_are_read_as_the_programs_of_the_project_read_them() {
        // The cases of `kv-size`.
        for (text, size) in [
            ("0", 0),
            ("7B", 7),
            ("4 KiB", 4096),
            ("1.5GiB", 3 << 29),
            (" 2 TiB ", 2 << 40),
            ("20MB", 20_000_000),
            ("1 kB", 1000),
        ] {
            assert_eq!(bytes(text), Some(size), "{text}");
        }
        for wrong in ["", "GiB", "-1", "1 gb", "1K", "1e9", "1.2.3", ".", "99999999999 TiB", "é"] {
            assert_eq!(bytes(wrong), None, "{wrong}");
        }
        let mut given = options(&[("a", "64 KiB"), ("b", "1 XB")]);
        assert_eq!(given.take_bytes("a", 1..=1 << 20).unwrap(), Some(65_536));
        assert!(given.take_bytes("b", 1..=1 << 20).unwrap_err().message.contains("as in 512 MiB"));
    }

    #[test]
    fn a_choice_has_a_default_and_refuses_the_rest() {
        assert_eq!(options(&[]).take_choice("d", &["full", "rename"]).unwrap(), "full");
        let error = options(&[("d", "fast")]).take_choice("d", &["full", "rename"]).unwrap_err();
        assert!(error.message.contains("full, rename"), "{}", error.message);
    }
}
