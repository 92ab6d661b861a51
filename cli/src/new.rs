//! `new`: a guest project that builds and passes `check` as it is.

use std::path::{Path, PathBuf};

use crate::failure::{Failure, Outcome};
use crate::show;

/// Start a backend: a project in a new folder
///
/// It holds a backend in Rust that keeps everything in memory, with the SDK and the contract beside it, and passes
/// `kv-store check` as it is.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  kv-store new acme && cd acme && kv-store build && kv-store check\n\n\
    Exit codes: 0 made; 2 the name makes no sense, or the folder is there or can not be written.")]
pub struct Arguments {
    /// The backend's name and scheme: a lower-case letter, then lower-case letters, digits and '-'
    name: String,
    /// Where to make the folder NAME
    #[arg(long, default_value = ".", value_name = "FOLDER")]
    r#in: PathBuf,
    /// One JSON object on standard output
    #[arg(long)]
    json: bool,
}

/// The SDK and the contract, as this program was built with them.
const SDK: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/sdk.rs"));

pub fn run(arguments: &Arguments) -> Outcome {
    let name = arguments.name.as_str();
    let tame = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if !name.starts_with(|c: char| c.is_ascii_lowercase()) || !name.chars().all(tame) || name.ends_with('-') {
        return Err(Failure::unable(format!(
            "{name:?} can not be a backend's name: a lower-case letter, then lower-case letters, digits and '-'"
        )));
    }
    let folder = arguments.r#in.join(name);
    let unable = |path: &Path, error: std::io::Error| Failure::unable(format!("{}: {error}", path.display()));
    std::fs::create_dir(&folder).map_err(|error| unable(&folder, error))?;
    let own = [
        ("Cargo.toml", include_str!("../template/Cargo.toml.in").to_owned()),
        ("README.md", include_str!("../template/README.md.in").to_owned()),
        (".gitignore", "/target\n/*.wasm\n".to_owned()),
        ("src/lib.rs", include_str!("../../guests/memory/src/lib.rs").replace("memory://", "@NAME@://")),
    ];
    let own = own
        .into_iter()
        .map(|(path, text)| (path, text.replace("@NAME@", name).replace("@SDK_VERSION@", env!("CARGO_PKG_VERSION"))));
    for (path, text) in own.chain(SDK.iter().map(|(path, text)| (*path, text.to_string()))) {
        let path = folder.join(path);
        let made = path.parent().map_or(Ok(()), std::fs::create_dir_all);
        made.and_then(|()| std::fs::write(&path, text)).map_err(|error| unable(&path, error))?;
    }
    if arguments.json {
        show::json(&serde_json::json!({ "name": name, "folder": folder }));
    } else {
        println!("made {}; now:\n  cd {}\n  kv-store build\n  kv-store check", folder.display(), folder.display());
    }
    Ok(())
}
