//! Compiling, which may take long: few components at a time, each open waiting for its own no longer than it must. Whose is next
//! [`Turns`] decides: the first compilation of a backend or tenant does not wait for those of others.
//!
//! With the compile helper (see [`super::helper`]) what misses its deadline or passes its bounds is ended, and its failure is
//! remembered by the component's digest for a while. Where the operator wants it the compiler runs on threads of this process, which
//! cannot be ended: they go on at the lowest priority, and the next open finds the code in the AOT cache, or waits for the same compilation.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use wasmtime::Engine;
use wasmtime::component::Component;

use super::aot::{Cache, load_checked};
use kv_platform::sync::{Condvar, Mutex};
use kv_platform::system::{step_back, thread_number};

use super::helper::{Allowance, Deadline, Program};
use super::source::Sealed;
use crate::error::{Error, ErrorKind};
use crate::limits;
use crate::panics;
use crate::signals::with_signals_blocked;
use crate::threads::{Turns, Whose};

type Digest = [u8; 32];

pub(super) struct Compiler {
    jobs: Mutex<Jobs>,
    /// A job has ended.
    ended: Condvar,
    failures: Mutex<Vec<Failure>>,
}

struct Jobs {
    running: HashMap<Digest, Arc<Job>>,
    turns: Turns,
    /// Those who wait for a turn, in the order in which they came.
    waiting: BTreeMap<u64, Whose>,
    numbered: u64,
}

impl Default for Compiler {
    fn default() -> Self {
        let jobs = Jobs {
            running: HashMap::new(),
            turns: Turns::new(limits::MAX_COMPILATIONS, limits::MAX_EXTRA_COMPILATIONS),
            waiting: BTreeMap::new(),
            numbered: 0,
        };
        Compiler { jobs: Mutex::new(jobs), ended: Condvar::new(), failures: Mutex::default() }
    }
}

/// A component that was measured.
pub(super) struct Accepted {
    pub digest: Digest,
    pub bytes: Sealed,
    pub instance_bytes: u64,
}

/// A compilation that would fail again.
struct Failure {
    digest: Digest,
    error: Error,
    allowance: Allowance,
    at: Instant,
}

struct Job {
    outcome: Mutex<Option<Result<Component, Error>>>,
    done: Condvar,
    /// Until when somebody waits for it.
    until: Deadline,
    threads: Mutex<Threads>,
}

/// The threads of a job in this process, by the kernel's numbers, while they run.
#[derive(Default)]
struct Threads {
    running: Vec<i32>,
    /// Nobody waits any more.
    late: bool,
}

impl Compiler {
    /// Compile a component and keep its code in the cache, or wait for whoever does. Without a program it is compiled in
    /// this process.
    pub(super) fn compile(
        &'static self,
        engine: &'static Engine,
        cache: Option<&'static Cache>,
        accepted: Accepted,
        allowance: Allowance,
        program: Option<Program>,
        whose: &Whose,
    ) -> Result<Component, Error> {
        let Accepted { digest, bytes, instance_bytes } = accepted;
        let patience = Duration::from_millis(allowance.milliseconds);
        let Some(program) = program else {
            return self.run(digest, patience, Duration::ZERO, whose, move |job| {
                job.in_own_threads(|| {
                    let component = Component::new(engine, &*bytes)
                        .map_err(|error| Error::invalid(format!("does not compile: {error:#}")))?;
                    if let Some(cache) = cache {
                        cache.put(&digest, instance_bytes, &component);
                    }
                    Ok(component)
                })
            });
        };
        if let Some(error) = self.failed_before(&digest, allowance) {
            return Err(error);
        }
        self.run(digest, patience, limits::COMPILE_GRACE, whose, move |job| {
            let code = program.compile(engine, &digest, &bytes, allowance, &job.until).map_err(|failed| {
                if failed.lasting {
                    self.remember(digest, failed.error.clone(), allowance);
                }
                failed.error
            })?;
            drop(bytes);
            if let Some(cache) = cache {
                cache.put_sealed(&digest, instance_bytes, &code);
                if let Some((component, _)) = cache.get(engine, &digest) {
                    return Ok(component);
                }
            }
            // SAFETY: the program is one that only root or this user decides on; its code was checked, and sealed since.
            unsafe { load_checked(engine, &code) }
                .map_err(|error| Error::new(ErrorKind::Other, format!("cannot load compiled code: {error:#}")))
        })
    }

