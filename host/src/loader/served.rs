//! Which component serves a scheme, and what it says of itself.
//!
//! The order: the component that the config's table of the scheme names; `<scheme>.wasm` in a directory; at last a component under
//! another name that lists the scheme in its section. Of several that list it the one that ships is taken, then one that the
//! config names; otherwise it is an error, because a stranger's file must not take over a scheme.
//!
//! What ships lies in `components` beside the library: who can write there can change the library itself.

use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use kv_platform::sync::Mutex;

use super::find::Places;
use super::stamp;
use crate::config::{Config, FileIdentity};
use crate::error::Error;
use crate::limits;
use crate::policy::{Declared, Served};
use crate::process::PerProcess;
use crate::sandbox_traits::FoundComponent;
use crate::uri::check_scheme;

/// What was found out about a file.
#[derive(Clone, Debug, Default)]
struct Look {
    declared: Declared,
    /// None: it could not be looked at, which the loader says better.
    identity: Option<FileIdentity>,
}

/// Who is asked first, of components that list the same scheme.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    Ships,
    InConfig,
    InDirectory,
}

/// The component of a backend: the file, and whether the config names it.
type Own = (PathBuf, bool);

impl Places {
    /// Who serves a scheme.
    pub(crate) fn serve(&self, scheme: &str, config: &Config) -> Result<FoundComponent, Error> {
        let (backend, (component, by_config)) = match self.own(scheme, config) {
            Some(own) => (scheme.to_owned(), own),
            None => self.listing(scheme, config)?.ok_or_else(|| self.not_found(scheme))?,
        };
        let Look { mut declared, identity } = look(&component);
        let ships = self.ships(&component);
        // Only what the config says something of can make a difference.
        declared.schemes.retain(|listed| {
            let other = &listed.scheme;
            *other == backend || *other == scheme || !config.mentions(other) || self.is_also(other, &backend, config)
        });
        let trusted = ships || config.pins(&backend);
        Ok(FoundComponent { component, by_config, ships, served: Served { backend, declared, trusted }, identity })
    }

    /// Whether a backend serves a scheme that it lists. Where two others are in doubt about it, it is taken to.
    fn is_also(&self, scheme: &str, backend: &str, config: &Config) -> bool {
        self.own(scheme, config).is_none()
            && self.listing(scheme, config).map_or(true, |found| found.is_some_and(|(name, _)| name == backend))
    }

    /// The component that the config names for a backend, or that lies in a directory under its name.
    fn own(&self, backend: &str, config: &Config) -> Option<Own> {
        match config.component(backend) {
            Some(named) => Some((named.to_owned(), true)),
            None => self.in_directories(backend).map(|found| (found, false)),
        }
    }

    /// The backend whose component lists a scheme, under a name that it lists too. None: there is none.
    fn listing(&self, scheme: &str, config: &Config) -> Result<Option<(String, Own)>, Error> {
        let mut best: Option<(Rank, String, Own)> = None;
        let mut seen = BTreeSet::new();
        let shipped = names_in(&self.beside_library());
        let configured = config.components().map(str::to_owned).collect();
        for names in [shipped, configured, names_in(&self.directories())] {
            for name in names {
                let Some((component, by_config)) = self.own(&name, config).filter(|_| seen.insert(name.clone())) else {
                    continue;
                };
                if seen.len() > limits::MAX_COMPONENTS_LOOKED_AT {
                    return Err(Error::invalid(format!(
                        "no component is named {scheme}, and more than {} would have to be looked at for one that lists it: name it \
                         as `component` of [backend.{scheme}] in the config",
                        limits::MAX_COMPONENTS_LOOKED_AT
                    )));
                }
                let found = look(&component);
                if !found.declared.lists(scheme) || !found.declared.lists(&name) {
                    continue;
                }
                let rank = match (self.ships(&component), by_config) {
                    (true, _) => Rank::Ships,
                    (false, true) => Rank::InConfig,
                    (false, false) => Rank::InDirectory,
                };
                match &best {
                    Some((better, _, _)) if *better < rank => {}
                    Some((same, _, (other, _))) if *same == rank => {
                        return Err(Error::invalid(format!(
                            "the scheme {scheme} is listed by two components, {} and {}: remove one, or name the one that is meant as \
                             `component` of [backend.{scheme}] in the config",
                            other.display(),
                            component.display()
                        )));
                    }
                    _ => best = Some((rank, name, (component, by_config))),
                }
            }
            // Nothing that comes after it is before it.
            if best.as_ref().is_some_and(|(rank, ..)| *rank == Rank::Ships) {
                break;
            }
        }
        Ok(best.map(|(_, name, own)| (name, own)))
    }

    /// Whether a file lies in a directory of components beside the library.
    fn ships(&self, component: &Path) -> bool {
        let about = |directory: &Path| std::fs::metadata(directory).ok().map(|meta| (meta.dev(), meta.ino()));
        let Some(directory) = component.parent() else { return false };
        let beside = self.beside_library();
        // By its name as it was found, or by another one.
        beside.iter().any(|beside| beside == directory)
            || about(directory).is_some_and(|there| beside.iter().any(|beside| about(beside) == Some(there)))
    }

