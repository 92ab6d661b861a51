//! `--planted`: which of the planted bugs the search finds. They are planted in a copy of the sources, all at once, each behind a question
//! whether it is the one that is on; the copy is built once, with this crate beside it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::planted::VARIABLE;

const BUGS: &str = include_str!("../planted.toml");
/// What the copy consists of: `core` and what it is made of, what shipped backends are made of, and this crate. First the members of its
/// workspace.
const MEMBERS: &[&str] = &[
    "core",
    "core/http-wire",
    "core/platform",
    "core/size",
    "engine-side/blocks",
    "engine-side/kvx",
    "ffi/abi",
    "sdk",
    "guests/memkv/wire",
];
const NO_MEMBERS: &[&str] = &[
    "wit",
    "guests/local-fs/src",
    "guests/memkv/guest/src",
    "guests/redis/src",
    "guests/segments/src",
    "guests/memkv/server/src",
    "guests/s3/src",
    "guests/mooncake/src",
    "tests/simulate",
    "tests/torture/src/states",
];
/// Where bugs are planted: what `in` names, the folder of its sources, and that of the root of its crate.
const PLACES: &[(&str, &str, &str)] = &[
    ("core", "core/src", "core/src"),
    ("guests/local-fs", "guests/local-fs/src", "guests/local-fs/src"),
    ("guests/memkv/guest", "guests/memkv/guest/src", "guests/memkv/guest/src"),
    ("guests/redis", "guests/redis/src", "guests/redis/src"),
    ("guests/memkv/server", "guests/memkv/server/src", "tests/simulate/memkv-server/src"),
    ("guests/s3", "guests/s3/src", "guests/s3/src"),
    ("guests/segments", "guests/segments/src", "guests/segments/src"),
    ("guests/mooncake", "guests/mooncake/src", "guests/mooncake/src"),
];
/// Where the folder for what is built is named.
const TARGET: &str = "KV_SIMULATE_TARGET";

/// A bug to plant.
struct Bug {
    name: String,
    /// The backend of the histories that it is searched for in. None: that of each seed.
    backend: Option<String>,
    /// Where it is, and what becomes what. None: it is in the simulated storage system.
    replaced: Option<Replaced>,
    /// Why it is not searched for, and which test fails with it. None: the search finds it.
    instead: Option<String>,
}

struct Replaced {
    /// The folder of the sources.
    sources: &'static str,
    file: String,
    old: String,
    new: String,
}

/// What came of the search for a bug.
struct Searched {
    name: String,
    came: Came,
}

enum Came {
    Found {
        after_seconds: f64,
        rule: String,
        histories: u64,
        /// What replays it.
        command: String,
    },
    NotFound,
    /// It was not searched for, and why.
    Left(String),
}

fn bugs() -> Result<Vec<Bug>, String> {
    let parsed: toml::Table = BUGS.parse().map_err(|error| format!("planted.toml: {error}"))?;
    let bugs = parsed.get("bug").and_then(toml::Value::as_array).ok_or("planted.toml has no bugs")?;
    let bug = |table: &toml::Value| {
        let text = |key: &str| table.get(key).and_then(toml::Value::as_str).map(str::to_owned);
        let name = text("name").ok_or("a bug has no name")?;
        let replaced = match (text("file"), text("old"), text("new")) {
            (Some(file), Some(old), Some(new)) => {
                let within = text("in").unwrap_or_else(|| "core".to_owned());
                let place = PLACES.iter().find(|(place, ..)| *place == within);
                let (_, sources, _) = place.ok_or_else(|| format!("{name}: nothing is planted in {within}"))?;
                Some(Replaced { sources, file, old, new })
            }
            (None, None, None) if name.starts_with("store:") => None,
            _ => return Err(format!("{name}: file, old and new go together")),
        };
        Ok(Bug { name, backend: text("backend"), replaced, instead: text("instead") })
    };
    bugs.iter().map(bug).collect()
}

