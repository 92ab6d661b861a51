//! Names and their addresses. The resolver of the C library can only be waited for, on a thread that is lost until it
//! answers, which may be long after the call that asked has ended. So the threads are few, a name is looked up once at a
//! time for whoever asks, and a backend or tenant has few lookups under way: names that never answer hold up the stores of
//! whoever asks for them and no others.

use std::collections::HashMap;
use std::net::{IpAddr, ToSocketAddrs};
use std::sync::{Arc, Weak};

use kv_platform::sync::Mutex;
use tokio::sync::{Semaphore, watch};

use crate::budget::Owner;
use crate::engine;
use crate::error::{Error, ErrorKind};
use crate::limits;
use crate::process::PerProcess;

/// The lookups of a store, whose turns it shares with those of its owner.
pub(crate) struct Lookups {
    turns: Arc<Semaphore>,
    /// What is looked up in the process.
    under_way: &'static UnderWay,
}

type LookedUp = Result<Vec<IpAddr>, String>;

/// The lookups of the process.
#[derive(Default)]
struct OfProcess {
    under_way: UnderWay,
    /// The turns of each owner that has a store.
    turns: Mutex<Vec<(Weak<Owner>, Arc<Semaphore>)>>,
}

#[derive(Default)]
struct UnderWay(Mutex<HashMap<String, watch::Receiver<Option<LookedUp>>>>);

impl Lookups {
    pub(crate) fn of(owner: &Arc<Owner>) -> Self {
        static OF_PROCESS: PerProcess<OfProcess> = PerProcess::new();
        let OfProcess { under_way, turns } = OF_PROCESS.get();
        let mut turns = turns.lock();
        turns.retain(|(owner, _)| owner.strong_count() > 0);
        let known = turns.iter().find(|(known, _)| known.as_ptr() == Arc::as_ptr(owner));
        let own = known.map(|(_, turns)| turns.clone()).unwrap_or_else(|| {
            let new = Arc::new(Semaphore::new(limits::MAX_OWNER_LOOKUPS));
            turns.push((Arc::downgrade(owner), new.clone()));
            new
        });
        Lookups { turns: own, under_way }
    }

    /// The addresses of a name, or the address that it is.
    pub(crate) async fn resolve(&self, name: &str) -> Result<Vec<IpAddr>, Error> {
        self.resolve_by(name, system).await
    }

    async fn resolve_by(&self, name: &str, ask: fn(&str) -> LookedUp) -> Result<Vec<IpAddr>, Error> {
        if let Ok(address) = name.parse() {
            return Ok(vec![address]);
        }
        let name = name.to_ascii_lowercase();
        let mut answer = match self.joined(&name) {
            Some(answer) => answer,
            None => self.begin(&name, ask).await?,
        };
        let found = answer.wait_for(Option::is_some).await.ok().and_then(|found| found.clone());
        let found = found.unwrap_or_else(|| Err("the lookup ended without an answer".to_owned()));
        found.map_err(|error| Error::new(ErrorKind::Unavailable, format!("cannot resolve {name}: {error}")))
    }

    /// The answer to a lookup that somebody has begun.
    fn joined(&self, name: &str) -> Option<watch::Receiver<Option<LookedUp>>> {
        self.under_way.0.lock().get(name).cloned()
    }

    /// Look a name up on a thread of the driver's, when it is its owner's turn.
    async fn begin(&self, name: &str, ask: fn(&str) -> LookedUp) -> Result<watch::Receiver<Option<LookedUp>>, Error> {
        let closed = |_| Error::new(ErrorKind::Other, "no name is looked up any more");
        let turn = self.turns.clone().acquire_owned().await.map_err(closed)?;
        let (tell, answer) = watch::channel(None);
        {
            let mut all = self.under_way.0.lock();
            // Somebody may have begun while this one waited for its turn.
            if let Some(answer) = all.get(name) {
                return Ok(answer.clone());
            }
            all.insert(name.to_owned(), answer.clone());
        }
        let listed = Listed { under_way: self.under_way, name: name.to_owned() };
        engine::runtime()?.driver.spawn_blocking(move || {
            let found = ask(&listed.name);
            // From here on who asks begins another lookup.
            drop(listed);
            let _ = tell.send(Some(found));
            drop(turn);
        });
        Ok(answer)
    }
}

/// A name in the list, until this is dropped, by a panic too.
struct Listed {
    under_way: &'static UnderWay,
    name: String,
}

impl Drop for Listed {
    fn drop(&mut self) {
        self.under_way.0.lock().remove(&self.name);
    }
}

/// Ask the C library.
fn system(name: &str) -> LookedUp {
    let found = (name, 0).to_socket_addrs().map_err(|error| error.to_string())?;
    Ok(found.map(|address| address.ip()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits;
    use kv_platform::sync::Condvar;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    use std::time::{Duration, Instant};

    fn within<T>(time: Duration, work: impl Future<Output = T>) -> Option<T> {
        let late = Instant::now() + time;
        engine::runtime().unwrap().driver.block_on(|| late, work)
    }

    const LONG: Duration = Duration::from_secs(60);
    const SHORT: Duration = Duration::from_millis(50);

    #[test]
    fn an_address_is_its_own_and_a_name_is_looked_up() {
        let lookups = Lookups::of(&Arc::default());
        let ask = |name| within(LONG, lookups.resolve(name)).unwrap();
        assert_eq!(ask("127.0.0.1").unwrap(), ["127.0.0.1".parse::<IpAddr>().unwrap()]);
        assert_eq!(ask("::1").unwrap(), ["::1".parse::<IpAddr>().unwrap()]);
        assert!(ask("localhost").unwrap().iter().all(|address| address.is_loopback()));
        assert!(ask("no-such-name.invalid").unwrap_err().to_string().contains("cannot resolve no-such-name.invalid"));
    }

    #[test]
    fn names_that_never_answer_hold_up_who_asks_for_them_and_nobody_else() {
        static ASKED: AtomicUsize = AtomicUsize::new(0);
        static OPEN: (Mutex<bool>, Condvar) = (Mutex::new(false), Condvar::new());
        /// Answers nothing before the test is over.
        fn silent(_name: &str) -> LookedUp {
            ASKED.fetch_add(1, SeqCst);
            let (open, wake) = &OPEN;
            drop(wake.wait_while(open.lock(), |open| !*open));
            Ok(Vec::new())
        }
        let owner = Arc::<Owner>::default();
        let (hostile, healthy) = ([Lookups::of(&owner), Lookups::of(&owner)], Lookups::of(&Arc::default()));
        for n in 0..2 * limits::MAX_OWNER_LOOKUPS {
            assert!(within(SHORT, hostile[n % 2].resolve_by(&format!("silent-{n}.test"), silent)).is_none());
        }
        // Equal names are one lookup, of whichever store.
        for lookups in [&hostile[1], &healthy] {
            assert!(within(SHORT, lookups.resolve_by("silent-0.TEST", silent)).is_none());
        }
        assert_eq!(ASKED.load(SeqCst), limits::MAX_OWNER_LOOKUPS);
        assert!(within(LONG, healthy.resolve("localhost")).unwrap().is_ok());
        const { assert!(limits::MAX_OWNER_LOOKUPS * 8 <= limits::MAX_BLOCKING_THREADS) };
        *OPEN.0.lock() = true;
        OPEN.1.notify_all();
        // The turns come back with the answers.
        assert!(within(LONG, hostile[0].resolve("localhost")).unwrap().is_ok());
    }
}
