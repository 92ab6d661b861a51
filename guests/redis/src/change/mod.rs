//! Changes that the server refuses when they come late: manifests, removals, replacements, and chunks whose key is not their content's hash.
//!
//! A change carries its end, on the clock of the server that it is sent to, and is refused from then on, whoever sent it and whatever
//! became of its connection. It is sent once: what may have been sent is never sent again on another connection, for the server may
//! carry out both. A refusal is certain, so a change that was sent to the wrong node of a cluster goes on to the other one.
//!
//! The connection on which a change is made is this instance's own, one for each server, and what is known of the server's clock came on
//! it. One whose clock is not known yet is greeted first; the greeting ends in TIME.
//!
//! Models: `tests/models/src/redis.rs` and `cluster.rs`, "an acknowledged change is not undone" and "a refused change is not there". Why
//! it is so: `docs/decisions/late-changes.md`.

mod clock;
mod script;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use kv_store_sdk::payloads::Part;
use kv_store_sdk::{Error, ErrorKind, Next, Request, Result, ask, system};

use crate::resp::{self, Reply};
use crate::server::{Login, Session};
use crate::{NewValue, Strings};
use clock::Clock;
use script::Call;

pub use script::DELETED;

/// Longer values are put under a name of their own and then renamed: a script copies its arguments twice.
/// Bytes; measured with Redis 7.0, where both take the same time between 4 and 8 KiB.
const MAX_IN_SCRIPT: u64 = 4 << 10;
/// How often a change that was not carried out is sent on, before it has failed: on a new connection, with the script's text, and where a
/// slot moved.
const ROUNDS: u32 = 9;
/// The wait before a change is sent on again because its slot moved, in nanoseconds; it doubles.
const FIRST_WAIT: u64 = 5_000_000;
/// Servers whose clocks are remembered.
const MAX_CLOCKS: usize = 4096;
/// How much longer a value lies under its own name than its change may take, in milliseconds.
const LONGER: u64 = 1_000;

/// A change of one key.
pub enum Change<'a> {
    /// `only_new`: what exists is left as it is.
    Set {
        value: NewValue<'a>,
        only_new: bool,
        is_manifest: bool,
    },
    Delete {
        key: Vec<u8>,
        is_manifest: bool,
    },
}

impl<'a> Change<'a> {
    fn key(&self) -> &[u8] {
        match self {
            Change::Set { value, .. } => &value.key,
            Change::Delete { key, .. } => key,
        }
    }

    /// The value, if it is better renamed than handed to a script.
    fn renamed(&self) -> Option<&NewValue<'a>> {
        match self {
            Change::Set { value, .. } if value.len > MAX_IN_SCRIPT => Some(value),
            _ => None,
        }
    }
}

/// What became of a change that did not fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Done {
    Changed,
    Existed,
}

/// A change that failed.
#[derive(Clone, Debug)]
pub struct Failure {
    pub error: Error,
    /// It was not carried out, and will not be. Else nobody knows.
    pub not_done: bool,
}

type Outcome = std::result::Result<Done, Failure>;

fn not_done(error: Error) -> Outcome {
    Err(Failure { error, not_done: true })
}

/// Where a change goes next that a node has refused.
pub struct Onward {
    pub authority: String,
    /// The node is about to take the slot over, and serves it to who says ASKING first.
    pub asking: bool,
}

/// Changes, and what is known of the servers' clocks.
pub struct Fence {
    login: Rc<Login>,
    /// What the names of values that are renamed begin with.
    prefix: String,
    clocks: RefCell<HashMap<String, Clock>>,
}

/// A change on its way to a node.
#[derive(Clone)]
struct RoutedChange {
    number: usize,
    authority: String,
    asking: bool,
    /// The server does not have the script.
    whole: bool,
    /// The value goes with the script, whatever its length: while a slot moves, only commands of one key are carried out.
    in_script: bool,
    /// The name under which the value was sent.
    sent_as: Option<Vec<u8>>,
    /// The name under which the value lies there already.
    lies_as: Option<Vec<u8>>,
}

/// An answer that a node owes.
#[derive(Clone, Copy)]
enum Due {
    Asking,
    /// Of the value of the todo of this number, under its own name.
    Value(usize),
    /// Of its script.
    Script(usize),
    Time,
}

