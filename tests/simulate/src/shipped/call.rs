//! One call of a shipped backend: the host that it runs over, and what befalls it.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::sync::Arc;

use kv_store_core::process::Clock;
use kv_store_core::segments::SegmentSettings;
use kv_store_core::until::Until;
use kv_store_sdk::native::files::Granted;
use kv_store_sdk::native::http::{Message, Reply};
use kv_store_sdk::native::records::{RecordOptions, Recorded};
use kv_store_sdk::native::system::Level;
use kv_store_sdk::native::{Host, Stream};
use kv_store_sdk::{Error, Result};

use super::files::OpenStore;
use super::net::{self, Near, Wire};
use super::{Instances, files, memkv, redis, s3, server};
use crate::calls::Fate;
use crate::plan::{Backend, Redis, S3};
use crate::sim::Sim;
use crate::threads::{MICROSECOND, MILLISECOND, Moment};
use crate::world::{Origin, Request};
use chance::Dice;

/// Unwinds a backend that traps, or whose process ends.
pub struct Trap;

/// What may befall a call.
const FATES: &[Fate] =
    &[Fate::Slow, Fate::Busy, Fate::Lost, Fate::Unanswered, Fate::Late, Fate::Trap, Fate::Hangs, Fate::Flipped];

/// And a call over HTTP: its server refuses for a while, and what is between the two may send a request twice.
const FATES_OVER_HTTP: &[Fate] = &[
    Fate::Slow,
    Fate::Busy,
    Fate::Lost,
    Fate::Unanswered,
    Fate::Late,
    Fate::Twice,
    Fate::Trap,
    Fate::Hangs,
    Fate::Refused,
    Fate::Flipped,
];

/// And one to a master and nodes.
const FATES_OVER_MOONCAKE: &[Fate] = &[
    Fate::Slow,
    Fate::Busy,
    Fate::Lost,
    Fate::Unanswered,
    Fate::Late,
    Fate::Trap,
    Fate::Hangs,
    Fate::Refused,
    Fate::Flipped,
];

/// A call that takes longer was waiting for something.
pub const LONG: Moment = 20 * MILLISECOND;

/// What a master and nodes are asked one after the other in one call takes so long, where nothing goes wrong.
const ROUND_TRIPS: Moment = 100 * MILLISECOND;

/// A call that is under way.
pub struct Call {
    pub sim: Arc<Sim>,
    pub until: Until,
    pub origin: Origin,
    pub fate: Fate,
    /// Nothing befalls it, not even that the server stands still.
    pub calm: bool,
    begun: Moment,
    of: Arc<Instances>,
    own: Weak<Call>,
    items: Vec<Rc<[u8]>>,
    dice: RefCell<Dice>,
    /// Steps to the trap.
    steps: Cell<u64>,
    /// Sends until it is struck.
    sends: Cell<u64>,
    /// How often it is struck from then on.
    strikes: Cell<u64>,
    struck: Cell<bool>,
}

