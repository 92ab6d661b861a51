//! A Redis Cluster: each key on the master that serves its slot, all masters asked at once, redirections followed.
//!
//! Only masters are asked: a replica lags, and what was answered `stored` must be readable. A master that hangs fails what lies
//! there; the rest of the batch is answered.
//!
//! Slots that move, and failovers: `tests/models/src/cluster.rs`, "an acknowledged change is not undone" and "reads do not go back".

mod slots;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use kv_store_sdk::payloads::Part;
use kv_store_sdk::{
    DeleteOutcome, Error, ErrorKind, GetOutcome, Next, Payload, Presence, PutOutcome, Request, Result, ask,
    get_outcomes, system,
};

use crate::change::{DELETED, Onward};
use crate::resp::{self, Keys, Reply};
use crate::server::{Login, Session};
use crate::{NewValue, Strings, temporary};
use slots::{Redirection, Slots, slot_of, with_slot};

/// How often a command is sent on, because its slot moved, before it has failed.
const ROUNDS: u32 = 6;
/// The wait before the third round, in nanoseconds; it doubles. Two masters may disagree about a slot for some 10 ms.
const FIRST_WAIT: u64 = 5_000_000;
/// How many names are tried for a value that is to be moved.
const TRIES: usize = 16;
/// How long nodes that fail at once are tried, in nanoseconds, before the map stays as it is.
const REFRESH_TIME: u64 = 1_000_000_000;

pub struct Cluster {
    login: Rc<Login>,
    /// `host:port` of the nodes in the URI.
    seeds: Vec<String>,
    state: RefCell<State>,
}

struct State {
    slots: Slots,
    /// A node redirected us, or failed: the map is read again before the next call.
    is_stale: bool,
    /// Answered last.
    alive: String,
}

/// A command about one key. It may be sent again, to another node.
pub struct Command<'a> {
    pub key: Vec<u8>,
    pub parts: Vec<Part<'a>>,
}

/// A command on its way to a node.
struct RoutedCommand {
    number: usize,
    authority: String,
    /// The node is about to take the slot over, and serves it to who says ASKING first.
    asking: bool,
}

/// What one node is asked in a round.
#[derive(Default)]
struct CommandGroup {
    authority: String,
    /// For each answer the command that it belongs to; none: the answer to ASKING.
    answers: Vec<Option<usize>>,
}

impl Cluster {
    /// The cluster that the node `authority` is part of. Every master must be granted: it is connected to.
    pub fn open(login: Rc<Login>, seeds: Vec<String>, authority: &str) -> Result<Self> {
        let slots = login.with_session(authority, |session| Slots::parse(&session.slots()?, authority))?;
        let asked = slots.masters().iter().map(|master| login.request(master, vec![], 0));
        let outcomes =
            ask(&asked.collect::<Result<Vec<_>>>()?, |_, _, conversation| Session::new(conversation).greeted());
        if let Some(error) = outcomes.into_iter().filter_map(Result::err).find(|error| error.kind == ErrorKind::Denied)
        {
            return Err(error);
        }
        let state = State { slots, is_stale: false, alive: authority.to_owned() };
        Ok(Cluster { login, seeds, state: RefCell::new(state) })
    }

