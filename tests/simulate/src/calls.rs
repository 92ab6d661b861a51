//! One call of a component: what becomes of it between the engine's process and the storage system.

use std::collections::BTreeMap;
use std::sync::Arc;

use kv_store_core::backend::Put;
use kv_store_core::until::Until;
use kv_store_core::{Error, ErrorKind};

use crate::guest::Guest;
use crate::hashed::HashMap;
use crate::names::{Key, Stored};
use crate::planted;
use crate::sim::Sim;
use crate::threads::{MICROSECOND, MILLISECOND, Moment};
use crate::world::{Origin, Pending, Reply, Request, World};
use chance::Dice;

/// What becomes of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fate {
    Well,
    /// It takes most of its time.
    Slow,
    /// The storage system takes no more now, and does nothing.
    Busy,
    /// It does not arrive.
    Lost,
    /// It is carried out, and the answer does not arrive.
    Unanswered,
    /// It is given up, and carried out later.
    Late,
    /// It is carried out, and once more later, and nobody is told.
    Twice,
    /// Fewer items are answered.
    Short,
    /// Some items fail.
    SomeFail,
    /// The component traps before or after it is carried out.
    Trap,
    /// Nothing answers until the deadline.
    Hangs,
    /// It is refused for good.
    Refused,
    /// Bytes change on their way.
    Flipped,
    /// What is stored is not what was put.
    Spoiled,
    /// The engine's process has ended.
    Dead,
    /// Nothing reaches the storage system.
    Unreachable,
    /// A thread of the server stands still, or a process that makes system calls.
    Stopped,
    /// The disk has no room.
    Full,
    /// A system call fails.
    Failing,
}

pub const FATES: &[Fate] = &[
    Fate::Slow,
    Fate::Busy,
    Fate::Lost,
    Fate::Unanswered,
    Fate::Late,
    Fate::Twice,
    Fate::Short,
    Fate::SomeFail,
    Fate::Trap,
    Fate::Hangs,
    Fate::Refused,
    Fate::Flipped,
    Fate::Spoiled,
];

impl Fate {
    pub fn name(self) -> &'static str {
        match self {
            Fate::Well => "none",
            Fate::Slow => "slow",
            Fate::Busy => "busy",
            Fate::Lost => "lost",
            Fate::Unanswered => "unanswered",
            Fate::Late => "late",
            Fate::Twice => "twice",
            Fate::Short => "short",
            Fate::SomeFail => "some fail",
            Fate::Trap => "trap",
            Fate::Hangs => "hangs",
            Fate::Refused => "refused",
            Fate::Flipped => "flipped",
            Fate::Spoiled => "spoiled",
            Fate::Dead => "dead",
            Fate::Unreachable => "unreachable",
            Fate::Stopped => "stopped",
            Fate::Full => "disk full",
            Fate::Failing => "call fails",
        }
    }
}

/// How a call is answered beside what the storage system said.
pub struct Asked {
    /// So many items are answered.
    pub most: usize,
    pub failing: BTreeMap<usize, Error>,
    pub damage: Option<Damaged>,
}

/// Bytes of one item changed on their way.
#[derive(Clone)]
pub struct Damaged {
    pub item: usize,
    dice: Dice,
}

impl Damaged {
    pub fn of(&self, data: &Arc<Vec<u8>>) -> Arc<Vec<u8>> {
        let (mut dice, mut data) = (self.dice.clone(), (**data).clone());
        let at = dice.index(data.len().saturating_sub(16).max(1));
        match data.get_mut(at) {
            Some(byte) => *byte ^= 1 << dice.below(8),
            None => data.push(0),
        }
        Arc::new(data)
    }
}

fn unavailable(text: &str) -> Error {
    Error::new(ErrorKind::Unavailable, text)
}

impl Request {
    pub fn items(&self) -> usize {
        match self {
            Request::Exists(places) | Request::Get(places) | Request::Delete(places) => places.len(),
            Request::Put { chunks, .. } => chunks.len(),
            Request::Commit { .. } | Request::GetManifest(_) | Request::DeleteManifest(_) => 1,
        }
    }

    /// Whether items have outcomes of their own.
    fn is_batch(&self) -> bool {
        !matches!(self, Request::Commit { .. } | Request::GetManifest(_) | Request::DeleteManifest(_))
    }

