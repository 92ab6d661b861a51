//! A TCP connection as the host uses it: never blocking, waited for by the thread of the call, and for no longer than its
//! patience while no byte moves.

use std::future::poll_fn;
use std::io::{self, ErrorKind, IoSlice};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use kv_platform::sockets;
use socket2::{Domain, Protocol, Type};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::engine::{wait_for_socket, wait_until};
use crate::error::{self, Error};

fn unavailable(error: io::Error) -> Error {
    let remedy = match error.kind() {
        ErrorKind::ConnectionRefused => ": nothing listens there; start the server, or correct host and port",
        _ => "",
    };
    let failed = Error::new(error::ErrorKind::Unavailable, format!("{error}{remedy}"));
    match waited(&error) {
        Some(patience) => failed.after_waiting(patience),
        None => failed,
    }
}

/// A TCP connection that a call waits for on its own thread, and whose writes never raise SIGPIPE: nobody in the consumer's
/// process may expect it.
pub(super) struct Socket {
    stream: TcpStream,
    /// Something was sent since the last receive: the answer is not there yet, so a receive begins with the wait for it.
    asked: bool,
    /// How long a wait may last in which no byte moves. none: as long as the call.
    patience: Option<Duration>,
    /// Since when a wait has lasted in which no byte moved.
    stalled: Option<Instant>,
}

impl Socket {
    /// Connect, within the patience.
    pub(super) async fn connect(address: SocketAddr, patience: Duration) -> Result<Self, Error> {
        let mut socket = Socket::new(begin_to_connect(address).map_err(unavailable)?);
        socket.begin(Some(patience));
        poll_fn(|_| socket.poll_connected()).await.map_err(unavailable)?;
        Ok(socket)
    }

    /// A stream that does not block.
    pub(super) fn new(stream: TcpStream) -> Self {
        Socket { stream, asked: false, patience: None, stalled: None }
    }

    /// What follows has this patience.
    pub(super) fn begin(&mut self, patience: Option<Duration>) {
        self.patience = patience;
        self.stalled = None;
    }

    /// The next receive looks at once what is there.
    pub(super) fn expect_nothing(&mut self) {
        self.asked = false;
    }

    fn poll_connected(&mut self) -> Poll<io::Result<()>> {
        // One that has failed has no peer either.
        if let Some(error) = self.stream.take_error()? {
            return Poll::Ready(Err(error));
        }
        match self.stream.peer_addr() {
            Ok(_) => Poll::Ready(Ok(())),
            Err(error) if error.kind() == ErrorKind::NotConnected => self.wait(libc::POLLOUT),
            Err(error) => Poll::Ready(Err(error)),
        }
    }

    /// Whether something can be received, be it that the peer has closed or that the connection has failed.
    pub(super) fn poll_readable(&mut self) -> Poll<()> {
        let mut byte = [0];
        self.poll_io(libc::POLLIN, |stream| stream.peek(&mut byte)).map(|_| ())
    }

    /// Do something with the socket, or have the thread wait for it.
    fn poll_io<T>(
        &mut self,
        events: libc::c_short,
        mut io: impl FnMut(&TcpStream) -> io::Result<T>,
    ) -> Poll<io::Result<T>> {
        loop {
            match io(&self.stream) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return self.wait(events),
                done => {
                    self.stalled = None;
                    return Poll::Ready(done);
                }
            }
        }
    }

    /// Have the thread wait for the socket, unless it has waited for as long as it may.
    fn wait<T>(&mut self, events: libc::c_short) -> Poll<io::Result<T>> {
        if let Some(patience) = self.patience {
            let now = Instant::now();
            let until = self.stalled.get_or_insert(now).checked_add(patience);
            if let Some(until) = until {
                if now >= until {
                    return Poll::Ready(Err(io::Error::new(ErrorKind::TimedOut, RanOut { patience })));
                }
                wait_until(until);
            }
        }
        wait_for_socket(self.stream.as_raw_fd(), events);
        Poll::Pending
    }
}

/// A wait that ran out.
#[derive(Debug, thiserror::Error)]
#[error("the server did not answer: no byte for {} ms (patience_ms)", patience.as_millis())]
struct RanOut {
    patience: Duration,
}

/// How long was waited, where that is what failed.
pub(super) fn waited(error: &io::Error) -> Option<Duration> {
    error.get_ref()?.downcast_ref::<RanOut>().map(|ran_out| ran_out.patience)
}

/// A stream that is connected, or about to be. Not by way of tokio: its reactor runs on another thread, which a thread that waits for
/// sockets hears late.
fn begin_to_connect(address: SocketAddr) -> io::Result<TcpStream> {
    let socket = socket2::Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_nonblocking(true)?;
    // Small writes are whole requests here; waiting for more would stall each by tens of milliseconds.
    socket.set_tcp_nodelay(true)?;
    match socket.connect(&address.into()) {
        Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => Err(error),
        _ => Ok(socket.into()),
    }
}

fn receive_once(stream: &TcpStream, room: &mut ReadBuf<'_>) -> io::Result<()> {
    // SAFETY: `recv` only writes there, and no more than it answers is taken for initialised.
    unsafe {
        let spare = room.unfilled_mut();
        let received = libc::recv(stream.as_raw_fd(), spare.as_mut_ptr().cast(), spare.len(), 0);
        let count = usize::try_from(received).map_err(|_| io::Error::last_os_error())?;
        room.assume_init(count);
        room.advance(count);
    }
    Ok(())
}

impl AsyncRead for Socket {
    fn poll_read(mut self: Pin<&mut Self>, _: &mut Context<'_>, room: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if std::mem::take(&mut self.asked) {
            return self.wait(libc::POLLIN);
        }
        self.poll_io(libc::POLLIN, |stream| receive_once(stream, room))
    }
}

impl AsyncWrite for Socket {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let sent = self.poll_io(libc::POLLOUT, |stream| sockets::send(stream, slices));
        self.asked |= matches!(sent, Poll::Ready(Ok(_)));
        sent
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.stream.shutdown(Shutdown::Write))
    }
}