    /// Send each command to the node that serves its key, and have `read` take its reply, of which the first line was read. Comes
    /// back with the outcome of each command, in their order.
    pub fn run<T>(&self, commands: &[Command], read: impl Fn(usize, Reply, &Session) -> Result<T>) -> Vec<Result<T>> {
        let mut outcomes: Vec<Option<Result<T>>> = commands.iter().map(|_| None).collect();
        let mut may_refresh = !self.state.borrow().is_stale;
        if !may_refresh {
            self.refresh(&[]);
        }
        let mut todo = self.place(0..commands.len(), commands, &mut outcomes);
        let mut wait = FIRST_WAIT;
        for round in 0..ROUNDS {
            let (again, failed) = self.round(todo, commands, &mut outcomes, &read);
            todo = again;
            // A failed master may have a successor, which those that answer know.
            if !failed.is_empty() && std::mem::take(&mut may_refresh) {
                let nodes: Vec<&str> = failed.iter().map(|todo| todo.authority.as_str()).collect();
                if self.refresh(&nodes) {
                    let placed = self.place(failed.iter().map(|todo| todo.number), commands, &mut outcomes);
                    todo.extend(placed.into_iter().filter(|todo| !nodes.contains(&todo.authority.as_str())));
                }
            }
            if todo.is_empty() || (round > 0 && system::sleep(wait).is_err()) {
                break;
            }
            wait <<= round;
        }
        let moving = || Error::unavailable("the cluster is moving this key from node to node");
        outcomes.into_iter().map(|outcome| outcome.unwrap_or_else(|| Err(moving()))).collect()
    }

    /// Which node each command goes to. One that no node serves has failed.
    fn place<T>(
        &self,
        numbers: impl Iterator<Item = usize>,
        commands: &[Command],
        outcomes: &mut [Option<Result<T>>],
    ) -> Vec<RoutedCommand> {
        let mut state = self.state.borrow_mut();
        let mut todo = Vec::new();
        for number in numbers {
            let Some(command) = commands.get(number) else { continue };
            match state.slots.owner(slot_of(&command.key)) {
                Some(authority) => todo.push(RoutedCommand { number, authority: authority.to_owned(), asking: false }),
                None => {
                    state.is_stale = true;
                    if let Some(outcome) = outcomes.get_mut(number) {
                        *outcome = Some(Err(Error::unavailable("no node of the cluster serves this key")));
                    }
                }
            }
        }
        todo
    }

    /// Ask the nodes once. Comes back with what was redirected, and with what has failed because its node did.
    fn round<T>(
        &self,
        todo: Vec<RoutedCommand>,
        commands: &[Command],
        outcomes: &mut [Option<Result<T>>],
        read: &impl Fn(usize, Reply, &Session) -> Result<T>,
    ) -> (Vec<RoutedCommand>, Vec<RoutedCommand>) {
        let (groups, requests) = match self.groups(&todo, commands) {
            Ok(groups) => groups,
            Err(error) => {
                for todo in todo {
                    if let Some(outcome) = outcomes.get_mut(todo.number) {
                        *outcome = Some(Err(error.clone()));
                    }
                }
                return Default::default();
            }
        };
        let (mut again, mut failed) = (Vec::new(), Vec::new());
        let ends = ask(&requests, |request, next, conversation| {
            let Next::Answer(answer) = next else { return Session::new(conversation).greeted() };
            let session = Session::new(conversation);
            let group = groups.get(request);
            let Some((group, answer)) = group.and_then(|group| Some((group, group.answers.get(answer)?))) else {
                return Err(Error::other("an answer to no question"));
            };
            self.state.borrow_mut().alive.clone_from(&group.authority);
            let reply = session.first_line()?;
            let Some(number) = *answer else { return Ok(()) };
            let outcome = match reply {
                Reply::Refused(refusal) => match self.redirected(&refusal, &group.authority) {
                    Some(Ok(Onward { authority, asking })) => {
                        again.push(RoutedCommand { number, authority, asking });
                        return Ok(());
                    }
                    Some(Err(error)) => Err(error),
                    None => Err(resp::explain(&refusal)),
                },
                reply => read(number, reply, &session),
            };
            let lost = outcome.as_ref().err().filter(|_| !conversation.is_in_step()).cloned();
            if let Some(slot) = outcomes.get_mut(number) {
                *slot = Some(outcome);
            }
            lost.map_or(Ok(()), Err)
        });
        for (group, end) in groups.into_iter().zip(ends) {
            let Err(error) = end else { continue };
            self.state.borrow_mut().is_stale = true;
            for number in group.answers.into_iter().flatten() {
                if again.iter().any(|todo: &RoutedCommand| todo.number == number) {
                    continue;
                }
                if let Some(outcome @ None) = outcomes.get_mut(number) {
                    *outcome = Some(Err(error.clone()));
                    failed.push(RoutedCommand { number, authority: group.authority.clone(), asking: false });
                }
            }
        }
        (again, failed)
    }

