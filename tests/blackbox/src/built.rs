//! Whether what tests load was built from the sources that lie in the clone now.
//!
//! `cargo xtask dist` and `cargo xtask guests` write a list for each folder that they lay out (`target/dist.sources`): every source that went
//! in, with its SHA-256, in the form of `sha256sum`. A test compares the list with the sources, and fails with the command to run where one
//! differs. Without it a test of an old library passes, or fails for a reason that is no longer in the sources. Contents are compared and no
//! times, so a checkout of another commit and back costs no build.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use kv_platform::sync::Mutex;

use sha2::{Digest, Sha256};

use crate::root;

/// With this variable, tests use what lies there, whatever it was built from.
pub const ANY: &str = "KV_STORE_TEST_ANY_BUILD";

/// The list of a folder: `target/components.sources` of `target/dist/components`.
pub fn list(root: &Path, folder: &Path) -> PathBuf {
    root.join("target").join(folder.file_name().unwrap_or_default()).with_extension("sources")
}

/// The SHA-256 of a file, in hex. `None`: there is no such file.
pub fn digest(file: &Path) -> Option<String> {
    let bytes = std::fs::read(file).ok()?;
    Some(hex::encode(Sha256::digest(bytes)))
}

/// The first source in a list that is not in `root` as it was.
pub fn changed(root: &Path, list: &str) -> Option<String> {
    list.lines().find_map(|line| match line.split_once("  ") {
        Some((was, name)) if digest(&root.join(name)).as_deref() == Some(was) => None,
        Some((_, name)) => Some(name.to_owned()),
        None => Some(line.to_owned()),
    })
}

/// Panic where a folder of the clone is missing, or was built from other sources than those there now. Each is looked at once a process.
pub(crate) fn require(folder: &'static str, command: &str) {
    static LOOKED_AT: Mutex<BTreeMap<&str, Option<String>>> = Mutex::new(BTreeMap::new());
    let fault = {
        let mut looked_at = LOOKED_AT.lock();
        looked_at.entry(folder).or_insert_with(|| fault(&root(), folder)).clone()
    };
    if let Some(fault) = fault {
        panic!("{fault}: run `{command}`, or set {ANY}=1 to test what lies there");
    }
}

fn fault(root: &Path, folder: &str) -> Option<String> {
    let (path, any) = (root.join(folder), std::env::var_os(ANY).is_some());
    if !path.exists() {
        return Some(format!("{folder} is missing"));
    }
    if any {
        return None;
    }
    match std::fs::read_to_string(list(root, &path)) {
        Ok(list) => changed(root, &list).map(|name| format!("{folder} is older than {name}")),
        Err(_) => Some(format!("{folder} does not say what it was built from")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_that_changed_or_went_is_named() {
        let root = tempfile::tempdir().unwrap();
        let built = root.path().join("target/built");
        std::fs::create_dir_all(&built).unwrap();
        for name in ["a.rs", "b.rs"] {
            std::fs::write(root.path().join(name), name).unwrap();
        }
        let faulty = || fault(root.path(), "target/built");
        assert_eq!(faulty().unwrap(), "target/built does not say what it was built from");

        let line = |name: &str| format!("{}  {name}\n", digest(&root.path().join(name)).unwrap());
        std::fs::write(list(root.path(), &built), line("a.rs") + &line("b.rs")).unwrap();
        assert_eq!(faulty(), None);
        std::fs::write(root.path().join("b.rs"), "changed").unwrap();
        assert_eq!(faulty().unwrap(), "target/built is older than b.rs");
        std::fs::write(root.path().join("b.rs"), "b.rs").unwrap();
        assert_eq!(faulty(), None, "written again, with the same bytes");
        std::fs::remove_file(root.path().join("a.rs")).unwrap();
        assert_eq!(faulty().unwrap(), "target/built is older than a.rs");
        std::fs::write(list(root.path(), &built), "no list").unwrap();
        assert_eq!(faulty().unwrap(), "target/built is older than no list");
        std::fs::remove_dir(&built).unwrap();
        assert_eq!(faulty().unwrap(), "target/built is missing");
    }
}