    /// The names under which components are installed.
    pub(crate) fn names(&self) -> BTreeSet<String> {
        names_in(&self.directories())
    }
}

/// The names of the components in directories that can be those of a scheme.
fn names_in(directories: &[PathBuf]) -> BTreeSet<String> {
    let entries = directories.iter().filter_map(|directory| std::fs::read_dir(directory).ok());
    let files = entries.flat_map(|entries| entries.flatten().take(limits::MAX_DIRECTORY_ENTRIES));
    let name = |entry: std::fs::DirEntry| {
        let file = entry.file_name();
        let name = file.to_str()?.strip_suffix(".wasm")?;
        check_scheme(name).ok().map(|()| name.to_owned())
    };
    files.filter_map(name).collect()
}

/// What a file says of itself: as it was read before, if it is the same.
fn look(path: &Path) -> Look {
    static KEPT: PerProcess<Mutex<HashMap<PathBuf, Look>>> = PerProcess::new();
    let identity = std::fs::metadata(path).ok().filter(std::fs::Metadata::is_file).map(|meta| FileIdentity::of(&meta));
    let Some(identity) = identity else { return Look::default() };
    let kept = || KEPT.get().lock();
    if let Some(look) = kept().get(path).filter(|look| look.identity.as_ref() == Some(&identity)) {
        return look.clone();
    }
    let look = read(path);
    let mut kept = kept();
    if kept.len() >= limits::MAX_LOOKS_KEPT {
        kept.clear();
    }
    kept.insert(path.to_owned(), look.clone());
    look
}

