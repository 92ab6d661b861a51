//! Conversations: a connection to a server that is asked in each call and given back after it.
//!
//! The host keeps an idle connection for the next call, so a backend needs no reconnecting of its own. What it must know is
//! whether all that was asked has been answered: only then the next answer belongs to the next question, and only such a
//! connection is given back. A [`Conversation`] keeps that in mind: any failure of its own, but for want of room, and any that
//! [`Conversation::in_step`] is told of, ends it.

use std::cell::Cell;

use crate::net::{self, ConnectOptions, Connection};
use crate::payloads::Part;
use crate::{Error, ErrorKind, Payload, Result};

/// A server, and how to connect to it. Made once and kept, because making options costs calls of the host.
pub struct Peer {
    authority: String,
    options: ConnectOptions,
}

impl Peer {
    /// `session` names all that is set on a connection, and no secret: see the contract's `set-session`. [`Error::invalid`]: it is too
    /// long.
    pub fn new(authority: impl Into<String>, tls: bool, session: &str) -> Result<Self> {
        let options = ConnectOptions::new();
        options.set_tls(tls);
        options.set_session(session)?;
        Ok(Peer { authority: authority.into(), options })
    }

    /// `host:port`.
    pub fn authority(&self) -> &str {
        &self.authority
    }

    /// What else a connection is to have.
    pub fn options(&self) -> &ConnectOptions {
        &self.options
    }
}

/// A connection in use.
pub struct Conversation {
    connection: Connection,
    in_step: Cell<bool>,
}

impl Conversation {
    /// Talk to a server. `greet` is for a new connection. A kept one that turns out to be closed is replaced once: all that is said may
    /// be repeated. A server that was waited for in vain is not asked again.
    pub fn hold<T>(
        peer: &Peer,
        greet: impl Fn(&Conversation) -> Result<()>,
        talk: impl Fn(&Conversation) -> Result<T>,
    ) -> Result<T> {
        let begin = || {
            let connection = net::connect(&peer.authority, Some(&peer.options))?;
            let conversation = Conversation::on(connection);
            if !conversation.connection.resumed() {
                greet(&conversation)?;
            }
            Ok(conversation)
        };
        let mut conversation: Conversation = begin()?;
        let mut outcome = talk(&conversation);
        if let Err(error) = &outcome
            && error.kind == ErrorKind::Unavailable
            && !error.has_run_out()
            && conversation.connection.resumed()
            && !conversation.is_in_step()
        {
            drop(conversation);
            conversation = begin()?;
            outcome = talk(&conversation);
        }
        conversation.end();
        outcome
    }

    /// Talk on this connection.
    pub(crate) fn on(connection: Connection) -> Self {
        Conversation { connection, in_step: Cell::new(true) }
    }

    /// Give the connection back for the next call, unless something that was asked has not been answered.
    pub(crate) fn end(self) {
        if self.is_in_step() {
            net::park(self.connection);
        }
    }

    pub(crate) fn connection(&self) -> &Connection {
        &self.connection
    }

    /// All that was asked has been answered, as far as is known.
    pub fn is_in_step(&self) -> bool {
        self.in_step.get()
    }

    /// Remember a failure that left the conversation at an unknown place, if it is one.
    pub fn in_step<T>(&self, outcome: Result<T>) -> Result<T> {
        if outcome.is_err() {
            self.in_step.set(false);
        }
        outcome
    }

    pub fn send(&self, parts: &[Part]) -> Result<()> {
        self.in_step(self.connection.send(parts))
    }

    pub fn receive_exact(&self, len: u32) -> Result<Vec<u8>> {
        self.in_step(self.connection.receive_exact(len))
    }

    pub fn receive_until(&self, delimiter: &[u8], limit: u32) -> Result<Vec<u8>> {
        self.in_step(self.connection.receive_until(delimiter, limit))
    }

    /// At least 1 and at most `limit` bytes, as they come. `unavailable`: the peer has finished.
    pub fn receive_some(&self, limit: u32) -> Result<Vec<u8>> {
        let some = self.connection.receive_some(limit).and_then(|some| match some.is_empty() {
            true => Err(Error::unavailable("the server closed the connection")),
            false => Ok(some),
        });
        self.in_step(some)
    }

    /// The next `len` bytes as a payload; `item`: which chunk of the running `get_chunks` they are. `exhausted`: none was taken, and
    /// [`Conversation::skip`] goes past them.
    pub fn receive_payload(&self, len: u64, item: Option<u32>) -> Result<Payload> {
        let payload = self.connection.receive_payload(len, item);
        match &payload {
            Err(error) if error.kind == ErrorKind::Exhausted => payload,
            _ => self.in_step(payload),
        }
    }

    pub fn skip(&self, len: u64) -> Result<()> {
        self.in_step(self.connection.skip(len))
    }

    /// Do not wait for the rest of an answer: the connection is closed and not used again.
    pub fn leave(&self) {
        self.in_step.set(false);
    }

    /// The error for an answer that is not what it must be, which ends the conversation.
    pub fn corrupt(&self, message: impl Into<String>) -> Error {
        self.in_step.set(false);
        Error::corrupt(message)
    }
}
