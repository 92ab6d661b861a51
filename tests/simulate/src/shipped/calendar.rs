//! The calendar of a simulated server: not that of the engines, and a little faster or slower.

use crate::threads::{MICROSECOND, Moment};
use chance::Dice;

/// 2033-05-18, in microseconds.
const EPOCH: i64 = 2_000_000_000_000_000;

#[derive(Clone, Copy)]
pub struct Calendar {
    /// Microseconds.
    offset: i64,
    /// Of a million microseconds, so many more or fewer.
    drift: i64,
}

impl Calendar {
    pub fn drawn(dice: &mut Dice) -> Self {
        let offset = dice.within(0, 2_000_000) as i64 - 1_000_000;
        Calendar { offset, drift: dice.within(0, 1000) as i64 - 500 }
    }

    /// The same, set on by so many microseconds.
    pub fn set_on(self, micros: i64) -> Self {
        Calendar { offset: self.offset + micros, ..self }
    }

    /// Microseconds since 1970.
    pub fn at(self, now: Moment) -> u64 {
        let micros = (now / MICROSECOND) as i64;
        (EPOCH + self.offset + micros + micros * self.drift / 1_000_000) as u64
    }
}
