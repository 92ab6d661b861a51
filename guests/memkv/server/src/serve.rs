//! One client: the frames that it sends, in order, and what each is answered.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use memkv_wire::fields::{
    BatchGet, Commit, Connect, Connected, Delete, Evict, Exists, Kind, List, Listing, Lookup, Put,
};
use memkv_wire::{
    Fault, GENERATION_BYTES, Incoming, MAX_FIELDS_BYTES, MAX_KEY_BYTES, MAX_LISTED_KEYS, MAX_SMALL_FIELDS_BYTES, Op,
    SESSION_BYTES, SessionKeys, Status, Version,
};

use crate::clock;
use crate::inflight::{SMALL_BYTES, Share};
use crate::names::{self, Name, Value};
use crate::os::{self, Instant, TcpStream};
use crate::server::Server;
use crate::sessions::{Running, Session};
use crate::stats::refusal_name;
use crate::store::{self, Terms};
use crate::stream::{End, Frame, Input, Output, PATIENCE};

/// How long a client may take to say who it is.
const CONNECT_PATIENCE: Duration = Duration::from_secs(10);
/// Bytes in the answers to one batch get, whatever was asked: a client that reads slowly keeps no more from eviction.
const BATCH_BYTES: u64 = 64 << 20;
/// What a name of a manifest costs while it is published, beside its bytes: allocations and the lists that it is in.
const NAME_BYTES: usize = 160;
/// What the server calls itself.
pub const SERVER: &str = concat!("memkv-server ", env!("CARGO_PKG_VERSION"));

impl Server {
    /// Serve a client that has come, until it goes.
    pub fn attend(&self, number: u64, stream: &Arc<TcpStream>) {
        let _gone = Gone { server: self, number };
        // Whoever sent the request may not have waited for the answer.
        let _ = serve(self, stream, number);
    }
}

/// Forgets a client, however its thread ends.
struct Gone<'a> {
    server: &'a Server,
    number: u64,
}

impl Drop for Gone<'_> {
    fn drop(&mut self) {
        self.server.dismiss(self.number);
    }
}

/// Serve a client until it goes, or does what ends the connection. `Err`: it went without reading its answers.
/// `number`: the client's, among all that came.
fn serve(server: &Server, stream: &Arc<TcpStream>, number: u64) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut input = Input::new(stream, CONNECT_PATIENCE);
    let mut output = Output::new(stream, server.key.refusal())?;
    let end = converse(server, stream, number, &mut input, &mut output)?;
    let (status, text) = match end {
        End::Closed => return Ok(()),
        End::Truncated => {
            server.stats.truncated.add(1);
            // What came whole before has been done.
            return output.flush();
        }
        End::Fault(fault @ Fault::Version(_)) => (fault.status(), format!("{SERVER}: {fault}")),
        End::Fault(fault) => (fault.status(), fault.to_string()),
        End::Busy => (Status::Busy, "the server has as many connections, or receives as much, as it can".to_owned()),
    };
    server.stats.refusal(status);
    server.say_refused(format_args!("{}: {text}", refusal_name(status).unwrap_or_default()));
    let header = output.outgoing.refusal(status, text.len());
    output.small(header, text.as_bytes())?;
    output.finish()?;
    input.linger();
    Ok(())
}

/// Answer what comes, to the end.
fn converse(
    server: &Server,
    stream: &Arc<TcpStream>,
    number: u64,
    input: &mut Input,
    output: &mut Output,
) -> io::Result<End> {
    let mut incoming = Incoming::new(server.key.connect(), MAX_SMALL_FIELDS_BYTES, 0);
    let client = match input.frame(&mut incoming, &server.inflight) {
        // It has the key, or the frame would not be authentic.
        Ok(_) if !server.enter(number) => {
            output.outgoing.speak(incoming.version().unwrap_or(Version::One));
            return Ok(End::Busy);
        }
        Ok(frame) => match connect(server, stream, &frame, &mut incoming, output)? {
            Ok(client) => client,
            Err(fault) => return Ok(End::Fault(fault)),
        },
        Err(end) => {
            if matches!(end, End::Fault(Fault::Version(_))) {
                output.outgoing.speak(Version::LATEST);
            }
            return Ok(end);
        }
    };
    input.set_idle(server.idle);
    loop {
        if input.is_empty() {
            output.flush()?;
        }
        let frame = match input.frame(&mut incoming, &server.inflight) {
            Ok(frame) => frame,
            Err(end) => return Ok(end),
        };
        if let Err(end) = client.answer(frame, output)? {
            return Ok(end);
        }
    }
}

