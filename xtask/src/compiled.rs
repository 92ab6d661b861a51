//! The components that the library of the tests compiles, kept beside the build: a fresh clone with a target folder that was kept has not to
//! compile those of tests/compat again (12 and 18 MB of JavaScript and Python).
//!
//! A file's name is the digest of its component and of the engine's settings, so code of another component, wasmtime or processor is never
//! taken. They are copies, because the library follows no link, with their times, by which it removes what nobody has used for long.

use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::place::Place;

pub struct Compiled {
    used: PathBuf,
    kept: PathBuf,
}

impl Compiled {
    /// Before the tests: what was kept, where the clone has none yet.
    pub fn take(place: &Place) -> Result<Self> {
        let used = place.root.join("target/test-consumers/cache");
        let compiled = Compiled { used, kept: place.work().join("test-aot") };
        if !compiled.used.exists() {
            copy(&compiled.kept, &compiled.used)?;
        }
        Ok(compiled)
    }

    /// After them. What the library has removed is not kept either.
    pub fn keep(&self) -> Result<()> {
        if self.kept.exists() {
            std::fs::remove_dir_all(&self.kept)?;
        }
        copy(&self.used, &self.kept)
    }
}

/// The files of a folder, if it is there, into a new one of this user alone: another is not used.
fn copy(from: &Path, to: &Path) -> Result<()> {
    if !from.exists() {
        return Ok(());
    }
    std::fs::create_dir_all(to.parent().context("a cache lies in a folder")?)?;
    std::fs::DirBuilder::new().mode(0o700).create(to)?;
    for entry in std::fs::read_dir(from).with_context(|| format!("cannot read {}", from.display()))? {
        let entry = entry?;
        let (about, copy) = (entry.metadata()?, to.join(entry.file_name()));
        if about.is_file() {
            std::fs::copy(entry.path(), &copy)?;
            std::fs::File::options().write(true).open(copy)?.set_modified(about.modified()?)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;
    use std::time::{Duration, SystemTime};

    use super::*;

    #[test]
    fn code_is_kept_for_another_clone_with_its_times() {
        let folder = tempfile::tempdir().unwrap();
        let clone = |name: &str| {
            let root = folder.path().join(name);
            Place {
                dist: root.join("target/dist"),
                root,
                target: folder.path().join("kept"),
                features: &[],
                rustc_wrapper: None,
            }
        };
        let first = Compiled::take(&clone("first")).unwrap();
        assert!(!first.used.exists(), "nothing was kept yet");
        std::fs::create_dir_all(&first.used).unwrap();
        std::fs::write(first.used.join("a.cwasm"), "code").unwrap();
        let before = SystemTime::now() - Duration::from_secs(86_400);
        std::fs::File::options().write(true).open(first.used.join("a.cwasm")).unwrap().set_modified(before).unwrap();
        first.keep().unwrap();

        let second = Compiled::take(&clone("second")).unwrap();
        assert_eq!(std::fs::read(second.used.join("a.cwasm")).unwrap(), b"code");
        assert_eq!(second.used.join("a.cwasm").metadata().unwrap().modified().unwrap(), before);
        assert_eq!(second.used.metadata().unwrap().mode() & 0o777, 0o700);
        std::fs::remove_file(second.used.join("a.cwasm")).unwrap();
        second.keep().unwrap();
        assert_eq!(std::fs::read_dir(&second.kept).unwrap().count(), 0, "removed by the library, so no longer kept");
    }
}
