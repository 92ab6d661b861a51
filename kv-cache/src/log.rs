//! One line on standard error for each thing that an operator should know.

use std::fmt::Display;

use kv_in_process::stderr::Lines;

/// The longest line, in bytes.
const MAX_LINE_BYTES: usize = 2048;

/// Write a line: `kv-cache: text`.
pub(crate) fn warn(text: impl Display) {
    static LINES: Lines = Lines::new("kv-cache");
    let tame = |c: char| if c.is_control() { ' ' } else { c };
    let mut line: String = format!("kv-cache: {text}").chars().map(tame).collect();
    line.truncate(line.floor_char_boundary(MAX_LINE_BYTES));
    LINES.write(&line);
}
