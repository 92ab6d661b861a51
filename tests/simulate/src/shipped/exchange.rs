//! Requests over HTTP, as `host/src/contract/http` has them: each on a connection of its own, all at once. Connections are kept, and what
//! meets one that the server had closed is sent once more. What goes over the wire is written and read by the crate that the host uses too.

use kv_http_wire::{Body, Head, Request, host_value, is_idempotent, parse_head};
use kv_store_sdk::native::Stream;
use kv_store_sdk::native::http::{Message, Reply};
use kv_store_sdk::{Error, Result};

use super::call::Call;
use super::net::Near;
use crate::threads::Moment;

/// Bytes that are asked for at once.
const PIECE_BYTES: usize = 64 << 10;

/// A request as it is sent.
struct Asked {
    bytes: Vec<u8>,
    authority: String,
    to_head: bool,
    idempotent: bool,
    patience: Moment,
    max_body: u64,
}

/// Where it was sent.
struct Sent {
    near: Near,
    /// The connection has served others before.
    kept: bool,
    at: Moment,
}

/// Why there is no response.
struct Broken {
    error: Error,
    /// The server had closed the connection, and sent nothing.
    silent: bool,
}

impl From<Error> for Broken {
    fn from(error: Error) -> Self {
        Broken { error, silent: false }
    }
}

impl Asked {
    fn of(message: &Message, operators: Moment) -> Result<Self> {
        let Message { method, authority, path, headers, body, how } = message;
        let server = authority.rsplit_once(':').and_then(|(host, port)| Some((host, port.parse().ok()?)));
        let (host, port) = server.ok_or_else(|| Error::invalid("a server without a port"))?;
        let host = host_value(host, port, how.tls);
        let head = Request { method, host: &host, path, headers, body_len: body.len() as u64 };
        let head = head.head().map_err(|bad| Error::invalid(bad.0))?;
        Ok(Asked {
            bytes: [head, body.clone()].concat(),
            authority: authority.clone(),
            to_head: method == "HEAD",
            idempotent: is_idempotent(method),
            patience: how.patience.map_or(operators, |own| own.min(operators)),
            max_body: how.max_body.unwrap_or(u64::MAX),
        })
    }
}

impl Call {
    /// Make requests, all of them side by side.
    pub fn requests(&self, messages: &[Message]) -> Vec<Result<Reply>> {
        let operators = self.sim.plan.shape.patience;
        let asked: Vec<Result<Asked>> = messages.iter().map(|message| Asked::of(message, operators)).collect();
        let kept: Vec<Option<Near>> =
            asked.iter().map(|asked| asked.as_ref().ok().and_then(|asked| self.kept(&asked.authority))).collect();
        // One connects while another does.
        let connects = kept.iter().any(Option::is_none);
        let reached = if connects { self.reach() } else { Ok(()) };
        let send = |(asked, kept): (&Result<Asked>, Option<Near>)| {
            let asked = asked.as_ref().map_err(Error::clone)?;
            let (near, kept) = match kept {
                Some(near) => (near, true),
                None => (reached.clone().and_then(|()| self.opened(&asked.authority))?, false),
            };
            near.send(&asked.bytes)?;
            Ok(Sent { near, kept, at: self.sim.threads.moment() })
        };
        let sent: Vec<Result<Sent>> = asked.iter().zip(kept).map(send).collect();
        asked.into_iter().zip(sent).map(|(asked, sent)| self.answered(&asked?, sent?)).collect()
    }

    /// Wait for the response to a request, and keep its connection.
    fn answered(&self, asked: &Asked, sent: Sent) -> Result<Reply> {
        let (mut sent, mut came) = (Some(sent), None);
        while let Some(Sent { near, kept, at }) = sent.take() {
            came = Some(match self.response(asked, &near, at) {
                Err(Broken { silent: true, .. }) if kept && asked.idempotent => {
                    self.reach()?;
                    let near = self.opened(&asked.authority)?;
                    near.send(&asked.bytes)?;
                    sent = Some(Sent { near, kept: false, at: self.sim.threads.moment() });
                    continue;
                }
                Ok((reply, reusable)) => {
                    if reusable {
                        self.keep(&asked.authority, near);
                    }
                    Ok(reply)
                }
                Err(Broken { error, .. }) => Err(error),
            });
        }
        came.unwrap_or_else(|| Err(Error::other("the request was not sent")))
    }

    /// The response that comes on a connection, and whether that takes another request.
    fn response(&self, asked: &Asked, near: &Near, at: Moment) -> std::result::Result<(Reply, bool), Broken> {
        let (mut came, mut last): (Vec<u8>, Moment) = (Vec::new(), at);
        let mut more = |came: &mut Vec<u8>| {
            let piece = near.receive_since(PIECE_BYTES, last, asked.patience)?;
            last = self.sim.threads.moment();
            match piece.is_empty() {
                true => Err(Error::unavailable("the server closed the connection")),
                false => {
                    came.extend(piece);
                    Ok(())
                }
            }
        };
        let head = loop {
            match parse_head(&came, asked.to_head).map_err(|bad| Error::corrupt(bad.0))? {
                Some((head, len)) => {
                    came.drain(..len);
                    if !head.interim {
                        break head;
                    }
                }
                None => {
                    if let Err(error) = more(&mut came) {
                        return Err(Broken { error, silent: came.is_empty() && near.is_closed() });
                    }
                }
            }
        };
        let Head { status, headers, body, reusable, .. } = head;
        let Body::Length(len) = body else {
            return Err(Error::corrupt("the simulated server says how long its responses are").into());
        };
        if len > asked.max_body {
            let message = format!("the body of the response has {len} bytes, and {} may come", asked.max_body);
            return Err(Error::exhausted(message).into());
        }
        while (came.len() as u64) < len {
            more(&mut came)?;
        }
        let reusable = reusable && came.len() as u64 == len;
        Ok((Reply { status, headers, body: came }, reusable))
    }
}
