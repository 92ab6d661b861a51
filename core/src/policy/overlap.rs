//! Where a granted directory may not lie: over what the host itself relies on, and over another tenant's.

use std::collections::HashMap;
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
        let mut links = Links::default();
        let directories: Vec<PathBuf> = self.directories().map(|path| links.resolve(path)).collect();
        if directories.is_empty() {
            return Ok(());
        }
        let own = guarded.own.iter().map(|(what, path)| (*what, path));
        let foreign = guarded.foreign.iter().map(|(whose, path)| (whose.as_str(), path));
        for (what, path) in own.chain(foreign) {
            let path = links.resolve(path);
            let overlaps = |directory: &&PathBuf| directory.starts_with(&path) || path.starts_with(directory);
            if let Some(directory) = directories.iter().find(overlaps) {
                let (directory, path) = (directory.display(), path.display());
                let message = format!("{directory} overlaps {what} at {path}: choose another directory for the store");
                return Err(Error::new(ErrorKind::Denied, message));
            }
        }
        Ok(())
    }
}

/// Paths with links resolved, as far as they exist. Thousands of tenants lie in a few directories, each of which is resolved
/// once.
#[derive(Default)]
struct Links {
    directories: HashMap<PathBuf, PathBuf>,
}

impl Links {
    fn resolve(&mut self, path: &Path) -> PathBuf {
        let (Some(upper), Some(name)) = (path.parent(), path.file_name()) else { return real(path) };
        let resolved = match self.directories.get(upper) {
            Some(resolved) => resolved.join(name),
            None => self.directories.entry(upper.to_owned()).or_insert(real(upper)).join(name),
        };
        match resolved.is_symlink() {
            true => real(path),
            false => resolved,
        }
    }
}

/// A path with links resolved, as far as it exists.
fn real(path: &Path) -> PathBuf {
    let resolved =
        path.ancestors().find_map(|upper| Some((upper.canonicalize().ok()?, path.strip_prefix(upper).ok()?)));
    resolved.map_or_else(|| path.to_owned(), |(real, rest)| real.join(rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_path_is_resolved_as_if_it_were_the_only_one() {
        let scratch = tempfile::tempdir().unwrap();
        let at = |path: &str| scratch.path().join(path);
        std::fs::create_dir_all(at("a/b")).unwrap();
        std::os::unix::fs::symlink("a", at("link")).unwrap();
        std::os::unix::fs::symlink(at("a/b"), at("a/other")).unwrap();
        std::os::unix::fs::symlink("no/where", at("a/broken")).unwrap();
        let mut links = Links::default();
        for path in ["a", "a/b", "link", "link/b", "link/other", "a/other/new", "a/broken", "no/such", "no/such/file"] {
            for _ in 0..2 {
                assert_eq!(links.resolve(&at(path)), real(&at(path)), "{path}");
            }
        }
        assert_eq!(links.resolve(Path::new("/")), Path::new("/"));
    }
}
