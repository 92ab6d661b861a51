//! The model of s3 beside the shipped component and the bucket of the simulation: one walk. Requests have no connections here. Each is carried
//! out when the walk says so, once or twice, also long after its call; its answer comes, or is lost.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use kv_http_wire::host_value;
use kv_store_models::history::{Number, Phase};
use kv_store_models::s3::{Action, Bucket as Model, Change, FENCED, PATIENCE, Rules, State};
use kv_store_models::sessions::Kind;
use kv_store_sdk::native::Opened;
use kv_store_sdk::native::http::{Message, Reply};
use kv_store_sdk::{Error, Features, Result};
use s3_server::bucket::Bucket;
use s3_server::message;
use s3_server::sign::{ACCESS_KEY_ID, Keys, SECRET_ACCESS_KEY};
use stateright::Model as _;

use crate::actors::{Stop, stop};
use crate::client::{Client, Clock, Reach};
use crate::follow::{Reached, follow};
use crate::server::Component;
use crate::{MANIFEST, Subject};

/// Of the model, in nanoseconds: a call has time for all the pauses that it makes.
const TICK: u64 = 5_000_000_000;
const CLIENTS: u8 = 2;
const MOST_CHANGES: usize = 7;
const TICKS: u8 = 16;
const STEPS: usize = 120;
const RULES: Rules = Rules { lifetime: None, collected_after: None, tries: 60, ..FENCED };
/// The record of the manifest.
const KEY: &str = "kv/r/m~02";
/// The server's clock at first, in microseconds; components' clocks are not far from it.
const BEGINS: u64 = 2_000_000_000_000_000;

struct S3;

impl Component for S3 {
    const SETTLES: bool = true;

    fn secret(name: &str) -> Option<&'static str> {
        match name {
            "access-key-id" => Some(ACCESS_KEY_ID),
            "secret-access-key" => Some(SECRET_ACCESS_KEY),
            _ => None,
        }
    }

    fn open() -> Result<(Box<dyn Opened>, Features)> {
        let (mut opened, features) = ::s3::open("s3+http://server:1/bucket/kv", Vec::new())?;
        // It has seen what is there.
        opened.get_manifest(MANIFEST)?;
        Ok((opened, features))
    }
}

/// A put that may be carried out.
struct Sent {
    client: usize,
    serial: u64,
    change: Number,
    /// Of its change's puts that have each a nonce of its own.
    number: u8,
    request: message::Request,
}

/// What a client waits for.
struct Awaited {
    serial: u64,
    /// Some: a look, which the server has not answered.
    look: Option<message::Request>,
    /// The server has answered it.
    answer: Option<Reply>,
    /// What the client hears when it goes on.
    heard: Option<Result<Reply>>,
}

/// The server, and all that is on its way.
struct World {
    now: Arc<AtomicU64>,
    bucket: Bucket,
    keys: Keys,
    /// A component is opened, which is answered at once.
    calm: bool,
    serials: u64,
    sent: Vec<Sent>,
    awaited: Vec<Option<Awaited>>,
    /// Of each client: its change, and the bodies of its puts.
    puts: Vec<(Number, Vec<Vec<u8>>)>,
}

fn read(message: &Message) -> message::Request {
    let (host, port) = message.authority.rsplit_once(':').expect("a server has a port");
    let host = host_value(host, port.parse().expect("a number"), message.how.tls);
    let Message { method, path, headers, body, .. } = message;
    let head = kv_http_wire::Request { method, host: &host, path, headers, body_len: body.len() as u64 };
    let head = head.head().expect("the component's headers are some");
    message::take(&mut [head, body.clone()].concat()).expect("it is HTTP").expect("it is whole")
}

impl World {
    fn answer(&mut self, request: &message::Request) -> Reply {
        let now = BEGINS + self.now.load(Relaxed) / 1000;
        let refused = self.keys.refuses(request, now / 1_000_000);
        assert!(refused.is_none(), "the server refuses {request:?}");
        let answer = self.bucket.answer(request, now);
        let headers = answer.headers.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        Reply { status: answer.status, headers, body: answer.body }
    }

