//! One walk: a seed's order of events, through the model and through the sources.

use std::rc::Rc;
use std::sync::Arc;

use kv_store_models::history::{Content, Number, Phase};
use kv_store_models::local_fs::{Action, Files, State, Step, fenced};
use stateright::Model;

use super::machine::{Did, Kernel, Machine};
use super::process::{Instance, Process, Run, put_first};
use crate::client::deadline;
use crate::follow::{Reached, allows, count, follow};
use crate::{TICK, value};

const CLIENTS: u8 = 2;
/// The history of a model has room for so many.
const MOST_CHANGES: usize = 7;
const TICKS: u8 = 16;
const KILLS: u8 = 3;
const STEPS: usize = 120;
/// By how many system calls a process goes on.
const FAR: [usize; 8] = [1, 1, 1, 2, 3, 5, 8, 40];

/// What may come next.
#[derive(Clone, Copy, Debug)]
enum Move {
    Tick,
    WritesOut,
    PowerFails,
    /// The process of this client.
    Kill(u8),
    Begin(u8),
    GoOn(u8),
}

struct Client {
    process: Rc<Process>,
    instance: Instance,
    run: Option<(Number, Run)>,
}

struct Walk<'r> {
    model: Files,
    state: State,
    machine: Arc<Machine>,
    clients: Vec<Client>,
    /// The clients are threads of one process.
    threads: bool,
    /// Which changes delete.
    deletes: Vec<bool>,
    started: u64,
    kills: u8,
    power_failed: bool,
    told: Vec<Phase>,
    /// Said where it goes wrong.
    steps: Vec<String>,
    reached: &'r mut Reached,
}

/// Walk by a seed, and count the actions of the model that were reached, and what callers were told.
pub fn walk(seed: u64, reached: &mut Reached) {
    let mut dice = fastrand::Rng::with_seed(seed);
    let (threads, durable) = (dice.bool(), dice.u8(..4) > 0);
    let mut changes: Vec<u8> = (0..dice.usize(2..=MOST_CHANGES)).map(|_| dice.u8(..CLIENTS)).collect();
    // The model has clients up to the last one that changes something.
    changes[0] = CLIENTS - 1;
    let deletes = changes.iter().map(|_| dice.u8(..3) == 0).collect();
    let model = Files { syncs: durable, kills: KILLS * CLIENTS, ticks: TICKS, ..fenced(&changes) };
    let mut walk = Walk::begin(model, threads, deletes, seed, reached);
    for _ in 0..STEPS {
        let Some(next) = walk.draw(&mut dice) else { break };
        walk.steps.push(format!("{next:?}"));
        walk.take(next, &mut dice);
        walk.compare();
    }
    rustix::enter(None);
}

impl<'r> Walk<'r> {
    fn begin(model: Files, threads: bool, deletes: Vec<bool>, seed: u64, reached: &'r mut Reached) -> Self {
        let machine = Machine::new();
        rustix::enter(Some(Rc::new(Kernel(machine.clone()))));
        let state = model.init_states().remove(0);
        let told = vec![Phase::Waiting; model.changes.len() + 1];
        let of = if threads { "threads" } else { "processes" };
        let steps = vec![format!("seed {seed}, {of}, changes {:?}, deletes {deletes:?}", model.changes)];
        let (clients, started, kills, power_failed) = Default::default();
        let mut walk = Walk {
            model,
            state,
            machine,
            clients,
            threads,
            deletes,
            started,
            kills,
            power_failed,
            told,
            steps,
            reached,
        };
        walk.start();
        put_first(&walk.clients[0].process, &walk.clients[0].instance);
        walk.machine.writes_out();
        walk.machine.did();
        walk.compare();
        walk
    }

    /// Start all processes.
    fn start(&mut self) {
        self.clients.clear();
        for client in 0..CLIENTS {
            let process = self.process_of(client);
            let process = match self.clients.last().filter(|last| last.process.number == process) {
                Some(last) => last.process.clone(),
                None => self.start_process(process),
            };
            let instance = process.instance();
            self.clients.push(Client { process, instance, run: None });
        }
    }

    fn start_process(&mut self, number: usize) -> Rc<Process> {
        self.started += 1;
        Process::start(&self.machine, self.started, self.threads, number, self.model.syncs)
    }

    fn process_of(&self, client: u8) -> usize {
        if self.threads { 0 } else { usize::from(client) }
    }

    /// Ticks.
    fn tick(&self) -> u8 {
        (self.machine.now() / TICK) as u8
    }

    fn draw(&self, dice: &mut fastrand::Rng) -> Option<Move> {
        let mut moves = Vec::new();
        let mut may = |weight: usize, next: Move| moves.extend(std::iter::repeat_n(next, weight));
        if self.tick() < TICKS {
            may(10, Move::Tick);
        }
        may(4, Move::WritesOut);
        if !self.power_failed {
            may(1, Move::PowerFails);
        }
        let mut is_busy = false;
        for (number, client) in (0..).zip(&self.clients) {
            match client.run {
                Some(_) => {
                    may(24, Move::GoOn(number));
                    if self.kills < KILLS {
                        may(1, Move::Kill(number));
                    }
                }
                None if self.state.history.next(number).is_some() => may(24, Move::Begin(number)),
                None => continue,
            }
            is_busy = true;
        }
        is_busy.then(|| moves[dice.usize(..moves.len())])
    }

