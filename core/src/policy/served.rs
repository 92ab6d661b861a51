//! Which backend serves a scheme, and what is taken over of what its component says of itself: the schemes that it serves and
//! the port of each where a URI names none.
//!
//! Invariant: what a component declares is a stranger's word. It never takes a scheme from another component, which is
//! decided before (`loader::served`), and its port is granted only where [`Served::trusted`] says so: a stranger must not
//! choose the port of its own grant. Pure: the facts come in as values.

use super::endpoint::is_endpoint;
use crate::limits;
use crate::uri::check_scheme;

/// What a component declares in its section `kv-store-backend`: the lines `schemes`, `port` and `endpoint`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Declared {
    pub schemes: Vec<Scheme>,
    /// Of a scheme that has none of its own.
    port: Option<u16>,
    /// Where what a URI without a server names is, see [`super::at_endpoint`].
    pub endpoint: Option<String>,
}

/// A scheme that a component serves.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct Scheme {
    /// What comes before `://`.
    pub scheme: String,
    /// The port that a URI without one means. None: the component does not tell.
    pub port: Option<u16>,
}

impl Declared {
    /// What the pairs of a section say. What is no scheme or no port is left out, as are schemes past a bound.
    ///
    /// ```text
    /// schemes: s3 s3+http:80
    /// port: 443
    /// endpoint: https://s3.{region}.amazonaws.com
    /// ```
    pub fn of(section: &[(String, String)]) -> Self {
        let value = |key: &str| section.iter().find(|(there, _)| there == key).map(|(_, value)| value.as_str());
        let port = value("port").and_then(|port| parse_port(port.trim()));
        let schemes = value("schemes").unwrap_or_default().split_whitespace().filter_map(|entry| {
            let (scheme, own) = match entry.split_once(':') {
                Some((scheme, own)) => (scheme, Some(parse_port(own)?)),
                None => (entry, None),
            };
            check_scheme(scheme).ok()?;
            Some(Scheme { scheme: scheme.to_owned(), port: own.or(port) })
        });
        let endpoint = value("endpoint").map(str::trim).filter(|endpoint| is_endpoint(endpoint));
        let schemes = schemes.take(limits::MAX_DECLARED_SCHEMES).collect();
        Declared { schemes, port, endpoint: endpoint.map(str::to_owned) }
    }

    /// Whether it says that it serves a scheme.
    pub fn lists(&self, scheme: &str) -> bool {
        self.schemes.iter().any(|listed| listed.scheme == scheme)
    }

    /// The port that it takes by itself for a scheme. A component that lists no schemes means the one that it is found under.
    pub fn port(&self, scheme: &str) -> Option<u16> {
        match self.schemes.as_slice() {
            [] => self.port,
            schemes => schemes.iter().find(|listed| listed.scheme == scheme)?.port,
        }
    }
}

fn parse_port(text: &str) -> Option<u16> {
    // `+1` is a number to Rust.
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|port| digits && *port > 0)
}

/// Who serves a scheme.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Served {
    /// The backend's name: of its table in the config, of its secrets' variables, of its counters. The name under which its component is
    /// installed, which is the scheme itself unless a component with another name lists the scheme.
    pub backend: String,
    /// Without the schemes that another component serves.
    pub declared: Declared,
    /// The component ships with the library, or the config pins it by its SHA-256.
    pub trusted: bool,
}

impl Served {
    /// A scheme whose component says nothing, or is not there.
    pub fn by_name(scheme: &str) -> Self {
        Served { backend: scheme.to_owned(), declared: Declared::default(), trusted: false }
    }

    /// The port that is granted and meant where a URI of the scheme names none.
    pub fn port(&self, scheme: &str) -> Option<u16> {
        self.declared.port(scheme).filter(|_| self.trusted)
    }

    /// The schemes of the backend beside its name.
    pub fn aliases(&self) -> impl Iterator<Item = &str> {
        let listed = self.declared.schemes.iter().map(|listed| listed.scheme.as_str());
        listed.filter(|scheme| *scheme != self.backend)
    }
}

/// For tests: a trusted component that says this of itself.
#[cfg(test)]
pub fn trusted(backend: &str, schemes: &str, port: u16) -> Served {
    let section = [("schemes", schemes.to_owned()), ("port", port.to_string())];
    let declared = Declared::of(&section.map(|(key, value)| (key.to_owned(), value)));
    Served { backend: backend.to_owned(), declared, trusted: true }
}

/// For tests: redis as it ships, and of every other scheme a component that says nothing.
#[cfg(test)]
pub fn as_shipped(scheme: &str) -> Served {
    match scheme {
        "redis" | "rediss" => trusted("redis", "redis rediss", 6379),
        other => Served::by_name(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn declared(section: &[(&str, &str)]) -> Declared {
        Declared::of(&section.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect::<Vec<_>>())
    }

    #[test]
    fn a_scheme_has_its_own_port_or_that_of_all() {
        let s3 = declared(&[("wish", "x"), ("schemes", "s3 s3+http:80 "), ("port", "443")]);
        assert_eq!((s3.port("s3"), s3.port("s3+http"), s3.port("other")), (Some(443), Some(80), None));
        assert!(s3.lists("s3+http") && !s3.lists("http"));
        let files = declared(&[("schemes", "local-fs")]);
        assert_eq!((files.lists("local-fs"), files.port("local-fs")), (true, None));
        // Without a list it is that of the scheme under which the component is found; of former versions nothing is known.
        assert_eq!(declared(&[("port", "7")]).port("acme"), Some(7));
        assert_eq!(declared(&[("wish", "port: 7")]), Declared::default());
    }

    #[test]
    fn what_makes_no_sense_is_left_out() {
        let odd = declared(&[("schemes", "ok Upper ld kv-store-x wasm a/b z:0 y:+7 x:70000 w: :7 v:8:9 u:9")]);
        assert_eq!(odd.schemes.iter().map(|listed| listed.scheme.as_str()).collect::<Vec<_>>(), ["ok", "u"]);
        for port in ["0", "65536", "+7", "-7", "", "7 8", "0x7"] {
            assert_eq!(declared(&[("port", port)]).port("acme"), None, "{port:?}");
        }
        let many: String = (0..1000).map(|n| format!("s{n} ")).collect();
        assert_eq!(declared(&[("schemes", &many)]).schemes.len(), limits::MAX_DECLARED_SCHEMES);
    }

    #[test]
    fn a_strangers_port_is_not_taken() {
        let acme = declared(&[("schemes", "acme acmes"), ("port", "22")]);
        let mut served = Served { declared: acme, ..Served::by_name("acme") };
        assert_eq!(served.port("acme"), None);
        served.trusted = true;
        assert_eq!((served.port("acme"), served.port("acmes"), served.port("redis")), (Some(22), Some(22), None));
        assert_eq!(served.aliases().collect::<Vec<_>>(), ["acmes"]);
    }

    proptest::proptest! {
        #[test]
        fn no_text_is_too_strange(schemes in "([a-z]{1,3}:?[0-9]{0,6} ?|\\PC){0,8}", port in "\\PC{0,6}") {
            let declared = declared(&[("schemes", &schemes), ("port", &port)]);
            assert!(declared.schemes.iter().all(|listed| check_scheme(&listed.scheme).is_ok() && listed.port != Some(0)));
        }
    }
}
