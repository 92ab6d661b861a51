//! Servers as guests name them, and the patterns that grant them. A name is held against the patterns before it is
//! resolved.

use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;

use crate::error::Error;

/// `host:port`, taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    pub host: Host,
    pub port: u16,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Host {
    /// In lower case.
    Name(String),
    Address(IpAddr),
}

impl Server {
    /// Take `host:port`, `1.2.3.4:port` or `[v6]:port` apart.
    pub fn parse(authority: &str) -> Result<Self, Error> {
        let bad = || Error::invalid(format!("{:?} is no host:port", crate::log::clean(authority)));
        let (host, port) = split_port(authority);
        Ok(Server { host: Host::parse(host).ok_or_else(bad)?, port: port.ok_or_else(bad)? })
    }
}

impl Host {
    /// A name, an IPv4 address, or an IPv6 address in brackets.
    pub fn parse(text: &str) -> Option<Self> {
        if let Some(v6) = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            return v6.parse().ok().map(|v6| Host::Address(IpAddr::V6(v6)));
        }
        if let Ok(v4) = text.parse() {
            return Some(Host::Address(IpAddr::V4(v4)));
        }
        is_name(text).then(|| Host::Name(text.to_ascii_lowercase()))
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Host::Name(name) => f.write_str(name),
            Host::Address(IpAddr::V4(v4)) => v4.fmt(f),
            Host::Address(IpAddr::V6(v6)) => write!(f, "[{v6}]"),
        }
    }
}

/// One spelling for each server.
impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

/// What a resolver may be asked: letters, digits, `-`, `_` and `.`, no empty label.
fn is_name(text: &str) -> bool {
    let tame = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    text.len() <= 253 && text.split('.').all(|label| !label.is_empty() && label.len() <= 63 && label.chars().all(tame))
}

/// `host` and `port` of `host:port` or `[v6]:port`.
pub fn split_port(authority: &str) -> (&str, Option<u16>) {
    match authority.rsplit_once(':') {
        Some((host, port)) if !host.contains(':') || host.ends_with(']') => match port.parse() {
            // `+1` is a number to Rust.
            Ok(port) if !authority.contains('+') => (host, Some(port)),
            _ => (authority, None),
        },
        _ => (authority, None),
    }
}

/// Servers that the operator grants: an entry of `connect`.
///
/// | text | servers |
/// | --- | --- |
/// | `cache.svc:6379` | that name at that port |
/// | `*.svc.local:6379-6385` | every name that ends in `.svc.local`, at those ports |
/// | `*:443` | every name, at that port |
/// | `10.1.2.3:*`, `[fd00::7]:6379` | that address, at any port or that one |
/// | `10.0.0.*:15000-17000` | the addresses that begin so |
/// | `10.0.0.0/8:6379`, `[fd00::/8]:*` | the addresses of that network, named as such or resolved to |
#[derive(Clone, Debug, PartialEq, Eq, Hash, serde::Deserialize)]
#[serde(try_from = "String")]
pub struct Pattern {
    text: String,
    hosts: Hosts,
    ports: (u16, u16),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Hosts {
    Any,
    Name(String),
    /// `.svc.local`
    Below(String),
    Network(IpNet),
}

impl TryFrom<String> for Pattern {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let bad = |why: &str| {
            format!(
                "{text:?} {why}; write for example \"cache.svc:6379\", \"*.svc.local:6379-6385\", \"10.0.0.0/8:*\" or \"[fd00::/8]:6379\""
            )
        };
        let (host, ports) = text.rsplit_once(':').ok_or_else(|| bad("names no port"))?;
        let ports = parse_ports(ports).ok_or_else(|| bad("ends in no port, range of ports or '*'"))?;
        let hosts = if host == "*" {
            Hosts::Any
        } else if let Some(suffix) = host.strip_prefix("*.") {
            // `*.5` would be a part of an address.
            let named = is_name(suffix) && !suffix.ends_with(|c: char| c.is_ascii_digit());
            Hosts::Below(
                named
                    .then(|| format!(".{}", suffix.to_ascii_lowercase()))
                    .ok_or_else(|| bad("has no name after '*.'"))?,
            )
        } else if let Some(network) = below_v4(host) {
            Hosts::Network(network)
        } else if host.contains('/') {
            let inner = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
            let network: IpNet = inner.unwrap_or(host).parse().map_err(|_| bad("holds no network"))?;
            if inner.is_some() != network.addr().is_ipv6() {
                return Err(bad("needs brackets around an IPv6 network, and none around IPv4"));
            }
            if network.trunc() != network {
                return Err(bad("has bits set past its prefix"));
            }
            Hosts::Network(network)
        } else {
            match Host::parse(host) {
                Some(Host::Name(name)) => Hosts::Name(name),
                Some(Host::Address(address)) => Hosts::Network(address.into()),
                None => return Err(bad("holds no name and no address")),
            }
        };
        Ok(Pattern { text, hosts, ports })
    }
}

