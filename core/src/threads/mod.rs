//! A few threads of ours that lend a hand: with the batches of one call, on which the caller works too, and with what can
//! be done before it is asked for. They are made when they are first wanted, take no signals, and nobody joins them.
//!
//! Each job is somebody's ([`Whose`]), and a pool is reached as somebody ([`Helpers::lent`]), so that nobody's work keeps another's from
//! starting: `turns` decides whose is next.
//!
//! Invariant: nobody depends on a helper. Where all are busy, or none could be made, the caller does all of it. A job that is due later
//! is done when a helper is free then, and not before.

mod fan_out;
mod turns;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::error::Error;
use crate::limits::{self, MAX_HELPER_JOBS};
use crate::process::{Clock, Condition, Job, Spawn};
use fan_out::FanOut;
use kv_platform::sync::Mutex;
use turns::Lines;
pub use turns::{Turns, Whose};

/// The threads that work for the stores of a process.
pub struct Threads {
    /// Those that lend a hand to calls.
    pub helpers: Arc<Helpers>,
    /// The threads of all queues.
    pub queues: Arc<Helpers>,
    /// Those that gather and scatter the chunks of paged caches: a core each, if the caller lets them.
    pub paged: Arc<Helpers>,
    /// Those that write to the disk tiers of near levels.
    pub near: Arc<Helpers>,
}

#[cfg(test)]
impl Default for Threads {
    fn default() -> Self {
        Threads::new(&Clock::default(), &Spawn::default())
    }
}

impl Threads {
    /// Threads that `spawn` starts when they are first wanted.
    pub fn new(clock: &Clock, spawn: &Spawn) -> Self {
        let cores = spawn.cores();
        let pool = |most, extra| Arc::new(Helpers::new(most, extra, clock.clone(), spawn.clone()));
        let queues = Helpers::new(limits::MAX_QUEUE_THREADS, limits::MAX_EXTRA_THREADS, clock.clone(), spawn.clone());
        Threads {
            helpers: pool(limits::MAX_HELPERS, limits::MAX_EXTRA_THREADS),
            queues: Arc::new(queues.in_short_turns()),
            paged: pool(cores.min(limits::MAX_PAGED_THREADS), 0),
            near: pool(limits::MAX_NEAR_WRITERS, limits::MAX_EXTRA_THREADS),
        }
    }
}

/// A pool of threads.
pub struct Helpers {
    queue: Mutex<JobQueue>,
    wake: Condition,
    most: usize,
    cores: usize,
    short_turns: bool,
    /// Of the process's own work.
    own: Whose,
    clock: Clock,
    spawn: Spawn,
}

/// A pool as one store reaches it.
#[derive(Clone, Copy)]
pub struct Lent<'a> {
    pool: &'a Arc<Helpers>,
    whose: &'a Whose,
}

struct JobQueue {
    turns: Turns,
    jobs: Lines<Job>,
    /// By when each is due, and a number of its own.
    later: BTreeMap<(Instant, u64), Job>,
    numbered: u64,
    threads: usize,
    idle: usize,
    /// The earliest moment until which an idle thread sleeps. None: those that are idle sleep until they are woken.
    timed: Option<Instant>,
}

impl Helpers {
    /// `most`: so many threads, and `extra` more for those of whom nothing runs.
    pub fn new(most: usize, extra: usize, clock: Clock, spawn: Spawn) -> Self {
        let cores = spawn.cores();
        let queue = JobQueue {
            turns: Turns::new(most, extra),
            jobs: Lines::default(),
            later: BTreeMap::new(),
            numbered: 0,
            threads: 0,
            idle: 0,
            timed: None,
        };
        let wake = Condition::new(&clock);
        let (queue, own) = (Mutex::new(queue), Whose::default());
        Helpers { queue, wake, most, cores, short_turns: false, own, clock, spawn }
    }

    /// No owner has more than so many of its threads.
    pub fn with_most_of_owner(mut self, most: usize) -> Self {
        let queue = self.queue.get_mut();
        queue.turns.bound_owners(most);
        self
    }

    /// Whether there is a thread: without one nothing that is handed over would be done.
    pub fn has_threads(&self) -> bool {
        self.queue.lock().threads > 0
    }

    /// Jobs are waited for: its threads come to them soon though others keep the processors busy.
    fn in_short_turns(self) -> Self {
        Helpers { short_turns: true, ..self }
    }

