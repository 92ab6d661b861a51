//! One walk: a seed's order of events, through the model and through the sources.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use kv_store_models::history::{Content, Number, Phase};
use kv_store_models::memkv::FENCED;
use kv_store_models::sessions::model::{Action, Sessions, State};
use kv_store_models::sessions::{Bounds, Kind};
use stateright::Model;

use crate::actors::Stop;
use crate::client::{Client, deadline};
use crate::server::{At, Machine};
use crate::wire::Wire;
use crate::{TICK, value};

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
    /// The thread of a connection goes on.
    GoOn(usize),
}

/// What is known of a connection.
#[derive(Default)]
struct Line {
    wire: Arc<Wire>,
    /// CONNECT was delivered, and its answer is there.
    greeted: bool,
    /// Its thread is on its way.
    at: Option<At>,
    /// The change that its thread is about is there already.
    carried_out: bool,
    /// The server knows it.
    alive: bool,
}

struct Walk<'r> {
    model: Sessions,
    /// What is changed is a chunk, and not a manifest.
    of_chunk: bool,
    state: State,
    now: Arc<AtomicU64>,
    fell: u8,
    restarts: u8,
    evictions: u8,
    machine: Rc<RefCell<Machine>>,
    clients: Vec<Client>,
    lines: Rc<RefCell<Vec<Line>>>,
    told: Vec<Phase>,
    /// Said where it goes wrong.
    steps: Vec<String>,
    reached: &'r mut BTreeMap<String, usize>,
}

/// Walk by a seed, and count the actions of the model that were reached.
pub fn walk(seed: u64, reached: &mut BTreeMap<String, usize>) {
    let mut dice = fastrand::Rng::with_seed(seed);
    let of_chunk = dice.bool();
    let kinds = match of_chunk {
        true => [Kind::PutNew, Kind::Delete, Kind::Put],
        false => [Kind::Put, Kind::Put, Kind::Delete],
    };
    let mut changes: Vec<(u8, Kind)> =
        (0..dice.usize(2..=MOST_CHANGES)).map(|_| (dice.u8(..CLIENTS), kinds[dice.usize(..3)])).collect();
    // The model has clients up to the last one that changes something.
    changes[0].0 = CLIENTS - 1;
    let held = dice.bool();
    let model = Sessions { rules: FENCED, bounds: BOUNDS, changes, held };
    let mut walk = Walk::begin(model, of_chunk, seed, reached);
    for _ in 0..STEPS {
        let Some(next) = walk.draw(&mut dice) else { break };
        walk.steps.push(format!("{next:?}"));
        walk.take(next);
        walk.compare();
    }
}

impl<'r> Walk<'r> {
    fn begin(model: Sessions, of_chunk: bool, seed: u64, reached: &'r mut BTreeMap<String, usize>) -> Self {
        let now = Arc::new(AtomicU64::new(0));
        let machine = Rc::new(RefCell::new(Machine::new(&now, of_chunk)));
        let lines: Rc<RefCell<Vec<Line>>> = Rc::default();
        if model.held {
            machine.borrow().set(Some(value(0)));
        }
        let open = |client: u8| {
            let made: Rc<RefCell<VecDeque<usize>>> = Rc::default();
            let (machine, lines, makes) = (machine.clone(), lines.clone(), made.clone());
            let connects = Rc::new(move || {
                let line = Line { alive: true, ..Line::default() };
                let wire = line.wire.clone();
                machine.borrow_mut().accept(&wire);
                makes.borrow_mut().push_back(lines.borrow().len());
                lines.borrow_mut().push(line);
                wire
            });
            Client::open(&now, connects, made, seed * 100 + u64::from(client))
        };
        let clients = (0..CLIENTS).map(|client| {
            let mut opening = open(client);
            loop {
                if let Some(client) = opening.resume() {
                    break client;
                }
                for (connection, line) in lines.borrow_mut().iter_mut().enumerate() {
                    if line.wire.has_sent() {
                        line.wire.deliver();
                        assert_eq!(machine.borrow_mut().go_on(connection, false), At::Rest);
                        line.greeted = true;
                    }
                    line.wire.bring_answer();
                }
            }
        });
        let clients: Vec<Client> = clients.collect();
        let state = model.init_states().remove(0);
        let told = vec![Phase::Waiting; model.changes.len() + 1];
        let steps = vec![format!("seed {seed}, {:?}, held {}, chunk {of_chunk}", model.changes, model.held)];
        let (fell, restarts, evictions) = Default::default();
        Walk { model, of_chunk, state, now, fell, restarts, evictions, machine, clients, lines, told, steps, reached }
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
        self.machine.borrow().content().is_some()
    }

    fn draw(&self, dice: &mut fastrand::Rng) -> Option<Move> {
        let mut moves = Vec::new();
        let mut may = |weight: usize, next: Move| moves.extend(std::iter::repeat_n(next, weight));
        if self.tick() < BOUNDS.ticks {
            may(3, Move::Tick);
        }
        if self.fell < FENCED.falls {
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
                    may(8, Move::Begin(number));
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
            if self.lines.borrow()[client.wire].wire.is_answered() {
                may(8, Move::Answer(number));
            }
        }
        for (number, line) in self.lines.borrow().iter().enumerate().filter(|(_, line)| line.alive) {
            match line.at {
                Some(_) => may(6, Move::GoOn(number)),
                None if line.wire.has_sent() => may(6, Move::Deliver(number)),
                None => continue,
            }
            is_busy = true;
        }
        is_busy.then(|| moves[dice.usize(..moves.len())])
    }