    /// A client makes a request.
    fn send(&mut self, client: usize, request: message::Request) -> u64 {
        self.serials += 1;
        let serial = self.serials;
        let is_look = request.method == "GET";
        if !is_look {
            let (change, puts) = &mut self.puts[client];
            if puts.last() != Some(&request.body) {
                puts.push(request.body.clone());
            }
            let (change, number) = (*change, puts.len() as u8 - 1);
            self.sent.push(Sent { client, serial, change, number, request: request.clone() });
        }
        let look = is_look.then_some(request);
        self.awaited[client] = Some(Awaited { serial, look, answer: None, heard: None });
        serial
    }
}

fn exchange(world: &RefCell<World>, client: usize, clock: &Clock, message: &Message) -> Result<Reply> {
    let request = read(message);
    if world.borrow().calm {
        return Ok(world.borrow_mut().answer(&request));
    }
    clock.check()?;
    let serial = world.borrow_mut().send(client, request);
    loop {
        stop(Stop::Reads);
        let mut world = world.borrow_mut();
        let awaited = world.awaited[client].as_mut().filter(|awaited| awaited.serial == serial);
        if let Some(heard) = awaited.and_then(|awaited| awaited.heard.take()) {
            world.awaited[client] = None;
            return heard;
        }
        if let Err(late) = clock.check() {
            world.awaited[client] = None;
            return Err(late);
        }
    }
}

fn opened(world: &Rc<RefCell<World>>, client: usize, seed: u64) -> Client {
    let (now, of) = (world.borrow().now.clone(), world.clone());
    let exchanges = move |clock: &Clock, message: Message| exchange(&of, client, clock, &message);
    let subject = Subject { is_chunk: false, is_long: false };
    let reach = Reach::Exchanges(Rc::new(exchanges));
    Client::open::<S3>(subject, &now, reach, Rc::default(), seed).resume().expect("nothing befalls it")
}

/// A bucket of which it was found out that conditions hold, with a manifest if it is `held`.
fn begun(held: bool) -> Bucket {
    thread_local! {
        static BEGUN: RefCell<BTreeMap<bool, Bucket>> = const { RefCell::new(BTreeMap::new()) };
    }
    if let Some(bucket) = BEGUN.with_borrow(|begun| begun.get(&held).cloned()) {
        return bucket;
    }
    let world = Rc::new(RefCell::new(World::new(Bucket::new("bucket"))));
    let mut client = opened(&world, 0, 1);
    if held {
        assert!(client.is_let(200 * TICK));
        assert_eq!(client.begin(0, Kind::Put), Some(Phase::Acknowledged));
    }
    let bucket = world.borrow().bucket.clone();
    BEGUN.with_borrow_mut(|begun| begun.insert(held, bucket.clone()));
    bucket
}

impl World {
    fn new(bucket: Bucket) -> Self {
        World {
            now: Arc::default(),
            bucket,
            keys: Keys::new(SECRET_ACCESS_KEY),
            calm: true,
            serials: 0,
            sent: Vec::new(),
            awaited: (0..CLIENTS).map(|_| None).collect(),
            puts: (0..CLIENTS).map(|_| (0, Vec::new())).collect(),
        }
    }
}

/// What may come next.
#[derive(Clone, Copy, Debug)]
enum Move {
    Tick,
    Begin(u8),
    /// A put is carried out. `again`: it comes once more.
    Take {
        at: usize,
        again: bool,
    },
    /// What a client wants to see is looked at.
    Show(u8),
    Answer(u8),
    Lose(u8),
    GiveUp(u8),
}

struct Walk<'r> {
    model: Model,
    state: State,
    world: Rc<RefCell<World>>,
    clients: Vec<Client>,
    told: Vec<Phase>,
    ends: Vec<u8>,
    steps: Vec<String>,
    reached: &'r mut Reached,
}

