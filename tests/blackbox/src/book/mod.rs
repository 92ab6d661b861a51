//! The pages of the project as a reader sees them: what is in them, as pure functions over text. `tests/book.rs` holds the pages to it.

mod blocks;
mod generated;
mod links;
mod sentences;

pub use blocks::{Block, How, blocks};
pub use generated::{contract, header};
pub use links::{anchors, links, mentions, normal};
pub use sentences::sentences;

use std::path::{Path, PathBuf};

/// All files below a folder of the clone, as paths from the clone, sorted. What is built or kept by tools is left out.
pub fn files(root: &Path, folder: &str) -> Vec<PathBuf> {
    const LEFT_OUT: &[&str] = &["target", ".git", "__pycache__", "node_modules", "corpus", "artifacts"];
    let (mut folders, mut files) = (vec![root.join(folder)], Vec::new());
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
            let (path, name) = (entry.path(), entry.file_name());
            let kind = entry.file_type().expect("the clone can be read");
            if kind.is_dir() && !LEFT_OUT.iter().any(|left_out| *left_out == name) {
                folders.push(path);
            } else if kind.is_file() {
                files.push(path.strip_prefix(root).expect("it is below the clone").to_owned());
            }
        }
    }
    files.sort();
    files
}

/// The lines of a page outside of fenced blocks and comments, with their numbers from 1.
fn prose(page: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut fenced = false;
    (1..).zip(page.lines()).filter(move |(_, line)| {
        let is_fence = line.trim_start().starts_with("```");
        fenced ^= is_fence;
        !fenced && !is_fence && blocks::comment(line).is_none()
    })
}
