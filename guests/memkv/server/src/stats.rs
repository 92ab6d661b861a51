//! What the server counts, for its admin endpoints.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use memkv_wire::{Op, Status};

/// A count that any thread may raise.
#[derive(Default)]
pub struct Count(AtomicU64);

impl Count {
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

#[derive(Default)]
pub struct Stats {
    /// Connections that came.
    pub accepted: Count,
    /// Requests whose tag was right, in the order of [`Op::ALL`].
    requests: [Count; Op::ALL.len()],
    /// Refusals, in the order of [`Status::ALL`].
    refusals: [Count; Status::ALL.len()],
    /// Connections that ended within a frame.
    pub truncated: Count,
    /// Changes that came after their end.
    pub late: Count,
    /// Values that were asked for and found, or not.
    pub hits: Count,
    pub misses: Count,
    /// Bytes of values that came and went.
    pub received: Count,
    pub sent: Count,
}

impl Stats {
    pub fn request(&self, op: Op) {
        let counts = Op::ALL.iter().zip(&self.requests).filter(|(known, _)| **known == op);
        counts.for_each(|(_, count)| count.add(1));
    }

    pub fn refusal(&self, status: Status) {
        let counts = Status::ALL.iter().zip(&self.refusals).filter(|(known, _)| **known == status);
        counts.for_each(|(_, count)| count.add(1));
    }

    pub fn requests(&self) -> impl Iterator<Item = (&'static str, u64)> {
        Op::ALL.into_iter().zip(&self.requests).map(|(op, count)| (op_name(op), count.get()))
    }

    /// Of the statuses that end a connection.
    pub fn refusals(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let counts = Status::ALL.into_iter().zip(&self.refusals);
        counts.filter_map(|(status, count)| Some((refusal_name(status)?, count.get())))
    }
}

fn op_name(op: Op) -> &'static str {
    match op {
        Op::Connect => "connect",
        Op::Put => "put",
        Op::Get => "get",
        Op::Delete => "delete",
        Op::Exists => "exists",
        Op::BatchGet => "batch_get",
        Op::List => "list",
        Op::Usage => "usage",
        Op::Evict => "evict",
        Op::Commit => "commit",
    }
}

pub fn refusal_name(status: Status) -> Option<&'static str> {
    Some(match status {
        Status::UnsupportedVersion => "unsupported_version",
        Status::NotAuthentic => "not_authentic",
        Status::OutOfSequence => "out_of_sequence",
        Status::TooLarge => "too_large",
        Status::Malformed => "malformed",
        Status::Busy => "busy",
        Status::Ok
        | Status::Missing
        | Status::Existed
        | Status::Full
        | Status::Gone
        | Status::Failed
        | Status::TooLate => return None,
    })
}
