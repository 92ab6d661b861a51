//! URIs as consumers pass them. Every byte is kept: nothing is decoded, collapsed or normalised, because the URI is the
//! grant, and what the operator wrote must be what the component gets.

use crate::error::{Error, ErrorKind};
use crate::limits;

/// A store's URI, split but not changed: `scheme://authority/path`, without a leading `wasm://`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct StoreUri {
    text: String,
    scheme_len: usize,
    /// Where the path starts in `text`; its length where there is none.
    path_at: usize,
}

impl StoreUri {
    /// Take a URI apart.
    ///
    /// ```
    /// # use kv_store_core as kv_store_wasm;
    /// use kv_store_wasm::StoreUri;
    /// let uri = StoreUri::parse("wasm://redis://cache.svc:6379/3").unwrap();
    /// assert_eq!((uri.scheme(), uri.authority(), uri.path()), ("redis", "cache.svc:6379", "/3"));
    /// assert_eq!(uri.as_str(), "redis://cache.svc:6379/3");
    /// assert!(StoreUri::parse("redis://me:secret@cache.svc").is_err());
    /// ```
    pub fn parse(text: &str) -> Result<Self, Error> {
        let text = text.strip_prefix("wasm://").unwrap_or(text);
        if text.len() > limits::MAX_URI_BYTES {
            return Err(Error::invalid(format!("the URI is longer than {} bytes", limits::MAX_URI_BYTES)));
        }
        let Some((scheme, rest)) = text.split_once("://") else {
            return Err(Error::invalid(
                "the URI has no scheme: write BACKEND://..., for example local-fs:///var/cache/kv",
            ));
        };
        check_scheme(scheme)?;
        if text.contains(|c: char| c.is_control()) {
            return Err(Error::invalid("the URI holds a control character"));
        }
        let path_in_rest = rest.find('/').unwrap_or(rest.len());
        let authority = rest.get(..path_in_rest).unwrap_or_default();
        // A password may hold a '/', which ends the authority; what could be one is not printed.
        let before = authority.rsplit_once('@').map(|(user, _)| user);
        let suspect = before.or_else(|| rest.contains('@').then_some(authority));
        if suspect.is_some_and(|user| user.contains(':')) {
            // Where another backend serves the scheme, the variable has that one's name: which one it is is not known here.
            let variable = variable_prefix(scheme) + "PASSWORD";
            return Err(Error::new(
                ErrorKind::Denied,
                format!(
                    "the URI holds a password, or a ':' before an '@' that could end one, and would show in process lists \
                     and logs: set the variable of the backend's secret instead, {variable} if the backend is named {scheme}"
                ),
            ));
        }
        let path_at = scheme.len() + "://".len() + path_in_rest;
        let names_something = !authority.is_empty() || text.len() > path_at + 1;
        let text = match text.strip_suffix('/') {
            Some(shorter) if names_something && shorter.len() >= path_at => shorter,
            _ => text,
        };
        Ok(StoreUri { text: text.to_owned(), scheme_len: scheme.len(), path_at })
    }

    /// The backend's own URI: what the component sees.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// What comes before `://`.
    pub fn scheme(&self) -> &str {
        self.text.get(..self.scheme_len).unwrap_or_default()
    }

    /// What lies between `://` and the next `/`; may be empty.
    pub fn authority(&self) -> &str {
        self.text.get(self.scheme_len + "://".len()..self.path_at).unwrap_or_default()
    }

    /// From the first `/` after `://` to the end; may be empty.
    pub fn path(&self) -> &str {
        self.text.get(self.path_at..).unwrap_or_default()
    }

    /// The same URI with another path.
    pub fn with_path(&self, path: &str) -> Self {
        let head = self.text.get(..self.path_at).unwrap_or_default();
        StoreUri { text: format!("{head}{path}"), ..*self }
    }
}

/// `MEMKV_` for `memkv`, `LOCAL_FS_` for `local-fs`: how the environment variables of a backend begin.
pub fn variable_prefix(scheme: &str) -> String {
    variable_name(scheme) + "_"
}

/// `LOCAL_FS` for `local-fs`: a name as it stands in the names of environment variables.
pub fn variable_name(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' }).collect()
}

pub fn check_scheme(scheme: &str) -> Result<(), Error> {
    let tame = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '+' | '.');
    if !scheme.starts_with(|c: char| c.is_ascii_lowercase()) || !scheme.chars().all(tame) {
        let shown: String = scheme.chars().filter(|c| !c.is_control()).take(40).collect();
        return Err(Error::invalid(format!(
            "{shown:?} is not a scheme: a lower-case letter, then lower-case letters, digits, '-', '+', '.'"
        )));
    }
    // Their variables would be LD_PRELOAD, KV_STORE_WASM_PATH and the like.
    if matches!(scheme, "ld" | "dyld" | "wasm") || variable_prefix(scheme).starts_with("KV_STORE_") {
        return Err(Error::invalid(format!("the scheme {scheme} is reserved")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leading_wasm_scheme_is_taken_off_once() {
        let plain = StoreUri::parse("redis://cache.svc:6379/3").unwrap();
        assert_eq!(StoreUri::parse("wasm://redis://cache.svc:6379/3").unwrap(), plain);
        assert!(StoreUri::parse("wasm://wasm://redis://h").is_err());
    }

    #[test]
    fn bytes_are_kept() {
        let uri = StoreUri::parse("local-fs:///a b/%2e%2e/../c").unwrap();
        assert_eq!(uri.path(), "/a b/%2e%2e/../c");
        assert_eq!(uri.authority(), "");
    }

    #[test]
    fn one_trailing_slash_has_no_meaning() {
        for (given, kept) in [
            ("local-fs:///dir/", "local-fs:///dir"),
            ("redis://h:1/", "redis://h:1"),
            ("memory://", "memory://"),
            ("local-fs:///", "local-fs:///"),
        ] {
            assert_eq!(StoreUri::parse(given).unwrap().as_str(), kept);
        }
    }

    #[test]
    fn a_password_is_refused_and_not_repeated() {
        let error = StoreUri::parse("wasm://redis://me:hunter2@h:1/0").unwrap_err();
        assert!(error.to_string().contains("REDIS_PASSWORD") && !error.to_string().contains("hunter2"));
        for text in ["redis://me:hun/ter2@h", "redis://:x@h", "redis://me:1/2@h:6379/0", "redis://a@b:c@h"] {
            assert!(StoreUri::parse(text).unwrap_err().to_string().contains("REDIS_PASSWORD"), "{text}");
        }
        for text in ["redis://me@h:1/0", "local-fs:///dir/a:b@c", "redis://h/a:b@c"] {
            assert!(StoreUri::parse(text).is_ok(), "{text}");
        }
    }

    #[test]
    fn what_is_no_uri_is_refused() {
        for text in ["", "redis", "://h", "Redis://h", "re dis://h", "ld://x", "kv-store-x://y", "redis://h\n"] {
            assert!(StoreUri::parse(text).is_err(), "{text:?}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_text_is_too_strange(text in "(wasm://)?[a-z]{0,4}(://)?\\PC{0,40}") {
            if let Ok(uri) = StoreUri::parse(&text) {
                let whole = format!("{}://{}{}", uri.scheme(), uri.authority(), uri.path());
                assert_eq!(whole, uri.as_str());
                assert!(text.contains(uri.as_str()));
                // What was accepted can be given again.
                assert_eq!(StoreUri::parse(uri.as_str()).map(|again| again.as_str().to_owned()).unwrap_or_default().trim_end_matches('/'), uri.as_str().trim_end_matches('/'));
            }
        }
    }
}
