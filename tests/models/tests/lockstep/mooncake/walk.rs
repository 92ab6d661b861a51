//! One walk: a seed's order of events, through the model and through the sources.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use kv_store_models::history::{Number, Phase};
use kv_store_models::mooncake::{Action, Order, Rules, Slot, State, Step, built};
use mooncake_server::coro::{Ask, Id, Item};
use stateright::Model;

use super::client::{Client, RANK_SHIFT};
use super::server::{Line, Server, Shown};
use crate::client::deadline;
use crate::follow::{Reached, allows, follow};
use crate::{TICK, value};

const CLIENTS: u8 = 2;
/// The history of a model has room for so many.
const MOST_CHANGES: usize = 7;
const TICKS: u8 = 16;
const EVICTIONS: u8 = 3;
const STEPS: usize = 250;
/// A generation is a microsecond.
const GENERATIONS: u32 = (TICK / 1000) as u32;

/// What may come next.
#[derive(Clone, Copy, Debug)]
enum Move {
    Tick,
    Evict(Number),
    Begin(u8),
    /// What the client has sent is carried out.
    Serve(u8),
    /// What the client waits for comes.
    Answer(u8),
    /// A client that slept goes on.
    Wake(u8),
    /// The connection of a client to the master.
    Lose(u8),
    /// The time of its call is up.
    GiveUp(u8),
    /// An end of a put that is on its way comes late.
    EndsLate(usize),
}

struct Walk<'r> {
    model: Rules,
    state: State,
    now: Arc<AtomicU64>,
    evictions: u8,
    server: Rc<RefCell<Server>>,
    clients: Vec<Client>,
    /// What each client makes.
    makes: Vec<Number>,
    /// Ends of puts whose client has given up.
    late: Vec<Rc<Line>>,
    told: Vec<Phase>,
    /// Said where it goes wrong.
    steps: Vec<String>,
    reached: &'r mut Reached,
}

/// Walk by a seed, and count the actions of the model that were reached.
pub fn walk(seed: u64, reached: &mut Reached) {
    let mut dice = fastrand::Rng::with_seed(seed);
    // Of deletes, and where versions of changes are evicted, nothing is promised: nothing is there then that outranks a late one.
    let promised = dice.bool();
    let mut changes: Vec<(u8, bool)> =
        (0..dice.usize(2..=MOST_CHANGES)).map(|_| (dice.u8(..CLIENTS), !promised && dice.u8(..4) == 0)).collect();
    // The model has clients up to the last one that changes something.
    changes[0].0 = CLIENTS - 1;
    let mut ranks: Vec<u8> = (1..).take(changes.len()).collect();
    dice.shuffle(&mut ranks);
    let mut model = built();
    (model.keeps_changes, model.evictions, model.ticks) = (promised, EVICTIONS, TICKS);
    (model.changes, model.ranks, model.generations) = (changes, vec![ranks], GENERATIONS);
    let mut walk = Walk::begin(model, seed, reached);
    for _ in 0..STEPS {
        let Some(next) = walk.draw(&mut dice) else { break };
        walk.steps.push(format!("{next:?}"));
        walk.take(next);
        walk.compare();
    }
}

fn id(token: &[u8]) -> Id {
    *token.first_chunk().expect("it begins with a client")
}

impl<'r> Walk<'r> {
    fn begin(model: Rules, seed: u64, reached: &'r mut Reached) -> Self {
        let (now, server) = (Arc::new(AtomicU64::new(0)), Server::new());
        let clients: Vec<Client> = (0..CLIENTS).map(|number| Client::open(&now, number)).collect();
        let state = model.init_states().remove(0);
        let told = vec![Phase::Waiting; model.changes.len() + 1];
        let steps = vec![format!("seed {seed}, {:?}, {:?}", model.changes, model.ranks)];
        let makes = vec![0; CLIENTS as usize];
        let (evictions, late) = Default::default();
        let mut walk = Walk { model, state, now, evictions, server, clients, makes, late, told, steps, reached };
        (0..CLIENTS).for_each(|client| walk.alone(client));
        walk.clients[0].begin(0, false, 0, u64::MAX);
        walk.alone(0);
        walk.compare();
        walk
    }

