//! What is stored: chunks and manifests whose right bytes anybody can make anew, so that no wrong one passes.

use xxhash_rust::xxh3::xxh3_64;

/// SplitMix64.
#[derive(Clone)]
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GOLDEN);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Less than `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

pub const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// Chunks that there are; few, so that they are put again and again.
pub const CHUNKS: u64 = 240;
/// Manifests that there are.
pub const NAMES: usize = 6;

/// The bytes of a chunk: from none to 300 KB, most of them small.
pub fn content(chunk: u64) -> Vec<u8> {
    let mut random = Random(chunk.wrapping_mul(GOLDEN));
    let len = match chunk % 8 {
        0 => random.below(3),
        1..=4 => random.below(3_000),
        5 | 6 => random.below(40_000),
        _ => random.below(300_000),
    };
    let mut bytes = chunk.to_le_bytes().to_vec();
    while (bytes.len() as u64) < len {
        bytes.extend(random.next().to_le_bytes());
    }
    bytes.truncate(len.max(8) as usize);
    bytes
}

/// Today's consumers key a chunk by its XXH3.
pub fn hash(content: &[u8]) -> [u8; 8] {
    xxh3_64(content).to_be_bytes()
}

pub fn name(number: usize) -> String {
    format!("conversation/{number}")
}

/// What one save published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    pub name: usize,
    /// Which save it was: no two have the same.
    pub save: u64,
    pub chunks: Vec<u64>,
}

impl Manifest {
    /// Words, and a checksum of them: as a consumer, we trust no manifest that could be torn.
    pub fn to_bytes(&self) -> Vec<u8> {
        let words = [self.name as u64, self.save, self.chunks.len() as u64];
        let mut bytes: Vec<u8> = words.iter().chain(&self.chunks).flat_map(|word| word.to_le_bytes()).collect();
        let checksum = xxh3_64(&bytes);
        bytes.extend(checksum.to_le_bytes());
        bytes
    }

    pub fn parse(bytes: &[u8]) -> Result<Self, String> {
        let torn = |what: &str| format!("a manifest of {} bytes {what}", bytes.len());
        if !bytes.len().is_multiple_of(8) || bytes.len() < 32 {
            return Err(torn("has no such length"));
        }
        let words: Vec<u64> =
            bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().expect("8 bytes"))).collect();
        let [name, save, count, chunks @ .., checksum] = words.as_slice() else { return Err(torn("is too short")) };
        if xxh3_64(&bytes[..bytes.len() - 8]) != *checksum {
            return Err(torn("does not match its checksum"));
        }
        if *count != chunks.len() as u64 {
            return Err(torn("has other chunks than it says"));
        }
        Ok(Manifest { name: *name as usize, save: *save, chunks: chunks.to_vec() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manifest_that_is_torn_is_none() {
        let manifest = Manifest { name: 3, save: 7, chunks: vec![1, 2, 3] };
        let bytes = manifest.to_bytes();
        assert_eq!(Manifest::parse(&bytes), Ok(manifest));
        for len in 0..bytes.len() {
            assert!(Manifest::parse(&bytes[..len]).is_err(), "{len}");
        }
        for at in 0..bytes.len() {
            let mut flipped = bytes.clone();
            flipped[at] ^= 1;
            assert!(Manifest::parse(&flipped).is_err(), "{at}");
        }
    }
}
