//! A session with the server: who both are is agreed once for a connection, and every frame after it is tagged and numbered.
//!
//! What was agreed lives in this instance, beside the connection that the host keeps, so the connection is kept under a text
//! that only this instance knows. Values never enter this memory: the host computes tags over them where they lie, and
//! nobody sees one whose tag is wrong.
//!
//! What is sent here and given up may still be done, so a change carries its end ([`crate::fence`]), and the next connection of this instance
//! takes the place of a session that was lost with changes on it: none of them is done after CONNECT is answered. A server of version 1 knows
//! neither; it is spoken to all the same. `tests/models/src/memkv.rs`: "an acknowledged change is not undone", "a refused change is not there".

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

use kv_store_sdk::payloads::{self, Part};
use kv_store_sdk::{Conversation, Error, ErrorKind, Payload, Peer, Result, system};
use memkv_wire::fields::{self, Connect, Connected};
use memkv_wire::{
    Fault, HEADER_BYTES, Header, Incoming, Key, MAX_BATCH_KEYS, MAX_SMALL_FIELDS_BYTES, Op, Outgoing, SessionId,
    SessionKeys, Status, TAG_BYTES, Tag, Version,
};

use crate::fence::{End, Told};
use crate::uri::Target;

/// Bytes that are tagged and then sent at once: while they travel and the server checks them, the next are tagged.
const SEND_BYTES: u64 = 256 << 10;
const TAG_LEN: u32 = TAG_BYTES as u32;
/// Sessions that one change makes: the first one's time may be old, and others may be to be replaced, one by each.
const MOST_SESSIONS: usize = 64;
/// Replaced sessions that are remembered: as many as the host remembers changes whose end is unknown.
const MOST_REPLACED: usize = 4096;

pub struct Server {
    target: Target,
    /// The host keeps this instance's connection under a text that no other has.
    peer: Peer,
    agreed: RefCell<Option<Agreed>>,
    /// Sessions that the next ones are to replace, one each.
    lost: RefCell<Vec<SessionId>>,
    /// Those that were replaced: none of their changes is done any more, however long the host tells of them.
    replaced: RefCell<VecDeque<SessionId>>,
}

/// What client and server have agreed on for a connection, and how far they are.
struct Agreed {
    outgoing: Outgoing,
    incoming: Incoming,
    terms: Terms,
    /// None in version 1.
    fence: Option<Fence>,
    /// Changes that were sent and are not answered.
    unanswered: usize,
}

/// What version 2 has more.
struct Fence {
    session: SessionId,
    told: Told,
}

/// What the server said of itself.
#[derive(Clone)]
pub struct Terms {
    pub durable: bool,
    pub max_value: u64,
    pub server: String,
    pub version: Version,
}

impl Server {
    pub fn new(target: Target) -> Result<Self> {
        let id = format!("memkv instance={:016x}{:016x}", system::random(), system::random());
        let peer = Peer::new(&target.authority, false, &id)?;
        let (agreed, lost, replaced) = Default::default();
        Ok(Server { target, peer, agreed, lost, replaced })
    }

    /// `host:port/namespace`, for people.
    pub fn describe(&self) -> String {
        format!("{}/{}", self.target.authority, self.target.namespace)
    }

    /// Talk to the server, in a session.
    pub fn with_session<T>(&self, talk: impl Fn(&mut Session) -> Result<T>) -> Result<T> {
        let is_old = Cell::new(false);
        let outcome = self.hold(Version::Two, &is_old, &talk);
        match outcome {
            // What it refused was CONNECT, and it has closed: nothing else was said.
            Err(_) if is_old.get() => self.hold(Version::One, &is_old, &talk),
            outcome => outcome,
        }
    }

    /// `is_old` is set where the server speaks version 1 only.
    fn hold<T>(&self, version: Version, is_old: &Cell<bool>, talk: &impl Fn(&mut Session) -> Result<T>) -> Result<T> {
        let greet = |conversation: &Conversation| {
            self.give_up();
            let replaces = self.lost.borrow().last().copied();
            let agreed = agree(conversation, &self.target.namespace, version, replaces, is_old)?;
            if let Some(former) = replaces {
                self.lost.borrow_mut().retain(|lost| *lost != former);
                let mut replaced = self.replaced.borrow_mut();
                replaced.push_back(former);
                let over = replaced.len().saturating_sub(MOST_REPLACED);
                replaced.drain(..over);
            }
            *self.agreed.borrow_mut() = Some(agreed);
            Ok(())
        };
        Conversation::hold(&self.peer, greet, |conversation| match &mut *self.agreed.borrow_mut() {
            Some(agreed) => talk(&mut Session { conversation, agreed, pending: Vec::new(), pending_bytes: 0 }),
            None => Err(conversation.corrupt("a connection was kept, and what was agreed on it is lost")),
        })
    }

