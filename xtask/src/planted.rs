//! `cargo xtask planted`: how many planted bugs `kv-store check` finds. Each is a guest that is sound but for one thing: the components of
//! `tests/planted`, whose bug is named by the scheme of the URI, and the templates of `kv-store new` with a text replaced. What is sound must
//! pass first. Not in CI: it takes about an hour on two cores.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use anyhow::{Context, Result, bail, ensure};
use kv_store_tests::objects::ObjectServer;
use serde::Deserialize;

use crate::languages;
use crate::place::Place;
use crate::{dist, guests, packages, step};

/// Where the table is, and what it stands between.
const PAGE: &str = "docs/vendor/planted.md";
const TABLE: [&str; 2] = ["<!-- table: cargo xtask planted -->\n", "<!-- end -->\n"];
/// Seconds that a case may take: bugs that hang are among them.
const TIMEOUT: &str = "60";
/// What a server of the guest `net` says that refuses.
const REFUSAL: &str = r"-OOM command not allowed when used memory is above maxmemory\r\n";

#[derive(clap::Args)]
pub struct PlantedOptions {
    /// Only the bugs whose name contains this text; the page's other rows stay as they are
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Only the bugs that the page has no row of: goes on where a run was ended
    #[arg(long)]
    rest: bool,
    /// Without those in JavaScript and Python, whose tools take minutes to install; the page's other rows stay as they are
    #[arg(long)]
    quick: bool,
    /// Pass this text on as `kv-store check --filter`; the page stays as it is
    #[arg(long, value_name = "TEXT")]
    filter: Option<String>,
    /// Checks that run at once
    #[arg(long, default_value_t = std::thread::available_parallelism().map_or(2, std::num::NonZero::get))]
    jobs: usize,
}

/// A bug, or with `what` empty a guest that has none.
#[derive(Clone)]
struct PlantedBug {
    guest: String,
    class: String,
    name: String,
    what: String,
    escaped: bool,
    /// In the source of a template: what is replaced by what.
    replaced: Option<Replaced>,
}

#[derive(Clone, Deserialize)]
struct Replaced {
    language: String,
    class: String,
    name: String,
    what: String,
    #[serde(default = "memory")]
    kind: String,
    old: String,
    new: String,
}

fn memory() -> String {
    "memory".into()
}

#[derive(Deserialize)]
struct InTemplates {
    bug: Vec<Replaced>,
}

macro_rules! bugs {
    ($($guest:ident: $kind:ident {
        $($class:ident: $($variant:ident $name:literal $what:literal $($escaped:ident)?),+;)+
    })+) => {
        const GUESTS: &[&str] = &[$(stringify!($guest)),+];
        /// Guest, class, name, what it does, and whether it once escaped.
        const IN_GUESTS: &[(&str, &str, &str, &str, bool)] = &[
            $($($((stringify!($guest), stringify!($class), $name, $what, false $(|| escaped(stringify!($escaped)))?),)+)+)+
        ];
    };
}

const fn escaped(_: &str) -> bool {
    true
}

include!("../../tests/planted/bugs.rs");

/// What `kv-store check` said of a bug.
enum Detection {
    /// The cases that failed; or that it could not run, which an author sees too.
    By(Vec<String>),
    Missed,
}

/// The part of `kv-store check --json` that is used.
#[derive(Deserialize)]
struct CheckReport {
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    name: String,
    verdict: String,
    #[serde(default)]
    why: String,
}

