//! `kv-store`: the tool of operators and of those who write backends.
//!
//! Exit codes of every command: 0 success; 1 a check failed, or something is missing or corrupt; 2 it could not run: wrong usage, no
//! such file, a store that does not open; 3 there was nothing to remove; 130 interrupted.

mod build;
mod cache;
mod check;
mod config;
mod contents;
mod contract;
mod describe;
mod doctor;
mod failure;
mod inspect;
mod interrupt;
mod items;
mod llama;
mod new;
mod pages;
mod place;
mod project;
mod sdk;
mod sequence;
mod show;
mod sources;
mod stores;
mod transfer;
mod update;
mod watch;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(
    name = "kv-store",
    version,
    about = "Check, look into and use storage backends of kv-store-wasm",
    after_help = "Exit codes: 0 success; 1 check failed, missing or corrupt; 2 could not run; 3 nothing to remove; 130 interrupted.",
    arg_required_else_help = true
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
    /// At the end write the counters of the library to standard error, in the text format of Prometheus
    #[arg(long, global = true)]
    counters: bool,
}

#[derive(Subcommand)]
enum Command {
    Check(check::CheckArguments),
    #[command(hide = true)]
    CheckCases(check::cases::CheckCasesArguments),
    Inspect(inspect::InspectArguments),
    Doctor(doctor::DoctorArguments),
    Config(config::ConfigArguments),
    New(new::NewArguments),
    Update(update::UpdateArguments),
    #[command(hide = true)]
    Pages(pages::PagesArguments),
    Build(build::BuildArguments),
    Save(transfer::SaveArguments),
    Restore(transfer::RestoreArguments),
    Get(items::GetArguments),
    Put(items::PutArguments),
    Rm(items::RmArguments),
    Ls(contents::LsArguments),
    Du(contents::DuArguments),
    Gc(contents::GcArguments),
    Verify(contents::VerifyArguments),
    Copy(contents::CopyArguments),
    Watch(watch::WatchArguments),
    Sequence(sequence::SequenceArguments),
    Llama(llama::LlamaArguments),
    Cache(cache::CacheArguments),
}

impl Command {
    /// Whether the result, and so a failure, is a JSON object on standard output.
    fn json(&self) -> bool {
        match self {
            Command::Check(arguments) => arguments.json,
            Command::CheckCases(_) => false,
            Command::Inspect(arguments) => arguments.json,
            Command::Doctor(arguments) => arguments.json,
            Command::Config(arguments) => arguments.json(),
            Command::New(arguments) => arguments.json,
            Command::Update(arguments) => arguments.json,
            Command::Pages(_) => false,
            Command::Build(arguments) => arguments.json,
            Command::Save(arguments) => arguments.json,
            Command::Restore(arguments) => arguments.json,
            Command::Get(arguments) => arguments.json,
            Command::Put(arguments) => arguments.json,
            Command::Rm(arguments) => arguments.json,
            Command::Ls(arguments) => arguments.json,
            Command::Du(arguments) => arguments.json,
            Command::Gc(arguments) => arguments.json,
            Command::Verify(arguments) => arguments.json,
            Command::Copy(arguments) => arguments.json,
            Command::Watch(arguments) => arguments.json,
            Command::Sequence(arguments) => arguments.json,
            Command::Llama(arguments) => arguments.json(),
            Command::Cache(arguments) => arguments.json(),
        }
    }
}

/// `kv-store --version --json`: the flag of the version alone ends the parser.
fn asks_for_version_as_json() -> bool {
    let mut arguments: Vec<_> = std::env::args_os().skip(1).collect();
    arguments.sort();
    arguments == ["--json", "--version"] || arguments == ["--json", "-V"]
}

fn main() -> ExitCode {
    // Whoever reads our output may stop, as `head` does: that ends us, and is no defect.
    // SAFETY: before any other thread, and nobody counts on another disposition.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    if asks_for_version_as_json() {
        let contract = serde_json::json!({ "name": contract::NAME, "sha256": contract::sha256() });
        show::json(&serde_json::json!({ "version": env!("CARGO_PKG_VERSION"), "contract": contract }));
        return ExitCode::SUCCESS;
    }
    let arguments = Arguments::parse();
    // The port and the file of the config are the engine's.
    kv_store_wasm::raw::serve_no_metrics();
    let json = arguments.command.json();
    let done = match arguments.command {
        Command::Check(arguments) => check::run(&arguments),
        Command::CheckCases(arguments) => check::cases::run(&arguments),
        Command::Inspect(arguments) => inspect::run(&arguments),
        Command::Doctor(arguments) => doctor::run(&arguments),
        Command::Config(arguments) => config::run(&arguments),
        Command::New(arguments) => new::run(&arguments),
        Command::Update(arguments) => update::run(&arguments),
        Command::Pages(arguments) => pages::run(&arguments),
        Command::Build(arguments) => build::run(&arguments),
        Command::Save(arguments) => transfer::save(&arguments),
        Command::Restore(arguments) => transfer::restore(&arguments),
        Command::Get(arguments) => items::get(&arguments),
        Command::Put(arguments) => items::put(&arguments),
        Command::Rm(arguments) => items::rm(&arguments),
        Command::Ls(arguments) => contents::ls(&arguments),
        Command::Du(arguments) => contents::du(&arguments),
        Command::Gc(arguments) => contents::gc(&arguments),
        Command::Verify(arguments) => contents::verify(&arguments),
        Command::Copy(arguments) => contents::copy(&arguments),
        Command::Watch(arguments) => watch::run(&arguments),
        Command::Sequence(arguments) => sequence::run(&arguments),
        Command::Llama(arguments) => llama::run(&arguments),
        Command::Cache(arguments) => cache::run(&arguments),
    };
    if arguments.counters {
        match kv_store_wasm::metrics() {
            Ok(counters) => eprint!("{counters}"),
            Err(error) => eprintln!("kv-store: no counters: {error}"),
        }
    }
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(json),
    }
}
