//! A queue of a fake.

use std::collections::BTreeSet;
use std::sync::atomic::AtomicUsize;
use std::thread;

use super::*;
use crate::threads::{Lent, Threads, Whose};

/// What jobs are carried out on: counts them.
#[derive(Default)]
struct FakeOpened {
    threads: Threads,
    whose: Whose,
    clock: Clock,
    limits: Limits,
    carried_out: AtomicUsize,
    /// Its queue was closed, and jobs that ran all the same.
    closed: AtomicBool,
    too_late: AtomicUsize,
}

impl QueueOwner for FakeOpened {
    fn check_process(&self) -> Result<(), Error> {
        Ok(())
    }

    fn threads(&self) -> (Lent<'_>, &Clock) {
        (self.threads.queues.lent(&self.whose), &self.clock)
    }

    fn limits(&self) -> &Limits {
        &self.limits
    }
}

/// Fills memory of its own, and looks at its time on the way as a batch does between its calls.
struct FillJob {
    memory: Vec<u8>,
    /// How long it takes over a byte, whatever happens meanwhile.
    pause: Duration,
    given_up: Option<ErrorKind>,
}

impl QueueTask<FakeOpened> for FillJob {
    fn run(&mut self, store: &FakeOpened, until: &Until) -> Result<(), Error> {
        for byte in &mut self.memory {
            until.check()?;
            thread::sleep(self.pause);
            *byte += 1;
            store.too_late.fetch_add(usize::from(store.closed.load(Relaxed)), Relaxed);
        }
        store.carried_out.fetch_add(1, Relaxed);
        Ok(())
    }

    fn give_up(&mut self, why: &Error) {
        self.given_up = Some(why.kind());
    }
}

fn fill(len: usize) -> FillJob {
    FillJob { memory: vec![0; len], pause: Duration::ZERO, given_up: None }
}

/// Wait until the descriptor says that something is done.
fn wait(queue: &Queue<FillJob, FakeOpened>) {
    let mut ready = libc::pollfd { fd: queue.event().unwrap(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one entry of ours.
    assert_eq!(unsafe { libc::poll(&mut ready, 1, 60_000) }, 1, "nothing is done");
}

#[test]
fn each_request_completes_once_whoever_submits_cancels_and_drains() {
    const THREADS: u64 = 3;
    const EACH: u64 = 200;
    let fake = Arc::new(FakeOpened::default());
    let queue = &Queue::of(fake.clone(), 16).unwrap();
    let mut completed = BTreeSet::new();
    let mut filled = 0;
    thread::scope(|scope| {
        for number in 0..THREADS {
            scope.spawn(move || {
                for cookie in number * EACH..(number + 1) * EACH {
                    let mut job = fill(16);
                    // It never waits: who finds it full tries again.
                    while let Err((back, full)) = queue.submit(cookie, job, None) {
                        assert_eq!(full.kind(), ErrorKind::Exhausted);
                        job = back;
                        thread::yield_now();
                    }
                    if cookie % 7 == 0 {
                        queue.cancel(cookie).unwrap();
                    }
                }
            });
        }
        while completed.len() < (THREADS * EACH) as usize {
            wait(queue);
            for Completion { cookie, job, outcome } in queue.drain(5).unwrap() {
                assert!(completed.insert(cookie), "{cookie} completes twice");
                match outcome {
                    Ok(()) => {
                        assert!(job.given_up.is_none() && job.memory.iter().all(|byte| *byte == 1));
                        filled += 1;
                    }
                    Err(why) => {
                        assert_eq!((why.kind(), job.given_up), (ErrorKind::Cancelled, Some(ErrorKind::Cancelled)));
                        assert_eq!(cookie % 7, 0, "{cookie} was not cancelled");
                    }
                }
            }
        }
    });
    assert_eq!(fake.carried_out.load(Relaxed), filled);
    assert!(filled >= (THREADS * EACH) as usize * 6 / 7 - THREADS as usize);
    assert!(queue.drain(1).unwrap().is_empty());
}

#[test]
fn closing_waits_until_no_job_runs() {
    let pause = Duration::from_millis(2);
    for _ in 0..10 {
        let fake = Arc::new(FakeOpened::default());
        let queue = Queue::of(fake.clone(), 64).unwrap();
        (0..32).for_each(|cookie| assert!(queue.submit(cookie, FillJob { pause, ..fill(64) }, None).is_ok()));
        thread::sleep(pause);
        drop(queue);
        fake.closed.store(true, Relaxed);
        thread::sleep(2 * pause);
        assert_eq!(fake.too_late.load(Relaxed), 0);
    }
}

#[test]
fn a_late_request_is_given_up_and_a_full_queue_gives_the_job_back() {
    let queue = Queue::of(Arc::new(FakeOpened::default()), 1).unwrap();
    assert!(queue.submit(1, fill(1), Some(Duration::ZERO)).is_ok());
    let (job, full) = queue.submit(2, fill(3), None).expect_err("it is full");
    assert_eq!((job.memory.len(), full.kind()), (3, ErrorKind::Exhausted));
    wait(&queue);
    let late = queue.drain(9).unwrap().pop().expect("it is done");
    assert_eq!((late.cookie, late.job.given_up), (1, Some(ErrorKind::Unavailable)));
    for depth in [0, limits::MAX_QUEUE_DEPTH + 1] {
        assert!(Queue::<FillJob, FakeOpened>::of(Arc::default(), depth).is_err());
    }
}
