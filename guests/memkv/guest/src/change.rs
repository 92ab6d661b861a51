//! What the host is told of the changes of a call: that they begin, and which of them were not done.

use kv_store_sdk::{Result, changes};
use memkv_wire::{SessionId, Status};

use crate::Memkv;
use crate::session::Session;

/// The changes of a call, as they are sent.
#[derive(Clone, Copy, Default)]
pub struct Change {
    /// They were sent before, on a session that was lost.
    again: bool,
}

impl Change {
    /// What the server says to the change of an item. A refusal of what was sent twice is no answer: the first may have been done.
    pub fn answered(self, item: u32, status: Status) {
        if matches!(status, Status::Full | Status::Gone | Status::TooLate) {
            self.not_done(item);
        }
    }

    /// It was not done now.
    pub fn not_done(self, item: u32) {
        if !self.again {
            changes::not_done(&[item]);
        }
    }
}

impl Memkv {
    /// Change items of the running call: see [`crate::session::Server::with_change`]. The token of a change is the session on which it is
    /// sent, which a later change of the same key has replaced. Version 1 has none, and there the host waits until a change is over.
    pub fn change<T>(&self, items: &[u32], talk: impl Fn(&mut Session, u64, Change) -> Result<T>) -> Result<T> {
        let begins = |session: Option<&SessionId>| {
            let former = changes::begin(items, session.map_or(&[], |session| session));
            former.into_iter().filter_map(|token| token.try_into().ok()).collect()
        };
        self.server.with_change(begins, |session, end, again| talk(session, end, Change { again }))
    }
}
