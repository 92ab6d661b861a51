//! Which tenant a URI belongs to. A tenant is a prefix of URIs, held against them part by part and never as text:
//! `local-fs:///kv/a` covers `local-fs:///kv/a/x` and not `local-fs:///kv/ab`.

use crate::error::{Error, ErrorKind};
use crate::uri::StoreUri;

use super::servers::{Host, split_port};

/// The URIs of one tenant.
#[derive(Clone, Debug, PartialEq, Eq, Hash, serde::Deserialize)]
#[serde(try_from = "String")]
pub struct Prefix(StoreUri);

impl TryFrom<String> for Prefix {
    type Error = Error;

    fn try_from(text: String) -> Result<Self, Error> {
        let uri = StoreUri::parse(&text)?;
        if uri.path().contains(['?', '#']) {
            return Err(Error::invalid(format!("{text}: a tenant's uri ends with its path")));
        }
        check_plain(&uri)?;
        Ok(Prefix(uri))
    }
}

impl Prefix {
    pub fn uri(&self) -> &StoreUri {
        &self.0
    }

    /// How closely the prefix names a URI; none if it does not cover it.
    pub fn covers(&self, uri: &StoreUri) -> Option<usize> {
        if self.0.scheme() != uri.scheme() {
            return None;
        }
        let (mine, whole_scheme) = (&self.0, self.0.authority().is_empty() && segments(&self.0).next().is_none());
        if whole_scheme {
            return Some(0);
        }
        let (my_user, my_server) = split_user(mine.authority());
        let (user, server) = split_user(uri.authority());
        if canonical(my_server) != canonical(server) || (my_user.is_some() && my_user != user) {
            return None;
        }
        let mut theirs = segments(uri);
        let mut depth = 1 + usize::from(my_user.is_some());
        for segment in segments(mine) {
            if theirs.next() != Some(segment) {
                return None;
            }
            depth += 1;
        }
        Some(depth)
    }
}

/// Refuse a path that could be read in two ways: one by whoever picks the tenant, and another by the backend.
pub fn check_plain(uri: &StoreUri) -> Result<(), Error> {
    let lower = uri.path().to_ascii_lowercase();
    let hidden = ["%2e", "%2f", "%5c", "\\"].iter().any(|written| lower.contains(written));
    let path = uri.path().strip_prefix('/').unwrap_or_default();
    let plain = path.is_empty() || path.split('/').all(|segment| !matches!(segment, "" | "." | ".."));
    if hidden || !plain {
        let message = "where tenants are told apart, a URI's path has no '.', '..' or empty parts, however written";
        return Err(Error::new(ErrorKind::Denied, message));
    }
    Ok(())
}

fn segments(uri: &StoreUri) -> impl Iterator<Item = &str> {
    uri.path().split('/').filter(|segment| !segment.is_empty())
}

fn split_user(authority: &str) -> (Option<&str>, &str) {
    authority.rsplit_once('@').map_or((None, authority), |(user, server)| (Some(user), server))
}

/// A server in one spelling; what is none as it is.
fn canonical(server: &str) -> (String, Option<u16>) {
    let (host, port) = split_port(server);
    (Host::parse(host).map_or_else(|| host.to_owned(), |host| host.to_string()), port)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn covers(prefix: &str, uri: &str) -> Option<usize> {
        Prefix::try_from(prefix.to_owned()).unwrap().covers(&StoreUri::parse(uri).unwrap())
    }

    #[test]
    fn whole_parts_are_compared() {
        assert_eq!(covers("local-fs:///kv/a", "local-fs:///kv/a"), Some(3));
        assert_eq!(covers("local-fs:///kv/a/", "wasm://local-fs:///kv/a/x/"), Some(3));
        for other in ["local-fs:///kv/ab", "local-fs:///kv/A", "local-fs:///kv", "local-fs://kv/a", "other:///kv/a"] {
            assert_eq!(covers("local-fs:///kv/a", other), None, "{other}");
        }
        assert_eq!(covers("redis://h:6379/1", "redis://h:6379/12"), None);
        assert_eq!(covers("redis://h:6379", "redis://h:63790/1"), None);
        assert_eq!(covers("redis://h:6379", "redis://h.evil:6379"), None);
    }

    #[test]
    fn a_server_has_many_spellings_and_a_user_is_a_part() {
        assert_eq!(covers("redis://Cache.svc:6379/1", "redis://cache.SVC:6379/1"), Some(2));
        assert_eq!(covers("redis://[::1]:6379", "redis://[0:0::1]:6379/1"), Some(1));
        assert_eq!(covers("redis://h:1/3", "redis://me@h:1/3"), Some(2));
        assert_eq!(covers("redis://me@h:1/3", "redis://me@h:1/3"), Some(3));
        assert_eq!(covers("redis://me@h:1/3", "redis://you@h:1/3"), None);
        assert_eq!(covers("redis://me@h:1/3", "redis://h:1/3"), None);
    }

    #[test]
    fn a_scheme_alone_covers_all_of_it() {
        assert_eq!(covers("redis://", "redis://h:1/3"), Some(0));
        assert_eq!(covers("local-fs://", "local-fs:///kv"), Some(0));
        assert_eq!(covers("redis://", "memory://x"), None);
    }

    #[test]
    fn what_can_be_read_in_two_ways_is_refused() {
        for uri in [
            "local-fs:///kv/a/../b",
            "local-fs:///kv/./a",
            "local-fs:///kv//a",
            "local-fs:///kv/%2e%2E/b",
            "s3://b/a%2Fb",
            "s3://b/a\\b",
            "local-fs:///kv/a//",
        ] {
            assert!(check_plain(&StoreUri::parse(uri).unwrap()).is_err(), "{uri}");
        }
        for uri in ["local-fs:///kv/a...b/.c", "redis://h/3", "redis://h", "memory://"] {
            assert!(check_plain(&StoreUri::parse(uri).unwrap()).is_ok(), "{uri}");
        }
    }

    proptest::proptest! {
        #[test]
        fn a_prefix_covers_itself_and_what_is_below_it_and_nothing_beside_it(
            path in "(/[a-z%.]{1,3}){0,3}", more in "[a-z]{1,3}", server in "[a-z]{0,3}",
        ) {
            let text = format!("s://{server}{path}");
            if let Ok(prefix) = Prefix::try_from(text.clone())
                && !(server.is_empty() && path.is_empty())
            {
                let covers = |text: String| prefix.covers(&StoreUri::parse(&text).unwrap()).is_some();
                assert!(covers(text.clone()));
                assert!(covers(format!("{text}/{more}")));
                assert!(!covers(format!("{text}{more}")));
            }
        }
    }
}