/// The network of `10.0.0.*` or `10.0.*.*`.
fn below_v4(host: &str) -> Option<IpNet> {
    let fixed = host.trim_end_matches(".*");
    let stars = host.len().checked_sub(fixed.len())? / ".*".len();
    let numbers = fixed.split('.').count();
    if stars == 0 || numbers + stars != 4 {
        return None;
    }
    let first = format!("{fixed}{}", ".0".repeat(stars)).parse().ok()?;
    IpNet::new(IpAddr::V4(first), u8::try_from(numbers * 8).ok()?).ok()
}

fn parse_ports(text: &str) -> Option<(u16, u16)> {
    let port = |text: &str| text.chars().all(|c| c.is_ascii_digit()).then(|| text.parse::<u16>().ok())?;
    let (first, last) = match text.split_once('-') {
        _ if text == "*" => (1, u16::MAX),
        None => (port(text)?, port(text)?),
        Some((first, last)) => (port(first)?, port(last)?),
    };
    (first > 0 && first <= last).then_some((first, last))
}

impl Pattern {
    /// Whether a server is granted by the name that the guest gives it.
    pub fn allows(&self, server: &Server) -> bool {
        self.has_port(server.port) && self.allows_host(&server.host)
    }

    /// The same for some port.
    pub fn allows_host(&self, host: &Host) -> bool {
        match (&self.hosts, host) {
            (Hosts::Any, Host::Name(_)) => true,
            (Hosts::Name(granted), Host::Name(name)) => granted == name,
            (Hosts::Below(suffix), Host::Name(name)) => name.len() > suffix.len() && name.ends_with(suffix.as_str()),
            (Hosts::Network(network), Host::Address(address)) => network.contains(address),
            _ => false,
        }
    }

    /// Whether the operator granted an address itself, whatever kind it is of.
    pub fn holds_address(&self, address: IpAddr, port: u16) -> bool {
        self.has_port(port)
            && matches!(&self.hosts, Hosts::Network(network) if network.contains(&address.to_canonical()))
    }

    fn has_port(&self, port: u16) -> bool {
        (self.ports.0..=self.ports.1).contains(&port)
    }

    /// As it is written in the config.
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(text: &str) -> Pattern {
        Pattern::try_from(text.to_owned()).unwrap()
    }

    fn allows(text: &str, server: &str) -> bool {
        pattern(text).allows(&Server::parse(server).unwrap())
    }

    #[test]
    fn a_name_grants_itself() {
        assert!(allows("cache.svc:6379", "Cache.SVC:6379"));
        for other in ["cache.svc:6380", "cache.svc.evil:6379", "acache.svc:6379", "10.0.0.1:6379"] {
            assert!(!allows("cache.svc:6379", other), "{other}");
        }
    }

    #[test]
    fn a_star_grants_the_names_below() {
        assert!(allows("*.svc.local:6379", "a.svc.local:6379"));
        assert!(allows("*.svc.local:6379", "a.b.SVC.local:6379"));
        for other in ["svc.local:6379", "asvc.local:6379", "a.svc.local.evil:6379", "a.svc.local:1"] {
            assert!(!allows("*.svc.local:6379", other), "{other}");
        }
        assert!(allows("*:443", "anything:443"));
        // An address is no name.
        assert!(!allows("*:443", "10.0.0.1:443"));
    }