    /// A client goes on to its end, and nothing else happens.
    fn alone(&mut self, client: u8) {
        loop {
            if let Some(told) = self.clients[client as usize].resume() {
                assert_eq!(told, Phase::Acknowledged, "nothing is in its way");
                break;
            }
            self.knows(client);
            let line = self.clients[client as usize].line();
            if line.to_master() && line.asks().is_some() {
                self.server.borrow_mut().carry_out(&line);
            } else if !line.to_master() {
                self.server.borrow_mut().transfer(&line);
            }
            line.bring_answer();
        }
    }

    /// As whom a client makes its change.
    fn knows(&mut self, client: u8) {
        let token = self.clients[client as usize].token();
        if !token.is_empty() {
            self.server.borrow_mut().changes.insert(id(&token), self.makes[client as usize]);
        }
    }

    fn draw(&self, dice: &mut fastrand::Rng) -> Option<Move> {
        let mut moves = Vec::new();
        let mut may = |weight: usize, next: Move| moves.extend(std::iter::repeat_n(next, weight));
        let now = (self.now.load(Relaxed) / TICK) as u8;
        if now < TICKS {
            may(3, Move::Tick);
        }
        if self.evictions < EVICTIONS {
            let is_evictable = |change: Number| change == 0 || !self.model.keeps_changes;
            let versions = self.state.versions.iter().filter(|version| version.ended && is_evictable(version.change));
            versions.for_each(|version| may(1, Move::Evict(version.change)));
        }
        (0..self.late.len()).for_each(|late| may(6, Move::EndsLate(late)));
        let mut is_busy = !self.late.is_empty();
        for (number, client) in (0..).zip(&self.clients) {
            if !client.is_at_work() {
                if self.state.history.next(number).is_some() {
                    may(24, Move::Begin(number));
                    is_busy = true;
                }
                continue;
            }
            is_busy = true;
            if now >= self.state.history.end(self.makes[number as usize]) {
                may(24, Move::GiveUp(number));
                continue;
            }
            match client.sleeps() {
                Some(true) => continue,
                Some(false) => {
                    may(24, Move::Wake(number));
                    continue;
                }
                None => {}
            }
            let line = client.line();
            match line.sent.borrow().is_empty() {
                false => may(24, Move::Serve(number)),
                true => may(24, Move::Answer(number)),
            }
            if line.to_master() {
                may(1, Move::Lose(number));
            }
        }
        is_busy.then(|| moves.get(dice.usize(..moves.len().max(1))).copied()).flatten()
    }

    /// The model does the same.
    fn follow(&mut self, action: Action) {
        let next = allows(&self.model, &self.state, action);
        follow(&mut self.state, next, action, &mut self.steps, self.reached);
    }

    fn take(&mut self, next: Move) {
        match next {
            Move::Tick => {
                self.now.fetch_add(TICK, Relaxed);
                self.follow(Action::Tick);
            }
            Move::Evict(change) => {
                self.evictions += 1;
                self.server.borrow_mut().evict(change);
                self.follow(Action::Evict(change));
            }
            Move::Begin(client) => {
                let number = self.state.history.next(client).expect("it has one to make");
                self.follow(Action::Begin(number));
                self.told[number as usize] = Phase::Running;
                self.makes[client as usize] = number;
                let (deletes, rank) = (self.model.deletes(number), self.model.ranks[0][number as usize - 1]);
                let end = deadline(self.state.history.end(number));
                self.clients[client as usize].begin(number, deletes, rank, end);
                self.resume(client);
            }
            Move::Serve(client) => self.serve(client),
            Move::Answer(client) => {
                self.clients[client as usize].line().bring_answer();
                self.resume(client);
            }
            Move::Wake(client) => self.resume(client),
            Move::Lose(client) => {
                self.clients[client as usize].line().lost.set(true);
                self.leaves(client);
                self.resume(client);
            }
            Move::GiveUp(client) => {
                self.leaves(client);
                self.resume(client);
            }
            Move::EndsLate(late) => {
                let line = self.late.swap_remove(late);
                self.carried_out(&line, None);
            }
        }
    }

