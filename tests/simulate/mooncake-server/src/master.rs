//! What a Mooncake master does (`mooncake-store/src/master_service.cpp` of 0.3.13), one object at a time: which objects there are, where they
//! lie, and what goes when memory is short.

use std::collections::BTreeMap;

use chance::Dice;

use crate::coro::{
    ALREADY_EXISTS, Ask, Code, Described, HAS_LEASE, ILLEGAL_CLIENT, INVALID, INVALID_WRITE, Id, Item, NO_ROOM,
    NOT_FOUND, NOT_READY,
};
use crate::{MILLISECOND, Moment, SECOND};

/// `put_start_discard_timeout_sec`: after so long another may begin what a client has begun and not ended.
const DISCARDED: Moment = 30 * SECOND;
/// `put_start_release_timeout_sec`: and after so long the memory of that is used again.
const RELEASED: Moment = 600 * SECOND;
/// How often the thread that evicts looks.
const EVICTS_EVERY: Moment = 10 * MILLISECOND;
/// Of a thousand bytes, so many may be in use before objects are evicted.
const HIGH_WATERMARK: u64 = 900;
/// Of twenty objects one goes at least.
const EVICTED_OF: usize = 20;

#[derive(Clone, Debug)]
pub struct Replica {
    pub id: u64,
    pub segment: u64,
    pub address: u64,
}

/// An object, or what is to be one.
#[derive(Clone, Debug)]
pub struct Object {
    pub client: Id,
    pub size: u64,
    pub replicas: Vec<Replica>,
    pub complete: bool,
    pub started: Moment,
    leased_until: Moment,
    pinned: bool,
}

impl Object {
    /// Whether it has any of these bytes.
    pub fn lies_in(&self, address: u64, len: u64) -> bool {
        self.replicas.iter().any(|replica| replica.address < address + len && address < replica.address + self.size)
    }
}

/// The memory of a node, as the master has it.
pub struct Segment {
    pub number: u64,
    pub node: usize,
    pub endpoint: String,
    pub base: u64,
    pub size: u64,
    /// When it is used from.
    pub mounts: Moment,
    /// Its node is gone: when the master forgets it.
    pub unmounts: Option<Moment>,
    /// What is free: from where, and how much.
    free: Vec<(u64, u64)>,
}

impl Segment {
    pub fn new(number: u64, node: usize, endpoint: &str, base: u64, size: u64, mounts: Moment) -> Self {
        let free = vec![(base, size)];
        Segment { number, node, endpoint: endpoint.to_owned(), base, size, mounts, unmounts: None, free }
    }

    fn is_used(&self, now: Moment) -> bool {
        self.mounts <= now && self.unmounts.is_none_or(|at| now < at)
    }

    /// The first place that is long enough: what was freed last is often what is used next.
    fn allocate(&mut self, size: u64) -> Option<u64> {
        let (place, (at, free)) = self.free.iter().copied().enumerate().find(|(_, (_, free))| *free >= size)?;
        self.free[place] = (at + size, free - size);
        self.free.retain(|(_, free)| *free > 0);
        Some(at)
    }

    fn release(&mut self, address: u64, size: u64) {
        self.free.push((address, size));
        self.free.sort_unstable();
        let mut joined: Vec<(u64, u64)> = Vec::new();
        for (at, size) in self.free.drain(..) {
            match joined.last_mut() {
                Some((begin, len)) if *begin + *len == at => *len += size,
                _ => joined.push((at, size)),
            }
        }
        self.free = joined;
    }

    /// Its node has lent so much more.
    fn grow(&mut self, size: u64) {
        let more = size.saturating_sub(self.size);
        if more > 0 {
            self.release(self.base + self.size, more);
            self.size = size;
        }
    }
}

pub struct Master {
    pub objects: BTreeMap<String, Object>,
    pub segments: Vec<Segment>,
    /// Counts what may be read, or may be no more.
    pub changed: u64,
    lease: Moment,
    /// Memory of what was begun and not ended, and when it is free.
    discarded: Vec<(Moment, Vec<Replica>, u64)>,
    /// Objects are to be evicted then.
    evicts_at: Option<Moment>,
    numbered: u64,
}

