//! The table of a page that a command writes, between two comments of the page.

use anyhow::{Context, Result};

/// A page with what `table` makes of the former table in its place. `name`: the page's, for people.
///
/// # Errors
/// The page lacks one of the comments.
pub fn replaced(name: &str, page: &str, marks: [&str; 2], table: impl FnOnce(&str) -> String) -> Result<String> {
    let [begin, end] = marks;
    let (before, rest) = page.split_once(begin).with_context(|| format!("{name} has no {begin:?}"))?;
    let (former, after) = rest.split_once(end).with_context(|| format!("{name} has no {end:?}"))?;
    Ok(format!("{before}{begin}{}{end}{after}", table(former)))
}