/// What one node is asked in a round.
struct ChangeGroup {
    authority: String,
    todo: Vec<RoutedChange>,
    due: Vec<Due>,
    /// Only what time it is.
    asks_time: bool,
    /// The values of these were refused.
    refused: HashMap<usize, Error>,
    /// Which of `todo` were answered.
    answered: Vec<bool>,
}

/// Where the changes of a call stand.
struct Standing {
    outcomes: Vec<Option<Outcome>>,
    again: Vec<RoutedChange>,
    /// Their node could not be reached, and may have a successor.
    unreached: Vec<(RoutedChange, Error)>,
    /// One was sent on because its slot moved.
    moves: bool,
    items: bool,
}

impl Fence {
    /// `prefix`: what the names of values that are renamed begin with.
    pub fn new(login: Rc<Login>, prefix: String) -> Self {
        Fence { login, prefix, clocks: RefCell::default() }
    }

    /// Carry changes out, each on the node that serves its key. Comes back with the outcome of each, in their order. `items`: change n is
    /// item n of the running call, and the host is told what becomes of it.
    pub fn carry_out(&self, strings: &dyn Strings, changes: &[Change], items: bool) -> Vec<Outcome> {
        let outcomes = changes.iter().map(|_| None).collect();
        let mut standing = Standing { outcomes, again: Vec::new(), unreached: Vec::new(), moves: false, items };
        let mut todo = place(strings, changes, 0..changes.len(), &mut standing);
        let (mut wait, mut may_ask_others) = (FIRST_WAIT, true);
        for _ in 0..ROUNDS {
            self.round(strings, changes, todo, &mut standing);
            todo = std::mem::take(&mut standing.again);
            let unreached = std::mem::take(&mut standing.unreached);
            if !unreached.is_empty() {
                let nodes: Vec<String> = unreached.iter().map(|(todo, _)| todo.authority.clone()).collect();
                let learned = std::mem::take(&mut may_ask_others) && strings.learn(&nodes);
                for (former, error) in unreached {
                    let next = if learned {
                        strings.serves(changes.get(former.number).map_or(&[], Change::key))
                    } else {
                        None
                    };
                    match next {
                        Some(authority) if !nodes.contains(&authority) => {
                            todo.push(RoutedChange { authority, ..former })
                        }
                        _ => standing.end(former.number, not_done(error)),
                    }
                }
            }
            if todo.is_empty() {
                break;
            }
            if std::mem::take(&mut standing.moves) {
                if system::sleep(wait).is_err() {
                    break;
                }
                wait <<= 1;
            }
        }
        let moving = || not_done(Error::busy("the cluster is moving this key from node to node"));
        let outcomes: Vec<Outcome> =
            standing.outcomes.into_iter().map(|outcome| outcome.unwrap_or_else(moving)).collect();
        let is_not_done = |outcome: &Outcome| matches!(outcome, Err(failure) if failure.not_done);
        let numbers = (0..).zip(&outcomes).filter(|(_, outcome)| is_not_done(outcome));
        let not_done: Vec<u32> = numbers.map(|(number, _)| number).collect();
        if items && !not_done.is_empty() {
            kv_store_sdk::changes::not_done(&not_done);
        }
        outcomes
    }