/// Walk by a seed, and count the actions of the model that were reached.
pub fn walk(seed: u64, reached: &mut Reached) {
    let mut dice = fastrand::Rng::with_seed(seed);
    let count = dice.usize(2..=MOST_CHANGES);
    let change = |number: usize| (dice.u8(..CLIENTS), (dice.u8(..3) > 0).then_some(number as u8 + 1));
    let changes: Vec<Change> = (0..count).map(change).collect();
    let held = dice.bool();
    let model = Model { rules: RULES, changes, held };
    let world = Rc::new(RefCell::new(World::new(begun(held))));
    let clients = (0..usize::from(CLIENTS)).map(|client| opened(&world, client, seed * 100 + 10 + client as u64));
    let clients = clients.collect();
    world.borrow_mut().calm = false;
    let state = model.init_states().remove(0);
    let (told, ends) = (vec![Phase::Waiting; count + 1], vec![0; count + 1]);
    let steps = vec![format!("seed {seed}, {:?}, held {held}", model.changes)];
    let mut walk = Walk { model, state, world, clients, told, ends, steps, reached };
    for _ in 0..STEPS {
        let Some(next) = walk.draw(&mut dice) else { break };
        walk.steps.push(format!("{next:?}"));
        walk.take(next);
        walk.compare();
    }
}

