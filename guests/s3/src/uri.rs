//! The URI: which gateways, which bucket, and what comes before each key.

use kv_store_sdk::uri::host_port;
use kv_store_sdk::{Error, Result};

/// The ports of HTTPS and HTTP.
const TLS_PORT: u16 = 443;
const PLAIN_PORT: u16 = 80;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// `host:port`, one or more that serve the same bucket.
    pub gateways: Vec<String>,
    pub tls: bool,
    pub bucket: String,
    /// What comes before each key: empty, or ends in `/`.
    pub prefix: String,
}

/// Whether the bucket is named in the path or in front of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    Path,
    Virtual,
}

/// `s3://HOST[:PORT][,HOST[:PORT]...]/BUCKET[/PREFIX]`, or `s3+http://` without TLS.
pub fn parse(uri: &str) -> Result<Target> {
    let wrong =
        |what: &str| Error::invalid(format!("{what}: expected s3://HOST[:PORT]/BUCKET[/PREFIX], or s3+http://"));
    let (tls, rest) = match uri.strip_prefix("s3+http://") {
        Some(rest) => (false, rest),
        None => (true, uri.strip_prefix("s3://").ok_or_else(|| wrong("the scheme is not s3"))?),
    };
    if rest.contains(['?', '#']) {
        return Err(wrong("a query or fragment has no meaning here; options belong in the config file"));
    }
    let (hosts, path) = rest.split_once('/').ok_or_else(|| wrong("no bucket; the host comes first"))?;
    if hosts.contains('@') {
        return Err(wrong("keys never stand in a URI: set S3_ACCESS_KEY_ID and S3_SECRET_ACCESS_KEY"));
    }
    let port = if tls { TLS_PORT } else { PLAIN_PORT };
    let gateways: Option<Vec<String>> = hosts.split(',').map(|host| host_port(host, port)).collect();
    let gateways = gateways.ok_or_else(|| wrong("no host"))?;
    let (bucket, prefix) = path.split_once('/').unwrap_or((path, ""));
    let tame = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if bucket.is_empty() || bucket.len() > 255 || !bucket.chars().all(tame) || bucket.starts_with('.') {
        return Err(wrong("no bucket of letters, digits, '-', '_' and '.'"));
    }
    let prefix = prefix.trim_end_matches('/');
    if prefix.len() > 512
        || prefix.split('/').any(|segment| matches!(segment, "." | ".."))
        || format!("/{prefix}").contains("//")
    {
        return Err(wrong("the prefix is longer than 512 bytes or holds an empty segment, '.' or '..'"));
    }
    let prefix = if prefix.is_empty() { String::new() } else { format!("{prefix}/") };
    Ok(Target { gateways, tls, bucket: bucket.to_owned(), prefix })
}

impl Target {
    /// The server to connect to for a gateway.
    pub fn authority(&self, gateway: &str, style: Style) -> String {
        match style {
            Style::Path => gateway.to_owned(),
            Style::Virtual => format!("{}.{gateway}", self.bucket),
        }
    }

    /// The path of a key, or of the bucket where that is empty, percent-encoded.
    pub fn path(&self, key: &str, style: Style) -> String {
        let bucket = match style {
            Style::Path => format!("/{}", self.bucket),
            Style::Virtual => String::new(),
        };
        let path = if key.is_empty() { bucket } else { format!("{bucket}/{}", encode(key, true)) };
        if path.is_empty() { "/".to_owned() } else { path }
    }
}

/// The value of Host for an authority, as the contract's `http` sends it.
pub fn host_header(authority: &str, tls: bool) -> &str {
    authority.strip_suffix(if tls { ":443" } else { ":80" }).unwrap_or(authority)
}

/// Percent-encoding as the signature wants it: all but letters, digits and `-._~`, of a path all but `/` too.
pub fn encode(text: &str, path: bool) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) || (path && byte == b'/') {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_and_defaults() {
        let target = |gateways: &[&str], tls, bucket: &str, prefix: &str| Target {
            gateways: gateways.iter().map(|gateway| gateway.to_string()).collect(),
            tls,
            bucket: bucket.to_owned(),
            prefix: prefix.to_owned(),
        };
        for (uri, expected) in [
            ("s3://h/b", target(&["h:443"], true, "b", "")),
            ("s3+http://h/b", target(&["h:80"], false, "b", "")),
            ("s3+http://h:8333/b.c/p/q/", target(&["h:8333"], false, "b.c", "p/q/")),
            ("s3://[::1]:9/b/x y", target(&["[::1]:9"], true, "b", "x y/")),
            ("s3://h1:1,h2/b", target(&["h1:1", "h2:443"], true, "b", "")),
        ] {
            assert_eq!(parse(uri).unwrap(), expected, "{uri}");
        }
        for uri in [
            "redis://h/b",
            "s3://h",
            "s3:///b",
            "s3://h/",
            "s3://h/b?x=1",
            "s3://h/b#f",
            "s3://key@h/b",
            "s3://h/..",
            "s3://h/b/../c",
            "s3://h/b//c",
            "s3://h1,/b",
            "s3://h/b\u{e4}",
        ] {
            assert!(parse(uri).is_err(), "{uri}");
        }
    }

    #[test]
    fn a_bucket_is_named_in_the_path_or_in_front_of_the_host() {
        let target = parse("s3://h:1/b/p").unwrap();
        assert_eq!(
            (target.authority("h:1", Style::Path), target.path("p/k x", Style::Path)),
            ("h:1".into(), "/b/p/k%20x".into())
        );
        assert_eq!(
            (target.authority("h:1", Style::Virtual), target.path("", Style::Virtual)),
            ("b.h:1".into(), "/".into())
        );
        assert_eq!(target.path("", Style::Path), "/b");
        assert_eq!(
            (host_header("h:443", true), host_header("h:443", false), host_header("h:80", false)),
            ("h", "h:443", "h")
        );
    }
}
