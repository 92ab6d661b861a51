//! A session with the server: who both are is agreed once for a connection, and every frame after it is tagged and numbered.
//!
//! What was agreed lives in this instance, beside the connection that the host keeps, so the connection is kept under a text
//! that only this instance knows. Values never enter this memory: the host computes tags over them where they lie, and
//! nobody sees one whose tag is wrong.
//!
//! What is sent here and given up may still be done: `tests/models/src/memkv.rs`, "an acknowledged change is not undone".

use std::cell::RefCell;

use kv_store_sdk::payloads::{self, Part};
use kv_store_sdk::{Conversation, Error, ErrorKind, Payload, Peer, Result, system};
use memkv_wire::fields::{self, Connect, Connected};
use memkv_wire::{
    Fault, HEADER_BYTES, Header, Incoming, Key, MAX_BATCH_KEYS, MAX_SMALL_FIELDS_BYTES, Op, Outgoing, SessionKeys,
    Status, TAG_BYTES, Tag,
};

use crate::uri::Target;

/// Bytes that are tagged and then sent at once: while they travel and the server checks them, the next are tagged.
const SEND_BYTES: u64 = 256 << 10;
const TAG_LEN: u32 = TAG_BYTES as u32;

pub struct Server {
    target: Target,
    /// The host keeps this instance's connection under a text that no other has.
    peer: Peer,
    agreed: RefCell<Option<Agreed>>,
}

/// What client and server have agreed on for a connection, and how far they are.
struct Agreed {
    outgoing: Outgoing,
    incoming: Incoming,
    terms: Terms,
}

/// What the server said of itself.
#[derive(Clone)]
pub struct Terms {
    pub durable: bool,
    pub max_value: u64,
    pub server: String,
}

impl Server {
    pub fn new(target: Target) -> Result<Self> {
        let id = format!("memkv instance={:016x}{:016x}", system::random(), system::random());
        let peer = Peer::new(&target.authority, false, &id)?;
        Ok(Server { target, peer, agreed: RefCell::new(None) })
    }

    /// `host:port/namespace`, for people.
    pub fn describe(&self) -> String {
        format!("{}/{}", self.target.authority, self.target.namespace)
    }

    /// Talk to the server, in a session.
    pub fn with_session<T>(&self, talk: impl Fn(&mut Session) -> Result<T>) -> Result<T> {
        let greet = |conversation: &Conversation| {
            *self.agreed.borrow_mut() = None;
            let agreed = agree(conversation, &self.target.namespace)?;
            *self.agreed.borrow_mut() = Some(agreed);
            Ok(())
        };
        Conversation::hold(&self.peer, greet, |conversation| match &mut *self.agreed.borrow_mut() {
            Some(agreed) => talk(&mut Session { conversation, agreed, pending: Vec::new(), pending_bytes: 0 }),
            None => Err(conversation.corrupt("a connection was kept, and what was agreed on it is lost")),
        })
    }
}

/// The key that operators hand out. Asked for with each connection: it may have been replaced.
fn key() -> Result<Key> {
    const SOURCE: &str = "MEMKV_AUTH_KEY, or the source that the config names for it,";
    let text = system::secret("auth-key")?.ok_or_else(|| {
        Error::denied(format!("the secret auth-key is not set: set {SOURCE} to the server's key, 64 hex digits"))
    })?;
    Key::from_hex(&text).map_err(|wrong| Error::denied(format!("{SOURCE} {wrong}: set it to the server's key")))
}