    /// A client waits for its connection no longer. Of what it has sent there an end of a put may still come.
    fn leaves(&mut self, client: u8) {
        let line = self.clients[client as usize].line();
        if matches!(line.asks(), Some(Ask::End { .. })) {
            self.late.push(line);
        }
    }

    /// A client goes on, and the model with it where its change has ended.
    fn resume(&mut self, client: u8) {
        let number = self.makes[client as usize];
        let told = self.clients[client as usize].resume();
        let Some(told) = told else {
            self.knows(client);
            let asks = self.clients[client as usize].line().asks();
            if matches!(asks, Some(Ask::Start { .. })) && matches!(self.state.step(number), Step::Looked { .. }) {
                self.follow(Action::Number(number));
            }
            return;
        };
        self.follow(match told {
            Phase::Acknowledged => Action::Answer(number),
            Phase::Refused => Action::Refuse(number),
            _ => Action::GiveUp(number),
        });
        self.told[number as usize] = told;
    }

    fn serve(&mut self, client: u8) {
        let line = self.clients[client as usize].line();
        if line.to_master() {
            self.carried_out(&line, Some(self.makes[client as usize]));
        } else {
            self.server.borrow_mut().transfer(&line);
        }
    }

    /// The master carries out a request. `number`: the change whose client waits for it.
    fn carried_out(&mut self, line: &Line, number: Option<Number>) {
        let (ask, items) = self.server.borrow_mut().carry_out(line);
        let change = |client: &Id| self.server.borrow().changes[client];
        let slot = |key: &String| self.server.borrow().slots[key];
        let action = match (&ask, number) {
            (Ask::End { client, .. }, _) => Action::End(change(client)),
            (Ask::Revoke { client, .. }, Some(number)) => Action::Revoke(number, change(client)),
            (Ask::Locate { .. }, Some(number)) => match self.state.step(number) {
                Step::Started(_) | Step::Removes { own: Some(_), .. } => Action::LookAgain(number),
                _ => Action::Look(number),
            },
            (Ask::Start { keys, .. }, Some(number)) => match &items[..] {
                [Item::Placed(_)] => Action::Start(number, slot(&keys[0])),
                // The slot is taken.
                _ => return,
            },
            (Ask::Remove { keys, .. }, Some(number)) => {
                self.removes(number, keys.iter().map(slot).collect());
                Action::Remove(number)
            }
            other => panic!("the component asks for what no change needs: {other:?}, {:#?}", self.steps),
        };
        self.follow(action);
    }

    /// What a change removes is what it saw.
    fn removes(&self, number: Number, slots: Vec<Slot>) {
        let Step::Removes { lower, own } = self.state.step(number) else { return };
        let next = if own.is_some() { &lower[..] } else { &lower[..lower.len().min(1)] };
        assert_eq!(slots, next, "what is removed, {:#?}", self.steps);
    }

    fn compare(&self) {
        for (number, told) in (1..).zip(&self.told[1..]) {
            let expected = self.state.history.phase(number);
            assert_eq!(*told, expected, "what the caller of change {number} is told, {:#?}", self.steps);
        }
        let is_shown = |number: Number, (generation, rank): Order, shown: &Shown| {
            let order = (u64::from(generation), u64::from(rank));
            (shown.generation, shown.random >> RANK_SHIFT) == order && shown.content == value(number)
        };
        let objects = self.server.borrow().objects();
        let versions = &self.state.versions;
        let is_same = objects.len() == versions.len()
            && versions.iter().all(|version| match objects.get(&version.change) {
                Some(Some(shown)) => version.ended && is_shown(version.change, version.order, shown),
                Some(None) => !version.ended,
                None => false,
            });
        assert!(is_same, "what is there: {objects:?}, and {versions:?}, {:#?}", self.steps);
        let content = self.state.content();
        assert!(self.state.history.refused_is_not_there(content), "{:#?}", self.steps);
        let holds = self.state.history.is_not_undone(content) || !self.model.keeps_changes;
        assert!(holds, "an acknowledged change is undone: {content:?}, {:#?}", self.steps);
    }
}
