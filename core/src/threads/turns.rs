//! Whose work goes on when a pool is shared: by stores, and by the tenants and backends that own them.
//!
//! What runs is not interrupted, so a fair share is a matter of what may start:
//! - The first job of an owner starts at once, on one of the pool's extra places if all others are taken.
//! - The first job of a store starts on half of the extra places, so that the many stores of one owner leave the other half to others.
//! - A pool may bound what runs of one owner, so that some places are left whatever the others do.
//! - Every further job needs one of the places that are not extra, and comes after the first ones of others: the owner with the least running
//!   is next, then the store with the least, then who has waited for longest.
//!
//! Invariant: as long as an extra place is left, no owner waits for the end of another's job to begin its first.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::Arc;

use crate::budget::Owner;

/// Whose work it is. Clones are of the same store.
#[derive(Clone, Default)]
pub struct Whose {
    owner: Arc<Owner>,
    store: Arc<()>,
}

impl Whose {
    /// A further store of an owner.
    pub fn of(owner: &Arc<Owner>) -> Self {
        Whose { owner: owner.clone(), store: Arc::default() }
    }

    /// What it is known by for as long as this, or a clone, is there.
    fn keys(&self) -> (usize, usize) {
        (Arc::as_ptr(&self.owner).addr(), Arc::as_ptr(&self.store).addr())
    }
}

impl fmt::Debug for Whose {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("Whose").field(&self.keys()).finish()
    }
}

/// The places of one pool, and who has them.
pub struct Turns {
    most: usize,
    extra: usize,
    /// What runs of one owner at most.
    most_of_owner: usize,
    running: usize,
    owners: HashMap<usize, usize>,
    stores: HashMap<usize, usize>,
}

impl Turns {
    /// A pool with so many places, and so many more for first jobs.
    pub fn new(most: usize, extra: usize) -> Self {
        Turns { most, extra, most_of_owner: usize::MAX, running: 0, owners: HashMap::new(), stores: HashMap::new() }
    }

    /// No owner has more than so many of them.
    pub fn with_most_of_owner(mut self, most: usize) -> Self {
        self.bound_owners(most);
        self
    }

    pub(super) fn bound_owners(&mut self, most: usize) {
        self.most_of_owner = most;
    }

    /// How many places there are in all.
    pub fn places(&self) -> usize {
        self.most + self.extra
    }

    /// How much runs in all.
    #[cfg(test)]
    pub fn running(&self) -> usize {
        self.running
    }

    /// How much runs of the owner, and of the store.
    fn running_of(&self, whose: &Whose) -> (usize, usize) {
        let (owner, store) = whose.keys();
        let running = |of: &HashMap<usize, usize>, key| of.get(&key).copied().unwrap_or(0);
        (running(&self.owners, owner), running(&self.stores, store))
    }

    /// Whether a job may start now, if nobody who waits comes before.
    pub fn may_start(&self, whose: &Whose) -> bool {
        let extra = match self.running_of(whose) {
            (of_owner, _) if of_owner >= self.most_of_owner => return false,
            (0, _) => self.extra,
            (_, 0) => self.extra / 2,
            _ => 0,
        };
        self.running < self.most + extra
    }

    /// Which of those that wait is next; they are passed with the one first that has waited for longest. None: it may not start yet, and
    /// nobody who has more running starts before it.
    pub fn next<'a, K>(&self, waiting: impl Iterator<Item = (K, &'a Whose)>) -> Option<K> {
        // The first of equals.
        let (key, whose) = waiting.min_by_key(|(_, whose)| self.running_of(whose))?;
        self.may_start(whose).then_some(key)
    }

    pub fn begin(&mut self, whose: &Whose) {
        let (owner, store) = whose.keys();
        self.running += 1;
        *self.owners.entry(owner).or_default() += 1;
        *self.stores.entry(store).or_default() += 1;
    }

    pub fn end(&mut self, whose: &Whose) {
        let (owner, store) = whose.keys();
        self.running = self.running.saturating_sub(1);
        for (of, key) in [(&mut self.owners, owner), (&mut self.stores, store)] {
            if let Some(running) = of.get_mut(&key) {
                *running -= 1;
                if *running == 0 {
                    of.remove(&key);
                }
            }
        }
    }
}

