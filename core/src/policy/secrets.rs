//! Secrets by their short names: where the operator keeps each, and which names are reserved.

use std::fmt;
use std::io::Read;
use std::path::PathBuf;

use serde::de::{self, MapAccess, Visitor};

use crate::error::{Error, ErrorKind};
use crate::limits;

/// Where a secret is kept.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum SecretSource {
    /// An environment variable of the consumer's process.
    Variable(String),
    /// A file, without the line break at its end. Absolute.
    File(PathBuf),
}

/// Refuse a name that no secret can have.
pub fn check_secret_name(name: &str) -> Result<(), Error> {
    let tame = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if name.is_empty() || name.len() > limits::MAX_SECRET_NAME_BYTES || !name.chars().all(tame) {
        let message = "a secret's name is 1 to 64 of a-z, 0-9 and '-', for example auth-key";
        return Err(Error::new(ErrorKind::Denied, message));
    }
    Ok(())
}

/// Refuse the variables of the loader and our own.
pub fn check_variable(variable: &str) -> Result<(), Error> {
    let tame = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if variable.is_empty() || !variable.chars().all(tame) || variable.starts_with(|c: char| c.is_ascii_digit()) {
        // Not the text itself: it may be a secret that was written where its variable belongs.
        let message = "what is written here is no environment variable's name: letters, digits and '_'";
        return Err(Error::new(ErrorKind::Denied, message));
    }
    if ["LD_", "DYLD_", "KV_STORE_"].iter().any(|reserved| variable.starts_with(reserved)) {
        return Err(Error::new(ErrorKind::Denied, format!("{variable} is reserved and cannot be used as a secret")));
    }
    Ok(())
}

/// The name of an environment variable that a component may be given.
#[derive(Clone, Debug, PartialEq, Eq, Hash, serde::Deserialize)]
#[serde(try_from = "String")]
pub struct Variable(pub String);

impl TryFrom<String> for Variable {
    type Error = Error;

    fn try_from(name: String) -> Result<Self, Error> {
        check_variable(&name).map(|()| Variable(name))
    }
}

impl SecretSource {
    /// The secret as it is now: it may have been rotated. None: it is not set.
    pub fn read(&self) -> Result<Option<String>, Error> {
        match self {
            SecretSource::Variable(variable) => match std::env::var(variable) {
                Ok(value) => Ok(Some(value)),
                Err(std::env::VarError::NotPresent) => Ok(None),
                Err(std::env::VarError::NotUnicode(_)) => Err(Error::invalid(format!("{variable} is not UTF-8"))),
            },
            SecretSource::File(path) => {
                // Never the content, and its path is the operator's own business: the guest hears neither.
                let broken = |why: &str| Error::new(ErrorKind::Unavailable, format!("the file of the secret {why}"));
                let mut options = std::fs::OpenOptions::new();
                // A planted FIFO must not hang the call.
                std::os::unix::fs::OpenOptionsExt::custom_flags(options.read(true), libc::O_NONBLOCK);
                let file = match options.open(path) {
                    Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
                    opened => opened.map_err(|_| broken("cannot be opened"))?,
                };
                if !file.metadata().is_ok_and(|meta| meta.is_file()) {
                    return Err(broken("is not a file"));
                }
                let mut text = String::new();
                file.take(limits::MAX_SECRET_BYTES + 1)
                    .read_to_string(&mut text)
                    .map_err(|_| broken("cannot be read, or is not UTF-8"))?;
                if text.len() as u64 > limits::MAX_SECRET_BYTES {
                    return Err(broken("is too long for a secret"));
                }
                let trimmed = text.strip_suffix('\n').map(|text| text.strip_suffix('\r').unwrap_or(text)).map(str::len);
                text.truncate(trimmed.unwrap_or(text.len()));
                Ok(Some(text))
            }
        }
    }
}

impl fmt::Display for SecretSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SecretSource::Variable(variable) => write!(f, "the variable {variable}"),
            SecretSource::File(path) => write!(f, "the file {}", path.display()),
        }
    }
}

/// `"VARIABLE"`, `{ env = "VARIABLE" }` or `{ file = "/run/secrets/x" }`.
impl<'de> serde::Deserialize<'de> for SecretSource {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct SecretSourceVisitor;

        impl<'de> Visitor<'de> for SecretSourceVisitor {
            type Value = SecretSource;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("\"VARIABLE\", { env = \"VARIABLE\" } or { file = \"/path\" }")
            }

            fn visit_str<E: de::Error>(self, variable: &str) -> Result<SecretSource, E> {
                let usual = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
                if variable.is_empty() || !variable.chars().all(usual) {
                    return Err(E::custom(
                        "a secret itself does not belong in the config: name the variable that holds it, as in \"REDIS_PASSWORD\" \
                         or { env = \"name\" }, or its file, { file = \"/path\" }",
                    ));
                }
                check_variable(variable).map_err(E::custom)?;
                Ok(SecretSource::Variable(variable.to_owned()))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<SecretSource, A::Error> {
                let mut source = None;
                while let Some(key) = map.next_key::<String>()? {
                    let value: String = map.next_value()?;
                    let found = match key.as_str() {
                        "env" => {
                            check_variable(&value).map_err(de::Error::custom)?;
                            SecretSource::Variable(value)
                        }
                        "file" if value.starts_with('/') => SecretSource::File(value.into()),
                        "file" => return Err(de::Error::custom("a secret's file must be an absolute path")),
                        other => return Err(de::Error::unknown_field(other, &["env", "file"])),
                    };
                    if source.replace(found).is_some() {
                        return Err(de::Error::custom("a secret is kept in one place: env or file"));
                    }
                }
                source.ok_or_else(|| de::Error::custom("a secret needs env or file"))
            }
        }

        impl Clone for SecretSourceVisitor {
            fn clone(&self) -> Self {
                *self
            }
        }
        impl Copy for SecretSourceVisitor {}

        deserializer.deserialize_any(SecretSourceVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_out_of_a_file_is_read_anew_and_without_its_line_break() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        let source = SecretSource::File(path.clone());
        assert_eq!(source.read().unwrap(), None);
        std::fs::write(&path, "one\n").unwrap();
        assert_eq!(source.read().unwrap().as_deref(), Some("one"));
        std::fs::write(&path, "two\r\n").unwrap();
        assert_eq!(source.read().unwrap().as_deref(), Some("two"));
        std::fs::write(&path, " two\n\n").unwrap();
        assert_eq!(source.read().unwrap().as_deref(), Some(" two\n"));
    }

    #[test]
    fn what_is_no_secrets_file_is_refused_without_its_path_or_content() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x");
        for content in [&[b'x'; (limits::MAX_SECRET_BYTES + 1) as usize][..], b"hunter2\xff"] {
            std::fs::write(&path, content).unwrap();
            let error = SecretSource::File(path.clone()).read().unwrap_err().to_string();
            assert!(!error.contains("hunter2") && !error.contains(path.to_str().unwrap()), "{error}");
        }
        assert!(SecretSource::File(folder.path().to_owned()).read().is_err());
        std::fs::remove_file(&path).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        assert!(SecretSource::File(path).read().is_err());
    }

    #[test]
    fn some_variables_are_nobodys() {
        for variable in ["LD_PRELOAD", "DYLD_INSERT_LIBRARIES", "KV_STORE_WASM_CONFIG", "", "A=B", "1A", "a b"] {
            assert!(check_variable(variable).is_err(), "{variable}");
        }
        assert!(check_variable("CACHE_PASSWORD").is_ok());
    }
}