    /// Ask the nodes once.
    fn round(&self, strings: &dyn Strings, changes: &[Change], todo: Vec<RoutedChange>, standing: &mut Standing) {
        let mut by_node: BTreeMap<String, Vec<RoutedChange>> = BTreeMap::new();
        for todo in todo {
            by_node.entry(todo.authority.clone()).or_default().push(todo);
        }
        let mut groups = Vec::with_capacity(by_node.len());
        let mut requests = Vec::with_capacity(by_node.len());
        for (authority, todo) in by_node {
            let mut group = ChangeGroup {
                authority,
                answered: vec![false; todo.len()],
                todo,
                due: Vec::new(),
                asks_time: false,
                refused: HashMap::new(),
            };
            match self.request(strings, changes, &mut group) {
                Ok(request) => {
                    requests.push(request);
                    groups.push(group);
                }
                Err(error) => group.todo.iter().for_each(|todo| standing.end(todo.number, not_done(error.clone()))),
            }
        }
        let sent = groups.iter().filter(|group| !group.asks_time).flat_map(|group| &group.todo);
        let sent: Vec<u32> = sent.filter_map(|todo| u32::try_from(todo.number).ok()).collect();
        if standing.items && !sent.is_empty() {
            // A former change of these keys needs nothing: the host has waited for its end.
            kv_store_sdk::changes::begin(&sent, &[]);
        }
        let ends = ask(&requests, |request, next, conversation| {
            let session = Session::new(conversation);
            let Some((group, asked)) = groups.get_mut(request).zip(requests.get(request)) else {
                return Err(Error::other("an answer to no question"));
            };
            let authority = group.authority.clone();
            match next {
                Next::Greeting(number) if number + 1 == asked.greeting_answers => {
                    self.set_clock(&authority, session.time()?)
                }
                Next::Greeting(_) => session.greeted()?,
                Next::Answer(number) => match group.due.get(number).copied() {
                    Some(Due::Time) => self.set_clock(&authority, session.time()?),
                    Some(due) => self.answer(strings, group, due, &session, standing)?,
                    None => return Err(Error::other("an answer to no question")),
                },
            }
            Ok(())
        });
        for ((group, request), end) in groups.into_iter().zip(&requests).zip(ends) {
            for (todo, answered) in group.todo.into_iter().zip(group.answered) {
                match &end {
                    _ if answered => {}
                    // A new connection, which was greeted, or a clock that was asked for: now it can be asked.
                    Ok(()) => standing.again.push(todo),
                    Err(error) if request.was_asked() && !group.asks_time => {
                        standing.end(todo.number, Err(Failure { error: error.clone(), not_done: false }));
                    }
                    Err(error) if error.kind == ErrorKind::Unavailable => {
                        standing.unreached.push((todo, error.clone()))
                    }
                    Err(error) => standing.end(todo.number, not_done(error.clone())),
                }
            }
        }
    }

    /// What a node is asked: its changes, or if nothing is known of its clock, for that. A change that has no time left is not sent.
    fn request<'a>(
        &self,
        strings: &dyn Strings,
        changes: &[Change<'a>],
        group: &mut ChangeGroup,
    ) -> Result<Request<'a>> {
        let now = system::monotonic();
        let clock = self.clocks.borrow().get(&group.authority).copied().filter(|clock| !clock.is_old(now));
        let Some(clock) = clock else {
            group.asks_time = true;
            group.due.push(Due::Time);
            return self.login.change(&group.authority, vec![Part::Bytes(resp::command(&["TIME"]))], 1);
        };
        let remaining = system::remaining();
        let late = || Error::unavailable("no time is left for a change that the server would refuse when late");
        let end = clock.end(now, remaining).ok_or_else(late)?;
        let mut parts = Vec::new();
        for (number, todo) in group.todo.iter_mut().enumerate() {
            let Some(change) = changes.get(todo.number) else { continue };
            if todo.asking {
                parts.push(Part::Bytes(resp::command(&["ASKING"])));
                group.due.push(Due::Asking);
            }
            let renamed = change.renamed().filter(|_| !todo.in_script);
            todo.sent_as = None;
            if let (Some(value), None) = (renamed, &todo.lies_as) {
                todo.sent_as = strings.beside(&self.prefix, &value.key);
                if let Some(name) = &todo.sent_as {
                    parts.extend(resp::set_for(name, value, remaining / 1_000_000 + LONGER));
                    group.due.push(Due::Value(number));
                }
            }
            let name = todo.lies_as.as_deref().or(todo.sent_as.as_deref());
            parts.extend(call(change, name, end).parts(todo.whole));
            group.due.push(Due::Script(number));
        }
        self.login.change(&group.authority, parts, group.due.len())
    }

    /// Read an answer.
    fn answer(
        &self,
        strings: &dyn Strings,
        group: &mut ChangeGroup,
        due: Due,
        session: &Session,
        standing: &mut Standing,
    ) -> Result<()> {
        let reply = session.first_line()?;
        let number = match (due, reply) {
            (Due::Value(number), Reply::Refused(refusal)) => {
                group.refused.insert(number, resp::explain(&refusal));
                return Ok(());
            }
            (Due::Value(number), _) => {
                if let Some(todo) = group.todo.get_mut(number) {
                    todo.lies_as = todo.sent_as.take();
                }
                return Ok(());
            }
            (Due::Asking | Due::Time, _) => return Ok(()),
            (Due::Script(number), reply) => {
                self.judge(strings, group, number, reply, session, standing)?;
                number
            }
        };
        if let Some(answered) = group.answered.get_mut(number) {
            *answered = true;
        }
        Ok(())
    }

    /// What the answer of a script says of its change.
    fn judge(
        &self,
        strings: &dyn Strings,
        group: &mut ChangeGroup,
        number: usize,
        reply: Reply,
        session: &Session,
        standing: &mut Standing,
    ) -> Result<()> {
        let Some(todo) = group.todo.get(number) else { return Ok(()) };
        let Reply::Refused(refusal) = reply else {
            let (code, time) = session.changed(&reply)?;
            self.set_clock(&group.authority, time);
            let outcome = match code {
                script::DONE => Ok(Done::Changed),
                script::EXISTED => Ok(Done::Existed),
                script::LATE => not_done(Error::unavailable("the server refused a change that came too late")),
                script::NO_VALUE => not_done(group.refused.remove(&number).unwrap_or_else(|| {
                    Error::unavailable("the server removed a value before it was given its name: is its memory full?")
                })),
                _ => return Err(session.unexpected(&Reply::Integer(code), "a script")),
            };
            standing.end(todo.number, outcome);
            return Ok(());
        };
        if refusal.starts_with("NOSCRIPT") && !todo.whole {
            standing.again.push(RoutedChange { whole: true, ..todo.clone() });
            return Ok(());
        }
        match strings.redirected(&refusal, &group.authority) {
            Some(Ok(Onward { authority, asking })) => {
                standing.moves = true;
                standing.again.push(RoutedChange { authority, asking, in_script: true, lies_as: None, ..todo.clone() });
            }
            Some(Err(error)) => standing.end(todo.number, not_done(error)),
            None => {
                let error = resp::explain(&refusal);
                // A plain error may come from the midst of a script.
                let not_done = !refusal.starts_with("ERR");
                standing.end(todo.number, Err(Failure { error, not_done }));
            }
        }
        Ok(())
    }

    fn set_clock(&self, authority: &str, told: u64) {
        let mut clocks = self.clocks.borrow_mut();
        if clocks.len() >= MAX_CLOCKS && !clocks.contains_key(authority) {
            clocks.clear();
        }
        let clock = Clock { told, arrived: system::monotonic() };
        match clocks.get_mut(authority) {
            Some(known) => *known = clock,
            None => drop(clocks.insert(authority.to_owned(), clock)),
        }
    }
}