fn read(path: &Path) -> Look {
    // A FIFO in its place would hold the open until somebody writes.
    let opened = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path);
    let about = opened.and_then(|file| file.metadata().map(|meta| (file, meta)));
    let Ok((file, meta)) = about else { return Look::default() };
    if !meta.is_file() {
        return Look::default();
    }
    // What cannot be read is a component that says nothing: the loader fails over it, and says why.
    let section = stamp::read(&file, meta.len()).unwrap_or_default();
    Look { declared: Declared::of(&section), identity: Some(FileIdentity::of(&meta)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wasm_encoder::{Component, CustomSection};

    /// Directories: what ships, and another one that is searched before it.
    struct Machine {
        folder: tempfile::TempDir,
        places: Places,
    }

    impl Machine {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let [beside, other] = ["beside", "other"].map(|name| folder.path().join(name));
            std::fs::create_dir(&beside).unwrap();
            std::fs::create_dir(&other).unwrap();
            let components = Some(vec![other, beside.clone()]);
            Machine { places: Places { components, beside: Some(vec![beside]), ..Places::default() }, folder }
        }

        /// Install a component that says this of itself.
        fn put(&self, name: &str, section: &str) -> PathBuf {
            let mut component = Component::new();
            component.section(&CustomSection { name: "kv-store-backend".into(), data: section.as_bytes().into() });
            let path = self.folder.path().join(name);
            std::fs::write(&path, component.finish()).unwrap();
            path
        }

        fn serve(&self, scheme: &str, config: &str) -> Result<FoundComponent, Error> {
            self.places.serve(scheme, &Config::parse(Path::new("/etc/c.toml"), config).unwrap())
        }

        /// The file and the name of the backend, and the port that is granted.
        fn who(&self, scheme: &str, config: &str) -> (PathBuf, String, Option<u16>) {
            let found = self.serve(scheme, config).unwrap();
            let port = found.served.port(scheme);
            (found.component, found.served.backend, port)
        }

        fn refused(&self, scheme: &str, config: &str) -> String {
            self.serve(scheme, config).unwrap_err().to_string()
        }
    }

    const REDIS: &str = "schemes: redis rediss\nport: 6379\n";

    #[test]
    fn a_scheme_is_served_by_its_name_and_then_by_who_lists_it() {
        let machine = Machine::new();
        let redis = machine.put("beside/redis.wasm", REDIS);
        assert_eq!(machine.who("redis", ""), (redis.clone(), "redis".to_owned(), Some(6379)));
        assert_eq!(machine.who("rediss", ""), (redis, "redis".to_owned(), Some(6379)));
        assert!(machine.refused("valkey", "").contains("no valkey.wasm"));
        // The config's, and a file's name, are before what any component says.
        let own = machine.put("other/rediss.wasm", "schemes: rediss\nport: 7\n");
        assert_eq!(machine.who("rediss", ""), (own.clone(), "rediss".to_owned(), None));
        let named = machine.put("named.wasm", "");
        let config = format!("[backend.rediss]\ncomponent = '{}'", named.display());
        assert_eq!(machine.who("rediss", &config), (named, "rediss".to_owned(), None));
        // It is then no scheme of redis, whose table it may have beside its own.
        let redis = machine.serve("redis", "[backend.rediss]\n[[tenant]]\nuri = 'rediss://h:1'").unwrap();
        assert_eq!(redis.served.aliases().count(), 0);
        std::fs::remove_file(own).unwrap();
        let redis = machine.serve("redis", "[[tenant]]\nuri = 'rediss://h:1'").unwrap();
        assert_eq!(redis.served.aliases().collect::<Vec<_>>(), ["rediss"]);
    }

    #[test]
    fn a_stranger_takes_no_scheme_from_what_ships_or_is_named() {
        let machine = Machine::new();
        let redis = machine.put("beside/redis.wasm", REDIS);
        machine.put("other/evil.wasm", "schemes: evil redis rediss s3\nport: 22\n");
        for scheme in ["redis", "rediss"] {
            assert_eq!(machine.who(scheme, ""), (redis.clone(), "redis".to_owned(), Some(6379)));
        }
        let (_, backend, port) = machine.who("evil", "");
        assert_eq!((backend.as_str(), port), ("evil", None));
        // One that the config names is before it too, and two of a kind are neither taken.
        std::fs::remove_file(redis).unwrap();
        let named = machine.put("redis-7.wasm", REDIS);
        let config = format!("[backend.redis]\ncomponent = '{}'", named.display());
        assert_eq!(machine.who("rediss", &config), (named, "redis".to_owned(), None));
        let redis = machine.put("other/redis.wasm", REDIS);
        let both = machine.refused("rediss", "");
        let names = [redis.display().to_string(), "other/evil.wasm".to_owned(), "[backend.rediss]".to_owned()];
        assert!(names.iter().all(|name| both.contains(name)), "{both}");
    }

    #[test]
    fn a_component_lists_schemes_under_a_name_of_its_own_only() {
        let machine = Machine::new();
        machine.put("other/evil.wasm", REDIS);
        assert!(machine.refused("rediss", "").contains("no rediss.wasm"));
        // The file that a name leads to is the one that counts, wherever others of the name lie.
        machine.put("beside/redis.wasm", REDIS);
        machine.put("other/redis.wasm", "schemes: redis\n");
        assert!(machine.refused("rediss", "").contains("no rediss.wasm"));
    }

    #[test]
    fn a_port_is_taken_from_what_ships_or_is_pinned() {
        let machine = Machine::new();
        machine.put("other/acme.wasm", "schemes: acme\nport: 22\n");
        assert_eq!(machine.who("acme", "").2, None);
        let pinned = format!("[backend.acme]\nsha256 = '{}'", "0".repeat(64));
        assert_eq!(machine.who("acme", &pinned).2, Some(22));
        // A directory under another name is the same, and a link to a file in it is not in it.
        let (beside, link) = (machine.folder.path().join("beside"), machine.folder.path().join("link"));
        std::os::unix::fs::symlink(&beside, &link).unwrap();
        let redis = machine.put("beside/redis.wasm", REDIS);
        let named = |path: &Path| format!("[backend.redis]\ncomponent = '{}'", path.display());
        assert_eq!(machine.who("redis", &named(&link.join("redis.wasm"))).2, Some(6379));
        std::os::unix::fs::symlink(redis, machine.folder.path().join("other/redis.wasm")).unwrap();
        assert_eq!(machine.who("redis", "").2, None);
    }

    #[test]
    fn a_file_that_is_replaced_is_looked_at_again() {
        let machine = Machine::new();
        machine.put("beside/redis.wasm", REDIS);
        let found = machine.serve("redis", "").unwrap();
        found.check_same().unwrap();
        let other = machine.put("new", "schemes: redis\nport: 7000\n");
        std::fs::rename(other, machine.folder.path().join("beside/redis.wasm")).unwrap();
        assert!(found.check_same().unwrap_err().to_string().contains("was replaced"));
        assert_eq!(machine.who("redis", "").2, Some(7000));
    }

    #[test]
    fn what_is_looked_at_is_bounded_and_may_be_anything() {
        let machine = Machine::new();
        std::fs::write(machine.folder.path().join("other/text.wasm"), "no component").unwrap();
        std::fs::create_dir(machine.folder.path().join("other/folder.wasm")).unwrap();
        std::fs::write(machine.folder.path().join("other/Odd name.wasm"), "").unwrap();
        let fifo = machine.folder.path().join("other/fifo.wasm");
        assert!(std::process::Command::new("mkfifo").arg(fifo).status().unwrap().success());
        machine.put("other/acme.wasm", "schemes: acme acmes\n");
        assert_eq!(machine.who("acmes", "").1, "acme");
        for number in 0..limits::MAX_COMPONENTS_LOOKED_AT {
            machine.put(&format!("other/b{number}.wasm"), "");
        }
        let refused = machine.refused("acmes", "");
        assert!(refused.contains("more than") && refused.contains("[backend.acmes]"), "{refused}");
        // What ships is looked at first.
        machine.put("beside/redis.wasm", REDIS);
        assert_eq!(machine.who("rediss", "").1, "redis");
    }
}