impl Master {
    pub fn new(lease: Moment) -> Self {
        let (objects, segments, discarded) = Default::default();
        Master { objects, segments, changed: 0, lease, discarded, evicts_at: None, numbered: 0 }
    }

    /// One object of a request.
    pub fn carry_out(&mut self, ask: &Ask, at: usize, now: Moment, dice: &mut Dice) -> Item {
        let done = |outcome: Result<(), Code>| outcome.map_or_else(Item::Failed, |()| Item::Done);
        let key = ask.keys()[at].as_str();
        match ask {
            Ask::Start { client, lens, replicas, pinned, .. } => {
                let placed = self.start((*client, key), lens[at], (*replicas, *pinned), now, dice);
                placed.map_or_else(Item::Failed, Item::Placed)
            }
            Ask::End { client, .. } => done(self.end(*client, key)),
            Ask::Revoke { client, .. } => done(self.revoke(*client, key)),
            Ask::Locate { .. } => {
                self.locate(key, now).map_or_else(Item::Failed, |(replicas, lease)| Item::Located(replicas, lease))
            }
            Ask::Exist { .. } => Item::Exists(self.exists(key, now)),
            Ask::Remove { force, .. } => done(self.remove(key, *force, now)),
            Ask::Ready | Ask::Other => unreachable!("it is about no object"),
        }
    }

    fn described(&self, object: &Object) -> Vec<Described> {
        let describe = |replica: &Replica| {
            let segment = self.segments.iter().find(|segment| segment.number == replica.segment)?;
            let Replica { id, address, .. } = *replica;
            Some(Described {
                id,
                size: object.size,
                address,
                endpoint: segment.endpoint.clone(),
                complete: object.complete,
            })
        };
        object.replicas.iter().filter_map(describe).collect()
    }

    pub fn release(&mut self, replicas: &[Replica], size: u64) {
        for replica in replicas {
            if let Some(segment) = self.segments.iter_mut().find(|segment| segment.number == replica.segment) {
                segment.release(replica.address, size);
            }
        }
    }

    fn erase(&mut self, key: &str) {
        self.changed += 1;
        if let Some(object) = self.objects.remove(key) {
            self.release(&object.replicas, object.size);
        }
    }

    pub fn start(
        &mut self,
        (client, key): (Id, &str),
        size: u64,
        (replicas, pinned): (u64, bool),
        now: Moment,
        dice: &mut Dice,
    ) -> Result<Vec<Described>, Code> {
        if replicas == 0 || key.is_empty() || size == 0 {
            return Err(INVALID);
        }
        if let Some(object) = self.objects.get(key) {
            if object.complete || now <= object.started + DISCARDED {
                return Err(ALREADY_EXISTS);
            }
            let object = self.objects.remove(key).expect("it was there");
            self.discarded.push((object.started + RELEASED, object.replicas, object.size));
        }
        let mut places: Vec<usize> = (0..self.segments.len()).filter(|at| self.segments[*at].is_used(now)).collect();
        let mut taken = Vec::new();
        while !places.is_empty() && (taken.len() as u64) < replicas {
            let place = places.swap_remove(dice.index(places.len()));
            let segment = &mut self.segments[place];
            if let Some(address) = segment.allocate(size) {
                self.numbered += 1;
                taken.push(Replica { id: self.numbered, segment: segment.number, address });
            }
        }
        if taken.is_empty() {
            self.evicts_at.get_or_insert(now + dice.within(0, EVICTS_EVERY));
            return Err(NO_ROOM);
        }
        let object = Object { client, size, replicas: taken, complete: false, started: now, leased_until: 0, pinned };
        let described = self.described(&object);
        self.objects.insert(key.to_owned(), object);
        Ok(described)
    }

    pub fn end(&mut self, client: Id, key: &str) -> Result<(), Code> {
        let object = self.objects.get_mut(key).ok_or(NOT_FOUND)?;
        (object.client == client).then_some(()).ok_or(ILLEGAL_CLIENT)?;
        object.complete = true;
        self.changed += 1;
        Ok(())
    }

