//! Conversations with the server. A connection is asked of the host in each call and given back after it; the host keeps it
//! for the next one, so there is no reconnecting here, and instances share what they have.

use std::cell::Cell;

use kv_store_sdk::net::{self, Connection};
use kv_store_sdk::payload::Part;
use kv_store_sdk::{Error, ErrorKind, Payload, Result, host};

use crate::resp::{self, Reply};
use crate::uri::Target;

/// The longest first line of a reply. Redis cuts its own errors far shorter.
const MAX_LINE_BYTES: u32 = 64 << 10;

pub struct Server {
    target: Target,
}

impl Server {
    pub fn new(target: Target) -> Self {
        Server { target }
    }

    /// `host:port/db`, for people.
    pub fn describe(&self) -> String {
        format!("{}/{}", self.target.authority, self.target.database)
    }

    /// Talk to the server. A kept connection that turns out to be dead is replaced once: all that we say may be repeated.
    pub fn with_session<T>(&self, talk: impl Fn(&Session) -> Result<T>) -> Result<T> {
        let session = self.session()?;
        let was_kept = session.connection.resumed();
        match talk(&session) {
            Err(error) if was_kept && error.kind == ErrorKind::Unavailable && !session.is_in_step() => {
                drop(session);
                let session = self.session()?;
                let outcome = talk(&session);
                session.end();
                outcome
            }
            outcome => {
                session.end();
                outcome
            }
        }
    }

    fn session(&self) -> Result<Session> {
        let Target { user, authority, tls, database } = &self.target;
        // What is set on a connection, but no secret.
        let said = format!("user={} db={database}", user.as_deref().unwrap_or_default());
        let connection = net::connect(authority, *tls, Some(&said))?;
        let session = Session { connection, in_step: Cell::new(true) };
        if !session.connection.resumed() {
            session.log_in(user.as_deref())?;
            if *database != 0 {
                session.ask(&["SELECT", &database.to_string()])?;
            }
        }
        Ok(session)
    }
}

/// A connection in use.
pub struct Session {
    connection: Connection,
    /// All that was asked has been answered, so the next reply belongs to the next command.
    in_step: Cell<bool>,
}

impl Session {
    /// Give the connection back, if it can serve another call.
    fn end(self) {
        if self.in_step.get() {
            net::park(self.connection);
        }
    }

    pub fn is_in_step(&self) -> bool {
        self.in_step.get()
    }

    fn log_in(&self, user: Option<&str>) -> Result<()> {
        let password = host::secret("password")?;
        match (user, password) {
            (_, None) if user.is_some() => Err(Error::denied("the URI names a user: set REDIS_PASSWORD")),
            (_, None) => Ok(()),
            (Some(user), Some(password)) => self.ask(&["AUTH", user, &password]).map(drop),
            (None, Some(password)) => self.ask(&["AUTH", &password]).map(drop),
        }
    }

    /// A small command and its reply.
    fn ask(&self, arguments: &[&str]) -> Result<Reply> {
        self.send(&[Part::Bytes(resp::command(arguments))])?;
        self.reply()
    }

    pub fn send(&self, parts: &[Part]) -> Result<()> {
        self.in_step(self.connection.send(parts))
    }

    /// The next reply's first line; a refusal is an error after which the next reply can be read.
    pub fn reply(&self) -> Result<Reply> {
        let line = self.in_step(self.connection.receive_until(b"\r\n", MAX_LINE_BYTES))?;
        match Reply::parse(&line) {
            Some(Reply::Refused(refusal)) => Err(resp::explain(&refusal)),
            Some(reply) => Ok(reply),
            None => self.in_step(Err(Error::corrupt("the answer is not RESP: is this a Redis server?"))),
        }
    }

    /// The first lines of as many replies, refusals among them, each read before any is judged.
    pub fn replies(&self, count: usize) -> Result<Vec<Result<Reply>>> {
        let next = |_| match self.reply() {
            Err(error) if !self.is_in_step() => Err(error),
            reply => Ok(reply),
        };
        (0..count).map(next).collect()
    }

    /// Read something that must be read to its end: after any failure there is more that nobody asked for.
    pub fn whole<T>(&self, read: impl FnOnce() -> Result<T>) -> Result<T> {
        self.in_step(read())
    }

    /// The length of the next reply, an array.
    pub fn array(&self) -> Result<usize> {
        match self.reply()? {
            Reply::Array(count) => Ok(count),
            other => self.in_step(Err(other.unexpected("a command for an array"))),
        }
    }

    /// The length of the next reply, a string; none: there is no such key.
    pub fn bulk_len(&self) -> Result<Option<u64>> {
        match self.reply()? {
            Reply::Bulk(len) => Ok(Some(len)),
            Reply::Nothing => Ok(None),
            other => self.in_step(Err(other.unexpected("a command for a string"))),
        }
    }

    /// The bytes of a string. `exhausted`: none was taken, see [`Session::skip_bulk`].
    pub fn bulk(&self, len: u64) -> Result<Payload> {
        let payload = self.connection.receive_payload(len);
        if matches!(&payload, Err(error) if error.kind == ErrorKind::Exhausted) {
            return payload;
        }
        let payload = self.in_step(payload)?;
        self.line_end()?;
        Ok(payload)
    }

    pub fn skip_bulk(&self, len: u64) -> Result<()> {
        self.in_step(self.connection.skip(len))?;
        self.line_end()
    }

    fn line_end(&self) -> Result<()> {
        match self.in_step(self.connection.receive_exact(2))?.as_slice() {
            b"\r\n" => Ok(()),
            _ => self.in_step(Err(Error::corrupt("a value is longer than the server said"))),
        }
    }

    /// The server's version, for people.
    pub fn version(&self) -> Result<String> {
        self.send(&[Part::Bytes(resp::command(&["INFO", "server"]))])?;
        let Some(len) = self.bulk_len()? else { return Ok("of unknown version".into()) };
        let info = self.in_step(self.connection.receive_exact(u32::try_from(len).unwrap_or(u32::MAX)))?;
        self.line_end()?;
        let info = String::from_utf8_lossy(&info);
        Ok(info.lines().find_map(|line| line.strip_prefix("redis_version:")).unwrap_or("of unknown version").to_owned())
    }

    /// Remember that a failure left the conversation at an unknown place.
    fn in_step<T>(&self, outcome: Result<T>) -> Result<T> {
        if outcome.is_err() {
            self.in_step.set(false);
        }
        outcome
    }
}
