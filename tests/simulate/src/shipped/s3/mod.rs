//! The S3 server of a history: the crate `s3-server` has what it does, and here is when. Each connection has a thread of its own, which may
//! stand still before a request is carried out and before it is answered. What it has acknowledged it keeps.
//!
//! A change that has a condition may come however late: it finds another ETag than the one it was made for. Of chunks, and of servers that
//! honour no conditions, nothing is promised of what comes after the end of its call (`docs/backends.md`), and so here nothing of it comes.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};

use kv_platform::sync::Mutex;
use memkv_server::os::Peer;
use s3_server::bucket::Bucket;
use s3_server::dates;
use s3_server::message::{self, Request, Response};
use s3_server::sign::Keys;
use sha2::{Digest, Sha256};

use super::calendar::Calendar;
use super::net::{Far, Odd};
use super::server::{self, Serves, Stage, Value};
use crate::names::Stored;
use crate::plan::{Conditions, S3 as Setup};
use crate::planted;
use crate::sim::Sim;
use crate::threads::{MILLISECOND, Moment};
use crate::world::Origin;
use chance::Dice;

pub use s3_server::sign::{ACCESS_KEY_ID, SECRET_ACCESS_KEY};

const BUCKET: &str = "bucket";
/// What is before each key.
const PREFIX: &str = "kv/";

/// What a URI says of it.
pub fn place(gateways: u8) -> String {
    let servers: Vec<String> = (1..=gateways).map(|number| format!("store:{number}")).collect();
    format!("{}/{BUCKET}/kv", servers.join(","))
}

pub struct S3 {
    sim: Weak<Sim>,
    /// Of the places.
    keys: Arc<Vec<String>>,
    setup: Setup,
    clock: Calendar,
    state: Arc<Mutex<State>>,
}

struct State {
    bucket: Bucket,
    keys: Keys,
    /// Changes without a condition that holds, by their calls, methods and keys.
    carried_out: BTreeSet<(u64, String, String)>,
    /// When others removed what lay under a key.
    removed: BTreeMap<String, Moment>,
    dice: Dice,
}

fn key_of(place: &[u8]) -> String {
    let Some((kind, rest)) = place.split_first() else { return String::new() };
    if *kind != b'm' {
        return format!("{PREFIX}c/{}", hex::encode(rest));
    }
    let tame = |byte: &u8| match byte {
        b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' => char::from(*byte).to_string(),
        other => format!("~{other:02x}"),
    };
    let name: String = rest.iter().map(tame).collect();
    // Names of the layout with records end in it.
    format!("{PREFIX}{}/{name}", if rest.ends_with(&[2]) { 'r' } else { 'm' })
}

/// Where the backend notes what it has found out of servers.
fn noted_at(gateways: u8) -> String {
    let names: Vec<String> = (1..=gateways).map(|number| format!("store:{number}")).collect();
    format!("{PREFIX}x/conditions-{}", hex::encode(&Sha256::digest(names.join(","))[..8]))
}

/// The first one of a history.
pub fn start(sim: &Arc<Sim>, setup: Setup, places: &[Stored], dice: &mut Dice) -> Arc<dyn Serves> {
    let keys = places.iter().map(|place| key_of(place)).collect();
    let clock = Calendar::drawn(dice);
    let mut bucket = Bucket::new(BUCKET);
    bucket.of_puts = setup.conditions != Conditions::Ignored;
    bucket.of_deletes = matches!(setup.conditions, Conditions::Honoured | Conditions::InTwoSteps);
    (bucket.keeps_sums, bucket.keeps_notes) = (setup.keeps_sums, setup.keeps_notes);
    bucket.missing = setup.missing;
    if Dice::of(sim.plan.seed, &[11]).met(700) {
        // It was found out long ago whether conditions hold.
        let holds = matches!(setup.conditions, Conditions::Honoured | Conditions::OfPuts);
        let (writes, deletes) = (holds, setup.conditions == Conditions::Honoured);
        bucket.has_noted(&noted_at(setup.gateways), (writes, deletes), clock.at(0));
    }
    let mut keys_of = Keys::new(SECRET_ACCESS_KEY);
    (keys_of.checks_hashes, keys_of.checks_sums) = (setup.checks_hashes, setup.checks_sums);
    let state =
        State { bucket, keys: keys_of, carried_out: BTreeSet::new(), removed: BTreeMap::new(), dice: dice.clone() };
    let state = Arc::new(Mutex::new(state));
    Arc::new(S3 { sim: Arc::downgrade(sim), keys: Arc::new(keys), setup, clock, state })
}

