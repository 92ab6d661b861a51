//! `cargo xtask mutants`: whether the tests see it when the code of a crate is changed.
//!
//! cargo-mutants makes the changes ("mutants"), builds each, and runs the crate's tests. A mutant that no test fails for survives. What
//! was found is kept in `xtask/mutants.json`, which has a reason for each survivor, written by hand, and shown in `docs/mutants.md`.
//! All mutants of a crate take hours, so a sample may be drawn: the first of an order that a seed decides, the same on every machine.

mod page;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use sha2::{Digest, Sha256};

use crate::place::Place;
use crate::step;
use page::{Found, Survivor};

/// The version of cargo-mutants: another one makes other mutants.
const VERSION: &str = "27.1.0";
/// Crates whose tests build and run without wasmtime, by folder and name. One that is not there yet is left out.
const CRATES: &[(&str, &str)] = &[
    ("engine-side/blocks", "kv-blocks"),
    ("core", "kv-store-core"),
    ("core/http-wire", "kv-http-wire"),
    ("engine-side/kv-cache", "kv-cache"),
    ("sdk", "kv-store-sdk"),
];
/// Mutants of one run of the tool, where the time is bounded: it is looked at between runs.
const RUN_TOGETHER: usize = 10;
const EXCLUSIONS: &str = ".cargo/mutants.toml";

#[derive(clap::Args)]
pub struct MutantsOptions {
    /// Crates, by folder; all of them where none is named
    crates: Vec<String>,
    /// Print how many mutants each crate has, and which are left out and why; run none
    #[arg(long, conflicts_with_all = ["sample", "minutes", "page"])]
    list: bool,
    /// Run so many mutants of each crate, drawn by --seed; without this and --minutes, all
    #[arg(long)]
    sample: Option<usize>,
    /// Begin no further mutants of a crate after so many minutes; they are taken in the order of --seed
    #[arg(long)]
    minutes: Option<u64>,
    /// What decides the order; printed, and made up where it is not given
    #[arg(long)]
    seed: Option<u64>,
    /// Only write docs/mutants.md anew, after reasons were written into xtask/mutants.json
    #[arg(long)]
    page: bool,
}

/// A mutant as the tool lists it.
#[derive(Deserialize)]
struct Mutant {
    name: String,
}

/// What the tool wrote of a run.
#[derive(Deserialize)]
struct Outcomes {
    outcomes: Vec<Outcome>,
}

#[derive(Deserialize)]
struct Outcome {
    scenario: Scenario,
    summary: String,
}

#[derive(Deserialize)]
enum Scenario {
    Baseline,
    Mutant(Mutant),
}

pub fn run(place: &Place, options: &MutantsOptions) -> Result<()> {
    if options.page {
        return page::write(place, &page::read(place)?, &exclusions(place)?);
    }
    let crates = chosen(place, &options.crates)?;
    let tool = Tool::install(place)?;
    if options.list {
        return list(place, &tool, &crates);
    }
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let seed = options.seed.unwrap_or(now.as_secs());
    for (folder, package) in crates {
        let made = tool.list(package, true)?.len();
        let mut mutants = tool.list(package, false)?;
        let all = mutants.len();
        mutants.sort_by_cached_key(|name| Sha256::digest(format!("{seed} {name}")));
        mutants.truncate(options.sample.unwrap_or(all));
        eprintln!("== {folder}: {} of {all} mutants, --seed {seed}", mutants.len());
        let end = options.minutes.map(|minutes| Instant::now() + Duration::from_secs(60 * minutes));
        let mut found = Found { made, excluded: made - all, seed, ..Found::default() };
        let together = if end.is_some() { RUN_TOGETHER } else { mutants.len().max(1) };
        for batch in mutants.chunks(together) {
            if end.is_some_and(|end| Instant::now() >= end) {
                break;
            }
            for (name, summary) in tool.run(package, batch, batch.len() == all)? {
                found.count(&name, &summary)?;
            }
        }
        let mut kept = page::read(place)?;
        let survivors = found.survivors.len();
        eprintln!("   {} viable, {} caught, {survivors} survived", found.caught + survivors, found.caught);
        found.survivors.iter().for_each(|survivor| eprintln!("   survived: {}", survivor.mutant));
        page::replace(&mut kept, folder, found);
        page::write(place, &kept, &exclusions(place)?)?;
    }
    Ok(())
}