    pub fn revoke(&mut self, client: Id, key: &str) -> Result<(), Code> {
        let object = self.objects.get(key).ok_or(NOT_FOUND)?;
        (object.client == client).then_some(()).ok_or(ILLEGAL_CLIENT)?;
        (!object.complete).then_some(()).ok_or(INVALID_WRITE)?;
        self.erase(key);
        Ok(())
    }

    /// Where an object lies, and for how many milliseconds.
    pub fn locate(&mut self, key: &str, now: Moment) -> Result<(Vec<Described>, u64), Code> {
        let lease = self.lease;
        let object = self.objects.get_mut(key).ok_or(NOT_FOUND)?;
        object.complete.then_some(()).ok_or(NOT_READY)?;
        object.leased_until = object.leased_until.max(now + lease);
        let object = &self.objects[key];
        Ok((self.described(object), lease / MILLISECOND))
    }

    pub fn exists(&mut self, key: &str, now: Moment) -> bool {
        let lease = self.lease;
        let object = self.objects.get_mut(key).filter(|object| object.complete);
        object.map(|object| object.leased_until = object.leased_until.max(now + lease)).is_some()
    }

    pub fn remove(&mut self, key: &str, force: bool, now: Moment) -> Result<(), Code> {
        let object = self.objects.get(key).ok_or(NOT_FOUND)?;
        (force || object.leased_until <= now).then_some(()).ok_or(HAS_LEASE)?;
        object.complete.then_some(()).ok_or(NOT_READY)?;
        self.erase(key);
        Ok(())
    }

    /// What comes about by itself until now. Whether objects have gone, or some of their replicas.
    pub fn passes(&mut self, now: Moment, dice: &mut Dice) -> bool {
        let before = self.objects.len();
        let gone: Vec<u64> = self
            .segments
            .iter()
            .filter(|segment| segment.unmounts.is_some_and(|at| at <= now))
            .map(|segment| segment.number)
            .collect();
        if !gone.is_empty() {
            self.changed += 1;
            self.segments.retain(|segment| !gone.contains(&segment.number));
            for object in self.objects.values_mut() {
                object.replicas.retain(|replica| !gone.contains(&replica.segment));
            }
            self.objects.retain(|_, object| !object.replicas.is_empty());
        }
        let (free, kept) = std::mem::take(&mut self.discarded).into_iter().partition(|(at, ..)| *at <= now);
        self.discarded = kept;
        let free: Vec<(Moment, Vec<Replica>, u64)> = free;
        free.iter().for_each(|(_, replicas, size)| self.release(replicas, *size));
        self.begin_to_evict(now, dice);
        // What was put since then was not there then.
        if let Some(at) = self.evicts_at.take_if(|at| *at <= now) {
            let count = self.objects.len().div_ceil(EVICTED_OF);
            (0..count).for_each(|_| drop(self.evict(at, None)));
        }
        !gone.is_empty() || self.objects.len() < before
    }

    fn begin_to_evict(&mut self, now: Moment, dice: &mut Dice) {
        let used = self.segments.iter().filter(|segment| segment.is_used(now));
        let (free, all) = used.fold((0, 0), |(free, all), segment| {
            (free + segment.free.iter().map(|(_, free)| free).sum::<u64>(), all + segment.size)
        });
        if (all - free) * 1000 > all * HIGH_WATERMARK {
            self.evicts_at.get_or_insert(now + dice.within(0, EVICTS_EVERY));
        }
    }

    /// Evict the object whose lease ended first, of those that are not pinned if there are some; or any whose lease has ended.
    pub fn evict(&mut self, now: Moment, any: Option<&mut Dice>) -> Option<String> {
        let is_over = |object: &Object| object.complete && object.started <= now && object.leased_until <= now;
        let over: Vec<(&String, &Object)> = self.objects.iter().filter(|(_, object)| is_over(object)).collect();
        let chosen = match any {
            Some(dice) => dice.pick(&over).copied(),
            None => over.iter().copied().min_by_key(|(_, object)| (object.pinned, object.leased_until)),
        };
        let key = chosen?.0.clone();
        self.erase(&key);
        Some(key)
    }

    /// Nodes lend far more from now on.
    pub fn grow(&mut self, size: u64) {
        self.segments.iter_mut().for_each(|segment| segment.grow(size));
    }
}
