//! The shipped component of redis and two nodes of a cluster, beside `src/cluster.rs`: a slot moves, or a replica takes over. What each node does
//! with a command is the simulation's; whether it serves the key is here, as is the map that it tells.
//!
//! What is not of the change itself is answered at once: connecting, the time, the map, and a script that is sent with its text.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use kv_store_models::cluster::{Action, Cluster, Event, FENCED, PATIENCE, PRIMARY, REPLICA, State};
use kv_store_models::history::{Content, Number, Phase};
use kv_store_models::sessions::Kind;
use kv_store_sdk::native::Opened;
use kv_store_sdk::{Features, Result};
use redis_server::db::{Db, Session, VERSION};
use redis_server::resp::{self, array, bulk, error, integer};
use stateright::Model;

use crate::actors::Stop;
use crate::client::{Client, Reach, deadline};
use crate::follow::{Reached, allows, follow};
use crate::server::Component;
use crate::wire::Wire;
use crate::{MANIFEST, Subject, TICK, value};

/// What true time is at first, in nanoseconds.
const BEGINS: u64 = 1_700_000_000_000_000_000;
const HOSTS: [&str; 2] = ["first", "second"];
const PORT: u16 = 7000;
const CLIENTS: u8 = 2;
const SUBJECT: Subject = Subject { is_chunk: false, is_long: false };
const MODEL: Cluster = Cluster { ticks: 10, ..FENCED };

type Command = Vec<Vec<u8>>;

struct Line {
    wire: Arc<Wire>,
    client: u8,
    node: usize,
    session: Session,
    came: Vec<u8>,
    /// A change that came and is not carried out yet.
    frame: Option<Command>,
}

/// The nodes, and what is connected to them.
pub struct Nodes {
    now: Arc<AtomicU64>,
    dbs: [Db; 2],
    serve: [bool; 2],
    lines: Vec<Line>,
}

impl Component for Nodes {
    const SETTLES: bool = false;

    fn secret(_: &str) -> Option<&'static str> {
        None
    }

    fn open() -> Result<(Box<dyn Opened>, Features)> {
        ::redis::open(&format!("redis://{}:{PORT}", HOSTS[PRIMARY]), Vec::new())
    }
}

fn key() -> Vec<u8> {
    [b"kv:m:", MANIFEST.as_bytes()].concat()
}

/// The slot of a key without a hash tag.
fn slot(key: &[u8]) -> u16 {
    let step = |sum: u16| if sum & 0x8000 == 0 { sum << 1 } else { sum << 1 ^ 0x1021 };
    key.iter().fold(0, |sum, byte| (0..8).fold(sum ^ (u16::from(*byte) << 8), |sum, _| step(sum))) % 16_384
}

/// Whether a command is a change: a script of a key.
fn is_change(command: &Command) -> bool {
    matches!(command[0].as_slice(), b"EVAL" | b"EVALSHA") && command[2] != b"0"
}

impl Nodes {
    fn new(now: &Arc<AtomicU64>) -> Self {
        let mut held = Db::default();
        held.store(&key(), &value(0), false, None);
        Nodes { now: now.clone(), dbs: [held.clone(), held], serve: [true, false], lines: Vec::new() }
    }

    /// What comes to a node is carried out, but for changes, and the answers come. False: nothing did.
    fn serve(&mut self, client: u8) -> bool {
        let mut answers = false;
        for line in 0..self.lines.len() {
            if self.lines[line].client != client || !self.lines[line].wire.has_sent() {
                continue;
            }
            let Line { wire, came, .. } = &mut self.lines[line];
            wire.deliver();
            came.extend(wire.take(usize::MAX).unwrap_or_default());
            while let Some(command) = resp::take(&mut self.lines[line].came).expect("it sends RESP") {
                if is_change(&command) {
                    self.lines[line].frame = Some(command);
                    continue;
                }
                let answer = self.carry_out(line, &command);
                self.lines[line].wire.answer(&answer);
                self.lines[line].wire.bring_answer();
                answers = true;
            }
        }
        answers
    }