impl Walk<'_> {
    fn tick(&self) -> u8 {
        (self.world.borrow().now.load(Relaxed) / TICK) as u8
    }

    fn draw(&self, dice: &mut fastrand::Rng) -> Option<Move> {
        let (mut moves, world) = (Vec::new(), self.world.borrow());
        let mut may = |weight: usize, next: Move| moves.extend(std::iter::repeat_n(next, weight));
        if self.tick() < TICKS {
            may(2, Move::Tick);
        }
        let mut is_busy = !world.sent.is_empty();
        for client in 0..CLIENTS {
            let Some(number) = self.state.runs(client) else {
                if self.state.history().next(client).is_some() {
                    may(8, Move::Begin(client));
                    is_busy = true;
                }
                continue;
            };
            is_busy = true;
            if self.tick() >= self.ends[number as usize] {
                may(6, Move::GiveUp(client));
                continue;
            }
            let awaited = world.awaited[client as usize].as_ref().expect("it waits");
            may(2, Move::Lose(client));
            match (&awaited.answer, &awaited.look) {
                (Some(_), _) => may(8, Move::Answer(client)),
                (None, Some(_)) => may(6, Move::Show(client)),
                (None, None) => {}
            }
        }
        for at in 0..world.sent.len() {
            may(4, Move::Take { at, again: false });
            may(1, Move::Take { at, again: true });
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
                self.world.borrow().now.fetch_add(TICK, Relaxed);
                self.follow(Action::Tick);
            }
            Move::Begin(client) => self.begin(client),
            Move::Take { at, again } => {
                let action = self.world.borrow_mut().carry_out(at, again);
                self.follow(action);
            }
            Move::Show(client) => {
                self.world.borrow_mut().show(client as usize);
                self.follow(Action::Show(client));
            }
            Move::Answer(client) => {
                self.hear(client, |awaited| Ok(awaited.answer.take().expect("it is answered")));
                let told = self.clients[client as usize].resume();
                self.follow(Action::Answer(client));
                self.goes_on(client, told);
            }
            Move::Lose(client) => {
                self.hear(client, |_| Err(Error::unavailable("the connection was reset")));
                let told = self.clients[client as usize].resume();
                self.follow(Action::Lose(client));
                if told.is_some() {
                    self.follow(Action::GiveUp(client));
                }
                self.goes_on(client, told);
            }
            Move::GiveUp(client) => {
                let told = self.clients[client as usize].resume();
                assert!(told.is_some(), "a call ends at its deadline: {:#?}", self.steps);
                self.follow(Action::GiveUp(client));
                self.goes_on(client, told);
            }
        }
    }

    fn hear(&self, client: u8, what: impl Fn(&mut Awaited) -> Result<Reply>) {
        let mut world = self.world.borrow_mut();
        let awaited = world.awaited[client as usize].as_mut().expect("it waits");
        awaited.heard = Some(what(awaited));
    }

    fn begin(&mut self, client: u8) {
        let number = self.state.history().next(client).expect("it has one to make");
        let kind = if self.model.changes[number as usize - 1].1.is_some() { Kind::Put } else { Kind::Delete };
        let end = self.tick() + PATIENCE;
        self.world.borrow_mut().puts[client as usize] = (number, Vec::new());
        assert!(self.clients[client as usize].is_let(u64::from(end) * TICK), "it settles what was before");
        let told = self.clients[client as usize].begin(number, kind);
        assert_eq!(told, None, "nothing was answered: {:#?}", self.steps);
        self.follow(Action::Begin(client));
        (self.told[number as usize], self.ends[number as usize]) = (Phase::Running, end);
    }

    /// What a client did when it went on: its caller is told, or it has made another request.
    fn goes_on(&mut self, client: u8, told: Option<Phase>) {
        let (number, puts) = self.world.borrow().puts[client as usize].clone();
        if let Some(told) = told {
            self.told[number as usize] = told;
            return;
        }
        let is_look = self.world.borrow().awaited[client as usize].as_ref().is_some_and(|of| of.look.is_some());
        if is_look {
            self.follow(Action::Look(client));
        } else if puts.len() == self.state.tries(client) {
            // The model puts anew with the answer that it needs for that.
            let is_sent = self.state.waits_for_put(client);
            if !is_sent {
                self.follow(Action::Repeat(client));
            }
        }
    }

    fn compare(&self) {
        for number in 1..self.told.len() {
            let told = self.state.history().phase(number as Number);
            assert_eq!(self.told[number], told, "what the caller of change {number} is told, {:#?}", self.steps);
        }
        let world = self.world.borrow();
        let object = world.bucket.objects.get(KEY);
        let content = object.map(|object| object.shown.as_ref().map(|shown| shown.to_vec()));
        let subject = Subject { is_chunk: false, is_long: false };
        let expected = self.state.object().map(|(number, is_gone)| (!is_gone).then(|| subject.value(number)));
        assert_eq!(content, expected, "what lies there, {:#?}", self.steps);
        let sent: BTreeSet<(Number, u8)> = world.sent.iter().map(|sent| (sent.change, sent.number)).collect();
        assert_eq!(sent.len(), self.state.requests(), "puts on their way, {:#?}", self.steps);
        for client in 0..CLIENTS {
            if self.state.runs(client).is_some() {
                let puts = world.puts[client as usize].1.len();
                assert_eq!(puts, self.state.tries(client), "puts of a change, {:#?}", self.steps);
            }
        }
        assert!(self.state.history().is_not_undone(self.state.content()), "{:#?}", self.steps);
        assert!(self.state.history().refused_is_not_there(self.state.content()), "{:#?}", self.steps);
    }
}

impl World {
    fn carry_out(&mut self, at: usize, again: bool) -> Action {
        let request = self.sent[at].request.clone();
        let answer = self.answer(&request);
        let Sent { client, serial, change, number, .. } = self.sent[at];
        let awaited = self.awaited[client].as_mut().filter(|awaited| awaited.serial == serial);
        let awaited = awaited.filter(|awaited| awaited.answer.is_none());
        let heard = awaited.is_some();
        if let Some(awaited) = awaited {
            awaited.answer = Some(answer);
        }
        if !again {
            self.sent.remove(at);
        }
        let again = self.sent.iter().any(|sent| (sent.change, sent.number) == (change, number));
        Action::Take { change, number, again, heard }
    }

    fn show(&mut self, client: usize) {
        let look = self.awaited[client].as_mut().and_then(|awaited| awaited.look.clone()).expect("it looks");
        let answer = self.answer(&look);
        self.awaited[client].as_mut().expect("it looks").answer = Some(answer);
    }
}
