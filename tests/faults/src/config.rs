//! `[backend.<scheme>.fault]`: how often what goes wrong. Off where the table is not there.

use serde::Deserialize;

/// Which faults are injected, each with its probability for one call of the component.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Fault {
    /// The same seed and the same calls give the same faults. Otherwise a new one for each store that is opened.
    pub seed: Option<u64>,
    /// The call fails before or after it reached the component, or one item of a batch does.
    pub fail: Chance,
    /// The call is held up, for at most `delay_ms`.
    pub delay: Chance,
    pub delay_ms: u32,
    /// A batch is answered in part, as the contract allows.
    pub short: Chance,
    /// One bit of a fetched chunk or manifest is another.
    pub flip: Chance,
    /// A fetched chunk or manifest ends too early.
    pub cut: Chance,
    /// An answer is made up: stored, existed, missing, published; or it has a number of items that cannot be.
    pub lie: Chance,
    /// The component traps before or after its work.
    pub trap: Chance,
    /// The process is killed before or after the call, as by `kill -9`.
    pub crash: Chance,
}

/// A probability, from 0 to 1, as a number out of 2^32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(try_from = "f64")]
pub struct Chance(u64);

impl Chance {
    /// Whether it is met by 32 random bits.
    pub(super) fn met(self, random: u32) -> bool {
        u64::from(random) < self.0
    }
}

impl TryFrom<f64> for Chance {
    type Error = String;

    fn try_from(number: f64) -> Result<Self, String> {
        match number {
            within if (0.0..=1.0).contains(&within) => Ok(Chance((within * 4_294_967_296.0) as u64)),
            _ => Err(format!("{number} is no probability: write a number from 0 to 1")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn never_and_always_are_exact() {
        let chance = |number: f64| Chance::try_from(number).unwrap();
        assert!(!chance(0.0).met(0));
        assert!(chance(1.0).met(u32::MAX));
        assert!(chance(0.5).met((1 << 31) - 1) && !chance(0.5).met(1 << 31));
        for bad in [-0.1, 1.1, f64::NAN, f64::INFINITY] {
            assert!(Chance::try_from(bad).is_err(), "{bad}");
        }
    }
}
