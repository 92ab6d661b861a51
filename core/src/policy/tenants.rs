//! Which tenant a URI belongs to. A tenant is a prefix of URIs, held against them part by part and never as text:
//! `local-fs:///kv/a` covers `local-fs:///kv/a/x` and not `local-fs:///kv/ab`, `redis://h` covers `redis://H:6379/3`.
//!
//! Which port a URI means that names none is the backend's to say ([`Served::port`](super::Served::port)), and is handed in. Where it is
//! not known, a prefix and a URI on one server of which only one names a port are refused: they may be the same server and may not.

use crate::error::{Error, ErrorKind};
use crate::uri::StoreUri;

use super::servers::{Host, split_port};

/// The URIs of one tenant. Two are the same if they cover the same.
#[derive(Clone, Debug, serde::Deserialize)]
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

    /// What the URIs that it covers have in common. `port`: the one that is meant where none is named, if it is known.
    pub fn site(&self, port: Option<u16>) -> Site {
        Site::of(&self.0, port)
    }
}

/// A place that a tenant can have, in one spelling: a server or several, with or without a user, and whole parts of a path below.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Site {
    pub scheme: String,
    /// One host; of several servers all of them with their ports, in one order.
    pub host: String,
    pub port: Option<u16>,
    user: Option<String>,
    /// Each part with a `/` before it.
    path: String,
}

impl Site {
    /// `port`: the one that is meant where none is named, if it is known.
    pub fn of(uri: &StoreUri, port: Option<u16>) -> Self {
        let (user, _) = split_user(uri.authority());
        let (host, port) = canonical(uri, port);
        let path = segments(uri).fold(String::new(), |path, segment| path + "/" + segment);
        Site { scheme: uri.scheme().to_owned(), host, port, user: user.map(str::to_owned), path }
    }

    /// The places that cover it, the closest first: of two the one with the longer path, then the one that names the user,
    /// and at last the whole scheme.
    pub fn covering(&self) -> impl Iterator<Item = Site> {
        let paths = std::iter::successors(Some(self.path.as_str()), |path| Some(path.rsplit_once('/')?.0));
        let below = paths.flat_map(|path| {
            let with = |user| Site { user, path: path.to_owned(), ..self.clone() };
            self.user.clone().map(|user| with(Some(user))).into_iter().chain([with(None)])
        });
        let scheme = Site { host: String::new(), user: None, path: String::new(), port: None, ..self.clone() };
        below.chain([scheme])
    }
}

