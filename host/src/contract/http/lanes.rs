//! Which request goes on which connection. A lane is one connection at a time; each takes the next request when its own is done, the
//! next to the same server if there is one.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use kv_platform::sync::Mutex;

use super::exchange::{BrokenExchange, exchange};
use super::{Answer, Plan, Quota};
use crate::contract::Access;
use crate::contract::net::{Link, OpenLink, Place, all, in_call, note_if_late, note_if_unreachable};
use crate::counters::Event;
use crate::error::{Error, ErrorKind};
use crate::payload::Destination;
use crate::until::Until;

/// A request on its way.
pub(super) struct Task<'a> {
    /// Its place in the batch.
    pub index: usize,
    pub plan: Plan<'a>,
    /// Where the body of its response belongs.
    pub room: Option<Destination>,
}

#[derive(Default)]
struct Queue<'a> {
    tasks: VecDeque<Task<'a>>,
    /// How many lanes each server has now.
    lanes: HashMap<String, u64>,
}

type ExchangeOutcome = Result<Answer, Error>;

pub(super) struct Lanes<'a> {
    access: &'a Arc<Access>,
    until: &'a Until,
    quota: Quota<'a>,
    queue: Mutex<Queue<'a>>,
    /// Lanes that one server has at once, at most.
    per_server: u64,
    done: Mutex<Vec<(Task<'a>, ExchangeOutcome)>>,
    /// Lanes that have not ended.
    open: AtomicUsize,
}

impl<'a> Lanes<'a> {
    pub(super) fn new(
        access: &'a Arc<Access>,
        until: &'a Until,
        quota: Quota<'a>,
        tasks: Vec<Task<'a>>,
        per_server: u64,
    ) -> Self {
        let queue = Mutex::new(Queue { tasks: tasks.into(), lanes: HashMap::new() });
        Lanes { access, until, quota, queue, per_server, done: Mutex::default(), open: AtomicUsize::new(0) }
    }

    /// Make all requests, on so many connections at once at most.
    pub(super) async fn run(self, most: u64) -> Vec<(Task<'a>, ExchangeOutcome)> {
        let count = self.queue.lock().tasks.len().min(usize::try_from(most).unwrap_or(usize::MAX));
        self.open.store(count, Relaxed);
        all((0..count).map(|_| self.lane())).await;
        let mut done = self.done.into_inner();
        let rest = self.queue.into_inner();
        done.extend(rest.tasks.into_iter().map(|task| (task, Err(self.access.no_connection_left()))));
        done
    }

    async fn lane(&self) {
        let mut own: Option<(Place, Link)> = None;
        while let Some(mut task) = self.next(own.as_ref().map(|(place, _)| place)) {
            let kept = self.kept(own.take(), &task.plan.wanted.place);
            let made = self.make(&mut task, kept).await;
            self.leave(&task);
            match made {
                Some((outcome, link)) => {
                    own = link.map(|link| (task.plan.wanted.place.clone(), link));
                    self.done.lock().push((task, outcome));
                }
                None => {
                    self.queue.lock().tasks.push_front(task);
                    break;
                }
            }
        }
        self.open.fetch_sub(1, Relaxed);
        self.park(own);
    }

    fn next(&self, place: Option<&Place>) -> Option<Task<'a>> {
        let Queue { tasks, lanes } = &mut *self.queue.lock();
        let free = |task: &Task<'_>| lanes.get(task.plan.wanted.place.authority()).is_none_or(|n| *n < self.per_server);
        let same = place.and_then(|place| tasks.iter().position(|task| task.plan.wanted.place == *place && free(task)));
        // With none for it there are as many lanes at a server already as it may have, and they take what is left.
        let at = same.or_else(|| tasks.iter().position(free))?;
        let task = tasks.remove(at)?;
        *lanes.entry(task.plan.wanted.place.authority().to_owned()).or_default() += 1;
        Some(task)
    }

    /// A lane is not at a task's server any more.
    fn leave(&self, task: &Task<'a>) {
        if let Some(count) = self.queue.lock().lanes.get_mut(task.plan.wanted.place.authority()) {
            *count = count.saturating_sub(1);
        }
    }

    /// A connection to a place on which nothing is outstanding: the lane's own, or a parked one.
    fn kept(&self, own: Option<(Place, Link)>, place: &Place) -> Option<Link> {
        match own {
            Some((leads_to, mut link)) if leads_to == *place => link.is_silent().then_some(link),
            other => {
                self.park(other);
                None
            }
        }
        .or_else(|| self.access.parked.take(place))
    }

    fn park(&self, own: Option<(Place, Link)>) {
        if let Some((place, link)) = own {
            self.access.parked.keep(place, link);
        }
    }

    /// Make a request, and have the call know whether its server answers.
    async fn make(&self, task: &mut Task<'a>, kept: Option<Link>) -> Option<(ExchangeOutcome, Option<Link>)> {
        let made = self.ask(task, kept).await?;
        let place = &task.plan.wanted.place;
        match &made.0 {
            Ok(_) => self.until.met(place.authority(), true),
            Err(error) => note_if_unreachable(self.until, place, error),
        }
        Some(made)
    }

    /// Make a request, on a kept connection or a new one. None: there is no room for another connection, and other lanes are left.
    async fn ask(&self, task: &mut Task<'a>, kept: Option<Link>) -> Option<(ExchangeOutcome, Option<Link>)> {
        if let Some(mut link) = kept {
            self.access.reach.counters.count(Event::Resumed);
            match self.exchange(&mut link, task).await {
                Ok((answer, reusable)) => return Some((Ok(answer), reusable.then_some(link))),
                // The server had closed it by then.
                Err(BrokenExchange { silent: true, error }) if task.plan.idempotent => drop(error),
                Err(BrokenExchange { error, .. }) => return Some((Err(error), None)),
            }
        }
        let mut link = match Box::pin(self.access.connect(&task.plan.wanted, self.until)).await {
            Ok(link) => link,
            Err(error) if error.kind() == ErrorKind::Exhausted && self.open.load(Relaxed) > 1 => return None,
            Err(error) => return Some((Err(error), None)),
        };
        self.access.reach.counters.count(Event::Connected);
        Some(match self.exchange(&mut link, task).await {
            Ok((answer, reusable)) => (Ok(answer), reusable.then_some(link)),
            Err(BrokenExchange { error, .. }) => (Err(error), None),
        })
    }

    async fn exchange(&self, link: &mut OpenLink, task: &mut Task<'a>) -> Result<(Answer, bool), BrokenExchange> {
        let Task { plan, room, .. } = task;
        link.begin(Some(self.access.patience(plan.wanted.own_patience, self.until)));
        let exchanged = exchange(link, plan, room, &self.quota, self.until);
        match in_call(self.until, async { Ok(exchanged.await) }).await {
            Ok(outcome) => outcome.inspect_err(|failed| note_if_late(self.until, &failed.error)),
            Err(late) => Err(BrokenExchange { error: late, silent: false }),
        }
    }
}
