//! `config check`: a config file as a whole, for CI.

use std::path::PathBuf;

use clap::Subcommand;

use crate::failure::{Failure, Outcome};
use crate::show;

/// Check the config file
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  kv-store config check deploy/config.toml\n\n\
        Exit codes: 0 no problems; 1 an open would fail over it, or part of it is ignored; 2 it can not be read.",
    arg_required_else_help = true,
    disable_help_subcommand = true
)]
pub struct ConfigArguments {
    #[command(subcommand)]
    command: ConfigCommand,
}

#[derive(Subcommand)]
enum ConfigCommand {
    /// Check a config file: keys, values, tables that no backend uses, options and secrets that a backend does not know
    ///
    /// Components that are found check their options, and the URIs of tenants, with no network and no right to change a file. What
    /// CI does not have, such as secrets, is only a note.
    #[command(after_help = "Example:\n  kv-store config check deploy/config.toml --json\n\n\
        Exit codes: 0 no problems; 1 an open would fail over it, or part of it is ignored; 2 it can not be read.")]
    Check(ConfigCheckArguments),
}

#[derive(clap::Args)]
pub struct ConfigCheckArguments {
    /// The file to check; default: the one that an open would read
    file: Option<PathBuf>,
    /// One JSON object on standard output
    #[arg(long)]
    json: bool,
}

impl ConfigArguments {
    pub fn json(&self) -> bool {
        let ConfigCommand::Check(arguments) = &self.command;
        arguments.json
    }
}

pub fn run(arguments: &ConfigArguments) -> Outcome {
    let ConfigCommand::Check(arguments) = &arguments.command;
    if let Some(file) = arguments.file.as_deref().filter(|file| !file.is_file()) {
        return Err(Failure::unable(format!("config check {}: there is no such file", file.display())));
    }
    // What is no config is found out, and so not a 2.
    let report = kv_store_wasm::check_config(arguments.file.as_deref()).map_err(Failure::not)?;
    if arguments.json {
        show::json(&report);
    } else {
        show::problems(&report.problems);
        let shown =
            report.config.as_ref().map_or_else(|| "no config file".to_owned(), |path| path.display().to_string());
        let fatal = report.problems.iter().filter(|problem| problem.fatal).count();
        let (backends, tenants) = (report.backends, report.tenants);
        let (backends, tenants) = (show::count(backends as u64, "backend"), show::count(tenants as u64, "tenant"));
        println!("{shown}: {backends}, {tenants}, {}", show::count(fatal as u64, "problem"));
    }
    if report.problems.iter().any(|problem| problem.fatal) { Err(Failure::Not(None)) } else { Ok(()) }
}
