//! What is said on a connection to the server: the login, and commands whose replies come in order.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use kv_store_sdk::payloads::Part;
use kv_store_sdk::{
    Conversation, DeleteOutcome, Error, ErrorKind, Payload, Peer, Presence, PutOutcome, Request, Result, system,
};

use crate::resp::{self, Reply, Value};

/// Whether scripts are told what they may be: a time, and then a change. Redis before 5 replicates such a script only if it is asked to
/// replicate what it does; before 3.2 it cannot.
const PROBE: &str = "if redis.replicate_commands then redis.replicate_commands() end return redis.call('TIME')";

/// The longest first line of a reply. Redis cuts its own errors far shorter.
const MAX_LINE_BYTES: u32 = 64 << 10;
/// What a reply about the server may have: values in all, and lists in lists.
const MAX_VALUES: usize = 1 << 20;
const MAX_DEPTH: usize = 8;
/// Servers whose options are kept.
const MAX_PEERS: usize = 4096;

/// As whom, and about what, servers are talked to.
pub struct Login {
    pub user: Option<String>,
    tls: bool,
    database: u32,
    /// Servers by `host:port`: options are made once.
    peers: RefCell<HashMap<String, Rc<Peer>>>,
    /// The same for connections on which changes are made. They are parked under a text that only this instance knows, one for each
    /// server: what it knows of the server's clock came on the connection that it is given again.
    changed: RefCell<HashMap<String, Rc<Peer>>>,
    instance: u64,
}

impl Login {
    pub fn new(user: Option<String>, tls: bool, database: u32) -> Self {
        let instance = system::random();
        Login { user, tls, database, peers: RefCell::default(), changed: RefCell::default(), instance }
    }

    /// Talk to the server at `authority`, logged in and with the database selected.
    pub fn with_session<T>(&self, authority: &str, talk: impl Fn(&Session) -> Result<T>) -> Result<T> {
        let greet = |conversation: &Conversation| {
            let session = Session { conversation };
            for command in self.greeting()? {
                session.send(&[Part::Bytes(command)])?;
                session.greeted()?;
            }
            Ok(())
        };
        Conversation::hold(&*self.peer(authority, false)?, greet, |conversation| talk(&Session { conversation }))
    }

    /// A request to one of several servers. The answers to its greeting are for [`Session::greeted`].
    pub fn request<'a>(&self, authority: &str, parts: Vec<Part<'a>>, answers: usize) -> Result<Request<'a>> {
        let greeting = self.greeting()?;
        let greeting_answers = greeting.len();
        let request = Request::new(self.peer(authority, false)?, parts, answers);
        Ok(Request { greeting: greeting.concat(), greeting_answers, ..request })
    }

    /// The same on the connection on which this instance makes changes. Its greeting ends in TIME, whose answer is for
    /// [`Session::time`]. A new connection is only greeted.
    pub fn change<'a>(&self, authority: &str, parts: Vec<Part<'a>>, answers: usize) -> Result<Request<'a>> {
        let mut greeting = self.greeting()?;
        greeting.push(resp::command(&["TIME"]));
        let greeting_answers = greeting.len();
        let request = Request::new(self.peer(authority, true)?, parts, answers);
        Ok(Request { greeting: greeting.concat(), greeting_answers, kept_only: true, ..request })
    }

    fn peer(&self, authority: &str, changes: bool) -> Result<Rc<Peer>> {
        let peers = if changes { &self.changed } else { &self.peers };
        let mut peers = peers.borrow_mut();
        if let Some(peer) = peers.get(authority) {
            return Ok(peer.clone());
        }
        if peers.len() >= MAX_PEERS {
            peers.clear();
        }
        // What is set on a connection, but no secret.
        let mut session = format!("user={} db={}", self.user.as_deref().unwrap_or_default(), self.database);
        if changes {
            session.push_str(&format!(" changes={:016x}", self.instance));
        }
        let peer = Rc::new(Peer::new(authority, self.tls, &session)?);
        peers.insert(authority.to_owned(), peer.clone());
        Ok(peer)
    }

    /// The commands that a new connection begins with, each answered by a status.
    fn greeting(&self) -> Result<Vec<Vec<u8>>> {
        let password = system::secret("password")?;
        let mut commands = match (&self.user, password) {
            (Some(_), None) => {
                return Err(Error::denied(
                    "the URI names a user: set the secret password (REDIS_PASSWORD, or the source that the config names)",
                ));
            }
            (None, None) => vec![],
            (Some(user), Some(password)) => vec![resp::command(&["AUTH", user, &password])],
            (None, Some(password)) => vec![resp::command(&["AUTH", &password])],
        };
        if self.database != 0 {
            commands.push(resp::command(&["SELECT", &self.database.to_string()]));
        }
        Ok(commands)
    }
}

