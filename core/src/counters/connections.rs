//! Requests over HTTP/1.1 that one thread answers side by side, so that neither who says nothing nor who reads slowly holds up the others.
//!
//! Bounded: a connection has [`METRICS_PATIENCE`] in all and a request [`MAX_METRICS_REQUEST`] bytes; of more than
//! [`MAX_METRICS_CONNECTIONS`] the one that has been open for longest goes.

use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use rustix::event::PollFlags;

use crate::limits::{MAX_METRICS_CONNECTIONS, MAX_METRICS_REQUEST, METRICS_PATIENCE};

/// A socket that does not wait.
pub(super) trait Stream: Read + Write + AsFd + Send {}

impl<S: Read + Write + AsFd + Send> Stream for S {}

/// What is answered: the status, the type and the body.
pub(super) type HttpAnswer = (&'static str, &'static str, String);

/// The connections that are open, the one that has been for longest first.
#[derive(Default)]
pub(super) struct Connections(Vec<Connection>);

struct Connection {
    stream: Box<dyn Stream>,
    until: Instant,
    asked: Vec<u8>,
    /// What is still to be written. None: the request is not whole.
    answer: Option<Vec<u8>>,
    written: usize,
}

impl Connections {
    pub(super) fn add(&mut self, stream: Box<dyn Stream>, now: Instant) {
        if self.0.len() >= MAX_METRICS_CONNECTIONS {
            self.0.remove(0);
        }
        let until = now + METRICS_PATIENCE;
        self.0.push(Connection { stream, until, asked: Vec::new(), answer: None, written: 0 });
    }

    /// What each waits for, in an order that stays until [`Connections::go_on`].
    pub(super) fn waited_for(&self) -> impl Iterator<Item = (BorrowedFd<'_>, PollFlags)> {
        let flags = |connection: &Connection| match connection.answer {
            None => PollFlags::IN,
            Some(_) => PollFlags::OUT,
        };
        self.0.iter().map(move |connection| (connection.stream.as_fd(), flags(connection)))
    }

    /// When the first of them has had its time.
    pub(super) fn due(&self) -> Option<Instant> {
        self.0.iter().map(|connection| connection.until).min()
    }

    /// Go on with those that are ready, and end those whose time is over. `ready`: in the order of [`Connections::waited_for`].
    pub(super) fn go_on(&mut self, ready: &[bool], now: Instant, respond: &dyn Fn(&[u8]) -> HttpAnswer) {
        let mut ready = ready.iter();
        self.0.retain_mut(|connection| {
            let goes_on = !ready.next().is_some_and(|ready| *ready) || connection.go_on(respond);
            goes_on && now < connection.until
        });
    }
}

impl Connection {
    /// Read or write what can be without waiting. False: it has ended.
    fn go_on(&mut self, respond: &dyn Fn(&[u8]) -> HttpAnswer) -> bool {
        if self.answer.is_none() {
            let mut piece = [0; 1024];
            match self.stream.read(&mut piece) {
                Ok(0) => return false,
                Ok(count) => self.asked.extend(piece.get(..count).unwrap_or_default()),
                Err(error) => return matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted),
            }
            if self.asked.len() > MAX_METRICS_REQUEST {
                return false;
            }
            if !self.asked.windows(4).any(|four| four == b"\r\n\r\n") {
                return true;
            }
            let (status, kind, body) = respond(&self.asked);
            let len = body.len();
            let head = format!(
                "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len}\r\nConnection: close\r\n\r\n"
            );
            self.answer = Some([head, body].concat().into_bytes());
        }
        let rest = self.answer.as_deref().and_then(|answer| answer.get(self.written..)).unwrap_or_default();
        match self.stream.write(rest) {
            Ok(0) => false,
            Ok(count) => {
                self.written += count;
                count < rest.len()
            }
            Err(error) => matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    #[test]
    fn who_says_nothing_is_ended_when_its_time_is_over_and_not_before() {
        let (mut connections, begun) = (Connections::default(), Instant::now());
        let (ours, _theirs) = UnixStream::pair().unwrap();
        connections.add(Box::new(ours), begun);
        let until = connections.due().unwrap();
        let nobody_asks = |_: &[u8]| -> HttpAnswer { panic!("nothing was asked") };
        connections.go_on(&[false], until - Duration::from_nanos(1), &nobody_asks);
        assert_eq!(connections.due(), Some(until));
        connections.go_on(&[false], until, &nobody_asks);
        assert_eq!((connections.due(), until - begun), (None, METRICS_PATIENCE));
    }
}
