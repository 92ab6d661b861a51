//! What `kv-store new` makes in each language: built and checked as a vendor would, and measured.
//!
//! Rust and C are part of `cargo xtask test`. JavaScript and Python take minutes, for their tools' installation and work and for
//! components of 12 and 18 MB: `cargo xtask test --languages`. What they made once is in tests/compat, and is checked in each run.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use kv_store_tests::objects::ObjectServer;
use serde::Deserialize;

use crate::place::Place;
use crate::{dist, guests, packages, python, step, table, toolchain};

/// Where the table is, and what it stands between.
const PAGE: &str = "docs/vendor/languages.md";
const TABLE: [&str; 2] = ["<!-- table: cargo xtask languages -->\n", "<!-- end -->\n"];
/// The longest file of tests/compat.
const LONGEST: u64 = 8 << 20;
/// The text of 1.0.0, which components that call each of its functions are built for.
const FIRST: &str = "tests/blackbox/snapshots/contract-1.0.0.wit";
/// Where those components are.
const CALLS: &str = "tests/guests/calls";

/// As `kv-store new --kind` has them.
const KINDS: [&str; 3] = ["memory", "files", "http"];

#[derive(clap::Args)]
pub struct LanguagesOptions {
    /// Also put the components into tests/compat, packed, for tests of all later versions
    #[arg(long)]
    keep: bool,
    /// In place of all that: build what tests/guests/calls has for 1.0.0 of the contract, and put it into tests/compat
    #[arg(long, conflicts_with = "keep")]
    calls: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Language {
    Rust,
    C,
    Javascript,
    Python,
}

impl Language {
    pub const ALL: [Language; 4] = [Language::Rust, Language::C, Language::Javascript, Language::Python];
    /// Those of which a build takes seconds.
    pub const QUICK: [Language; 2] = [Language::Rust, Language::C];

    /// As `kv-store new --language` has it.
    pub fn name(self) -> &'static str {
        match self {
            Language::Rust => "rust",
            Language::C => "c",
            Language::Javascript => "javascript",
            Language::Python => "python",
        }
    }

    /// The file of a project that has the backend.
    fn source(self) -> &'static str {
        match self {
            Language::Rust => "src/lib.rs",
            Language::C => "src/store.c",
            Language::Javascript => "src/store.js",
            Language::Python => "src/store.py",
        }
    }

    /// Install its tools. Answers a folder that must be in `PATH`, if it takes one.
    fn install(self, place: &Place) -> Result<Option<PathBuf>> {
        let template = |file: &str| place.root.join("tools/cli/template").join(self.name()).join(file);
        match self {
            Language::Rust => Ok(None),
            Language::C => packages::install(packages::C_GUESTS).map(|()| None),
            Language::Javascript => npm(place, &template("package.json.in")).map(Some),
            Language::Python => {
                let wanted = std::fs::read_to_string(template("requirements.txt.in"))?;
                let wanted: Vec<&str> = wanted.lines().collect();
                let environment = python::Environment::kept(place, "componentize-py", &wanted)?;
                Ok(Some(environment.folder.join("bin")))
            }
        }
    }
}

/// What the template's package.json asks for, kept between runs.
fn npm(place: &Place, package: &Path) -> Result<PathBuf> {
    let folder = place.work().join("npm");
    let (bin, stamp) = (folder.join("node_modules/.bin"), folder.join("package.json"));
    let wanted = std::fs::read_to_string(package)?.replace("@NAME@", "tools");
    if bin.join("componentize-js").exists() && std::fs::read_to_string(&stamp).is_ok_and(|found| found == wanted) {
        return Ok(bin);
    }
    step::output(Command::new("node").arg("--version")).context("components in JavaScript need Node.js 20 and npm")?;
    std::fs::create_dir_all(&folder)?;
    std::fs::write(&stamp, wanted)?;
    let mut install = Command::new("npm");
    install.current_dir(&folder).args(["install", "--no-audit", "--no-fund"]);
    step::run(place, "installing componentize-js", &mut install)?;
    Ok(bin)
}

/// A component that was built from the template of a language.
pub struct Built {
    pub component: PathBuf,
    pub seconds: f64,
}

