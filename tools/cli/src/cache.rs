//! `kv-store cache`: look into a directory of rows of the token-exact cache, and bring it in order.

use std::path::PathBuf;

use clap::Subcommand;
use kv_cache::tool::{self, BadFile};

use crate::failure::{Failure, Outcome};
use crate::show;

/// Look into a directory of cached rows: list, verify, clean up, count
///
/// A directory is one of a cache's tiers ram_file and disk. ls, verify and stats change nothing and work while a process has the
/// directory open.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  kv-store cache ls /var/cache/kv\n  kv-store cache verify /var/cache/kv --json\n  \
        kv-store cache gc /var/cache/kv --budget 50GiB\n\n\
        Exit codes: 0 as asked; 1 verify found damage, or ls or stats a file that is no row; 2 the directory can not be used.",
    arg_required_else_help = true,
    disable_help_subcommand = true
)]
pub struct CacheArguments {
    #[command(subcommand)]
    command: CacheCommand,
}

#[derive(Subcommand)]
enum CacheCommand {
    /// List the rows, most recently used first
    #[command(after_help = "Example:\n  kv-store cache ls /var/cache/kv --json\n\n\
        Exit codes: 0 all files are rows; 1 one is not; 2 the directory can not be used.")]
    Ls(Directory),
    /// Read every row to its end and check all of it
    #[command(after_help = "Example:\n  kv-store cache verify /var/cache/kv\n\n\
        Exit codes: 0 all rows are whole; 1 one is damaged; 2 the directory can not be used.")]
    Verify(Directory),
    /// Read every row and remove damaged files and temporary files of dead writers; then, with --budget, evict the rows used least recently
    #[command(after_help = "Example:\n  kv-store cache gc /var/cache/kv --budget 50GiB\n\n\
        Exit codes: 0 as asked; 2 a process has the directory open, or it can not be used.")]
    Gc(CacheGcArguments),
    /// Count rows, bytes, tokens, models
    #[command(after_help = "Example:\n  kv-store cache stats /var/cache/kv --json\n\n\
        Exit codes: 0 all files are rows; 1 one is not; 2 the directory can not be used.")]
    Stats(Directory),
}

#[derive(clap::Args)]
struct Directory {
    directory: PathBuf,
    /// One JSON object on standard output
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args)]
struct CacheGcArguments {
    #[command(flatten)]
    place: Directory,
    /// Evict rows until the others take at most this: bytes, or as in 512MiB, 50GiB
    #[arg(long, value_name = "SIZE", value_parser = kv_size::Bytes::flag)]
    budget: Option<u64>,
    /// Do not read payloads: a row whose payload is damaged stays, and counts as a good one against the budget
    #[arg(long)]
    quick: bool,
}

impl CacheArguments {
    pub fn json(&self) -> bool {
        match &self.command {
            CacheCommand::Ls(place) | CacheCommand::Verify(place) | CacheCommand::Stats(place) => place.json,
            CacheCommand::Gc(arguments) => arguments.place.json,
        }
    }
}

pub fn run(arguments: &CacheArguments) -> Outcome {
    match &arguments.command {
        CacheCommand::Ls(place) => list(place),
        CacheCommand::Verify(place) => verify(place),
        CacheCommand::Gc(arguments) => gc(arguments),
        CacheCommand::Stats(place) => stats(place),
    }
}

fn list(place: &Directory) -> Outcome {
    let listing = tool::list(&place.directory).map_err(Failure::unable)?;
    if place.json {
        show::json(&listing);
    } else {
        if !listing.rows.is_empty() {
            println!("{:64}  {:>8}  {:>10}  {:9}  PROMPT", "KEY", "TOKENS", "SIZE", "SAVED AS");
        }
        for row in &listing.rows {
            let reason = format!("{:?}", row.reason).to_lowercase();
            let size = show::bytes(row.file_bytes);
            println!("{}  {:>8}  {size:>10}  {reason:9}  {}", row.key, row.tokens, one_line(&row.prompt));
        }
        print_files("bad", &listing.bad);
        print_files("left alone", &listing.left);
    }
    outcome(listing.bad.is_empty())
}

fn verify(place: &Directory) -> Outcome {
    let verified = tool::verify(&place.directory).map_err(Failure::unable)?;
    if place.json {
        show::json(&verified);
    } else {
        print_files("bad", &verified.bad);
        print_files("left alone", &verified.left);
        println!(
            "{} rows are whole ({}), {} files are not",
            verified.good,
            show::bytes(verified.good_bytes),
            verified.bad.len()
        );
    }
    outcome(verified.bad.is_empty())
}

fn gc(arguments: &CacheGcArguments) -> Outcome {
    let options = tool::GcOptions { budget: arguments.budget, quick: arguments.quick };
    let gc = tool::gc(&arguments.place.directory, options).map_err(Failure::unable)?;
    if arguments.place.json {
        show::json(&gc);
    } else {
        println!(
            "removed {} damaged and {} temporary files, evicted {} rows ({})",
            gc.set_aside_removed,
            gc.temporaries,
            gc.evicted,
            show::bytes(gc.evicted_bytes)
        );
        print_left(gc.later_left, gc.misnamed_left);
    }
    Ok(())
}

fn stats(place: &Directory) -> Outcome {
    let stats = tool::stats(&place.directory).map_err(Failure::unable)?;
    if place.json {
        show::json(&stats);
    } else {
        println!("{} rows, {}, {} tokens", stats.rows, show::bytes(stats.bytes), stats.tokens);
        for (reason, rows) in &stats.reasons {
            println!("  saved as {reason}: {rows}");
        }
        for (model, rows) in &stats.models {
            println!("  of model {model}: {rows}");
        }
        println!("{} bad files, {} temporary ones, {} of others", stats.bad, stats.temporaries, stats.strangers);
        print_left(stats.newer, stats.misnamed);
    }
    outcome(stats.bad == 0)
}

fn print_files(what: &str, files: &[BadFile]) {
    for file in files {
        println!("{what}: {}: {}", one_line(&file.name), file.why);
    }
}

fn print_left(later: u64, misnamed: u64) {
    if later + misnamed > 0 {
        println!("left alone: {later} rows of a later version, {misnamed} files named *.kvc like no row");
    }
}

/// What comes from a file stays on its line.
fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// The output has said it.
fn outcome(good: bool) -> Outcome {
    if good { Ok(()) } else { Err(Failure::Not(None)) }
}
