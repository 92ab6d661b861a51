//! `build`: a guest project's component, by cargo and wit-component.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize;
use wit_component::ComponentEncoder;

use crate::failure::{Failure, Outcome};
use crate::show;

const TARGET: &str = "wasm32-unknown-unknown";

/// Build the component of a guest project
///
/// Runs `cargo build --release --target wasm32-unknown-unknown` in the project's folder and makes NAME.wasm there. Needs that
/// target: rustup target add wasm32-unknown-unknown
#[derive(clap::Args)]
#[command(after_help = "Example:\n  kv-store build\n  kv-store build -- --offline\n\n\
    Exit codes: 0 built; 1 it does not compile, or is no backend; 2 there is no project, or no cargo.")]
pub struct Arguments {
    /// The project's folder
    #[arg(long, default_value = ".")]
    project: PathBuf,
    /// One JSON object on standard output
    #[arg(long)]
    json: bool,
    /// For cargo
    #[arg(last = true, value_name = "OPTION")]
    cargo: Vec<String>,
}

/// The part of `cargo metadata` that is used.
#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    target_directory: PathBuf,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    manifest_path: PathBuf,
}

struct Project {
    folder: PathBuf,
    name: String,
    target: PathBuf,
}

fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

impl Project {
    fn find(folder: &Path) -> Outcome<Self> {
        let unable = |what: &dyn std::fmt::Display| Failure::unable(format!("{}: {what}", folder.display()));
        let manifest = folder.join("Cargo.toml").canonicalize().map_err(|_| unable(&"no Cargo.toml, so no project"))?;
        let mut metadata = cargo();
        metadata.args(["metadata", "--no-deps", "--format-version", "1", "--manifest-path"]).arg(&manifest);
        let output = metadata.output().map_err(|error| Failure::unable(format!("cargo can not be run: {error}")))?;
        if !output.status.success() {
            return Err(unable(&String::from_utf8_lossy(&output.stderr).trim()));
        }
        let metadata: Metadata = serde_json::from_slice(&output.stdout).map_err(|error| unable(&error))?;
        let package = metadata.packages.into_iter().find(|package| package.manifest_path == manifest);
        let name = package.ok_or_else(|| unable(&"its Cargo.toml has no package"))?.name;
        Ok(Project { folder: folder.to_owned(), name, target: metadata.target_directory })
    }

    fn component(&self) -> PathBuf {
        self.folder.join(format!("{}.wasm", self.name))
    }
}

/// The component that `build` makes of the project in a folder.
pub fn component_of_project(folder: &Path) -> Outcome<PathBuf> {
    let component = Project::find(folder)?.component();
    if component.is_file() {
        return Ok(component);
    }
    Err(Failure::unable(format!("{} is not there yet: kv-store build makes it", component.display())))
}

pub fn run(arguments: &Arguments) -> Outcome {
    let project = Project::find(&arguments.project)?;
    let mut build = cargo();
    build.current_dir(&project.folder).args(["build", "--release", "--target", TARGET]).args(&arguments.cargo);
    // Standard output is for the result.
    build.stdout(std::io::stderr());
    let status = build.status().map_err(|error| Failure::unable(format!("cargo can not be run: {error}")))?;
    if !status.success() {
        let message = format!("cargo build failed; where it lacks the target: rustup target add {TARGET}");
        return Err(Failure::not(message));
    }
    let module = project.target.join(TARGET).join("release").join(format!("{}.wasm", project.name.replace('-', "_")));
    let bytes = std::fs::read(&module).map_err(|error| Failure::not(format!("{}: {error}", module.display())))?;
    let component = ComponentEncoder::default().validate(true).module(&bytes).and_then(|encoder| encoder.encode());
    let component = component.map_err(|error| Failure::not(format!("it makes no component: {error:#}")))?;
    let path = project.component();
    std::fs::write(&path, &component).map_err(|error| Failure::unable(format!("{}: {error}", path.display())))?;
    if arguments.json {
        show::json(&serde_json::json!({ "component": path, "bytes": component.len() }));
    } else {
        println!("made {}, {}", path.display(), show::bytes(component.len() as u64));
    }
    Ok(())
}
