//! Doubly linked queues over numbered entries: what the policies are made of.

use std::ops::{Index, IndexMut};

const NONE: u32 = u32::MAX;

/// What a policy knows of an entry.
#[derive(Clone, Copy)]
pub(super) struct Link {
    /// Towards the newest.
    newer: u32,
    /// Towards the oldest.
    older: u32,
    pub bytes: u64,
    pub fingerprint: u64,
    /// Accesses, up to what the policy counts.
    pub hotness: u8,
    /// Which of a policy's queues it is in.
    pub queue: u8,
}

const UNUSED: Link = Link { newer: NONE, older: NONE, bytes: 0, fingerprint: 0, hotness: 0, queue: u8::MAX };

/// The links of all entries of a policy, by their numbers.
#[derive(Default)]
pub(super) struct Links(Vec<Link>);

impl Links {
    /// Make room for an entry's link, unlinked.
    pub fn admit(&mut self, entry: u32, fingerprint: u64, bytes: u64) {
        let index = entry as usize;
        if self.0.len() <= index {
            self.0.resize(index + 1, UNUSED);
        }
        self[entry] = Link { bytes, fingerprint, ..UNUSED };
    }

    /// An entry that is in a queue.
    pub fn known(&self, entry: u32) -> bool {
        self.0.get(entry as usize).is_some_and(|link| link.queue != UNUSED.queue)
    }
}

impl Index<u32> for Links {
    type Output = Link;

    #[allow(clippy::indexing_slicing, reason = "numbers come from `admit`, of the cache's own entries")]
    fn index(&self, entry: u32) -> &Link {
        &self.0[entry as usize]
    }
}

impl IndexMut<u32> for Links {
    #[allow(clippy::indexing_slicing, reason = "numbers come from `admit`, of the cache's own entries")]
    fn index_mut(&mut self, entry: u32) -> &mut Link {
        &mut self.0[entry as usize]
    }
}

/// One queue. Its entries are linked in [`Links`].
pub(super) struct Queue {
    number: u8,
    newest: u32,
    oldest: u32,
    pub len: usize,
    pub bytes: u64,
}

impl Queue {
    pub fn new(number: u8) -> Self {
        Queue { number, newest: NONE, oldest: NONE, len: 0, bytes: 0 }
    }

    pub fn oldest(&self) -> Option<u32> {
        (self.oldest != NONE).then_some(self.oldest)
    }

    /// Put an entry that is in no queue at the newest end.
    pub fn push(&mut self, links: &mut Links, entry: u32) {
        let link = &mut links[entry];
        (link.older, link.newer, link.queue) = (self.newest, NONE, self.number);
        self.bytes += link.bytes;
        match self.newest {
            NONE => self.oldest = entry,
            newest => links[newest].newer = entry,
        }
        self.newest = entry;
        self.len += 1;
    }

    /// Take an entry of this queue out of it.
    pub fn unlink(&mut self, links: &mut Links, entry: u32) {
        let Link { newer, older, bytes, .. } = links[entry];
        match newer {
            NONE => self.newest = older,
            newer => links[newer].older = older,
        }
        match older {
            NONE => self.oldest = newer,
            older => links[older].newer = newer,
        }
        links[entry].queue = UNUSED.queue;
        self.bytes -= bytes;
        self.len -= 1;
    }

    /// Move the oldest entry to the newest end.
    pub fn renew(&mut self, links: &mut Links, entry: u32) {
        self.unlink(links, entry);
        self.push(links, entry);
    }
}
