//! The contract's `net`: what a connection does with the bytes of a [`Stream`]. TLS, server names and a patience for connecting are left to
//! the host.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

use super::payloads::{Part, Payload, joined};
use super::{Stream, host};
use crate::{Error, Result};

/// Bytes that are asked for at once.
const PIECE_BYTES: usize = 64 << 10;

#[derive(Default)]
pub struct ConnectOptions {
    session: RefCell<Option<String>>,
}

impl ConnectOptions {
    pub fn new() -> Self {
        ConnectOptions::default()
    }

    pub fn set_tls(&self, _: bool) {}

    pub fn set_server_name(&self, _: &str) {}

    pub fn set_session(&self, session: &str) -> Result<()> {
        self.session.replace(Some(session.to_owned()));
        Ok(())
    }

    pub fn set_patience(&self, _: u64) {}

    fn session(&self) -> Option<String> {
        self.session.borrow().clone()
    }
}

pub struct Connection {
    authority: String,
    session: Option<String>,
    resumed: bool,
    stream: Box<dyn Stream>,
    /// What has come and was not asked for.
    came: RefCell<VecDeque<u8>>,
    finished: Cell<bool>,
}

pub struct ConnectRequest<'a> {
    pub authority: String,
    pub options: Option<&'a ConnectOptions>,
}

pub struct Message<'a> {
    pub connection: &'a Connection,
    pub parts: Vec<Part<'a>>,
}

impl Connection {
    pub fn send(&self, parts: &[Part]) -> Result<()> {
        let bytes = joined(parts)?;
        host(|_| self.stream.send(&bytes))
    }

    /// Have more come. False: the peer has finished.
    fn fill(&self) -> Result<bool> {
        if self.finished.get() {
            return Ok(false);
        }
        let came = host(|_| self.stream.receive(PIECE_BYTES))?;
        self.finished.set(came.is_empty());
        self.came.borrow_mut().extend(came);
        Ok(!self.finished.get())
    }

    fn take(&self, len: usize) -> Result<Vec<u8>> {
        while self.came.borrow().len() < len {
            if !self.fill()? {
                return Err(Error::unavailable("the server closed the connection"));
            }
        }
        Ok(self.came.borrow_mut().drain(..len).collect())
    }

    pub fn receive_exact(&self, len: u32) -> Result<Vec<u8>> {
        self.take(len as usize)
    }

    pub fn receive_until(&self, delimiter: &[u8], limit: u32) -> Result<Vec<u8>> {
        if !(1..=16).contains(&delimiter.len()) {
            return Err(Error::invalid("a delimiter has 1 to 16 bytes"));
        }
        loop {
            let found =
                self.came.borrow_mut().make_contiguous().windows(delimiter.len()).position(|at| at == delimiter);
            if found.unwrap_or(self.came.borrow().len()) > limit as usize + delimiter.len() {
                return Err(Error::corrupt(format!("no delimiter within {limit} bytes")));
            }
            if let Some(at) = found {
                let mut line = self.take(at + delimiter.len())?;
                line.truncate(at);
                return Ok(line);
            }
            if !self.fill()? {
                return Err(Error::unavailable("the server closed the connection"));
            }
        }
    }

    pub fn receive_some(&self, limit: u32) -> Result<Vec<u8>> {
        if limit == 0 {
            return Err(Error::invalid("a limit of 0"));
        }
        if self.came.borrow().is_empty() {
            self.fill()?;
        }
        let mut came = self.came.borrow_mut();
        let count = came.len().min(limit as usize);
        Ok(came.drain(..count).collect())
    }

    pub fn receive_payload(&self, len: u64, _: Option<u32>) -> Result<Payload> {
        let len = usize::try_from(len).map_err(|_| Error::exhausted("longer than the memory"))?;
        Payload::from_bytes(&self.take(len)?)
    }

    pub fn skip(&self, len: u64) -> Result<()> {
        self.take(usize::try_from(len).unwrap_or(usize::MAX)).map(drop)
    }

    pub fn set_patience(&self, patience: u64) {
        self.stream.set_patience(patience);
    }

    pub fn resumed(&self) -> bool {
        self.resumed
    }
}

pub fn connect(authority: &str, options: Option<&ConnectOptions>) -> Result<Connection> {
    let session = options.and_then(ConnectOptions::session);
    let (stream, resumed) = host(|host| host.connect(authority, session.as_deref()))?;
    let (came, finished) = Default::default();
    Ok(Connection { authority: authority.to_owned(), session, resumed, stream, came, finished })
}

/// One after the other, where a component's host does it side by side.
pub fn connect_all(requests: &[ConnectRequest]) -> Vec<Result<Connection>> {
    requests.iter().map(|request| connect(&request.authority, request.options)).collect()
}

pub fn send_all(messages: &[Message]) -> Vec<Result<()>> {
    messages.iter().map(|message| message.connection.send(&message.parts)).collect()
}

pub fn ready(connections: &[&Connection], patience: Option<u64>) -> Result<Vec<u32>> {
    if connections.is_empty() {
        return Err(Error::invalid("no connection to wait for"));
    }
    let has_come = |connection: &Connection| !connection.came.borrow().is_empty() || connection.finished.get();
    let come = (0..).zip(connections).filter(|(_, connection)| has_come(connection)).map(|(at, _)| at);
    let come: Vec<u32> = come.collect();
    if !come.is_empty() {
        return Ok(come);
    }
    let streams: Vec<&dyn Stream> = connections.iter().map(|connection| &*connection.stream).collect();
    let ready = host(|host| host.ready(&streams, patience))?;
    Ok(ready.into_iter().map(|at| at as u32).collect())
}

pub fn park(connection: Connection) {
    let Connection { authority, session, stream, came, finished, .. } = connection;
    // What is silent and alive is kept.
    if came.borrow().is_empty() && !finished.get() {
        host(|host| host.park(&authority, session.as_deref(), stream));
    }
}