    /// Whether it asks for the removal of what lies there.
    pub fn removes(&self, place: &Stored) -> bool {
        match self {
            Request::Delete(places) => places.contains(place),
            Request::DeleteManifest(removed) => removed == place,
            _ => false,
        }
    }

    pub fn is_read(&self) -> bool {
        matches!(self, Request::Exists(_) | Request::Get(_) | Request::GetManifest(_))
    }

    /// Without some of its items.
    fn without(&self, failing: &BTreeMap<usize, Error>, most: usize) -> Request {
        let kept = |at: usize| at < most && !failing.contains_key(&at);
        match self {
            Request::Put { chunks, replace } => {
                let chunks = chunks.iter().enumerate().filter(|(at, _)| kept(*at)).map(|(_, chunk)| chunk.clone());
                Request::Put { chunks: chunks.collect(), replace: *replace }
            }
            Request::Delete(places) => {
                let places = places.iter().enumerate().filter(|(at, _)| kept(*at)).map(|(_, place)| place.clone());
                Request::Delete(places.collect())
            }
            other => other.clone(),
        }
    }

    /// For people. `keys`: which key a place is of.
    pub fn describe(&self, keys: &HashMap<Stored, Key>) -> String {
        let name = |place: &Stored| keys.get(place).map_or("?".to_owned(), Key::to_string);
        let names = |places: &[Stored]| places.iter().map(name).collect::<Vec<_>>().join(" ");
        match self {
            Request::Exists(places) => format!("exists {}", names(places)),
            Request::Put { chunks, replace } => {
                let places: Vec<Stored> = chunks.iter().map(|(place, _)| place.clone()).collect();
                format!("{} {}", if *replace { "replace" } else { "put" }, names(&places))
            }
            Request::Get(places) => format!("get {}", names(places)),
            Request::Delete(places) => format!("delete {}", names(places)),
            Request::Commit { fresh, manifest } => {
                let manifest = manifest.as_ref().map_or("nothing".to_owned(), |(place, _)| name(place));
                format!("commit {manifest} over {}", names(fresh))
            }
            Request::GetManifest(place) => format!("get {}", name(place)),
            Request::DeleteManifest(place) => format!("delete {}", name(place)),
        }
    }

    /// Numbers of the items that are changes, of a call that makes any.
    fn changes(&self) -> Vec<u32> {
        (0..self.items() as u32).collect()
    }
}

/// One call that is under way.
struct Call<'a> {
    guest: &'a Guest,
    until: &'a Until,
    origin: Origin,
    dice: Dice,
    fate: Fate,
    token: Vec<u8>,
    /// Tokens of former changes that this one settles.
    former: Vec<Vec<u8>>,
    /// The storage system refuses it from then on.
    end: Moment,
}

/// Take a request to the storage system.
pub fn ask(guest: &Guest, request: Request, until: &Until) -> Result<(Asked, Reply), Error> {
    let mut call = Call::begin(guest, &request, until);
    let outcome = call.run(&request);
    let now = guest.sim.threads.moment();
    let mut world = guest.sim.world();
    world.returned.insert(call.origin.call, now);
    outcome
}

impl<'a> Call<'a> {
    fn begin(guest: &'a Guest, request: &Request, until: &'a Until) -> Self {
        let sim = &guest.sim;
        let operation = sim.threads.task().operation;
        let now = sim.threads.moment();
        let end = sim.threads.moment_of(until.deadline());
        let mut world = sim.world();
        world.calls += 1;
        let call = world.calls;
        let nth = world.calls_of.entry(operation).or_default();
        *nth += 1;
        let mut dice = Dice::of(sim.plan.seed, &[2, u64::from(operation), *nth]);
        let mut fate = fate(sim, &world, &mut dice, request, sim.less.calm.contains(&operation));
        if world.unreachable_until(guest.process, now).is_some_and(|until| until + MILLISECOND >= end) {
            fate = Fate::Unreachable;
        }
        if world.dead.get(guest.process).copied().unwrap_or(true) {
            fate = Fate::Dead;
        }
        if fate != Fate::Well {
            world.faulty.insert(operation);
            world.may_end_unknown(request);
        }
        drop(world);
        // A process that has ended makes no calls: what its threads still ask for here is nobody's.
        if fate != Fate::Dead {
            sim.cover(operation, fate);
        }
        let origin = Origin { process: guest.process, operation, call };
        Call { guest, until, origin, dice, fate, token: call.to_le_bytes().to_vec(), former: Vec::new(), end }
    }

