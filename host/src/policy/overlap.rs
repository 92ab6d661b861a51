//! Where a granted directory may not lie: over what the host itself relies on, and over another tenant's.

use std::path::{Path, PathBuf};

use super::Grants;
use crate::error::{Error, ErrorKind};

/// What no store may lie over.
#[derive(Default)]
pub struct Guarded {
    /// The host's own: no grant may hold it or lie in it. What it is, and where.
    pub own: Vec<(&'static str, PathBuf)>,
    /// Of others: no grant may hold it or lie in it. Whose, and where.
    pub foreign: Vec<(String, PathBuf)>,
}

impl Grants {
    /// The directories that the component may reach.
    pub fn directories(&self) -> impl Iterator<Item = &Path> {
        let named = self.fs.values().map(|folder| folder.path.as_path());
        self.directory.as_deref().into_iter().chain(named)
    }

    /// Refuse a directory that overlaps what the host relies on, or what is another's.
    pub fn check_overlap(&self, guarded: &Guarded) -> Result<(), Error> {
        for directory in self.directories().map(real) {
            let refuse = |what: &dyn std::fmt::Display, path: &Path| {
                let (directory, path) = (directory.display(), path.display());
                let message = format!("{directory} overlaps {what} at {path}: choose another directory for the store");
                Err(Error::new(ErrorKind::Denied, message))
            };
            for (what, path) in &guarded.own {
                let path = real(path);
                if directory.starts_with(&path) || path.starts_with(&directory) {
                    return refuse(what, &path);
                }
            }
            for (whose, path) in &guarded.foreign {
                let path = real(path);
                if directory.starts_with(&path) || path.starts_with(&directory) {
                    return refuse(whose, &path);
                }
            }
        }
        Ok(())
    }
}

/// A path with links resolved, as far as it exists.
fn real(path: &Path) -> PathBuf {
    let resolved =
        path.ancestors().find_map(|upper| Some((upper.canonicalize().ok()?, path.strip_prefix(upper).ok()?)));
    resolved.map_or_else(|| path.to_owned(), |(real, rest)| real.join(rest))
}
