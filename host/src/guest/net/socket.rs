//! A TCP connection as the host uses it: never blocking, waited for by the thread of the call.

use std::io::{self, ErrorKind, IoSlice};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::engine::wait_for_socket;
use crate::error::{self, Error};

/// What one `sendmsg` takes, from POSIX.
const MAX_SLICES: usize = 1024;

fn unavailable(error: io::Error) -> Error {
    Error::new(error::ErrorKind::Unavailable, error.to_string())
}

/// A TCP connection that a call waits for on its own thread, and whose writes never raise SIGPIPE: nobody in the consumer's
/// process may expect it.
pub(super) struct Socket {
    stream: TcpStream,
    /// Something was sent since the last receive: the answer is not there yet, so a receive begins with the wait for it.
    asked: bool,
}

impl Socket {
    pub(super) async fn connect(address: SocketAddr) -> Result<Self, Error> {
        let stream = tokio::net::TcpStream::connect(address).await.map_err(unavailable)?;
        // Small writes are whole requests here; waiting for more would stall each by tens of milliseconds.
        stream.set_nodelay(true).map_err(unavailable)?;
        // It stays non-blocking.
        stream.into_std().map(Socket::new).map_err(unavailable)
    }

    pub(super) fn new(stream: TcpStream) -> Self {
        Socket { stream, asked: false }
    }

    /// The next receive looks at once what is there.
    pub(super) fn expect_nothing(&mut self) {
        self.asked = false;
    }

    /// Do something with the socket, or have the thread wait for it.
    fn poll_io<T>(
        &self,
        events: libc::c_short,
        mut io: impl FnMut(&TcpStream) -> io::Result<T>,
    ) -> Poll<io::Result<T>> {
        loop {
            match io(&self.stream) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    wait_for_socket(self.stream.as_raw_fd(), events);
                    return Poll::Pending;
                }
                done => return Poll::Ready(done),
            }
        }
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

fn send_once(stream: &TcpStream, slices: &[IoSlice<'_>]) -> io::Result<usize> {
    // SAFETY: zeroes are a message without anything; an `IoSlice` is laid out as an iovec, and the kernel only reads them.
    let sent = unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = slices.as_ptr().cast_mut().cast();
        message.msg_iovlen = slices.len().min(MAX_SLICES) as _;
        libc::sendmsg(stream.as_raw_fd(), &message, libc::MSG_NOSIGNAL)
    };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

impl AsyncRead for Socket {
    fn poll_read(mut self: Pin<&mut Self>, _: &mut Context<'_>, room: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if std::mem::take(&mut self.asked) {
            wait_for_socket(self.stream.as_raw_fd(), libc::POLLIN);
            return Poll::Pending;
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
        let sent = self.poll_io(libc::POLLOUT, |stream| send_once(stream, slices));
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
