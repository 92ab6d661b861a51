//! What the peers share: rounds that are asked for on standard input, and what is stored.

use std::io::{BufRead, Write};

use anyhow::{Context, Result};

/// Do a round for each line of standard input, `put N` or `get N`, and answer with a line with the seconds that it took.
pub fn rounds(mut round: impl FnMut(&str, u64) -> Result<f64>) -> Result<()> {
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let (what, first) = line.split_once(' ').context("a word and a number")?;
        println!("{}", round(what, first.parse()?)?);
        std::io::stdout().flush()?;
    }
    Ok(())
}

/// Bytes that do not compress, by SplitMix64.
pub fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bytes.extend((mixed ^ (mixed >> 31)).to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}
