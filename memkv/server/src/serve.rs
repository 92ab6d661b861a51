//! One client: the frames that it sends, in order, and what each is answered.

use std::io;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use memkv_wire::fields::{BatchGet, Connect, Connected, Evict, Exists, Kind, List, Listing, Lookup, Put};
use memkv_wire::{
    Fault, Incoming, MAX_FIELDS_BYTES, MAX_KEY_BYTES, MAX_LISTED_KEYS, MAX_SMALL_FIELDS_BYTES, Op, SessionKeys, Status,
    VERSION,
};

use crate::Server;
use crate::inflight::{SMALL_BYTES, Share};
use crate::stats::refusal_name;
use crate::store::{self, Name, Value};
use crate::stream::{End, Frame, Input, Output, PATIENCE};

/// How long a client may take to say who it is.
const CONNECT_PATIENCE: Duration = Duration::from_secs(10);
/// Bytes in the answers to one batch get, whatever was asked: a client that reads slowly keeps no more from eviction.
const BATCH_BYTES: u64 = 64 << 20;
/// What a name of a manifest costs while it is published, beside its bytes: allocations and the lists that it is in.
const NAME_BYTES: usize = 160;
/// What the server calls itself.
pub const SERVER: &str = concat!("memkv-server ", env!("CARGO_PKG_VERSION"));

/// Serve a client until it goes, or does what ends the connection. `Err`: it went without reading its answers.
pub fn serve(server: &Server, stream: &TcpStream, too_many: bool) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut input = Input::new(stream, CONNECT_PATIENCE);
    let mut output = Output::new(stream, server.key.refusal())?;
    let end = if too_many {
        // Read what it says first, so that it has a request that is answered.
        let mut incoming = Incoming::new(server.key.connect(), MAX_SMALL_FIELDS_BYTES, 0);
        input.frame(&mut incoming, &server.inflight).map_or_else(|end| end, |_| End::Busy)
    } else {
        converse(server, &mut input, &mut output)?
    };
    let (status, text) = match end {
        End::Closed => return Ok(()),
        End::Truncated => {
            server.stats.truncated.add(1);
            // What came whole before has been done.
            return output.flush();
        }
        End::Fault(Fault::Version(came)) => {
            (Status::UnsupportedVersion, format!("version {came} is not spoken here: {SERVER} speaks {VERSION}"))
        }
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
fn converse(server: &Server, input: &mut Input, output: &mut Output) -> io::Result<End> {
    let mut incoming = Incoming::new(server.key.connect(), MAX_SMALL_FIELDS_BYTES, 0);
    let namespace = match input.frame(&mut incoming, &server.inflight) {
        Ok(frame) => match connect(server, &frame, &mut incoming, output)? {
            Ok(namespace) => namespace,
            Err(fault) => return Ok(End::Fault(fault)),
        },
        Err(end) => return Ok(end),
    };
    input.set_idle(server.idle);
    let client = Client { server, namespace };
    loop {
        if input.is_empty() {
            output.flush()?;
        }
        let frame = match input.frame(&mut incoming, &server.inflight) {
            Ok(frame) => frame,
            Err(end) => return Ok(end),
        };
        if let Err(fault) = client.answer(frame, output)? {
            return Ok(End::Fault(fault));
        }
    }
}

/// Agree on a session. The client's namespace.
fn connect(
    server: &Server,
    frame: &Frame,
    incoming: &mut Incoming,
    output: &mut Output,
) -> io::Result<Result<String, Fault>> {
    if frame.header.op() != Some(Op::Connect) {
        return Ok(Err(Fault::Malformed("the first frame is not CONNECT")));
    }
    let asked = match Connect::decode(&frame.fields) {
        Ok(asked) => asked,
        Err(fault) => return Ok(Err(fault)),
    };
    server.stats.request(Op::Connect);
    let mut nonce = [0; 32];
    getrandom::fill(&mut nonce).map_err(|error| io::Error::other(error.to_string()))?;
    let durable = server.store.is_durable();
    let fields = Connected { nonce, durable, max_value: server.max_value, server: SERVER }.encode();
    output.outgoing.rekey(server.key.connected(&asked.nonce));
    let header = output.outgoing.answer(Op::Connect, Status::Ok, 0, fields.len(), 0);
    output.small(header, &fields)?;
    let keys = SessionKeys::derive(&server.key, &asked.nonce, &nonce);
    output.outgoing.rekey(keys.server);
    incoming.rekey(keys.client, MAX_FIELDS_BYTES, server.max_value);
    Ok(Ok(asked.namespace.to_owned()))
}

struct Client<'a> {
    server: &'a Server,
    namespace: String,
}