/// Agree on a session.
fn connect<'a>(
    server: &'a Server,
    stream: &Arc<TcpStream>,
    frame: &Frame,
    incoming: &mut Incoming,
    output: &mut Output,
) -> io::Result<Result<Client<'a>, Fault>> {
    let version = frame.header.version;
    output.outgoing.speak(version);
    if frame.header.op() != Some(Op::Connect) {
        return Ok(Err(Fault::Malformed("the first frame is not CONNECT")));
    }
    let asked = match Connect::decode(&frame.fields, version) {
        Ok(asked) => asked,
        Err(fault) => return Ok(Err(fault)),
    };
    server.stats.request(Op::Connect);
    if let Some(former) = &asked.replaces {
        server.sessions.end(former);
    }
    let mut nonce = [0; 32];
    let mut id = [0; SESSION_BYTES];
    os::fill(&mut nonce).and_then(|()| os::fill(&mut id)).map_err(|error| io::Error::other(error.to_string()))?;
    // Version 1 has no name for a session, so nobody can replace it.
    let session = (version >= Version::Two).then(|| server.sessions.begin(id, stream.clone()));
    let (durable, max_value) = (server.store.is_durable(), server.max_value);
    let fields = Connected { nonce, durable, max_value, server: SERVER, session: id, time: clock::steady() };
    let fields = fields.encode(version);
    output.outgoing.rekey(server.key.connected(&asked.nonce));
    let header = output.outgoing.answer(Op::Connect, Status::Ok, 0, fields.len(), 0);
    output.small(header, &fields)?;
    let keys = SessionKeys::derive(&server.key, &asked.nonce, &nonce);
    output.outgoing.rekey(keys.server);
    incoming.rekey(keys.client, MAX_FIELDS_BYTES, server.max_value);
    Ok(Ok(Client { server, namespace: asked.namespace.to_owned(), version, session }))
}

struct Client<'a> {
    server: &'a Server,
    namespace: String,
    version: Version,
    session: Option<Session<'a>>,
}