pub fn run(place: &Place, options: &PlantedOptions) -> Result<()> {
    ensure!(options.jobs > 0, "--jobs: at least 1");
    packages::install(&["redis-server"])?;
    dist::run(place)?;
    let components = guests::build_planted(place)?;
    let mut bugs = all(place)?;
    let every = bugs.clone();
    let page = place.root.join(PAGE);
    let known = match options.rest {
        true => rows(&std::fs::read_to_string(&page)?),
        false => BTreeMap::new(),
    };
    let wanted = |bug: &PlantedBug| {
        !known.contains_key(&bug.name) && options.only.as_deref().is_none_or(|text| bug.name.contains(text))
    };
    bugs.retain(|bug| wanted(bug) && !(options.quick && matches!(bug.guest.as_str(), "javascript" | "python")));
    ensure!(
        !bugs.is_empty(),
        "no bug is left to look at: none has this text in its name, or the page has a row of each"
    );

    let folder = tempfile::tempdir()?;
    let subjects = subjects(place, &bugs, &components, folder.path())?;
    let (next, results) = (AtomicUsize::new(0), Mutex::new(BTreeMap::new()));
    std::thread::scope(|scope| {
        for _ in 0..options.jobs {
            scope.spawn(|| {
                while let Some((at, (bug, component))) =
                    Some(next.fetch_add(1, Relaxed)).and_then(|at| Some((at, subjects.get(at)?)))
                {
                    let mut found = check(place, bug, component, options.filter.as_deref());
                    say(bug, &found);
                    let mut results = results.lock().unwrap();
                    // At once: a run takes hours, and what ends it must not lose what was found.
                    if let Ok(told) = &found
                        && options.filter.is_none()
                        && !bug.what.is_empty()
                        && let Err(error) = write(&page, &every, bug, told)
                    {
                        found = Err(error);
                    }
                    results.insert(at, found);
                }
            });
        }
    });
    let results = results.into_inner().unwrap();
    let mut judged = Vec::new();
    for ((bug, _), found) in subjects.iter().zip(results.into_values()) {
        match (bug.what.is_empty(), found?) {
            (true, Detection::By(cases)) => bail!("{} is sound and does not pass: {}", bug.name, cases.join("; ")),
            (true, Detection::Missed) => {}
            (false, found) => judged.push((bug, found)),
        }
    }
    if options.filter.is_none() {
        eprintln!("written to {PAGE}");
    }
    let missed_now: Vec<&str> = missed(&judged).map(|bug| bug.name.as_str()).collect();
    println!("found {} of {}; missed: {}", judged.len() - missed_now.len(), judged.len(), missed_now.join(", "));
    let escaped: Vec<&str> = missed(&judged).filter(|bug| bug.escaped).map(|bug| bug.name.as_str()).collect();
    ensure!(escaped.is_empty(), "these escaped before, and escape again: {}", escaped.join(", "));
    Ok(())
}

/// The component of each bug in a folder of its own, and of each guest as it is without one.
fn subjects(
    place: &Place,
    bugs: &[PlantedBug],
    components: &BTreeMap<String, PathBuf>,
    folder: &Path,
) -> Result<Vec<(PlantedBug, PathBuf)>> {
    let mut subjects = Vec::new();
    for guest in GUESTS.iter().filter(|guest| bugs.iter().any(|bug| bug.guest == **guest)) {
        let named = |name: &str| copy(&components[*guest], &folder.join(name).join(format!("{name}.wasm")));
        subjects.push((PlantedBug::sound(guest), named(&format!("sound-{guest}"))?));
        for bug in bugs.iter().filter(|bug| bug.guest == *guest) {
            subjects.push((bug.clone(), named(&bug.name)?));
        }
    }
    for bug in bugs.iter().filter(|bug| bug.replaced.is_some()) {
        let replaced = bug.replaced.as_ref().context("it was looked at")?;
        let built = languages::build_changed(place, &replaced.language, &replaced.kind, &|source| {
            ensure!(
                source.matches(&replaced.old).count() == 1,
                "{}: not once in the template: {}",
                bug.name,
                replaced.old
            );
            Ok(source.replacen(&replaced.old, &replaced.new, 1))
        })?;
        // The template's component is named after its language, and knows no other scheme.
        let name = format!("{}-{}.wasm", replaced.language, replaced.kind);
        subjects.push((bug.clone(), copy(&built, &folder.join(&bug.name).join(name))?));
    }
    Ok(subjects)
}

impl PlantedBug {
    fn sound(guest: &str) -> Self {
        let (class, what) = Default::default();
        PlantedBug { guest: guest.into(), class, name: format!("sound-{guest}"), what, escaped: false, replaced: None }
    }
}

fn all(place: &Place) -> Result<Vec<PlantedBug>> {
    let guests = IN_GUESTS.iter().map(|(guest, class, name, what, escaped)| PlantedBug {
        guest: (*guest).into(),
        class: (*class).into(),
        name: (*name).into(),
        what: (*what).into(),
        escaped: *escaped,
        replaced: None,
    });
    let path = place.root.join("tests/planted/replaced.toml");
    let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let templates: InTemplates = toml::from_str(&text)?;
    let templates = templates.bug.into_iter().map(|replaced| PlantedBug {
        guest: replaced.language.clone(),
        class: replaced.class.clone(),
        name: replaced.name.clone(),
        what: replaced.what.clone(),
        escaped: false,
        replaced: Some(replaced),
    });
    Ok(guests.chain(templates).collect())
}

