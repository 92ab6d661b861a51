//! What a component may reach. The URI is the grant: the directory that it names, or the server, and the secrets of its
//! scheme. Decisions are pure functions of the URI and the config, but for [`Grants::check_overlap`], which looks where links
//! lead; what they allow is opened by the host.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};

use crate::config::Backend;
use crate::error::{Error, ErrorKind};
use crate::limits;
use crate::uri::{StoreUri, variable_prefix};

/// What one store's component is granted.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Grants {
    /// The directory that the URI names.
    pub directory: Option<PathBuf>,
    /// The server that the URI names: `host:port`, as it is written there.
    pub server: Option<String>,
    /// How the environment variables of its secrets begin: `REDIS_`.
    pub secret_prefix: String,
}

/// A URI seen with the operator's config: the store, what its component is granted, and what prefixes manifests.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Target {
    /// The store's own URI.
    pub store: StoreUri,
    pub grants: Grants,
    /// Comes before each manifest's name, with a `/` between.
    pub prefix: Option<String>,
}

impl Target {
    /// Decide what a URI means under a config.
    pub fn decide(uri: &StoreUri, config: &Backend) -> Result<Self, Error> {
        let (store, prefix) = match &config.root {
            None => (uri.clone(), None),
            Some(root) => split_at_root(uri, root)?,
        };
        let mut grants = Grants { directory: None, server: None, secret_prefix: variable_prefix(store.backend()) };
        if !store.authority().is_empty() {
            let server = store.authority();
            grants.server = Some(server.rsplit_once('@').map_or(server, |(_user, host)| host).to_owned());
        } else if !store.path().is_empty() {
            grants.directory = Some(directory(store.path())?);
        }
        Ok(Target { store, grants, prefix })
    }
}

impl Grants {
    /// The environment variable that holds a secret of this component.
    ///
    /// `Denied` where the name is not one that a secret can have.
    pub fn secret_variable(&self, name: &str) -> Result<String, Error> {
        let tame = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if name.is_empty() || name.len() > limits::MAX_SECRET_NAME_BYTES || !name.chars().all(tame) {
            let message = "a secret's name is 1 to 64 of a-z, 0-9 and '-', for example auth-key";
            return Err(Error::new(ErrorKind::Denied, message));
        }
        let mut variable = self.secret_prefix.clone() + &variable_prefix(name);
        variable.pop();
        // The loader's and our own, which a scheme and a name could spell together.
        if ["LD_", "DYLD_", "KV_STORE_"].iter().any(|reserved| variable.starts_with(reserved)) {
            return Err(Error::new(ErrorKind::Denied, format!("{variable} is nobody's secret")));
        }
        Ok(variable)
    }

    /// Whether the component may connect to `authority`, a name that it gives as in the URI. A URI without a port leaves
    /// the port to the backend.
    pub fn allows_server(&self, authority: &str) -> bool {
        let Some(granted) = &self.server else { return false };
        let (host, port) = split_port(authority);
        let (granted_host, granted_port) = split_port(granted);
        host.eq_ignore_ascii_case(granted_host) && port.is_some() && (granted_port.is_none() || port == granted_port)
    }

    /// Refuse a directory that holds, or lies in, what the host itself relies on.
    pub fn check_overlap(&self, guarded: &[(&str, PathBuf)]) -> Result<(), Error> {
        let Some(directory) = &self.directory else { return Ok(()) };
        let directory = real(directory);
        for (what, path) in guarded {
            let path = real(path);
            if directory.starts_with(&path) || path.starts_with(&directory) {
                let (directory, path) = (directory.display(), path.display());
                let message = format!("{directory} overlaps {what} at {path}: choose another directory for the store");
                return Err(Error::new(ErrorKind::Denied, message));
            }
        }
        Ok(())
    }
}

/// `host` and `port` of `host:port` or `[v6]:port`.
pub fn split_port(authority: &str) -> (&str, Option<u16>) {
    match authority.rsplit_once(':') {
        Some((host, port)) if !host.contains(':') || host.ends_with(']') => match port.parse() {
            Ok(port) => (host, Some(port)),
            Err(_) => (authority, None),
        },
        _ => (authority, None),
    }
}

