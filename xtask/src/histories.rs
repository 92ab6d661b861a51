//! `cargo xtask histories`: build what is installed, and hand it to `tests/histories`; `--planted`: build it with planted bugs, and see whether
//! their histories show them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

use crate::place::Place;
use crate::{dist, guests, packages, servers, step};

pub fn run(place: &Place, arguments: &[String]) -> Result<()> {
    if let Some(at) = arguments.iter().position(|argument| argument == "--planted") {
        let rest: Vec<&String> =
            arguments.iter().enumerate().filter(|(own, _)| *own != at).map(|(_, word)| word).collect();
        return match rest.as_slice() {
            [] => planted(place, None),
            [only] if !only.starts_with('-') => planted(place, Some(only)),
            _ => bail!("--planted takes a part of the name of a bug, and nothing else"),
        };
    }
    packages::install(packages::TESTS)?;
    dist::run_for_long(place)?;
    let mut histories = program(place);
    if !arguments.iter().any(|argument| argument == "--list") {
        histories.env(servers::VARIABLE, servers::install(place)?);
    }
    step::run_shown("histories", histories.args(arguments))
}

fn program(place: &Place) -> Command {
    Command::new(place.target.join("release/kv-store-histories"))
}

/// Of `tests/histories/planted.toml`.
#[derive(Deserialize)]
struct Bug {
    name: String,
    by: By,
    on: String,
    nemesis: String,
    file: String,
    /// Of a script of redis, as it is and with the bug: a server that does not know a script by its name carries out nothing.
    sha1: Option<[String; 2]>,
    old: String,
    new: String,
}

#[derive(Clone, Copy, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
enum By {
    Fix,
    New,
}

#[derive(Deserialize)]
struct Bugs {
    bug: Vec<Bug>,
}

/// The crates whose bugs are planted all at once, with the file that gets their module, and how they ask for one.
const TOGETHER: [(&str, &str); 2] =
    [("core/", "core/src/lib.rs"), ("guests/memkv/server/", "guests/memkv/server/src/main.rs")];
/// What these crates ask. The variable is read once: no process changes it.
const MODULE: &str = r#"//! Which planted bug is on.

/// Whether it is this one.
pub fn is(name: &str) -> bool {
    static ON: std::sync::LazyLock<Option<String>> = std::sync::LazyLock::new(|| std::env::var("KV_STORE_PLANTED").ok());
    ON.as_deref() == Some(name)
}
"#;
/// The same, for `kv-store-histories`.
const VARIABLE: &str = "KV_STORE_PLANTED";
/// For how long a bug is looked for.
const MINUTES: &str = "2";
/// Of a round: what strikes does so more often than where rounds are short, for the least part of them.
const SECONDS: &str = "10";

fn bugs(root: &Path) -> Result<Vec<Bug>> {
    let text = std::fs::read_to_string(root.join("tests/histories/planted.toml"))?;
    Ok(toml::from_str::<Bugs>(&text).context("planted.toml")?.bug)
}

impl Bug {
    /// Whether it is built together with others.
    fn is_native(&self) -> bool {
        TOGETHER.iter().any(|(folder, _)| self.file.starts_with(folder))
    }

    /// The text of its file, with it.
    fn planted(&self, text: &str) -> Result<String> {
        let times = text.matches(&self.old).count();
        ensure!(times == 1, "{}: its text is {times} times in {}: correct planted.toml", self.name, self.file);
        let asks = format!("crate::planted::is({:?})", self.name);
        let planted = text.replacen(&self.old, &self.new.replace("PLANTED", &asks), 1);
        let Some([sound, own]) = &self.sha1 else { return Ok(planted) };
        ensure!(planted.contains(sound), "{}: no script has the SHA-1 {sound}: correct planted.toml", self.name);
        Ok(planted.replace(sound, own))
    }
}

/// The sources, with what is planted in some of them.
struct Copy<'a> {
    root: &'a Path,
    /// By their paths in the clone.
    planted: BTreeMap<PathBuf, String>,
}

impl<'a> Copy<'a> {
    /// With all bugs that are built together.
    fn of(root: &'a Path, bugs: &[Bug]) -> Result<Self> {
        let mut copy = Copy { root, planted: BTreeMap::new() };
        for (folder, library) in TOGETHER {
            copy.planted.insert(Path::new(library).with_file_name("planted.rs"), MODULE.to_owned());
            let text = copy.text(library)?;
            copy.planted.insert(library.into(), text + "\n/// Bugs that are planted.\npub mod planted;\n");
            for bug in bugs.iter().filter(|bug| bug.file.starts_with(folder)) {
                let planted = bug.planted(&copy.text(&bug.file)?)?;
                copy.planted.insert(bug.file.clone().into(), planted);
            }
        }
        Ok(copy)
    }

