//! The contract's `http` interface: requests over HTTP/1.1 on connections that the host makes, as those of `net`.
//!
//! What goes over the wire is decided in the crate `kv-http-wire`, one request on one connection in [`exchange`], and which
//! request goes on which connection in [`lanes`]. Bodies are sent from where they lie and received where they stay: of a `get-chunks`,
//! in the memory of the item that they answer.
//!
//! Invariant: memory of an item that is lent to a response is given back before `send` returns, whatever became of the response.

mod exchange;
mod growing;
mod lanes;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use kv_http_wire::{host_value, is_idempotent};
use wasmtime::component::Resource;

use super::memory::{Charge, Memory};
use super::net::{CONNECTION_BYTES, ConnectOptions, OPTIONS_BYTES, Wanted};
use super::payload::{passed_bytes, slices};
use super::{Access, Reserved, State};
use crate::contract::bindings::kv_store::backend::http::{Host, HostRequestOptions, Request, Response};
use crate::contract::bindings::kv_store::backend::types;
use crate::error::{Error, ErrorKind};
use crate::limits;
use crate::payload::{Buffer, Destination, Payload};
use crate::policy::Server;
use lanes::{Lanes, Task};

/// What a guest's handle to the options of requests stands for.
#[derive(Default)]
pub struct RequestOptions {
    connect: ConnectOptions,
    max_body: Option<u64>,
}

/// A request that is ready to be sent.
struct Plan<'a> {
    wanted: Wanted,
    head: Vec<u8>,
    body: Vec<&'a [u8]>,
    to_head: bool,
    idempotent: bool,
    max_body: u64,
}

/// A response that has come whole.
struct Answer {
    status: u16,
    headers: Vec<(String, String)>,
    body: Body,
    /// The memory that the head takes.
    _head: Charge,
}

enum Body {
    /// In the memory of the request's item.
    InRoom,
    Own(Buffer, Reserved),
}

/// Room for payload bytes that several responses take at once.
struct Quota<'a> {
    access: &'a Arc<Access>,
    memory: &'a Arc<Memory>,
    /// What the instance holds, that on its way included.
    held: AtomicU64,
    /// Bytes that the heads of responses may still have.
    heads: AtomicU64,
}

impl Quota<'_> {
    fn take_head(&self, bytes: usize) -> Result<Charge, Error> {
        let left = |left: u64| left.checked_sub(bytes as u64);
        self.heads.try_update(Relaxed, Relaxed, left).map_err(|_| {
            let most = limits::MAX_HTTP_BATCH_HEAD_BYTES;
            let message =
                format!("the heads of the responses of one batch have more than {most} bytes; make fewer at once");
            Error::new(ErrorKind::Exhausted, message)
        })?;
        self.memory.charge(bytes)
    }

    fn reserve(&self, bytes: u64) -> Result<Reserved, Error> {
        let reserved = Reserved::take(self.access, self.held.load(Relaxed), bytes)?;
        self.held.fetch_add(bytes, Relaxed);
        Ok(reserved)
    }
}

impl State {
    fn plan<'a>(&'a self, request: &'a Request) -> wasmtime::Result<Result<Plan<'a>, Error>> {
        let options = request.options.as_ref().map(|handle| self.table.get(handle)).transpose()?;
        let body = slices(&self.table, &self.items, &request.body)?;
        Ok(body.and_then(|body| self.plan_of(request, options.unwrap_or(&RequestOptions::default()), body)))
    }

    fn plan_of<'a>(&self, request: &Request, options: &RequestOptions, body: Vec<&'a [u8]>) -> Result<Plan<'a>, Error> {
        let RequestOptions { connect, max_body } = options;
        let wanted = self.access.wanted_for_http(&request.authority, connect)?;
        let Server { host, port } = &wanted.granted.server;
        let head = kv_http_wire::Request {
            method: &request.method,
            host: &host_value(&host.to_string(), *port, connect.tls),
            path: &request.path,
            headers: &request.headers,
            body_len: body.iter().map(|slice| slice.len() as u64).sum(),
        };
        Ok(Plan {
            head: head.head().map_err(|bad| Error::invalid(bad.0))?,
            wanted,
            body,
            to_head: request.method == "HEAD",
            idempotent: is_idempotent(&request.method),
            max_body: max_body.unwrap_or(u64::MAX).min(self.longest),
        })
    }

    /// A handle to the body of a response.
    fn respond(&mut self, answer: Answer, room: Option<Destination>) -> Result<Response, Error> {
        let Answer { status, headers, body, _head } = answer;
        let body = match (body, room) {
            (Body::InRoom, Some(Destination::Item(placing))) => {
                let placed = self.items.settle(placing)?;
                self.push(Payload::Placed(placed), limits::HANDLE_BYTES)?
            }
            (Body::InRoom, _) => return Err(Error::new(ErrorKind::Other, "the body of the response is nowhere")),
            (Body::Own(buffer, reserved), room) => {
                self.items.give_back(room);
                self.give(Arc::new(buffer), reserved)?
            }
        };
        Ok(Response { status, headers, body })
    }
}