/// `kv-store new` and `build`, in a folder that is new.
pub fn build(place: &Place, language: Language) -> Result<Built> {
    build_kind(place, language, "memory", "memory", &|_| Ok(()))
}

/// The same for a language by its name and another kind of template, whose source is changed before it is built. Answers the component.
pub fn build_changed(
    place: &Place,
    language: &str,
    kind: &str,
    change: &dyn Fn(&str) -> Result<String>,
) -> Result<PathBuf> {
    let known = Language::ALL.into_iter().find(|known| known.name() == language);
    let language = known.with_context(|| format!("{language} is no language of the templates"))?;
    let change_source = |project: &Path| {
        let source = project.join(language.source());
        let text = std::fs::read_to_string(&source).with_context(|| format!("cannot read {}", source.display()))?;
        Ok(std::fs::write(&source, change(&text)?)?)
    };
    Ok(build_kind(place, language, kind, kind, &change_source)?.component)
}

/// A project of a kind, named after its language and `what`, which is changed before it is built.
fn build_kind(
    place: &Place,
    language: Language,
    what: &str,
    kind: &str,
    change: &dyn Fn(&Path) -> Result<()>,
) -> Result<Built> {
    let tools = language.install(place)?;
    let folder = place.work().join("new").join(format!("{}-{what}", language.name()));
    if folder.exists() {
        std::fs::remove_dir_all(&folder)?;
    }
    std::fs::create_dir_all(&folder)?;
    let toolchain = toolchain::choose(toolchain::Target::Unknown)?;
    let kv_store = |within: &Path| -> Result<Command> {
        let mut command = toolchain.user(&place.dist.join("bin/kv-store"));
        place.for_consumers(&mut command)?;
        // The SDK's own dependencies are there already.
        command.current_dir(within).env("CARGO_TARGET_DIR", place.target.join("guests"));
        if let Some(tools) = &tools {
            let path = std::env::var_os("PATH").unwrap_or_default();
            command.env("PATH", std::env::join_paths([tools.clone()].into_iter().chain(std::env::split_paths(&path)))?);
        }
        Ok(command)
    };
    let name = format!("{}-{what}", language.name());
    let new = ["new", &name, "--language", language.name(), "--kind", kind];
    step::run_shown(&format!("a new project in {}, {kind}", language.name()), kv_store(&folder)?.args(new))?;
    let project = folder.join(&name);
    change(&project)?;
    let mut build = kv_store(&project)?;
    build.arg("build");
    if language == Language::Rust {
        build.arg("--").args(toolchain.cargo_options());
    }
    let begun = Instant::now();
    step::run_shown("its component", &mut build)?;
    let seconds = begun.elapsed().as_secs_f64();
    eprintln!("   built in {seconds:.1} s");
    Ok(Built { component: project.join(format!("{name}.wasm")), seconds })
}

/// What `kv-store new` makes builds, and passes `kv-store check` as it is.
pub fn test(place: &Place, languages: &[Language]) -> Result<()> {
    for (language, kind) in languages.iter().flat_map(|language| KINDS.map(|kind| (*language, kind))) {
        let built = build_kind(place, language, kind, kind, &|_| Ok(()))?;
        let project = built.component.parent().context("a component lies in its project")?;
        let mut check = Command::new(place.dist.join("bin/kv-store"));
        place.for_consumers(&mut check)?;
        check.current_dir(project).args(["check", "--report", "badge.json"]);
        let server = (kind == "http").then(ObjectServer::start);
        if let Some(server) = &server {
            let name = language.name();
            check.args(["--uri", &format!("{name}-{kind}://127.0.0.1:{}/check", server.port)]);
        }
        let begun = Instant::now();
        step::run_shown("kv-store check of it", &mut check)?;
        eprintln!("   checked in {:.1} s", begun.elapsed().as_secs_f64());
    }
    Ok(())
}

/// The part of `kv-store check --times --json` that is used.
#[derive(Deserialize)]
struct TimesReport {
    compile_ms: u64,
    times: Times,
}

#[derive(Deserialize)]
struct Times {
    open_us: u64,
    put_us: f64,
    get_us: f64,
}