    fn now(&self) -> Moment {
        self.guest.sim.threads.moment()
    }

    /// Wait, not beyond the end.
    fn wait(&self, long: Moment) {
        let left = self.end.saturating_sub(self.now());
        self.guest.sim.threads.pause(long.min(left));
    }

    fn is_dead(&self) -> bool {
        self.guest.sim.world().dead.get(self.origin.process).copied().unwrap_or(true)
    }

    fn run(&mut self, request: &Request) -> Result<(Asked, Reply), Error> {
        if self.fate == Fate::Dead {
            return Err(unavailable("the process has ended"));
        }
        let sim = self.guest.sim.clone();
        let items = request.items();
        let mut asked = Asked { most: items, failing: BTreeMap::new(), damage: None };
        if self.fate == Fate::Trap && self.dice.met(300) {
            self.wait(MILLISECOND);
            return Err(Error::new(ErrorKind::Component, "trapped before anything was sent"));
        }
        self.tell(request);
        let first = self.latency();
        self.wait(first);
        let unreachable = sim.world().unreachable_until(self.origin.process, self.now());
        if let Some(until) = unreachable {
            sim.world().faulty.insert(self.origin.operation);
            self.wait(until.saturating_sub(self.now()));
        }
        match self.fate {
            Fate::Lost | Fate::Hangs | Fate::Unreachable => return self.never(request),
            Fate::Busy | Fate::Refused => return self.refuse(request),
            Fate::Late => return self.later(request),
            Fate::Short if items > 1 => asked.most = 1 + self.dice.index(items - 1),
            Fate::SomeFail => self.fail_some(request, items, &mut asked),
            Fate::Flipped => asked.damage = Some(Damaged { item: self.dice.index(items), dice: self.dice.clone() }),
            _ => {}
        }
        if self.is_dead() || self.now() >= self.end {
            return Err(unavailable("no answer in time"));
        }
        let carried = request.without(&asked.failing, asked.most);
        let reply = self.carry_out(&carried);
        if self.fate == Fate::Spoiled {
            let now = self.now();
            sim.world().spoil(&carried, &mut self.dice, now);
        }
        if self.fate == Fate::Twice {
            return self.later(request);
        }
        let second = self.latency();
        self.wait(second);
        match self.fate {
            Fate::Unanswered => {
                let long = self.dice.within(0, self.end.saturating_sub(self.now()));
                self.wait(long);
                Err(unavailable("the connection was closed before the answer"))
            }
            Fate::Trap => {
                let now = self.now();
                sim.world().retire(now);
                Err(Error::new(ErrorKind::Component, "trapped after it was carried out"))
            }
            _ if self.is_dead() => Err(unavailable("the process has ended")),
            _ => {
                let reply = whole(reply, items, &asked);
                Ok((asked, reply))
            }
        }
    }

    /// Say which changes are about to be sent.
    fn tell(&mut self, request: &Request) {
        let Some(change) = self.until.change() else { return };
        if self.guest.sim.plan.shape.tells {
            self.former = change.begin(&request.changes(), &self.token);
        }
        self.until.sending();
    }

    fn not_done(&self, items: &[u32]) {
        if let Some(change) = self.until.change().filter(|_| self.guest.sim.plan.shape.tells) {
            change.not_done(items);
        }
    }

    fn latency(&mut self) -> Moment {
        match self.fate {
            Fate::Slow => self.dice.within(0, self.end.saturating_sub(self.now()) * 6 / 10),
            _ => match self.dice.below(8) {
                0 => self.dice.within(MILLISECOND, 8 * MILLISECOND),
                _ => self.dice.within(20 * MICROSECOND, 900 * MICROSECOND),
            },
        }
    }

    fn carry_out(&self, request: &Request) -> Reply {
        let sim = &self.guest.sim;
        sim.say(|| {
            let text = request.describe(&sim.world().keys);
            format!("  carried out for {}: {text}", self.origin.operation)
        });
        carry_out(&mut self.guest.sim.world(), request, self.origin, &self.former, self.now())
    }

    fn never(&mut self, request: &Request) -> Result<(Asked, Reply), Error> {
        let left = self.end.saturating_sub(self.now());
        let long = match self.fate {
            Fate::Lost => self.dice.within(0, left),
            _ => left,
        };
        // Of what hangs nobody knows whether it arrived; here some did.
        if self.fate == Fate::Hangs && self.dice.met(300) && left > 0 && !self.is_dead() {
            self.carry_out(request);
        }
        self.wait(long);
        Err(unavailable("no answer in time"))
    }

