//! One line on standard error for each thing that an operator should know, in one write.

use std::fmt::Display;

use kv_signals::without_signal;

/// Write a line: `kv-cache: text`.
pub(crate) fn warn(text: impl Display) {
    let tame = |c: char| if c.is_control() { ' ' } else { c };
    let mut line: String = format!("kv-cache: {text}").chars().map(tame).collect();
    line.push('\n');
    // Nothing can be done about a standard error that is closed or full.
    let _ = without_signal(libc::SIGPIPE, || rustix::io::write(rustix::stdio::stderr(), line.as_bytes()));
}
