//! What is said on a connection to the server: the login, and commands whose replies come in order.

use kv_store_sdk::payload::Part;
use kv_store_sdk::{Conversation, Error, ErrorKind, Payload, Result, host};

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

    /// Talk to the server, logged in and with the database selected.
    pub fn with_session<T>(&self, talk: impl Fn(&Session) -> Result<T>) -> Result<T> {
        let Target { user, authority, tls, database } = &self.target;
        // What is set on a connection, but no secret.
        let said = format!("user={} db={database}", user.as_deref().unwrap_or_default());
        let greet = |conversation: &Conversation| {
            let session = Session { conversation };
            session.log_in(user.as_deref())?;
            if *database != 0 {
                session.status(&["SELECT", &database.to_string()])?;
            }
            Ok(())
        };
        Conversation::hold(authority, *tls, &said, greet, |conversation| talk(&Session { conversation }))
    }
}

/// A connection in use.
pub struct Session<'a> {
    conversation: &'a Conversation,
}

impl Session<'_> {
    fn log_in(&self, user: Option<&str>) -> Result<()> {
        let password = host::secret("password")?;
        match (user, password) {
            (_, None) if user.is_some() => Err(Error::denied("the URI names a user: set REDIS_PASSWORD")),
            (_, None) => Ok(()),
            (Some(user), Some(password)) => self.status(&["AUTH", user, &password]),
            (None, Some(password)) => self.status(&["AUTH", &password]),
        }
    }

    /// A small command that is answered by a status.
    fn status(&self, arguments: &[&str]) -> Result<()> {
        self.send(&[Part::Bytes(resp::command(arguments))])?;
        match self.reply()? {
            Reply::Status(_) => Ok(()),
            other => Err(self.unexpected(&other, arguments.first().copied().unwrap_or_default())),
        }
    }

    /// The error for a reply of another kind than the command has. What may follow it nobody knows, so the connection is not
    /// used again.
    pub fn unexpected(&self, reply: &Reply, command: &str) -> Error {
        self.conversation.corrupt(format!("{command} was answered by {reply:?}: is this a Redis server?"))
    }

    pub fn send(&self, parts: &[Part]) -> Result<()> {
        self.conversation.send(parts)
    }

    /// The next reply's first line; a refusal is an error after which the next reply can be read.
    pub fn reply(&self) -> Result<Reply> {
        let line = self.conversation.receive_until(b"\r\n", MAX_LINE_BYTES)?;
        match Reply::parse(&line) {
            Some(Reply::Refused(refusal)) => Err(resp::explain(&refusal)),
            Some(reply) => Ok(reply),
            None => Err(self.conversation.corrupt("the answer is not RESP: is this a Redis server?")),
        }
    }

    /// The first lines of as many replies, refusals among them, each read before any is judged.
    pub fn replies(&self, count: usize) -> Result<Vec<Result<Reply>>> {
        let next = |_| match self.reply() {
            Err(error) if !self.conversation.is_in_step() => Err(error),
            reply => Ok(reply),
        };
        (0..count).map(next).collect()
    }

    /// Read something that must be read to its end: after any failure there is more that nobody asked for.
    pub fn whole<T>(&self, read: impl FnOnce() -> Result<T>) -> Result<T> {
        self.conversation.in_step(read())
    }

    /// The length of the next reply, an array.
    pub fn array(&self) -> Result<usize> {
        match self.reply()? {
            Reply::Array(count) => Ok(count),
            other => Err(self.unexpected(&other, "a command for an array")),
        }
    }

    /// The length of the next reply, a string; none: there is no such key.
    pub fn bulk_len(&self) -> Result<Option<u64>> {
        match self.reply()? {
            Reply::Bulk(len) => Ok(Some(len)),
            Reply::Nothing => Ok(None),
            other => Err(self.unexpected(&other, "a command for a string")),
        }
    }

    /// The bytes of a string; `item`: which chunk of the running call they are. `exhausted`: none was taken, see
    /// [`Session::skip_bulk`].
    pub fn bulk(&self, len: u64, item: Option<u32>) -> Result<Payload> {
        let payload = self.conversation.receive_payload(len, item);
        if matches!(&payload, Err(error) if error.kind == ErrorKind::Exhausted) {
            return payload;
        }
        let payload = payload?;
        self.line_end()?;
        Ok(payload)
    }

    pub fn skip_bulk(&self, len: u64) -> Result<()> {
        self.conversation.skip(len)?;
        self.line_end()
    }

    fn line_end(&self) -> Result<()> {
        match self.conversation.receive_exact(2)?.as_slice() {
            b"\r\n" => Ok(()),
            _ => Err(self.conversation.corrupt("a value is longer than the server said")),
        }
    }

    /// The server's version, for people.
    pub fn version(&self) -> Result<String> {
        self.send(&[Part::Bytes(resp::command(&["INFO", "server"]))])?;
        let Some(len) = self.bulk_len()? else { return Ok("of unknown version".into()) };
        let info = self.conversation.receive_exact(u32::try_from(len).unwrap_or(u32::MAX))?;
        self.line_end()?;
        let info = String::from_utf8_lossy(&info);
        Ok(info.lines().find_map(|line| line.strip_prefix("redis_version:")).unwrap_or("of unknown version").to_owned())
    }
}
