//! Folders of a test's own.

use std::path::{Path, PathBuf};

use tempfile::TempDir;

/// One in memory, where there is such a place: other tests and builds keep a disk busy for seconds, and each sync waits for it.
pub fn in_memory() -> TempDir {
    let memory = Path::new("/dev/shm");
    let folder = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
    folder.expect("a temporary folder")
}

/// One whose files have names that commands take.
pub struct Scratch(TempDir);

impl Scratch {
    #[allow(clippy::new_without_default, reason = "it makes a folder")]
    pub fn new() -> Self {
        Scratch(tempfile::tempdir().expect("a temporary folder"))
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub fn text(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    pub fn write(&self, name: &str, content: &str) -> String {
        std::fs::write(self.path(name), content).expect("it is ours");
        self.text(name)
    }

    /// The URI of a store in a folder of this name.
    pub fn uri(&self, name: &str) -> String {
        format!("local-fs://{}", self.text(name))
    }
}
