//! The reads of one call: those that are under way, those that wait for a permit, and those that have come.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use kv_platform::sync::Mutex;

use super::{Buffers, ReadPermit, Readers};
use crate::error::{Error, ErrorKind};
use crate::limits::MAX_READS;
use crate::process::Condition;
use crate::threads::Whose;
use crate::until::Until;

/// How often a call that waits looks whether it was cancelled.
const LOOK: Duration = Duration::from_millis(20);

/// Which read it is: the number of its item, and of its part.
pub type Tag = (usize, usize);

/// The reads of a call. Those that are under way when it is dropped go on, and what they bring goes nowhere.
pub struct Flight<'a, T> {
    readers: &'a Arc<Readers>,
    whose: &'a Whose,
    landing: Option<Arc<Landing<T>>>,
    waiting: VecDeque<(Tag, ReadWork<T>)>,
    under_way: usize,
}

type ReadWork<T> = Box<dyn FnOnce(&Buffers) -> Result<T, Error> + Send>;

/// A read that has come.
pub struct Arrived<T> {
    pub tag: Tag,
    pub outcome: Result<T, Error>,
    /// Free for another when its bytes are copied.
    pub permit: ReadPermit,
}

/// Where reads come to.
struct Landing<T> {
    state: Mutex<LandingState<T>>,
    came: Condition,
}

struct LandingState<T> {
    arrived: VecDeque<Arrived<T>>,
    /// Nobody waits any more.
    closed: bool,
}

/// A read on its way. One that is dropped before it was made has failed.
struct Ticket<T> {
    landing: Arc<Landing<T>>,
    tag: Tag,
    permit: Option<ReadPermit>,
}

impl<T> Ticket<T> {
    fn finish(&mut self, outcome: Result<T, Error>) {
        let Some(permit) = self.permit.take() else { return };
        let arrived = Arrived { tag: self.tag, outcome, permit };
        let mut state = self.landing.state.lock();
        if state.closed {
            // Dropped without the lock: it may be memory that is given back.
            drop(state);
            return drop(arrived);
        }
        state.arrived.push_back(arrived);
        drop(state);
        self.landing.came.notify_one();
    }
}

impl<T> Drop for Ticket<T> {
    fn drop(&mut self) {
        self.finish(Err(Error::new(
            ErrorKind::Unavailable,
            "too many reads of the store wait for its disk: make fewer calls at once",
        )));
    }
}

impl<'a, T: Send + 'static> Flight<'a, T> {
    pub fn new(readers: &'a Arc<Readers>, whose: &'a Whose) -> Self {
        Flight { readers, whose, landing: None, waiting: VecDeque::new(), under_way: 0 }
    }

    /// How many reads have not come yet.
    pub fn not_come(&self) -> usize {
        self.under_way + self.waiting.len()
    }

    /// Whether there are so many that the call begins no other item before one of them has come: each may hold a descriptor.
    pub fn is_full(&self) -> bool {
        self.not_come() >= MAX_READS
    }

    /// Begin a read, or have it wait for a permit.
    pub fn start(&mut self, tag: Tag, work: impl FnOnce(&Buffers) -> Result<T, Error> + Send + 'static) {
        self.waiting.push_back((tag, Box::new(work)));
        self.begin_waiting();
    }

    /// The next read that has come. None: there are no others. The error is that of the call, whose time is over: what is still under way
    /// comes to nothing.
    pub fn next(&mut self, until: Option<&Until>) -> Result<Option<Arrived<T>>, Error> {
        self.begin_waiting();
        let Some(landing) = self.landing.as_ref().filter(|_| self.under_way > 0) else { return Ok(None) };
        let mut state = landing.state.lock();
        loop {
            if let Some(arrived) = state.arrived.pop_front() {
                self.under_way -= 1;
                return Ok(Some(arrived));
            }
            state = match until {
                None => landing.came.wait_timeout(&landing.state, state, LOOK),
                Some(until) => until.wait(&landing.came, &landing.state, state)?,
            };
        }
    }

    fn begin_waiting(&mut self) {
        while !self.waiting.is_empty() {
            let Some(permit) = self.readers.permit(self.whose, self.under_way == 0) else { return };
            let Some((tag, work)) = self.waiting.pop_front() else { return };
            let clock = &self.readers.clock;
            let landing = self.landing.get_or_insert_with(|| {
                let state = Mutex::new(LandingState { arrived: VecDeque::new(), closed: false });
                Arc::new(Landing { state, came: Condition::new(clock) })
            });
            let mut ticket = Ticket { landing: landing.clone(), tag, permit: Some(permit) };
            let buffers = self.readers.buffers.clone();
            let job = Box::new(move || {
                // Whoever wanted it may have gone.
                if !ticket.landing.state.lock().closed {
                    let outcome = work(&buffers);
                    ticket.finish(outcome);
                }
            });
            self.under_way += 1;
            if let Err(job) = self.readers.pool.lent(self.whose).give(job)
                && !self.readers.pool.has_threads()
            {
                // Without a thread nobody else can.
                job();
            }
        }
    }
}

impl<T> Drop for Flight<'_, T> {
    fn drop(&mut self) {
        if let Some(landing) = &self.landing {
            let mut state = landing.state.lock();
            state.closed = true;
            let arrived = std::mem::take(&mut state.arrived);
            drop(state);
            drop(arrived);
        }
    }
}