/// An authority in one spelling, for what is kept by it.
pub fn canonical(authority: &str) -> String {
    let (host, port) = split_port(authority);
    let port = port.map(|port| format!(":{port}")).unwrap_or_default();
    host.to_ascii_lowercase() + &port
}

/// Whether the host connects to an address at all. A granted name may lead to a private network, but never to
/// link-local addresses, where clouds keep their metadata, nor to addresses that are no single machine's.
pub fn allows_address(address: IpAddr) -> bool {
    // Metadata services of clouds outside the link-local ranges.
    const METADATA_V4: [Ipv4Addr; 2] = [Ipv4Addr::new(100, 100, 100, 200), Ipv4Addr::new(192, 0, 0, 192)];
    const METADATA_V6: [Ipv6Addr; 2] =
        [Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254), Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254)];
    match address.to_canonical() {
        IpAddr::V4(v4) => {
            let nobodys = v4.is_link_local() || v4.is_unspecified() || v4.is_multicast() || v4.is_broadcast();
            !(nobodys || METADATA_V4.contains(&v4))
        }
        IpAddr::V6(v6) => {
            // An IPv4 address behind a translator (RFC 6052).
            if let [0x64, 0xff9b, 0, 0, 0, 0, high, low] = v6.segments() {
                let [a, b] = high.to_be_bytes();
                let [c, d] = low.to_be_bytes();
                return allows_address(Ipv4Addr::new(a, b, c, d).into());
            }
            let nobodys = v6.is_unicast_link_local() || v6.is_unspecified() || v6.is_multicast();
            !(nobodys || METADATA_V6.contains(&v6))
        }
    }
}

/// A path with links resolved, as far as it exists.
fn real(path: &Path) -> PathBuf {
    let resolved =
        path.ancestors().find_map(|upper| Some((upper.canonicalize().ok()?, path.strip_prefix(upper).ok()?)));
    resolved.map_or_else(|| path.to_owned(), |(real, rest)| real.join(rest))
}

/// The last part of a path may come from a request, so what could lead elsewhere is refused and not resolved.
fn directory(path: &str) -> Result<PathBuf, Error> {
    if path.split('/').any(|segment| segment == "." || segment == "..") {
        return Err(Error::new(ErrorKind::Denied, "the URI's path holds '.' or '..': write it without"));
    }
    Ok(PathBuf::from(path))
}

