//! The config file as it lies there: which one it is, whether it may be believed, and whether it has changed.

use std::collections::HashMap;
use std::fs::{File, Metadata, OpenOptions};
use std::io::ErrorKind::{NotADirectory, NotFound};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use kv_platform::sync::Mutex;

use super::Config;
use crate::error::Error;
use crate::limits;
use crate::process::Clock;

/// The files that were parsed, by their paths, and what they say.
#[derive(Default)]
pub struct ConfigCache {
    files: Mutex<HashMap<PathBuf, (FileIdentity, Arc<Config>)>>,
    clock: Clock,
}

impl ConfigCache {
    /// None yet.
    pub fn new(clock: Clock) -> Self {
        ConfigCache { files: Mutex::default(), clock }
    }
}

/// Where a host takes its config from.
#[derive(Clone, Debug, Default)]
pub enum Source {
    /// The file that `KV_STORE_WASM_CONFIG` names, or the first of the default places.
    #[default]
    Search,
    /// This file.
    File(PathBuf),
    /// What a program said in place of a file.
    Given(Arc<Config>),
}

/// What tells that a file is the one that was read before, without reading it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FileIdentity {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

/// Within so long after a change another one may have the same time: the kernel's clock ticks. And where a file system knows
/// no parts of a second, or only pairs of them.
const SAME_TICK: Duration = Duration::from_millis(50);
const SAME_SECONDS: Duration = Duration::from_secs(2);

impl Source {
    /// The config as it is now.
    pub fn load(&self, kept: &ConfigCache) -> Result<Arc<Config>, Error> {
        match self {
            Source::Search => Config::search(kept),
            Source::File(path) => Config::named(kept, path, &format!("the config {}", path.display())),
            Source::Given(config) => Ok(config.clone()),
        }
    }

    /// The files that it may be taken from. No component may reach them.
    pub fn places(&self) -> Vec<PathBuf> {
        match self {
            Source::Search => {
                default_places().into_iter().chain(std::env::var_os(VARIABLE).map(PathBuf::from)).collect()
            }
            Source::File(path) => vec![path.clone()],
            Source::Given(_) => Vec::new(),
        }
    }
}

/// Names the config file.
const VARIABLE: &str = "KV_STORE_WASM_CONFIG";

impl Config {
    /// What a program says in place of a config file.
    pub fn given(text: &str) -> Result<Arc<Self>, Error> {
        let mut config = Self::parse(Path::new("the given config"), text)?;
        config.path = None;
        Ok(Arc::new(config))
    }

    /// The file at a path that somebody named.
    fn named(kept: &ConfigCache, path: &Path, what: &str) -> Result<Arc<Self>, Error> {
        let doing = |error: Error| error.context(what);
        if !path.is_absolute() {
            return Err(doing(Error::invalid("must be an absolute path: the working directory is the engine's")));
        }
        if path == Path::new("/dev/null") {
            return Ok(Arc::default());
        }
        let file = open(path).map_err(|error| doing(Error::invalid(error.to_string()).with_source(error)))?;
        Self::of_file(kept, path, file)
    }

    /// The config file, if there is one.
    fn search(kept: &ConfigCache) -> Result<Arc<Self>, Error> {
        if let Some(named) = std::env::var_os(VARIABLE) {
            let path = PathBuf::from(named);
            return Self::named(kept, &path, &format!("{VARIABLE} {}", path.display()));
        }
        for path in default_places() {
            match open(&path) {
                Ok(file) => return Self::of_file(kept, &path, file),
                Err(error) if matches!(error.kind(), NotFound | NotADirectory) => {}
                Err(error) => {
                    return Err(Error::invalid(format!("{}: {error}", path.display())).with_source(error));
                }
            }
        }
        Ok(Arc::default())
    }

    /// This config file.
    pub fn load_from(path: &Path, kept: &ConfigCache) -> Result<Arc<Self>, Error> {
        let unreadable = |error: std::io::Error| Error::invalid(format!("{}: {error}", path.display()));
        let path = std::path::absolute(path).map_err(unreadable)?;
        Self::of_file(kept, &path, open(&path).map_err(unreadable)?)
    }

