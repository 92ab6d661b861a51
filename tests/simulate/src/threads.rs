//! Simulated threads by simulated time. Each is a coroutine; one runs at a time, until it waits. Who goes on next, and what time it is,
//! follows from a seed, so the same seed is the same order of all that happens.
//!
//! A thread is interrupted only where it waits: in a call of the backend, for a condition, for a lock that another holds. What happens
//! between single instructions is for loom.

use std::any::Any;
use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeSet, BinaryHeap};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult, Yielder};
use kv_platform::sync::{Mutex, MutexGuard};
use kv_store_core::process::{Job, Time, WaitAddress};

use crate::hashed::HashMap;
use chance::Dice;

/// Nanoseconds since the history began.
pub type Moment = u64;

pub const MICROSECOND: Moment = 1_000;
pub const MILLISECOND: Moment = 1_000_000;
pub const SECOND: Moment = 1_000_000_000;

/// Room for what parses a config, the deepest that runs on it.
const STACK_BYTES: usize = 512 << 10;
/// No history goes on for so long: nothing comes then.
const NEVER: Moment = 100_000 * SECOND;
/// 2033-05-18.
const EPOCH: Duration = Duration::from_secs(2_000_000_000);

type Thread = Coroutine<(), (), (), DefaultStack>;
type Waits = Yielder<(), ()>;

/// What a thread works for, which whoever lends it a hand works for too.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct Task {
    pub process: usize,
    /// The number of the operation. 0: none.
    pub operation: u32,
}

/// Unwinds threads that wait for work when a history is over.
struct Over;

/// The threads and the time of one history.
pub struct Threads {
    state: Mutex<State>,
    begun: Instant,
    /// Itself, for what it hands to others.
    own: std::sync::Weak<Threads>,
}

struct State {
    now: Moment,
    wall: i128,
    dice: Dice,
    current: Option<usize>,
    known: Vec<Known>,
    ready: Vec<usize>,
    timers: BinaryHeap<Reverse<Timer>>,
    waiting: HashMap<WaitAddress, Vec<usize>>,
    spawned: Vec<(usize, Job)>,
    numbered: u64,
    over: bool,
    /// Threads that have not ended and are awaited.
    awaited: usize,
    /// When all that is awaited had ended.
    done: Moment,
    panic: Option<String>,
    /// Digest of who ran when, which tells whether a replay is the same.
    pub digest: u64,
    steps: u64,
}

struct Known {
    waits: *const Waits,
    task: Task,
    /// Tells one wait from the next.
    ticket: u64,
    place: Option<WaitAddress>,
    done: bool,
    /// The history is over only when it has ended.
    awaited: bool,
}

// SAFETY: the pointer is used only by the coroutine that it belongs to, on the thread that runs all of them.
unsafe impl Send for Known {}

/// What comes at a moment. Of several at once the one that was planned first comes first.
struct Timer {
    at: (Moment, u64),
    due: Due,
}

impl PartialEq for Timer {
    fn eq(&self, other: &Self) -> bool {
        self.at == other.at
    }
}

impl Eq for Timer {}

impl PartialOrd for Timer {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Timer {
    fn cmp(&self, other: &Self) -> Ordering {
        self.at.cmp(&other.at)
    }
}

enum Due {
    Wake { thread: usize, ticket: u64 },
    Event(Box<dyn FnOnce() + Send>),
}

/// Stacks for the next history.
#[derive(Default)]
pub struct Stacks(Vec<DefaultStack>);

/// How a run ended.
#[derive(Debug, PartialEq, Eq)]
pub enum Ended {
    Done,
    /// Nobody that is awaited can go on.
    Stuck,
    /// The time was up.
    Late,
    Panicked(String),
}

impl Threads {
    pub fn new(seed: u64) -> Arc<Self> {
        let state = State {
            now: 0,
            wall: 0,
            dice: Dice::of(seed, &[0x7_4872]),
            current: None,
            known: Vec::new(),
            ready: Vec::new(),
            timers: BinaryHeap::new(),
            waiting: HashMap::default(),
            spawned: Vec::new(),
            numbered: 0,
            over: false,
            awaited: 0,
            done: 0,
            panic: None,
            digest: seed,
            steps: 0,
        };
        Arc::new_cyclic(|own| Threads { state: Mutex::new(state), begun: Instant::now(), own: own.clone() })
    }

    pub fn moment(&self) -> Moment {
        self.state.lock().now
    }

    /// The moment of an instant of this time.
    pub fn moment_of(&self, instant: Instant) -> Moment {
        u64::try_from(instant.saturating_duration_since(self.begun).as_nanos()).unwrap_or(u64::MAX)
    }

    pub fn digest(&self) -> u64 {
        let state = self.state.lock();
        state.digest ^ state.now
    }

    /// When all that is awaited had ended.
    pub fn done(&self) -> Moment {
        self.state.lock().done
    }

    /// Times that a thread went on.
    pub fn steps(&self) -> u64 {
        self.state.lock().steps
    }