    /// Why a component is not compiled again, where it is known that it would fail.
    fn failed_before(&self, digest: &Digest, allowance: Allowance) -> Option<Error> {
        let mut failures = self.failures.lock();
        failures.retain(|failure| failure.at.elapsed() < limits::COMPILE_FAILED_FOR);
        let failure = failures.iter().find(|failure| failure.digest == *digest)?;
        let Allowance { memory, milliseconds } = failure.allowance;
        if allowance.memory > memory || allowance.milliseconds > milliseconds {
            return None;
        }
        let (ago, again) = (failure.at.elapsed().as_secs(), limits::COMPILE_FAILED_FOR.as_secs());
        let message =
            format!("{} ({ago} s ago; it is tried again after {again} s, or with higher limits)", failure.error);
        Some(Error::new(failure.error.kind(), message))
    }

    fn remember(&self, digest: Digest, error: Error, allowance: Allowance) {
        let mut failures = self.failures.lock();
        failures.retain(|failure| failure.digest != digest);
        if failures.len() >= limits::MAX_COMPILE_FAILURES {
            // The oldest: they are in order.
            failures.remove(0);
        }
        failures.push(Failure { digest, error, allowance, at: Instant::now() });
    }

    /// `grace`: how long a job that ends with the patience of those who wait may take to say so.
    fn run(
        &'static self,
        digest: Digest,
        patience: Duration,
        grace: Duration,
        whose: &Whose,
        work: impl FnOnce(&Arc<Job>) -> Result<Component, Error> + Send + 'static,
    ) -> Result<Component, Error> {
        let deadline = Instant::now() + patience;
        let job = self.begin(digest, deadline, whose, work)?;
        let mut outcome = job.outcome.lock();
        loop {
            if let Some(outcome) = &*outcome {
                return outcome.clone();
            }
            let left = (deadline + grace).saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            outcome = job.done.wait_timeout(outcome, left);
        }
        drop(outcome);
        job.lower_priority();
        let message = format!(
            "compiling takes longer than {} ms (compile_ms); it goes on in the background, try again later",
            patience.as_millis()
        );
        Err(Error::new(ErrorKind::Unavailable, message))
    }

    /// The job for a component, begun if it is not there and it is its turn.
    fn begin(
        &'static self,
        digest: Digest,
        deadline: Instant,
        whose: &Whose,
        work: impl FnOnce(&Arc<Job>) -> Result<Component, Error> + Send + 'static,
    ) -> Result<Arc<Job>, Error> {
        let left = || deadline.saturating_duration_since(Instant::now());
        let mut jobs = self.jobs.lock();
        jobs.numbered += 1;
        let number = jobs.numbered;
        jobs.waiting.insert(number, whose.clone());
        loop {
            if let Some(job) = jobs.running.get(&digest).cloned() {
                job.until.put_off(left());
                self.leave(&mut jobs, number);
                return Ok(job);
            }
            if jobs.turns.next(jobs.waiting.iter()) == Some(&number) {
                break;
            }
            if left().is_zero() {
                self.leave(&mut jobs, number);
                let message = format!("{} other components are being compiled; try again later", jobs.running.len());
                return Err(Error::new(ErrorKind::Unavailable, message));
            }
            jobs = self.ended.wait_timeout(jobs, left());
        }
        self.leave(&mut jobs, number);
        let job = Arc::new(Job {
            outcome: Mutex::default(),
            done: Condvar::new(),
            until: Deadline::new(left()),
            threads: Mutex::default(),
        });
        let (of_thread, its) = (job.clone(), whose.clone());
        let name = "kv-store-compile".to_owned();
        let started = with_signals_blocked(|| {
            thread::Builder::new().name(name).spawn(move || {
                let outcome = panics::caught(|| work(&of_thread)).unwrap_or_else(|_| Err(panicked()));
                let mut jobs = self.jobs.lock();
                jobs.running.remove(&digest);
                jobs.turns.end(&its);
                // Nobody finds the job any more, so an open that begins when this is known is not answered by it.
                *of_thread.outcome.lock() = Some(outcome);
                drop(jobs);
                of_thread.done.notify_all();
                self.ended.notify_all();
            })
        });
        started.map_err(|error| Error::new(ErrorKind::Exhausted, format!("cannot start the compiler: {error}")))?;
        jobs.turns.begin(whose);
        jobs.running.insert(digest, job.clone());
        Ok(job)
    }

