//! The connection, and RESP2 on it.

use kv_store_sdk::net::{self, ConnectOptions, Connection};
use kv_store_sdk::payloads::Part;
use kv_store_sdk::{Error, Payload, Result};

use crate::named::Net as Bug;

pub enum Reply {
    /// A line that is no error.
    Line,
    Number(u64),
    Value(Payload),
    Nothing,
    Error(String),
}

impl Reply {
    pub fn unexpected(self) -> Error {
        match self {
            Reply::Error(line) if line.starts_with("OOM") => Error::exhausted(line),
            Reply::Error(line) if line.starts_with("LOADING") || line.starts_with("BUSY") => Error::busy(line),
            Reply::Error(line) => Error::other(line),
            _ => Error::corrupt("the server answered something else than was asked"),
        }
    }

    pub fn ok(self) -> Result<()> {
        match self {
            Reply::Line => Ok(()),
            other => Err(other.unexpected()),
        }
    }

    pub fn number(self) -> Result<u64> {
        match self {
            Reply::Number(number) => Ok(number),
            other => Err(other.unexpected()),
        }
    }
}

/// A command of words, and a value of some length.
pub fn command(words: &[&[u8]], value: Option<(Part<'static>, u64)>) -> Vec<Part<'static>> {
    let mut bytes = format!("*{}\r\n", words.len() + usize::from(value.is_some())).into_bytes();
    for word in words {
        bytes.extend(format!("${}\r\n", word.len()).into_bytes());
        bytes.extend_from_slice(word);
        bytes.extend_from_slice(b"\r\n");
    }
    let Some((part, len)) = value else { return vec![Part::Bytes(bytes)] };
    bytes.extend(format!("${len}\r\n").into_bytes());
    vec![Part::Bytes(bytes), part, Part::Bytes(b"\r\n".to_vec())]
}

/// The same command with one more word.
pub fn with_end(mut command: Vec<Part<'static>>, word: &[u8]) -> Vec<Part<'static>> {
    if let Some(Part::Bytes(bytes)) = command.first_mut()
        && let Some(count) = bytes.get_mut(1)
    {
        *count += 1;
    }
    let end = [format!("${}\r\n", word.len()).as_bytes(), word, b"\r\n"].concat();
    command.push(Part::Bytes(end));
    command
}

pub struct Link {
    bug: Bug,
    authority: String,
    database: u32,
    options: ConnectOptions,
    /// What a bug keeps.
    kept: Option<Connection>,
    given_up: bool,
}

impl Link {
    pub fn new(bug: Bug, authority: &str, database: u32) -> Result<Self> {
        let options = ConnectOptions::new();
        let session = if bug == Bug::OneSession { "one".to_owned() } else { format!("database {database}") };
        options.set_session(&session)?;
        Ok(Link { bug, authority: authority.to_owned(), database, options, kept: None, given_up: false })
    }

    fn connect(&mut self) -> Result<Connection> {
        if let Some(kept) = self.kept.take() {
            return Ok(kept);
        }
        if self.given_up {
            return Err(Error::unavailable("it has failed before"));
        }
        let connection = net::connect(&self.authority, Some(&self.options))?;
        if !connection.resumed() {
            connection.send(&command(&[b"SELECT", self.database.to_string().as_bytes()], None))?;
            read(&connection, None)?.ok()?;
        }
        Ok(connection)
    }

    pub fn ask(&mut self, parts: &[Part], count: usize, items: bool) -> Result<Vec<Reply>> {
        let connection = match self.connect() {
            Ok(connection) => connection,
            Err(error) => {
                self.given_up = self.bug == Bug::GivesUp;
                return Err(error);
            }
        };
        match converse(&connection, parts, count, items) {
            Ok(mut replies) => {
                if self.bug == Bug::SwapsReplies && count > 1 {
                    replies.swap(0, 1);
                }
                match self.bug {
                    Bug::ParksUnread => {
                        connection.send(&command(&[b"PING"], None))?;
                        net::park(connection);
                    }
                    Bug::LeaksConnections => std::mem::forget(connection),
                    Bug::KeepsBroken => self.kept = Some(connection),
                    _ => net::park(connection),
                }
                Ok(replies)
            }
            Err(error) => {
                match self.bug {
                    Bug::KeepsBroken => self.kept = Some(connection),
                    Bug::GivesUp => self.given_up = true,
                    _ => {}
                }
                Err(error)
            }
        }
    }

    /// Send, and do not wait for an answer.
    pub fn say(&mut self, commands: Vec<Vec<Part<'static>>>) -> Result<()> {
        let connection = self.connect()?;
        connection.send(&commands.into_iter().flatten().collect::<Vec<_>>())
    }
}

fn converse(connection: &Connection, parts: &[Part], count: usize, items: bool) -> Result<Vec<Reply>> {
    connection.send(parts)?;
    (0..count as u32).map(|item| read(connection, items.then_some(item))).collect()
}

fn read(connection: &Connection, item: Option<u32>) -> Result<Reply> {
    let line = connection.receive_until(b"\r\n", 4096)?;
    let line = String::from_utf8(line).map_err(|_| Error::corrupt("the server's line is not UTF-8"))?;
    let wrong = || Error::corrupt(format!("the server answered {line:?}"));
    let kind = line.chars().next().ok_or_else(wrong)?;
    let rest = line.get(kind.len_utf8()..).unwrap_or_default();
    Ok(match kind {
        '+' => Reply::Line,
        '-' => Reply::Error(rest.to_owned()),
        ':' => Reply::Number(rest.parse().map_err(|_| wrong())?),
        '$' if rest == "-1" => Reply::Nothing,
        '$' => {
            let data = connection.receive_payload(rest.parse().map_err(|_| wrong())?, item)?;
            connection.skip(2)?;
            Reply::Value(data)
        }
        _ => return Err(wrong()),
    })
}
