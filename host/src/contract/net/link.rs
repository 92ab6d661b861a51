//! A connection: bytes out of many parts in few packets, bytes in through one bounded buffer.

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::client::TlsStream;

use super::socket::Socket;
use super::tls;
use crate::budget::ConnectionPermit;
use crate::contract::memory::{Arriving, Memory};
use crate::error::{self, Error};
use crate::limits::RECEIVE_BUFFER_BYTES;
use crate::payload::{Destination, Fill};
use crate::until::Until;

/// A connection, as it is handed on: what waits with it holds a pointer, and not its state.
pub(in crate::contract) type Link = Box<OpenLink>;

pub(in crate::contract) struct OpenLink {
    stream: Stream,
    /// What came and was not asked for yet.
    received: Vec<u8>,
    /// Where in `received` that begins.
    begin: usize,
    /// The peer has finished.
    finished: bool,
    /// What went wrong while nobody was there to be told.
    failure: Option<Error>,
    receives: u32,
    /// How many bytes have come in all.
    came: u64,
    /// Receiving or sending has failed, and not for want of patience.
    broken: bool,
    /// Whether what came while a request is sent answers it, so that the rest is not sent.
    answers: Option<fn(&[u8]) -> bool>,
    /// Its place among the connections of the store and the process.
    _permit: ConnectionPermit,
}

/// What is received at once for a line or a few bytes. What comes with it of a payload is copied out again, so it is little.
const RECEIVE_BYTES: usize = 4096;
/// Receives after which a wait is allowed to end, though more is there.
const RECEIVES_IN_A_ROW: u32 = 64;

fn closed_early() -> Error {
    Error::new(error::ErrorKind::Unavailable, "the server closed the connection")
}

pub(super) enum Stream {
    Plain(Socket),
    Tls(Box<TlsStream<Socket>>),
}

impl Stream {
    fn poll_read(&mut self, cx: &mut Context<'_>, room: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self {
            Stream::Plain(socket) => Pin::new(socket).poll_read(cx, room),
            Stream::Tls(tls) => Pin::new(tls).poll_read(cx, room),
        }
    }

    fn poll_write(&mut self, cx: &mut Context<'_>, slices: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        match self {
            Stream::Plain(socket) => Pin::new(socket).poll_write_vectored(cx, slices),
            Stream::Tls(tls) => Pin::new(tls).poll_write_vectored(cx, slices),
        }
    }

    fn socket(&mut self) -> &mut Socket {
        match self {
            Stream::Plain(socket) => socket,
            Stream::Tls(tls) => tls.get_mut().0,
        }
    }

    /// Hand what was written on to the network. Only TLS holds anything back.
    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Stream::Plain(_) => Poll::Ready(Ok(())),
            Stream::Tls(tls) => Pin::new(tls).poll_flush(cx),
        }
    }
}

impl OpenLink {
    pub(super) fn new(stream: Stream, permit: ConnectionPermit) -> Link {
        Box::new(OpenLink {
            stream,
            received: Vec::new(),
            begin: 0,
            finished: false,
            failure: None,
            receives: 0,
            came: 0,
            broken: false,
            answers: None,
            _permit: permit,
        })
    }

    /// What follows has this patience. none: it may wait as long as the call.
    pub(in crate::contract) fn begin(&mut self, patience: Option<Duration>) {
        self.stream.socket().begin(patience);
    }

    /// Whether the connection is alive, and nobody has said anything on it that was not asked for.
    pub(in crate::contract) fn is_silent(&mut self) -> bool {
        let mut byte = [0];
        let mut context = Context::from_waker(Waker::noop());
        self.stream.socket().expect_nothing();
        self.waiting().is_empty()
            && !self.finished
            && self.failure.is_none()
            && self.stream.poll_read(&mut context, &mut ReadBuf::new(&mut byte)).is_pending()
    }

    /// Whether a receive would not have to wait: there are bytes, the peer has finished, or the connection has failed.
    pub(super) fn poll_readable(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if !self.waiting().is_empty() || self.finished || self.failure.is_some() {
            return Poll::Ready(());
        }
        if let Stream::Plain(socket) = &mut self.stream {
            return socket.poll_readable();
        }
        // What lies in the socket may be no more than a piece of a record, and what was decrypted lies elsewhere: only a receive
        // can tell. Of one byte, so that what is received into a payload is not copied.
        if let Err(failure) = ready!(self.poll_receive(context, 1)) {
            self.failure = Some(failure);
        }
        Poll::Ready(())
    }

    /// What went wrong earlier.
    fn check(&mut self) -> Result<(), Error> {
        self.failure.take().map_or(Ok(()), Err)
    }

    /// What came and was not taken yet.
    pub(in crate::contract) fn waiting(&self) -> &[u8] {
        self.received.get(self.begin..).unwrap_or_default()
    }

    fn take(&mut self, count: usize) -> Vec<u8> {
        let waiting = self.waiting();
        let taken = waiting.get(..count).unwrap_or(waiting).to_vec();
        self.forget(taken.len());
        taken
    }