impl Call {
    pub fn begin(of: &Arc<Instances>, request: Request, items: Vec<Rc<[u8]>>, until: &Until, calm: bool) -> Rc<Self> {
        let sim = of.sim.clone();
        let operation = sim.threads.task().operation;
        let mut world = sim.world();
        world.calls += 1;
        let call = world.calls;
        let nth = world.calls_of.entry(operation).or_default();
        *nth += 1;
        let mut dice = Dice::of(sim.plan.seed, &[2, u64::from(operation), *nth]);
        // What befalls a backend over files befalls its system calls.
        let over_files = sim.files.is_some();
        let over_http = matches!(sim.plan.shape.backend, Backend::S3(_));
        let over_mooncake = matches!(sim.plan.shape.backend, Backend::Mooncake(_));
        let (trouble, fates) = match over_files {
            true => (world.shape.trouble / 8, &[Fate::Trap][..]),
            false if over_http => (world.shape.trouble, FATES_OVER_HTTP),
            false => (world.shape.trouble, if over_mooncake { FATES_OVER_MOONCAKE } else { FATES }),
        };
        let met = dice.met(trouble);
        let mut fate = sim.plan.fate(&mut dice, fates);
        if !met || calm || world.calm || sim.less.calm.contains(&operation) {
            fate = Fate::Well;
        }
        let has_values = matches!(request, Request::Get(_) | Request::GetManifest(_) | Request::Put { .. });
        // RESP and HTTP have no checksum: of what is no value nothing is promised. TLS lets no flip through.
        let values_flip = match sim.plan.shape.backend {
            Backend::Redis(_) | Backend::Mooncake(_) => has_values,
            Backend::S3(S3 { tls, .. }) => has_values && !tls,
            _ => true,
        };
        if fate == Fate::Flipped && !values_flip {
            fate = Fate::Slow;
        }
        let now = sim.threads.moment();
        let end = sim.threads.moment_of(until.deadline());
        let unreachable = world.unreachable_until(of.process, now).is_some_and(|until| until + MILLISECOND >= end);
        if unreachable && !calm && !over_files {
            fate = Fate::Unreachable;
        }
        if fate != Fate::Well {
            world.faulty.insert(operation);
            world.may_end_unknown(&request);
        }
        drop(world);
        let origin = Origin { process: of.process, operation, call };
        sim.say(|| {
            let text = request.describe(&sim.world().keys);
            format!("  call {call} of {operation}: {text}")
        });
        files::called(&sim, origin, &request);
        server::called(&sim, call, request, calm);
        let sends_at_most = if over_mooncake {
            8
        } else if over_http {
            4
        } else {
            2
        };
        let (steps, sends) = (1 + dice.below(if over_mooncake { 24 } else { 12 }), dice.below(sends_at_most));
        let strikes = if over_http { [1, 1, 1, 2, 8][dice.index(5)] } else { 1 };
        let (sim, until, dice) = (sim.clone(), until.clone(), RefCell::new(dice));
        let (steps, sends, strikes, struck) =
            (Cell::new(steps), Cell::new(sends), Cell::new(strikes), Cell::new(false));
        let of = of.clone();
        Rc::new_cyclic(|own| {
            let own = own.clone();
            Call { sim, until, origin, fate, calm, begun: now, of, own, items, dice, steps, sends, strikes, struck }
        })
    }

    /// It has returned.
    pub fn ended(&self) {
        let now = self.sim.threads.moment();
        // What comes after it in its operation has less time.
        if now - self.begun > LONG {
            self.took_long();
        }
        self.sim.world().returned.insert(self.origin.call, now);
        files::returned(&self.sim);
        let met = if self.struck.get() || self.fate == Fate::Unreachable { self.fate } else { Fate::Well };
        self.sim.cover(self.origin.operation, met);
    }

    pub fn end(&self) -> Moment {
        self.sim.threads.moment_of(self.until.deadline())
    }

    fn is_dead(&self) -> bool {
        self.sim.world().dead.get(self.origin.process).copied().unwrap_or(true)
    }

    /// Its component goes on: here it may trap.
    pub fn goes_on(&self) {
        // The host looks at its time now and then.
        let late = self.sim.files.is_some() && self.sim.threads.moment() > self.end() + LONG;
        if self.fate == Fate::Trap && !self.struck.get() {
            self.steps.set(self.steps.get() - 1);
            self.struck.set(self.steps.get() == 0);
        }
        if ((late || self.is_dead()) && !self.calm) || (self.fate == Fate::Trap && self.struck.get()) {
            std::panic::resume_unwind(Box::new(Trap));
        }
    }

    /// Before each step of it: here it may trap, and here its time is over.
    pub fn step(&self) -> Result<()> {
        self.goes_on();
        match self.sim.threads.moment() >= self.end() {
            true => Err(self.over()),
            false => Ok(()),
        }
    }

    /// Its time is over, by whose setting.
    pub fn over(&self) -> Error {
        self.took_long();
        Error::unavailable(format!("the time of the call is over ({})", self.until.ended_by()))
    }