    /// A file as it is by now.
    fn text(&self, path: &str) -> Result<String> {
        match self.planted.get(Path::new(path)) {
            Some(text) => Ok(text.clone()),
            None => std::fs::read_to_string(self.root.join(path)).with_context(|| path.to_owned()),
        }
    }

    /// Write it, without what is built, in place of a former one.
    fn write(&self, to: &Path) -> Result<()> {
        self.folder(Path::new(""), to)?;
        self.remove_former(Path::new(""), to)?;
        self.planted.iter().try_for_each(|(path, text)| write_changed(&to.join(path), text.as_bytes()))
    }

    fn folder(&self, folder: &Path, to: &Path) -> Result<()> {
        std::fs::create_dir_all(to.join(folder))?;
        for entry in std::fs::read_dir(self.root.join(folder))? {
            let entry = entry?;
            let (name, path) = (entry.file_name(), folder.join(entry.file_name()));
            if name == "target" || name == ".git" || self.planted.contains_key(&path) {
                continue;
            }
            match entry.file_type()? {
                kind if kind.is_dir() => self.folder(&path, to)?,
                kind if kind.is_file() => write_changed(&to.join(path), &std::fs::read(entry.path())?)?,
                _ => {
                    let to = to.join(path);
                    if to.symlink_metadata().is_err() {
                        std::os::unix::fs::symlink(std::fs::read_link(entry.path())?, to)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Remove what the clone has no more.
    fn remove_former(&self, folder: &Path, to: &Path) -> Result<()> {
        for entry in std::fs::read_dir(to.join(folder))? {
            let entry = entry?;
            let path = folder.join(entry.file_name());
            if entry.file_name() == "target" || self.planted.contains_key(&path) {
                continue;
            }
            let is_there = self.root.join(&path).symlink_metadata().is_ok();
            match (is_there, entry.file_type()?.is_dir()) {
                (true, true) => self.remove_former(&path, to)?,
                (true, false) => {}
                (false, true) => std::fs::remove_dir_all(entry.path())?,
                (false, false) => std::fs::remove_file(entry.path())?,
            }
        }
        Ok(())
    }
}

/// Write only what changed, so that cargo builds no more than it must.
fn write_changed(path: &Path, bytes: &[u8]) -> Result<()> {
    if !std::fs::read(path).is_ok_and(|there| there == bytes) {
        std::fs::write(path, bytes).with_context(|| path.display().to_string())?;
    }
    Ok(())
}

/// The component of a guest with this bug.
fn component(place: &Place, sources: &Path, number: usize, bug: &Bug) -> Result<PathBuf> {
    let path = sources.join(&bug.file);
    let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    std::fs::write(&path, bug.planted(&text)?)?;
    let folder = sources.join("target").join(format!("bug-{number}"));
    let of_copy = Place { root: sources.to_owned(), dist: folder.clone(), ..place.clone() };
    std::fs::create_dir_all(sources.join("target"))?;
    let built = guests::build(&of_copy);
    std::fs::write(&path, text)?;
    built?;
    Ok(folder.join("components").join(format!("{}.wasm", bug.on)))
}

/// Build with the bugs, and look for each.
fn planted(place: &Place, only: Option<&str>) -> Result<()> {
    packages::install(packages::TESTS)?;
    dist::run_for_long(place)?;
    let servers = servers::install(place)?;
    let all = bugs(&place.root)?;
    let sources = place.target.join("histories-planted");
    Copy::of(&place.root, &all)?.write(&sources)?;
    // The program that looks is this one's, and stays: the copy's would take its place in the target folder.
    let looks = sources.join("target/kv-store-histories");
    std::fs::create_dir_all(sources.join("target"))?;
    std::fs::copy(place.target.join("release/kv-store-histories"), &looks)?;
    let of_copy = Place { root: sources.clone(), dist: sources.join("target/dist"), ..place.clone() };
    let is_wanted = |bug: &&Bug| only.is_none_or(|only| bug.name.contains(only));
    if all.iter().filter(is_wanted).any(Bug::is_native) {
        // The components are the installed ones: nothing of theirs is planted here. What cargo has made of the copy stays in the target folder
        // until it makes something of the clone.
        std::fs::create_dir_all(of_copy.components())?;
        for component in std::fs::read_dir(place.components())? {
            let component = component?;
            std::fs::copy(component.path(), of_copy.components().join(component.file_name()))?;
        }
        dist::libraries(&of_copy)?;
    }
    let (mut found, mut wanted) = (0, 0);
    println!("| bug | by | found by | after, s |\n| --- | --- | --- | ---: |");
    for (number, bug) in all.iter().enumerate().filter(|(_, bug)| is_wanted(bug)) {
        wanted += 1;
        let mut looking = Command::new(&looks);
        looking.args(["--only", &bug.on, "--nemesis", &bug.nemesis, "--first"]);
        looking.args(["--minutes", MINUTES, "--seconds", SECONDS]);
        looking.env(servers::VARIABLE, &servers);
        if bug.is_native() {
            looking.arg("--dist").arg(&of_copy.dist).env(VARIABLE, &bug.name);
        } else {
            looking.arg("--component").arg(component(place, &sources, number, bug)?);
        }
        let begun = Instant::now();
        let output = looking.stdin(Stdio::null()).output()?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let by = if bug.by == By::Fix { "a fix taken back" } else { "new" };
        match rule(&said) {
            Some(rule) => {
                found += 1;
                println!("| {} | {by} | {rule} | {:.0} |", bug.name, begun.elapsed().as_secs_f64());
            }
            None => {
                println!("| {} | {by} | **not found** | |", bug.name);
                eprintln!("{said}");
            }
        }
    }
    println!("\n{found} of {wanted} found, in {MINUTES} minutes each at most");
    ensure!(found == wanted, "{} bugs were not found", wanted - found);
    Ok(())
}

/// The rule that a history broke, as it was said.
fn rule(said: &str) -> Option<&str> {
    const RULES: [&str; 4] = ["wrong-bytes", "no-order", "lost", "brought-back"];
    said.lines().find_map(|line| line.split_once(": ").map(|(rule, _)| rule).filter(|rule| RULES.contains(rule)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A bug whose text is not there is planted nowhere, and would never be found.
    #[test]
    fn each_bug_can_be_planted_in_todays_sources() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let bugs = bugs(root).unwrap();
        assert_eq!((bugs.len(), bugs.iter().filter(|bug| bug.by == By::Fix).count()), (20, 10));
        for bug in &bugs {
            let text = std::fs::read_to_string(root.join(&bug.file)).unwrap();
            let planted = bug.planted(&text).unwrap();
            assert!(bug.is_native() == planted.contains("crate::planted::is"), "{}", bug.name);
            assert!(bug.is_native() || bug.file.starts_with(&format!("guests/{}/", bug.on)), "{}", bug.name);
        }
    }

    /// What is not written anew is not built anew, and a file that was moved is not there twice.
    #[test]
    fn a_copy_follows_the_clone_and_has_what_is_planted() {
        let folder = tempfile::tempdir().unwrap();
        let (root, to) = (folder.path().join("clone"), folder.path().join("copy"));
        let write = |name: &str, text: &str| {
            std::fs::create_dir_all(root.join(name).parent().unwrap()).unwrap();
            std::fs::write(root.join(name), text).unwrap();
        };
        for (_, library) in TOGETHER {
            write(library, "mod a;");
        }
        write("core/src/a.rs", "one two");
        write("core/src/b/c.rs", "c");
        write("target/made", "by cargo");
        let text = "[[bug]]\nname = 'n'\nby = 'new'\non = 'redis'\nnemesis = 'calm'\nfile = 'core/src/a.rs'\nold = 'two'\nnew = 'PLANTED'\n";
        let bugs = toml::from_str::<Bugs>(text).unwrap().bug;
        Copy::of(&root, &bugs).unwrap().write(&to).unwrap();
        std::fs::create_dir_all(to.join("target")).unwrap();
        let read = |name: &str| std::fs::read_to_string(to.join(name)).ok();
        assert_eq!(read("core/src/a.rs").as_deref(), Some("one crate::planted::is(\"n\")"));
        assert!(
            read("core/src/planted.rs").is_some_and(|text| text.contains("fn is(")) && read("target/made").is_none()
        );
        let times = |names: [&str; 3]| names.map(|name| std::fs::metadata(to.join(name)).unwrap().modified().unwrap());
        let former = times(["core/src/a.rs", "core/src/lib.rs", "core/src/planted.rs"]);
        std::fs::remove_dir_all(root.join("core/src/b")).unwrap();
        write("core/src/b.rs", "b");
        Copy::of(&root, &bugs).unwrap().write(&to).unwrap();
        assert_eq!(times(["core/src/a.rs", "core/src/lib.rs", "core/src/planted.rs"]), former);
        assert!(read("core/src/b/c.rs").is_none() && read("core/src/b.rs").is_some() && to.join("target").exists());
    }

    #[test]
    fn a_rule_is_found_in_what_was_said() {
        let said = "redis late with seed 1: VIOLATED, 5 calls\nbrought-back: m/1: no order of these calls\n  1 .. 2\n";
        assert_eq!(rule(said), Some("brought-back"));
        assert_eq!(rule("redis late with seed 1: holds, 5 calls\n"), None);
    }
}
