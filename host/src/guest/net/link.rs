//! A connection: bytes out of many parts in few packets, bytes in through one bounded buffer.

use std::future::poll_fn;
use std::io::{ErrorKind, IoSlice};
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, Interest, ReadBuf};
use tokio::net::TcpStream;

use crate::error::{self, Error};
use crate::limits::RECEIVE_BUFFER_BYTES;
use crate::payload::{Buffer, Filling};

pub(super) struct Link {
    stream: TcpStream,
    /// What came and was not asked for yet.
    received: Vec<u8>,
    /// Where in `received` that begins.
    begin: usize,
    /// The peer has finished.
    finished: bool,
    receives: u32,
}

/// What one `sendmsg` takes, from POSIX.
const MAX_SLICES: usize = 1024;
/// Receives after which a wait is allowed to end, though more is there.
const RECEIVES_IN_A_ROW: u32 = 64;

fn unavailable(message: impl std::fmt::Display) -> Error {
    Error::new(error::ErrorKind::Unavailable, message.to_string())
}

fn closed_early() -> Error {
    unavailable("the server closed the connection")
}

/// One write. Not `writev`, which raises SIGPIPE where the peer has gone, and nobody in the consumer's process may expect it.
fn send_once(stream: &TcpStream, slices: &[IoSlice<'_>]) -> std::io::Result<usize> {
    // SAFETY: zeroes are a message without anything; an `IoSlice` is laid out as an iovec, and the kernel only reads them.
    let sent = unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = slices.as_ptr().cast_mut().cast();
        message.msg_iovlen = slices.len().min(MAX_SLICES) as _;
        libc::sendmsg(stream.as_raw_fd(), &message, libc::MSG_NOSIGNAL)
    };
    usize::try_from(sent).map_err(|_| std::io::Error::last_os_error())
}

impl Link {
    pub(super) async fn connect(address: SocketAddr) -> Result<Self, Error> {
        let stream = TcpStream::connect(address).await.map_err(unavailable)?;
        // Small writes are whole requests here; waiting for more would stall each by tens of milliseconds.
        stream.set_nodelay(true).map_err(unavailable)?;
        Ok(Link { stream, received: Vec::new(), begin: 0, finished: false, receives: 0 })
    }

    /// Whether the connection is alive, and nobody has said anything on it that was not asked for.
    pub(super) fn is_silent(&mut self) -> bool {
        let mut byte = [0];
        self.waiting().is_empty()
            && !self.finished
            && matches!(self.stream.try_read(&mut byte), Err(error) if error.kind() == ErrorKind::WouldBlock)
    }

    fn waiting(&self) -> &[u8] {
        self.received.get(self.begin..).unwrap_or_default()
    }

    fn take(&mut self, count: usize) -> Vec<u8> {
        let waiting = self.waiting();
        let taken = waiting.get(..count).unwrap_or(waiting).to_vec();
        self.forget(taken.len());
        taken
    }

    /// Have done with so many of the bytes that wait, and give back the memory of a buffer that grew.
    fn forget(&mut self, count: usize) {
        self.begin += count;
        if self.begin >= self.received.len() {
            self.received.clear();
            self.received.shrink_to(2 * RECEIVE_BUFFER_BYTES);
            self.begin = 0;
        }
    }

    /// Send all parts. What comes in the meantime is received, up to the buffer.
    pub(super) async fn send(&mut self, parts: &[&[u8]]) -> Result<(), Error> {
        let mut slices: Vec<IoSlice> = parts.iter().filter(|p| !p.is_empty()).map(|p| IoSlice::new(p)).collect();
        let mut rest = slices.as_mut_slice();
        while !rest.is_empty() {
            let sent = poll_fn(|context| self.poll_send(context, rest)).await?;
            IoSlice::advance_slices(&mut rest, sent);
        }
        Ok(())
    }

    fn poll_send(&mut self, context: &mut Context<'_>, slices: &[IoSlice<'_>]) -> Poll<Result<usize, Error>> {
        loop {
            while self.stream.poll_write_ready(context).map_err(unavailable)?.is_ready() {
                match self.stream.try_io(Interest::WRITABLE, || send_once(&self.stream, slices)) {
                    Ok(0) => return Poll::Ready(Err(closed_early())),
                    // Not ready after all; the next look registers for when it is.
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    sent => return Poll::Ready(sent.map_err(unavailable)),
                }
            }
            if self.finished || self.waiting().len() >= RECEIVE_BUFFER_BYTES {
                return Poll::Pending;
            }
            // Something came: look again, so that the next wait is registered for both.
            ready!(self.poll_receive(context))?;
        }
    }

    /// Receive something into the buffer.
    fn poll_receive(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Error>> {
        if self.begin > 0 {
            self.received.drain(..self.begin);
            self.begin = 0;
        }
        let had = self.received.len();
        self.received.resize(had + RECEIVE_BUFFER_BYTES, 0);
        let mut room = ReadBuf::new(self.received.get_mut(had..).unwrap_or_default());
        let outcome = Pin::new(&mut self.stream).poll_read(context, &mut room);
        let count = room.filled().len();
        self.received.truncate(had + count);
        ready!(outcome).map_err(unavailable)?;
        self.finished |= count == 0;
        Poll::Ready(Ok(()))
    }

    async fn receive(&mut self) -> Result<(), Error> {
        self.breathe().await;
        poll_fn(|context| self.poll_receive(context)).await
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

    /// The next `len` bytes, received where they stay.
    pub(super) async fn receive_buffer(&mut self, mut filling: Filling) -> Result<Buffer, Error> {
        let waiting = self.take(filling.rest().len());
        filling.push(&waiting);
        while !filling.rest().is_empty() {
            self.breathe().await;
            let count = poll_fn(|context| {
                let mut room = ReadBuf::uninit(filling.rest());
                ready!(Pin::new(&mut self.stream).poll_read(context, &mut room)).map_err(unavailable)?;
                Poll::Ready(Ok::<_, Error>(room.filled().len()))
            })
            .await?;
            if count == 0 {
                self.finished = true;
                return Err(closed_early());
            }
            // SAFETY: `ReadBuf` has `count` initialised bytes at the front of `rest`.
            unsafe { filling.advance(count) };
        }
        filling.finish()
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

fn no_delimiter(limit: usize) -> Error {
    Error::new(error::ErrorKind::Corrupt, format!("the delimiter did not come within {limit} bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpListener;

    /// A link to a server that does `serve` with the other end.
    fn with_server(serve: impl FnOnce(std::net::TcpStream) + Send + 'static, client: impl AsyncFnOnce(&mut Link)) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = std::thread::spawn(move || serve(listener.accept().unwrap().0));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            // A small buffer of the kernel's, so that ours is what counts.
            let socket = tokio::net::TcpSocket::new_v4().unwrap();
            socket.set_recv_buffer_size(2048).unwrap();
            let stream = socket.connect(address).await.unwrap();
            let mut link = Link { stream, received: Vec::new(), begin: 0, finished: false, receives: 0 };
            client(&mut link).await;
        });
        server.join().unwrap();
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
            assert_eq!(&*link.receive_buffer(Filling::new(5).unwrap()).await.unwrap(), b"hello");
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
            tokio::time::timeout(std::time::Duration::from_secs(20), sending).await.expect("both wait").unwrap();
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