    fn carry_out(&mut self, line: usize, command: &Command) -> Vec<u8> {
        let Line { node, session, .. } = &mut self.lines[line];
        let node = *node;
        // Of two there is no other one to tell of.
        let known = if self.serve[node] { node } else { 1 - node };
        match command[0].as_slice() {
            b"INFO" => bulk(format!("# Server\r\nredis_version:{VERSION}\r\nredis_mode:cluster\r\n").as_bytes()),
            b"CLUSTER" => {
                let master = array(&[bulk(HOSTS[known].as_bytes()), integer(PORT.into()), bulk(b"id"), array(&[])]);
                array(&[array(&[integer(0), integer(16_383), master])])
            }
            _ if is_change(command) && !self.serve[node] => {
                error(&format!("MOVED {} {}:{PORT}", slot(&command[3]), HOSTS[known]))
            }
            _ => {
                let micros = (BEGINS + self.now.load(Relaxed) + u64::from(MODEL.ahead[node]) * TICK) / 1000;
                self.dbs[node].answer(session, command, micros)
            }
        }
    }

    fn content(&self, node: usize) -> Option<Vec<u8>> {
        self.dbs[node].string(&key()).map(|value| value.to_vec())
    }

    fn replicate(&mut self) {
        *self.dbs[REPLICA].keys = (*self.dbs[PRIMARY].keys).clone();
    }
}

/// What may come next.
#[derive(Clone, Copy, Debug)]
enum Move {
    Tick,
    Happens,
    Notices,
    Replicate,
    Begin(u8),
    /// A node carries out what came on a connection.
    CarryOut(usize),
    /// Its answer comes.
    Answer(usize),
    GiveUp(u8),
}

struct Walk<'r> {
    model: Cluster,
    kinds: [Kind; 2],
    state: State,
    now: Arc<AtomicU64>,
    nodes: Rc<RefCell<Nodes>>,
    clients: Vec<Client>,
    told: [Phase; 3],
    steps: Vec<String>,
    reached: &'r mut Reached,
}

/// Walk by a seed, with nodes that are made ready so, and count the actions of the model that were reached.
pub fn walk(seed: u64, reached: &mut Reached, ready: impl Fn(&mut Db)) {
    let mut dice = fastrand::Rng::with_seed(seed);
    let event = if dice.bool() { Event::SlotMoves } else { Event::Failover };
    let kinds = [(); 2].map(|()| if dice.u8(..3) == 0 { Kind::Delete } else { Kind::Put });
    let mut walk = Walk::begin(Cluster { event, ..MODEL }, kinds, seed, reached);
    walk.nodes.borrow_mut().dbs.iter_mut().for_each(ready);
    while let Some(next) = walk.draw(&mut dice) {
        walk.steps.push(format!("{next:?}"));
        walk.take(next);
        walk.compare();
    }
}

impl<'r> Walk<'r> {
    fn begin(model: Cluster, kinds: [Kind; 2], seed: u64, reached: &'r mut Reached) -> Self {
        let now = Arc::new(AtomicU64::new(0));
        let nodes = Rc::new(RefCell::new(Nodes::new(&now)));
        let open = |client: u8| {
            let to = nodes.clone();
            let connects = Rc::new(move |authority: &str| {
                let wire = Arc::new(Wire::default());
                let node = HOSTS.iter().position(|host| authority == format!("{host}:{PORT}"));
                let node = node.expect("it is one of them");
                let (session, came, frame) = Default::default();
                to.borrow_mut().lines.push(Line { wire: wire.clone(), client, node, session, came, frame });
                wire
            });
            let seed = seed * 100 + u64::from(client);
            let mut opening = Client::open::<Nodes>(SUBJECT, &now, Reach::Cluster(connects), Rc::default(), seed);
            loop {
                if let Some(client) = opening.resume() {
                    break client;
                }
                nodes.borrow_mut().serve(client);
            }
        };
        let clients = (0..CLIENTS).map(open).collect();
        let (state, told) = (model.init_states().remove(0), [Phase::Waiting; 3]);
        let steps = vec![format!("seed {seed}, {:?}, {kinds:?}", model.event)];
        Walk { model, kinds, state, now, nodes, clients, told, steps, reached }
    }