/// Jobs that wait for a place: a line for each store.
pub(super) struct Lines<J> {
    lines: Vec<(Whose, VecDeque<J>)>,
    count: usize,
}

impl<J> Default for Lines<J> {
    fn default() -> Self {
        Lines { lines: Vec::new(), count: 0 }
    }
}

impl<J> Lines<J> {
    /// Let a job wait. Given back: `most` of its store wait already.
    pub(super) fn push(&mut self, whose: &Whose, job: J, most: usize) -> Result<(), J> {
        let keys = whose.keys();
        let line = match self.lines.iter().position(|(of, _)| of.keys() == keys) {
            Some(at) => self.lines.get_mut(at),
            None => {
                self.lines.push((whose.clone(), VecDeque::new()));
                self.lines.last_mut()
            }
        };
        let Some((_, jobs)) = line.filter(|(_, jobs)| jobs.len() < most) else { return Err(job) };
        jobs.push_back(job);
        self.count += 1;
        Ok(())
    }

    /// The next job that may start. Its store goes to the end of those that wait.
    pub(super) fn pop(&mut self, turns: &Turns) -> Option<(Whose, J)> {
        let at = turns.next(self.lines.iter().enumerate().map(|(at, (whose, _))| (at, whose)))?;
        let (whose, mut jobs) = self.lines.remove(at);
        let job = jobs.pop_front()?;
        self.count -= 1;
        if !jobs.is_empty() {
            self.lines.push((whose.clone(), jobs));
        }
        Some((whose, job))
    }

