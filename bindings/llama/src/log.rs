//! Lines on standard error: what was kept and loaded, and why not.

use std::fmt;

use kv_platform::stderr::Lines;

/// Write a line: `kv-store-llama: text`.
pub fn line(text: impl fmt::Display) {
    static LINES: Lines = Lines::new("kv-store-llama");
    let text: String = text.to_string().chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    LINES.write(&format!("kv-store-llama: {text}"));
}

/// A size for people.
pub struct Bytes(pub u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0..1_000_000 => write!(f, "{} kB", self.0.div_ceil(1000)),
            bytes => write!(f, "{:.1} MB", bytes as f64 / 1e6),
        }
    }
}
