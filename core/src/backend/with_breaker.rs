//! The circuit breaker around a backend: a call is refused while it is open, and what each call comes to is reported to it.
//!
//! A batch fails if none of its items was answered: a call that failed, or answered a failure of the component or of reaching
//! the server to every item. It also fails if its time ran out before half of its items were answered: a backend that answers an
//! item just before each deadline holds its callers up as one that hangs does. A caller who gave too little time, and a store
//! whose instances are all at work, say nothing of the backend. Nor does a server of several that is not reached while another
//! one answers: a call for what lies there fails, and the rest of the store is served.

use std::borrow::Cow;
use std::sync::Arc;

use super::{Answers, Backend, ChunkHash, ChunkToPut, Committed, Got, Presence, Put, Target};
use crate::breaker::{Breaker, counts};
use crate::counters::{Counters, Event};
use crate::error::{Error, ErrorKind};
use crate::payload::Buffer;
use crate::until::Until;

const LATE: &str = "its time ran out before half of the items were answered (deadline_ms in the config)";

pub struct WithBreaker {
    inner: Arc<dyn Backend>,
    breaker: Arc<Breaker>,
    counters: Arc<Counters>,
}

impl WithBreaker {
    pub fn new(inner: Arc<dyn Backend>, breaker: Arc<Breaker>, counters: Arc<Counters>) -> Self {
        WithBreaker { inner, breaker, counters }
    }

    /// One call. `asks`: success means that the backend is well. `failure`: what it says against the backend, if anything.
    fn call<T>(
        &self,
        until: &Until,
        asks: bool,
        call: impl FnOnce(&dyn Backend) -> Result<T, Error>,
        failure: impl FnOnce(&T) -> Option<Cow<'_, Error>>,
    ) -> Result<T, Error> {
        until.check()?;
        let pass = self.breaker.admit().inspect_err(|_| self.counters.count(Event::BreakerRefused))?;
        let answer = call(&*self.inner);
        let failed = match &answer {
            Ok(answer) => failure(answer),
            Err(error) => Some(Cow::Borrowed(error)),
        };
        match failed {
            Some(error) if error.is_busy() => pass.give_back(),
            // Its caller gave too little time. What fails within it, as a server that nobody listens for, counts.
            Some(error) if error.kind() == ErrorKind::Unavailable && until.is_cut_short() && until.check().is_err() => {
                drop(error);
                pass.give_back();
                return answer.map_err(|error| until.check().err().unwrap_or(error));
            }
            Some(error) if error.kind() == ErrorKind::Unavailable && until.some_servers_unreachable() => {
                pass.report(None);
            }
            None if !asks => pass.give_back(),
            failed => {
                if pass.report(failed.as_deref()) {
                    self.counters.count(Event::BreakerOpened);
                }
            }
        }
        answer
    }

    fn batch<T>(&self, asked: usize, until: &Until, call: impl FnOnce(&dyn Backend) -> Answers<T>) -> Answers<T> {
        self.call(until, true, call, |answers| match nothing_answered(answers) {
            Some(error) => Some(Cow::Borrowed(error)),
            None if fell_behind(answers, asked, until) => Some(Cow::Owned(Error::new(ErrorKind::Unavailable, LATE))),
            None => None,
        })
    }

    fn single<T>(&self, until: &Until, call: impl FnOnce(&dyn Backend) -> Result<T, Error>) -> Result<T, Error> {
        self.call(until, true, call, |_| None)
    }
}

/// Whether the time of a batch ran out, and less than half of what it asked for was answered.
fn fell_behind<T>(answers: &[Result<T, Error>], asked: usize, until: &Until) -> bool {
    let answered = answers.iter().filter(|answer| !answer.as_ref().is_err_and(is_failure)).count();
    2 * answered < asked && until.is_over()
}

/// Why no item of a batch was answered. `None` if one was: what is refused is answered too.
fn nothing_answered<T>(answers: &[Result<T, Error>]) -> Option<&Error> {
    let mut failures = answers.iter().map(|answer| answer.as_ref().err().filter(|error| is_failure(error)));
    let first = failures.next()??;
    failures.all(|failure| failure.is_some()).then_some(first)
}

/// Whether what was answered to an item says something against the backend.
fn is_failure(error: &Error) -> bool {
    counts(error.kind()) && !error.is_busy()
}