impl Standing {
    fn end(&mut self, number: usize, outcome: Outcome) {
        if let Some(slot) = self.outcomes.get_mut(number) {
            *slot = Some(outcome);
        }
    }
}

/// Which node each change goes to. One that no node serves has failed.
fn place(
    strings: &dyn Strings,
    changes: &[Change],
    numbers: impl Iterator<Item = usize>,
    standing: &mut Standing,
) -> Vec<RoutedChange> {
    let mut todo = Vec::new();
    for number in numbers {
        let Some(change) = changes.get(number) else { continue };
        match strings.serves(change.key()) {
            Some(authority) => {
                let asked = RoutedChange {
                    number,
                    authority,
                    asking: false,
                    whole: false,
                    in_script: false,
                    sent_as: None,
                    lies_as: None,
                };
                todo.push(asked);
            }
            None => standing.end(number, not_done(Error::unavailable("no node of the cluster serves this key"))),
        }
    }
    todo
}

/// The script of a change. `name`: where its value lies already.
fn call<'k, 'a>(change: &'k Change<'a>, name: Option<&'k [u8]>, end: u64) -> Call<'k, 'a> {
    let flag = |is_so: bool, word: &str| if is_so { word.as_bytes().to_vec() } else { Vec::new() };
    match change {
        Change::Delete { key, is_manifest } => {
            Call { script: &script::DELETE, keys: vec![key], end, value: None, rest: vec![flag(*is_manifest, "M")] }
        }
        Change::Set { value, only_new, is_manifest } => {
            let seconds = value.seconds.map(|seconds| itoa::Buffer::new().format(seconds).into());
            // Of no other generation.
            let nonce = if *is_manifest { system::random().to_le_bytes().to_vec() } else { Vec::new() };
            let rest = vec![seconds.unwrap_or_default(), flag(*only_new, "NX"), nonce];
            match name {
                Some(name) => Call { script: &script::MOVE, keys: vec![&value.key, name], end, value: None, rest },
                None => Call { script: &script::SET, keys: vec![&value.key], end, value: Some(value), rest },
            }
        }
    }
}
