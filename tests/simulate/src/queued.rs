//! What an engine does by its queue.

use kv_store_core::{Done, Error, ErrorKind, Fetched, Outcomes, Request};

use crate::actions::{deleted, existed, got, put_ended};
use crate::engine::Engine;
use crate::names::Key;
use crate::oracle::{Ledger, Operation};
use crate::plan::{Action, How, Step};
use crate::threads::{MILLISECOND, Moment, SECOND, Task};

/// A request that was submitted.
#[derive(Clone)]
pub struct Queued {
    op: Operation,
    keys: Vec<Key>,
    how: How,
    what: What,
}

impl Engine {
    /// Carry out a step that is about the queue.
    pub fn act_by_queue(&self, step: &Step) {
        // It is a queue of the first handle.
        let ledger = Ledger::Handle { process: self.process, handle: 0 };
        let hashes = |keys: &[Key]| keys.iter().map(|key| self.hash(*key).to_vec()).collect::<Vec<_>>();
        let room = |keys: &[Key]| -> Vec<(Vec<u8>, Vec<u8>)> {
            let longest = self.sim.plan.shape.lengths.longest();
            keys.iter().map(|key| (self.hash(*key).to_vec(), vec![0; longest])).collect()
        };
        let number = step.number;
        match &step.action {
            Action::QueuePut { keys, save, how } => {
                let of = save.and_then(|save| self.saves.get(save)).cloned();
                let ledger = save.map_or(ledger, |save| Ledger::Save { process: self.process, save });
                let values = keys.iter().map(|key| (self.hash(*key).to_vec(), self.value(*key, number))).collect();
                let what = What::Puts { saved: save.is_some() };
                self.submit(number, ledger, keys, *how, Asked::one(what, Request::put(values, of)));
            }
            Action::QueueGet(keys, how) => {
                self.submit(number, ledger, keys, *how, Asked::one(What::Reads, Request::get(room(keys))));
            }
            Action::QueueExists(keys) => {
                let request = Asked::one(What::Reads, Request::exists(hashes(keys)));
                self.submit(number, ledger, keys, How::default(), request);
            }
            Action::QueueDelete(keys) => {
                let request = Asked::one(What::Removes, Request::delete(hashes(keys)));
                self.submit(number, ledger, keys, How::default(), request);
            }
            Action::QueueMany(key, count) => {
                for nth in 0..*count {
                    let request = Asked { nth, what: What::Reads, request: Request::get(room(&[*key])) };
                    self.submit(number, ledger, &[*key], How::default(), request);
                }
            }
            Action::QueueCancel => {
                let cookie = self.queued.lock().keys().next().copied();
                if let Some(cookie) = cookie {
                    let _ = self.queue.cancel(cookie);
                }
            }
            _ => self.drain(),
        }
        self.sim.threads.set_task(Task { process: self.process, operation: 0 });
    }

    fn submit(&self, number: u32, ledger: Ledger, keys: &[Key], how: How, request: Asked) {
        let Asked { nth, what, request } = request;
        let op = self.begin(number, ledger, true);
        match what {
            What::Puts { saved } => {
                self.change(&op, keys, false, how.durable);
                let mut world = self.sim.world();
                if saved {
                    world.oracle.submits(&op);
                    world.keys_of.insert(number, keys.to_vec());
                }
            }
            What::Removes => self.change(&op, keys, true, false),
            What::Reads => {}
        }
        let cookie = u64::from(number) << 8 | u64::from(nth);
        self.queued.lock().insert(cookie, Queued { op, keys: keys.to_vec(), how, what });
        if self.queue.submit(cookie, request, &self.options(how)).is_err() {
            self.queued.lock().remove(&cookie);
            self.sim.world().oracle.told_put(&op);
        }
    }

    /// Take what is done.
    fn drain(&self) {
        let Ok(drained) = self.queue.drain(16) else { return };
        for done in drained {
            let Some(queued) = self.queued.lock().remove(&done.cookie) else {
                let (now, text) =
                    (self.now(), format!("the queue completes {}, which is none of its requests", done.cookie));
                self.sim.world().oracle.violated("queue", text, now);
                continue;
            };
            self.ended(&queued, done);
        }
    }

    fn ended(&self, queued: &Queued, done: Done) {
        let Queued { op, keys, how, what } = queued;
        let Done { request, outcome, .. } = done;
        self.tell(|world, now| match (request.outcomes(), what) {
            (Outcomes::Put(items), What::Puts { saved }) => {
                put_ended(world, op, keys, &Ok(items.clone()), *saved, *how, now);
            }
            (Outcomes::Delete(items), _) => deleted(world, op, keys, &Ok(items.clone()), now),
            (Outcomes::Exists(answers), _) => {
                keys.iter().zip(answers).for_each(|(key, answer)| existed(world, op, *key, answer, now));
            }
            (_, What::Puts { saved }) => {
                let failed = Err(outcome.err().unwrap_or_else(|| Error::new(ErrorKind::Other, "without outcomes")));
                put_ended(world, op, keys, &failed, *saved, *how, now);
            }
            _ => {}
        });
        let placed = |answer: &Result<Option<Fetched>, Error>| match answer {
            Ok(Some(Fetched::Placed(len))) => Some(Some(*len)),
            Ok(None) => Some(None),
            _ => None,
        };
        let Outcomes::Get(answers) = request.outcomes() else { return };
        let answers: Vec<Option<Option<usize>>> = answers.iter().map(placed).collect();
        let memory = request.into_memory();
        self.tell(|world, now| {
            for ((key, answer), (_, memory)) in keys.iter().zip(answers).zip(&memory) {
                if let Some(len) = answer {
                    got(world, op, *key, len.map(|len| memory.get(..len).unwrap_or_default()), now);
                }
            }
        });
    }

    /// Take all that was submitted: each request is completed once.
    pub fn drain_all(&self) {
        let begun = self.now();
        let longest: Moment = 60 * SECOND + 64 * self.sim.plan.shape.deadline;
        while !self.queued.lock().is_empty() {
            self.drain();
            self.sim.threads.pause(20 * MILLISECOND);
            if self.now() - begun > longest {
                let left: Vec<String> = self.queued.lock().keys().map(|cookie| (cookie >> 8).to_string()).collect();
                let (now, text) = (self.now(), format!("never completed: {}", left.join(", ")));
                self.sim.world().oracle.violated("queue", text, now);
                return;
            }
        }
    }
}

/// What a request is about, for the model.
#[derive(Clone, Copy)]
enum What {
    Puts { saved: bool },
    Removes,
    Reads,
}

/// A request that is to be submitted. `nth`: of its step.
struct Asked {
    nth: u8,
    what: What,
    request: Request,
}

impl Asked {
    fn one(what: What, request: Request) -> Self {
        Asked { nth: 0, what, request }
    }
}