fn split_at_root(uri: &StoreUri, root: &str) -> Result<(StoreUri, Option<String>), Error> {
    let below = uri.path().strip_prefix(root).filter(|rest| rest.is_empty() || rest.starts_with('/'));
    let Some(rest) = below else {
        let (path, scheme) = (uri.path(), uri.backend());
        let message = format!("the path {path} is not below {root}, the root of backend.{scheme} in the config");
        return Err(Error::new(ErrorKind::Denied, message));
    };
    let prefix = rest.trim_matches('/');
    Ok((uri.with_path(root), (!prefix.is_empty()).then(|| prefix.to_owned())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(uri: &str, root: Option<&str>) -> Result<Target, Error> {
        let config = Backend { root: root.map(str::to_owned), ..Default::default() };
        Target::decide(&StoreUri::parse(uri).unwrap(), &config)
    }

    #[test]
    fn a_path_grants_a_directory_and_an_authority_a_server() {
        let file = target("local-fs:///var/kv", None).unwrap().grants;
        assert_eq!((file.directory, file.server), (Some("/var/kv".into()), None));
        let net = target("redis://me@cache.svc:6379/3", None).unwrap().grants;
        assert_eq!((net.directory, net.server.as_deref()), (None, Some("cache.svc:6379")));
        let none = target("memory://", None).unwrap().grants;
        assert_eq!((none.directory, none.server), (None, None));
    }

    #[test]
    fn a_relative_path_grants_no_directory() {
        assert_eq!(target("local-fs://relative", None).unwrap().grants.directory, None);
    }

    #[test]
    fn dots_are_refused() {
        for uri in ["local-fs:///kv/..", "local-fs:///kv/../etc", "local-fs:///./kv"] {
            assert_eq!(target(uri, None).unwrap_err().kind(), ErrorKind::Denied, "{uri}");
        }
        assert!(target("local-fs:///kv/...", None).is_ok());
    }

    #[test]
    fn a_root_ends_the_store_and_the_rest_prefixes_manifests() {
        let below = target("local-fs:///kv/slots/7.bin", Some("/kv")).unwrap();
        assert_eq!((below.store.as_str(), below.prefix.as_deref()), ("local-fs:///kv", Some("slots/7.bin")));
        assert_eq!(target("local-fs:///kv", Some("/kv")).unwrap().prefix, None);
        assert!(target("local-fs:///kvx/7", Some("/kv")).is_err());
        assert!(target("local-fs:///etc", Some("/kv")).is_err());
    }

    #[test]
    fn a_prefix_with_dots_is_only_a_name() {
        let below = target("local-fs:///kv/../x", Some("/kv")).unwrap();
        assert_eq!((below.grants.directory, below.prefix.as_deref()), (Some("/kv".into()), Some("../x")));
    }

    #[test]
    fn the_server_of_the_uri_is_granted_and_no_other() {
        let allows = |uri: &str, authority: &str| target(uri, None).unwrap().grants.allows_server(authority);
        assert!(allows("redis://me@cache.svc:6379/3", "cache.svc:6379"));
        assert!(allows("redis://Cache.svc:6379", "cache.SVC:6379"));
        assert!(allows("redis://[::1]:6379", "[::1]:6379"));
        assert!(allows("redis://cache.svc", "cache.svc:6379"));
        for authority in
            ["cache.svc:6380", "cache.svc", "cache.svc.evil:6379", "other:6379", "", ":6379", "unix:/run/x"]
        {
            assert!(!allows("redis://cache.svc:6379", authority), "{authority}");
        }
        assert!(!allows("local-fs:///dir", "localhost:1"));
        assert!(!allows("redis://[::1]", "::1:6379"));
    }

    #[test]
    fn addresses_of_clouds_and_crowds_are_refused() {
        for refused in [
            "169.254.169.254",
            "::ffff:169.254.169.254",
            "0.0.0.0",
            "::",
            "224.0.0.1",
            "255.255.255.255",
            "fe80::1",
            "fd00:ec2::254",
            "fd20:ce::254",
            "64:ff9b::a9fe:a9fe",
            "100.100.100.200",
            "ff02::1",
        ] {
            assert!(!allows_address(refused.parse().unwrap()), "{refused}");
        }
        for allowed in ["127.0.0.1", "::1", "10.0.0.1", "192.168.1.1", "fd00::1", "203.0.113.9"] {
            assert!(allows_address(allowed.parse().unwrap()), "{allowed}");
        }
    }

    #[test]
    fn secrets_are_named_within_the_scheme() {
        let grants = target("memkv://h:1", None).unwrap().grants;
        assert_eq!(grants.secret_variable("auth-key").unwrap(), "MEMKV_AUTH_KEY");
        for name in ["", "PATH", "a_b", "a/b", &"x".repeat(65)] {
            assert!(grants.secret_variable(name).is_err(), "{name}");
        }
        for (uri, name) in [("kv://h:1", "store-wasm-config"), ("ld-library://h:1", "path")] {
            assert!(target(uri, None).unwrap().grants.secret_variable(name).is_err(), "{name}");
        }
    }

    #[test]
    fn a_directory_that_overlaps_the_hosts_own_is_refused() {
        let grants = |path: &str| target(&format!("local-fs://{path}"), None).unwrap().grants;
        let guarded = [("the cache", PathBuf::from("/no/such/cache"))];
        for path in ["/no/such/cache", "/no/such/cache/x", "/no", "/"] {
            assert!(grants(path).check_overlap(&guarded).is_err(), "{path}");
        }
        assert!(grants("/no/such/cache2").check_overlap(&guarded).is_ok());

        // Also by way of a link, where the last part does not exist yet.
        let scratch = tempfile::tempdir().unwrap();
        let (cache, link) = (scratch.path().join("cache"), scratch.path().join("link"));
        std::fs::create_dir(&cache).unwrap();
        std::os::unix::fs::symlink(&cache, &link).unwrap();
        let below = grants(&format!("{}/new", link.display()));
        assert!(below.check_overlap(&[("the cache", cache)]).is_err());
    }
}