    /// Have the time of the calendar jump.
    pub fn jump_wall(&self, by: i128) {
        self.state.lock().wall += by;
    }

    /// Start a thread. `awaited`: the history is not over before it is.
    pub fn start(&self, task: Task, awaited: bool, job: Job) {
        let mut state = self.state.lock();
        let thread = state.known.len();
        let known = Known { waits: std::ptr::null(), task, ticket: 0, place: None, done: false, awaited };
        state.known.push(known);
        state.awaited += usize::from(awaited);
        state.spawned.push((thread, job));
        state.ready.push(thread);
    }

    /// Have something happen at a moment, on no thread: it may not wait.
    pub fn at(&self, moment: Moment, event: impl FnOnce() + Send + 'static) {
        let mut state = self.state.lock();
        state.due(moment, Due::Event(Box::new(event)));
    }

    /// The number of the running thread. None: none runs.
    pub fn current(&self) -> Option<usize> {
        self.state.lock().current
    }

    /// What the running thread works for.
    pub fn task(&self) -> Task {
        let state = self.state.lock();
        state.current.and_then(|current| state.known.get(current)).map_or(Task::default(), |known| known.task)
    }

    /// The operations that threads work for.
    pub fn operations(&self) -> BTreeSet<u32> {
        let state = self.state.lock();
        let at_work = state.known.iter().filter(|known| !known.done && known.task.operation > 0);
        at_work.map(|known| known.task.operation).collect()
    }

    pub fn set_task(&self, task: Task) -> Task {
        let mut state = self.state.lock();
        let Some(current) = state.current else { return Task::default() };
        std::mem::replace(&mut state.known[current].task, task)
    }

    /// Have the running thread wait for so long.
    pub fn pause(&self, long: Moment) {
        let until = self.state.lock().now + long;
        self.suspend(None, Some(until));
    }

    fn suspend(&self, place: Option<WaitAddress>, until: Option<Moment>) {
        let waits = {
            let mut state = self.state.lock();
            if state.over {
                drop(state);
                resume_unwind(Box::new(Over));
            }
            let current = state.current.expect("only simulated threads wait");
            state.known[current].ticket += 1;
            state.known[current].place = place;
            if let Some(place) = place {
                state.waiting.entry(place).or_default().push(current);
            }
            if let Some(until) = until.filter(|until| *until < NEVER) {
                let wake = Due::Wake { thread: current, ticket: state.known[current].ticket };
                // Who looks again at once, again and again, would keep the time from passing.
                let until = until.max(state.now + MICROSECOND);
                state.due(until, wake);
            }
            state.known[current].waits
        };
        // SAFETY: it is that of the running coroutine, which set it when it began and has not ended.
        unsafe { (*waits).suspend(()) };
        if self.state.lock().over {
            resume_unwind(Box::new(Over));
        }
    }

    /// Run until all that is awaited has ended, and then for `after` more, so that what others do for it ends too.
    pub fn run(&self, stacks: &mut Stacks, at_most: Moment, after: Moment) -> Ended {
        let mut threads: Vec<Option<Thread>> = Vec::new();
        let mut end = at_most;
        let mut ended = Ended::Done;
        let mut all_done = false;
        loop {
            let mut state = self.state.lock();
            if !state.spawned.is_empty() {
                let spawned = std::mem::take(&mut state.spawned);
                drop(state);
                self.take_spawned(spawned, &mut threads, stacks);
                state = self.state.lock();
            }
            if !all_done && state.awaited == 0 {
                all_done = true;
                state.done = state.now;
                end = state.now + after;
            }
            if let Some(panic) = state.panic.take() {
                ended = Ended::Panicked(panic);
                break;
            }
            match Self::next(state, end) {
                Next::Thread(thread) => self.step(&mut threads, thread, stacks),
                Next::Event(event) => event(),
                Next::Nobody if all_done => break,
                Next::Nobody => {
                    ended = Ended::Stuck;
                    break;
                }
                Next::TooLate if all_done => break,
                Next::TooLate => {
                    ended = Ended::Late;
                    break;
                }
            }
        }
        self.end(threads, stacks, ended == Ended::Done);
        ended
    }

    fn take_spawned(&self, spawned: Vec<(usize, Job)>, threads: &mut Vec<Option<Thread>>, stacks: &mut Stacks) {
        for (number, job) in spawned {
            let own = self.own.upgrade().expect("it runs");
            let stack = stacks.0.pop().unwrap_or_else(|| DefaultStack::new(STACK_BYTES).expect("memory for a stack"));
            let thread = Thread::with_stack(stack, move |waits: &Waits, ()| {
                own.state.lock().known[number].waits = std::ptr::from_ref(waits);
                if let Err(panic) = catch_unwind(AssertUnwindSafe(job))
                    && !panic.is::<Over>()
                {
                    own.state.lock().panic.get_or_insert(text_of(&*panic));
                }
                let mut state = own.state.lock();
                let known = &mut state.known[number];
                known.done = true;
                state.awaited -= usize::from(known.awaited);
            });
            threads.resize_with(threads.len().max(number + 1), || None);
            threads[number] = Some(thread);
        }
    }