impl Replaced {
    /// Plant it in the copy.
    fn plant(&self, name: &str, copy: &Path) -> Result<(), String> {
        let path = copy.join(self.sources).join(&self.file);
        let text = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let times = text.matches(&self.old).count();
        if times != 1 {
            return Err(format!("{name}: its text is {times} times in {}: correct planted.toml", self.file));
        }
        let new = self.new.replace("PLANTED", &format!("crate::planted::is({name:?})"));
        fs::write(&path, text.replacen(&self.old, &new, 1)).map_err(|error| format!("{}: {error}", path.display()))
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn copy(from: &Path, to: &Path) -> std::io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let name = entry.file_name();
        if name == "target" || name == "fuzz" || name == "loom" {
            continue;
        }
        // The interfaces of `sdk` lie elsewhere.
        match entry.path().is_dir() {
            true => copy(&entry.path(), &to.join(name))?,
            false => drop(fs::copy(entry.path(), to.join(name))?),
        }
    }
    Ok(())
}

/// The copy in which all bugs are planted, and none is on.
fn plant_all(bugs: &[Bug], into: &Path) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("cannot copy the sources: {error}");
    if into.exists() {
        fs::remove_dir_all(into).map_err(failed)?;
    }
    for folder in MEMBERS.iter().chain(NO_MEMBERS) {
        copy(&root().join(folder), &into.join(folder)).map_err(failed)?;
    }
    let workspace = fs::read_to_string(root().join("Cargo.toml")).map_err(failed)?;
    let (before, rest) = workspace.split_once("members = [").ok_or("the workspace has no members")?;
    let (_, behind) = rest.split_once(']').ok_or("the members of the workspace have no end")?;
    let members = MEMBERS.iter().map(|folder| format!("\"{folder}\""));
    let members = members.collect::<Vec<_>>().join(", ");
    fs::write(into.join("Cargo.toml"), format!("{before}members = [{members}]{behind}")).map_err(failed)?;
    for (.., library) in PLACES {
        let library = into.join(library);
        fs::copy(root().join("tests/simulate/src/planted.rs"), library.join("planted.rs")).map_err(failed)?;
        let root = library.join("lib.rs");
        let text = fs::read_to_string(&root).map_err(failed)?;
        fs::write(&root, text + "\n/// Bugs that are planted.\npub mod planted;\n").map_err(failed)?;
    }
    bugs.iter().try_for_each(|bug| match &bug.replaced {
        Some(replaced) => replaced.plant(&bug.name, into),
        None => Ok(()),
    })
}

fn build(copy: &Path, target: &Path) -> Result<PathBuf, String> {
    eprintln!("building a copy with the bugs planted");
    let mut cargo = Command::new("cargo");
    cargo.args(["build", "--release", "--quiet", "--locked", "--target-dir"]).arg(target);
    cargo.arg("--manifest-path").arg(copy.join("tests/simulate/Cargo.toml")).stdin(Stdio::null());
    match cargo.status() {
        Ok(status) if status.success() => Ok(target.join("release/kv-store-simulate")),
        Ok(status) => Err(format!("the copy is not built: {status}")),
        Err(error) => Err(format!("cannot run cargo: {error}")),
    }
}

fn search(program: &Path, bug: Option<&Bug>, seconds: u64) -> Result<Searched, String> {
    let begun = Instant::now();
    let mut searched = Command::new(program);
    searched.args(["--json", "--seconds", &seconds.to_string()]).stdin(Stdio::null()).stderr(Stdio::null());
    searched.env_remove(VARIABLE);
    searched.envs(bug.map(|bug| (VARIABLE, &bug.name)));
    if let Some(backend) = bug.and_then(|bug| bug.backend.as_deref()) {
        searched.args(["--backend", backend]);
    }
    let output = searched.output().map_err(|error| format!("cannot run {}: {error}", program.display()))?;
    let name = bug.map_or("none", |bug| &bug.name).to_owned();
    // A history that hangs ends without a report.
    let Ok(report) = serde_json::from_slice::<Value>(&output.stdout) else {
        let (after_seconds, rule, command) = (begun.elapsed().as_secs_f64(), "hangs".to_owned(), String::new());
        return Ok(Searched { name, came: Came::Found { after_seconds, rule, histories: 0, command } });
    };
    let text = |violation: &Value, key: &str| violation.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let came = match report.get("violation").filter(|violation| !violation.is_null()) {
        Some(violation) => Came::Found {
            after_seconds: violation.get("after_seconds").and_then(Value::as_f64).unwrap_or_default(),
            rule: text(violation, "rule"),
            histories: report.get("histories").and_then(Value::as_u64).unwrap_or_default(),
            command: text(violation, "command"),
        },
        None => Came::NotFound,
    };
    Ok(Searched { name, came })
}

