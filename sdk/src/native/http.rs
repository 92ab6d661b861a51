//! The contract's `http`: the bytes of requests and responses, which the [`Host`](super::Host) of the running call takes to a server and
//! brings back. Connections, TLS and what is sent again are left to the host.

use std::cell::Cell;

use super::host;
use super::payloads::{Part, Payload, joined};
use crate::Result;

/// A request as a host sends it.
#[derive(Clone, Debug)]
pub struct Message {
    pub method: String,
    /// `host:port`.
    pub authority: String,
    /// With the query.
    pub path: String,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    pub how: How,
}

/// How a request is to be made.
#[derive(Clone, Copy, Debug, Default)]
pub struct How {
    pub tls: bool,
    /// Nanoseconds. None: the operator's.
    pub patience: Option<u64>,
    /// Bytes.
    pub max_body: Option<u64>,
}

/// A response that has come whole.
#[derive(Clone, Debug)]
pub struct Reply {
    pub status: u16,
    /// Names in lower case.
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

#[derive(Default)]
pub struct RequestOptions {
    how: Cell<How>,
}

impl RequestOptions {
    pub fn new() -> Self {
        RequestOptions::default()
    }

    pub fn set_tls(&self, tls: bool) {
        self.how.set(How { tls, ..self.how.get() });
    }

    pub fn set_server_name(&self, _: &str) {}

    pub fn set_patience(&self, patience: u64) {
        self.how.set(How { patience: Some(patience), ..self.how.get() });
    }

    pub fn set_max_body(&self, bytes: u64) {
        self.how.set(How { max_body: Some(bytes), ..self.how.get() });
    }
}

pub struct Request<'a> {
    pub method: String,
    pub authority: String,
    pub path: String,
    pub headers: Vec<(String, String)>,
    pub body: Vec<Part<'a>>,
    pub item: Option<u32>,
    pub options: Option<&'a RequestOptions>,
}

#[derive(Debug)]
pub struct Response {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Payload,
}

pub fn send(requests: &[Request]) -> Vec<Result<Response>> {
    let message = |request: &Request| {
        let Request { method, authority, path, headers, body, item: _, options } = request;
        Ok(Message {
            method: method.clone(),
            authority: authority.clone(),
            path: path.clone(),
            headers: headers.clone(),
            body: joined(body)?,
            how: options.map(|options| options.how.get()).unwrap_or_default(),
        })
    };
    let messages: Vec<Result<Message>> = requests.iter().map(message).collect();
    let sent: Vec<Message> = messages.iter().filter_map(|message| message.as_ref().ok().cloned()).collect();
    let mut replies = host(|host| host.exchange(sent)).into_iter();
    let response = |message: Result<Message>| {
        message?;
        let Reply { status, headers, body } = replies.next().unwrap_or_else(|| Err(super::unanswered()))?;
        Ok(Response { status, headers, body: Payload::from_bytes(&body)? })
    };
    messages.into_iter().map(response).collect()
}
