//! A folder of a test's own, whose files have names that commands take.

use std::path::PathBuf;

pub struct Scratch(tempfile::TempDir);

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