    /// It may be that nothing got through for a part of it, or that it waited for a change of another one.
    pub fn took_long(&self) {
        let unreachable = self.sim.world().unreachable_until(self.origin.process, self.begun);
        let now = self.sim.threads.moment();
        let held_up = self.sim.world().held_up(self.origin.process, self.begun, now) > 0;
        let has_few =
            matches!(self.sim.plan.shape.backend, Backend::Mooncake(_)) && self.end() < self.begun + ROUND_TRIPS;
        if unreachable.is_some() || held_up || server::stood_still(&self.sim) > self.begun || has_few {
            self.is_disturbed();
        }
    }

    /// Something else than its own fate befell it.
    pub fn is_disturbed(&self) {
        self.sim.world().faulty.insert(self.origin.operation);
    }

    /// Whether what befalls the call befalls the bytes that are about to be sent.
    pub fn strikes(&self) -> bool {
        if matches!(self.fate, Fate::Well | Fate::Trap | Fate::Busy | Fate::Unreachable) {
            return false;
        }
        let left = self.sends.get();
        self.sends.set(left.saturating_sub(1));
        left == 0 && self.is_struck()
    }

    /// Whether it is struck once more.
    fn is_struck(&self) -> bool {
        let left = self.strikes.get();
        self.strikes.set(left.saturating_sub(1));
        self.struck.set(self.struck.get() || left > 0);
        left > 0
    }

    /// A connection that was parked and can be used.
    pub fn kept(&self, session: &str) -> Option<Near> {
        loop {
            let near = self.of.take_parked(session)?;
            if near.wire.is_silent(self.sim.threads.moment()) {
                near.wire.resume();
                near.begins(self.own.clone());
                return Some(near);
            }
        }
    }

    /// Keep a connection for the next call.
    pub fn keep(&self, session: &str, near: Near) {
        self.of.park(session, Box::new(near));
    }

    /// Wait until a new connection gets through.
    pub fn reach(&self) -> Result<()> {
        self.step()?;
        let there = self.dice.borrow_mut().within(40 * MICROSECOND, 2 * MILLISECOND);
        self.wait(there);
        self.step()?;
        let now = self.sim.threads.moment();
        let partition = self.sim.world().partitioned.get(&self.origin.process).copied().unwrap_or(0);
        if partition > now && !self.calm {
            self.wait(partition - now);
        }
        self.step()
    }

    /// A connection to the server, unless that refuses it.
    pub fn opened(&self, authority: &str) -> Result<Near> {
        let refuses = self.fate == Fate::Busy && self.is_struck();
        let gone = server::is_gone(&self.sim, authority);
        if gone || ((refuses || server::is_down(&self.sim, authority)) && !self.calm) {
            self.is_disturbed();
            self.until.met(authority, false);
            return Err(Error::unavailable("the server refuses the connection"));
        }
        let wire: Arc<Wire> = server::serve(&self.sim, self.origin.process, authority);
        Ok(Near::new(self.sim.clone(), wire, self.own.clone()))
    }

    /// Wait, not beyond the end.
    fn wait(&self, long: Moment) {
        let left = self.end().saturating_sub(self.sim.threads.moment());
        self.sim.threads.pause(long.min(left));
    }
}

impl files::Calls for Call {
    fn until(&self) -> &Until {
        &self.until
    }

    fn goes_on(&self) {
        Call::goes_on(self);
    }
}

/// Which connections are those of a server and a session.
fn kept_for(authority: &str, session: &str) -> String {
    format!("{authority} {session}")
}

impl Host for Call {
    fn item(&self, item: u32) -> Option<Rc<[u8]>> {
        self.items.get(item as usize).cloned()
    }

    fn connect(&self, authority: &str, session: Option<&str>) -> Result<(Box<dyn Stream>, bool)> {
        self.step()?;
        if let Some(near) = session.and_then(|session| self.kept(&kept_for(authority, session))) {
            return Ok((Box::new(near), true));
        }
        self.reach()?;
        Ok((Box::new(self.opened(authority)?), false))
    }

    fn exchange(&self, requests: Vec<Message>) -> Vec<Result<Reply>> {
        self.requests(&requests)
    }