/// A connection in use.
pub struct Session<'a> {
    conversation: &'a Conversation,
}

impl<'a> Session<'a> {
    pub fn new(conversation: &'a Conversation) -> Self {
        Session { conversation }
    }

    /// Read the answer to a command of the greeting.
    pub fn greeted(&self) -> Result<()> {
        match self.whole(|| self.reply())? {
            Reply::Status(_) => Ok(()),
            other => Err(self.unexpected(&other, "the login")),
        }
    }

    /// The error for a reply of another kind than the command has. What may follow it nobody knows, so the connection is not
    /// used again.
    pub fn unexpected(&self, reply: &Reply, command: &str) -> Error {
        self.conversation.corrupt(format!("{command} was answered by {reply:?}: is this a Redis server?"))
    }

    /// The number that such a command is answered by.
    pub fn count(&self, reply: Reply, command: &str) -> Result<i64> {
        match reply {
            Reply::Integer(count) => Ok(count),
            other => Err(self.unexpected(&other, command)),
        }
    }

    /// What a reply to EXISTS of one key says.
    pub fn presence(&self, reply: Reply) -> Result<Presence> {
        Ok(Presence::from(self.count(reply, "EXISTS")? > 0))
    }

    /// What a reply to SET says.
    pub fn put_outcome(&self, reply: Result<Reply>) -> PutOutcome {
        match reply {
            Ok(Reply::Status(_)) => PutOutcome::Stored,
            Ok(Reply::Nothing) => PutOutcome::Existed,
            Ok(other) => PutOutcome::Failed(self.unexpected(&other, "SET")),
            Err(refused) => PutOutcome::Failed(refused),
        }
    }

    /// What a reply to EXPIRE says.
    pub fn renewed(&self, reply: Reply) -> Result<bool> {
        Ok(self.count(reply, "EXPIRE")? > 0)
    }

    /// What a reply to DEL says.
    pub fn delete_outcome(&self, reply: Result<Reply>) -> DeleteOutcome {
        match reply {
            Ok(Reply::Integer(_)) => DeleteOutcome::Gone,
            Ok(other) => DeleteOutcome::Failed(self.unexpected(&other, "DEL")),
            Err(refused) => DeleteOutcome::Failed(refused),
        }
    }

    pub fn send(&self, parts: &[Part]) -> Result<()> {
        self.conversation.send(parts)
    }

    /// The next reply's first line; a refusal is an error after which the next reply can be read.
    pub fn reply(&self) -> Result<Reply> {
        match self.first_line()? {
            Reply::Refused(refusal) => Err(resp::explain(&refusal)),
            reply => Ok(reply),
        }
    }

    /// The next reply's first line, a refusal too.
    pub fn first_line(&self) -> Result<Reply> {
        let line = self.conversation.receive_until(b"\r\n", MAX_LINE_BYTES)?;
        Reply::parse(&line).ok_or_else(|| self.no_resp())
    }

    /// As many replies of one line, refusals among them, each read before any is judged. Nothing else may be on its way, because all that
    /// comes is taken at once: a call of the host for each line would be most of what a batch costs.
    pub fn replies(&self, count: usize) -> Result<Vec<Result<Reply>>> {
        let mut replies = Vec::with_capacity(count);
        let (mut bytes, mut at): (Vec<u8>, usize) = (Vec::new(), 0);
        while replies.len() < count {
            let rest = bytes.get(at..).unwrap_or_default();
            let Some((line, len)) = resp::line(rest) else {
                if rest.len() > MAX_LINE_BYTES as usize {
                    return Err(self.no_resp());
                }
                bytes.drain(..at);
                at = 0;
                bytes.extend(self.conversation.receive_some(MAX_LINE_BYTES)?);
                continue;
            };
            replies.push(match Reply::parse(line).ok_or_else(|| self.no_resp())? {
                Reply::Refused(refusal) => Err(resp::explain(&refusal)),
                Reply::Bulk(_) | Reply::Array(_) => return Err(self.no_resp()),
                reply => Ok(reply),
            });
            at += len;
        }
        if at < bytes.len() { Err(self.no_resp()) } else { Ok(replies) }
    }

