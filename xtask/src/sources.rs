//! What a folder under `target` was built from, for tests: `tests/blackbox/src/built.rs` says why, and compares.
//!
//! cargo knows which files a build reads: the `.d` file beside each thing that it makes lists them. So a file of tests, which is in no library,
//! makes none of them old.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context, Result, bail, ensure};
use kv_store_tests::built;

use crate::place::Place;

/// The sources of one folder, gathered while it is built.
pub struct Sources<'a> {
    place: &'a Place,
    output: PathBuf,
    begun: SystemTime,
    files: BTreeSet<PathBuf>,
}

impl<'a> Sources<'a> {
    /// Before `output` is built. What it said until now is taken away, so that half a build says nothing.
    pub fn begin(place: &'a Place, output: &Path) -> Result<Self> {
        let list = built::list(&place.root, output);
        match std::fs::remove_file(&list) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("cannot remove {}", list.display()));
            }
            _ => {}
        }
        Ok(Sources { place, output: output.to_owned(), begun: SystemTime::now(), files: BTreeSet::new() })
    }

    /// All files of a folder, or one file.
    pub fn add(&mut self, path: &Path) -> Result<()> {
        if !path.is_dir() {
            self.files.insert(path.to_owned());
            return Ok(());
        }
        for entry in std::fs::read_dir(path)? {
            self.add(&entry?.path())?;
        }
        Ok(())
    }

    /// What cargo read for one thing that it made: `target/release/kv-store` of `target/release/kv-store.d`.
    pub fn add_built(&mut self, made: &Path) -> Result<()> {
        let list = made.with_extension("d");
        let text = std::fs::read_to_string(&list).with_context(|| format!("cannot read {}", list.display()))?;
        let read = dependencies(&text);
        // A target folder that was copied can name files of another clone: those that build scripts asked for.
        // What build scripts write lies in the target folder, which may be in the clone; and a copy of the clone may lie in that folder.
        let Place { root, target, .. } = self.place;
        let is_made = |path: &Path| path.starts_with(target) && !root.starts_with(target);
        let ours: Vec<&PathBuf> = read.iter().filter(|path| path.starts_with(root) && !is_made(path)).collect();
        ensure!(!ours.is_empty(), "{} names no file of this clone", list.display());
        for path in ours {
            self.add(path)?;
            self.add_crate_of(path);
        }
        Ok(())
    }

    /// What else decides how a crate is built.
    fn add_crate_of(&mut self, source: &Path) {
        let folders = source.ancestors().skip(1).take_while(|folder| folder.starts_with(&self.place.root));
        if let Some(folder) = folders.into_iter().find(|folder| folder.join("Cargo.toml").exists()) {
            let beside = ["Cargo.toml", "build.rs"].map(|name| folder.join(name));
            self.files.extend(beside.into_iter().filter(|path| path.exists()));
        }
    }

    /// It is built: say of what.
    pub fn write(mut self, workspace: &Path) -> Result<()> {
        let root = &self.place.root;
        let decide = [workspace.join("Cargo.toml"), workspace.join("Cargo.lock"), root.join("rust-toolchain.toml")];
        self.files.extend(decide);
        let mut list = String::new();
        for path in &self.files {
            let name = path.strip_prefix(root)?.display().to_string();
            let time = std::fs::metadata(path).with_context(|| format!("cannot read {name}"))?.modified()?;
            if time > self.begun {
                bail!("{name} changed while it was built: run it again");
            }
            let digest = built::digest(path).with_context(|| format!("cannot read {name}"))?;
            list += &format!("{digest}  {name}\n");
        }
        let path = built::list(root, &self.output);
        std::fs::write(&path, list).with_context(|| format!("cannot write {}", path.display()))
    }
}

