//! Whose a directory is. The cache leaves an empty file `.token-cache`, the backend local-fs of kv-store-wasm leaves `.local-fs`, and neither
//! opens what the other has marked: each would take the other's files for strangers, and never clean up.

use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{self, AtFlags, Mode, OFlags};

use crate::error::{Error, ErrorKind, Result};

pub(super) const NAME: &str = ".token-cache";
const OF_STORES: &str = ".local-fs";

/// Leave the cache's own marker.
pub(super) fn leave(fd: &OwnedFd) {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    // Who cannot write it can still read rows.
    let _ = fs::openat(fd, NAME, flags, Mode::from(0o600));
}

/// Refuse a directory that the backend local-fs keeps a store in: one with its marker, or, since stores of former versions have none,
/// one that has chunks as it lays them out and not our marker.
pub(super) fn refuse_store(path: &Path, fd: &OwnedFd) -> Result<()> {
    let is_there = |name: &str| fs::statat(fd, name, AtFlags::SYMLINK_NOFOLLOW).is_ok();
    let has_chunks = || (0..16).any(|shard| is_there(&format!("chunks/{shard:x}")));
    if is_there(OF_STORES) || (!is_there(NAME) && has_chunks()) {
        let shown = path.display();
        return Err(Error::new(
            ErrorKind::InvalidArgument,
            format!(
                "{shown} holds a store of the backend local-fs, not rows of this cache: give the cache a directory of its own (for the store: kv-store ls, du, gc)"
            ),
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::Key;
    use crate::tier::directory::{Directory, Name, classify, row_name};

    #[test]
    fn a_store_is_refused_and_what_has_no_marker_is_taken_for_what_it_holds() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let refused = |path: &Path| {
            let error = Directory::open(path, true).err().expect("it is refused");
            assert!(error.to_string().contains("holds a store of the backend local-fs"), "{error}");
            assert!(!path.join(".lock").exists() && !path.join(NAME).exists());
            assert!(Directory::open_existing(path).is_err());
        };
        std::fs::create_dir(path("marked")).unwrap();
        std::fs::write(path("marked").join(OF_STORES), "").unwrap();
        refused(&path("marked"));
        // A store of a former version.
        std::fs::create_dir_all(path("former").join("chunks/a")).unwrap();
        refused(&path("former"));
        // A cache of a former version has no marker, and then has one; a directory of the user's named chunks is no store.
        std::fs::create_dir_all(path("cache").join("chunks")).unwrap();
        std::fs::write(path("cache").join(row_name(&Key([7; 32]))), "").unwrap();
        drop(Directory::open(&path("cache"), true).unwrap());
        assert!(path("cache").join(NAME).exists());
        drop(Directory::open(&path("cache"), false).unwrap());
        assert_eq!(classify(NAME), Name::Ours);
    }
}
