//! `cargo xtask`: everything that a fresh clone needs, in few commands. Each command sets up what it uses, says what it
//! does, and where a step cannot work, says what to do.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a tool of developers: what fails here ends the command"
)]

mod aarch64;
mod bench;
mod book;
mod compare;
mod compat;
mod compiled;
mod dashboard;
mod demo;
mod deny;
mod dist;
mod engines;
mod former;
mod guests;
mod histories;
mod languages;
mod llama;
mod llama_servers;
mod models;
mod mutants;
mod package;
mod packages;
mod place;
mod planted;
mod portable;
mod python;
mod quick;
mod rooms;
mod second_host;
mod servers;
mod simulate;
mod sources;
mod step;
mod table;
mod tests;
mod toolchain;
mod torture;

use clap::{Parser, Subcommand};

use place::Place;

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Build, try and test kv-store-wasm", arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Save and restore the KV state of a real llama.cpp through a sandboxed backend, and show what happened
    Demo {
        /// One JSON object on standard output, for machines
        #[arg(long)]
        json: bool,
    },
    /// Measure the library beside its peers, and write docs/benchmarks.md
    Bench(bench::BenchOptions),
    /// Run every test, rustfmt and clippy; --quick: those worth running after each change
    Test(tests::TestOptions),
    /// Look for known holes in what we depend on, and for withdrawn versions; needs github.com
    Advisories,
    /// Kill, starve and lie to what is installed, for --minutes N from --seed S, and show what held; see --help
    #[command(disable_help_flag = true)]
    Torture {
        /// Those of tests/torture
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Search the models of the backends' protocols for an order of events that undoes an acknowledged change
    Models(models::ModelsOptions),
    /// Run histories of engines over a simulated store, for --seconds, --minutes or --hours N, or again by --seed N; --backend NAME: over the
    /// shipped memkv, redis, s3 or local-fs, or contract; --rare: each about one action and one fault; --planted: which planted bugs that
    /// finds; --json, --table
    #[command(disable_help_flag = true)]
    Simulate {
        /// Those of tests/simulate
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Record what eight processes call on one store while servers and processes are killed, frozen and cut off, and check it against what
    /// each backend promises, for --minutes N from --seed S; see --help. --planted [PART OF A NAME]: which planted bugs that finds
    #[command(disable_help_flag = true)]
    Histories {
        /// Those of tests/histories
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Kills, flipped bits, power losses, full disks, frozen servers and two writers for every store of KV state, this one among them, and
    /// docs/proof-compare.md. Needs the engines of `cargo xtask test --engines`
    Compare(compare::CompareOptions),
    /// Lay out what an operator installs: target/dist/{lib,libexec,components,include,bin}
    Dist,
    /// Build the Python wheel: target/wheels/*.whl
    Wheel {
        /// Also run its tests, in a fresh environment
        #[arg(long)]
        test: bool,
    },
    /// Make a book of docs/: target/book/docs/index.html
    Book {
        /// Also read each page as a reader sees it, and take pictures to look at, with Chromium: target/book/screenshots
        #[arg(long)]
        check: bool,
    },
    /// Draw docs/dashboard.json as a real Prometheus sees a library at work: docs/dashboard.svg
    Dashboard,
    /// Make the tarball, the Debian package, the wheel, the container file and the list of what is linked: target/package
    Package(package::PackageOptions),
    /// Build the guests: target/dist/components, and target/test-components for tests
    Guests,
    /// Build a component in each language, measure it, and write docs/vendor/languages.md
    Languages(languages::LanguagesOptions),
    /// Have this version write the data that each later version must read: tests/compat/data/VERSION
    CompatData(compat::CompatDataOptions),
    /// Change the code in small ways, and see whether tests fail: cargo-mutants over crates, and docs/mutants.md
    Mutants(mutants::MutantsOptions),
    /// Count how many planted bugs `kv-store check` finds, and write docs/vendor/planted.md
    Planted(planted::PlantedOptions),
    /// Count what makes the tree hard to find one's way in: folders at the root, names with several meanings, long functions and files, circles
    Rooms(rooms::RoomsOptions),
    /// Install what the other commands need: the guest toolchain, CMake, a Python environment
    Setup,
}

/// What `cargo run` says of this package. A build script that asks to be run again where one of these changes (ring's does) would be
/// run by each change between `cargo xtask` and cargo itself, and what depends on it compiled.
const OF_THIS_PACKAGE: &[&str] = &["CARGO_MANIFEST_", "CARGO_PKG_"];

fn main() -> std::process::ExitCode {
    for (name, _) in std::env::vars_os() {
        if OF_THIS_PACKAGE.iter().any(|beginning| name.as_encoded_bytes().starts_with(beginning.as_bytes())) {
            // SAFETY: the process has one thread yet.
            unsafe { std::env::remove_var(name) };
        }
    }
    let arguments = Arguments::parse();
    match run(arguments.command) {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            std::process::ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> anyhow::Result<()> {
    let place = Place::find()?;
    match command {
        Command::Demo { json } => demo::run(&place, json),
        Command::Bench(options) => bench::run(&place, &options),
        Command::Test(options) => tests::run(&place, &options),
        Command::Advisories => deny::advisories(&place),
        Command::Torture { arguments } => torture::run(&place, &arguments),
        Command::Models(options) => models::run(&place, &options),
        Command::Simulate { arguments } => simulate::run(&place, &arguments),
        Command::Histories { arguments } => histories::run(&place, &arguments),
        Command::Compare(options) => compare::run(&place, &options),
        Command::Wheel { test } => python::wheel(&place, test),
        Command::Dist => dist::run(&place).map(drop),
        Command::Book { check: false } => book::run(&place).map(drop),
        Command::Book { check: true } => book::check(&place),
        Command::Dashboard => dashboard::run(&place),
        Command::Package(options) => package::run(&place, &options),
        Command::Guests => guests::build(&place).and_then(|_| guests::build_for_tests(&place)).map(drop),
        Command::Languages(options) => languages::run(&place, &options),
        Command::CompatData(options) => compat::run(&place, &options),
        Command::Mutants(options) => mutants::run(&place, &options),
        Command::Planted(options) => planted::run(&place, &options),
        Command::Rooms(options) => rooms::run(&place, &options),
        Command::Setup => {
            for wanted in [llama::APT_PACKAGES, packages::TESTS, packages::C_GUESTS] {
                packages::install(wanted)?;
            }
            toolchain::choose(toolchain::Target::Unknown)
                .and_then(|_| toolchain::choose(toolchain::Target::Wasip2))
                .map(drop)
        }
    }
}

#[cfg(test)]
mod workflows {
    use super::*;

    /// Workflows run where nobody looks, some of them once a release: what they call is there.
    #[test]
    fn workflows_run_commands_that_there_are() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../.github/workflows");
        let mut commands = 0;
        for workflow in std::fs::read_dir(folder).unwrap() {
            let workflow = workflow.unwrap().path();
            let text = std::fs::read_to_string(&workflow).unwrap();
            for line in text.lines().filter(|line| !line.trim_start().starts_with('#')) {
                let Some((_, words)) = line.split_once("cargo xtask ") else { continue };
                // What a workflow fills in is a target, or a flag in quotes.
                let words = match words.split_once("${{") {
                    Some((before, filled)) if filled.contains('\'') => {
                        before.to_owned() + filled.split('\'').find(|part| part.starts_with("--")).unwrap()
                    }
                    Some((before, _)) => before.to_owned() + "x86_64-apple-darwin",
                    None => words.to_owned(),
                };
                let parsed = Arguments::try_parse_from(["xtask"].into_iter().chain(words.split_whitespace()));
                assert!(parsed.is_ok(), "{}: cargo xtask {words}: {}", workflow.display(), parsed.err().unwrap());
                commands += 1;
            }
        }
        assert!(commands >= 4, "{commands} commands found");
    }
}
