//! One walk: a seed's order of events, through the model and through the sources.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use kv_store_models::history::{Content, Number, Phase};
use kv_store_models::sessions::model::{Action, PATIENCE, Sessions, State};
use kv_store_models::sessions::{Bounds, Kind};
use stateright::Model;

use crate::actors::Stop;
use crate::client::{Client, Reach, deadline};
use crate::follow::{Reached, count, follow};
use crate::server::Server;
use crate::wire::Wire;
use crate::{Subject, TICK};

/// Counted beside the actions: a change was held up by a former one, and a script was not known to the server.
pub const HELD: &str = "Held";
pub const NO_SCRIPT: &str = "NoScript";

const CLIENTS: u8 = 2;
/// The history of a model has room for so many.
const MOST_CHANGES: usize = 7;
const BOUNDS: Bounds = Bounds { ticks: 16, connections: 60, restarts: 2, evictions: 3 };
const STEPS: usize = 120;

/// What may come next.
#[derive(Clone, Copy, Debug)]
enum Move {
    Tick,
    Fall,
    Restart,
    Evict,
    Begin(u8),
    /// The client connects, as it wants to.
    Connect(u8),
    /// What the client waits for comes.
    Answer(u8),
    Lose(u8),
    /// The time of its call is up.
    GiveUp(u8),
    /// What was sent on a connection comes to the server.
    Deliver(usize),
    /// The server goes on with a connection.
    GoOn(usize),
}

struct Walk<'r, S> {
    model: Sessions,
    subject: Subject,
    state: State,
    now: Arc<AtomicU64>,
    fell: u8,
    restarts: u8,
    evictions: u8,
    server: Rc<RefCell<S>>,
    clients: Vec<Client>,
    wires: Rc<RefCell<Vec<Arc<Wire>>>>,
    told: Vec<Phase>,
    /// Said where it goes wrong.
    steps: Vec<String>,
    reached: &'r mut Reached,
}

/// Walk by a seed, with a server that is made ready so, and count the actions of the model that were reached.
pub fn walk<S: Server>(seed: u64, reached: &mut Reached, ready: impl Fn(&mut S)) {
    let mut dice = fastrand::Rng::with_seed(seed);
    let subject = Subject { is_chunk: dice.bool(), is_long: dice.u8(..4) == 0 };
    let kinds = match subject.is_chunk {
        true => [Kind::PutNew, Kind::Delete, Kind::Put],
        false => [Kind::Put, Kind::Put, Kind::Delete],
    };
    let mut changes: Vec<(u8, Kind)> =
        (0..dice.usize(2..=MOST_CHANGES)).map(|_| (dice.u8(..CLIENTS), kinds[dice.usize(..3)])).collect();
    // The model has clients up to the last one that changes something.
    changes[0].0 = CLIENTS - 1;
    let held = dice.bool();
    let model = Sessions { rules: S::RULES, bounds: BOUNDS, changes, held, connected: S::CHANGES_WHERE_OPENED };
    let mut walk = Walk::<S>::begin(model, subject, seed, reached);
    ready(&mut walk.server.borrow_mut());
    for _ in 0..STEPS {
        let Some(next) = walk.draw(&mut dice) else { break };
        walk.steps.push(format!("{next:?}"));
        walk.take(next);
        walk.compare();
    }
}

