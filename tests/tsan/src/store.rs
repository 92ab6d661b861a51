//! An opened store as the queue sees it, and a save's ledger behind a lock as the save has it.

#[path = "../../../host/src/store/ledger/mod.rs"]
mod ledger;
#[path = "../../../host/src/store/queue.rs"]
pub mod queue;

use std::sync::Arc;

use crate::error::Error;
use crate::limits::Limits;

pub struct Store {
    opened: Arc<Opened>,
}

impl Store {
    fn usable(&self) -> Result<&Opened, Error> {
        Ok(&self.opened)
    }
}

pub struct Opened {
    shared: OpenStore,
}

struct OpenStore {
    generation: u64,
    pool: Pool,
}

struct Pool(Access);

struct Access {
    limits: Limits,
}

impl Pool {
    fn access(&self) -> &Access {
        &self.0
    }
}

fn check_process(_generation: u64) -> Result<(), Error> {
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::thread;
    use std::time::Instant;

    use super::ledger::Ledger;
    use crate::backend::ChunkHash;

    /// As a save does it: threads put, one flushes, one commits, each under the lock for as long as it asks or tells.
    #[test]
    fn a_ledger_that_threads_share_names_each_chunk_once() {
        const EACH: u32 = 300;
        let ledger: &Mutex<Ledger<Vec<u8>>> = &Mutex::default();
        let hash = |thread: u32, n: u32| ChunkHash::new(&(thread * EACH + n).to_be_bytes()).unwrap();
        let mut named = Vec::new();
        thread::scope(|scope| {
            for number in 0..3 {
                scope.spawn(move || {
                    for n in 0..EACH {
                        ledger.lock().unwrap().wait(hash(number, n), vec![1; 8], 8);
                    }
                });
            }
            while named.len() < 3 * EACH as usize {
                let waiting = ledger.lock().unwrap().waiting();
                for (hash, data) in waiting {
                    assert_eq!(data, [1; 8]);
                    ledger.lock().unwrap().stored(hash, data.len(), Instant::now(), 0);
                }
                let unnamed = ledger.lock().unwrap().unnamed();
                named.extend(unnamed.hashes);
                ledger.lock().unwrap().named(unnamed.mark);
                thread::yield_now();
            }
        });
        named.sort_by(|one, other| one.as_slice().cmp(other.as_slice()));
        named.dedup();
        assert_eq!(named.len(), 3 * EACH as usize);
    }
}
