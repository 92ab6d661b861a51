//! What the environment says, read once.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The store; without it llama.cpp's own functions run.
pub const URI: &str = "KV_STORE_LLAMA_URI";
/// Folders and files that go to the store, with `:` between them; all if it is not set.
pub const PATHS: &str = "KV_STORE_LLAMA_PATHS";
/// What names the model, in place of its GGUF file's content.
pub const MODEL: &str = "KV_STORE_LLAMA_MODEL";

/// `1`: prompts are found in the store without being asked for.
pub const AUTO: &str = "KV_STORE_LLAMA_AUTO";
/// The most that the automatic cache writes for each token that was computed, such as `64 KiB`.
pub const AUTO_BYTES: &str = "KV_STORE_LLAMA_AUTO_BYTES";

/// The settings of the process.
#[derive(Debug, Default)]
pub struct Settings {
    pub uri: Option<String>,
    pub model: Option<String>,
    /// The automatic cache.
    pub auto: bool,
    /// Bytes for each token, as it is set.
    pub auto_bytes: Option<String>,
    paths: Option<Vec<PathBuf>>,
}

impl Settings {
    /// As they were when this was called first.
    pub fn get() -> &'static Settings {
        static SETTINGS: OnceLock<Settings> = OnceLock::new();
        let text = |name| std::env::var(name).ok().filter(|text| !text.is_empty());
        SETTINGS.get_or_init(|| Settings {
            uri: text(URI),
            model: text(MODEL),
            auto: text(AUTO).is_some_and(|value| value != "0"),
            auto_bytes: text(AUTO_BYTES),
            paths: std::env::var_os(PATHS).map(|paths| std::env::split_paths(&paths).collect()),
        })
    }

    /// Whether a file's state goes to the store.
    pub fn covers(&self, path: &Path) -> bool {
        let Some(paths) = &self.paths else { return true };
        std::path::absolute(path).is_ok_and(|path| paths.iter().any(|covered| path.starts_with(covered)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_folders_and_files() {
        let settings =
            |paths: &[&str]| Settings { paths: Some(paths.iter().map(PathBuf::from).collect()), ..Settings::default() };
        assert!(Settings::default().covers(Path::new("/anything")));
        let some = settings(&["/srv/slots", "/tmp/one.bin"]);
        for path in ["/srv/slots/a.bin", "/srv/slots/b/c", "/tmp/one.bin"] {
            assert!(some.covers(Path::new(path)), "{path}");
        }
        for path in ["/srv/slots2/a.bin", "/tmp/one.bin2", "/tmp/two.bin", "relative"] {
            assert!(!some.covers(Path::new(path)), "{path}");
        }
        assert!(!settings(&[]).covers(Path::new("/anything")));
    }
}