/// Refuse a path that could be read in two ways: one by whoever picks the tenant, and another by the backend.
pub fn check_plain(uri: &StoreUri) -> Result<(), Error> {
    let lower = uri.path().to_ascii_lowercase();
    let hidden = ["%2e", "%2f", "%5c", "\\"].iter().any(|written| lower.contains(written));
    let path = uri.path().strip_prefix('/').unwrap_or_default();
    let plain = path.is_empty() || path.split('/').all(|segment| !matches!(segment, "" | "." | ".."));
    if hidden || !plain {
        let message =
            "a scheme with tenants takes no URI whose path has '.', '..', empty parts or their percent-encoding";
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

/// The servers of a URI, each once and in one spelling, with the port that is meant as far as it is known; what is none as it is.
pub fn servers(uri: &StoreUri, port: Option<u16>) -> Vec<(String, Option<u16>)> {
    let (_, servers) = split_user(uri.authority());
    let mut servers: Vec<_> = servers.split(',').map(|server| canonical_server(server, port)).collect();
    servers.sort();
    servers.dedup();
    servers
}

/// The same as one host with its port. What several servers are is no name that a single one can have.
fn canonical(uri: &StoreUri, port: Option<u16>) -> (String, Option<u16>) {
    let servers = servers(uri, port);
    if let [(host, port)] = servers.as_slice() {
        return (host.clone(), *port);
    }
    let named = servers.into_iter().map(|(host, port)| port.map_or(host.clone(), |port| format!("{host}:{port}")));
    (named.collect::<Vec<_>>().join(","), None)
}

fn canonical_server(server: &str, meant: Option<u16>) -> (String, Option<u16>) {
    // A whole scheme is no server.
    let meant = meant.filter(|_| !server.is_empty());
    let (host, port) = split_port(server);
    let host = match Host::parse(host) {
        // An IPv6 address that stands for an IPv4 address leads to the same server.
        Some(Host::Address(address)) => Host::Address(address.to_canonical()).to_string(),
        Some(name) => name.to_string(),
        None => host.to_owned(),
    };
    (host, port.or(meant))
}

/// What a prefix covers, said without an index: [`Site`] is held against it.
#[cfg(test)]
impl Prefix {
    /// How closely the prefix names a URI; none if it does not cover it. Of two that cover one, the longer path is closer,
    /// then the one that names the user.
    pub fn covers(&self, uri: &StoreUri, port: Option<u16>) -> Option<(usize, bool, bool)> {
        if self.0.scheme() != uri.scheme() {
            return None;
        }
        if self.is_whole_scheme() {
            return Some((0, false, false));
        }
        let (my_user, _) = split_user(self.0.authority());
        let (user, _) = split_user(uri.authority());
        if canonical(&self.0, port) != canonical(uri, port) || (my_user.is_some() && my_user != user) {
            return None;
        }
        let mut theirs = segments(uri);
        let covered = segments(&self.0).all(|segment| theirs.next() == Some(segment));
        covered.then(|| (segments(&self.0).count(), my_user.is_some(), true))
    }

    /// Whether it cannot be told if a URI is on the server of this prefix: only one of the two names a port, and the host does
    /// not know which one the backend takes.
    pub fn is_unclear(&self, uri: &StoreUri, port: Option<u16>) -> bool {
        let ((host, port), (other, others)) = (canonical(&self.0, port), canonical(uri, port));
        let same_host = self.0.scheme() == uri.scheme() && !host.is_empty() && host == other;
        same_host && port.is_some() != others.is_some()
    }

    fn is_whole_scheme(&self) -> bool {
        self.0.authority().is_empty() && segments(&self.0).next().is_none()
    }
}

#[cfg(test)]
impl PartialEq for Prefix {
    fn eq(&self, other: &Self) -> bool {
        self.covers(&other.0, tests::port(&self.0)).is_some() && other.covers(&self.0, tests::port(&self.0)).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The port that a URI means that names none, where these tests take it as known.
    pub(super) fn port(uri: &StoreUri) -> Option<u16> {
        [("redis", 6379), ("rediss", 6379), ("memkv", 9900)]
            .into_iter()
            .find(|(scheme, _)| *scheme == uri.scheme())
            .map(|(_, port)| port)
    }

    fn prefix(text: &str) -> Prefix {
        Prefix::try_from(text.to_owned()).unwrap()
    }

    /// How many parts of the path, and whether the user, a prefix names of a URI that it covers.
    fn covers(text: &str, uri: &str) -> Option<(usize, bool)> {
        let uri = StoreUri::parse(uri).unwrap();
        prefix(text).covers(&uri, port(&uri)).map(|(parts, user, _)| (parts, user))
    }

    fn is_unclear(mine: &str, theirs: &str) -> bool {
        let theirs = StoreUri::parse(theirs).unwrap();
        prefix(mine).is_unclear(&theirs, port(&theirs))
    }

    #[test]
    fn the_port_that_is_meant_is_one_that_is_named() {
        for [one, other] in [
            ["redis://h", "redis://h:6379"],
            ["redis://h/7", "redis://H:6379/7"],
            ["rediss://h/7", "rediss://h:6379/7"],
            ["memkv://[::1]/n", "memkv://[0::1]:9900/n"],
            ["redis://10.0.0.1/7", "redis://[::ffff:10.0.0.1]:6379/7"],
        ] {
            for (mine, theirs) in [(one, other), (other, one)] {
                assert!(covers(mine, theirs).is_some(), "{mine} {theirs}");
                assert!(covers(mine, &format!("{theirs}/more")).is_some(), "{mine} {theirs}");
                assert!(!is_unclear(mine, theirs));
            }
            assert!(prefix(one) == prefix(other), "{one} {other}");
        }
        for (mine, theirs) in
            [("redis://h", "redis://h:6380"), ("redis://h:6380", "redis://h"), ("redis://h", "rediss://h")]
        {
            assert_eq!(covers(mine, theirs), None, "{mine} {theirs}");
            assert!(prefix(mine) != prefix(theirs) && !is_unclear(mine, theirs));
        }
    }

    #[test]
    fn several_servers_have_one_spelling() {
        for uri in ["redis://h,i:7/1", "redis://I:7,h:6379/1", "redis://h,i:7,h:6379/1"] {
            assert_eq!(covers("redis://h:6379,i:7", uri), Some((0, false)), "{uri}");
        }
        for uri in ["redis://h/1", "redis://h,i/1", "redis://h,i:7,j/1"] {
            assert_eq!(covers("redis://h:6379,i:7", uri), None, "{uri}");
        }
        // One that is there twice is one.
        assert_eq!(covers("redis://h/1", "redis://h,H:6379/1"), Some((1, false)));
    }

    #[test]
    fn a_port_that_only_the_backend_knows_is_unclear() {
        let unclear = is_unclear;
        assert!(unclear("acme://h/a", "acme://h:99/b") && unclear("acme://h:99", "acme://me@H"));
        assert!(!unclear("acme://h:99", "acme://h:99") && !unclear("acme://h:99", "acme://i"));
        assert!(!unclear("acme://", "acme://h:99") && !unclear("acme:///a", "acme:///b"));
    }

    #[test]
    fn whole_parts_are_compared() {
        assert_eq!(covers("local-fs:///kv/a", "local-fs:///kv/a"), Some((2, false)));
        assert_eq!(covers("local-fs:///kv/a/", "wasm://local-fs:///kv/a/x/"), Some((2, false)));
        for other in ["local-fs:///kv/ab", "local-fs:///kv/A", "local-fs:///kv", "local-fs://kv/a", "other:///kv/a"] {
            assert_eq!(covers("local-fs:///kv/a", other), None, "{other}");
        }
        assert_eq!(covers("redis://h:6379/1", "redis://h:6379/12"), None);
        assert_eq!(covers("redis://h:6379", "redis://h:63790/1"), None);
        assert_eq!(covers("redis://h:6379", "redis://h.evil:6379"), None);
    }

    #[test]
    fn a_server_has_many_spellings_and_a_user_is_a_part() {
        assert_eq!(covers("redis://Cache.svc:6379/1", "redis://cache.SVC:6379/1"), Some((1, false)));
        assert_eq!(covers("redis://[::1]:6379", "redis://[0:0::1]:6379/1"), Some((0, false)));
        assert_eq!(covers("redis://h:1/3", "redis://me@h:1/3"), Some((1, false)));
        assert_eq!(covers("redis://me@h:1/3", "redis://me@h:1/3"), Some((1, true)));
        assert_eq!(covers("redis://me@h:1/3", "redis://you@h:1/3"), None);
        assert_eq!(covers("redis://me@h:1/3", "redis://h:1/3"), None);
    }

    #[test]
    fn a_scheme_alone_covers_all_of_it() {
        assert_eq!(covers("redis://", "redis://h:1/3"), Some((0, false)));
        assert_eq!(covers("local-fs://", "local-fs:///kv"), Some((0, false)));
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
                let covers = |text: String| prefix.covers(&StoreUri::parse(&text).unwrap(), None).is_some();
                assert!(covers(text.clone()));
                assert!(covers(format!("{text}/{more}")));
                assert!(!covers(format!("{text}{more}")));
            }
        }
    }

    proptest::proptest! {
        #[test]
        fn a_site_is_covered_by_what_the_prefix_covers(
            prefix in "(s|redis|rediss)://((me@|you@)?(h|H|i|10.0.0.1|\\[::ffff:10.0.0.1\\])(:6379|:7)?)?(/[ab]{1,2}){0,3}",
            uri in "(s|redis|rediss)://((me@|you@)?(h|i|10.0.0.1)(:6379|:7)?)?(/[ab]{1,2}){0,3}",
        ) {
            if let (Ok(prefix), Ok(uri)) = (Prefix::try_from(prefix), StoreUri::parse(&uri)) {
                let known = port(&uri);
                let found = Site::of(&uri, known).covering().any(|site| site == prefix.site(known));
                assert_eq!(found, prefix.covers(&uri, known).is_some());
            }
        }

        #[test]
        fn the_closest_comes_first(uri in "redis://(me@)?h(/[ab]){0,3}") {
            let uri = StoreUri::parse(&uri).unwrap();
            let text = |site: Site| {
                let user = site.user.map(|user| user + "@").unwrap_or_default();
                Prefix::try_from(format!("redis://{user}{}{}", site.host, site.path)).unwrap()
            };
            let close: Vec<_> =
                Site::of(&uri, None).covering().map(|site| text(site).covers(&uri, None).unwrap()).collect();
            assert!(close.is_sorted_by(|closer, wider| closer > wider), "{close:?}");
        }
    }
}
