//! What is counted whenever it may have changed, so that nobody compares what is the same.

use std::ops::{Deref, DerefMut};

#[derive(Clone, Default)]
pub struct Counted<T> {
    of: T,
    times: u64,
}

impl<T> Counted<T> {
    pub fn of(of: T) -> Self {
        Counted { of, times: 0 }
    }

    /// How often it may have changed.
    pub fn times(&self) -> u64 {
        self.times
    }
}

impl<T> Deref for Counted<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.of
    }
}

impl<T> DerefMut for Counted<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.times += 1;
        &mut self.of
    }
}