fn copy(component: &Path, to: &Path) -> Result<PathBuf> {
    std::fs::create_dir_all(to.parent().context("it lies in a folder")?)?;
    std::fs::copy(component, to).with_context(|| format!("cannot copy {}", component.display()))?;
    Ok(to.to_owned())
}

/// Check one component, with a server of its own where it needs one.
fn check(place: &Place, bug: &PlantedBug, component: &Path, filter: Option<&str>) -> Result<Detection> {
    let mut check = Command::new(place.dist.join("bin/kv-store"));
    place.for_consumers(&mut check)?;
    check.arg("check").arg(component).args(["--json", "--timeout", TIMEOUT]).stdin(Stdio::null());
    if let Some(filter) = filter {
        check.args(["--filter", filter]);
    }
    let kind = bug.replaced.as_ref().map_or(bug.guest.as_str(), |replaced| replaced.kind.as_str());
    let scheme = component.file_stem().context("a component has a name")?.display();
    let (mut objects, mut redis) = (None, None);
    match kind {
        "http" => {
            // As many do. One that answers 204 to that shows less.
            let server = objects.insert(ObjectServer::start());
            server.misses_deletes();
            check.args(["--uri", &format!("{scheme}://127.0.0.1:{}/check", server.port)]);
        }
        "net" => {
            let server = redis.insert(Redis::start()?);
            let restart = server.script.display().to_string();
            check.args(["--uri", &format!("{scheme}://127.0.0.1:{}/1", server.port)]);
            // It begins with a hyphen.
            check.args([&format!("--refusal={REFUSAL}"), "--restart", &restart]);
            check.args(["--beside", &format!("{scheme}://127.0.0.1:{}/2", server.port)]);
        }
        _ => {}
    }
    let output = check.output().context("cannot run kv-store")?;
    match output.status.code() {
        Some(0) => Ok(Detection::Missed),
        Some(1) => {
            let report: CheckReport = serde_json::from_slice(&output.stdout)?;
            let failed = report.cases.into_iter().filter(|case| case.verdict == "failed");
            let first_line = |why: &str| why.lines().next().unwrap_or_default().to_owned();
            let shown = |case: Case| match bug.what.is_empty() {
                // What is sound must pass: say why it does not.
                true => format!("{}: {}", case.name, first_line(&case.why)),
                false => case.name,
            };
            Ok(Detection::By(failed.map(shown).collect()))
        }
        Some(2) => {
            let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            Ok(Detection::By(vec![if bug.what.is_empty() { said } else { "open".into() }]))
        }
        _ => bail!("kv-store check of {}: {}", bug.name, output.status),
    }
}

fn say(bug: &PlantedBug, found: &Result<Detection>) {
    match found {
        Ok(Detection::By(cases)) => eprintln!("   {}: {}", bug.name, cases.join(", ")),
        Ok(Detection::Missed) if bug.what.is_empty() => eprintln!("   {}: passes", bug.name),
        Ok(Detection::Missed) => eprintln!("   {}: MISSED ({})", bug.name, bug.what),
        Err(error) => eprintln!("   {}: {error:#}", bug.name),
    }
}

fn missed<'a>(judged: &'a [(&PlantedBug, Detection)]) -> impl Iterator<Item = &'a PlantedBug> {
    judged.iter().filter(|(_, found)| matches!(found, Detection::Missed)).map(|(bug, _)| *bug)
}

fn row(bug: &PlantedBug, found: &Detection) -> String {
    let PlantedBug { class, name, guest, what, .. } = bug;
    let found = match found {
        Detection::Missed => MISSED.to_owned(),
        Detection::By(cases) => match cases.as_slice() {
            [first, second, _, ..] => format!("{first}, {second} and {} more", cases.len() - 2),
            few => few.join(", "),
        },
    };
    format!("| {class} | `{name}` | {guest} | {what} | {found} |")
}

/// Of a row, what found the bug.
const MISSED: &str = "**missed**";

