//! Mooncake's nodes: bytes go to and from their memory over TCP (Transfer Engine, TCP protocol version 2).
//!
//! A node tells on one port what it speaks, and where; on another it reads and writes its memory for whoever asks. Nothing of it
//! is authenticated.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use kv_store_sdk::payloads::Part;
use kv_store_sdk::{Conversation, Error, ErrorKind, Next, Payload, Peer, Request, Result, ask};

use crate::master::Replica;

/// What a handshake asks for: the node's description.
const METADATA: u8 = 1;
/// More than a node says of itself.
const MAX_DESCRIPTION_BYTES: u64 = 4 << 20;
const PROTOCOL_VERSION: u64 = 2;
/// Marks the first byte after size and address in a request's head.
const FLAG: u8 = 0x80;
const READ: u8 = 0;
const WRITE: u8 = 1;
/// What a node says before it sends, or after it has taken, the bytes.
const DONE: [u8; 8] = 0x4d43_5456_0000_0000_u64.to_le_bytes();
/// Nodes whose data port is remembered.
const MAX_NODES: usize = 4096;

/// Where the bytes of nodes go in and out, by their endpoints.
#[derive(Default)]
pub struct Nodes {
    data: RefCell<HashMap<String, Rc<Peer>>>,
}

/// Bytes to write to one replica.
pub struct Write<'a> {
    pub replica: &'a Replica,
    pub parts: Vec<Part<'a>>,
}

impl<'a> Write<'a> {
    fn request(&self) -> Vec<Part<'a>> {
        let head = head(self.replica.size, self.replica.address, WRITE);
        [Part::Bytes(head)].into_iter().chain(self.parts.iter().cloned()).collect()
    }
}

/// Bytes to read from one replica.
pub struct Read<'a> {
    pub replica: &'a Replica,
    /// From its beginning; no more than it has.
    pub len: u64,
    /// The item of the running call that they answer.
    pub item: Option<u32>,
}

impl Nodes {
    /// Write to all replicas, side by side.
    pub fn write(&self, writes: &[Write]) -> Vec<Result<()>> {
        self.transfer(writes, |write| &write.replica.endpoint, Write::request, |_, conversation| done(conversation))
    }

    /// Read from all replicas, side by side. `exhausted`: the host has no room for this one.
    pub fn read(&self, reads: &[Read]) -> Vec<Result<Payload>> {
        let request = |read: &Read| vec![Part::Bytes(head(read.len, read.replica.address, READ))];
        self.transfer(
            reads,
            |read| &read.replica.endpoint,
            request,
            |read, conversation| {
                done(conversation)?;
                match conversation.receive_payload(read.len, read.item) {
                    Err(error) if error.kind == ErrorKind::Exhausted => {
                        conversation.skip(read.len)?;
                        Err(error)
                    }
                    payload => payload,
                }
            },
        )
    }

    /// Ask the nodes for transfers, each over one connection, and hand each answer to `answer`.
    fn transfer<'a, T, U>(
        &self,
        transfers: &'a [T],
        endpoint: impl Fn(&T) -> &String,
        request: impl Fn(&'a T) -> Vec<Part<'a>>,
        answer: impl Fn(&T, &Conversation) -> Result<U>,
    ) -> Vec<Result<U>> {
        let unknown = transfers.iter().map(&endpoint).filter(|endpoint| !self.data.borrow().contains_key(*endpoint));
        let failures = match self.shake_hands(unknown.cloned().collect()) {
            Ok(failures) => failures,
            Err(error) => return transfers.iter().map(|_| Err(error.clone())).collect(),
        };
        let mut outcomes: Vec<Option<Result<U>>> = transfers.iter().map(|_| None).collect();
        let mut by_node: BTreeMap<&String, Vec<usize>> = BTreeMap::new();
        for (number, (transfer, outcome)) in transfers.iter().zip(&mut outcomes).enumerate() {
            match failures.get(endpoint(transfer)) {
                Some(error) => *outcome = Some(Err(error.clone())),
                None => by_node.entry(endpoint(transfer)).or_default().push(number),
            }
        }
        let groups: Vec<(&String, Vec<usize>)> = by_node.into_iter().collect();
        let requests: Vec<Request> = groups
            .iter()
            .filter_map(|(endpoint, numbers)| {
                let peer = self.data.borrow().get(*endpoint)?.clone();
                let parts = numbers.iter().filter_map(|number| transfers.get(*number)).flat_map(&request).collect();
                Some(Request::new(peer, parts, numbers.len()))
            })
            .collect();
        let ends = ask(&requests, |group, next, conversation| {
            let Next::Answer(number) = next else { return Ok(()) };
            let number = groups.get(group).and_then(|(_, numbers)| numbers.get(number)).copied();
            let Some((number, transfer)) = number.and_then(|number| Some((number, transfers.get(number)?))) else {
                return Err(Error::other("an answer to no question"));
            };
            let outcome = answer(transfer, conversation);
            let lost = outcome.as_ref().err().filter(|_| !conversation.is_in_step()).cloned();
            if let Some(slot) = outcomes.get_mut(number) {
                *slot = Some(outcome);
            }
            lost.map_or(Ok(()), Err)
        });
        drop(requests);
        for ((endpoint, numbers), end) in groups.iter().zip(ends) {
            let Err(error) = end else { continue };
            // It may have come back on other ports.
            self.data.borrow_mut().remove(*endpoint);
            for number in numbers {
                if let Some(outcome @ None) = outcomes.get_mut(*number) {
                    *outcome = Some(Err(error.clone()));
                }
            }
        }
        let unanswered = || Err(Error::unavailable("the node did not answer"));
        outcomes.into_iter().map(|outcome| outcome.unwrap_or_else(unanswered)).collect()
    }