/// The first frame each way.
fn agree(conversation: &Conversation, namespace: &str) -> Result<Agreed> {
    let key = key()?;
    let mut nonce = [0; 32];
    for eight in nonce.chunks_mut(8) {
        eight.copy_from_slice(&system::random().to_le_bytes());
    }
    let mut outgoing = Outgoing::new(key.connect());
    let mut incoming = Incoming::new(key.connected(&nonce), MAX_SMALL_FIELDS_BYTES, 0);
    let asked = Connect { nonce, namespace }.encode();
    let header = outgoing.request(Op::Connect, asked.len(), 0);
    conversation.send(&[Part::Bytes(outgoing.small(header, &asked))])?;

    let (bytes, header) = receive_header(conversation, &mut incoming)?;
    let fields = conversation.receive_exact(header.fields)?;
    let tag = conversation.receive_exact(TAG_LEN)?;
    // What went wrong before there was a session has a key of its own.
    let signed = if header.is_refusal() { key.refusal() } else { incoming.key().clone() };
    if !signed.tag(&[&bytes, &fields]).matches(&tag) {
        return Err(Error::denied(
            "the server has another key: MEMKV_AUTH_KEY must be the one that it was started with",
        ));
    }
    if header.is_refusal() {
        return Err(explain(header.status, &fields));
    }
    let agreed = Connected::decode(&fields).ok().filter(|_| header.answers() == Some(Op::Connect));
    let Some(Connected { nonce: theirs, durable, max_value, server }) = agreed else {
        return Err(conversation.corrupt("CONNECT was answered by something else"));
    };
    let keys = SessionKeys::derive(&key, &nonce, &theirs);
    outgoing.rekey(keys.client);
    incoming.rekey(keys.server, MAX_SMALL_FIELDS_BYTES.max(MAX_BATCH_KEYS), max_value);
    Ok(Agreed { outgoing, incoming, terms: Terms { durable, max_value, server: fields::text(server.as_bytes()) } })
}

fn receive_header(conversation: &Conversation, incoming: &mut Incoming) -> Result<([u8; HEADER_BYTES], Header)> {
    let bytes = conversation.receive_exact(HEADER_BYTES as u32)?;
    let bytes: [u8; HEADER_BYTES] = bytes.try_into().map_err(|_| conversation.corrupt("a short header"))?;
    let header = conversation.in_step(incoming.open(&bytes).map_err(misunderstood))?;
    Ok((bytes, header))
}

/// An answer that is no answer.
fn misunderstood(fault: Fault) -> Error {
    match fault {
        Fault::Version(theirs) => Error::unsupported(format!(
            "UnsupportedVersion: the server speaks version {theirs} of the frames, this component version {}",
            memkv_wire::VERSION
        )),
        Fault::Malformed(what) => Error::corrupt(format!("{what}: is this a memkv-server?")),
        fault => Error::corrupt(format!("a broken answer: {fault}")),
    }
}

/// What a status means, and what would help.
fn explain(status: Status, fields: &[u8]) -> Error {
    let text = fields::text(fields);
    match status {
        Status::Full => Error::exhausted(format!("the server is full: {text}")),
        Status::Gone => Error::unavailable(format!("the manifest was not published: {text}")),
        Status::Failed => Error::unavailable(text),
        Status::UnsupportedVersion => Error::unsupported(format!("UnsupportedVersion: {text}")),
        Status::NotAuthentic => Error::denied(format!("the server refused a signature: {text}")),
        Status::TooLarge => Error::invalid(format!("too large for the server: {text}")),
        Status::Busy => Error::unavailable(format!("the server is busy: {text}")),
        Status::OutOfSequence | Status::Malformed => Error::corrupt(format!("the server refused a frame: {text}")),
        Status::Ok | Status::Missing | Status::Existed => {
            Error::corrupt(format!("an answer that does not fit the question: {status:?}"))
        }
    }
}

/// The bytes of a value to put, where they lie, and how many they are.
pub type Value = (Part<'static>, u64);

/// Whether the value of an answer is received.
#[derive(Clone, Copy)]
pub enum Wanted {
    /// And which chunk of the running call it is.
    Value(Option<u32>),
    Nothing,
}

/// An answer whose tag is right, but for a value for which there was no room.
pub struct Answer {
    pub status: Status,
    /// How many more answers to the same question follow.
    pub left: u32,
    pub fields: Vec<u8>,
    /// `exhausted`: the host had no room for it.
    pub value: Result<Payload>,
}

impl Answer {
    /// The error that it stands for.
    pub fn error(&self) -> Error {
        explain(self.status, &self.fields)
    }
}

/// A session in use.
pub struct Session<'a> {
    conversation: &'a Conversation,
    agreed: &'a mut Agreed,
    /// What was asked and is not sent yet, and how many bytes of values are in it.
    pending: Vec<Part<'static>>,
    pending_bytes: u64,
}

