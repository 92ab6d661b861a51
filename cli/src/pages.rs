//! `pages`: the manual pages and the shell completions, for those who package this program.

use std::path::PathBuf;

use clap::CommandFactory;
use clap_complete::Shell;

use crate::failure::{Failure, Outcome};

/// Write the manual pages and shell completions into a folder
#[derive(clap::Args)]
pub struct Arguments {
    folder: PathBuf,
}

pub fn run(arguments: &Arguments) -> Outcome {
    let unable = |error: std::io::Error| Failure::unable(format!("pages {}: {error}", arguments.folder.display()));
    let (man, completions) = (arguments.folder.join("man"), arguments.folder.join("completions"));
    for folder in [&man, &completions] {
        std::fs::create_dir_all(folder).map_err(unable)?;
    }
    clap_mangen::generate_to(crate::Arguments::command(), &man).map_err(unable)?;
    for shell in [Shell::Bash, Shell::Fish, Shell::Zsh] {
        clap_complete::generate_to(shell, &mut crate::Arguments::command(), "kv-store", &completions)
            .map_err(unable)?;
    }
    Ok(())
}