    /// The connection is gone: what was sent on it may still be done.
    fn give_up(&self) {
        if let Some(Agreed { fence: Some(fence), unanswered: 1.., .. }) = self.agreed.borrow_mut().take() {
            self.replace(fence.session);
        }
    }

    fn replace(&self, session: SessionId) {
        let mut lost = self.lost.borrow_mut();
        if !lost.contains(&session) {
            lost.push(session);
        }
    }

    /// Change something, in a session on which it may be changed: the server's time is known well enough, and what else may still be
    /// changed by what this change must come after is over. `talk` is told the end, and whether it was told one before for the same change:
    /// then that was sent, and may have been done.
    ///
    /// `begins` says that something is about to be sent in this session, and answers the sessions that are to be replaced before.
    pub fn with_change<T>(
        &self,
        begins: impl Fn(Option<&SessionId>) -> Vec<SessionId>,
        talk: impl Fn(&mut Session, u64, bool) -> Result<T>,
    ) -> Result<T> {
        let deadline = system::monotonic().saturating_add(system::remaining());
        let sent = Cell::new(false);
        for _ in 0..MOST_SESSIONS {
            let more = RefCell::new(Vec::new());
            let outcome = self.with_session(|session| {
                let now = system::monotonic();
                let end = match session.agreed.fence.as_ref().map(|fence| fence.told.end(now, deadline)) {
                    None => 0,
                    // The next session asks.
                    Some(End::AskAnew) => return Ok(session.leave()),
                    Some(End::TooNear) => {
                        return Err(Error::unavailable("too little time is left for a change, by the deadline"));
                    }
                    Some(End::At(_)) if !self.lost.borrow().is_empty() => return Ok(session.leave()),
                    Some(End::At(end)) => end,
                };
                let own = session.agreed.fence.as_ref().map(|fence| &fence.session);
                let former = begins(own);
                if let Some(own) = own {
                    let replaced = self.replaced.borrow();
                    // What was sent in this session is carried out before what follows.
                    let is_over = |former: &SessionId| former == own || replaced.contains(former);
                    *more.borrow_mut() = former.into_iter().filter(|former| !is_over(former)).collect();
                    if !more.borrow().is_empty() {
                        return Ok(session.leave());
                    }
                }
                talk(session, end, sent.replace(true)).map(Some)
            })?;
            if let Some(outcome) = outcome {
                return Ok(outcome);
            }
            more.into_inner().into_iter().for_each(|session| self.replace(session));
        }
        Err(Error::unavailable("too many sessions would have to be replaced before this change"))
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
fn agree(
    conversation: &Conversation,
    namespace: &str,
    version: Version,
    replaces: Option<SessionId>,
    is_old: &Cell<bool>,
) -> Result<Agreed> {
    let key = key()?;
    let mut nonce = [0; 32];
    for eight in nonce.chunks_mut(8) {
        eight.copy_from_slice(&system::random().to_le_bytes());
    }
    let mut outgoing = Outgoing::new(key.connect(), version);
    let mut incoming = Incoming::new(key.connected(&nonce), MAX_SMALL_FIELDS_BYTES, 0);
    let asked = Connect { nonce, namespace, replaces }.encode(version);
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
        is_old.set(header.status == Status::UnsupportedVersion && header.version < version);
        return Err(explain(header.status, &fields));
    }
    let heard = system::monotonic();
    let is_answer = header.answers() == Some(Op::Connect) && header.version == version;
    let agreed = Connected::decode(&fields, version).ok().filter(|_| is_answer);
    let Some(Connected { nonce: theirs, durable, max_value, server, session, time }) = agreed else {
        return Err(conversation.corrupt("CONNECT was answered by something else"));
    };
    let fence = (version >= Version::Two).then_some(Fence { session, told: Told { time, heard } });
    let keys = SessionKeys::derive(&key, &nonce, &theirs);
    outgoing.rekey(keys.client);
    incoming.rekey(keys.server, MAX_SMALL_FIELDS_BYTES.max(MAX_BATCH_KEYS), max_value);
    let terms = Terms { durable, max_value, server: fields::text(server.as_bytes()), version };
    Ok(Agreed { outgoing, incoming, terms, fence, unanswered: 0 })
}

fn receive_header(conversation: &Conversation, incoming: &mut Incoming) -> Result<(Vec<u8>, Header)> {
    let bytes = conversation.receive_exact(HEADER_BYTES as u32)?;
    let header = bytes.first_chunk().ok_or_else(|| conversation.corrupt("a short header"))?;
    let header = conversation.in_step(incoming.open(header).map_err(misunderstood))?;
    Ok((bytes, header))
}

/// An answer that is no answer.
fn misunderstood(fault: Fault) -> Error {
    match fault {
        Fault::Version(theirs) => Error::unsupported(format!(
            "UnsupportedVersion: the server speaks version {theirs} of the frames, this component version {} at most",
            Version::LATEST as u8
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
        Status::TooLate => Error::unavailable(format!("the server came to it too late, and changed nothing: {text}")),
        Status::UnsupportedVersion => Error::unsupported(format!("UnsupportedVersion: {text}")),
        Status::NotAuthentic => Error::denied(format!("the server refused a signature: {text}")),
        Status::TooLarge => Error::invalid(format!("too large for the server: {text}")),
        Status::Busy => Error::busy(format!("the server is busy: {text}")),
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
    /// `None`: it is empty. `exhausted`: the host had no room for it.
    value: Result<Option<Payload>>,
}

impl Answer {
    /// Its value.
    pub fn payload(self) -> Result<Payload> {
        self.value?.map_or_else(|| Payload::from_bytes(&[]), Ok)
    }

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

    /// The version of its frames.
    pub fn version(&self) -> Version {
        self.agreed.outgoing.version()
    }

    /// Use this session no more: the next one begins anew.
    fn leave<T>(&self) -> Option<T> {
        self.conversation.leave();
        None
    }

    /// Ask something; sent now or with what is asked next. See [`Session::send`].
    pub fn ask(&mut self, op: Op, fields: Vec<u8>, value: Option<Value>) -> Result<()> {
        self.agreed.unanswered += usize::from(matches!(op, Op::Put | Op::Delete));
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
        let (fields, value, tag) = if header.value == 0 {
            // All that is left, at once: each receive is a call of the host.
            let mut rest = conversation.receive_exact(header.fields.saturating_add(TAG_LEN))?;
            let tag = rest.split_off(rest.len().saturating_sub(TAG_BYTES));
            (rest, None, tag)
        } else {
            let fields = match header.fields {
                0 => Vec::new(),
                len => conversation.receive_exact(len)?,
            };
            let value = match wanted {
                Wanted::Value(item) => conversation.receive_payload(header.value, item),
                Wanted::Nothing => Err(Error::exhausted("no room for more values")),
            };
            match value {
                Ok(value) => (fields, Some(value), conversation.receive_exact(TAG_LEN)?),
                Err(error) if error.kind == ErrorKind::Exhausted => {
                    // Its tag cannot be checked, and nothing of it is used. That there was something is all that is said.
                    conversation.skip(header.value + u64::from(TAG_LEN))?;
                    return Ok(Answer { status: header.status, left: header.left, fields, value: Err(error) });
                }
                Err(error) => return Err(error),
            }
        };
        let of_value = value.as_ref().map_or_else(|| Part::Bytes(Vec::new()), Part::Payload);
        let parts = [Part::Bytes(bytes), Part::Bytes(fields.clone()), of_value];
        let expected = conversation.in_step(payloads::hmac_sha256(self.agreed.incoming.key().bytes(), &parts))?;
        if !<[u8; TAG_BYTES]>::try_from(expected).is_ok_and(|expected| Tag(expected).matches(&tag)) {
            return Err(conversation.corrupt("the signature of an answer is wrong: it was changed on the way"));
        }
        if header.is_refusal() {
            return conversation.in_step(Err(explain(header.status, &fields)));
        }
        self.agreed.unanswered = self.agreed.unanswered.saturating_sub(usize::from(matches!(op, Op::Put | Op::Delete)));
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