    fn no_resp(&self) -> Error {
        self.conversation.corrupt("the answer is not RESP: is this a Redis server?")
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

    /// The bytes of a small string.
    pub fn small_bulk(&self) -> Result<Option<Vec<u8>>> {
        self.bulk_len()?.map(|len| self.small_bytes(len)).transpose()
    }

    /// The same, of so many bytes.
    pub fn small_bytes(&self, len: u64) -> Result<Vec<u8>> {
        let bytes = self.conversation.receive_exact(u32::try_from(len).unwrap_or(u32::MAX))?;
        self.line_end()?;
        Ok(bytes)
    }

    /// What the server says of itself in a section of INFO under each of these names.
    pub fn info<const N: usize>(&self, section: &str, names: [&str; N]) -> Result<[Option<String>; N]> {
        self.send(&[Part::Bytes(resp::command(&["INFO", section]))])?;
        let info = self.whole(|| self.small_bulk())?.unwrap_or_default();
        let info = String::from_utf8_lossy(&info);
        let value = |name: &str| info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        Ok(names.map(|name| value(name).map(str::to_owned)))
    }

    /// Why the server runs no scripts for us, for people; none: it does.
    pub fn no_scripts(&self) -> Result<Option<String>> {
        self.send(&[Part::Bytes(resp::command(&["EVAL", PROBE, "0"]))])?;
        match self.first_line()? {
            Reply::Refused(refusal) if ["NOPERM", "ERR unknown command"].iter().any(|no| refusal.starts_with(no)) => {
                Ok(Some(format!("let the user EVAL, EVALSHA and TIME ({refusal})")))
            }
            // It says nothing of scripts.
            Reply::Refused(_) => Ok(None),
            Reply::Array(2) => self.whole(|| self.small_bulk().and_then(|_| self.small_bulk())).map(|_| None),
            other => Err(self.unexpected(&other, "EVAL")),
        }
    }

    /// The map of a cluster's slots.
    pub fn slots(&self) -> Result<Value> {
        self.send(&[Part::Bytes(resp::command(&["CLUSTER", "SLOTS"]))])?;
        let mut left = MAX_VALUES;
        self.whole(|| self.value(&mut left, 0))
    }

    /// The answer to TIME: microseconds since 1970 by the server's clock.
    pub fn time(&self) -> Result<u64> {
        let strange = || self.conversation.corrupt("TIME was answered by something else: is this a Redis server?");
        self.whole(|| {
            if self.array()? != 2 {
                return Err(strange());
            }
            let number = || {
                let text = self.small_bulk()?.and_then(|text| String::from_utf8(text).ok());
                text.and_then(|text| text.parse::<u64>().ok()).ok_or_else(strange)
            };
            let (seconds, micros) = (number()?, number()?);
            seconds.checked_mul(1_000_000).and_then(|time| time.checked_add(micros)).ok_or_else(strange)
        })
    }

    /// The rest of the answer of a script of [`crate::change`]: what became of the change, and the server's time in microseconds.
    pub fn changed(&self, reply: &Reply) -> Result<(i64, u64)> {
        let strange = |reply: &Reply| self.unexpected(reply, "a script");
        self.whole(|| {
            if *reply != Reply::Array(2) {
                return Err(strange(reply));
            }
            let integer = || match self.first_line()? {
                Reply::Integer(number) => Ok(number),
                other => Err(strange(&other)),
            };
            let (code, time) = (integer()?, integer()?);
            Ok((code, u64::try_from(time).map_err(|_| strange(&Reply::Integer(time)))?))
        })
    }

    /// The next reply with all that is in it.
    fn value(&self, left: &mut usize, depth: usize) -> Result<Value> {
        *left = left.checked_sub(1).filter(|_| depth <= MAX_DEPTH).ok_or_else(|| {
            self.conversation.corrupt("a reply about the server has too many parts: is this a Redis server?")
        })?;
        Ok(match self.first_line()? {
            Reply::Integer(number) => Value::Integer(number),
            Reply::Status(text) => Value::Text(text),
            Reply::Nothing => Value::Nothing,
            Reply::Bulk(len) => Value::Text(String::from_utf8_lossy(&self.small_bytes(len)?).into_owned()),
            Reply::Array(count) => Value::List((0..count).map(|_| self.value(left, depth + 1)).collect::<Result<_>>()?),
            Reply::Refused(refusal) => return Err(resp::explain(&refusal)),
        })
    }
}
