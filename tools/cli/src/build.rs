//! `build`: the component of a guest project.

use std::path::{Path, PathBuf};

use crate::failure::{Failure, Outcome};
use crate::project::{self, Project, Tools};
use crate::{show, sources};

/// Build the component of a guest project
///
/// Makes NAME.wasm in the project's folder. The language is that of the project, and its tools must be there:
/// Rust: cargo with the target wasm32-unknown-unknown. C: clang with wasi-libc, zig, or wasi-sdk. JavaScript: Node.js and
/// componentize-js. Python: componentize-py. What is missing is named, with the command that installs it.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  kv-store build\n  kv-store build -- --offline\n\n\
    Exit codes: 0 built; 1 it does not compile, or is no backend; 2 there is no project, or a tool is missing.")]
pub struct BuildArguments {
    /// The project's folder
    #[arg(long, default_value = ".")]
    project: PathBuf,
    /// One JSON object on standard output
    #[arg(long)]
    pub json: bool,
    /// Options for the tool that compiles: cargo, the C compiler, componentize-js or componentize-py
    #[arg(last = true, value_name = "OPTION")]
    options: Vec<String>,
}

/// The project in a folder, whose component `build` has made.
pub fn built_project(folder: &Path) -> Outcome<Project> {
    let project = Project::find(folder)?;
    let component = project.component();
    if component.is_file() {
        sources::tell_newer(&project.folder, &component);
        return Ok(project);
    }
    Err(Failure::unable(format!("{} is not there yet: kv-store build makes it", component.display())))
}

pub fn run(arguments: &BuildArguments) -> Outcome {
    let project = Project::find(&arguments.project)?;
    let component = project.build(&Tools { options: &arguments.options })?;
    let path = project.component();
    project::write(&path, &component)?;
    if arguments.json {
        show::json(&serde_json::json!({ "component": path, "bytes": component.len(), "language": project.language }));
    } else {
        println!("made {}, {}", path.display(), show::bytes(component.len() as u64));
    }
    Ok(())
}