    /// Somebody does not wait any more, so that others may be next.
    fn leave(&self, jobs: &mut Jobs, number: u64) {
        jobs.waiting.remove(&number);
        if !jobs.waiting.is_empty() {
            self.ended.notify_all();
        }
    }
}

fn panicked() -> Error {
    Error::new(ErrorKind::Other, "the compiler panicked on it: please report it")
}

impl Job {
    /// Compile on threads that are this job's alone, so that they can be made to step back, and none is left after a fork.
    fn in_own_threads(
        self: &Arc<Self>,
        work: impl FnOnce() -> Result<Component, Error> + Send,
    ) -> Result<Component, Error> {
        let (begun, ended) = (self.clone(), self.clone());
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(thread::available_parallelism().map_or(1, usize::from))
            .thread_name(|n| format!("kv-store-comp-{n}"))
            .start_handler(move |_| begun.thread_began())
            .exit_handler(move |_| ended.thread_ends())
            .build();
        let pool =
            pool.map_err(|error| Error::new(ErrorKind::Exhausted, format!("cannot start the compiler: {error}")))?;
        pool.install(work)
    }

    fn thread_began(&self) {
        panics::own_thread();
        let mut threads = self.threads.lock();
        threads.running.push(thread_number());
        if threads.late {
            step_back(thread_number());
        }
    }

    fn thread_ends(&self) {
        let own = thread_number();
        self.threads.lock().running.retain(|thread| *thread != own);
    }

    fn lower_priority(&self) {
        // Under the lock no thread ends, so that no number is another's by now.
        let mut threads = self.threads.lock();
        threads.late = true;
        threads.running.iter().copied().for_each(step_back);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    fn compiler() -> &'static Compiler {
        Box::leak(Box::default())
    }

    /// Work that waits until it is let go.
    fn held() -> (std::sync::mpsc::Sender<()>, impl FnOnce(&Arc<Job>) -> Result<Component, Error> + Send) {
        let (go, wait) = channel();
        (go, move |job: &Arc<Job>| {
            job.in_own_threads(move || {
                let _ = wait.recv();
                Err(Error::invalid("done"))
            })
        })
    }

    const SOON: Duration = Duration::from_millis(30);
    const LATE: Duration = Duration::from_secs(60);
    const NO_GRACE: Duration = Duration::ZERO;

