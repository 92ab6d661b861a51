//! The connections of a Mooncake Store: to its master, to where nodes tell what they speak, and to their memory.

use std::sync::Arc;

use memkv_server::os::Peer;
use mooncake_server::coro::{self, Answer, Ask, Item};
use mooncake_server::node::{DONE, Head, READ, REFUSED, WRITE};

use super::shown::keys_of;
use super::{Change, Mooncake, server};
use crate::shipped::net::{Far, Odd};
use crate::sim::Sim;
use crate::world::{Origin, Request};

/// What becomes of a request that the master refuses.
enum Refusal {
    None,
    /// Nothing, and this is answered. None: the connection is closed.
    Before(Option<Answer>),
    /// It is carried out.
    After(Option<Answer>),
    /// It is carried out, and answered by a value of another type.
    OtherType,
}

/// For people: of a request about many objects those that are there.
fn told(ask: &Ask, answer: &Answer, origin: Origin) -> String {
    let name = format!("{ask:?}");
    let name = name.split([' ', '{']).next().unwrap_or_default();
    let Answer::Items(items) = answer else { return format!("  mooncake answers {name} of {}", origin.operation) };
    let item = |item: &Item| match item {
        Item::Placed(replicas) | Item::Located(replicas, _) => replicas
            .iter()
            .map(|replica| format!("{}@{:#x}", replica.size, replica.address))
            .collect::<Vec<_>>()
            .join("+"),
        other => format!("{other:?}"),
    };
    let there =
        ask.keys().iter().zip(items).filter(|(_, item)| items.len() < 9 || **item != Item::Failed(coro::NOT_FOUND));
    let there: Vec<String> = there.map(|(key, of)| format!("{key} {}", item(of))).collect();
    format!("  mooncake answers {name} of {}: {}", origin.operation, there.join(", "))
}

/// A write that has not come whole.
struct Writing {
    address: u64,
    left: u64,
}

impl Mooncake {
    /// Serve a connection to the master until it is over.
    pub fn attend(&self, far: &Far) {
        // coro_rpc closes none that is idle, unless it is told to.
        let idle = server::idle(&mut self.state.lock().dice);
        server::converse(&self.sim, far, idle, |sim, came| {
            while let Some((sequence, ask)) =
                coro::take(came).unwrap_or_else(|wrong| panic!("the backend sends no coro_rpc: {wrong}"))
            {
                let (ask, invalid) = match ask {
                    Ok(ask) => (ask, None),
                    Err(invalid) => (Ask::Other, Some(invalid)),
                };
                assert!(
                    invalid.is_none() && ask != Ask::Other,
                    "the backend asks for what no master of this version has"
                );
                let Some(answer) = self.take(sim, far, &ask, sequence) else { return false };
                if far.write(&answer).is_err() {
                    return false;
                }
            }
            true
        });
    }

    /// The frame that answers a request. None: the connection is closed without one.
    fn take(&self, sim: &Arc<Sim>, far: &Far, ask: &Ask, sequence: u32) -> Option<Vec<u8>> {
        let origin = server::origin(sim);
        let calm = server::is_calm(sim, origin);
        server::turn(sim);
        let odd = far.wire.takes_odd().filter(|_| !calm);
        let refusal = if odd == Some(Odd::Refuses) { self.refusal(ask) } else { Refusal::None };
        if let Refusal::Before(answer) = refusal {
            return answer.map(|answer| answer.bytes(ask, sequence));
        }
        let answer = self.carry_out(sim, ask, calm)?;
        sim.say(|| told(ask, &answer, origin));
        server::settled(sim);
        server::turn(sim);
        match refusal {
            Refusal::After(answer) => answer.map(|answer| answer.bytes(ask, sequence)),
            Refusal::OtherType => {
                let mut bytes = answer.bytes(ask, sequence);
                bytes[16] ^= 1;
                Some(bytes)
            }
            _ => Some(answer.bytes(ask, sequence)),
        }
    }

    fn refusal(&self, ask: &Ask) -> Refusal {
        let dice = &mut self.state.lock().dice;
        let all = |code| Some(Answer::Items(vec![Item::Failed(code); ask.keys().len()]));
        let is_start = matches!(ask, Ask::Start { .. });
        match dice.below(8) {
            _ if ask.keys().is_empty() => Refusal::Before(None),
            0 => Refusal::Before(None),
            1 => Refusal::Before(all(coro::INTERNAL)),
            2 if is_start => Refusal::Before(all(coro::NO_ROOM)),
            3 => Refusal::Before(Some(Answer::Refused(5, "operation canceled"))),
            4 => Refusal::After(all(coro::INTERNAL)),
            5 => Refusal::OtherType,
            6 => Refusal::After(Some(Answer::Refused(5, "operation canceled"))),
            _ => Refusal::After(None),
        }
    }