/// The files after the colon of the first rule of a makefile, where a space within a name follows a backslash.
fn dependencies(makefile: &str) -> Vec<PathBuf> {
    let line = makefile.lines().next().unwrap_or_default();
    let (_, after) = line.split_once(": ").unwrap_or_default();
    let (mut files, mut name, mut characters) = (Vec::new(), String::new(), after.chars());
    while let Some(character) = characters.next() {
        match character {
            '\\' => name.extend(characters.next()),
            ' ' => files.push(std::mem::take(&mut name)),
            other => name.push(other),
        }
    }
    files.push(name);
    files.into_iter().filter(|name| !name.is_empty()).map(PathBuf::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_makefile_of_cargo_names_its_sources() {
        let read = |text| dependencies(text).iter().map(|path| path.display().to_string()).collect::<Vec<_>>();
        assert_eq!(
            read("/t/a.rlib: /c/src/lib.rs /c/with\\ space.rs\n\n/other: x"),
            ["/c/src/lib.rs", "/c/with space.rs"]
        );
        assert!(read("").is_empty() && read("/t/a:").is_empty());
    }

    #[test]
    fn a_copy_in_the_target_folder_has_sources_too() {
        let folder = tempfile::tempdir().unwrap();
        let (target, root) = (folder.path().to_owned(), folder.path().join("copy"));
        std::fs::create_dir_all(root.join("a/src")).unwrap();
        std::fs::write(root.join("a/src/lib.rs"), "1").unwrap();
        let read = format!("x: {} {}\n", root.join("a/src/lib.rs").display(), target.join("release/made.rs").display());
        std::fs::write(target.join("liba.d"), read).unwrap();
        let dist = root.join("target/dist");
        let place = Place { root: root.clone(), target: target.clone(), dist, features: &[], rustc_wrapper: None };
        let mut sources = Sources::begin(&place, &place.dist).unwrap();
        sources.add_built(&target.join("liba.so")).unwrap();
        assert_eq!(sources.files, BTreeSet::from([root.join("a/src/lib.rs")]));
    }

    #[test]
    fn what_is_written_holds_until_a_source_changes() {
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().join(name);
        for (name, text) in [
            ("a/src/lib.rs", "1"),
            ("a/Cargo.toml", "1"),
            ("a/build.rs", "1"),
            ("a/src/tests.rs", "1"),
            ("Cargo.toml", "1"),
            ("Cargo.lock", "1"),
            ("rust-toolchain.toml", "1"),
            ("target/release/build/a/out/made.rs", "by a build script"),
            (
                "target/release/liba.d",
                &format!(
                    "x: {} {}\n",
                    at("a/src/lib.rs").display(),
                    at("target/release/build/a/out/made.rs").display()
                ),
            ),
        ] {
            std::fs::create_dir_all(at(name).parent().unwrap()).unwrap();
            std::fs::write(at(name), text).unwrap();
        }
        let place = Place {
            root: root.path().to_owned(),
            target: at("target"),
            dist: at("target/dist"),
            features: &[],
            rustc_wrapper: None,
        };
        let begin = || {
            let mut sources = Sources::begin(&place, &place.dist).unwrap();
            sources.add_built(&at("target/release/liba.so")).unwrap();
            sources
        };
        begin().write(root.path()).unwrap();
        let list = std::fs::read_to_string(at("target/dist.sources")).unwrap();
        let names: Vec<&str> = list.lines().filter_map(|line| line.split("  ").nth(1)).collect();
        assert_eq!(
            names,
            ["Cargo.lock", "Cargo.toml", "a/Cargo.toml", "a/build.rs", "a/src/lib.rs", "rust-toolchain.toml"]
        );
        assert_eq!(built::changed(root.path(), &list), None);
        std::fs::write(at("a/src/lib.rs"), "2").unwrap();
        assert_eq!(built::changed(root.path(), &list).as_deref(), Some("a/src/lib.rs"));

        // A source that is written while it is built may not be in what was built.
        let sources = begin();
        assert!(!at("target/dist.sources").exists(), "half a build says nothing");
        let file = std::fs::File::options().write(true).open(at("a/src/lib.rs")).unwrap();
        file.set_modified(SystemTime::now() + std::time::Duration::from_secs(5)).unwrap();
        assert!(sources.write(root.path()).unwrap_err().to_string().contains("a/src/lib.rs changed"));
        assert!(!at("target/dist.sources").exists());
    }
}
