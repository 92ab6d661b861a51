//! Hosts and ports in URIs, and parameters that a backend does not know.

use crate::system::{Level, log};

/// `host:port` of a URI's authority, with a default for the port; none: there is no host. The colons of an IPv6 address are
/// inside brackets.
///
/// ```
/// use kv_store_sdk::uri::host_port;
/// assert_eq!(host_port("cache.svc", 6379).as_deref(), Some("cache.svc:6379"));
/// assert_eq!(host_port("[::1]:7", 6379).as_deref(), Some("[::1]:7"));
/// assert_eq!(host_port(":7", 6379), None);
/// ```
pub fn host_port(host: &str, default_port: u16) -> Option<String> {
    if host.is_empty() || host.starts_with(':') {
        return None;
    }
    let has_port = host.rsplit_once(':').is_some_and(|(_, port)| !port.contains(']'));
    Some(if has_port { host.to_owned() } else { format!("{host}:{default_port}") })
}

/// Each `host:port` of a URI's authority that names several, separated by commas, with a default for the port; none: one of them is no
/// host, or there is none. The host grants each of them, and no other.
///
/// ```
/// use kv_store_sdk::uri::host_ports;
/// assert_eq!(host_ports("a:1,[::1]", 7).unwrap(), ["a:1", "[::1]:7"]);
/// assert_eq!(host_ports("a:1,", 7), None);
/// ```
pub fn host_ports(hosts: &str, default_port: u16) -> Option<Vec<String>> {
    hosts.split(',').map(|host| host_port(host, default_port)).collect()
}

/// The part of a URI before its query, for a backend that takes no parameters. A query is logged as a warning: until the contract is
/// frozen such a URI opens, and with 1.0 `open` refuses it as `invalid`.
///
/// ```no_run
/// assert_eq!(kv_store_sdk::uri::without_query("acme://h/store?timeout=1"), "acme://h/store");
/// ```
pub fn without_query(uri: &str) -> &str {
    let Some((before, query)) = uri.split_once('?') else { return uri };
    let message =
        format!("?{query} has no effect: this backend takes no parameters in its URI, and later versions refuse them");
    log(Level::Warn, &message);
    before
}
