//! Randomness that a seed replays: SplitMix64.

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::Chance;

pub(super) struct Dice(u64);

pub(super) fn digest(bytes: &[u8], seed: u64) -> u64 {
    xxh3_64_with_seed(bytes, seed)
}

impl Dice {
    pub(super) fn new(seed: u64) -> Self {
        Dice(seed)
    }

    /// Dice for one item of a batch; the same wherever in the batch it lies.
    pub(super) fn of_item(&self, item: &[u8]) -> Self {
        Dice(digest(item, self.0))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Less than `bound`, which is not 0.
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.next().checked_rem(bound).unwrap_or(0)
    }

    pub(super) fn met(&mut self, chance: Chance) -> bool {
        chance.met((self.next() >> 32) as u32)
    }

    /// How many items a lie has that is to have `count`: mostly so many, now and then none, or one too many.
    pub(super) fn miscount(&mut self, count: usize) -> usize {
        match self.below(8) {
            0 => 0,
            1 => count + 1,
            _ => count,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_replays() {
        let throws = |seed| {
            let mut dice = Dice::new(seed);
            (0..100).map(|_| dice.below(1000)).collect::<Vec<_>>()
        };
        assert_eq!(throws(7), throws(7));
        assert_ne!(throws(7), throws(8));
    }

    #[test]
    fn chances_are_met_as_often_as_they_say() {
        let mut dice = Dice::new(1);
        let chance = Chance::try_from(0.1).unwrap();
        let met = (0..100_000).filter(|_| dice.met(chance)).count();
        assert!((9_000..11_000).contains(&met), "{met}");
    }
}
