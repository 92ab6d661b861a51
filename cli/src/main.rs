//! `kv-store`: the tool of operators and of those who write backends.
//!
//! Exit codes of every command: 0 it is as asked; 1 it is not: a case failed, something is missing or corrupt; 2 it could
//! not be found out: wrong usage, no such file, a store that does not open.

mod build;
mod cache;
mod check;
mod describe;
mod doctor;
mod failure;
mod inspect;
mod items;
mod new;
mod sequence;
mod show;
mod transfer;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(
    name = "kv-store",
    version,
    about = "Check, look into and use storage backends of kv-store-wasm",
    after_help = "Exit codes: 0 as asked; 1 not so: a case failed, something is missing or corrupt; 2 it could not be found out.",
    arg_required_else_help = true,
    disable_help_subcommand = true
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
    /// When it is done, the counters of the library, in the text format of Prometheus, on standard error
    #[arg(long, global = true)]
    counters: bool,
}

#[derive(Subcommand)]
enum Command {
    Check(check::Arguments),
    #[command(hide = true)]
    CheckCases(check::cases::Arguments),
    Inspect(inspect::Arguments),
    Doctor(doctor::Arguments),
    New(new::Arguments),
    Build(build::Arguments),
    Save(transfer::SaveArguments),
    Restore(transfer::RestoreArguments),
    Get(items::GetArguments),
    Put(items::PutArguments),
    Rm(items::RmArguments),
    Sequence(sequence::Arguments),
    Cache(cache::Arguments),
}

fn main() -> ExitCode {
    // Whoever reads our output may stop, as `head` does: that ends us, and is no defect.
    // SAFETY: before any other thread, and nobody counts on another disposition.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    let arguments = Arguments::parse();
    let done = match arguments.command {
        Command::Check(arguments) => check::run(&arguments),
        Command::CheckCases(arguments) => check::cases::run(&arguments),
        Command::Inspect(arguments) => inspect::run(&arguments),
        Command::Doctor(arguments) => doctor::run(&arguments),
        Command::New(arguments) => new::run(&arguments),
        Command::Build(arguments) => build::run(&arguments),
        Command::Save(arguments) => transfer::save(&arguments),
        Command::Restore(arguments) => transfer::restore(&arguments),
        Command::Get(arguments) => items::get(&arguments),
        Command::Put(arguments) => items::put(&arguments),
        Command::Rm(arguments) => items::rm(&arguments),
        Command::Sequence(arguments) => sequence::run(&arguments),
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
        Err(failure) => failure.report(),
    }
}