impl Client<'_> {
    fn name(&self, kind: Kind, key: &[u8]) -> Name {
        store::name(&self.namespace, kind, key)
    }

    fn chunks(&self, keys: &[&[u8]]) -> Vec<Name> {
        keys.iter().map(|key| self.name(Kind::Chunk, key)).collect()
    }

    /// Have the names of a manifest's chunks counted, of which many are made of few bytes.
    fn room_for_names(&self, asked: &Put, share: &mut Share) -> bool {
        let each = NAME_BYTES + self.namespace.len();
        let bytes: usize = asked.chunks.iter().map(|key| each + key.len()).sum();
        bytes as u64 <= SMALL_BYTES || share.grow(bytes as u64, Instant::now() + PATIENCE)
    }

    /// Do what a frame asks. The inner `Err`: it makes no sense, and nothing was done.
    fn answer(&self, frame: Frame, output: &mut Output) -> io::Result<Result<(), Fault>> {
        let Frame { header, fields, value, mut share } = frame;
        let op = match header.op() {
            Some(op) if op != Op::Connect && (op == Op::Put || value.is_empty()) => op,
            _ => return Ok(Err(Fault::Malformed("this frame may not come now"))),
        };
        let Server { store, stats, .. } = self.server;
        stats.request(op);
        stats.received.add(value.len() as u64);
        match op {
            Op::Connect => {}
            Op::Put => match Put::decode(&fields) {
                Err(fault) => return Ok(Err(fault)),
                Ok(asked) => {
                    let name = self.name(asked.kind, asked.key);
                    let put = match asked.kind {
                        Kind::Chunk => store.put_chunk(name, value, asked.replace),
                        Kind::Manifest if !self.room_for_names(&asked, &mut share) => {
                            store::Put::Full("the server receives as much as it can".into())
                        }
                        Kind::Manifest => store.put_manifest(name, value, &self.chunks(&asked.chunks)),
                    };
                    drop(share);
                    let (status, text) = outcome(put);
                    let header = output.outgoing.answer(op, status, 0, text.len(), 0);
                    output.small(header, text.as_bytes())?;
                }
            },
            Op::Get => match Lookup::decode(&fields) {
                Err(fault) => return Ok(Err(fault)),
                Ok(asked) => self.send(op, 0, store.get(&self.name(asked.kind, asked.key)), output)?,
            },
            Op::Delete => match Lookup::decode(&fields) {
                Err(fault) => return Ok(Err(fault)),
                Ok(asked) => {
                    let (status, text) = match store.delete(&self.name(asked.kind, asked.key)) {
                        Ok(true) => (Status::Ok, String::new()),
                        Ok(false) => (Status::Missing, String::new()),
                        Err(text) => (Status::Failed, text),
                    };
                    let header = output.outgoing.answer(op, status, 0, text.len(), 0);
                    output.small(header, text.as_bytes())?;
                }
            },
            Op::Exists => match Exists::decode(&fields) {
                Err(fault) => return Ok(Err(fault)),
                Ok(asked) => {
                    let found: Vec<u8> = store.exists(&self.chunks(&asked.keys)).into_iter().map(u8::from).collect();
                    let header = output.outgoing.answer(op, Status::Ok, 0, found.len(), 0);
                    output.small(header, &found)?;
                }
            },
            Op::List => match List::decode(&fields) {
                Err(fault) => return Ok(Err(fault)),
                Ok(asked) => {
                    // No longer than a value that the client takes.
                    let fit = (self.server.max_value / (MAX_KEY_BYTES as u64 + 26)).max(1);
                    let limit = u64::from(asked.limit).min(fit).min(MAX_LISTED_KEYS as u64) as usize;
                    let listed = Listing(store.list(&self.namespace, asked.kind, asked.after, limit)).encode();
                    let header = output.outgoing.answer(op, Status::Ok, 0, 0, listed.len() as u64);
                    output.with_value(header, &listed)?;
                }
            },
            Op::Usage if !fields.is_empty() => {
                return Ok(Err(Fault::Malformed("the fields are not those of this operation")));
            }
            Op::Usage => {
                let fields = store.usage(&self.namespace).encode();
                let header = output.outgoing.answer(op, Status::Ok, 0, fields.len(), 0);
                output.small(header, &fields)?;
            }
            Op::Evict => match Evict::decode(&fields) {
                Err(fault) => return Ok(Err(fault)),
                Ok(asked) => {
                    let fields = store.evict(Some(&self.namespace), &asked).encode();
                    let header = output.outgoing.answer(op, Status::Ok, 0, fields.len(), 0);
                    output.small(header, &fields)?;
                }
            },
            Op::BatchGet => match BatchGet::decode(&fields) {
                Err(fault) => return Ok(Err(fault)),
                Ok(asked) => {
                    let found = store.get_some(&self.chunks(&asked.keys), asked.max_bytes.min(BATCH_BYTES));
                    let count = found.len() as u32;
                    for (left, value) in (0..count).rev().zip(found) {
                        self.send(op, left, value, output)?;
                    }
                }
            },
        }
        Ok(Ok(()))
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
    }
}