/// What a request came to, and the memory that its body was to go to.
type Done = (Result<Answer, Error>, Option<Destination>);

impl Host for State {
    async fn send(&mut self, requests: Vec<Request>) -> wasmtime::Result<Vec<Result<Response, types::Error>>> {
        let rooms: Vec<Option<Destination>> =
            requests.iter().map(|request| self.items.claim_all(request.item?)).collect();
        let most = self.access.reach.limits.connections.saturating_sub(self.connections).min(requests.len() as u64);
        // As for a connection of the guest's own.
        let taken = CONNECTION_BYTES * usize::try_from(most).unwrap_or(usize::MAX);
        if let Err(error) = self.memory.take(taken) {
            rooms.into_iter().for_each(|room| self.items.give_back(room));
            return Ok(requests.iter().map(|_| Err(error.clone().into())).collect());
        }
        let passed = match self.reserve(passed_bytes(requests.iter().flat_map(|request| &request.body))) {
            Ok(passed) => passed,
            Err(error) => {
                self.memory.give_back(taken);
                rooms.into_iter().for_each(|room| self.items.give_back(room));
                return Ok(requests.iter().map(|_| Err(error.clone().into())).collect());
            }
        };
        let quota = Quota {
            access: &self.access,
            memory: &self.memory,
            held: AtomicU64::new(self.payload_bytes),
            heads: AtomicU64::new(limits::MAX_HTTP_BATCH_HEAD_BYTES as u64),
        };
        let mut done: Vec<Option<Done>> = Vec::with_capacity(requests.len());
        let mut tasks = Vec::with_capacity(requests.len());
        for (index, (request, room)) in requests.iter().zip(rooms).enumerate() {
            let plan = match index < limits::MAX_BATCH_ITEMS {
                true => self.plan(request)?,
                false => {
                    let message =
                        format!("{} requests at once; make at most {}", requests.len(), limits::MAX_BATCH_ITEMS);
                    Err(Error::new(ErrorKind::Exhausted, message))
                }
            };
            match plan {
                Ok(plan) => {
                    done.push(None);
                    tasks.push(Task { index, plan, room });
                }
                Err(error) => done.push(Some((Err(error), room))),
            }
        }
        let lanes = Lanes::new(&self.access, &self.until, quota, tasks, self.http_connections);
        let outcomes = lanes.run(most).await;
        for (task, outcome) in outcomes {
            if let Some(place) = done.get_mut(task.index) {
                *place = Some((outcome, task.room));
            }
        }
        self.memory.give_back(taken);
        drop(passed);
        let respond = |done: Option<Done>| match done {
            Some((Ok(answer), room)) => self.respond(answer, room),
            Some((Err(error), room)) => {
                self.items.give_back(room);
                Err(error)
            }
            None => Err(Error::new(ErrorKind::Other, "the request was not made")),
        };
        let responses: Vec<Result<Response, Error>> = done.into_iter().map(respond).collect();
        Ok(responses.into_iter().map(|response| response.map_err(types::Error::from)).collect())
    }
}

impl HostRequestOptions for State {
    fn new(&mut self) -> wasmtime::Result<Resource<RequestOptions>> {
        // A constructor has no error to answer.
        Ok(self.push(RequestOptions::default(), OPTIONS_BYTES)?)
    }

    fn set_tls(&mut self, handle: Resource<RequestOptions>, tls: bool) -> wasmtime::Result<()> {
        self.table.get_mut(&handle)?.connect.tls = tls;
        Ok(())
    }

    fn set_server_name(&mut self, handle: Resource<RequestOptions>, name: String) -> wasmtime::Result<()> {
        self.table.get_mut(&handle)?.connect.set_server_name(name);
        Ok(())
    }

    fn set_patience(&mut self, handle: Resource<RequestOptions>, patience: u64) -> wasmtime::Result<()> {
        self.table.get_mut(&handle)?.connect.patience = Some(Duration::from_nanos(patience));
        Ok(())
    }

    fn set_max_body(&mut self, handle: Resource<RequestOptions>, bytes: u64) -> wasmtime::Result<()> {
        self.table.get_mut(&handle)?.max_body = Some(bytes);
        Ok(())
    }

    fn drop(&mut self, handle: Resource<RequestOptions>) -> wasmtime::Result<()> {
        self.table.delete(handle)?;
        self.memory.give_back(OPTIONS_BYTES);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
