//! Compiling, which may take long: on threads of its own, few at a time, each open waiting for its component no longer than
//! it must. What misses the deadline is not lost: its threads go on at the lowest priority, and the next open finds the
//! code in the AOT cache, or waits for the same compilation. Its memory is not bounded, but that of what is compiled is,
//! by the number and size of its functions.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use wasmtime::Engine;
use wasmtime::component::Component;

use super::aot::Cache;
use crate::error::{Error, ErrorKind};
use crate::limits;
use crate::signals::with_signals_blocked;

type Digest = [u8; 32];

#[derive(Default)]
pub(super) struct Compiler {
    jobs: Mutex<HashMap<Digest, Arc<Job>>>,
    /// A job has ended.
    ended: Condvar,
}

#[derive(Default)]
struct Job {
    outcome: Mutex<Option<Result<Component, Error>>>,
    done: Condvar,
    threads: Mutex<Threads>,
}

/// The threads of a job, by the kernel's numbers, while they run.
#[derive(Default)]
struct Threads {
    running: Vec<libc::pid_t>,
    /// Nobody waits any more.
    late: bool,
}

impl Compiler {
    /// Compile a component and keep its code in the cache, or wait for whoever does.
    pub(super) fn compile(
        &'static self,
        engine: &'static Engine,
        cache: Option<&'static Cache>,
        digest: Digest,
        bytes: Vec<u8>,
        patience: Duration,
    ) -> Result<Component, Error> {
        self.run(digest, patience, move || {
            let component = Component::new(engine, &bytes)
                .map_err(|error| Error::invalid(format!("does not compile: {error:#}")))?;
            if let Some(cache) = cache {
                cache.put(&digest, &component);
            }
            Ok(component)
        })
    }

