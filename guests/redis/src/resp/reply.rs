//! Replies that are not payloads. Knows nothing of this crate: the fuzzer has it alone.

use kv_store_sdk::Error;

/// The line that these bytes begin with, and how many of them it has with its end. `None`: its end is still to come.
pub fn line(bytes: &[u8]) -> Option<(&[u8], usize)> {
    let end = bytes.windows(2).position(|two| two == b"\r\n")?;
    Some((bytes.get(..end)?, end + 2))
}

/// The first line of a reply.
#[derive(Debug, PartialEq, Eq)]
pub enum Reply {
    Status(String),
    Integer(i64),
    /// So many bytes and a line end follow.
    Bulk(u64),
    /// So many replies follow.
    Array(usize),
    Nothing,
    /// The server refused the command.
    Refused(String),
}

impl Reply {
    /// Take a reply's first line apart.
    pub fn parse(line: &[u8]) -> Option<Self> {
        let (kind, rest) = line.split_first()?;
        let text = || String::from_utf8_lossy(rest).into_owned();
        Some(match kind {
            b'+' => Reply::Status(text()),
            b'-' => Reply::Refused(text()),
            b':' => Reply::Integer(number(rest)?),
            b'$' | b'*' => match number(rest)? {
                -1 => Reply::Nothing,
                len if *kind == b'$' => Reply::Bulk(len.try_into().ok()?),
                len => Reply::Array(len.try_into().ok()?),
            },
            _ => return None,
        })
    }
}

/// Mostly a few digits, which `parse` would look at three times. So many fit.
fn number(text: &[u8]) -> Option<i64> {
    let digit = |number: i64, byte: &u8| byte.is_ascii_digit().then(|| number * 10 + i64::from(byte - b'0'));
    let few = if (1..=18).contains(&text.len()) { text.iter().try_fold(0, digit) } else { None };
    few.or_else(|| std::str::from_utf8(text).ok()?.parse().ok())
}

/// A reply with all that is in it, for replies that describe the server.
#[derive(Debug, PartialEq, Eq)]
pub enum Value {
    Integer(i64),
    /// Of a status too. What is not UTF-8 is replaced.
    Text(String),
    List(Vec<Value>),
    Nothing,
}

impl Value {
    pub fn list(&self) -> Option<&[Value]> {
        match self {
            Value::List(values) => Some(values),
            _ => None,
        }
    }

    pub fn integer(&self) -> Option<i64> {
        match self {
            Value::Integer(number) => Some(*number),
            _ => None,
        }
    }

    pub fn text(&self) -> Option<&str> {
        match self {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }
}

/// What a refusal means, and what would help.
pub fn explain(refusal: &str) -> Error {
    let code = refusal.split(' ').next().unwrap_or_default();
    let error = match code {
        "NOAUTH" => Error::denied(
            "the server wants a password: set the secret password (REDIS_PASSWORD, or the source that the config names)",
        ),
        "WRONGPASS" => Error::denied(
            "the server refused the secret password (REDIS_PASSWORD, or the source that the config names), or the user in the URI",
        ),
        "NOPERM" => Error::denied(format!("the user may not do this: {refusal}")),
        "WRONGTYPE" => {
            Error::corrupt("a key of this store holds something else than a string: give the store another prefix")
        }
        "OOM" => Error::exhausted(
            "the server is full (maxmemory): raise it, or set a maxmemory-policy that evicts, as allkeys-lru does",
        ),
        "MISCONF" => Error::unavailable(format!("the server takes no writes: {refusal}")),
        "LOADING" => Error::busy("the server is loading its data"),
        "BUSY" | "TRYAGAIN" => Error::busy(refusal),
        "MASTERDOWN" | "NOREPLICAS" => Error::unavailable(refusal),
        "READONLY" => Error::denied("the server is a read-only replica: name the primary in the URI"),
        "CLUSTERDOWN" => Error::unavailable(format!("the cluster does not serve this key: {refusal}")),
        "MOVED" | "ASK" => Error::unavailable("the server became part of a Redis Cluster: open the store again"),
        // Before Redis 6 a password that none was asked for, or a wrong one, is a plain error.
        "ERR" if refusal.contains("AUTH") || refusal.contains("invalid password") => {
            Error::denied(format!("the login failed: {refusal}"))
        }
        "ERR" if refusal.contains("SELECT is not allowed") => {
            Error::invalid("a Redis Cluster has database 0 only: leave /DB out of the URI")
        }
        "ERR" if refusal.contains("DB index") => Error::invalid(format!("the database in the URI: {refusal}")),
        _ => Error::other(format!("the server refused: {refusal}")),
    };
    error.with_code(code)
}