impl Found {
    fn count(&mut self, name: &str, summary: &str) -> Result<()> {
        match summary {
            "CaughtMutant" | "Timeout" => self.caught += 1,
            "MissedMutant" => self.survivors.push(Survivor { mutant: name.to_owned(), reason: String::new() }),
            "Unviable" => self.unviable += 1,
            other => bail!("cargo-mutants {VERSION} says {other:?} of {name:?}, which is unknown here"),
        }
        Ok(())
    }
}

/// Folders and names of the crates that are asked for.
fn chosen(place: &Place, asked: &[String]) -> Result<Vec<(&'static str, &'static str)>> {
    if let Some(unknown) = asked.iter().find(|asked| CRATES.iter().all(|(folder, _)| folder != asked)) {
        let folders: Vec<&str> = CRATES.iter().map(|(folder, _)| *folder).collect();
        bail!("{unknown} is none of {}", folders.join(", "));
    }
    let is_wanted = |folder: &str| asked.is_empty() || asked.iter().any(|asked| asked == folder);
    let is_there = |folder: &str| place.root.join(folder).join("Cargo.toml").exists();
    Ok(CRATES.iter().copied().filter(|(folder, _)| is_wanted(folder) && is_there(folder)).collect())
}

fn list(place: &Place, tool: &Tool, crates: &[(&str, &str)]) -> Result<()> {
    println!("{:<12} {:>8} {:>9} {:>8}", "crate", "mutants", "left out", "run");
    for (folder, package) in crates {
        let (made, run) = (tool.list(package, true)?.len(), tool.list(package, false)?.len());
        println!("{folder:<12} {made:>8} {:>9} {run:>8}", made - run);
    }
    println!("\nLeft out, by {EXCLUSIONS}:");
    for (pattern, reason) in exclusions(place)? {
        println!("  {pattern}\n    {reason}");
    }
    Ok(())
}

/// The patterns of what is left out, each with the comment before it.
fn exclusions(place: &Place) -> Result<Vec<(String, String)>> {
    let text =
        std::fs::read_to_string(place.root.join(EXCLUSIONS)).with_context(|| format!("cannot read {EXCLUSIONS}"))?;
    parse_exclusions(&text)
}

fn parse_exclusions(text: &str) -> Result<Vec<(String, String)>> {
    let (mut found, mut comment, mut inside) = (Vec::new(), Vec::new(), false);
    for line in text.lines().map(str::trim) {
        if let Some(said) = line.strip_prefix('#') {
            comment.push(said.trim());
        } else if let Some(pattern) =
            line.strip_prefix('\'').and_then(|rest| rest.strip_suffix("',")).filter(|_| inside)
        {
            ensure!(!comment.is_empty(), "{EXCLUSIONS} leaves out {pattern} without a comment that says why");
            found.push((pattern.to_owned(), comment.join(" ")));
            comment.clear();
        } else if line == "exclude_re = [" {
            (inside, comment) = (true, Vec::new());
        } else if line == "]" && inside {
            inside = false;
        } else {
            ensure!(
                line.is_empty(),
                "{EXCLUSIONS}: {line:?} is neither a comment nor a pattern as '...', in exclude_re"
            );
            comment.clear();
        }
    }
    Ok(found)
}

struct Tool<'a> {
    place: &'a Place,
    program: PathBuf,
}

impl<'a> Tool<'a> {
    /// The tool, from crates.io, in the target folder.
    fn install(place: &'a Place) -> Result<Self> {
        let root = place.work().join("mutants");
        let program = root.join("bin/cargo-mutants");
        let is_there = step::output(Command::new(&program).args(["mutants", "--version"]))
            .is_ok_and(|version| version.trim() == format!("cargo-mutants {VERSION}"));
        if !is_there {
            let mut install = Command::new("cargo");
            install.args(["install", "--locked", "--quiet", "--version", VERSION, "--root"]).arg(&root);
            step::run(place, "installing cargo-mutants", install.arg("cargo-mutants"))?;
        }
        Ok(Tool { place, program })
    }

