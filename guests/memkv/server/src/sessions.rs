//! Sessions that another can take the place of: those of version 2.
//!
//! A client that has lost its connection does not know whether the server will still carry out what was sent on it. So its next CONNECT
//! names the session that was lost. From then on no further change of that session begins, and CONNECT is answered when the one that
//! is running is done. A session that is not known here has no change left: its thread has ended, or the server was started anew.
//! `tests/models/src/memkv.rs`: "an acknowledged change is not undone".

use std::collections::HashMap;
use std::sync::Arc;

use memkv_wire::SessionId;

use crate::os::{Condvar, Mutex, MutexGuard, Shutdown, TcpStream};

/// The sessions that there are: no more than connections.
#[derive(Default)]
pub struct Sessions {
    open: Mutex<HashMap<SessionId, Arc<Of>>>,
}

struct Of {
    stream: Arc<TcpStream>,
    state: Mutex<SessionState>,
    done: Condvar,
}

#[derive(Default)]
struct SessionState {
    running: bool,
    ended: bool,
}

/// A session of this thread's client; forgotten when it is dropped.
pub struct Session<'a> {
    of: &'a Sessions,
    id: SessionId,
    own: Arc<Of>,
}

/// A change that is being carried out.
pub struct Running<'a>(&'a Of);

impl Sessions {
    pub fn begin(&self, id: SessionId, stream: Arc<TcpStream>) -> Session<'_> {
        let own = Arc::new(Of { stream, state: Mutex::default(), done: Condvar::new() });
        self.open().insert(id, own.clone());
        Session { of: self, id, own }
    }

    /// End a session: when this comes back, none of its changes is running, and none begins.
    pub fn end(&self, id: &SessionId) {
        // Whoever waits here does not keep others from their sessions.
        let Some(session) = self.open().get(id).cloned() else { return };
        let mut state = session.state();
        state.ended = true;
        // It reads no more. Fails where the client has gone.
        let _ = session.stream.shutdown(Shutdown::Both);
        while state.running {
            state = session.done.wait(state);
        }
    }

    fn open(&self) -> MutexGuard<'_, HashMap<SessionId, Arc<Of>>> {
        self.open.lock()
    }
}

impl Of {
    fn state(&self) -> MutexGuard<'_, SessionState> {
        self.state.lock()
    }
}

impl Session<'_> {
    /// Begin a change. None: the session was ended.
    pub fn run(&self) -> Option<Running<'_>> {
        let mut state = self.own.state();
        if state.ended {
            return None;
        }
        state.running = true;
        Some(Running(&self.own))
    }
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        self.of.open().remove(&self.id);
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.state().running = false;
        self.0.done.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::net::TcpListener;
    use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

    /// A stream that a session has, and the client's end of it.
    fn stream() -> (Arc<TcpStream>, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (Arc::new(listener.accept().unwrap().0), client)
    }

    #[test]
    fn a_session_that_is_ended_begins_no_change_and_reads_no_more() {
        let (sessions, (stream, mut client)) = (Sessions::default(), stream());
        let session = sessions.begin([1; 16], stream.clone());
        drop(session.run().unwrap());
        sessions.end(&[2; 16]);
        assert!(session.run().is_some(), "another was ended");
        sessions.end(&[1; 16]);
        assert!(session.run().is_none());
        assert_eq!((&*stream).read(&mut [0]).unwrap(), 0);
        assert_eq!(client.read(&mut [0]).unwrap(), 0);
        drop(session);
        assert!(sessions.open().is_empty());
    }

    #[test]
    fn the_end_waits_for_the_change_that_is_running() {
        let (sessions, (stream, _client), ended) = (Sessions::default(), stream(), AtomicBool::new(false));
        let session = sessions.begin([1; 16], stream);
        let running = session.run().unwrap();
        std::thread::scope(|scope| {
            let ending = scope.spawn(|| {
                sessions.end(&[1; 16]);
                ended.store(true, SeqCst);
            });
            while !session.own.state().ended {
                std::thread::yield_now();
            }
            assert!(session.run().is_none(), "no other begins meanwhile");
            assert!(!ended.load(SeqCst));
            drop(running);
            ending.join().unwrap();
        });
        assert!(ended.load(SeqCst));
    }
}