    /// Have done with so many of the bytes that wait, and give back the memory of a buffer that grew.
    pub(in crate::contract) fn forget(&mut self, count: usize) {
        self.begin += count;
        if self.begin >= self.received.len() {
            self.received.clear();
            self.received.shrink_to(2 * RECEIVE_BUFFER_BYTES);
            self.begin = 0;
        }
    }

    /// Send all parts. What comes in the meantime is received, up to the buffer.
    pub(in crate::contract) async fn send(&mut self, parts: &[&[u8]]) -> Result<(), Error> {
        self.check()?;
        let mut slices: Vec<IoSlice> = parts.iter().filter(|p| !p.is_empty()).map(|p| IoSlice::new(p)).collect();
        let mut rest = slices.as_mut_slice();
        while !rest.is_empty() {
            let sent = poll_fn(|context| self.poll_duplex(context, |stream, cx| stream.poll_write(cx, rest))).await?;
            if sent == 0 {
                return Err(closed_early());
            }
            IoSlice::advance_slices(&mut rest, sent);
        }
        poll_fn(|context| self.poll_duplex(context, Stream::poll_flush)).await
    }

    /// Send all parts, unless what comes in the meantime answers them.
    pub(in crate::contract) async fn send_until(
        &mut self,
        parts: &[&[u8]],
        answers: fn(&[u8]) -> bool,
    ) -> Result<(), Error> {
        self.answers = Some(answers);
        let sent = self.send(parts).await;
        self.answers = None;
        sent
    }