impl<'r, S: Server> Walk<'r, S> {
    fn begin(model: Sessions, subject: Subject, seed: u64, reached: &'r mut Reached) -> Self {
        let now = Arc::new(AtomicU64::new(0));
        let server = Rc::new(RefCell::new(S::start(&now, subject)));
        let wires: Rc<RefCell<Vec<Arc<Wire>>>> = Rc::default();
        if model.held {
            server.borrow_mut().set(Some(subject.value(0)));
        }
        let state = model.init_states().remove(0);
        let open = |client: u8| {
            let made: Rc<RefCell<VecDeque<usize>>> = Rc::default();
            let (server, wires, makes) = (server.clone(), wires.clone(), made.clone());
            let connects = Rc::new(move || {
                let wire = Arc::new(Wire::default());
                server.borrow_mut().accept(&wire);
                makes.borrow_mut().push_back(wires.borrow().len());
                wires.borrow_mut().push(wire.clone());
                wire
            });
            Client::open::<S>(subject, &now, Reach::Connects(connects), made, seed * 100 + u64::from(client))
        };
        let clients = (0..CLIENTS).map(|client| {
            let mut opening = open(client);
            loop {
                if let Some(client) = opening.resume() {
                    break client;
                }
                for (connection, wire) in wires.borrow().iter().enumerate() {
                    if wire.has_sent() {
                        wire.deliver();
                        server.borrow_mut().go_on(connection, &model, &state).expect("nothing befalls it");
                    }
                    wire.bring_answer();
                }
            }
        });
        let clients: Vec<Client> = clients.collect();
        if !S::CHANGES_WHERE_OPENED {
            wires.borrow_mut().clear();
            server.borrow_mut().forget_connections();
        }
        let told = vec![Phase::Waiting; model.changes.len() + 1];
        let steps = vec![format!("seed {seed}, {:?}, held {}, {subject:?}", model.changes, model.held)];
        let (fell, restarts, evictions) = Default::default();
        Walk { model, subject, state, now, fell, restarts, evictions, server, clients, wires, told, steps, reached }
    }

    /// Ticks.
    fn tick(&self) -> u8 {
        (self.now.load(Relaxed) / TICK) as u8
    }

    /// When the change that a client makes is over. None: it makes none.
    fn end(&self, client: u8) -> Option<u8> {
        self.state.runs(client).map(|number| self.state.history().end(number))
    }

    fn is_there(&self) -> bool {
        self.server.borrow().content().is_some()
    }

    fn draw(&self, dice: &mut fastrand::Rng) -> Option<Move> {
        let mut moves = Vec::new();
        let mut may = |weight: usize, next: Move| moves.extend(std::iter::repeat_n(next, weight));
        if self.tick() < BOUNDS.ticks {
            may(3, Move::Tick);
        }
        if self.fell < S::RULES.falls {
            may(1, Move::Fall);
        }
        if self.restarts < BOUNDS.restarts {
            may(1, Move::Restart);
        }
        if self.evictions < BOUNDS.evictions && self.is_there() {
            may(1, Move::Evict);
        }
        let mut is_busy = false;
        for (number, client) in (0..).zip(&self.clients) {
            let Some(end) = self.end(number) else {
                if self.state.history().next(number).is_some() {
                    let is_held = self.model.next_state(&self.state, Action::Begin(number)).is_none();
                    may(if is_held { 1 } else { 8 }, Move::Begin(number));
                    is_busy = true;
                }
                continue;
            };
            is_busy = true;
            if self.tick() >= end {
                may(6, Move::GiveUp(number));
                continue;
            }
            if client.stopped() == Some(Stop::Connects) {
                may(8, Move::Connect(number));
                continue;
            }
            may(2, Move::Lose(number));
            if self.wires.borrow()[client.wire].is_answered() {
                may(8, Move::Answer(number));
            }
        }
        let server = self.server.borrow();
        for (number, wire) in self.wires.borrow().iter().enumerate().filter(|(number, _)| server.serves(*number)) {
            match server.is_under_way(number) {
                true => may(6, Move::GoOn(number)),
                false if wire.has_sent() => may(6, Move::Deliver(number)),
                false => continue,
            }
            is_busy = true;
        }
        is_busy.then(|| moves[dice.usize(..moves.len())])
    }

    /// The model does the same.
    fn follow(&mut self, action: Action) {
        let next = self.model.next_state(&self.state, action);
        follow(&mut self.state, next, action, &mut self.steps, self.reached);
    }

    fn take(&mut self, next: Move) {
        match next {
            Move::Tick => {
                self.now.fetch_add(TICK, Relaxed);
                self.follow(Action::Tick);
            }
            Move::Fall => {
                self.fell += 1;
                self.server.borrow_mut().fall();
                self.follow(Action::ClockFalls);
            }
            Move::Restart => {
                self.restarts += 1;
                self.server.borrow_mut().restart();
                self.follow(Action::Restart);
            }
            Move::Evict => {
                self.evictions += 1;
                self.server.borrow_mut().set(None);
                self.follow(Action::Evict);
            }
            Move::Begin(client) => self.begin_change(client),
            Move::Connect(client) => {
                self.resume(client);
                self.follow(Action::Connect(client));
            }
            Move::Answer(client) => self.answer(client),
            Move::Lose(client) => {
                self.wires.borrow()[self.clients[client as usize].wire].lose();
                self.follow(Action::Lose(client));
                if let Some(told) = self.resume(client) {
                    self.follow(Action::GiveUp(client));
                    self.tell(client, told);
                }
            }
            Move::GiveUp(client) => {
                let told = self.resume(client).expect("a call ends at its deadline");
                self.follow(Action::GiveUp(client));
                self.tell(client, told);
            }
            Move::Deliver(connection) => {
                self.wires.borrow()[connection].deliver();
                self.go_on(connection);
            }
            Move::GoOn(connection) => self.go_on(connection),
        }
    }