    fn tick(&self) -> u8 {
        (self.now.load(Relaxed) / TICK) as u8
    }

    fn is_running(&self, client: u8) -> bool {
        self.told[client as usize + 1] == Phase::Running
    }

    /// The host gives a change as much more time as the margin of its end.
    fn is_over(&self, client: u8) -> bool {
        self.tick() > self.state.history.end(client + 1)
    }

    fn draw(&self, dice: &mut fastrand::Rng) -> Option<Move> {
        let mut moves = Vec::new();
        let mut may = |weight: usize, next: Move| moves.extend(std::iter::repeat_n(next, weight));
        let is_allowed = |action| allows(&self.model, &self.state, action).is_some();
        for (weight, action, next) in [
            (3, Action::Tick, Move::Tick),
            (2, Action::Happens(self.model.event), Move::Happens),
            (2, Action::OldPrimaryNotices, Move::Notices),
            (3, Action::Replicate, Move::Replicate),
        ] {
            if is_allowed(action) {
                may(weight, next);
            }
        }
        let mut is_busy = false;
        for client in 0..CLIENTS {
            match self.told[client as usize + 1] {
                // A change that could not end before the last tick would never end.
                Phase::Waiting if self.tick() + PATIENCE < self.model.ticks => may(3, Move::Begin(client)),
                Phase::Running if self.is_over(client) => may(6, Move::GiveUp(client)),
                Phase::Running => {}
                _ => continue,
            }
            is_busy = true;
        }
        for (number, line) in self.nodes.borrow().lines.iter().enumerate() {
            if line.frame.is_some() {
                may(4, Move::CarryOut(number));
                is_busy = true;
            }
            if line.wire.is_answered() && self.is_running(line.client) && !self.is_over(line.client) {
                may(6, Move::Answer(number));
            }
        }
        (is_busy && !moves.is_empty()).then(|| moves[dice.usize(..moves.len())])
    }

    fn follow(&mut self, action: Action) {
        let next = allows(&self.model, &self.state, action);
        follow(&mut self.state, next, action, &mut self.steps, self.reached);
    }

    fn take(&mut self, next: Move) {
        let nodes = self.nodes.clone();
        match next {
            Move::Tick => {
                self.now.fetch_add(TICK, Relaxed);
                self.follow(Action::Tick);
            }
            Move::Happens => {
                let mut nodes = nodes.borrow_mut();
                if self.model.event == Event::SlotMoves {
                    nodes.replicate();
                    nodes.serve[PRIMARY] = false;
                }
                nodes.serve[REPLICA] = true;
                self.follow(Action::Happens(self.model.event));
            }
            Move::Notices => {
                nodes.borrow_mut().serve[PRIMARY] = false;
                nodes.borrow_mut().dbs[PRIMARY].keys.clear();
                self.follow(Action::OldPrimaryNotices);
            }
            Move::Replicate => {
                nodes.borrow_mut().replicate();
                self.follow(Action::Replicate);
            }
            Move::Begin(client) => self.begin_change(client),
            Move::CarryOut(line) => self.carry_out(line),
            Move::Answer(line) => {
                let client = nodes.borrow().lines[line].client;
                nodes.borrow().lines[line].wire.bring_answer();
                let told = self.go_on(client);
                self.follow(Action::Answer(client + 1));
                self.tell(client, told);
            }
            Move::GiveUp(client) => {
                let told = self.clients[client as usize].resume();
                assert!(told.is_some(), "a call ends at its deadline: {:#?}", self.steps);
                self.follow(Action::GiveUp(client + 1));
                self.tell(client, told);
            }
        }
    }

    fn tell(&mut self, client: u8, told: Option<Phase>) {
        if let Some(told) = told {
            self.told[client as usize + 1] = told;
        }
    }