    fn park(&self, authority: &str, session: Option<&str>, stream: Box<dyn Stream>) {
        if let Some(session) = session {
            self.of.park(&kept_for(authority, session), stream);
        }
    }

    fn ready(&self, streams: &[&dyn Stream], patience: Option<u64>) -> Result<Vec<usize>> {
        let streams = streams.iter().map(|stream| *stream as &dyn Any);
        let lines: Option<Vec<&Near>> = streams.map(|stream| stream.downcast_ref()).collect();
        net::ready(self, &lines.ok_or_else(|| Error::other("a stream of another host"))?, patience)
    }

    fn directory(&self, grant: &str) -> Result<Rc<dyn Granted>> {
        let granted = self.of.directory.clone().filter(|_| grant.is_empty()).zip(self.own.upgrade());
        let (directory, call) = granted.ok_or_else(|| Error::denied("there is no such directory"))?;
        Ok(Rc::new(files::Share { call, directory }))
    }

    fn open_records(&self, grant: &str, options: &RecordOptions) -> Result<Rc<dyn Any>> {
        let directory = self.of.directory.clone().filter(|_| grant.is_empty());
        let directory = directory.ok_or_else(|| Error::denied("there is no such directory"))?;
        let settings = SegmentSettings {
            segment_bytes: options.file_bytes.get(),
            max_bytes: options.max_bytes.get(),
            max_values: options.max_records.get(),
        };
        let store = self.of.segments.open(&directory, &settings, &self.of.limits, &self.until).map_err(files::told)?;
        if let Some(files) = &self.sim.files
            && files.is_opened_anew(self.origin.process, &store)
        {
            let now = self.sim.threads.moment();
            self.sim.world().oracle.forgets_damage(self.origin.process, now);
        }
        Ok(Rc::new(OpenStore { store, directory }))
    }

    fn records(&self, opened: &Rc<dyn Any>) -> Result<Rc<dyn Recorded>> {
        let opened = opened.clone().downcast::<OpenStore>().ok().zip(self.own.upgrade());
        let (opened, call) = opened.ok_or_else(|| Error::denied("it is no store of records"))?;
        Ok(Rc::new(files::Records { call, opened }))
    }

    fn secret(&self, name: &str) -> Result<Option<String>> {
        Ok(match (self.sim.plan.shape.backend, name) {
            (Backend::Memkv { .. }, "auth-key") => Some(memkv::KEY.to_owned()),
            (Backend::Redis(Redis { password: true, .. }), "password") => Some(redis::PASSWORD.to_owned()),
            (Backend::S3(_), "access-key-id") => Some(s3::ACCESS_KEY_ID.to_owned()),
            (Backend::S3(_), "secret-access-key") => Some(s3::SECRET_ACCESS_KEY.to_owned()),
            _ => None,
        })
    }

    fn fact(&self, _: &str) -> Option<String> {
        None
    }

    fn wall(&self) -> u64 {
        Clock::of(self.sim.threads.clone()).wall_ns()
    }

    fn monotonic(&self) -> u64 {
        // Each process has a clock of its own.
        self.sim.threads.moment() + (1 + self.origin.process as u64) * 1_000_000_007
    }

    fn remaining(&self) -> u64 {
        self.end().saturating_sub(self.sim.threads.moment())
    }

    fn sleep(&self, nanoseconds: u64) -> Result<()> {
        self.wait(nanoseconds);
        self.step()
    }

    fn random(&self) -> u64 {
        self.dice.borrow_mut().next()
    }

    fn log(&self, _: Level, message: &str) {
        self.sim.say(|| format!("  the backend says: {message}"));
    }

    fn begin(&self, items: &[u32], token: &[u8]) -> Vec<Vec<u8>> {
        server::changes_until(&self.sim, self.origin.call, self.end());
        self.until.change().map(|change| change.begin(items, token)).unwrap_or_default()
    }

    fn not_done(&self, items: &[u32]) {
        if let Some(change) = self.until.change() {
            change.not_done(items);
        }
    }
}