/// The rows that a table has, by the name of the bug.
fn rows(table: &str) -> BTreeMap<String, String> {
    let named = |line: &str| Some((line.split('`').nth(1)?.to_owned(), line.to_owned()));
    table.lines().filter(|line| line.starts_with("| ") && line.contains('`')).filter_map(named).collect()
}

/// The table of all bugs that were looked at, in their order.
fn table(every: &[PlantedBug], rows: &BTreeMap<String, String>) -> String {
    let known: Vec<(&PlantedBug, &String)> = every.iter().filter_map(|bug| Some((bug, rows.get(&bug.name)?))).collect();
    let of = |escaped: bool| known.iter().filter(move |(bug, _)| bug.escaped == escaped);
    let found = |escaped: bool| of(escaped).filter(|(_, row)| !row.contains(MISSED)).count();
    let mut table = format!(
        "`kv-store check` finds {} of {} bugs that once escaped it, and {} of {} others.",
        found(true),
        of(true).count(),
        found(false),
        of(false).count()
    );
    if known.len() < every.len() {
        table += &format!(" It was not run on {} more.", every.len() - known.len());
    }
    table += "\n\n| class | bug | guest | what it does | found by |\n| --- | --- | --- | --- | --- |\n";
    known.iter().for_each(|(_, row)| table += &format!("{row}\n"));
    table
}

/// Put what was found of a bug into the page, beside the rows that it has.
fn write(path: &Path, every: &[PlantedBug], bug: &PlantedBug, found: &Detection) -> Result<()> {
    let page = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let page = crate::table::replaced(PAGE, &page, TABLE, |former| {
        let mut rows = rows(former);
        rows.insert(bug.name.clone(), row(bug, found));
        table(every, &rows)
    })?;
    Ok(std::fs::write(path, page)?)
}

/// A redis-server that keeps nothing over a restart, and the script that restarts it.
struct Redis {
    port: u16,
    script: PathBuf,
    _folder: tempfile::TempDir,
}

impl Redis {
    fn start() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let script = folder.path().join("restart");
        let (dir, cli) = (folder.path().display(), format!("redis-cli -p {port}"));
        let text = format!(
            "#!/bin/sh\n{cli} shutdown nosave >/dev/null 2>&1\nset -e\nredis-server --port {port} --bind 127.0.0.1 --save '' \
             --appendonly no --dir {dir} --logfile {dir}/log --daemonize yes >/dev/null\nuntil {cli} ping >/dev/null 2>&1; do sleep 0.05; done\n"
        );
        std::fs::write(&script, text)?;
        std::fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
        step::output(&mut Command::new(&script))?;
        Ok(Redis { port, script, _folder: folder })
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let stop = ["-p", &self.port.to_string(), "shutdown", "nosave"];
        let _ = Command::new("redis-cli").args(stop).stdout(Stdio::null()).stderr(Stdio::null()).status();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_a_former_run_stay_beside_new_ones() {
        let bug = |name: &str, escaped| PlantedBug {
            name: name.into(),
            what: "does".into(),
            escaped,
            ..PlantedBug::sound("files")
        };
        let every = [bug("one", true), bug("two", false), bug("three", false)];
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("page.md");
        let former = format!("before\n{}{}\n{}after\n", TABLE[0], row(&every[1], &Detection::Missed), TABLE[1]);
        std::fs::write(&path, former).unwrap();
        write(&path, &every, &every[0], &Detection::By(vec!["a".into(), "b".into(), "c".into()])).unwrap();
        let page = std::fs::read_to_string(&path).unwrap();
        let sentence = "finds 1 of 1 bugs that once escaped it, and 0 of 1 others. It was not run on 1 more.\n";
        assert!(page.contains(sentence), "{page}");
        let (one, two) =
            (page.find("| a, b and 1 more |").unwrap(), page.find("`two` | files | does | **missed** |").unwrap());
        assert!(one < two && page.starts_with("before\n") && page.ends_with("after\n"), "{page}");
        write(&path, &every, &every[1], &Detection::By(vec!["d".into()])).unwrap();
        write(&path, &every, &every[2], &Detection::Missed).unwrap();
        let page = std::fs::read_to_string(&path).unwrap();
        assert!(page.contains("finds 1 of 1 bugs that once escaped it, and 1 of 2 others.\n"), "{page}");
    }
}
