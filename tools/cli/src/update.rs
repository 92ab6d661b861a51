//! `update`: the SDK and the contract of a guest project, as this program has them.

use std::path::{Path, PathBuf};

use crate::failure::{Failure, Outcome};
use crate::project::{Language, Project};
use crate::sdk::{self, CONTRACT_OF_OTHERS, SDK};
use crate::show;

/// Update the SDK of a project that `new` made
///
/// Replaces the contract by the version of this program; in a Rust project also sdk/, and the version in Cargo.toml. In other
/// projects the version of the contract's interfaces is written anew where wit/*.wit and src/*.js name them. Nothing else of your
/// sources is changed; CHANGELOG.md of kv-store-wasm says what you may have to change in them.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  kv-store update && kv-store build && kv-store check\n\n\
    Exit codes: 0 updated, or nothing had changed; 2 there is no such project, or it can not be written.")]
pub struct UpdateArguments {
    /// The project's folder
    #[arg(long, default_value = ".")]
    project: PathBuf,
    /// One JSON object on standard output
    #[arg(long)]
    pub json: bool,
}

pub fn run(arguments: &UpdateArguments) -> Outcome {
    let folder = &arguments.project;
    let changed = match Project::find(folder)?.language {
        Language::Rust => update_sdk(folder)?,
        _ => {
            let contract = (PathBuf::from(CONTRACT_OF_OTHERS), sdk::contract().to_owned());
            write_changed(folder, std::iter::once(contract).chain(renamed(folder)))?
        }
    };
    if arguments.json {
        show::json(&serde_json::json!({ "project": folder, "sdk": env!("CARGO_PKG_VERSION"), "changed": changed }));
    } else {
        println!("the contract is that of kv-store {}: {} files changed", env!("CARGO_PKG_VERSION"), changed.len());
    }
    Ok(())
}

fn unable(path: &Path, error: std::io::Error) -> Failure {
    Failure::unable(format!("update {}: {error}", path.display()))
}

/// The SDK of a project in Rust, with the contract in it. Returns what has changed.
fn update_sdk(folder: &Path) -> Outcome<Vec<PathBuf>> {
    let manifest = folder.join("Cargo.toml");
    let own = std::fs::read_to_string(&manifest).map_err(|error| unable(&manifest, error))?;
    let sdk = folder.join("sdk/src");
    if !sdk.is_dir() {
        let why = "no sdk/src, so no project that kv-store new made: update the SDK where its Cargo.toml names it";
        return Err(Failure::unable(format!("update {}: {why}", folder.display())));
    }
    let mut changed = Vec::new();
    // A file that the SDK no longer has would be compiled all the same.
    for entry in std::fs::read_dir(&sdk).map_err(|error| unable(&sdk, error))?.flatten() {
        let path = Path::new("sdk/src").join(entry.file_name());
        if entry.path().is_file() && !SDK.iter().any(|(known, _)| Path::new(known) == path) {
            std::fs::remove_file(entry.path()).map_err(|error| unable(&path, error))?;
            changed.push(path);
        }
    }
    // Where the contract lay in projects of 0.2.0.
    let former = PathBuf::from("wit/backend.wit");
    if folder.join(&former).exists() {
        std::fs::remove_file(folder.join(&former)).map_err(|error| unable(&former, error))?;
        // Unless there is more in it.
        let _ = std::fs::remove_dir(folder.join("wit"));
        changed.push(former);
    }
    let files = SDK.iter().map(|(path, text)| (PathBuf::from(path), (*text).to_owned()));
    changed.extend(write_changed(folder, files.chain([(PathBuf::from("Cargo.toml"), with_version(&own))]))?);
    Ok(changed)
}

/// Write files below a folder. Returns those that were other before.
fn write_changed(folder: &Path, files: impl IntoIterator<Item = (PathBuf, String)>) -> Outcome<Vec<PathBuf>> {
    let mut changed = Vec::new();
    for (path, text) in files {
        let at = folder.join(&path);
        if std::fs::read(&at).is_ok_and(|there| there == text.as_bytes()) {
            continue;
        }
        let made = at.parent().map_or(Ok(()), std::fs::create_dir_all);
        made.and_then(|()| std::fs::write(&at, text)).map_err(|error| unable(&at, error))?;
        changed.push(path);
    }
    Ok(changed)
}

/// The sources of a project that name interfaces of the contract, with its version.
fn renamed(folder: &Path) -> Vec<(PathBuf, String)> {
    let files = ["wit", "src", ""].into_iter().flat_map(|below| {
        let entries = std::fs::read_dir(folder.join(below)).into_iter().flatten().flatten();
        entries.map(move |entry| Path::new(below).join(entry.file_name()))
    });
    let names_them = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "wit" || extension == "js");
    let sources = files.filter(names_them).filter_map(|path| {
        let text = std::fs::read_to_string(folder.join(&path)).ok()?;
        Some((path, of_version(&text, contract_version())))
    });
    sources.collect()
}

/// The version in the contract's package line.
fn contract_version() -> &'static str {
    let line = sdk::contract().lines().find_map(|line| line.strip_prefix("package kv-store:backend@"));
    line.and_then(|version| version.strip_suffix(';')).unwrap_or_default()
}

/// A text in which each interface of the contract has this version.
fn of_version(text: &str, version: &str) -> String {
    const PACKAGE: &str = "kv-store:backend/";
    let mut parts = text.split(PACKAGE);
    let mut changed = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        changed.push_str(PACKAGE);
        let named = part.split_once('@').filter(|(name, rest)| {
            name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-') && rest.starts_with("1.")
        });
        match named {
            Some((name, rest)) => {
                let behind = rest.trim_start_matches(|char: char| char.is_ascii_digit() || char == '.');
                changed.extend([name, "@", version, behind]);
            }
            None => changed.push_str(part),
        }
    }
    changed
}

/// The project's Cargo.toml with the version that the SDK inherits: the first one below `[workspace.package]`.
fn with_version(text: &str) -> String {
    let mut within = false;
    let lines = text.split_inclusive('\n').map(|line| {
        if line.starts_with('[') {
            within = line.trim() == "[workspace.package]";
        }
        match within && line.starts_with("version = ") {
            true => format!("version = \"{}\"\n", env!("CARGO_PKG_VERSION")),
            false => line.to_owned(),
        }
    });
    lines.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interfaces_of_the_contract_get_its_version_and_nothing_else_does() {
        let text = "import kv-store:backend/net@1.0.0;\nimport wasi:io/poll@0.2.0;\nimport { a } from 'kv-store:backend/store-types@1.0.12';\n\
                    // kv-store:backend/ is no name@1.0.0, nor is kv-store:backend/store@2.0.0\n";
        let expected = text.replace("net@1.0.0", "net@1.7.0").replace("store-types@1.0.12", "store-types@1.7.0");
        assert_eq!(of_version(text, "1.7.0"), expected);
        assert_eq!(contract_version(), "1.1.0");
    }

    #[test]
    fn only_the_version_that_the_sdk_inherits_is_changed() {
        let text = "[package]\nversion = \"7.0.0\"\n[workspace.package]\nversion = \"0.0.1\"\nedition = \"2024\"\n";
        let version = env!("CARGO_PKG_VERSION");
        let expected = text.replace("0.0.1", version);
        assert_eq!(with_version(text), expected);
        assert_eq!(with_version("[package]\n"), "[package]\n");
    }
}