    /// The commands by node.
    fn groups<'a>(
        &self,
        todo: &[RoutedCommand],
        commands: &[Command<'a>],
    ) -> Result<(Vec<CommandGroup>, Vec<Request<'a>>)> {
        let mut by_node: BTreeMap<&str, (CommandGroup, Vec<Part>)> = BTreeMap::new();
        for RoutedCommand { number, authority, asking } in todo {
            let Some(command) = commands.get(*number) else { continue };
            let (group, parts) = by_node.entry(authority).or_default();
            if *asking {
                parts.push(Part::Bytes(resp::command(&["ASKING"])));
                group.answers.push(None);
            }
            parts.extend(command.parts.iter().cloned());
            group.answers.push(Some(*number));
        }
        let groups = by_node.into_iter().map(|(authority, (mut group, parts))| {
            group.authority = authority.to_owned();
            let request = self.login.request(&group.authority, parts, group.answers.len())?;
            Ok((group, request))
        });
        groups.collect::<Result<Vec<_>>>().map(|groups| groups.into_iter().unzip())
    }

    /// Read the map again, from the node that answered last or another one, but for those that are known to fail. False: no node
    /// told.
    fn refresh(&self, failed: &[&str]) -> bool {
        let begun = system::monotonic();
        let mut nodes = {
            let state = self.state.borrow();
            let known = state.slots.masters().iter().chain(&self.seeds);
            let mut nodes = vec![state.alive.clone()];
            known.for_each(|node| {
                if !nodes.contains(node) {
                    nodes.push(node.clone())
                }
            });
            nodes
        };
        nodes.retain(|node| !failed.contains(&node.as_str()));
        for node in nodes {
            let told = self.login.with_session(&node, |session| Slots::parse(&session.slots()?, &node));
            if let Ok(slots) = told {
                *self.state.borrow_mut() = State { slots, is_stale: false, alive: node };
                return true;
            }
            if system::monotonic().saturating_sub(begun) > REFRESH_TIME {
                break;
            }
        }
        false
    }
}

impl Strings for Cluster {
    fn exist(&self, keys: &Keys) -> Result<Vec<Presence>> {
        let commands = keys.iter().map(|key| Command { key: key.to_vec(), parts: vec![resp::one_key("EXISTS", key)] });
        // When in doubt: absent.
        let known = |outcome: Result<Presence>| outcome.unwrap_or(Presence::Absent);
        let outcomes = self.run(&commands.collect::<Vec<_>>(), |_, reply, session| session.presence(reply));
        answered(&outcomes)?;
        Ok(outcomes.into_iter().map(known).collect())
    }

    fn set(&self, values: &[NewValue], only_new: bool) -> Result<Vec<PutOutcome>> {
        let commands: Vec<Command> = values
            .iter()
            .map(|value| Command { key: value.key.clone(), parts: resp::set(value, only_new).into() })
            .collect();
        let outcomes = self.run(&commands, |_, reply, session| Ok(session.put_outcome(Ok(reply))));
        Ok(outcomes.into_iter().map(|outcome| outcome.unwrap_or_else(PutOutcome::Failed)).collect())
    }

    fn get(&self, keys: &Keys) -> Result<Vec<GetOutcome>> {
        Ok(get_outcomes(self.values(keys, |number| u32::try_from(number).ok())))
    }

    fn delete(&self, keys: &Keys) -> Result<Vec<DeleteOutcome>> {
        let commands = keys.iter().map(|key| Command { key: key.to_vec(), parts: vec![resp::one_key("DEL", key)] });
        let outcomes =
            self.run(&commands.collect::<Vec<_>>(), |_, reply, session| Ok(session.delete_outcome(Ok(reply))));
        Ok(outcomes.into_iter().map(|outcome| outcome.unwrap_or_else(DeleteOutcome::Failed)).collect())
    }

