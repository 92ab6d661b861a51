//! The URI: which server, which database, as whom.

use kv_store_sdk::uri::host_port;
use kv_store_sdk::{Error, Result};

const DEFAULT_PORT: u16 = 6379;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    pub user: Option<String>,
    /// `host:port` of each server: of one, or of nodes of a cluster.
    pub servers: Vec<String>,
    pub tls: bool,
    pub database: u32,
}

/// `redis://[USER@]HOST[:PORT][,HOST[:PORT]...][/DB]`, or `rediss://` for TLS.
pub fn parse(uri: &str) -> Result<Target> {
    let wrong = |what: &str| {
        Error::invalid(format!("{what}: expected redis://[USER@]HOST[:PORT][,HOST[:PORT]...][/DB], or rediss://"))
    };
    let (tls, rest) = match uri.strip_prefix("rediss://") {
        Some(rest) => (true, rest),
        None => (false, uri.strip_prefix("redis://").ok_or_else(|| wrong("the scheme is not redis"))?),
    };
    if rest.contains(['?', '#']) {
        return Err(wrong("a query or fragment has no meaning here; options belong in the config file"));
    }
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    let (user, hosts) = match authority.rsplit_once('@') {
        Some((user, host)) => (Some(user.to_owned()), host),
        None => (None, authority),
    };
    let mut servers = Vec::new();
    for host in hosts.split(',') {
        let server = host_port(host, DEFAULT_PORT).ok_or_else(|| wrong("no host"))?;
        if servers.contains(&server) {
            return Err(wrong("a server is named twice"));
        }
        servers.push(server);
    }
    let database = match path {
        "" => 0,
        number => number.parse::<u32>().map_err(|_| wrong("the database is not a number"))?,
    };
    // One spelling for each: what the operator grants by URI must not be there under another one.
    if !path.is_empty() && database.to_string() != path {
        return Err(wrong("the database is not a plain number"));
    }
    Ok(Target { user: user.filter(|user| !user.is_empty()), servers, tls, database })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_and_defaults() {
        let target = |user: Option<&str>, authority: &str, tls, database| Target {
            user: user.map(str::to_owned),
            servers: authority.split(' ').map(str::to_owned).collect(),
            tls,
            database,
        };
        for (uri, expected) in [
            ("redis://h", target(None, "h:6379", false, 0)),
            ("redis://h:1/3", target(None, "h:1", false, 3)),
            ("redis://me@h/12", target(Some("me"), "h:6379", false, 12)),
            ("redis://[::1]", target(None, "[::1]:6379", false, 0)),
            ("redis://[::1]:7/0", target(None, "[::1]:7", false, 0)),
            ("rediss://h/1", target(None, "h:6379", true, 1)),
            ("redis://me@a:1,b,[::1]:7/", target(Some("me"), "a:1 b:6379 [::1]:7", false, 0)),
        ] {
            assert_eq!(parse(uri).unwrap(), expected, "{uri}");
        }
        for uri in [
            "redis://",
            "redis://:1",
            "redis://a,",
            "redis://a,,b",
            "redis://a,a:6379",
            "redis://h/x",
            "redis://h/1/2",
            "redis://h?db=1",
            "redis://h/01",
            "redis://h/+1",
            "redisss://h",
            "h",
        ] {
            assert!(parse(uri).is_err(), "{uri}");
        }
    }
}
