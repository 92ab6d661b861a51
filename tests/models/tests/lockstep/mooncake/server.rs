//! The master and its node: one request after the other, each carried out at once.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use chance::Dice;
use kv_store_models::history::Number;
use kv_store_models::mooncake::Slot;
use mooncake_server::coro::{self, Answer, Ask, Id, Item};
use mooncake_server::master::{Master, Object, Segment};
use mooncake_server::node::{DONE, Head, Node, READ};

pub const MASTER: &str = "master:50051";
const MEMORY: u64 = 16 << 20;
/// Longer than a walk.
const LEASE: u64 = 1 << 40;
/// Before the content of a version (`guests/mooncake/src/manifest.rs`): the generation, the random number, and behind those a checksum.
const ORDER_AT: usize = 8;
const HEAD: usize = 32;

/// A connection. What one end sends comes to the other when the walk says so.
#[derive(Default)]
pub struct Line {
    pub authority: String,
    /// What the client has sent and has not come.
    pub sent: RefCell<Vec<u8>>,
    /// What the server has sent and has not come.
    pub answered: RefCell<Vec<u8>>,
    pub at_client: RefCell<VecDeque<u8>>,
    /// The client finds that it is lost.
    pub lost: Cell<bool>,
}

impl Line {
    pub fn to_master(&self) -> bool {
        self.authority == MASTER
    }

    /// What the master is asked, and has not come.
    pub fn asks(&self) -> Option<Ask> {
        let mut sent = self.sent.borrow().clone();
        if !self.to_master() {
            return None;
        }
        coro::take(&mut sent).expect("it is coro_rpc").map(|(_, ask)| ask.expect("it is of this version"))
    }

    pub fn bring_answer(&self) {
        self.at_client.borrow_mut().extend(self.answered.take());
    }
}

/// What a complete version has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown {
    pub generation: u64,
    pub random: u64,
    pub content: Vec<u8>,
}

pub struct Server {
    master: Master,
    node: Node,
    dice: Dice,
    /// Where no object has been yet.
    unused: u64,
    /// Which change is made as whom.
    pub changes: BTreeMap<Id, Number>,
    /// The slots, as the model has them.
    pub slots: BTreeMap<String, Slot>,
}

impl Server {
    pub fn new() -> Rc<RefCell<Self>> {
        let (master, node) = (Master::new(LEASE), Node::new(0, MEMORY));
        let (unused, dice, changes, slots) = (node.base(), Dice::of(1, &[1]), BTreeMap::new(), BTreeMap::new());
        Rc::new(RefCell::new(Server { master, node, dice, unused, changes, slots }))
    }

    /// No memory is used twice: who has located a version then reads that, or nothing.
    fn takes_new_memory(&mut self) {
        let left = self.node.base() + MEMORY - self.unused;
        self.master.segments = vec![Segment::new(1, 0, &self.node.endpoint(), self.unused, left, 0)];
    }

    /// A request to the master is carried out. Answers what it was, and what became of each object.
    pub fn carry_out(&mut self, line: &Line) -> (Ask, Vec<Item>) {
        let (sequence, ask) =
            coro::take(&mut line.sent.borrow_mut()).expect("it is coro_rpc").expect("it has come whole");
        let ask = ask.expect("it is of this version");
        if matches!(ask, Ask::Start { .. }) {
            self.takes_new_memory();
        }
        let items: Vec<Item> = match ask {
            Ask::Ready => Vec::new(),
            _ => (0..ask.keys().len()).map(|at| self.master.carry_out(&ask, at, 1, &mut self.dice)).collect(),
        };
        if let Some(Item::Placed(replicas)) = items.first() {
            self.unused = replicas.iter().map(|replica| replica.address + replica.size).max().unwrap_or(self.unused);
        }
        if let (Ask::Start { client, keys, .. }, Some(Item::Placed(_))) = (&ask, items.first())
            && let Some(change) = self.changes.get(client)
        {
            self.slots.entry(keys[0].clone()).or_insert(*change);
        }
        let answer = match ask {
            Ask::Ready => Answer::Version(coro::PROTOCOL.to_owned()),
            _ => Answer::Items(items.clone()),
        };
        line.answered.borrow_mut().extend(answer.bytes(&ask, sequence));
        (ask, items)
    }

    /// What a node was sent is done.
    pub fn transfer(&mut self, line: &Line) {
        let (mut sent, mut answered) = (line.sent.borrow_mut(), line.answered.borrow_mut());
        if line.authority == self.node.endpoint() {
            answered.extend(self.node.described(&mut sent).expect("it has come whole"));
            return;
        }
        while let Some(head) = Head::take(&mut sent) {
            assert!(self.node.has(head.address, head.size), "it is asked for memory that it has");
            if head.operation == READ {
                answered.extend(DONE);
                answered.extend(self.node.read(head.address, head.size).expect("it has it"));
                continue;
            }
            let bytes: Vec<u8> = sent.drain(..head.size as usize).collect();
            self.node.write(head.address, &bytes);
            answered.extend(DONE);
        }
    }

    /// Objects that are there or begun, by the changes that they are of.
    pub fn objects(&self) -> BTreeMap<Number, Option<Shown>> {
        let of = |object: &Object| *self.changes.get(&object.client).expect("a change of this walk has begun it");
        self.master.objects.values().map(|object| (of(object), self.shown(object))).collect()
    }

    fn shown(&self, object: &Object) -> Option<Shown> {
        let replica = object.replicas.first().filter(|_| object.complete)?;
        let bytes = self.node.read(replica.address, object.size).expect("it has it");
        let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        Some(Shown { generation: number(ORDER_AT), random: number(ORDER_AT + 8), content: bytes[HEAD..].to_vec() })
    }

    /// The version of a change is evicted.
    pub fn evict(&mut self, change: Number) {
        let is_of = |object: &Object| self.changes.get(&object.client) == Some(&change);
        let key = self.master.objects.iter().find(|(_, object)| is_of(object)).map(|(key, _)| key.clone());
        self.master.remove(&key.expect("it is there"), true, 1).expect("it is complete");
    }
}