    fn refuse(&mut self, request: &Request) -> Result<(Asked, Reply), Error> {
        self.not_done(&request.changes());
        Err(match (self.fate, self.dice.below(3)) {
            (Fate::Busy, _) => Error::busy("the storage system takes no more now"),
            (_, 0) => Error::new(ErrorKind::Exhausted, "no room"),
            (_, 1) => Error::new(ErrorKind::Denied, "not allowed"),
            _ => Error::new(ErrorKind::Invalid, "not taken"),
        })
    }

    fn fail_some(&mut self, request: &Request, items: usize, asked: &mut Asked) {
        if !request.is_batch() {
            return;
        }
        for at in 0..items {
            if self.dice.met(400) {
                self.not_done(&[at as u32]);
                let error = match self.dice.below(3) {
                    0 => Error::new(ErrorKind::Exhausted, "no room for it"),
                    1 => Error::busy("not now"),
                    _ => unavailable("its part of the storage system does not answer"),
                };
                asked.failing.insert(at, error);
            }
        }
    }

    /// The caller gives it up; the storage system carries it out before its end.
    fn later(&mut self, request: &Request) -> Result<(Asked, Reply), Error> {
        let sim = self.guest.sim.clone();
        let left = self.end.saturating_sub(self.now());
        let given_up = self.dice.within(0, left);
        let at = match planted::is("store: a change is carried out after its end") {
            true => self.end + self.dice.within(1, 2 * left + 1),
            false => self.now() + self.dice.within(0, left.saturating_sub(1)),
        };
        let (origin, former) = (self.origin, self.former.clone());
        let pending = Pending { process: origin.process, token: self.token.clone(), revoked: false };
        sim.world().pending.insert(origin.call, pending);
        let (late, request) = (sim.clone(), request.clone());
        sim.threads.at(at, move || {
            let now = late.threads.moment();
            late.say(|| {
                let text = request.describe(&late.world().keys);
                format!("  late, for {}: {text}", origin.operation)
            });
            let mut world = late.world();
            if world.pending.remove(&origin.call).is_some_and(|pending| !pending.revoked) {
                carry_out(&mut world, &request, origin, &former, now);
            }
        });
        self.wait(given_up);
        Err(unavailable("no answer in time"))
    }
}

/// Carry out a request, and with it refuse those that it settles.
fn carry_out(world: &mut World, request: &Request, origin: Origin, former: &[Vec<u8>], now: Moment) -> Reply {
    if world.shape.settles && !planted::is("store: a change does not settle former ones") {
        let settled = |pending: &&mut Pending| pending.process == origin.process && former.contains(&pending.token);
        world.pending.values_mut().filter(settled).for_each(|pending| pending.revoked = true);
    }
    world.apply(request, origin, now)
}

/// A reply with an answer for each item that was asked for: those that fail have one that nobody sees.
fn whole(reply: Reply, items: usize, asked: &Asked) -> Reply {
    match reply {
        Reply::Put(answers) => {
            let mut answers = answers.into_iter();
            let answer = |at: usize| match at < asked.most && !asked.failing.contains_key(&at) {
                true => answers.next().unwrap_or(Put::New),
                false => Put::New,
            };
            Reply::Put((0..items).map(answer).collect())
        }
        Reply::Delete(_) => Reply::Delete(items),
        other => other,
    }
}

fn fate(sim: &Sim, world: &World, dice: &mut Dice, request: &Request, calm: bool) -> Fate {
    let met = dice.met(world.shape.trouble);
    let fate = sim.plan.fate(dice, FATES);
    if !met || calm || world.calm {
        return Fate::Well;
    }
    match fate {
        // A component that is the store and does not answer is ended, with what it holds.
        Fate::Lost | Fate::Unanswered | Fate::Late | Fate::Twice | Fate::Hangs if world.shape.holds_data => Fate::Trap,
        Fate::Late | Fate::Twice if request.is_read() => Fate::Lost,
        Fate::Flipped if !matches!(request, Request::Get(_) | Request::GetManifest(_)) => Fate::Slow,
        Fate::Spoiled if !matches!(request, Request::Put { .. }) => Fate::Slow,
        Fate::Short | Fate::SomeFail if !request.is_batch() => Fate::Unanswered,
        fate => fate,
    }
}
