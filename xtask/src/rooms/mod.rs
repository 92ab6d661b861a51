//! `cargo xtask rooms`: how easily a reader finds the way, as far as that can be counted: folders at the root, names of types that mean several things
//! within a crate, long functions, long files, and files that need each other in a circle. Tests are
//! sources like any other, but for names, which are a crate's own.

mod circles;
mod source;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde::Serialize;

use crate::place::Place;
use crate::step;
use source::Source;

/// The most lines of a function and of a file.
const FUNCTION_LINES: usize = 80;
const FILE_LINES: usize = 500;
/// Of each count so many are named.
const NAMED: usize = 5;

#[derive(clap::Args)]
pub struct RoomsOptions {
    /// One JSON object on standard output, with all that is over and not the first of each
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Counts {
    root_folders: Vec<String>,
    /// `crate: Name`, and the files that define it.
    names: Vec<Counted>,
    /// Functions over [`FUNCTION_LINES`].
    functions: Vec<Counted>,
    /// Files over [`FILE_LINES`].
    files: Vec<Counted>,
    circles: Vec<Vec<String>>,
}

#[derive(Serialize)]
struct Counted {
    what: String,
    count: usize,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    places: Vec<String>,
}

pub fn run(place: &Place, options: &RoomsOptions) -> Result<()> {
    let counts = count(&place.root)?;
    if options.json {
        println!("{}", serde_json::to_string_pretty(&counts)?);
        return Ok(());
    }
    println!("{} folders at the root: {}", counts.root_folders.len(), counts.root_folders.join(" "));
    show(&counts.names, "names of types with several meanings in their crate", "meanings");
    show(&counts.functions, &format!("functions over {FUNCTION_LINES} lines"), "lines");
    show(&counts.files, &format!("files over {FILE_LINES} lines"), "lines");
    println!("\n{} circles of files", counts.circles.len());
    for circle in counts.circles.iter().take(NAMED) {
        println!("  {:>4} files    {}", circle.len(), circle.join(" "));
    }
    Ok(())
}

fn show(counted: &[Counted], what: &str, unit: &str) {
    println!("\n{} {what}", counted.len());
    for Counted { what, count, places } in counted.iter().take(NAMED) {
        println!("  {count:>4} {unit}    {what}{}{}", if places.is_empty() { "" } else { ": " }, places.join(" "));
    }
}

fn count(root: &Path) -> Result<Counts> {
    let listed = step::output(Command::new("git").current_dir(root).args(["ls-files", "-z"]))?;
    let paths: Vec<&str> = listed.split_terminator('\0').collect();
    let folders: BTreeSet<&str> =
        paths.iter().filter_map(|path| path.split_once('/')).map(|(first, _)| first).collect();
    let mut crates: BTreeMap<PathBuf, Vec<Source>> = BTreeMap::new();
    let mut files = Vec::new();
    let mut functions = Vec::new();
    for path in paths.iter().filter(|path| path.ends_with(".rs")) {
        // One that was removed and not committed.
        let Ok(text) = std::fs::read_to_string(root.join(path)) else { continue };
        let Some(package) = package_of(root, Path::new(path)) else { continue };
        let lines = text.lines().count();
        if lines > FILE_LINES {
            files.push(Counted { what: (*path).to_owned(), count: lines, places: Vec::new() });
        }
        let source = Source::read(path, &text).with_context(|| format!("{path} is not read"))?;
        for (name, lines) in source.functions.iter().filter(|(_, lines)| *lines > FUNCTION_LINES) {
            functions.push(Counted { what: format!("{path}: {name}"), count: *lines, places: Vec::new() });
        }
        crates.entry(package).or_default().push(source);
    }
    let mut names = Vec::new();
    let mut circles = Vec::new();
    for (package, sources) in &crates {
        names.extend(several(package, sources));
        circles.extend(circles::find(package, sources));
    }
    for counted in [&mut names, &mut functions, &mut files] {
        counted.sort_by(|a, b| (b.count, &a.what).cmp(&(a.count, &b.what)));
    }
    circles.sort_by_key(|circle| std::cmp::Reverse(circle.len()));
    let root_folders = folders.into_iter().filter(|folder| !folder.starts_with('.')).map(str::to_owned).collect();
    Ok(Counts { root_folders, names, functions, files, circles })
}

/// The folder of the nearest Cargo.toml above a file.
fn package_of(root: &Path, path: &Path) -> Option<PathBuf> {
    path.ancestors().skip(1).find(|folder| root.join(folder).join("Cargo.toml").exists()).map(Path::to_owned)
}

/// Names that more than one type of a crate's sources has. Those of its tests and examples are programs of their own.
fn several(package: &Path, sources: &[Source]) -> Vec<Counted> {
    let mut by_name: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for source in sources.iter().filter(|source| source.path.starts_with(package.join("src"))) {
        for name in &source.types {
            by_name.entry(name).or_default().push(source.path.display().to_string());
        }
    }
    let name = package.display();
    let several = by_name.into_iter().filter(|(_, places)| places.len() > 1);
    several.map(|(what, places)| Counted { what: format!("{name}: {what}"), count: places.len(), places }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(path: &str, text: &str) -> Source {
        Source::read(path, text).unwrap()
    }

    #[test]
    fn names_functions_and_circles_are_counted_and_tests_are_not_part_of_a_crate() {
        let package = Path::new("one");
        let sources = [
            source("one/src/lib.rs", "mod a; mod b; mod c; pub struct State; use a::Kept;"),
            source("one/src/a.rs", "use crate::b::other; pub struct Kept; pub struct State; fn one() {\n\n}\n"),
            source("one/src/b/mod.rs", "mod deep; pub fn other() { super::a::one() } enum State {}"),
            source("one/src/b/deep.rs", "use super::other; type Kept = u8;"),
            source(
                "one/src/c.rs",
                "use crate::{a::Kept, b::other}; #[cfg(test)] mod tests { struct State; use crate::c; }
                 #[cfg(all(test, loom))] mod loom { struct State; }",
            ),
            source("one/tests/it.rs", "struct State;"),
        ];
        let names: Vec<_> = several(package, &sources).into_iter().map(|name| (name.what, name.count)).collect();
        assert_eq!(names, [("one: Kept".to_owned(), 2), ("one: State".to_owned(), 3)]);
        assert_eq!(sources[1].functions, [("one".to_owned(), 3)]);
        // `c` needs both and is needed by none; what lies below another may use it.
        assert_eq!(circles::find(package, &sources), [["one/src/a.rs", "one/src/b/mod.rs"]]);
    }

    #[test]
    fn this_tree_is_counted() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let counts = count(root).unwrap();
        assert!(counts.root_folders.iter().any(|folder| folder == "core"), "{:?}", counts.root_folders);
        assert!(counts.circles.iter().all(|circle| circle.len() > 1), "{:?}", counts.circles);
        let long: Vec<&str> = counts.functions.iter().chain(&counts.files).map(|long| long.what.as_str()).collect();
        assert!(
            long.is_empty(),
            "over {FUNCTION_LINES} lines of a function or {FILE_LINES} of a file, split it: {long:?}"
        );
    }

    /// The folders of the tree that a page draws: each indented below the one that it is in.
    fn drawn(page: &str) -> BTreeSet<PathBuf> {
        let tree = page.split("## The folders\n```text\n").nth(1).and_then(|rest| rest.split("\n```").next());
        let mut within = Path::new("");
        let mut folders = BTreeSet::new();
        for line in tree.expect("the page draws the tree").lines() {
            let name = Path::new(line.split_whitespace().next().unwrap().strip_suffix('/').expect("a folder"));
            if !line.starts_with(' ') {
                within = name;
            }
            folders.insert(if within == name { name.to_owned() } else { within.join(name) });
        }
        folders
    }

    #[test]
    fn the_architecture_draws_the_tree_as_it_is() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let drawn = drawn(&std::fs::read_to_string(root.join("docs/architecture.md")).unwrap());
        let gone: Vec<_> = drawn.iter().filter(|folder| !root.join(folder).is_dir()).collect();
        assert!(gone.is_empty(), "docs/architecture.md draws folders that are not there: {gone:?}");
        let at_the_root = drawn.iter().filter(|folder| folder.components().count() == 1);
        let at_the_root: Vec<_> = at_the_root.map(|folder| folder.display().to_string()).collect();
        assert_eq!(at_the_root, count(root).unwrap().root_folders, "what is drawn, and what is there");
    }

    #[test]
    fn what_is_long_is_counted_and_what_is_as_long_as_it_may_be_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        let git = |arguments: &[&str]| step::output(Command::new("git").current_dir(root).args(arguments)).unwrap();
        let function = |name: &str, lines: usize| format!("fn {name}() {{\n{}}}\n", "\n".repeat(lines - 2));
        std::fs::write(root.join("Cargo.toml"), "").unwrap();
        std::fs::write(root.join("a.rs"), function("fits", FUNCTION_LINES) + &function("long", FUNCTION_LINES + 1))
            .unwrap();
        std::fs::write(root.join("b.rs"), "\n".repeat(FILE_LINES)).unwrap();
        std::fs::write(root.join("c.rs"), "\n".repeat(FILE_LINES + 1)).unwrap();
        git(&["init", "--quiet"]);
        git(&["add", "."]);
        let counts = count(root).unwrap();
        let long = |counted: &[Counted]| counted.iter().map(|one| (one.what.clone(), one.count)).collect::<Vec<_>>();
        assert_eq!(long(&counts.functions), [("a.rs: long".to_owned(), FUNCTION_LINES + 1)]);
        assert_eq!(long(&counts.files), [("c.rs".to_owned(), FILE_LINES + 1)]);
    }
}