    fn step(&self, threads: &mut [Option<Thread>], number: usize, stacks: &mut Stacks) {
        let Some(thread) = threads.get_mut(number).and_then(Option::as_mut) else { return };
        self.state.lock().current = Some(number);
        let result = thread.resume(());
        self.state.lock().current = None;
        if let CoroutineResult::Return(()) = result
            && let Some(thread) = threads[number].take()
        {
            stacks.0.push(thread.into_stack());
        }
    }

    fn next(mut state: MutexGuard<'_, State>, end: Moment) -> Next {
        loop {
            if !state.ready.is_empty() {
                let len = state.ready.len();
                let at = state.dice.index(len);
                let thread = state.ready.swap_remove(at);
                if state.known[thread].done {
                    continue;
                }
                state.steps += 1;
                state.digest =
                    state.digest.rotate_left(5) ^ (thread as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ state.now;
                return Next::Thread(thread);
            }
            let Some(Reverse(Timer { at: (moment, _), due })) = state.timers.pop() else { return Next::Nobody };
            if moment > end {
                return Next::TooLate;
            }
            state.now = state.now.max(moment);
            match due {
                Due::Event(event) => return Next::Event(event),
                Due::Wake { thread, ticket } if state.known[thread].ticket == ticket => state.wake(thread),
                Due::Wake { .. } => {}
            }
        }
    }

    /// Unwind the threads that wait for work. Where one of those that are awaited has not ended, what others do may be borrowed from it:
    /// they stay as they are.
    fn end(&self, mut threads: Vec<Option<Thread>>, stacks: &mut Stacks, done: bool) {
        self.state.lock().over = true;
        if !done {
            threads.into_iter().for_each(std::mem::forget);
            return;
        }
        for number in 0..threads.len() {
            while threads[number].is_some() {
                self.step(&mut threads, number, stacks);
                // A job may hand others over while it ends.
                let spawned = std::mem::take(&mut self.state.lock().spawned);
                drop(spawned);
            }
        }
        let timers = std::mem::take(&mut self.state.lock().timers);
        drop(timers);
    }
}

enum Next {
    Thread(usize),
    Event(Box<dyn FnOnce() + Send>),
    Nobody,
    TooLate,
}

impl State {
    fn due(&mut self, moment: Moment, due: Due) {
        self.numbered += 1;
        self.timers.push(Reverse(Timer { at: (moment, self.numbered), due }));
    }

    fn wake(&mut self, thread: usize) {
        let known = &mut self.known[thread];
        known.ticket += 1;
        if let Some(place) = known.place.take()
            && let Some(waiting) = self.waiting.get_mut(&place)
        {
            waiting.retain(|other| *other != thread);
        }
        self.ready.push(thread);
    }
}

impl Time for Threads {
    fn now(&self) -> Instant {
        self.begun + Duration::from_nanos(self.state.lock().now)
    }

    fn wall(&self) -> SystemTime {
        let state = self.state.lock();
        let nanoseconds = EPOCH.as_nanos() as i128 + i128::from(state.now) + state.wall;
        UNIX_EPOCH + Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(0))
    }

    fn has_threads(&self) -> bool {
        true
    }

    fn wait(&self, place: WaitAddress, until: Option<Instant>) {
        self.suspend(Some(place), until.map(|until| self.moment_of(until)));
    }

    fn wait_for_lock(&self, _: WaitAddress) {
        // Nobody tells when a lock is given back.
        let long = self.state.lock().dice.within(10 * MICROSECOND, MILLISECOND);
        self.pause(long);
    }

    fn notify(&self, place: WaitAddress, all: bool) {
        let mut state = self.state.lock();
        let Some(waiting) = state.waiting.get(&place).filter(|waiting| !waiting.is_empty()) else { return };
        let woken = match all {
            true => waiting.clone(),
            false => {
                let waiting = waiting.clone();
                let at = state.dice.index(waiting.len());
                vec![waiting[at]]
            }
        };
        woken.into_iter().for_each(|thread| state.wake(thread));
    }

    fn hand_over(&self, job: Job) -> Job {
        let (task, own) = (self.task(), self.own.clone());
        Box::new(move || {
            let Some(own) = own.upgrade() else { return };
            let former = own.set_task(task);
            let outcome = catch_unwind(AssertUnwindSafe(job));
            own.set_task(former);
            if let Err(panic) = outcome {
                if !panic.is::<Over>() {
                    own.state.lock().panic.get_or_insert(text_of(&*panic));
                }
                resume_unwind(panic);
            }
        })
    }
}

fn text_of(panic: &(dyn Any + Send)) -> String {
    match (panic.downcast_ref::<&str>(), panic.downcast_ref::<String>()) {
        (Some(text), _) => (*text).to_owned(),
        (_, Some(text)) => text.clone(),
        _ => "a panic without a text".to_owned(),
    }
}