    /// A client goes on; a connection that it makes is its own from then on.
    fn resume(&mut self, client: u8) -> Option<Phase> {
        let of = &mut self.clients[client as usize];
        let told = of.resume();
        if let Some(wire) = of.made.borrow_mut().pop_front() {
            of.wire = wire;
        }
        told
    }

    /// What the caller of a change that has just ended is told: the model has told it already.
    fn tell(&mut self, client: u8, told: Phase) {
        let numbers = 1..self.told.len();
        let number = numbers
            .filter(|number| self.model.changes[number - 1].0 == client)
            .find(|number| matches!(self.told[*number], Phase::Running));
        self.told[number.expect("it is running")] = told;
    }

    fn begin_change(&mut self, client: u8) {
        let number = self.state.history().next(client).expect("it has one to make");
        let (_, kind) = self.model.changes[number as usize - 1];
        let is_held = self.model.next_state(&self.state, Action::Begin(client)).is_none();
        let end = deadline(self.tick() + PATIENCE);
        let begins = self.clients[client as usize].is_let(end);
        assert_eq!(begins, !is_held, "whether the table of changes lets it begin: {:#?}", self.steps);
        if is_held {
            return count(self.reached, HELD);
        }
        self.follow(Action::Begin(client));
        self.told[number as usize] = Phase::Running;
        let mut told = self.clients[client as usize].begin(number, kind);
        if self.clients[client as usize].stopped() == Some(Stop::Connects) {
            told = self.resume(client);
        }
        assert_eq!(told, None, "nothing has come yet: {:#?}", self.steps);
    }

    /// The answer to what a client asked comes to it.
    fn answer(&mut self, client: u8) {
        self.wires.borrow()[self.clients[client as usize].wire].bring_answer();
        let told = self.resume(client);
        // The answer to the greeting is what the model learns the clock from.
        let learns = self.model.next_state(&self.state, Action::Learn(client)).is_some();
        let sends_text = self.state.is_sent_back(client);
        self.follow(if learns { Action::Learn(client) } else { Action::Answer(client) });
        if sends_text {
            count(self.reached, NO_SCRIPT);
        }
        match told {
            Some(told) => self.tell(client, told),
            None => assert!(learns || sends_text, "it does not go on: {:#?}", self.steps),
        }
    }

    /// The server goes on with a connection, and the model with it.
    fn go_on(&mut self, connection: usize) {
        let step = self.server.borrow_mut().go_on(connection, &self.model, &self.state);
        match step {
            Ok(Some(action)) => self.follow(action),
            Ok(None) => {}
            Err(wrong) => panic!("{wrong}: {:#?}", self.steps),
        }
    }

    /// What lies under the key, where that is what the model has there.
    fn expected(&self, content: Content) -> Option<Vec<u8>> {
        let number: Number = content?;
        let is_there = match number {
            0 => self.model.held,
            number => self.model.changes[number as usize - 1].1 != Kind::Delete,
        };
        is_there.then(|| self.subject.value(number))
    }

    fn compare(&self) {
        let told = |number: usize| self.state.history().phase(number as Number);
        for number in 1..self.told.len() {
            assert_eq!(
                self.told[number],
                told(number),
                "what the caller of change {number} is told, {:#?}",
                self.steps
            );
        }
        let (content, expected) = (self.server.borrow().content(), self.expected(self.state.content()));
        assert_eq!(content, expected, "what lies under the key, {:#?}", self.steps);
        assert_eq!(self.wires.borrow().len(), self.state.connections(), "connections, {:#?}", self.steps);
        assert!(self.state.history().is_not_undone(self.state.content()), "{:#?}", self.steps);
        assert!(self.state.history().refused_is_not_there(self.state.content()), "{:#?}", self.steps);
    }
}
