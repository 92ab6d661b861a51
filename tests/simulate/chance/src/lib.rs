//! Chance that follows from a seed: SplitMix64.

#[derive(Clone)]
pub struct Dice(u64);

impl Dice {
    /// Dice of their own for something that has numbers: what else is thrown does not change them.
    pub fn of(seed: u64, numbers: &[u64]) -> Self {
        let mut dice = Dice(seed);
        for number in numbers {
            dice = Dice(dice.next() ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        }
        dice.next();
        dice
    }

    #[allow(clippy::should_implement_trait, reason = "dice have no end")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Less than `bound`; 0 where that is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next().checked_rem(bound).unwrap_or(0)
    }

    pub fn index(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize
    }

    /// From `least` to `most`.
    pub fn within(&mut self, least: u64, most: u64) -> u64 {
        least + self.below(most - least + 1)
    }

    /// Met so often in a thousand.
    pub fn met(&mut self, per_mille: u64) -> bool {
        self.below(1000) < per_mille
    }

    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> Option<&'a T> {
        let at = self.index(items.len());
        items.get(at)
    }

    /// Damaged bytes: fewer of them, or one bit is another.
    pub fn spoilt(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut bytes = bytes.to_vec();
        if self.met(500) {
            bytes.truncate(self.index(bytes.len()));
        } else {
            // Not the generation, which no checksum covers.
            let at = self.index(bytes.len().saturating_sub(16).max(1));
            if let Some(byte) = bytes.get_mut(at) {
                *byte ^= 1 << self.below(8);
            }
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_replays_and_numbers_tell_dice_apart() {
        let throws = |mut dice: Dice| (0..100).map(|_| dice.below(1000)).collect::<Vec<_>>();
        assert_eq!(throws(Dice::of(7, &[1, 2])), throws(Dice::of(7, &[1, 2])));
        for other in [Dice::of(7, &[2, 1]), Dice::of(8, &[1, 2]), Dice::of(7, &[1])] {
            assert_ne!(throws(Dice::of(7, &[1, 2])), throws(other));
        }
    }
}