    /// Learn the data ports of these nodes; comes back with those that do not tell, and why.
    fn shake_hands(&self, mut endpoints: Vec<String>) -> Result<HashMap<String, Error>> {
        endpoints.sort();
        endpoints.dedup();
        let question = [&3_u64.to_le_bytes()[..], &[METADATA], b"{}"].concat();
        let request = |endpoint: &String| {
            let peer = Rc::new(Peer::new(endpoint, false, "handshake")?);
            Ok(Request::new(peer, vec![Part::Bytes(question.clone())], 1))
        };
        let requests = endpoints.iter().map(request).collect::<Result<Vec<Request>>>()?;
        let mut failures = HashMap::new();
        let mut data = self.data.borrow_mut();
        if data.len() + endpoints.len() > MAX_NODES {
            data.clear();
        }
        let ends = ask(&requests, |node, _, conversation| {
            let described = describe(conversation)?;
            // A node serves one connection at a time here: a kept one would be in the way of everybody else's.
            conversation.leave();
            if let Some(endpoint) = endpoints.get(node) {
                data.insert(endpoint.clone(), Rc::new(Peer::new(described, false, "transfer")?));
            }
            Ok(())
        });
        for (endpoint, end) in endpoints.iter().zip(ends) {
            if let Err(error) = end {
                failures.insert(endpoint.clone(), error);
            }
        }
        Ok(failures)
    }
}

/// The `host:port` of a node's data, out of what it says of itself.
fn describe(conversation: &Conversation) -> Result<String> {
    let wrong = |what: &str| conversation.corrupt(format!("{what}: is this a node of Mooncake?"));
    let len = conversation.receive_exact(8)?;
    let len =
        len.first_chunk().map(|len| u64::from_le_bytes(*len)).filter(|len| (1..=MAX_DESCRIPTION_BYTES).contains(len));
    let bytes = conversation.receive_exact(len.ok_or_else(|| wrong("the node's description has no length"))? as u32)?;
    let description = bytes.split_first().and_then(|(_, json)| serde_json::from_slice::<serde_json::Value>(json).ok());
    let description = description.ok_or_else(|| wrong("the node's description is not JSON"))?;
    let number = |name: &str| description.get(name).and_then(serde_json::Value::as_u64);
    match (description.get("tcp_data_host").and_then(serde_json::Value::as_str), number("tcp_data_port")) {
        _ if number("tcp_proto_version") != Some(PROTOCOL_VERSION) => Err(Error::unsupported(format!(
            "a node speaks another version of the transfer protocol than {PROTOCOL_VERSION}, of {}",
            crate::calls::VERSIONS
        ))),
        (Some(host), Some(port)) if host.contains(':') => Ok(format!("[{host}]:{port}")),
        (Some(host), Some(port)) => Ok(format!("{host}:{port}")),
        _ => Err(wrong("the node has no data port")),
    }
}

fn head(size: u64, address: u64, operation: u8) -> Vec<u8> {
    [&size.to_le_bytes()[..], &address.to_le_bytes(), &[FLAG | operation, 0, 0, 0, 0, 0, 0, 0]].concat()
}

/// Take the node's word that it did what it was asked.
fn done(conversation: &Conversation) -> Result<()> {
    match conversation.receive_exact(DONE.len() as u32)?.as_slice() {
        status if status == DONE => Ok(()),
        _ => Err(conversation.corrupt("the node refuses: there is no such memory any more")),
    }
}
