//! The operator's options for a backend, taken one by one so that a misspelt one is never ignored.

use crate::{Error, Result};

/// Options by name, from the operator's config file.
pub struct Options(Vec<(String, String)>);

impl Options {
    pub(crate) fn new(options: Vec<(String, String)>) -> Self {
        Options(options)
    }

    /// The value of an option, if it was given. Each can be taken once.
    pub fn take(&mut self, name: &str) -> Option<String> {
        let at = self.0.iter().position(|(key, _)| key == name)?;
        Some(self.0.swap_remove(at).1)
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

    /// `invalid` if an option is left that the backend does not know.
    pub fn finish(self) -> Result<()> {
        match self.0.first() {
            None => Ok(()),
            Some((name, _)) => Err(Error::invalid(format!("unknown option {name}"))),
        }
    }
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
        assert!(error.message.contains("durabilty"), "{}", error.message);
    }

    #[test]
    fn a_choice_has_a_default_and_refuses_the_rest() {
        assert_eq!(options(&[]).take_choice("d", &["full", "rename"]).unwrap(), "full");
        let error = options(&[("d", "fast")]).take_choice("d", &["full", "rename"]).unwrap_err();
        assert!(error.message.contains("full, rename"), "{}", error.message);
    }
}