    /// The model does the same.
    fn follow(&mut self, action: Action) {
        let next = allows(&self.model, &self.state, action);
        follow(&mut self.state, next, action, &mut self.steps, self.reached);
    }

    fn take(&mut self, next: Move, dice: &mut fastrand::Rng) {
        match next {
            Move::Tick => {
                self.machine.passes(TICK);
                self.follow(Action::Tick);
            }
            Move::WritesOut => {
                self.machine.writes_out();
                self.follow(Action::KernelWritesOut);
            }
            Move::PowerFails => {
                self.power_failed = true;
                self.clients.iter_mut().for_each(|client| client.run = None);
                self.machine.loses_power();
                self.follow(Action::PowerFails);
                self.compare();
                self.start();
                self.opened();
            }
            Move::Kill(client) => self.kill(client),
            Move::Begin(client) => {
                let number = self.state.history.next(client).expect("it has one to make");
                self.follow(Action::Begin(number));
                self.told[number as usize] = Phase::Running;
                let end = self.machine.moment(deadline(self.state.history.end(number)));
                let deletes = self.deletes[number as usize - 1];
                let client = &mut self.clients[client as usize];
                client.run = Some((number, Run::begin(&client.process, &client.instance, number, deletes, end)));
            }
            Move::GoOn(client) => {
                for _ in 0..dice.choice(FAR).unwrap_or(1) {
                    if !self.goes_on(client) {
                        break;
                    }
                    self.compare();
                }
            }
        }
    }

    fn kill(&mut self, client: u8) {
        self.kills += 1;
        let process = self.process_of(client);
        let all: Vec<u8> = (0..CLIENTS).filter(|other| self.process_of(*other) == process).collect();
        for client in &all {
            let is_at_work = self.clients[*client as usize].run.take().is_some();
            if is_at_work {
                self.follow(Action::Kill(*client));
            }
        }
        self.machine.ended(process, &all);
        let process = self.start_process(process);
        for client in all {
            let instance = process.instance();
            self.clients[client as usize] = Client { process: process.clone(), instance, run: None };
        }
        self.opened();
    }

    /// A store was opened.
    fn opened(&mut self) {
        for did in self.machine.did() {
            assert_ne!(did, Did::Changed, "to open it changes nothing: {:#?}", self.steps);
            if did == Did::Synced {
                self.follow(Action::KernelWritesOut);
            }
        }
    }

    /// A client goes on to its next system call, and the model with it. False: its change has ended.
    fn goes_on(&mut self, client: u8) -> bool {
        self.machine.runs(client, self.process_of(client));
        let (number, run) = self.clients[client as usize].run.as_mut().expect("it is at work");
        let (number, told) = (*number, run.go_on());
        for did in self.machine.did() {
            let step = self.state.step(number);
            match did {
                // One that is too late is none that a change goes on from.
                Did::Looked
                    if step == Step::Written && allows(&self.model, &self.state, Action::Look(number)).is_some() =>
                {
                    self.follow(Action::Look(number));
                }
                Did::Looked => {}
                Did::Changed => self.follow(Action::Rename(number)),
                Did::Synced if step == Step::Renamed && self.model.syncs => self.follow(Action::Sync(number)),
                Did::Synced => self.follow(Action::KernelWritesOut),
            }
        }
        let Some(told) = told else { return true };
        self.follow(if told == Phase::Acknowledged { Action::Answer(number) } else { Action::GiveUp(number) });
        self.told[number as usize] = told;
        count(self.reached, &format!("told {told:?}"));
        self.clients[client as usize].run = None;
        false
    }

    /// What lies under the key, where that is what the model has there.
    fn expected(&self, content: Content) -> Option<Vec<u8>> {
        let number = content?;
        (number == 0 || !self.deletes[number as usize - 1]).then(|| value(number))
    }

    fn compare(&self) {
        for (number, told) in (1..).zip(&self.told[1..]) {
            let expected = self.state.history.phase(number);
            assert_eq!(*told, expected, "what the caller of change {number} is told, {:#?}", self.steps);
        }
        let (content, on_disk) = (self.state.content, self.state.on_disk);
        assert_eq!(self.machine.content(), self.expected(content), "what lies under the key, {:#?}", self.steps);
        assert_eq!(self.machine.on_disk(), self.expected(on_disk), "what is on the disk, {:#?}", self.steps);
        assert!(self.state.history.refused_is_not_there(content), "{:#?}", self.steps);
        // What was only renamed may be gone with the power.
        let holds = self.state.history.is_not_undone(content) || (self.power_failed && !self.model.syncs);
        assert!(holds, "{:#?}", self.steps);
    }
}