    /// Write, and receive while that has to wait.
    fn poll_duplex<T>(
        &mut self,
        context: &mut Context<'_>,
        mut write: impl FnMut(&mut Stream, &mut Context<'_>) -> Poll<io::Result<T>>,
    ) -> Poll<Result<T, Error>> {
        loop {
            if let Poll::Ready(written) = write(&mut self.stream, context) {
                self.broken |= is_broken(&written);
                return Poll::Ready(written.map_err(|error| tls::failed(&error)));
            }
            if self.finished || self.waiting().len() >= RECEIVE_BUFFER_BYTES {
                return Poll::Pending;
            }
            // Something came: look again, so that the next wait is registered for both.
            ready!(self.poll_receive(context, RECEIVE_BUFFER_BYTES))?;
            if self.answers.is_some_and(|answers| answers(self.waiting())) {
                let message = "the server answered before it had read all of the request";
                return Poll::Ready(Err(Error::new(error::ErrorKind::Unavailable, message)));
            }
        }
    }

    /// Receive something into the buffer, at most so many bytes.
    fn poll_receive(&mut self, context: &mut Context<'_>, limit: usize) -> Poll<Result<(), Error>> {
        self.check()?;
        if self.begin > 0 {
            self.received.drain(..self.begin);
            self.begin = 0;
        }
        let had = self.received.len();
        self.received.reserve(limit);
        let spare = self.received.spare_capacity_mut();
        let mut room = ReadBuf::uninit(spare.get_mut(..limit).unwrap_or_default());
        let outcome = self.stream.poll_read(context, &mut room);
        let count = room.filled().len();
        self.came += count as u64;
        // SAFETY: `ReadBuf` has `count` initialised bytes at the front of the spare capacity.
        unsafe { self.received.set_len(had + count) };
        self.broken |= matches!(&outcome, Poll::Ready(outcome) if is_broken(outcome));
        ready!(outcome).map_err(|error| tls::failed(&error))?;
        self.finished |= count == 0;
        Poll::Ready(Ok(()))
    }

    async fn receive(&mut self) -> Result<(), Error> {
        self.receive_at_most(RECEIVE_BYTES).await
    }

    async fn receive_at_most(&mut self, limit: usize) -> Result<(), Error> {
        self.breathe().await;
        poll_fn(|context| self.poll_receive(context, limit)).await
    }

    /// Receive a little behind what waits. `Unavailable`: the peer has finished.
    pub(in crate::contract) async fn receive_more(&mut self) -> Result<(), Error> {
        self.receive().await?;
        if self.finished { Err(closed_early()) } else { Ok(()) }
    }

    /// Receive what there is behind what waits, as far as it fits the buffer. False: the peer has finished.
    pub(in crate::contract) async fn receive_much(&mut self) -> Result<bool, Error> {
        self.receive_at_most(RECEIVE_BUFFER_BYTES).await?;
        Ok(!self.finished)
    }

    /// How many bytes have come since the connection was made.
    pub(in crate::contract) fn came(&self) -> u64 {
        self.came
    }

    /// Nobody knows any more what the next byte belongs to.
    pub(super) fn is_broken(&self) -> bool {
        self.broken
    }

    /// Give back the memory of the buffer, before a wait for a next call. False: something waits in it that nobody asked for.
    pub(super) fn empty(&mut self) -> bool {
        let empty = self.waiting().is_empty();
        self.received = Vec::new();
        self.begin = 0;
        empty
    }

    /// The peer has finished, or the connection is broken.
    pub(in crate::contract) fn is_closed(&self) -> bool {
        self.finished || self.broken
    }

    /// Once in a while come back to whoever waits for this, and to the deadline: a server that sends faster than we read
    /// would otherwise keep us here. Not tokio's `yield_now`, which may hand the wake-up to a runtime of the consumer's that
    /// this thread is holding up.
    async fn breathe(&mut self) {
        self.receives = self.receives.wrapping_add(1);
        let mut waited = !self.receives.is_multiple_of(RECEIVES_IN_A_ROW);
        poll_fn(|context| {
            if std::mem::replace(&mut waited, true) {
                return Poll::Ready(());
            }
            context.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
    }

    /// The next `len` bytes. Room for all of them is taken before the first is.
    pub(super) async fn receive_exact(&mut self, len: usize, memory: &Arc<Memory>) -> Result<Vec<u8>, Error> {
        let mut bytes = Arriving::new(memory)?;
        bytes.reserve(len)?;
        loop {
            let left = len - bytes.len();
            self.move_to(&mut bytes, left, len)?;
            if bytes.len() == len {
                return Ok(bytes.finish());
            }
            if self.finished {
                return Err(closed_early());
            }
            self.receive().await?;
        }
    }

    /// The bytes before the delimiter, which is consumed. What cannot be the delimiter any more is moved out of the buffer, which stays
    /// small however long the line is.
    pub(super) async fn receive_until(
        &mut self,
        delimiter: &[u8],
        limit: usize,
        memory: &Arc<Memory>,
    ) -> Result<Vec<u8>, Error> {
        let mut line = Arriving::new(memory)?;
        loop {
            let waiting = self.waiting();
            let found = waiting.windows(delimiter.len()).position(|window| window == delimiter);
            let count = found.unwrap_or_else(|| waiting.len().saturating_sub(delimiter.len() - 1));
            if count > limit - line.len() {
                return Err(no_delimiter(limit));
            }
            self.move_to(&mut line, count, limit)?;
            if found.is_some() {
                self.forget(delimiter.len());
                return Ok(line.finish());
            }
            if self.finished {
                return Err(closed_early());
            }
            self.receive().await?;
        }
    }

    /// Move bytes that wait, `count` at most. Where there is no memory for them the connection is at an unknown place.
    fn move_to(&mut self, arriving: &mut Arriving, count: usize, most: usize) -> Result<(), Error> {
        let waiting = self.waiting();
        let count = count.min(waiting.len());
        if let Err(refused) = arriving.push(waiting.get(..count).unwrap_or_default(), most) {
            self.broken = true;
            return Err(refused);
        }
        self.forget(count);
        Ok(())
    }

    /// What is there, or comes next; empty when the peer has finished.
    pub(super) async fn receive_some(&mut self, limit: usize) -> Result<Vec<u8>, Error> {
        while self.waiting().is_empty() && !self.finished {
            self.receive().await?;
        }
        Ok(self.take(limit))
    }

    /// The next bytes, as many as there is room for, received where they stay.
    pub(in crate::contract) async fn receive_into(
        &mut self,
        destination: &mut Destination,
        until: &Until,
    ) -> Result<(), Error> {
        let count = destination.push(self.waiting());
        self.forget(count);
        self.check()?;
        while !destination.rest().is_empty() {
            self.breathe().await;
            let count = poll_fn(|context| {
                let mut room = ReadBuf::uninit(destination.rest());
                ready!(self.stream.poll_read(context, &mut room)).map_err(|error| tls::failed(&error))?;
                Poll::Ready(Ok::<_, Error>(room.filled().len()))
            })
            .await?;
            if count == 0 {
                self.finished = true;
                return Err(closed_early());
            }
            until.moved(count as u64);
            // SAFETY: `ReadBuf` has `count` initialised bytes at the front of `rest`.
            unsafe { destination.advance(count) };
        }
        Ok(())
    }

    /// Read and forget.
    pub(super) async fn skip(&mut self, len: u64) -> Result<(), Error> {
        let mut left = len;
        loop {
            let here = usize::try_from(left).unwrap_or(usize::MAX).min(self.waiting().len());
            self.forget(here);
            left -= here as u64;
            if left == 0 {
                return Ok(());
            }
            if self.finished {
                return Err(closed_early());
            }
            self.receive().await?;
        }
    }
}

/// Whether a stream is of no use any more, and not only slow.
fn is_broken<T>(outcome: &io::Result<T>) -> bool {
    outcome.as_ref().is_err_and(|error| error.kind() != io::ErrorKind::TimedOut)
}

fn no_delimiter(limit: usize) -> Error {
    Error::new(error::ErrorKind::Corrupt, format!("the delimiter did not come within {limit} bytes"))
}

#[cfg(test)]
#[path = "link_tests.rs"]
mod tests;
