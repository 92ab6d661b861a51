//! A connection between a component and its server. What one end sends comes to the other when the walk says so.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};

use kv_store_sdk::native::Stream;
use kv_store_sdk::{Error, Result};

use crate::actors::{Stop, stop};
use crate::client::Clock;

#[derive(Default)]
pub struct Wire(Mutex<State>);

#[derive(Default)]
struct State {
    /// What the client has sent, one piece for each time, and has not come.
    sent: VecDeque<Vec<u8>>,
    at_server: VecDeque<u8>,
    /// What the server has sent and has not come.
    answered: Vec<u8>,
    at_client: VecDeque<u8>,
    /// The client finds that it is lost, or has dropped it.
    lost: bool,
    /// The server reads no more.
    shut: bool,
}

fn taken(bytes: &mut VecDeque<u8>, at_most: usize) -> Vec<u8> {
    let count = bytes.len().min(at_most);
    bytes.drain(..count).collect()
}

impl Wire {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("no end panics with it")
    }

    pub fn lose(&self) {
        self.state().lost = true;
    }

    pub fn has_sent(&self) -> bool {
        !self.state().sent.is_empty()
    }

    pub fn is_answered(&self) -> bool {
        !self.state().answered.is_empty()
    }

    /// What the client has sent first comes to the server.
    pub fn deliver(&self) {
        let mut state = self.state();
        let piece = state.sent.pop_front().expect("something was sent");
        state.at_server.extend(piece);
    }

    /// At most so many bytes of what came to the server. None: nothing has come; none of them: nothing will.
    pub fn take(&self, at_most: usize) -> Option<Vec<u8>> {
        let mut state = self.state();
        let is_over = state.shut || (state.lost && state.at_server.is_empty() && state.sent.is_empty());
        (is_over || !state.at_server.is_empty())
            .then(|| if state.shut { Vec::new() } else { taken(&mut state.at_server, at_most) })
    }

    /// The server sends something.
    pub fn answer(&self, bytes: &[u8]) {
        self.state().answered.extend(bytes);
    }

    /// The server reads no more.
    pub fn shut(&self) {
        self.state().shut = true;
    }

    /// What the server has sent comes to the client.
    pub fn bring_answer(&self) {
        let mut state = self.state();
        let answer = std::mem::take(&mut state.answered);
        state.at_client.extend(answer);
    }
}

/// The component's end.
pub struct Near {
    pub wire: Arc<Wire>,
    pub clock: Arc<Clock>,
}

impl Stream for Near {
    fn send(&self, bytes: &[u8]) -> Result<()> {
        self.clock.check()?;
        let mut state = self.wire.state();
        if state.lost {
            return Err(Error::unavailable("the connection was reset"));
        }
        state.sent.push_back(bytes.to_vec());
        Ok(())
    }

    fn receive(&self, limit: usize) -> Result<Vec<u8>> {
        loop {
            let mut state = self.wire.state();
            if state.lost {
                return Err(Error::unavailable("the connection was reset"));
            }
            self.clock.check()?;
            if !state.at_client.is_empty() {
                return Ok(taken(&mut state.at_client, limit));
            }
            drop(state);
            stop(Stop::Reads);
        }
    }

    fn set_patience(&self, _: u64) {}
}

impl Drop for Near {
    fn drop(&mut self) {
        self.wire.lose();
    }
}