    /// Tell what a node speaks, once.
    pub fn shake_hands(&self, far: &Far, number: usize) {
        server::converse(&self.sim, far, None, |sim, came| {
            let described = self.state.lock().nodes[number].described(came);
            let Some(mut described) = described else { return true };
            server::turn(sim);
            if far.wire.takes_odd().is_some() {
                // One of a Mooncake that speaks the former protocol.
                described = String::from_utf8_lossy(&described).replace("_version\":2", "_version\":1").into_bytes();
            }
            let _ = far.write(&described);
            false
        });
    }

    /// Have a node's memory read and written.
    pub fn transfer(&self, far: &Far, number: usize) {
        let mut writing: Option<Writing> = None;
        server::converse(&self.sim, far, None, |sim, came| {
            let origin = server::origin(sim);
            loop {
                if let Some(under_way) = &mut writing {
                    let count = came.len().min(under_way.left as usize);
                    if count == 0 {
                        return true;
                    }
                    server::turn(sim);
                    let bytes: Vec<u8> = came.drain(..count).collect();
                    self.write(sim, far, number, (under_way.address, bytes), origin);
                    under_way.address += count as u64;
                    under_way.left -= count as u64;
                    if under_way.left == 0 {
                        writing = None;
                        server::turn(sim);
                        if far.write(&DONE).is_err() {
                            return false;
                        }
                    }
                    continue;
                }
                let Some(head) = Head::take(came) else { return true };
                server::turn(sim);
                let refuses = far.wire.takes_odd().is_some();
                let has = self.state.lock().nodes[number].has(head.address, head.size);
                match head.operation {
                    WRITE if has && !refuses => writing = Some(Writing { address: head.address, left: head.size }),
                    READ if has && !refuses => {
                        let Some(bytes) = self.read(sim, far, number, &head, origin) else { return false };
                        if far.write(&[&DONE[..], &bytes].concat()).is_err() {
                            return false;
                        }
                    }
                    _ => {
                        let _ = far.write(&REFUSED);
                        return false;
                    }
                }
            }
        });
    }

    fn read(&self, sim: &Arc<Sim>, far: &Far, number: usize, head: &Head, origin: Origin) -> Option<Vec<u8>> {
        // It may be stopped in the middle.
        let stops = self.state.lock().dice.met(100);
        let cut = if stops { self.state.lock().dice.below(head.size) } else { 0 };
        let part = |address, size| match size {
            0 => Some(Vec::new()),
            size => self.state.lock().nodes[number].read(address, size),
        };
        let first = part(head.address, cut)?;
        if cut > 0 {
            server::turn(sim);
        }
        let rest = part(head.address + cut, head.size - cut)?;
        let mut bytes = [first, rest].concat();
        if far.wire.takes_flip(false) {
            let dice = &mut self.state.lock().dice;
            let at = dice.index(bytes.len());
            bytes[at] ^= 1 << dice.below(8);
        }
        sim.say(|| {
            format!("  node {number} reads {} bytes at {:#x} for {}", head.size, head.address, origin.operation)
        });
        Some(bytes)
    }

    /// Bytes of a write have come.
    fn write(&self, sim: &Arc<Sim>, far: &Far, number: usize, (address, mut bytes): (u64, Vec<u8>), origin: Origin) {
        let asked = server::request(sim, origin.call);
        if far.wire.takes_flip(true) && matches!(asked.as_deref(), Some(Request::Put { .. })) {
            let dice = &mut self.state.lock().dice;
            let at = dice.index(bytes.len());
            bytes[at] ^= 1 << dice.below(8);
        }
        let own: Vec<String> =
            asked.iter().flat_map(|asked| asked.places()).flat_map(|place| keys_of(&place)).collect();
        let len = bytes.len() as u64;
        let is_over = sim.world().returned.contains_key(&origin.call) && !server::waits(sim, origin.call);
        let too_late = is_over && self.has_own(address, len, &own, true);
        let changes = self.has_own(address, len, &own, false);
        if too_late || changes && !self.may_come(sim, origin, Change::Write(address)) {
            sim.say(|| format!("  a write of {} comes too late for anything to be promised", origin.operation));
            return;
        }
        sim.say(|| format!("  node {number} writes {} bytes at {address:#x} for {}", bytes.len(), origin.operation));
        let now = sim.threads.moment();
        let mut state = self.state.lock();
        if !state.nodes[number].lives(now) {
            return;
        }
        state.nodes[number].write(address, &bytes);
        state.written += 1;
        drop(state);
        let others = self.others(address, bytes.len() as u64, &own);
        self.are_overwritten(sim, &others);
        self.is_damaged_beside(sim, origin, address, bytes.len() as u64);
        server::settled(sim);
    }
}
