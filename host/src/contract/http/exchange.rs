//! One request and its response on one connection.

use kv_http_wire::{Body as Framed, Chunks, Head, Step, parse_head};

use super::growing::Growing;
use super::{Answer, Body, Plan, Quota};
use crate::contract::memory::Charge;
use crate::contract::net::OpenLink;
use crate::error::{Error, ErrorKind};
use crate::limits;
use crate::payload::{Destination, Filling};
use crate::until::Until;

/// A request that got no whole response. Its connection is at an unknown place.
pub(super) struct BrokenExchange {
    pub error: Error,
    /// The server closed the connection before a byte of a response.
    pub silent: bool,
}

impl From<Error> for BrokenExchange {
    fn from(error: Error) -> Self {
        BrokenExchange { error, silent: false }
    }
}

fn corrupt(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Corrupt, message)
}

/// Send the request and receive the response, its body into the room where it answers the item and fits there. True: the connection
/// may serve another request.
pub(super) async fn exchange(
    link: &mut OpenLink,
    plan: &Plan<'_>,
    room: &mut Option<Destination>,
    quota: &Quota<'_>,
    until: &Until,
) -> Result<(Answer, bool), BrokenExchange> {
    let mut parts = Vec::with_capacity(1 + plan.body.len());
    parts.push(plan.head.as_slice());
    parts.extend_from_slice(&plan.body);
    let before = link.came();
    until.sending();
    let sent = link.send_until(&parts, is_answer).await;
    // A server that refuses a request may say so before it has read all of it.
    let (head, charge) = match receive_head(link, plan.to_head, quota).await {
        Ok(received) => received,
        Err(error) => {
            let silent = link.came() == before && link.is_closed();
            return Err(BrokenExchange { error: sent.err().unwrap_or(error), silent });
        }
    };
    let body = receive_body(link, &head, plan.max_body, room, quota, until).await?;
    let Head { status, headers, reusable, .. } = head;
    Ok((Answer { status, headers, body, _head: charge }, reusable && sent.is_ok()))
}

/// Whether this is the head of a response, and of none that says that one is under way.
fn is_answer(came: &[u8]) -> bool {
    parse_head(came, false).is_ok_and(|parsed| parsed.is_some_and(|(head, _)| !head.interim))
}

/// The head of the response, behind those that say that it is under way.
async fn receive_head(link: &mut OpenLink, to_head: bool, quota: &Quota<'_>) -> Result<(Head, Charge), Error> {
    let mut interim = 0;
    loop {
        match parse_head(link.waiting(), to_head).map_err(|bad| corrupt(bad.0))? {
            Some((head, len)) => {
                link.forget(len);
                if !head.interim {
                    return Ok((head, quota.take_head(len)?));
                }
                interim += 1;
                if interim > limits::MAX_INTERIM_RESPONSES {
                    return Err(corrupt(format!("more than {interim} interim responses before the response")));
                }
            }
            None => link.receive_more().await?,
        }
    }
}

async fn receive_body(
    link: &mut OpenLink,
    head: &Head,
    max_body: u64,
    room: &mut Option<Destination>,
    quota: &Quota<'_>,
    until: &Until,
) -> Result<Body, Error> {
    match head.body {
        Framed::Length(len) => {
            check_length(len, max_body)?;
            let answers = matches!(head.status, 200 | 206);
            if let Some(room) = room.as_mut().filter(|_| answers)
                && room.shorten(len)
            {
                link.receive_into(room, until).await?;
                return Ok(Body::InRoom);
            }
            let reserved = quota.reserve(len)?;
            let mut destination = Destination::Buffer(Filling::new(len)?);
            link.receive_into(&mut destination, until).await?;
            match destination {
                Destination::Buffer(filling) => Ok(Body::Own(filling.finish()?, reserved)),
                Destination::Item(_) => Err(corrupt("the body is elsewhere")),
            }
        }
        Framed::Chunked => receive_chunks(link, max_body, quota, until).await,
        // A part of it could be taken for all of it.
        Framed::ToEnd if head.status < 300 => Err(corrupt("the response does not say how long it is")),
        Framed::ToEnd => {
            let mut body = Growing::new(max_body, quota)?;
            loop {
                let len = link.waiting().len();
                body.push(link.waiting())?;
                link.forget(len);
                until.moved(len as u64);
                if !link.receive_much().await? {
                    return body.finish();
                }
            }
        }
    }
}

async fn receive_chunks(link: &mut OpenLink, max_body: u64, quota: &Quota<'_>, until: &Until) -> Result<Body, Error> {
    let mut body = Growing::new(max_body, quota)?;
    let mut chunks = Chunks::default();
    loop {
        match chunks.step(link.waiting()).map_err(|bad| corrupt(bad.0))? {
            Step::Skip(count) => link.forget(count),
            Step::Data(left) if !link.waiting().is_empty() => {
                check_length(left.saturating_add(body.len()), max_body)?;
                let waiting = link.waiting();
                let here = waiting.get(..usize::try_from(left).unwrap_or(usize::MAX)).unwrap_or(waiting);
                let count = here.len();
                body.push(here)?;
                link.forget(count);
                chunks.took(count as u64);
                until.moved(count as u64);
            }
            Step::Data(_) | Step::More => {
                if !link.receive_much().await? {
                    return Err(Error::new(
                        ErrorKind::Unavailable,
                        "the server closed the connection within the response",
                    ));
                }
            }
            Step::End => return body.finish(),
        }
    }
}

fn check_length(len: u64, max_body: u64) -> Result<(), Error> {
    if len <= max_body {
        return Ok(());
    }
    let message = format!("the body of the response has {len} bytes, and {max_body} may come");
    Err(Error::new(ErrorKind::Exhausted, message))
}
