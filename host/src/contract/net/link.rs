//! A connection: bytes out of many parts in few packets, bytes in through one bounded buffer.

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::client::TlsStream;

use super::socket::Socket;
use super::tls;
use crate::budget::ConnectionPermit;
use crate::error::{self, Error};
use crate::limits::RECEIVE_BUFFER_BYTES;
use crate::payload::Destination;
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

    /// The next `len` bytes.
    pub(super) async fn receive_exact(&mut self, len: usize) -> Result<Vec<u8>, Error> {
        let mut bytes = self.take(len);
        while bytes.len() < len {
            if self.finished {
                return Err(closed_early());
            }
            self.receive().await?;
            bytes.extend(self.take(len - bytes.len()));
        }
        Ok(bytes)
    }

    /// The bytes before the delimiter, which is consumed.
    pub(super) async fn receive_until(&mut self, delimiter: &[u8], limit: usize) -> Result<Vec<u8>, Error> {
        let mut searched = 0;
        loop {
            let waiting = self.waiting();
            let from = searched.min(waiting.len());
            let found = waiting.get(from..).unwrap_or_default().windows(delimiter.len()).position(|w| w == delimiter);
            match found.map(|at| from + at) {
                Some(at) if at <= limit => {
                    let line = self.take(at);
                    self.forget(delimiter.len());
                    return Ok(line);
                }
                Some(_) => return Err(no_delimiter(limit)),
                None if waiting.len() > limit.saturating_add(delimiter.len()) => return Err(no_delimiter(limit)),
                None => searched = waiting.len().saturating_sub(delimiter.len() - 1),
            }
            if self.finished {
                return Err(closed_early());
            }
            self.receive().await?;
        }
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
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::os::fd::AsRawFd;
    use std::sync::Arc;
    use std::time::Instant;

    use crate::budget::Shares;
    use crate::contract::tests::budgets;
    use crate::engine::Driver;
    use crate::limits::Limits;
    use crate::payload::Filling;

    /// A link to a server that does `serve` with the other end.
    fn with_server(serve: impl FnOnce(std::net::TcpStream) + Send + 'static, client: impl AsyncFnOnce(&mut Link)) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = std::thread::spawn(move || serve(listener.accept().unwrap().0));
        let within = Instant::now() + Duration::from_secs(60);
        let finished = Driver::start().unwrap().block_on(|| within, async {
            // A small buffer of the kernel's, so that ours is what counts.
            let socket = tokio::net::TcpSocket::new_v4().unwrap();
            socket.set_recv_buffer_size(2048).unwrap();
            let stream = socket.connect(address).await.unwrap().into_std().unwrap();
            let shares = Shares::of(&budgets(0, 1), &Arc::default(), &Limits::default());
            let mut link = OpenLink::new(Stream::Plain(Socket::new(stream)), shares.connection().unwrap());
            client(&mut link).await;
        });
        assert!(finished.is_some(), "it waits for ever");
        server.join().unwrap();
    }

    async fn received(link: &mut OpenLink, len: u64) -> Result<Vec<u8>, Error> {
        let mut destination = Destination::Buffer(Filling::new(len).unwrap());
        link.receive_into(&mut destination, &Until::new(&crate::limits::Limits::default())).await?;
        let Destination::Buffer(filling) = destination else { panic!("it is a buffer") };
        Ok(filling.finish()?.to_vec())
    }

    #[test]
    fn lines_lengths_and_the_end_are_told_apart() {
        let serve = |mut peer: std::net::TcpStream| {
            for piece in ["+O", "K\r", "\n$5\r\nhel", "lo\r\nrest"] {
                peer.write_all(piece.as_bytes()).unwrap();
                std::thread::sleep(std::time::Duration::from_millis(2));
            }
        };
        with_server(serve, async |link| {
            assert_eq!(link.receive_until(b"\r\n", 100).await.unwrap(), b"+OK");
            assert_eq!(link.receive_until(b"\r\n", 100).await.unwrap(), b"$5");
            assert_eq!(received(link, 5).await.unwrap(), b"hello");
            link.skip(2).await.unwrap();
            assert_eq!(link.receive_exact(4).await.unwrap(), b"rest");
            assert_eq!(link.receive_some(10).await.unwrap(), b"");
            assert!(link.receive_exact(1).await.is_err());
            assert!(link.receive_until(b"\n", 10).await.is_err());
        });
    }

    #[test]
    fn a_delimiter_that_does_not_come_is_no_endless_wait() {
        with_server(
            |mut peer| peer.write_all(&[b'x'; 1000]).unwrap(),
            async |link| {
                let error = link.receive_until(b"\n", 99).await.unwrap_err();
                assert_eq!(error.kind(), error::ErrorKind::Corrupt);
            },
        );
    }

    #[test]
    fn a_server_that_answers_before_it_reads_does_not_block() {
        const ANSWER: usize = RECEIVE_BUFFER_BYTES - 1000;
        const REQUEST: usize = 8 << 20;
        let serve = |mut peer: std::net::TcpStream| {
            let size: libc::c_int = 2048;
            // SAFETY: an option that takes an int, and an int.
            unsafe {
                libc::setsockopt(peer.as_raw_fd(), libc::SOL_SOCKET, libc::SO_SNDBUF, (&raw const size).cast(), 4)
            };
            peer.write_all(&vec![1; ANSWER]).unwrap();
            let mut request = vec![0; REQUEST];
            peer.read_exact(&mut request).unwrap();
        };
        with_server(serve, async |link| {
            let data = vec![7; REQUEST];
            let parts: [&[u8]; 3] = [b"", &data[..10], &data[10..]];
            let sending = link.send(&parts);
            sending.await.unwrap();
            assert_eq!(link.receive_exact(ANSWER).await.unwrap(), vec![1; ANSWER]);
        });
    }

    #[test]
    fn a_peer_that_has_gone_raises_no_signal() {
        // What a consumer that is no Rust program has.
        // SAFETY: nothing in this process counts on another disposition.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
        let (gone, wait) = std::sync::mpsc::channel();
        with_server(
            move |peer| {
                drop(peer);
                gone.send(()).unwrap();
            },
            async |link| {
                wait.recv().unwrap();
                let mut sent = 0;
                while link.send(&[&[0; 1000], &[0; 1000]]).await.is_ok() {
                    sent += 1;
                    assert!(sent < 1_000_000);
                }
            },
        );
    }

    #[test]
    fn a_flood_does_not_hide_the_deadline() {
        // However much is there, now and then a receive comes back to whoever waits for it.
        with_server(drop, async |link| {
            let mut context = Context::from_waker(std::task::Waker::noop());
            let waits = (0..RECEIVES_IN_A_ROW * 4)
                .filter(|_| std::pin::pin!(link.breathe()).poll(&mut context).is_pending())
                .count();
            assert_eq!(waits, 4);
        });
    }

    #[test]
    fn a_connection_on_which_something_was_said_is_not_silent() {
        with_server(
            |mut peer| {
                let mut byte = [0];
                peer.read_exact(&mut byte).unwrap();
                peer.write_all(b"!").unwrap();
            },
            async |link| {
                assert!(link.is_silent());
                link.send(&[b"?"]).await.unwrap();
                link.receive().await.unwrap();
                assert!(!link.is_silent());
            },
        );
    }
}