    /// A client goes on until it waits for what becomes of its change, or is told.
    fn go_on(&mut self, client: u8) -> Option<Phase> {
        loop {
            let told = self.clients[client as usize].resume();
            if told.is_some() || self.waits(client) {
                return told;
            }
        }
    }

    /// Whether a client waits for an answer that does not come at once.
    fn waits(&mut self, client: u8) -> bool {
        let answered = self.nodes.borrow_mut().serve(client);
        !answered && self.clients[client as usize].stopped() != Some(Stop::Connects)
    }

    fn begin_change(&mut self, client: u8) {
        let change = client + 1;
        // The host gives it as much more time as the margin of its end takes.
        let deadline = deadline(self.tick() + PATIENCE + 1);
        assert!(self.clients[client as usize].is_let(deadline));
        self.told[change as usize] = Phase::Running;
        let mut told = self.clients[client as usize].begin(change, self.kinds[client as usize]);
        if told.is_none() && !self.waits(client) {
            told = self.go_on(client);
        }
        assert_eq!(told, None, "nothing has come yet: {:#?}", self.steps);
        let sent = |line: &Line| line.client == client && line.frame.is_some();
        let asks = self.nodes.borrow().lines.iter().find(|line| sent(line)).map(|line| line.node as u8);
        let asks = asks.unwrap_or_else(|| panic!("it sends its change: {:#?}", self.steps));
        self.follow(Action::Begin { change, asks });
    }

    fn carry_out(&mut self, line: usize) {
        let nodes = self.nodes.clone();
        loop {
            let taken = nodes.borrow_mut().lines[line].frame.take();
            let command = taken.expect("it was drawn for that");
            let answer = nodes.borrow_mut().carry_out(line, &command);
            let (wire, client, node) = {
                let Line { wire, client, node, .. } = &nodes.borrow().lines[line];
                (wire.clone(), *client, *node as u8)
            };
            let change = client + 1;
            wire.answer(&answer);
            let of_this = |frame: &&(u8, Number, u8)| (frame.0, frame.1) == (node, change);
            let end = self.state.frames.iter().find(of_this).map(|frame| frame.2);
            let end = end.unwrap_or_else(|| panic!("the model sent none there: {:#?}", self.steps));
            let carried_out = Action::CarryOut { node, change, end };
            if !answer.starts_with(b"-NOSCRIPT") {
                return self.follow(carried_out);
            }
            // Who has given up sends no text.
            if !self.is_running(client) || self.is_over(client) {
                return;
            }
            wire.bring_answer();
            let told = self.go_on(client);
            if told.is_some() {
                // No time was left for the text: it is refused, as what comes then is.
                self.follow(carried_out);
                self.follow(Action::Answer(change));
                return self.tell(client, told);
            }
        }
    }

    fn expected(&self, content: Content) -> Option<Vec<u8>> {
        let number = content?;
        let is_put = number == 0 || self.kinds[number as usize - 1] == Kind::Put;
        is_put.then(|| value(number))
    }

    fn compare(&self) {
        let history = &self.state.history;
        for number in 1..self.told.len() {
            let phase = history.phase(number as Number);
            assert_eq!(self.told[number], phase, "what the caller of change {number} is told, {:#?}", self.steps);
        }
        for (number, node) in self.state.nodes.iter().enumerate() {
            let serves = self.nodes.borrow().serve[number];
            assert_eq!(serves, node.serves, "whether node {number} serves the key, {:#?}", self.steps);
            // What a node keeps that has given a slot away nobody reads.
            if number == PRIMARY && !serves {
                continue;
            }
            let content = self.nodes.borrow().content(number);
            assert_eq!(content, self.expected(node.content), "what node {number} has, {:#?}", self.steps);
        }
        if self.model.event == Event::SlotMoves {
            let content = self.state.nodes[self.model.serving(&self.state)].content;
            assert!(history.is_not_undone(content), "{:#?}", self.steps);
            assert!(history.refused_is_not_there(content), "{:#?}", self.steps);
        }
    }
}
