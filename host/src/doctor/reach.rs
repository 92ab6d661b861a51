//! Whether the servers that a component is granted can be connected to, without the component.
//!
//! Invariant: nothing is resolved or connected to that the component could not reach, and no byte is sent.

use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::time::Duration;

use super::Reached;
use crate::policy::{GrantedServer, Grants, Host};

/// Every granted server that has a name or an address and one port, and what was not tried of the others.
pub(super) fn servers(grants: &Grants, patience: Duration) -> (Vec<Reached>, Vec<String>) {
    let mut not_tried = Vec::new();
    let mut reached: Vec<Reached> = Vec::new();
    let patterns = grants.connect.iter().map(|pattern| pattern.as_str());
    for name in grants.servers.iter().map(String::as_str).chain(patterns) {
        match grants.server(name) {
            Ok(granted) => {
                let outcome = connect(grants, &granted, patience);
                let server = granted.server.to_string();
                if reached.iter().any(|other| other.server == server) {
                    continue;
                }
                let (reached_at, why) = match outcome {
                    Ok(address) => (Some(address.to_string()), None),
                    Err(why) => (None, Some(why)),
                };
                reached.push(Reached { server, reached: reached_at, why });
            }
            // A URI without a port grants none by itself, and a pattern stands for many servers.
            Err(_) => not_tried.push(format!("connecting to {name}, which names no single host and port")),
        }
    }
    (reached, not_tried)
}

/// The first address that accepts a connection, of those that may be reached; or why none does.
fn connect(grants: &Grants, granted: &GrantedServer, patience: Duration) -> Result<SocketAddr, String> {
    let port = granted.server.port;
    let addresses: Vec<IpAddr> = match &granted.server.host {
        Host::Address(address) => vec![*address],
        Host::Name(name) => (name.as_str(), port)
            .to_socket_addrs()
            .map_err(|error| format!("cannot resolve {name}: {error}"))?
            .map(|address| address.ip())
            .collect(),
    };
    let mut why = "it has no address".to_owned();
    for address in addresses {
        if let Err(refused) = grants.check_address(granted, address) {
            why = refused.to_string();
            continue;
        }
        let address = SocketAddr::new(address, port);
        match TcpStream::connect_timeout(&address, patience) {
            Ok(_) => return Ok(address),
            Err(error) => why = format!("{address}: {error}"),
        }
    }
    Err(why)
}
