//! A connection to servers that say what a test has them say.

use super::*;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::fd::AsRawFd;
use std::time::Instant;

use crate::budget::Shares;
use crate::contract::tests::{access, budgets, limited};
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

fn memory(bytes: u64) -> Arc<Memory> {
    Memory::new(access(limited(|limits| limits.memory_bytes = bytes), &budgets(0, 1)))
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
    let memory = memory(1 << 20);
    with_server(serve, async |link| {
        assert_eq!(link.receive_until(b"\r\n", 100, &memory).await.unwrap(), b"+OK");
        assert_eq!(link.receive_until(b"\r\n", 100, &memory).await.unwrap(), b"$5");
        assert_eq!(received(link, 5).await.unwrap(), b"hello");
        link.skip(2).await.unwrap();
        assert_eq!(link.receive_exact(4, &memory).await.unwrap(), b"rest");
        assert_eq!(link.receive_some(10).await.unwrap(), b"");
        assert!(link.receive_exact(1, &memory).await.is_err());
        assert!(link.receive_until(b"\n", 10, &memory).await.is_err());
    });
}

#[test]
fn a_delimiter_that_does_not_come_is_no_endless_wait() {
    with_server(
        |mut peer| peer.write_all(&[b'x'; 1000]).unwrap(),
        async |link| {
            let memory = memory(1 << 20);
            let error = link.receive_until(b"\n", 99, &memory).await.unwrap_err();
            assert_eq!(error.kind(), error::ErrorKind::Corrupt);
        },
    );
}

/// A server that sends a long line, the delimiter and a byte, again and again.
#[test]
fn a_long_line_is_counted_and_leaves_no_memory_behind() {
    const LINE: usize = 4 << 20;
    let line = || [&[b'x'; LINE][..], b"\r\ny"].concat();
    with_server(
        move |mut peer| (0..2).for_each(|_| drop(peer.write_all(&line()))),
        async |link| {
            let memory = memory(8 << 20);
            assert_eq!(link.receive_until(b"\r\n", LINE, &memory).await.unwrap().len(), LINE);
            link.receive_some(1).await.unwrap();
            assert!(link.received.capacity() <= 2 * RECEIVE_BUFFER_BYTES, "{}", link.received.capacity());
            memory.take(8 << 20).unwrap();
            let refused = link.receive_until(b"\r\n", LINE, &memory).await.unwrap_err();
            assert!(refused.to_string().contains("memory_bytes = 8388608"), "{refused}");
            assert!(link.is_broken() && link.received.capacity() <= 2 * RECEIVE_BUFFER_BYTES);
        },
    );
}

#[test]
fn a_length_is_counted_before_the_first_byte_comes() {
    with_server(
        |mut peer| peer.write_all(b"12345").unwrap(),
        async |link| {
            let memory = memory(1 << 20);
            let refused = link.receive_exact(2 << 20, &memory).await.unwrap_err();
            assert_eq!(refused.kind(), error::ErrorKind::Exhausted);
            assert!(!link.is_broken(), "nothing was taken from it");
            assert_eq!(link.receive_exact(5, &memory).await.unwrap(), b"12345");
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
        unsafe { libc::setsockopt(peer.as_raw_fd(), libc::SOL_SOCKET, libc::SO_SNDBUF, (&raw const size).cast(), 4) };
        peer.write_all(&vec![1; ANSWER]).unwrap();
        let mut request = vec![0; REQUEST];
        peer.read_exact(&mut request).unwrap();
    };
    with_server(serve, async |link| {
        let data = vec![7; REQUEST];
        let parts: [&[u8]; 3] = [b"", &data[..10], &data[10..]];
        let sending = link.send(&parts);
        sending.await.unwrap();
        let memory = memory(1 << 20);
        assert_eq!(link.receive_exact(ANSWER, &memory).await.unwrap(), vec![1; ANSWER]);
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