    /// The model does the same.
    fn follow(&mut self, action: Action) {
        let name = format!("{action:?}");
        let name = name.split('(').next().unwrap_or_default().to_owned();
        let next = self.model.next_state(&self.state, action);
        let Some(next) = next else {
            panic!("the model does not allow {action:?} here: {:#?}\nafter {:#?}", self.state, self.steps)
        };
        self.steps.push(format!("    {action:?}"));
        self.state = next;
        *self.reached.entry(name).or_default() += 1;
    }

    fn take(&mut self, next: Move) {
        match next {
            Move::Tick => {
                self.now.fetch_add(TICK, Relaxed);
                self.follow(Action::Tick);
            }
            Move::Fall => {
                self.fell += 1;
                self.machine.borrow().os.fell.fetch_add(1, Relaxed);
                self.follow(Action::ClockFalls);
            }
            Move::Restart => {
                self.restarts += 1;
                self.machine.borrow_mut().restart();
                for line in self.lines.borrow_mut().iter_mut() {
                    (line.alive, line.at) = (false, None);
                }
                self.follow(Action::Restart);
            }
            Move::Evict => {
                self.evictions += 1;
                self.machine.borrow().set(None);
                self.follow(Action::Evict);
            }
            Move::Begin(client) => self.begin_change(client),
            Move::Connect(client) => {
                self.resume(client);
                self.follow(Action::Connect(client));
            }
            Move::Answer(client) => self.answer(client),
            Move::Lose(client) => {
                let wire = self.lines.borrow()[self.clients[client as usize].wire].wire.clone();
                wire.lose();
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
                self.lines.borrow()[connection].wire.deliver();
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
        self.follow(Action::Begin(client));
        self.told[number as usize] = Phase::Running;
        let end = deadline(self.state.history().end(number));
        let mut told = self.clients[client as usize].begin(number, kind, self.of_chunk, end);
        if self.clients[client as usize].stopped() == Some(Stop::Connects) {
            told = self.resume(client);
        }
        assert_eq!(told, None, "nothing has come yet: {:#?}", self.steps);
    }

    /// The answer to what a client asked comes to it.
    fn answer(&mut self, client: u8) {
        let wire = self.lines.borrow()[self.clients[client as usize].wire].wire.clone();
        wire.bring_answer();
        let number = self.state.runs(client);
        let told = self.resume(client);
        // The answer to CONNECT is what the model learns the clock from; a change that is answered has ended.
        let learns = self.model.next_state(&self.state, Action::Learn(client)).is_some();
        self.follow(if learns { Action::Learn(client) } else { Action::Answer(client) });
        match told {
            Some(told) => self.tell(client, told),
            None => assert!(learns && self.state.runs(client) == number, "it does not go on: {:#?}", self.steps),
        }
    }

    /// The thread of a connection goes on, and the model with it.
    fn go_on(&mut self, connection: usize) {
        let before = self.lines.borrow()[connection].at;
        let greeted = self.lines.borrow()[connection].greeted;
        let at = self.machine.borrow_mut().go_on(connection, greeted && before.is_none());
        let number = connection as u8;
        match (greeted, before, at) {
            // CONNECT, which may have to wait for what it replaces.
            (false, _, At::Held) => self.lines.borrow_mut()[connection].at = Some(at),
            (false, _, At::Rest) => {
                let mut lines = self.lines.borrow_mut();
                (lines[connection].at, lines[connection].greeted) = (None, true);
                drop(lines);
                self.follow(Action::Greet(number));
            }
            (true, None, At::Session) => self.lines.borrow_mut()[connection].at = Some(at),
            (true, Some(At::Session), At::Table) => {
                self.lines.borrow_mut()[connection].at = Some(at);
                self.follow(Action::Read(number));
            }
            // It was replaced: it changes nothing any more.
            (true, None | Some(At::Session), At::Rest) => {
                assert!(self.state.has_ended(number), "it does nothing: {:#?}", self.steps);
                self.lines.borrow_mut()[connection].at = None;
            }
            (true, Some(At::Table), _) => self.carried_out(connection, at),
            other => panic!("a thread of the server does {other:?}: {:#?}", self.steps),
        }
    }

    /// A thread that was about to take the lock of the table has gone on.
    fn carried_out(&mut self, connection: usize, at: At) {
        let is_done = at == At::Rest;
        if self.model.is_to_look(&self.state, connection as u8) {
            self.follow(Action::Look(connection as u8));
            assert_eq!(self.state.is_running(connection as u8), !is_done, "what it finds: {:#?}", self.steps);
            self.lines.borrow_mut()[connection].at = (!is_done).then_some(at);
            return;
        }
        let changed = self.machine.borrow().content() != self.expected(self.state.content());
        let carried_out = self.lines.borrow()[connection].carried_out;
        if !carried_out && (is_done || changed) {
            self.follow(Action::CarryOut(connection as u8));
        }
        let mut lines = self.lines.borrow_mut();
        lines[connection].carried_out = !is_done && (carried_out || changed);
        lines[connection].at = (!is_done).then_some(at);
    }

    /// What lies under the key, where that is what the model has there.
    fn expected(&self, content: Content) -> Option<Vec<u8>> {
        let number: Number = content?;
        let is_there = match number {
            0 => self.model.held,
            number => self.model.changes[number as usize - 1].1 != Kind::Delete,
        };
        is_there.then(|| value(number))
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
        let (content, expected) = (self.machine.borrow().content(), self.expected(self.state.content()));
        assert_eq!(content, expected, "what lies under the key, {:#?}", self.steps);
        assert_eq!(self.lines.borrow().len(), self.state.connections(), "connections, {:#?}", self.steps);
        assert!(self.state.history().is_not_undone(self.state.content()), "{:#?}", self.steps);
        assert!(self.state.history().refused_is_not_there(self.state.content()), "{:#?}", self.steps);
    }
}
