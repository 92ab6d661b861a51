//! Several connections at once, on the one thread of the call.

use std::collections::HashSet;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use wasmtime::component::Resource;

use super::{Connection, in_call};
use crate::contract::State;
use crate::contract::bindings::kv_store::backend::net::Message;
use crate::contract::payload::{passed_bytes, slices};
use crate::engine::wait_until;
use crate::error::{Error, ErrorKind};
use crate::limits;

pub(super) fn too_many() -> Error {
    let most = limits::MAX_SIDE_BY_SIDE;
    Error::new(ErrorKind::Exhausted, format!("too many connections in one call: pass at most {most}"))
}

/// The outputs of futures that run side by side, each to its end. At every wake-up each is looked at that has not ended, because
/// what it waits for is known for one look only; so nothing that hands out wakers of its own, such as `join_all`, would do.
pub(in crate::contract) async fn all<F: Future>(futures: impl Iterator<Item = F>) -> Vec<F::Output> {
    let mut running: Vec<Pin<Box<F>>> = futures.map(Box::pin).collect();
    let mut outputs: Vec<Option<F::Output>> = running.iter().map(|_| None).collect();
    poll_fn(|context| {
        let mut waits = false;
        for (future, output) in running.iter_mut().zip(&mut outputs) {
            if output.is_none() {
                match future.as_mut().poll(context) {
                    Poll::Ready(there) => *output = Some(there),
                    Poll::Pending => waits = true,
                }
            }
        }
        if waits { Poll::Pending } else { Poll::Ready(()) }
    })
    .await;
    outputs.into_iter().flatten().collect()
}

impl State {
    /// The numbers of connections, each of which must be named once.
    fn distinct<'a>(
        &self,
        handles: impl Iterator<Item = &'a Resource<Connection>>,
    ) -> wasmtime::Result<Vec<Option<u64>>> {
        let mut seen = HashSet::new();
        handles.map(|handle| Ok(Some(self.table.get(handle)?.number).filter(|number| seen.insert(*number)))).collect()
    }

    pub(super) async fn send_several(&mut self, messages: &[Message]) -> wasmtime::Result<Vec<Result<(), Error>>> {
        let numbers = self.distinct(messages.iter().map(|message| &message.connection))?;
        let (mut sending, mut answers) = (Vec::new(), Vec::new());
        let _passed = match self.reserve(passed_bytes(messages.iter().flat_map(|message| &message.parts))) {
            Ok(passed) => passed,
            Err(error) => return Ok(messages.iter().map(|_| Err(error.clone())).collect()),
        };
        for (at, (message, number)) in messages.iter().zip(numbers).enumerate() {
            let refused = match number {
                _ if at >= limits::MAX_SIDE_BY_SIDE => too_many(),
                None => Error::invalid("a connection is named twice"),
                Some(_) => match slices(&self.table, &self.items, &message.parts)? {
                    Err(error) => error,
                    Ok(slices) => match self.take_link(&message.connection)? {
                        Ok(link) => {
                            sending.push((at, self.table.get(&message.connection)?, link, slices));
                            continue;
                        }
                        Err(failed) => failed,
                    },
                },
            };
            answers.push((at, Err(refused)));
        }
        let until = &self.until;
        if !sending.is_empty() {
            until.sending();
        }
        let sent = all(sending.into_iter().map(|(at, connection, mut link, slices)| async move {
            let sent = in_call(until, link.send(&slices)).await;
            (at, connection, link, sent)
        }));
        for (at, connection, link, sent) in sent.await {
            self.put_back(connection, link, &sent);
            answers.push((at, sent));
        }
        answers.sort_by_key(|(at, _)| *at);
        Ok(answers.into_iter().map(|(_, answer)| answer).collect())
    }

    /// Which of these can be received from without a wait, when at least one can.
    pub(super) async fn readable(
        &mut self,
        handles: &[Resource<Connection>],
        patience: Option<u64>,
    ) -> wasmtime::Result<Result<Vec<u32>, Error>> {
        let numbers = self.distinct(handles.iter())?;
        if handles.is_empty() {
            return Ok(Err(Error::invalid("the list of connections is empty")));
        }
        if handles.len() > limits::MAX_SIDE_BY_SIDE {
            return Ok(Err(too_many()));
        }
        let Some(numbers) = numbers.into_iter().collect::<Option<Vec<u64>>>() else {
            return Ok(Err(Error::invalid("a connection is named twice")));
        };
        // One that has failed is told so by the next receive.
        let mut links: Vec<_> = numbers.iter().map(|number| self.held_links.take(*number)).collect();
        let most = self.access.reach.limits.patience();
        let patience = patience.map_or(most, Duration::from_nanos).min(most);
        let end = Instant::now() + patience;
        let waited = in_call(
            &self.until,
            poll_fn(|context| {
                let mut readable = Vec::new();
                for (at, link) in (0..).zip(&mut links) {
                    let is_readable = link.as_mut().is_none_or(|link| {
                        // Its own patience is that of a receive.
                        link.begin(None);
                        link.poll_readable(context).is_ready()
                    });
                    if is_readable {
                        readable.push(at);
                    }
                }
                if !readable.is_empty() {
                    return Poll::Ready(Ok(readable));
                }
                if Instant::now() >= end {
                    let message = format!("no server answered within {} ms (patience_ms)", patience.as_millis());
                    return Poll::Ready(Err(Error::new(ErrorKind::Unavailable, message).after_waiting(patience)));
                }
                wait_until(end);
                Poll::Pending
            }),
        );
        let readable = waited.await;
        for (number, link) in numbers.into_iter().zip(links) {
            if let Some(link) = link {
                self.held_links.put(number, link);
            }
        }
        Ok(readable)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine;

    #[test]
    fn futures_run_side_by_side_and_answer_in_order() {
        let driver = &engine::runtime().unwrap().driver;
        let late = || Instant::now() + Duration::from_secs(60);
        // The first goes on only when the last has run.
        let (tell, told) = tokio::sync::oneshot::channel();
        let (mut tell, mut told) = (Some(tell), Some(told));
        let futures = (0..3).map(|n| {
            let (tell, told) = (if n == 2 { tell.take() } else { None }, if n == 0 { told.take() } else { None });
            async move {
                if let Some(tell) = tell {
                    tell.send(()).unwrap();
                }
                if let Some(told) = told {
                    told.await.unwrap();
                }
                n
            }
        });
        assert_eq!(driver.block_on(late, all(futures)), Some(vec![0, 1, 2]));
        assert_eq!(driver.block_on(late, all(std::iter::empty::<std::future::Ready<()>>())), Some(vec![]));
    }
}