    #[test]
    fn ports_are_one_a_range_or_all() {
        for (ports, first, last) in [("7000-7005", 7000, 7005), ("*", 1, 65535), ("80", 80, 80)] {
            let pattern = format!("h:{ports}");
            assert!(allows(&pattern, &format!("h:{first}")) && allows(&pattern, &format!("h:{last}")));
            if first > 1 {
                assert!(
                    !allows(&pattern, &format!("h:{}", first - 1)) && !allows(&pattern, &format!("h:{}", last + 1))
                );
            }
        }
    }

    #[test]
    fn networks_grant_their_addresses() {
        assert!(allows("10.0.0.0/8:6379", "10.1.2.3:6379"));
        assert!(!allows("10.0.0.0/8:6379", "11.1.2.3:6379"));
        assert!(!allows("10.0.0.0/8:6379", "name:6379"));
        assert!(allows("[fd00::/8]:*", "[fd12::1]:7"));
        assert!(allows("10.1.2.3:*", "10.1.2.3:7") && !allows("10.1.2.3:*", "10.1.2.4:7"));
        // A mapped address is another name for it, to be granted as such; what it leads to is the same.
        assert!(!allows("10.1.2.3:*", "[::ffff:10.1.2.3]:7"));
        assert!(pattern("169.254.0.0/16:80").holds_address("::ffff:169.254.169.254".parse().unwrap(), 80));
        assert!(!pattern("169.254.0.0/16:80").holds_address("169.254.169.254".parse().unwrap(), 81));
        assert!(!pattern("cache.svc:80").holds_address("169.254.169.254".parse().unwrap(), 80));
    }

    #[test]
    fn stars_at_the_end_of_an_address_are_a_network() {
        let range = "10.0.0.*:15000-17000";
        for server in ["10.0.0.1:15000", "10.0.0.255:17000"] {
            assert!(allows(range, server), "{server}");
        }
        for server in ["10.0.1.1:15000", "10.0.0.1:14999", "10.0.0.1:17001", "a.10.0.0.1:15000", "10.0.0.x:15000"] {
            assert!(!allows(range, server), "{server}");
        }
        assert!(allows("10.1.*.*:1", "10.1.2.3:1") && !allows("10.1.*.*:1", "10.2.2.3:1"));
        assert!(allows("127.0.0.1:*", "127.0.0.1:50051"));
        assert!(pattern("169.254.*.*:80").holds_address("169.254.169.254".parse().unwrap(), 80));
    }

    #[test]
    fn what_is_no_pattern_is_refused() {
        for text in [
            "",
            "cache.svc",
            ":6379",
            "cache.svc:",
            "cache.svc:0",
            "cache.svc:70000",
            "cache.svc:9-8",
            "cache.svc:+1",
            "a*.svc:1",
            "*.*.svc:1",
            "*.:1",
            "*.0.0.1:1",
            "10.*.0.1:1",
            "10.0.*:1",
            "10.0.0.0.*:1",
            "10.0.0.1*:1",
            "300.0.0.*:1",
            "*.*.*.*:1",
            "a.b.c.*:1",
            "10.0.0.1/8:1",
            "10.0.0.0/33:1",
            "fd00::/8:1",
            "[10.0.0.0/8]:1",
            "fe80::1:1",
            "[::1%eth0]:1",
            "a b:1",
            "a..b:1",
            "redis://h:1",
            "user@h:1",
            "h/3:1",
        ] {
            assert!(Pattern::try_from(text.to_owned()).is_err(), "{text:?}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_text_is_too_strange(text in "\\PC{0,40}") {
            let _ = Pattern::try_from(text.clone());
            if let Ok(server) = Server::parse(&text) {
                // One spelling, that reads as the same.
                assert_eq!(Server::parse(&server.to_string()).unwrap(), server);
            }
        }

        #[test]
        fn a_name_below_never_grants_what_does_not_end_in_it(host in "[a-z.]{1,12}") {
            if let Ok(server) = Server::parse(&format!("{host}:1")) {
                assert_eq!(pattern("*.b.c:1").allows(&server), host.ends_with(".b.c"));
            }
        }
    }
}
