//! Questions to the store, which the program waits for no longer than it gains by them.
//!
//! One thread asks, one question at a time. While it is busy with a question that nobody waits for any more, further ones are not asked,
//! and after a failure the store is left alone for a while: so a store that is down or frozen costs one wait, and then nothing.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use kv_platform::signals::with_signals_blocked;
use kv_platform::sync::Mutex;

use super::rates::Pause;
use crate::log;

type Question = Box<dyn FnOnce() + Send>;

struct State {
    /// To the thread, and the process that it is in: a child that was forked off has none.
    questions: Option<(Sender<Question>, u32)>,
    /// The thread is at a question.
    busy: Arc<AtomicBool>,
    pause: Pause,
    paused_until: Option<Instant>,
}

/// The thread and what is known of the store.
pub struct Asker {
    state: Mutex<State>,
}

impl Asker {
    pub fn new() -> Asker {
        let state = State { questions: None, busy: Arc::default(), pause: Pause::default(), paused_until: None };
        Asker { state: Mutex::new(state) }
    }

    /// Ask, and wait no longer than `patience`. `None`: not asked, failed, or no answer in time.
    pub fn ask<T: Send + 'static>(
        &self,
        patience: Duration,
        question: impl FnOnce() -> Result<T, String> + Send + 'static,
    ) -> Option<T> {
        let (answer, answered) = channel();
        {
            let mut state = self.state.lock();
            if state.paused_until.is_some_and(|until| Instant::now() < until) {
                return None;
            }
            let busy = Arc::clone(&state.busy);
            let thread = state.thread()?;
            if busy.swap(true, SeqCst) {
                return None;
            }
            let question: Question = Box::new(move || {
                let found = catch_unwind(AssertUnwindSafe(question));
                busy.store(false, SeqCst);
                // Nobody may wait for it any more.
                let _ = answer.send(found.unwrap_or_else(|_| Err("a panic in this library".to_owned())));
            });
            thread.send(question).ok()?;
        }
        let (found, waited) = match answered.recv_timeout(patience) {
            Ok(found) => (found, None),
            Err(RecvTimeoutError::Timeout) => {
                (Err(format!("no answer within {:.0} ms", patience.as_secs_f64() * 1e3)), Some(patience))
            }
            Err(RecvTimeoutError::Disconnected) => (Err("its thread ended".to_owned()), None),
        };
        let mut state = self.state.lock();
        match found {
            Ok(found) => {
                state.pause.succeeded();
                Some(found)
            }
            Err(error) => {
                let pause = state.pause.failed(waited);
                state.paused_until = Some(Instant::now() + pause);
                log::line(format_args!("the store is not asked for {:.1} s: {error}", pause.as_secs_f64()));
                None
            }
        }
    }
}

impl State {
    fn thread(&mut self) -> Option<&Sender<Question>> {
        let process = std::process::id();
        if self.questions.is_none() {
            let (send, questions) = channel();
            let thread = std::thread::Builder::new().name("kv-llama-asks".to_owned());
            with_signals_blocked(|| thread.spawn(move || answer_all(&questions))).ok()?;
            self.questions = Some((send, process));
        }
        self.questions.as_ref().filter(|(_, owner)| *owner == process).map(|(send, _)| send)
    }
}

fn answer_all(questions: &Receiver<Question>) {
    while let Ok(question) = questions.recv() {
        question();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn a_question_that_takes_long_is_left_and_no_other_is_asked_meanwhile() {
        let asker = Asker::new();
        assert_eq!(asker.ask(LONG, || Ok(7)), Some(7));
        let (go, wait) = channel::<()>();
        let (done, ended) = channel::<()>();
        let slow = asker.ask(Duration::from_millis(20), move || {
            let _ = wait.recv();
            drop(done);
            Ok(1)
        });
        assert_eq!(slow, None);
        asker.state.lock().paused_until = None;
        assert_eq!(asker.ask(LONG, || Ok(2)), None, "the thread is busy");
        go.send(()).unwrap();
        assert!(ended.recv().is_err());
        while asker.state.lock().busy.load(SeqCst) {
            std::thread::yield_now();
        }
        assert_eq!(asker.ask(LONG, || Ok(3)), Some(3));
    }

    #[test]
    fn a_store_that_fails_is_left_alone_for_a_while() {
        let asker = Asker::new();
        assert_eq!(asker.ask(LONG, || Err::<i32, _>("it is down".to_owned())), None);
        assert_eq!(asker.ask(LONG, || Ok(2)), None);
        asker.state.lock().paused_until = None;
        assert_eq!(asker.ask(LONG, || Ok(3)), Some(3));
        assert_eq!(asker.ask(LONG, || -> Result<i32, String> { panic!("on purpose") }), None);
        asker.state.lock().paused_until = None;
        assert_eq!(asker.ask(LONG, || Ok(4)), Some(4));
    }
}
