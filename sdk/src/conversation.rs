//! Conversations: a connection to a server that is asked in each call and given back after it.
//!
//! The host keeps an idle connection for the next call, so a backend needs no reconnecting of its own. What it must know is
//! whether all that was asked has been answered: only then the next answer belongs to the next question, and only such a
//! connection is given back. A [`Conversation`] keeps that in mind: any failure of its own, but for want of room, and any that
//! [`Conversation::in_step`] is told of, ends it.

use std::cell::Cell;

use crate::net::{self, Connection};
use crate::payload::Part;
use crate::{Error, ErrorKind, Payload, Result};

/// A connection in use.
pub struct Conversation {
    connection: Connection,
    in_step: Cell<bool>,
}

impl Conversation {
    /// Talk to a server. `session` names all that is set on the connection, and no secret; see the contract's `connect`.
    /// `greet` is for a new connection. A kept one that turns out to be dead is replaced once: all that is said may be
    /// repeated.
    pub fn hold<T>(
        authority: &str,
        tls: bool,
        session: &str,
        greet: impl Fn(&Conversation) -> Result<()>,
        talk: impl Fn(&Conversation) -> Result<T>,
    ) -> Result<T> {
        let begin = || {
            let connection = net::connect(authority, tls, Some(session))?;
            let conversation = Conversation { connection, in_step: Cell::new(true) };
            if !conversation.connection.resumed() {
                greet(&conversation)?;
            }
            Ok(conversation)
        };
        let mut conversation: Conversation = begin()?;
        let mut outcome = talk(&conversation);
        if let Err(error) = &outcome
            && error.kind == ErrorKind::Unavailable
            && conversation.connection.resumed()
            && !conversation.is_in_step()
        {
            drop(conversation);
            conversation = begin()?;
            outcome = talk(&conversation);
        }
        if conversation.is_in_step() {
            net::park(conversation.connection);
        }
        outcome
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

    /// The error for an answer that is not what it must be, which ends the conversation.
    pub fn corrupt(&self, message: impl Into<String>) -> Error {
        self.in_step.set(false);
        Error::corrupt(message)
    }
}
