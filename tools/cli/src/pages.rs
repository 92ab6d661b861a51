//! `pages`: the manual pages and the shell completions, for those who package this program.

use std::path::PathBuf;

use clap::CommandFactory;
use clap_complete::{Generator, Shell};

use crate::failure::{Failure, Outcome};

/// Write the manual pages and shell completions into a folder
#[derive(clap::Args)]
pub struct PagesArguments {
    folder: PathBuf,
}

pub fn run(arguments: &PagesArguments) -> Outcome {
    let unable = |error: std::io::Error| Failure::unable(format!("pages {}: {error}", arguments.folder.display()));
    let (man, completions) = (arguments.folder.join("man"), arguments.folder.join("completions"));
    for folder in [&man, &completions] {
        std::fs::create_dir_all(folder).map_err(unable)?;
    }
    clap_mangen::generate_to(crate::Arguments::command(), &man).map_err(unable)?;
    for shell in [Shell::Bash, Shell::Fish, Shell::Zsh] {
        let path = completions.join(shell.file_name("kv-store"));
        let mut script = Vec::new();
        clap_complete::generate(shell, &mut shown(&crate::Arguments::command()), "kv-store", &mut script);
        let script = String::from_utf8(script).map_err(Failure::unable)?;
        // For a program with a dash in its name, clap_complete writes labels of cases that are not those it goes to.
        std::fs::write(path, script.replace("kv__subcmd__store", "kv__store")).map_err(unable)?;
    }
    Ok(())
}

/// A command without the commands and options that it hides, which clap_complete would offer.
fn shown(all: &clap::Command) -> clap::Command {
    // clap wants names that stay. There are few, and this program ends after it has written them.
    let name: &'static str = Box::leak(all.get_name().to_owned().into_boxed_str());
    let arguments = all.get_arguments().filter(|argument| !argument.is_hide_set()).cloned().collect::<Vec<_>>();
    let commands = all.get_subcommands().filter(|command| !command.is_hide_set()).map(shown).collect::<Vec<_>>();
    clap::Command::new(name).about(all.get_about().cloned().unwrap_or_default()).args(arguments).subcommands(commands)
}