    pub(super) fn len(&self) -> usize {
        self.count
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A pool, what waits for it, and whose jobs run.
    struct Pool {
        turns: Turns,
        lines: Lines<&'static str>,
        running: Vec<(Whose, &'static str)>,
    }

    impl Pool {
        fn new(most: usize, extra: usize) -> Self {
            Pool { turns: Turns::new(most, extra), lines: Lines::default(), running: Vec::new() }
        }

        fn ask(&mut self, whose: &Whose, name: &'static str, count: usize) {
            (0..count).for_each(|_| self.lines.push(whose, name, usize::MAX).unwrap());
        }

        /// Start what may start; whose those are, in order.
        fn start(&mut self) -> Vec<&'static str> {
            let mut started = Vec::new();
            while let Some((whose, name)) = self.lines.pop(&self.turns) {
                self.turns.begin(&whose);
                self.running.push((whose, name));
                started.push(name);
            }
            started
        }

        fn finish(&mut self, name: &str) {
            let at = self.running.iter().position(|(_, of)| *of == name).unwrap();
            let (whose, _) = self.running.remove(at);
            self.turns.end(&whose);
        }
    }

    #[test]
    fn the_first_job_of_another_owner_starts_beside_all_of_an_offender() {
        let (offender, neighbour, third) = (Whose::default(), Whose::default(), Whose::default());
        let mut pool = Pool::new(8, 4);
        pool.ask(&offender, "offender", 100);
        assert_eq!(pool.start(), ["offender"; 8], "alone it has all places");
        pool.ask(&neighbour, "neighbour", 3);
        assert_eq!(pool.start(), ["neighbour"], "at once, though nothing of the offender has ended");
        pool.ask(&third, "third", 1);
        assert_eq!(pool.start(), ["third"]);
        // Each place that is free goes to who has the least.
        pool.finish("third");
        pool.finish("offender");
        assert!(pool.start().is_empty(), "what is left of the extra places is for first jobs");
        pool.finish("offender");
        assert_eq!(pool.start(), ["neighbour"], "and not the offender's next");
        pool.finish("neighbour");
        assert_eq!(pool.start(), ["neighbour"]);
        (0..3).for_each(|_| {
            pool.finish(if pool.running.iter().any(|(_, of)| *of == "neighbour") { "neighbour" } else { "offender" })
        });
        assert!(pool.start().iter().all(|name| *name == "offender"));
    }

    #[test]
    fn an_owner_that_is_bounded_leaves_places_though_it_is_alone() {
        let (offender, neighbour) = (Whose::default(), Whose::default());
        let mut pool = Pool { turns: Turns::new(8, 2).with_most_of_owner(6), ..Pool::new(0, 0) };
        pool.ask(&offender, "offender", 100);
        assert_eq!(pool.start(), ["offender"; 6]);
        pool.ask(&neighbour, "neighbour", 100);
        assert_eq!(pool.start(), ["neighbour"; 2], "nothing of the offender has ended");
        pool.finish("neighbour");
        assert_eq!(pool.start(), ["neighbour"]);
    }

    #[test]
    fn the_stores_of_one_owner_leave_places_for_others() {
        let hostile: Arc<Owner> = Arc::default();
        let mut pool = Pool::new(4, 4);
        for _ in 0..20 {
            pool.ask(&Whose::of(&hostile), "hostile", 5);
        }
        assert_eq!(pool.start().len(), 6, "of each store the first, on half of the extra places");
        for _ in 0..2 {
            pool.ask(&Whose::default(), "other", 5);
        }
        assert_eq!(pool.start(), ["other"; 2]);
        // What the hostile owner has left to begin with waits for those who have less.
        (0..4).for_each(|_| pool.finish("hostile"));
        assert!(pool.start().is_empty());
        pool.finish("other");
        assert_eq!(pool.start(), ["other"]);
    }

    #[test]
    fn what_waits_is_bounded_for_each_store() {
        let (one, other) = (Whose::default(), Whose::default());
        let mut lines = Lines::default();
        assert_eq!((0..10).filter(|n| lines.push(&one, *n, 4).is_ok()).count(), 4);
        assert_eq!(lines.push(&other, 0, 4), Ok(()), "another's line is its own");
        assert_eq!(lines.len(), 5);
    }

    proptest! {
        /// Whatever is asked for and ends, an owner without a running job starts one while there is an extra place.
        #[test]
        fn an_owner_waits_only_while_no_extra_place_is_left(steps in proptest::collection::vec((0..6_usize, 0..3_usize, any::<bool>()), 1..200)) {
            let owners: Vec<Arc<Owner>> = (0..6).map(|_| Arc::default()).collect();
            let stores: Vec<Vec<Whose>> = owners.iter().map(|owner| (0..3).map(|_| Whose::of(owner)).collect()).collect();
            let (mut turns, mut lines, mut running) = (Turns::new(3, 2), Lines::default(), Vec::<(usize, Whose)>::new());
            for (owner, store, ends) in steps {
                if ends && !running.is_empty() {
                    let (_, whose) = running.remove((owner * 3 + store) % running.len());
                    turns.end(&whose);
                } else {
                    let _ = lines.push(&stores[owner][store], owner, 8);
                }
                while let Some((whose, owner)) = lines.pop(&turns) {
                    turns.begin(&whose);
                    running.push((owner, whose));
                }
                prop_assert!(running.len() <= turns.places());
                let waits = lines.lines.iter().flat_map(|(_, jobs)| jobs).any(|owner| running.iter().all(|(of, _)| of != owner));
                prop_assert!(!waits || running.len() == turns.places());
            }
            running.iter().for_each(|(_, whose)| turns.end(whose));
            prop_assert!(turns.running == 0 || lines.len() > 0);
            prop_assert!(turns.owners.is_empty() && turns.stores.is_empty());
        }
    }
}