    /// The pool for what is done for a store.
    pub fn lent<'a>(self: &'a Arc<Self>, whose: &'a Whose) -> Lent<'a> {
        Lent { pool: self, whose }
    }

    /// How many threads it takes, the caller's among them, to use the cores for one thing.
    pub fn hands(&self) -> usize {
        self.cores.min(self.most + 1)
    }

    /// Have a job of the process's own done some time. False: as for [`Lent::spawn_job`].
    pub fn spawn_job(self: &Arc<Self>, job: impl FnOnce() + Send + 'static) -> bool {
        self.lent(&self.own).spawn_job(job)
    }

    /// Have a job of the process's own done when so much time has passed, or somewhat later. False: as for [`Lent::spawn_job`].
    pub fn hand_later(self: &Arc<Self>, after: Duration, job: impl FnOnce() + Send + 'static) -> bool {
        let mut queue = self.queue.lock();
        if queue.threads == 0 && self.most > 0 && self.start_thread() {
            queue.threads += 1;
        }
        if queue.threads == 0 || queue.later.len() >= MAX_HELPER_JOBS {
            return false;
        }
        queue.numbered += 1;
        let key = (self.clock.now() + after, queue.numbered);
        queue.later.insert(key, Box::new(job));
        let is_next = queue.later.first_key_value().is_some_and(|(first, _)| *first == key);
        drop(queue);
        // Who sleeps until another job is due must sleep shorter.
        if is_next {
            self.wake.notify_one();
        }
        true
    }

    fn start_thread(self: &Arc<Self>) -> bool {
        let own = self.clone();
        self.spawn.start("kv-store-helper", move || {
            if own.short_turns {
                kv_platform::system::take_short_turns();
            }
            own.serve();
        })
    }

    fn serve(&self) {
        let mut queue = self.queue.lock();
        loop {
            if let Some((whose, job)) = queue.next_job(&self.clock, &self.own) {
                queue.turns.begin(&whose);
                let unwatched = !queue.later.is_empty() && queue.timed.is_none() && queue.idle > 0;
                drop(queue);
                if unwatched {
                    self.wake.notify_one();
                }
                // What was handed over answers for itself; the thread serves on.
                let _ = catch_unwind(AssertUnwindSafe(job));
                queue = self.queue.lock();
                queue.turns.end(&whose);
                continue;
            }
            queue.idle += 1;
            // One thread sleeps until a job is due; the others until they are woken.
            let due = queue.later.keys().next().map(|(due, _)| *due);
            queue = match due.filter(|due| queue.timed.is_none_or(|timed| *due < timed)) {
                Some(due) => {
                    queue.timed = Some(due);
                    let left = due.saturating_duration_since(self.clock.now());
                    let mut queue = self.wake.wait_timeout(&self.queue, queue, left);
                    queue.timed = queue.timed.filter(|timed| *timed < due);
                    queue
                }
                None => self.wake.wait(&self.queue, queue),
            };
            queue.idle -= 1;
        }
    }
}