    fn run(
        &'static self,
        digest: Digest,
        patience: Duration,
        work: impl FnOnce() -> Result<Component, Error> + Send + 'static,
    ) -> Result<Component, Error> {
        let deadline = Instant::now() + patience;
        let job = self.begin(digest, deadline, work)?;
        let mut outcome = lock(&job.outcome);
        loop {
            if let Some(outcome) = &*outcome {
                return outcome.clone();
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            outcome = job.done.wait_timeout(outcome, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        drop(outcome);
        job.lower_priority();
        let message = format!(
            "compiling takes longer than {} ms (compile_ms); it goes on in the background, try again later",
            patience.as_millis()
        );
        Err(Error::new(ErrorKind::Unavailable, message))
    }

    /// The job for a component, begun if it is not there and there is room.
    fn begin(
        &'static self,
        digest: Digest,
        deadline: Instant,
        work: impl FnOnce() -> Result<Component, Error> + Send + 'static,
    ) -> Result<Arc<Job>, Error> {
        let mut jobs = lock(&self.jobs);
        loop {
            if let Some(job) = jobs.get(&digest) {
                return Ok(job.clone());
            }
            if jobs.len() < limits::MAX_COMPILATIONS {
                break;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let message = format!("{} other components are being compiled; try again later", jobs.len());
                return Err(Error::new(ErrorKind::Unavailable, message));
            }
            jobs = self.ended.wait_timeout(jobs, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        let job = Arc::new(Job::default());
        let of_thread = job.clone();
        let name = "kv-store-compile".to_owned();
        let started = with_signals_blocked(|| {
            thread::Builder::new().name(name).spawn(move || {
                let outcome = of_thread.work(work);
                *lock(&of_thread.outcome) = Some(outcome);
                of_thread.done.notify_all();
                lock(&self.jobs).remove(&digest);
                self.ended.notify_all();
            })
        });
        started.map_err(|error| Error::new(ErrorKind::Exhausted, format!("cannot start the compiler: {error}")))?;
        jobs.insert(digest, job.clone());
        Ok(job)
    }
}

impl Job {
    /// Compile on threads that are this job's alone, so that they can be made to step back, and none is left after a fork.
    fn work(self: &Arc<Self>, work: impl FnOnce() -> Result<Component, Error> + Send) -> Result<Component, Error> {
        let (begun, ended) = (self.clone(), self.clone());
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(thread::available_parallelism().map_or(1, usize::from))
            .thread_name(|n| format!("kv-store-comp-{n}"))
            .start_handler(move |_| begun.thread_began())
            .exit_handler(move |_| ended.thread_ends())
            .build();
        let pool =
            pool.map_err(|error| Error::new(ErrorKind::Exhausted, format!("cannot start the compiler: {error}")))?;
        catch_unwind(AssertUnwindSafe(|| pool.install(work)))
            .unwrap_or_else(|_| Err(Error::new(ErrorKind::Other, "the compiler panicked on it: please report it")))
    }

    fn thread_began(&self) {
        let mut threads = lock(&self.threads);
        threads.running.push(own_number());
        if threads.late {
            step_back(own_number());
        }
    }

    fn thread_ends(&self) {
        let own = own_number();
        lock(&self.threads).running.retain(|thread| *thread != own);
    }

    fn lower_priority(&self) {
        // Under the lock no thread ends, so that no number is another's by now.
        let mut threads = lock(&self.threads);
        threads.late = true;
        threads.running.iter().copied().for_each(step_back);
    }
}

fn own_number() -> libc::pid_t {
    // SAFETY: has no condition.
    unsafe { libc::gettid() }
}

/// Give a thread of this process the lowest priority.
fn step_back(thread: libc::pid_t) {
    // SAFETY: no memory is involved. It only matters for how fast things go whether it succeeds.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, thread as libc::id_t, 19) };
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    fn compiler() -> &'static Compiler {
        Box::leak(Box::default())
    }

    /// Work that waits until it is let go.
    fn held() -> (std::sync::mpsc::Sender<()>, impl FnOnce() -> Result<Component, Error> + Send) {
        let (go, wait) = channel();
        (go, move || {
            let _ = wait.recv();
            Err(Error::invalid("done"))
        })
    }

    const SOON: Duration = Duration::from_millis(30);
    const LATE: Duration = Duration::from_secs(60);

    #[test]
    fn a_late_compilation_is_given_up_goes_on_and_is_waited_for_by_the_next() {
        let compiler = compiler();
        let (go, work) = held();
        let error = compiler.run([1; 32], SOON, work).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.to_string().contains("compile_ms"), "{error}");
        let threads = lock(&lock(&compiler.jobs)[&[1; 32]].threads).running.clone();
        assert!(!threads.is_empty());
        for thread in threads {
            // SAFETY: no memory is involved.
            assert_eq!(unsafe { libc::getpriority(libc::PRIO_PROCESS, thread as libc::id_t) }, 19);
        }
        let next = thread::spawn(|| compiler.run([1; 32], LATE, || panic!("a second time")).err().unwrap());
        thread::sleep(SOON);
        go.send(()).unwrap();
        assert_eq!(next.join().unwrap().to_string(), "done");
    }

    #[test]
    fn few_are_compiled_at_once_and_the_rest_waits_its_turn() {
        let compiler = compiler();
        let started: Vec<_> = (0..limits::MAX_COMPILATIONS as u8)
            .map(|n| {
                let (go, work) = held();
                compiler.run([n; 32], SOON, work).err().unwrap();
                go
            })
            .collect();
        let error = compiler.run([99; 32], SOON, || Err(Error::invalid("no turn"))).err().unwrap();
        assert!(error.to_string().contains("being compiled"), "{error}");
        let waits = thread::spawn(|| compiler.run([99; 32], LATE, || Err(Error::invalid("its turn"))).err().unwrap());
        started[0].send(()).unwrap();
        assert_eq!(waits.join().unwrap().to_string(), "its turn");
    }

    #[test]
    fn a_panic_of_the_compiler_is_an_error() {
        let error = compiler().run([1; 32], LATE, || panic!("a bug")).err().unwrap();
        assert!(error.to_string().contains("panicked"), "{error}");
    }
}