/// Whether it changes what is there.
fn is_change(request: &Request) -> bool {
    !matches!(request.method.as_str(), "GET" | "HEAD")
}

impl S3 {
    /// Serve a connection until it is over.
    fn attend(self: &Arc<Self>, far: &Far) {
        let idle = server::idle(&mut self.state.lock().dice);
        server::converse(&self.sim, far, idle, |sim, came| {
            while let Some(request) =
                message::take(came).unwrap_or_else(|wrong| panic!("the backend sends no HTTP: {wrong}"))
            {
                let to_head = request.method == "HEAD";
                let Some(answer) = self.take(sim, far, request) else { return false };
                // Now and then a server takes no more on a connection, and does not always say so.
                let ends = !server::is_calm(sim, server::origin(sim)) && self.state.lock().dice.met(5);
                if far.write(&answer.bytes(to_head)).is_err() || answer.closes || ends {
                    return false;
                }
            }
            true
        });
    }

    /// The answer to a request. None: the connection is closed without one.
    fn take(self: &Arc<Self>, sim: &Arc<Sim>, far: &Far, mut request: Request) -> Option<Response> {
        let origin = server::origin(sim);
        let calm = server::is_calm(sim, origin);
        server::turn(sim);
        if far.wire.takes_flip(true) && !request.body.is_empty() {
            let dice = &mut self.state.lock().dice;
            let at = dice.index(request.body.len());
            request.body[at] ^= 1 << dice.below(8);
        }
        let odd = far.wire.takes_odd().filter(|_| !calm);
        let how = if odd == Some(Odd::Refuses) { self.refusal(&request) } else { Refusal::None };
        let mut answer = match how {
            Refusal::Before(refused) => refused,
            Refusal::After(refused) => self.carry_out(sim, &request, origin).map(|_| refused)?,
            Refusal::None => self.carry_out(sim, &request, origin)?,
        };
        server::settled(sim);
        if odd == Some(Odd::Repeats) && is_change(&request) {
            self.repeat(sim, request.clone(), origin);
        }
        server::turn(sim);
        let dice = &mut self.state.lock().dice;
        if request.method == "GET" && far.wire.takes_flip(false) && answer.body.len() > 16 {
            let at = dice.index(answer.body.len() - 16);
            answer.body[at] ^= 1 << dice.below(8);
        }
        answer.closes |= !calm && dice.met(5);
        Some(answer)
    }

    /// One step, or two.
    fn carry_out(self: &Arc<Self>, sim: &Arc<Sim>, request: &Request, origin: Origin) -> Option<Response> {
        let now = self.clock.at(sim.threads.moment());
        let refused = self.state.lock().keys.refuses(request, now / 1_000_000);
        if let Some(refused) = refused {
            sim.say(|| format!("  s3 refuses {} {}: {}", request.method, request.path, refused.status));
            return Some(refused.with("date", dates::header(now / 1_000_000)));
        }
        let mut unconditional = None;
        if self.setup.conditions == Conditions::InTwoSteps && request.has_condition() && is_change(request) {
            let fails = self.state.lock().bucket.condition_fails(request);
            if fails.is_some() {
                return fails;
            }
            let long = self.state.lock().dice.within(5 * MILLISECOND, 20 * MILLISECOND);
            sim.threads.pause(long);
            let mut request = request.clone();
            request.headers.remove("if-match");
            request.headers.remove("if-none-match");
            unconditional = Some(request);
        }
        if !self.may_come(sim, request, origin) {
            sim.say(|| format!("  {} {} comes too late for anything to be promised", request.method, request.path));
            return None;
        }
        let request = unconditional.as_ref().unwrap_or(request);
        let now = self.clock.at(sim.threads.moment());
        let answer = self.state.lock().bucket.answer(request, now);
        sim.say(|| {
            let condition = request.header("if-match").or(request.header("if-none-match")).unwrap_or_default();
            let query = if request.raw_query.is_empty() { String::new() } else { format!("?{}", request.raw_query) };
            format!(
                "  s3 answers {} to {} {}{query} {condition} of {}",
                answer.status, request.method, request.path, origin.operation
            )
        });
        Some(answer)
    }