    /// What a file says: as it was parsed before, if it is the same.
    fn of_file(files: &ConfigCache, path: &Path, file: File) -> Result<Arc<Self>, Error> {
        let wrong = |what: &str| Error::invalid(format!("{}: {what}", path.display()));
        let meta = file.metadata().map_err(|error| wrong(&error.to_string()))?;
        if !meta.is_file() {
            return Err(wrong("is not a file"));
        }
        if meta.mode() & 0o002 != 0 {
            return Err(wrong("everybody may write to it, and so grant anything to any component: chmod o-w"));
        }
        let identity = FileIdentity::of(&meta);
        let mut kept = files.files.lock();
        if let Some((of, config)) = kept.get(path)
            && *of == identity
        {
            return Ok(config.clone());
        }
        let mut text = String::new();
        let read = file.take(limits::MAX_CONFIG_BYTES + 1).read_to_string(&mut text);
        read.map_err(|error| wrong(&error.to_string()))?;
        if text.len() as u64 > limits::MAX_CONFIG_BYTES {
            return Err(wrong(&format!("has more than {} bytes", limits::MAX_CONFIG_BYTES)));
        }
        let config = Arc::new(Self::parse(path, &text)?);
        kept.remove(path);
        if kept.len() >= limits::MAX_CONFIGS_KEPT {
            kept.clear();
        }
        if identity.is_settled(files.clock.wall()) {
            kept.insert(path.to_owned(), (identity, config.clone()));
        }
        Ok(config)
    }
}

impl FileIdentity {
    /// Of a file that is there.
    pub fn of(meta: &Metadata) -> Self {
        FileIdentity {
            device: meta.dev(),
            inode: meta.ino(),
            size: meta.len(),
            modified: (meta.mtime(), meta.mtime_nsec()),
            changed: (meta.ctime(), meta.ctime_nsec()),
        }
    }

    /// Whether a change from now on shows in the times.
    fn is_settled(&self, now: Duration) -> bool {
        let (seconds, nanoseconds) = self.changed.max(self.modified);
        let same = if self.changed.1 == 0 && self.modified.1 == 0 { SAME_SECONDS } else { SAME_TICK };
        let since_1970 = |seconds: u64| Duration::new(seconds, u32::try_from(nanoseconds).unwrap_or(0));
        let latest = u64::try_from(seconds).ok().map(since_1970);
        latest.is_some_and(|latest| now.checked_sub(latest).is_some_and(|age| age > same))
    }
}

/// Not blocking: a FIFO in its place must not hang an open.
fn open(path: &Path) -> std::io::Result<File> {
    OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path)
}

/// Where the config file is looked for, in order, when no variable names it.
fn default_places() -> Vec<PathBuf> {
    // A relative one would be the consumer's working directory.
    let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let user = absolute("XDG_CONFIG_HOME").or_else(|| absolute("HOME").map(|home| home.join(".config")));
    let places = user.into_iter().chain([PathBuf::from("/etc")]);
    places.map(|place| place.join("kv-store-wasm/config.toml")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn load_by(kept: &ConfigCache, path: &Path) -> Result<Arc<Config>, Error> {
        Config::of_file(kept, path, open(path).unwrap())
    }

    #[test]
    fn what_may_not_be_believed_is_refused_and_nothing_hangs() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("config.toml");
        let load = |path: &Path| load_by(&ConfigCache::default(), path);
        std::fs::write(&path, "[backend.x]\n").unwrap();
        load(&path).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o646)).unwrap();
        let refused = load(&path).unwrap_err().to_string();
        assert!(refused.contains("everybody may write to it"), "{refused}");
        let fifo = scratch.path().join("fifo");
        assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
        for (path, said) in [(fifo.as_path(), "is not a file"), (scratch.path(), "is not a file")] {
            let refused = load(path).unwrap_err().to_string();
            assert!(refused.contains(said), "{refused}");
        }
    }

    #[test]
    fn a_file_is_parsed_when_it_has_changed_and_not_before() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("config.toml");
        let mut former: Option<Arc<Config>> = None;
        let kept = ConfigCache::default();
        let load = |path: &Path| load_by(&kept, path);
        for scheme in ["a", "b"] {
            std::fs::write(&path, format!("[backend.{scheme}]\n")).unwrap();
            let changed = load(&path).unwrap();
            assert!(changed.backend.contains_key(scheme));
            std::thread::sleep(2 * SAME_TICK);
            let read = load(&path).unwrap();
            assert!(Arc::ptr_eq(&read, &load(&path).unwrap()), "it is parsed again");
            assert!(former.replace(read).is_none_or(|former| !Arc::ptr_eq(&former, &changed)));
        }
    }

    #[test]
    fn a_file_that_was_just_changed_may_change_again_and_look_the_same() {
        let at = |time: Duration| (time.as_secs() as i64, i64::from(time.subsec_nanos()));
        let identity =
            |time: Duration| FileIdentity { device: 0, inode: 0, size: 0, modified: (0, 0), changed: at(time) };
        let now = Duration::from_millis(3_600_999);
        let is_settled = |age: Duration| identity(now - age).is_settled(now);
        assert!(!is_settled(Duration::ZERO) && !is_settled(SAME_TICK) && is_settled(2 * SAME_TICK));
        // Without parts of a second.
        assert!(!is_settled(Duration::from_millis(999)) && is_settled(Duration::from_millis(2999)));
        assert!(!identity(now + SAME_TICK).is_settled(now));
    }
}