impl Client<'_> {
    fn name(&self, kind: Kind, key: &[u8]) -> Name {
        names::name(&self.namespace, kind, key)
    }

    fn chunks(&self, keys: &[&[u8]]) -> Vec<Name> {
        keys.iter().map(|key| self.name(Kind::Chunk, key)).collect()
    }

    /// Have the names of a manifest's chunks counted, of which many are made of few bytes.
    fn room_for_names(&self, chunks: &[&[u8]], share: &mut Share) -> bool {
        let each = NAME_BYTES + self.namespace.len();
        let bytes: usize = chunks.iter().map(|key| each + key.len()).sum();
        bytes as u64 <= SMALL_BYTES || share.grow(bytes as u64, Instant::now() + PATIENCE)
    }

    /// Begin a change. `Err`: another session has taken the place of this one, which changes nothing any more.
    fn change(&self) -> Result<Option<Running<'_>>, End> {
        self.session.as_ref().map(|session| session.run().ok_or(End::Closed)).transpose()
    }

    fn put(&self, fields: &[u8], value: Vec<u8>, mut share: Share) -> Result<store::Put, End> {
        let asked = Put::decode(fields, self.version).map_err(End::Fault)?;
        let (end, generation) = (asked.end, asked.generation);
        if generation && value.len() < GENERATION_BYTES {
            return Err(End::Fault(Fault::Malformed("the value has no place for a generation")));
        }
        let (store, name) = (&self.server.store, self.name(asked.kind, asked.key));
        match asked.kind {
            Kind::Manifest if !self.room_for_names(&asked.chunks, &mut share) => Ok(no_room()),
            Kind::Chunk => {
                let _running = self.change()?;
                Ok(store.put_chunk(name, value, asked.replace, end))
            }
            Kind::Manifest => {
                let chunks = self.chunks(&asked.chunks);
                let _running = self.change()?;
                Ok(store.put_manifest(name, value, &chunks, Terms { end, generation }))
            }
        }
    }

    fn commit(&self, fields: &[u8], mut share: Share) -> Result<store::Put, End> {
        if self.version < Version::Two {
            return Err(End::Fault(Fault::Malformed("the first version has no COMMIT")));
        }
        let asked = Commit::decode(fields).map_err(End::Fault)?;
        match self.room_for_names(&asked.chunks, &mut share) {
            true => Ok(self.server.store.commit(&self.chunks(&asked.chunks))),
            false => Ok(no_room()),
        }
    }

    fn delete(&self, fields: &[u8]) -> Result<store::Deleted, End> {
        let asked = Delete::decode(fields, self.version).map_err(End::Fault)?;
        let name = self.name(asked.kind, asked.key);
        let _running = self.change()?;
        Ok(self.server.store.delete(&name, asked.end))
    }

    /// What became of a change.
    fn said(&self, op: Op, (status, text): (Status, String), output: &mut Output) -> io::Result<()> {
        if status == Status::TooLate {
            self.server.stats.late.add(1);
        }
        let header = output.outgoing.answer(op, status, 0, text.len(), 0);
        output.small(header, text.as_bytes())
    }

    /// Do what a frame asks. The inner `Err`: nothing was done, and nothing more is.
    fn answer(&self, frame: Frame, output: &mut Output) -> io::Result<Result<(), End>> {
        let Frame { header, fields, value, share } = frame;
        let op = match header.op() {
            Some(op) if op != Op::Connect && (op == Op::Put || value.is_empty()) => op,
            _ => return Ok(Err(End::Fault(Fault::Malformed("this frame may not come now")))),
        };
        let Server { store, stats, .. } = self.server;
        stats.request(op);
        stats.received.add(value.len() as u64);
        let done = match op {
            Op::Connect => Ok(()),
            Op::Put => match self.put(&fields, value, share) {
                Ok(put) => self.said(op, outcome(put), output),
                Err(end) => return Ok(Err(end)),
            },
            Op::Commit => match self.commit(&fields, share) {
                Ok(put) => self.said(op, outcome(put), output),
                Err(end) => return Ok(Err(end)),
            },
            Op::Delete => match self.delete(&fields) {
                Ok(deleted) => self.said(op, outcome_of_delete(deleted), output),
                Err(end) => return Ok(Err(end)),
            },
            _ => match self.read(op, &fields, store, output) {
                Ok(done) => done,
                Err(fault) => return Ok(Err(End::Fault(fault))),
            },
        };
        done.map(Ok)
    }

    /// Answer a question. `Err`: it makes no sense.
    fn read(&self, op: Op, fields: &[u8], store: &store::Store, output: &mut Output) -> Result<io::Result<()>, Fault> {
        Ok(match op {
            Op::Connect | Op::Put | Op::Delete | Op::Commit => Ok(()),
            Op::Get => {
                let asked = Lookup::decode(fields)?;
                self.send(op, 0, store.get(&self.name(asked.kind, asked.key)), output)
            }
            Op::Exists => {
                let asked = Exists::decode(fields)?;
                let found: Vec<u8> = store.exists(&self.chunks(&asked.keys)).into_iter().map(u8::from).collect();
                self.fields(op, &found, output)
            }
            Op::List => {
                let asked = List::decode(fields)?;
                // No longer than a value that the client takes.
                let fit = (self.server.max_value / (MAX_KEY_BYTES as u64 + 26)).max(1);
                let limit = u64::from(asked.limit).min(fit).min(MAX_LISTED_KEYS as u64) as usize;
                let listed = Listing(store.list(&self.namespace, asked.kind, asked.after, limit)).encode();
                let header = output.outgoing.answer(op, Status::Ok, 0, 0, listed.len() as u64);
                output.with_value(header, &listed)
            }
            Op::Usage if !fields.is_empty() => {
                return Err(Fault::Malformed("the fields are not those of this operation"));
            }
            Op::Usage => self.fields(op, &store.usage(&self.namespace).encode(), output),
            Op::Evict => {
                let asked = Evict::decode(fields)?;
                self.fields(op, &store.evict(Some(&self.namespace), &asked).encode(), output)
            }
            Op::BatchGet => {
                let asked = BatchGet::decode(fields)?;
                let found = store.get_some(&self.chunks(&asked.keys), asked.max_bytes.min(BATCH_BYTES));
                let count = found.len() as u32;
                (0..count).rev().zip(found).try_for_each(|(left, value)| self.send(op, left, value, output))
            }
        })
    }

    /// An answer that has no value.
    fn fields(&self, op: Op, fields: &[u8], output: &mut Output) -> io::Result<()> {
        let header = output.outgoing.answer(op, Status::Ok, 0, fields.len(), 0);
        output.small(header, fields)
    }

    /// A value, or that there is none.
    fn send(&self, op: Op, left: u32, value: Option<Value>, output: &mut Output) -> io::Result<()> {
        let stats = &self.server.stats;
        let Some(value) = value else {
            stats.misses.add(1);
            let header = output.outgoing.answer(op, Status::Missing, left, 0, 0);
            return output.small(header, &[]);
        };
        stats.hits.add(1);
        stats.sent.add(value.len() as u64);
        let header = output.outgoing.answer(op, Status::Ok, left, 0, value.len() as u64);
        output.with_value(header, &value)
    }
}

fn no_room() -> store::Put {
    store::Put::Full("the server receives as much as it can".into())
}

fn outcome(put: store::Put) -> (Status, String) {
    match put {
        store::Put::Stored => (Status::Ok, String::new()),
        store::Put::Existed => (Status::Existed, String::new()),
        store::Put::Full(text) => (Status::Full, text),
        store::Put::Gone(count) => {
            let text = format!(
                "{count} of its chunks were evicted before the manifest came: is the server's memory too small?"
            );
            (Status::Gone, text)
        }
        store::Put::Failed(text) => (Status::Failed, text),
        store::Put::TooLate => too_late(),
    }
}

fn outcome_of_delete(deleted: store::Deleted) -> (Status, String) {
    match deleted {
        store::Deleted::Gone => (Status::Ok, String::new()),
        store::Deleted::Missing => (Status::Missing, String::new()),
        store::Deleted::Failed(text) => (Status::Failed, text),
        store::Deleted::TooLate => too_late(),
    }
}

fn too_late() -> (Status, String) {
    (Status::TooLate, "its end had passed when the server came to it".to_owned())
}