    /// Whether a change may still come, by what is promised of it.
    fn may_come(&self, sim: &Sim, request: &Request, origin: Origin) -> bool {
        if !is_change(request) {
            return true;
        }
        let key = request.key();
        // What others have removed has left nothing that a late change finds.
        let returned = sim.world().returned.get(&origin.call).copied();
        if returned.is_some_and(|at| self.state.lock().removed.get(&key).is_some_and(|removed| *removed >= at)) {
            return false;
        }
        // Whoever has found that conditions hold changes a manifest so that whatever comes late changes nothing.
        let all_fence = matches!(self.setup.conditions, Conditions::Honoured | Conditions::OfPuts)
            && sim.world().unfenced.is_empty();
        if all_fence && key.starts_with(&format!("{PREFIX}r/")) {
            return true;
        }
        let mut state = self.state.lock();
        let what = (origin.call, request.method.clone(), key);
        let is_first = !state.carried_out.contains(&what);
        let has_returned = returned.is_some();
        // The next change of a chunk waits by the calendar, which may have jumped.
        let is_waited_for = server::waits(sim, origin.call) && !sim.world().wall_jumps;
        let may = !has_returned || (is_first && is_waited_for);
        if may {
            state.carried_out.insert(what);
        }
        may || planted::is("store: an s3 server puts chunks that come late")
    }

    /// It comes once more.
    fn repeat(self: &Arc<Self>, sim: &Arc<Sim>, request: Request, origin: Origin) {
        let (own, long) = (self.clone(), self.state.lock().dice.within(0, 2 * sim.plan.shape.deadline));
        let sim_of = Arc::downgrade(sim);
        server::later(sim, origin, long, move |_| {
            if let Some(sim) = sim_of.upgrade() {
                own.carry_out(&sim, &request, origin);
            }
        });
    }

    fn now(&self) -> Moment {
        self.sim.upgrade().map_or(0, |sim| sim.threads.moment())
    }

    fn refusal(&self, request: &Request) -> Refusal {
        let dice = &mut self.state.lock().dice;
        let refused = |status, code: &str| Response::error(status, code, &request.path);
        match dice.below(8) {
            0 | 1 => Refusal::Before(refused(503, "SlowDown")),
            2 => Refusal::Before(Response { closes: true, ..refused(503, "ServiceUnavailable") }),
            3 => Refusal::Before(refused(500, "InternalError")),
            4 if request.has_condition() => Refusal::Before(refused(409, "ConditionalRequestConflict")),
            6 => Refusal::Before(refused(429, "TooManyRequests")),
            _ => Refusal::After(refused(500, "InternalError")),
        }
    }
}

/// What becomes of a request that a server refuses.
enum Refusal {
    None,
    /// Nothing.
    Before(Response),
    /// It is carried out.
    After(Response),
}

impl Serves for S3 {
    fn peek(&self) -> Vec<Option<Value>> {
        let state = self.state.lock();
        self.keys.iter().map(|key| state.bucket.objects.get(key)?.shown.clone()).collect()
    }

    fn stage(&self) -> Option<Stage> {
        Some((0, 0, self.state.lock().bucket.objects.times()))
    }

    fn admit(self: Arc<Self>, _: u64, far: Far) -> Option<Box<dyn FnOnce() + Send>> {
        Some(Box::new(move || self.attend(&far)))
    }

    /// A lifecycle rule removes what was put first.
    fn evict_one(&self, _: &mut Dice) {
        let State { bucket, removed, .. } = &mut *self.state.lock();
        let objects = &mut bucket.objects;
        let first = objects.iter().filter(|(key, _)| !key.contains("/x/")).min_by_key(|(_, object)| object.put);
        if let Some(key) = first.map(|(key, _)| key.clone()) {
            objects.remove(&key);
            removed.insert(key, self.now());
        }
    }

    fn evict_many(&self, per_mille: u64, dice: &mut Dice) {
        let count = self.state.lock().bucket.objects.len() as u64 * per_mille / 1000;
        (0..count).for_each(|_| self.evict_one(dice));
    }

    fn remove(&self, place: usize) {
        if let Some(key) = self.keys.get(place) {
            let mut state = self.state.lock();
            state.bucket.objects.remove(key);
            state.removed.insert(key.clone(), self.now());
        }
    }

    fn may_rot(&self) -> bool {
        true
    }

    fn spoil(&self, place: usize, dice: &mut Dice) -> bool {
        let key = self.keys.get(place);
        key.is_some_and(|key| self.state.lock().bucket.spoil(key, |bytes| dice.spoilt(bytes)))
    }

    /// What it has acknowledged is there.
    fn successor(&self, _: &Sim, _: Moment, _: &mut Dice) -> Arc<dyn Serves> {
        let S3 { sim, keys, setup, clock, state } = self;
        Arc::new(S3 { sim: sim.clone(), keys: keys.clone(), setup: *setup, clock: *clock, state: state.clone() })
    }
}