    fn expire(&self, keys: &Keys, seconds: u64) -> Result<Vec<bool>> {
        let commands = keys.iter().map(|key| Command { key: key.to_vec(), parts: vec![resp::expire(key, seconds)] });
        self.run(&commands.collect::<Vec<_>>(), |_, reply, session| session.renewed(reply)).into_iter().collect()
    }

    fn servers(&self) -> Vec<String> {
        self.state.borrow().slots.masters().to_vec()
    }

    fn serves(&self, key: &[u8]) -> Option<String> {
        if self.state.borrow().is_stale {
            self.refresh(&[]);
        }
        let mut state = self.state.borrow_mut();
        let owner = state.slots.owner(slot_of(key)).map(str::to_owned);
        state.is_stale |= owner.is_none();
        owner
    }

    fn redirected(&self, refusal: &str, asked: &str) -> Option<Result<Onward>> {
        let mut state = self.state.borrow_mut();
        if refusal.starts_with("TRYAGAIN") {
            return Some(Ok(Onward { authority: asked.to_owned(), asking: false }));
        }
        state.is_stale |= refusal.starts_with("CLUSTERDOWN") || refusal.starts_with("READONLY");
        Some(Redirection::parse(refusal, asked)?.map(|redirection| match redirection {
            Redirection::Moved { slot, authority } => {
                state.is_stale = true;
                state.slots.moved(slot, &authority);
                Onward { authority, asking: false }
            }
            Redirection::Ask { authority } => Onward { authority, asking: true },
        }))
    }

    fn learn(&self, failed: &[String]) -> bool {
        self.state.borrow_mut().is_stale = true;
        self.refresh(&failed.iter().map(String::as_str).collect::<Vec<_>>())
    }

    fn beside(&self, prefix: &str, key: &[u8]) -> Option<Vec<u8>> {
        let slot = slot_of(key);
        // A name that is taken for a hash tag has another slot; another name has not.
        (0..TRIES).map(|_| with_slot(temporary(prefix), slot)).find(|name| slot_of(name) == slot)
    }

    fn is_deleted(&self, key: Vec<u8>) -> Result<bool> {
        let command = Command { parts: vec![resp::first_of(&key)], key };
        let first = self.run(&[command], |_, reply, session| match reply {
            Reply::Bulk(len) => session.small_bytes(len).map(Some),
            Reply::Nothing => Ok(None),
            other => Err(session.unexpected(&other, "LINDEX")),
        });
        let first = first.into_iter().next().unwrap_or(Ok(None))?;
        Ok(first.is_some_and(|first| first == DELETED.as_bytes()))
    }

    fn get_one(&self, key: Vec<u8>) -> Result<Option<Payload>> {
        self.values(&[key].into_iter().collect(), |_| None).pop().unwrap_or(Ok(None))
    }
}

impl Cluster {
    /// The values of keys; `item`: where the value of each belongs.
    fn values(&self, keys: &Keys, item: impl Fn(usize) -> Option<u32>) -> Vec<Result<Option<Payload>>> {
        let commands = keys.iter().map(|key| Command { key: key.to_vec(), parts: vec![resp::one_key("GET", key)] });
        self.run(&commands.collect::<Vec<_>>(), |number, reply, session| match reply {
            Reply::Nothing => Ok(None),
            Reply::Bulk(len) => match session.bulk(len, item(number)) {
                Err(error) if error.kind == ErrorKind::Exhausted => {
                    session.skip_bulk(len)?;
                    Err(error)
                }
                payload => payload.map(Some),
            },
            other => Err(session.unexpected(&other, "GET")),
        })
    }
}

/// The error of a batch of which nothing is known.
fn answered<T>(outcomes: &[Result<T>]) -> Result<()> {
    let errors = outcomes.iter().map_while(|outcome| outcome.as_ref().err());
    match (errors.clone().count() == outcomes.len(), errors.last()) {
        (true, Some(error)) => Err(error.clone()),
        _ => Ok(()),
    }
}