    fn command(&self, package: &str) -> Command {
        let mut command = Command::new(&self.program);
        command.current_dir(&self.place.root).args(["mutants", "--package", package]);
        // What the copies of the tree have in common is compiled once.
        command.env("CARGO_TARGET_DIR", self.place.work().join("mutants/target"));
        command
    }

    /// The names of a crate's mutants: those that are run, or all that the tool makes.
    fn list(&self, package: &str, all: bool) -> Result<Vec<String>> {
        let mut command = self.command(package);
        command.args(["--list", "--json"]).args(all.then_some("--no-config"));
        let mutants: Vec<Mutant> = serde_json::from_str(&step::output(&mut command)?)?;
        Ok(mutants.into_iter().map(|mutant| mutant.name).collect())
    }

    /// Run mutants, and say what became of each. `whole`: they are all that the crate has.
    fn run(&self, package: &str, mutants: &[String], whole: bool) -> Result<Vec<(String, String)>> {
        let output = tempfile::tempdir()?;
        let mut command = self.command(package);
        command.args(["--no-shuffle", "--jobs", "1", "--colors", "never", "--output"]).arg(output.path());
        if !whole {
            for name in mutants {
                command.args(["--re", &format!("^{}$", escaped(name))]);
            }
            // Mutants that delete a field are run whatever names are asked for (27.1.0), but for those of other files.
            let files: BTreeSet<&str> = mutants.iter().filter_map(|name| name.split(':').next()).collect();
            for file in files {
                command.args(["--file", file]);
            }
        }
        // 2: some survive; 3: some ran out of time.
        let status = command.status().with_context(|| format!("cannot run {}", self.program.display()))?;
        ensure!(
            matches!(status.code(), Some(0 | 2 | 3)),
            "cargo-mutants failed: {status}; do the tests of {package} pass?"
        );
        let text = std::fs::read(output.path().join("mutants.out/outcomes.json"))?;
        let outcomes: Outcomes = serde_json::from_slice(&text)?;
        let asked: BTreeSet<&str> = mutants.iter().map(String::as_str).collect();
        let of_mutant = |outcome: Outcome| match outcome.scenario {
            Scenario::Mutant(mutant) => Some((mutant.name, outcome.summary)),
            Scenario::Baseline => None,
        };
        Ok(outcomes
            .outcomes
            .into_iter()
            .filter_map(of_mutant)
            .filter(|(name, _)| asked.contains(name.as_str()))
            .collect())
    }
}

/// Text as a regular expression that matches it alone.
fn escaped(text: &str) -> String {
    let special = |c: char| c.is_ascii_punctuation() && !"_-<>:'\"/,;=!@%`~".contains(c);
    text.chars().flat_map(|c| special(c).then_some('\\').into_iter().chain([c])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_out_has_a_reason() {
        let text =
            "# About the file.\n\nexclude_re = [\n    # One\n    # reason.\n    'a\\.rs',\n    # Two.\n    'b',\n]\n";
        let expected = [("a\\.rs", "One reason."), ("b", "Two.")].map(|(p, r)| (p.to_owned(), r.to_owned()));
        assert_eq!(parse_exclusions(text).unwrap(), expected);
        assert!(
            parse_exclusions("exclude_re = [\n'a',\n]\n").unwrap_err().to_string().contains("leaves out a without")
        );
        assert!(parse_exclusions("examine_globs = ['x']\n").is_err());
        assert!(!exclusions(&Place::find().unwrap()).unwrap().is_empty());
    }

    #[test]
    fn names_are_matched_as_they_are() {
        assert_eq!(
            escaped("a/b.rs:1:2: replace f -> Option<[u8; 2]> with (x)"),
            "a/b\\.rs:1:2: replace f -> Option<\\[u8; 2\\]> with \\(x\\)"
        );
    }
}