impl Session<'_> {
    pub fn terms(&self) -> &Terms {
        &self.agreed.terms
    }

    /// Ask something; sent now or with what is asked next. See [`Session::send`].
    pub fn ask(&mut self, op: Op, fields: Vec<u8>, value: Option<Value>) -> Result<()> {
        let outgoing = &mut self.agreed.outgoing;
        let (value, len) = value.unzip();
        let len = len.unwrap_or(0);
        let mut head = outgoing.request(op, fields.len(), len).to_vec();
        head.extend(fields);
        let mut parts = vec![Part::Bytes(head)];
        parts.extend(value);
        // From here on a frame that is not sent is missing in the sequence.
        let tag = self.conversation.in_step(payloads::hmac_sha256(outgoing.key().bytes(), &parts))?;
        self.pending.extend(parts);
        self.pending.push(Part::Bytes(tag));
        self.pending_bytes += len;
        if self.pending_bytes >= SEND_BYTES { self.send() } else { Ok(()) }
    }

    /// Send what was asked.
    pub fn send(&mut self) -> Result<()> {
        self.pending_bytes = 0;
        self.conversation.send(&std::mem::take(&mut self.pending))
    }

    /// The next answer, which must be to `op`.
    pub fn answer(&mut self, op: Op, wanted: Wanted) -> Result<Answer> {
        let conversation = self.conversation;
        let (bytes, header) = receive_header(conversation, &mut self.agreed.incoming)?;
        if !header.is_refusal() && header.answers() != Some(op) {
            return Err(conversation.corrupt("an answer to another question"));
        }
        let fields = match header.fields {
            0 => Vec::new(),
            len => conversation.receive_exact(len)?,
        };
        let value = match wanted {
            Wanted::Value(item) => conversation.receive_payload(header.value, item),
            Wanted::Nothing => Err(Error::exhausted("no room for more values")),
        };
        let value = match value {
            Ok(value) => value,
            Err(error) if error.kind == ErrorKind::Exhausted && header.value > 0 => {
                // Its tag cannot be checked, and nothing of it is used. That there was something is all that is said.
                conversation.skip(header.value + u64::from(TAG_LEN))?;
                return Ok(Answer { status: header.status, left: header.left, fields, value: Err(error) });
            }
            Err(error) if error.kind == ErrorKind::Exhausted => Payload::from_bytes(&[])?,
            Err(error) => return Err(error),
        };
        let tag = conversation.receive_exact(TAG_LEN)?;
        let parts = [Part::Bytes(bytes.to_vec()), Part::Bytes(fields.clone()), Part::Payload(&value)];
        let expected = conversation.in_step(payloads::hmac_sha256(self.agreed.incoming.key().bytes(), &parts))?;
        if !<[u8; TAG_BYTES]>::try_from(expected).is_ok_and(|expected| Tag(expected).matches(&tag)) {
            return Err(conversation.corrupt("the signature of an answer is wrong: it was changed on the way"));
        }
        if header.is_refusal() {
            return conversation.in_step(Err(explain(header.status, &fields)));
        }
        Ok(Answer { status: header.status, left: header.left, fields, value: Ok(value) })
    }

    /// The one answer to what is asked.
    pub fn ask_one(&mut self, op: Op, fields: Vec<u8>, value: Option<Value>) -> Result<Answer> {
        self.ask(op, fields, value)?;
        self.send()?;
        let answer = self.answer(op, Wanted::Value(None))?;
        match answer.left {
            0 => Ok(answer),
            _ => Err(self.corrupt("more answers than questions")),
        }
    }

    /// The error for an answer that is not what it must be, which ends the session.
    pub fn corrupt(&self, message: &str) -> Error {
        self.conversation.corrupt(message)
    }
}