/// Build a component in each language, measure each, and write the table.
pub fn run(place: &Place, options: &LanguagesOptions) -> Result<()> {
    dist::run(place)?;
    if options.calls {
        return calls(place);
    }
    let mut rows = String::new();
    for language in Language::ALL {
        let built = build(place, language)?;
        let size = std::fs::metadata(&built.component)?.len();
        // With a cache that is empty, the time to compile is that of a first open.
        let cache = tempfile::tempdir()?;
        let mut check = Command::new(place.dist.join("bin/kv-store"));
        place.for_consumers(&mut check)?;
        // A folder that the library makes itself, for this user alone: one that others can read is not used.
        check.env("KV_STORE_WASM_CACHE", cache.path().join("aot")).arg("check").arg(&built.component);
        check.args(["--stores", "names", "--filter", "chunk-roundtrip", "--times", "--json"]);
        let report: TimesReport = serde_json::from_str(&step::output(&mut check)?)?;
        let Times { open_us, put_us, get_us } = report.times;
        rows += &format!(
            "| {} | {} | {:.1} s | {:.1} s | {:.1} ms | {put_us:.0} us | {get_us:.0} us |\n",
            language.name(),
            kilobytes(size),
            built.seconds,
            report.compile_ms as f64 / 1e3,
            open_us as f64 / 1e3,
        );
        if options.keep {
            keep(place, &version(place)?, language.name(), &built.component)?;
        }
    }
    if options.keep {
        guests::build(place)?;
        keep(place, &version(place)?, "rust-maintenance", &place.components().join("memory.wasm"))?;
    }
    let path = place.root.join(PAGE);
    let page = std::fs::read_to_string(&path)?;
    let head = "| language | component | `kv-store build` | compiled, once | open | put of 64 KiB | get of 64 KiB |\n| --- | --- | --- | --- | --- | --- | --- |\n";
    std::fs::write(&path, table::replaced(PAGE, &page, TABLE, |_| format!("{head}{rows}"))?)?;
    println!("{head}{rows}written to {PAGE}");
    Ok(())
}

fn kilobytes(bytes: u64) -> String {
    if bytes < 1_000_000 { format!("{} kB", bytes / 1000) } else { format!("{:.1} MB", bytes as f64 / 1e6) }
}

/// Build the components that call each function of 1.0.0, and pack them.
fn calls(place: &Place) -> Result<()> {
    let sources = place.root.join(CALLS);
    for (language, source) in [(Language::Javascript, "calls.js"), (Language::Python, "calls.py")] {
        let own = |project: &Path| {
            std::fs::copy(sources.join(source), project.join(language.source()))?;
            std::fs::copy(sources.join("world.wit"), project.join("wit/world.wit"))?;
            std::fs::copy(place.root.join(FIRST), project.join("wit/deps/kv-store-backend/backend.wit"))?;
            Ok(())
        };
        let built = build_kind(place, language, "calls", "memory", &own)?;
        keep(place, "1.0.0", &format!("{}-calls", language.name()), &built.component)?;
    }
    Ok(())
}

/// The version in the contract's package line.
fn version(place: &Place) -> Result<String> {
    let text = std::fs::read_to_string(place.root.join("wit/backend.wit"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("package kv-store:backend@"));
    Ok(line.and_then(|line| line.strip_suffix(';')).context("wit/backend.wit has no package line")?.to_owned())
}

/// Pack a component into tests/compat, under the version of the contract.
fn keep(place: &Place, version: &str, name: &str, component: &Path) -> Result<()> {
    packages::install(packages::ZSTD)?;
    let packed = place.root.join("tests/compat").join(format!("{version}-{name}.wasm.zst"));
    let mut zstd = Command::new("zstd");
    zstd.args(["--ultra", "-22", "--force", "--quiet"]).arg(component).arg("-o").arg(&packed);
    step::run(place, &format!("packing {name}"), &mut zstd)?;
    let len = std::fs::metadata(&packed)?.len();
    if len > LONGEST {
        std::fs::remove_file(&packed)?;
        bail!("{name} is {len} bytes, packed, and tests/compat takes {LONGEST}: say so in its README.md");
    }
    Ok(())
}