    #[test]
    fn a_late_compilation_is_given_up_goes_on_and_is_waited_for_by_the_next() {
        let compiler = compiler();
        let (go, work) = held();
        let error = compiler.run([1; 32], SOON, NO_GRACE, &Whose::default(), work).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.to_string().contains("compile_ms"), "{error}");
        let threads = compiler.jobs.lock().running[&[1; 32]].threads.lock().running.clone();
        assert!(!threads.is_empty());
        for thread in threads {
            // SAFETY: no memory is involved.
            assert_eq!(unsafe { libc::getpriority(libc::PRIO_PROCESS, thread as libc::id_t) }, 19);
        }
        let next = thread::spawn(|| {
            compiler.run([1; 32], LATE, NO_GRACE, &Whose::default(), |_| panic!("a second time")).err().unwrap()
        });
        thread::sleep(SOON);
        go.send(()).unwrap();
        assert_eq!(next.join().unwrap().to_string(), "done");
    }

    #[test]
    fn few_are_compiled_at_once_and_the_rest_waits_its_turn() {
        let (compiler, whose) = (compiler(), Whose::default());
        let started: Vec<_> = (0..limits::MAX_COMPILATIONS as u8)
            .map(|n| {
                let (go, work) = held();
                compiler.run([n; 32], SOON, NO_GRACE, &whose, work).err().unwrap();
                go
            })
            .collect();
        let error = compiler.run([99; 32], SOON, NO_GRACE, &whose, |_| Err(Error::invalid("no turn"))).err().unwrap();
        assert!(error.to_string().contains("being compiled"), "{error}");
        assert!(compiler.jobs.lock().waiting.is_empty(), "who gave up waits no more");
        let of_waiting = whose.clone();
        let waits = thread::spawn(move || {
            compiler.run([99; 32], LATE, NO_GRACE, &of_waiting, |_| Err(Error::invalid("its turn"))).err().unwrap()
        });
        started[0].send(()).unwrap();
        assert_eq!(waits.join().unwrap().to_string(), "its turn");
    }

    #[test]
    fn the_first_compilation_of_another_owner_waits_for_no_slow_ones() {
        let (compiler, offender) = (compiler(), Whose::default());
        let held: Vec<_> = (0..limits::MAX_COMPILATIONS as u8)
            .map(|n| {
                let (go, work) = held();
                compiler.run([n; 32], SOON, NO_GRACE, &offender, work).err().unwrap();
                go
            })
            .collect();
        // Neither of the two ends, and a third of the offender's waits before.
        let third = offender.clone();
        let waits = thread::spawn(move || {
            compiler.run([9; 32], LATE, NO_GRACE, &third, |_| Err(Error::invalid("the third"))).err().unwrap()
        });
        while compiler.jobs.lock().waiting.is_empty() {
            thread::yield_now();
        }
        let other = compiler.run([10; 32], LATE, NO_GRACE, &Whose::default(), |_| Err(Error::invalid("another's")));
        assert_eq!(other.err().unwrap().to_string(), "another's");
        assert!(!waits.is_finished());
        drop(held);
        assert_eq!(waits.join().unwrap().to_string(), "the third");
    }

    #[test]
    fn an_open_after_a_failed_one_gets_no_answer_of_before() {
        let compiler = compiler();
        for n in 0..2000 {
            let failed = move |_: &Arc<Job>| Err(Error::invalid(n.to_string()));
            let error = compiler.run([1; 32], LATE, NO_GRACE, &Whose::default(), failed).err().unwrap();
            assert_eq!(error.to_string(), n.to_string());
        }
    }

    #[test]
    fn a_panic_of_the_compiler_is_an_error() {
        for in_own_threads in [false, true] {
            let error = compiler().run([1; 32], LATE, NO_GRACE, &Whose::default(), move |job| {
                if in_own_threads { job.in_own_threads(|| panic!("a bug")) } else { panic!("a bug") }
            });
            assert!(error.err().unwrap().to_string().contains("panicked"));
        }
    }

    #[test]
    fn a_failure_is_remembered_until_more_is_allowed() {
        let compiler = compiler();
        let allowed = |memory, milliseconds| Allowance { memory, milliseconds };
        let known = |digest, allowance| compiler.failed_before(&[digest; 32], allowance);
        compiler.remember([1; 32], Error::new(ErrorKind::Exhausted, "a bomb"), allowed(100, 100));
        let again = known(1, allowed(100, 100)).unwrap();
        assert!(again.kind() == ErrorKind::Exhausted && again.to_string().contains("a bomb (0 s ago"), "{again}");
        assert!(known(1, allowed(99, 100)).is_some());
        assert!(known(1, allowed(101, 100)).is_none() && known(1, allowed(100, 101)).is_none());
        assert!(known(2, allowed(1, 1)).is_none());
        (2..).take(limits::MAX_COMPILE_FAILURES).for_each(|n| {
            compiler.remember([n as u8; 32], Error::invalid("another"), allowed(1, 1));
        });
        assert_eq!(compiler.failures.lock().len(), limits::MAX_COMPILE_FAILURES);
        assert!(known(1, allowed(1, 1)).is_none(), "the oldest is forgotten");
    }
}
