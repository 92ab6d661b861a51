//! States that a power loss may leave of what another program wrote: its calls as strace recorded them, and folders for who looks.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};

use super::disk::{self, Disk};
use super::trace::{self, Call, What};
use crate::workload::Random;

#[derive(Clone, clap::Args)]
pub struct ImageOptions {
    /// Print what strace has to record, and do nothing else
    #[arg(long)]
    calls: bool,
    /// What `strace -f -y -xx -qqq` wrote
    #[arg(long, required_unless_present = "calls")]
    trace: Option<PathBuf>,
    /// The folder that it wrote to, which was empty
    #[arg(long, required_unless_present = "calls")]
    folder: Option<PathBuf>,
    /// Where the states are made, each in a folder of its own
    #[arg(long, required_unless_present = "calls")]
    into: Option<PathBuf>,
    #[arg(long, default_value_t = 100)]
    states: usize,
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// States of one moment: the oldest, the newest, and some in which files are torn.
const OF_A_MOMENT: usize = 6;

/// Print a line of JSON for each state: its folder, and what the program had said before the power was lost.
pub fn run(options: &ImageOptions) -> bool {
    let ImageOptions { trace: Some(log), folder: Some(folder), into: Some(into), .. } = options else {
        println!("{}", trace::CALLS);
        return true;
    };
    let made = std::fs::read_to_string(log)
        .map_err(|error| format!("{}: {error}", log.display()))
        .and_then(|log| images(&trace::parse(&log, folder), folder, into, options));
    made.map_err(|why| eprintln!("{why}")).is_ok()
}

fn images(calls: &[Call], folder: &Path, into: &Path, options: &ImageOptions) -> Result<(), String> {
    let unknown = calls.iter().find_map(|call| match &call.what {
        What::Unknown { name, .. } => Some(name),
        _ => None,
    });
    if let Some(name) = unknown {
        return Err(format!("the model does not know what it called: {name}"));
    }
    let disk = Disk::replay(folder, calls);
    let (mut random, mut seen) = (Random(options.seed), HashSet::new());
    for _ in 0..options.states {
        let point = random.below(calls.len() as u64 + 1) as usize;
        for state in disk.states(point, OF_A_MOMENT, &mut random) {
            let mut hasher = DefaultHasher::new();
            (&state, point).hash(&mut hasher);
            if seen.len() == options.states || !seen.insert(hasher.finish()) {
                continue;
            }
            let place = into.join(seen.len().to_string());
            std::fs::create_dir_all(&place).map_err(|error| format!("{}: {error}", place.display()))?;
            disk::make(&state, &place);
            let said: Vec<&str> = calls[..point].iter().filter_map(said).collect();
            println!("{}", serde_json::json!({ "folder": place, "said": said }));
        }
    }
    Ok(())
}

fn said(call: &Call) -> Option<&str> {
    match &call.what {
        What::Said(said) if !said.is_empty() => Some(said),
        _ => None,
    }
}
