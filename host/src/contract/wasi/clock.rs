//! The monotonic clock: the contract's `monotonic`, and waiting for it. A wait ends with the call at the latest, because the
//! pool stops a host function that waits past the deadline.

use std::time::Duration;

use tokio::time::Instant;
use wasmtime::component::Resource;
use wasmtime_wasi::p2::bindings::clocks::monotonic_clock;
use wasmtime_wasi::p2::{DynPollable, Pollable, subscribe};

use super::State;

/// A moment to wait for; none: one that no clock reaches.
///
/// wasmtime-wasi's own yields to tokio when there is nothing to wait for. Inside a task of the consumer's runtime that
/// would be another scheduler than the one that drives us, and the wait would last until the deadline.
struct Alarm(Option<Instant>);

#[wasmtime_wasi::async_trait]
impl Pollable for Alarm {
    async fn ready(&mut self) {
        match self.0 {
            Some(moment) if moment <= Instant::now() => {}
            Some(moment) => tokio::time::sleep_until(moment).await,
            None => std::future::pending().await,
        }
    }
}

impl monotonic_clock::Host for State {
    fn now(&mut self) -> wasmtime::Result<u64> {
        Ok(u64::try_from(self.born.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    fn resolution(&mut self) -> wasmtime::Result<u64> {
        Ok(1)
    }

    fn subscribe_instant(&mut self, when: u64) -> wasmtime::Result<Resource<DynPollable>> {
        let now = monotonic_clock::Host::now(self)?;
        self.subscribe_duration(when.saturating_sub(now))
    }

    fn subscribe_duration(&mut self, nanoseconds: u64) -> wasmtime::Result<Resource<DynPollable>> {
        let moment = Instant::now().checked_add(Duration::from_nanos(nanoseconds));
        let table = &mut self.wasi().table;
        let alarm = table.push(Alarm(moment))?;
        subscribe(table, alarm)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine;

    #[test]
    fn nothing_to_wait_for_is_no_turn_of_the_consumers_runtime() {
        let (done, waits) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let outer = tokio::runtime::Builder::new_current_thread().build().unwrap();
            outer.block_on(async {
                let driver = &engine::runtime().unwrap().driver;
                let soon = std::time::Instant::now() + Duration::from_secs(60);
                driver.block_on(|| soon, async { Alarm(Some(Instant::now())).ready().await })
            });
            done.send(()).unwrap();
        });
        waits.recv_timeout(Duration::from_secs(60)).expect("it waits for ever");
    }
}