/// Search for each bug, for so long at most. Answers whether all were found that are searched for, and nothing where none is on.
pub fn run(only: Option<&str>, time: Duration, as_json: bool) -> Result<bool, String> {
    let bugs = bugs()?;
    let target = std::env::var_os(TARGET).map_or_else(|| root().join("target/simulate"), PathBuf::from).join("planted");
    let copy = target.join("sources");
    plant_all(&bugs, &copy)?;
    let program = build(&copy, &target)?;
    let seconds = time.as_secs().max(1);
    let none = search(&program, None, seconds.min(20))?;
    if let Came::Found { rule, .. } = &none.came {
        return Err(format!("\"{rule}\" is broken though no bug is on: run `cargo xtask simulate`"));
    }
    let wanted = bugs.iter().filter(|bug| only.is_none_or(|only| bug.name.contains(only)));
    let mut all = Vec::new();
    for bug in wanted {
        let searched = match &bug.instead {
            Some(why) => Searched { name: bug.name.clone(), came: Came::Left(why.clone()) },
            None => search(&program, Some(bug), seconds)?,
        };
        if !as_json {
            eprintln!("{}", searched.line());
        }
        all.push(searched);
    }
    let count = |is: fn(&Came) -> bool| all.iter().filter(|searched| is(&searched.came)).count();
    let found = count(|came| matches!(came, Came::Found { .. }));
    let left = count(|came| matches!(came, Came::Left(_)));
    match as_json {
        true => println!(
            "{}",
            json!({"found": found, "planted": all.len(), "not_searched_for": left, "bugs": all.iter().map(Searched::json).collect::<Vec<_>>()})
        ),
        false => {
            println!("| bug | found by | after, s | histories |\n| --- | --- | ---: | ---: |");
            all.iter().for_each(|searched| println!("{}", searched.line()));
            let searched_for = all.len() - left;
            println!(
                "\n{found} of {searched_for} found, in {seconds} s each at most; {left} not searched for, for the reasons that are told"
            );
        }
    }
    Ok(found + left == all.len())
}

impl Searched {
    fn line(&self) -> String {
        let Searched { name, came } = self;
        match came {
            Came::Found { after_seconds, rule, histories, .. } => {
                format!("| {name} | {rule} | {after_seconds:.1} | {histories} |")
            }
            Came::NotFound => format!("| {name} | not found | | |"),
            Came::Left(why) => format!("| {name} | not searched for: {why} | | |"),
        }
    }

    fn json(&self) -> Value {
        let Searched { name, came } = self;
        match came {
            Came::Found { after_seconds, rule, histories, command } => {
                json!({"name": name, "rule": rule, "after_seconds": after_seconds, "histories": histories, "command": command})
            }
            Came::NotFound => json!({"name": name, "rule": null}),
            Came::Left(why) => json!({"name": name, "rule": null, "not_searched_for": why}),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A bug whose text is not there is planted nowhere, and would never be found.
    #[test]
    fn each_bug_can_be_planted_in_todays_sources() {
        let bugs = bugs().unwrap();
        assert!(bugs.len() >= 20);
        let into = std::env::temp_dir().join(format!("kv-store-planted-{}", std::process::id()));
        let planted = plant_all(&bugs, &into);
        let text = fs::read_to_string(into.join("core/src/store/save.rs")).unwrap();
        let workspace = fs::read_to_string(into.join("Cargo.toml")).unwrap();
        let members = workspace.lines().find(|line| line.starts_with("members = ")).unwrap();
        fs::remove_dir_all(&into).unwrap();
        planted.unwrap();
        assert!(members.contains("\"sdk\"") && !members.contains("\"tests/simulate\""), "{members}");
        assert!(text.contains("crate::planted::is(\"saves: losses are not told\")"));
    }
}