impl Lent<'_> {
    /// How many threads it takes, the caller's among them, to use the cores for one thing.
    pub fn hands(self) -> usize {
        self.pool.hands()
    }

    /// Have a job done some time. False: there is no helper, or too much of the store waits for them, and it was dropped.
    pub fn spawn_job(self, job: impl FnOnce() + Send + 'static) -> bool {
        self.give(Box::new(job)).is_ok()
    }

    /// The same, which gives a job back that will not be done.
    pub fn give(self, job: Job) -> Result<(), Job> {
        let Lent { pool, whose } = self;
        let mut queue = pool.queue.lock();
        let needed =
            queue.idle <= queue.jobs.len() && queue.threads < queue.turns.places() && queue.turns.may_start(whose);
        if needed && pool.start_thread() {
            queue.threads += 1;
        }
        let pushed = match queue.threads {
            0 => return Err(job),
            _ => queue.jobs.push(whose, pool.clock.hand_over(job), MAX_HELPER_JOBS),
        };
        drop(queue);
        if pushed.is_ok() {
            pool.wake.notify_one();
        }
        pushed
    }

    /// Do `work(0)` to `work(count - 1)`, each once, on at most so many threads: this one and what helpers are free. All is
    /// done when this returns.
    pub fn side_by_side(self, hands: usize, count: usize, work: &(dyn Fn(usize) + Sync)) {
        // SAFETY: only the lifetime changes. `work` is called within `FanOut::run` and `FanOut::help` alone, and `finish`, which runs
        // before this returns or unwinds, waits until nobody is there any more and nobody can come.
        let work = unsafe { std::mem::transmute::<&(dyn Fn(usize) + Sync), &'static (dyn Fn(usize) + Sync)>(work) };
        let shared = Arc::new(FanOut::new(work, count, &self.pool.clock));
        for _ in 1..count.min(hands).min(self.pool.most + 1) {
            let shared = shared.clone();
            self.spawn_job(move || shared.help());
        }
        let own = catch_unwind(AssertUnwindSafe(|| shared.run()));
        let helped = shared.finish();
        if let Some(panic) = own.err().or(helped) {
            resume_unwind(panic);
        }
    }

    /// Run `work` on each item, as [`Lent::side_by_side`]. The results are in the order of the items.
    pub fn map<T: Sync, R: Send>(self, hands: usize, items: &[T], work: &(dyn Fn(&T) -> R + Sync)) -> Vec<R> {
        let results: Vec<Mutex<Option<R>>> = items.iter().map(|_| Mutex::new(None)).collect();
        self.side_by_side(hands, items.len(), &|index| {
            if let (Some(item), Some(place)) = (items.get(index), results.get(index)) {
                let result = work(item);
                *place.lock() = Some(result);
            }
        });
        let done = |place: Mutex<Option<R>>| place.into_inner();
        results.into_iter().filter_map(done).collect()
    }

    /// Do something with each of these, as [`Lent::side_by_side`]. The first failure; the others are done all the same.
    pub fn try_each<T: Sync>(
        self,
        hands: usize,
        items: &[T],
        work: &(dyn Fn(&T) -> Result<(), Error> + Sync),
    ) -> Result<(), Error> {
        self.map(hands, items, work).into_iter().collect()
    }
}

