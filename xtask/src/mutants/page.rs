//! What is known of the mutants: kept in `xtask/mutants.json`, shown in `docs/mutants.md`.

use std::collections::BTreeMap;
use std::fmt::Write;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::VERSION;
use crate::place::Place;

const KEPT: &str = "xtask/mutants.json";
const PAGE: &str = "docs/mutants.md";
const NO_REASON: &str = "open: a test is missing";

/// By folder of the crate.
pub type Kept = BTreeMap<String, Found>;

/// What the last run of a crate has found.
#[derive(Default, Deserialize, Serialize)]
pub struct Found {
    /// All that the tool makes, and how many of those are never run.
    pub made: usize,
    pub excluded: usize,
    pub seed: u64,
    /// Of those that were run: tests failed, or did not end.
    pub caught: usize,
    /// It does not compile.
    pub unviable: usize,
    pub survivors: Vec<Survivor>,
}

#[derive(Deserialize, Serialize)]
pub struct Survivor {
    pub mutant: String,
    /// Why no test is to fail for it; written by hand, and empty where one is missing.
    pub reason: String,
}

pub fn read(place: &Place) -> Result<Kept> {
    match std::fs::read(place.root.join(KEPT)) {
        Ok(text) => serde_json::from_slice(&text).with_context(|| format!("{KEPT} is damaged")),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Kept::new()),
        Err(error) => Err(error).with_context(|| format!("cannot read {KEPT}")),
    }
}

/// Take what a run has found of a crate in place of what was known, but for the reasons.
pub fn replace(kept: &mut Kept, folder: &str, mut found: Found) {
    let former = kept.remove(folder).unwrap_or_default().survivors;
    for survivor in &mut found.survivors {
        let same = former.iter().find(|former| place_free(&former.mutant) == place_free(&survivor.mutant));
        survivor.reason = same.map(|former| former.reason.clone()).unwrap_or_default();
    }
    found.survivors.sort_by(|one, other| one.mutant.cmp(&other.mutant));
    kept.insert(folder.to_owned(), found);
}

/// A mutant without its line and column, which change with what is before it.
fn place_free(mutant: &str) -> (&str, &str) {
    let (file, rest) = mutant.split_once(':').unwrap_or_default();
    (file, rest.split_once(": ").unwrap_or_default().1)
}

pub fn write(place: &Place, kept: &Kept, exclusions: &[(String, String)]) -> Result<()> {
    std::fs::write(place.root.join(KEPT), serde_json::to_string_pretty(kept)? + "\n")?;
    std::fs::write(place.root.join(PAGE), render(kept, exclusions)?)?;
    eprintln!("== {KEPT} and {PAGE} are written");
    Ok(())
}

fn render(kept: &Kept, exclusions: &[(String, String)]) -> Result<String> {
    let mut page = format!(
        "# Mutants\n\nWritten by `cargo xtask mutants`, with reasons from `{KEPT}`. Do not edit this page by hand.\n\n\
         A mutant is a small change to the code: a comparison turned round, a function that returns a constant.\n\
         cargo-mutants {VERSION} makes them, builds each one, and runs the tests of its crate. A mutant is caught if a test fails or does not end.\n\
         It is not viable if it does not compile. The goal is to catch 90% of the viable mutants of each crate. CI does not run this.\n\n\
         <!-- unrun: takes minutes to hours -->\n\
         ```sh\n\
         cargo xtask mutants --list                              # how many there are, and what is left out\n\
         cargo xtask mutants http-wire                           # all of one crate\n\
         cargo xtask mutants blocks --sample 60 --seed 26        # the same 60 on every machine\n\
         cargo xtask mutants --minutes 30                        # as many of each crate as 30 minutes allow\n\
         ```\n\n\
         ## The last run of each crate\n\
         A crate that is not in the table has not been run. A mutant that survived a run counts as caught once it has a test that was seen to fail for it.\n\n\
         | crate | mutants | left out | run | seed | viable | caught | share |\n\
         | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n"
    );
    for (folder, found) in kept {
        let Found { made, excluded, seed, caught, unviable, survivors } = found;
        let viable = caught + survivors.len();
        let run = viable + unviable;
        let share = 100.0 * *caught as f64 / viable.max(1) as f64;
        writeln!(page, "| {folder} | {made} | {excluded} | {run} | {seed} | {viable} | {caught} | {share:.0}% |")?;
    }
    writeln!(page, "\n## Left out\nBy `.cargo/mutants.toml`; the pattern matches the name of a mutant.\n")?;
    writeln!(page, "| pattern | reason |\n| --- | --- |")?;
    for (pattern, reason) in exclusions {
        writeln!(page, "| {} | {reason} |", code(pattern))?;
    }
    writeln!(page, "\n## Survivors\n| mutant | reason |\n| --- | --- |")?;
    for Survivor { mutant, reason } in kept.values().flat_map(|found| &found.survivors) {
        writeln!(page, "| {} | {} |", code(mutant), if reason.is_empty() { NO_REASON } else { reason })?;
    }
    Ok(page)
}

/// Code in a cell of a table.
fn code(text: &str) -> String {
    format!("`{}`", text.replace('|', "\\|"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn survivor(mutant: &str, reason: &str) -> Survivor {
        Survivor { mutant: mutant.to_owned(), reason: reason.to_owned() }
    }

    #[test]
    fn a_survivor_keeps_its_reason_where_lines_move_and_no_other_takes_it() {
        let mut kept = Kept::new();
        let former = vec![
            survivor("a.rs:1:2: replace f -> bool with true", "equal"),
            survivor("a.rs:9:1: replace | with &", ""),
        ];
        replace(&mut kept, "a", Found { survivors: former, ..Found::default() });
        kept.get_mut("a").unwrap().survivors[0].reason = "equal".to_owned();
        let now = vec![
            survivor("b.rs:1:2: replace f -> bool with true", ""),
            survivor("a.rs:7:5: replace f -> bool with true", ""),
        ];
        replace(&mut kept, "a", Found { caught: 18, survivors: now, ..Found::default() });
        let reasons: Vec<_> = kept["a"].survivors.iter().map(|survivor| survivor.reason.as_str()).collect();
        assert_eq!(reasons, ["equal", ""]);
        let page = render(&kept, &[("a|b".to_owned(), "why".to_owned())]).unwrap();
        assert!(
            page.contains("| a | 0 | 0 | 20 | 0 | 20 | 18 | 90% |") && page.contains("| `a\\|b` | why |"),
            "{page}"
        );
        assert!(page.contains(&format!("| `b.rs:1:2: replace f -> bool with true` | {NO_REASON} |")), "{page}");
    }

    /// The page is what the file says: neither is edited without the other.
    #[test]
    fn the_page_is_current() {
        let place = Place::find().unwrap();
        let page = render(&read(&place).unwrap(), &super::super::exclusions(&place).unwrap()).unwrap();
        let there = std::fs::read_to_string(place.root.join(PAGE)).unwrap();
        assert!(there == page, "run cargo xtask mutants --page");
    }
}