impl Backend for WithBreaker {
    fn exists(&self, hashes: &[ChunkHash], until: &Until) -> Answers<Presence> {
        self.batch(hashes.len(), until, |inner| inner.exists(hashes, until))
    }

    fn put(&self, chunks: &[ChunkToPut<'_>], replace: bool, until: &Until) -> Answers<Put> {
        self.batch(chunks.len(), until, |inner| inner.put(chunks, replace, until))
    }

    fn get(&self, hashes: &[ChunkHash], targets: &mut [Target<'_>], until: &Until) -> Answers<Option<Got>> {
        self.batch(hashes.len(), until, |inner| inner.get(hashes, targets, until))
    }

    fn delete(&self, hashes: &[ChunkHash], until: &Until) -> Answers<()> {
        self.batch(hashes.len(), until, |inner| inner.delete(hashes, until))
    }

    fn commit(
        &self,
        manifest: Option<(&str, &[u8])>,
        fresh: &[ChunkHash],
        bytes: u64,
        until: &Until,
    ) -> Result<Committed, Error> {
        // With nothing to make durable no server is asked: a save whose puts all failed ends so.
        let asks = manifest.is_some() || !fresh.is_empty();
        self.call(until, asks, |inner| inner.commit(manifest, fresh, bytes, until), |_| None)
    }

    fn get_manifest(&self, name: &str, until: &Until) -> Result<Option<Arc<Buffer>>, Error> {
        self.single(until, |inner| inner.get_manifest(name, until))
    }

    fn delete_manifest(&self, name: &str, until: &Until) -> Result<(), Error> {
        self.single(until, |inner| inner.delete_manifest(name, until))
    }

    fn retire(&self) {
        self.inner.retire();
    }

    fn drop_connections(&self) {
        self.inner.drop_connections();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::Relaxed;
    use std::time::{Duration, Instant};

    use super::super::fake::{Fake, hashes};
    use super::*;
    use crate::counters;
    use crate::limits::Limits;
    use crate::process::Clock;

    fn guarded(failures: u64) -> (Arc<Fake>, WithBreaker, Until) {
        let limits = Limits { breaker_failures: failures, breaker_ms: 60_000, ..Limits::default() };
        let (fake, breaker) =
            (Arc::new(Fake::default()), Arc::new(Breaker::new("fake://x", &limits, &Clock::default())));
        let counters = counters::ProcessCounters::default().of("guarded-test", None);
        (fake.clone(), WithBreaker::new(fake, breaker, counters), Until::new(&limits))
    }

    fn error(kind: ErrorKind) -> Error {
        Error::new(kind, "on purpose")
    }

    #[test]
    fn a_batch_fails_only_where_no_item_was_answered() {
        let (fake, guarded, until) = guarded(2);
        let asked = hashes(3);
        let gets = |kinds: [Option<ErrorKind>; 3]| {
            fake.answer_gets(kinds.map(|kind| kind.map_or(Ok(()), |kind| Err(error(kind)))).to_vec());
            guarded.get(&asked, &mut [], &until)
        };
        let away = Some(ErrorKind::Unavailable);
        // One item that is answered, or refused, is an answer.
        for mixed in [[away, away, None], [None, away, away], [away, Some(ErrorKind::Denied), away]] {
            for _ in 0..3 {
                assert_eq!(gets(mixed).unwrap().len(), 3);
            }
        }
        // A list in which every item failed is a failed call.
        for _ in 0..2 {
            assert_eq!(gets([away, Some(ErrorKind::Component), away]).unwrap().len(), 3);
        }
        let calls = fake.calls();
        let refused = gets([None; 3]).expect_err("the breaker is open");
        assert!(refused.to_string().contains("on purpose"), "{refused}");
        assert_eq!(fake.calls(), calls, "and nothing was asked");
    }

    #[test]
    fn a_batch_that_falls_behind_counts_once_its_time_is_over() {
        let (fake, guarded, in_time) = guarded(1);
        let asked = hashes(4);
        fake.delay.store(30, Relaxed);
        let get = |answered: usize, until: &Until| {
            // As a backend answers that is short of time.
            fake.most_answered.store(answered, Relaxed);
            guarded.get(&asked, &mut [], until).map(|answers| answers.len())
        };
        let late = || Until::new(&Limits { deadline_ms: 10, ..Limits::default() });
        assert_eq!(get(1, &in_time).unwrap(), 1);
        assert_eq!(get(2, &late()).unwrap(), 2, "half of them is not behind");
        let own = Instant::now() + Duration::from_millis(10);
        assert_eq!(
            get(1, &Until::with(&Clock::default(), &Limits::default(), Some(own), None)).unwrap(),
            1,
            "its caller gave no more time"
        );
        assert_eq!(get(1, &late()).unwrap(), 1);
        let refused = get(4, &in_time).expect_err("the breaker is open");
        assert!(refused.to_string().contains("half of the items"), "{refused}");
    }

    #[test]
    fn a_dead_server_of_several_leaves_the_breaker_closed_while_another_answers() {
        let (fake, guarded, _) = guarded(2);
        let asked = hashes(2);
        let call = |servers: &[(&str, bool)], kind| {
            let until = Until::new(&Limits::default());
            servers.iter().for_each(|(server, answered)| until.met(server, *answered));
            fake.answer_gets(vec![Err(error(kind)), Err(error(kind))]);
            let answers = guarded.get(&asked, &mut [], &until);
            fake.fail_calls(Some(error(kind)));
            let commit = guarded.commit(None, &asked, 0, &until);
            fake.fail_calls(None);
            (answers.is_ok(), commit.is_err_and(|error| !error.to_string().contains("not tried")))
        };
        for _ in 0..3 {
            assert_eq!(call(&[("a:1", false), ("b:1", true)], ErrorKind::Unavailable), (true, true));
        }
        // One server, lost; or one that answers that it cannot serve.
        for servers in [&[("a:1", false)][..], &[("a:1", true)], &[("a:1", false), ("b:1", false)]] {
            let (fake, guarded, _) = self::guarded(1);
            let until = Until::new(&Limits::default());
            servers.iter().for_each(|(server, answered)| until.met(server, *answered));
            fake.answer_gets(vec![Err(error(ErrorKind::Unavailable))]);
            assert!(guarded.get(&asked, &mut [], &until).is_ok());
            assert!(guarded.get(&asked, &mut [], &until).is_err(), "{servers:?}");
        }
        // What the component does wrong is not the server's doing.
        assert_eq!(call(&[("a:1", false), ("b:1", true)], ErrorKind::Component), (true, true));
        assert_eq!(call(&[("a:1", false), ("b:1", true)], ErrorKind::Component), (false, false));
    }

    #[test]
    fn what_says_nothing_of_the_backend_does_not_count() {
        let (fake, guarded, until) = guarded(1);
        let asked = hashes(1);
        fake.fail_calls(Some(Error::busy("all at work")));
        assert!(guarded.exists(&asked, &until).is_err());
        // A server that sheds load answers so to each item.
        fake.fail_calls(None);
        fake.answer_gets(vec![Err(Error::busy("SlowDown"))]);
        for _ in 0..3 {
            assert!(guarded.get(&asked, &mut [], &until).is_ok());
        }
        // The caller gave too little time.
        let soon =
            Until::with(&Clock::default(), &Limits::default(), Some(Instant::now() + Duration::from_millis(20)), None);
        fake.delay.store(30, Relaxed);
        fake.fail_calls(Some(error(ErrorKind::Unavailable)));
        assert!(guarded.exists(&asked, &soon).is_err());
        fake.delay.store(0, Relaxed);
        fake.fail_calls(None);
        assert!(guarded.exists(&asked, &until).is_ok(), "the breaker is closed");
        fake.fail_calls(Some(error(ErrorKind::Unavailable)));
        assert!(guarded.exists(&asked, &until).is_err());
        fake.fail_calls(None);
        assert!(guarded.exists(&asked, &until).is_err(), "and now it is open");
    }

    #[test]
    fn a_server_that_is_away_counts_whatever_time_a_caller_gave() {
        let (fake, guarded, _) = guarded(3);
        let asked = hashes(2);
        let soon = Instant::now() + Duration::from_secs(1);
        let until = Until::with(&Clock::default(), &Limits::default(), Some(soon), None);
        fake.answer_gets(vec![Err(error(ErrorKind::Unavailable)), Err(error(ErrorKind::Unavailable))]);
        for _ in 0..3 {
            assert!(guarded.get(&asked, &mut [], &until).is_ok_and(|answers| answers.len() == 2));
            // The end of a save of which nothing was stored.
            let _ = guarded.commit(None, &[], 0, &until);
        }
        let calls = fake.calls();
        assert!(guarded.get(&asked, &mut [], &until).is_err());
        assert_eq!(fake.calls(), calls, "the breaker is open");
    }
}