impl JobQueue {
    /// What is to be done now, if anything.
    fn next_job(&mut self, clock: &Clock, own: &Whose) -> Option<(Whose, Job)> {
        self.jobs.pop(&self.turns).or_else(|| {
            let due = self.later.first_entry().filter(|first| first.key().0 <= clock.now())?;
            self.turns.may_start(own).then(|| (own.clone(), due.remove()))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kv_platform::sync::Condvar;
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
    use std::thread;
    use std::time::Duration;

    fn helpers(most: usize) -> Arc<Helpers> {
        Arc::new(Helpers::new(most, 0, Clock::default(), Spawn::default()))
    }

    #[test]
    fn each_piece_is_done_once_before_it_returns() {
        for most in [0, 1, 4] {
            let done: Vec<AtomicU32> = (0..1000).map(|_| AtomicU32::new(0)).collect();
            helpers(most).lent(&Whose::default()).side_by_side(4, done.len(), &|index| {
                done[index].fetch_add(1, Relaxed);
            });
            assert!(done.iter().all(|done| done.load(Relaxed) == 1), "with {most}");
        }
    }

    #[test]
    fn one_thing_takes_as_many_as_can_run_and_are_there() {
        for (cores, most, hands) in [(2, 8, 2), (8, 2, 3), (1, 0, 1)] {
            let on = Spawn::default().on_cores(cores);
            assert_eq!(on.cores(), cores);
            assert_eq!(Helpers::new(most, 0, Clock::default(), on).hands(), hands);
        }
    }

    #[test]
    fn two_can_be_at_it_at_once() {
        let (here, both) = (Mutex::new(0), Condvar::new());
        helpers(2).lent(&Whose::default()).side_by_side(2, 2, &|_| {
            let mut at_it = here.lock();
            *at_it += 1;
            both.notify_all();
            let at_it = both.wait_timeout_while(at_it, Duration::from_secs(60), |at_it| *at_it < 2);
            assert_eq!(*at_it, 2, "one did both");
        });
    }

    #[test]
    fn a_panic_is_the_callers_whoever_had_it() {
        let panicking =
            || helpers(2).lent(&Whose::default()).side_by_side(2, 8, &|index| assert!(index != 3, "the fourth"));
        assert!(catch_unwind(AssertUnwindSafe(panicking)).is_err());
    }

    #[test]
    fn what_waits_for_helpers_is_bounded() {
        let (helpers, whose) = (helpers(1), Whose::default());
        let (go, wait) = std::sync::mpsc::channel::<()>();
        assert!(helpers.spawn_job(move || wait.recv().unwrap_err().to_string().clear()));
        let handed = (0..10 * MAX_HELPER_JOBS).filter(|_| helpers.lent(&whose).spawn_job(|| ())).count();
        drop(go);
        assert!((MAX_HELPER_JOBS - 1..=MAX_HELPER_JOBS).contains(&handed), "{handed}");
    }

    #[test]
    fn the_processs_own_jobs_are_bounded_and_dropped_outside_of_the_lock() {
        /// A job that, when it is dropped, asks for another.
        struct Asks(Arc<Helpers>);
        impl Drop for Asks {
            fn drop(&mut self) {
                self.0.spawn_job(|| ());
            }
        }
        let helpers = helpers(1);
        let (go, wait) = std::sync::mpsc::channel::<()>();
        let (begun, begins) = std::sync::mpsc::channel();
        assert!(helpers.spawn_job(move || {
            begun.send(()).unwrap();
            let _ = wait.recv();
        }));
        begins.recv_timeout(Duration::from_secs(60)).unwrap();
        assert_eq!((0..10 * MAX_HELPER_JOBS).filter(|_| helpers.spawn_job(|| ())).count(), MAX_HELPER_JOBS);
        let (asks, (done, ends)) = (Asks(helpers.clone()), std::sync::mpsc::channel());
        thread::spawn(move || done.send(asks.0.clone().spawn_job(move || drop(asks))).unwrap());
        assert_eq!(ends.recv_timeout(Duration::from_secs(60)), Ok(false), "it waits for itself");
        drop(go);
    }

    #[test]
    fn what_is_due_later_is_done_in_its_order_beside_what_is_due_now() {
        let helpers = helpers(2);
        let (done, wait) = std::sync::mpsc::channel();
        for (number, after) in [(3, 90), (1, 30), (2, 60)] {
            let done = done.clone();
            assert!(helpers.hand_later(Duration::from_millis(after), move || done.send(number).unwrap()));
        }
        // A thread that a job holds up for long leaves the clock to another.
        let (go, held) = std::sync::mpsc::channel::<()>();
        assert!(helpers.spawn_job(move || held.recv().unwrap_err().to_string().clear()));
        assert!(helpers.spawn_job(move || done.send(0).unwrap()));
        let order: Vec<i32> = (0..4).map(|_| wait.recv_timeout(Duration::from_secs(60)).unwrap()).collect();
        assert_eq!(order, [0, 1, 2, 3]);
        drop(go);
    }

    #[test]
    fn without_helpers_a_job_is_refused() {
        assert!(!helpers(0).spawn_job(|| unreachable!()));
        assert!(!helpers(0).hand_later(Duration::ZERO, || unreachable!()));
        let (done, wait) = std::sync::mpsc::channel();
        assert!(helpers(1).spawn_job(move || done.send(()).unwrap()));
        wait.recv_timeout(Duration::from_secs(60)).unwrap();
    }

    #[test]
    fn a_job_of_another_owner_starts_while_an_offender_has_all_threads() {
        const LONG: Duration = Duration::from_secs(60);
        let helpers = Arc::new(Helpers::new(3, 2, Clock::default(), Spawn::default()));
        let (offender, neighbour) = (Whose::default(), Whose::default());
        let (begun, begins) = std::sync::mpsc::channel();
        let (go, held) = std::sync::mpsc::channel::<()>();
        let held = Arc::new(Mutex::new(held));
        for number in 0..20 {
            let (begun, held) = (begun.clone(), held.clone());
            let job = move || {
                begun.send(("offender", number)).unwrap();
                let _ = held.lock().recv();
            };
            assert!(helpers.lent(&offender).spawn_job(job));
        }
        let started: Vec<_> = (0..3).map(|_| begins.recv_timeout(LONG).unwrap()).collect();
        assert!(started.iter().all(|(who, _)| *who == "offender"));
        // None of them ends, and 17 more of the offender's wait.
        for number in 0..2 {
            let begun = begun.clone();
            assert!(helpers.lent(&neighbour).spawn_job(move || begun.send(("neighbour", number)).unwrap()));
            assert_eq!(begins.recv_timeout(LONG).unwrap(), ("neighbour", number));
        }
        drop(go);
        (0..17).for_each(|_| assert_eq!(begins.recv_timeout(LONG).unwrap().0, "offender"));
    }
}
