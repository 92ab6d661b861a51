//! `new`: a guest project that builds and passes `check` as it is.

use std::path::{Path, PathBuf};

use crate::failure::{Failure, Outcome};
use crate::project::{self, Language};
use crate::show;

/// Start a backend: a project in a new folder
///
/// It holds a backend that keeps everything in the host's memory, with the contract beside it (and the SDK, for Rust), and passes
/// `kv-store check` as it is.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  kv-store new acme && cd acme && kv-store build && kv-store check\n  kv-store new acme --language python\n\n\
    Exit codes: 0 made; 2 the name makes no sense, or the folder is there or can not be written."
)]
pub struct Arguments {
    /// The backend's name and scheme: a lower-case letter, then lower-case letters, digits and '-'
    name: String,
    /// The language to write it in
    #[arg(long, value_enum, default_value = "rust")]
    language: Language,
    /// Where to make the folder NAME
    #[arg(long, default_value = ".", value_name = "FOLDER")]
    r#in: PathBuf,
    /// One JSON object on standard output
    #[arg(long)]
    pub json: bool,
}

/// The SDK and the contract, as this program was built with them.
pub const SDK: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/sdk.rs"));
/// Where the contract lies among them.
const CONTRACT: &str = "wit/backend.wit";

type Files = &'static [(&'static str, &'static str)];

const RUST: Files = &[
    ("Cargo.toml", include_str!("../template/Cargo.toml.in")),
    ("README.md", include_str!("../template/README.md.in")),
    (".gitignore", "/target\n/*.wasm\n"),
    ("src/lib.rs", include_str!("../template/lib.rs.in")),
];

const C: Files = &[("src/store.c", include_str!("../template/c/store.c.in")), (".gitignore", "/build\n/*.wasm\n")];

const JAVASCRIPT: Files = &[
    ("src/store.js", include_str!("../template/javascript/store.js.in")),
    ("package.json", include_str!("../template/javascript/package.json.in")),
    (".gitignore", "/build\n/node_modules\n/*.wasm\n"),
];

const PYTHON: Files = &[
    ("src/store.py", include_str!("../template/python/store.py.in")),
    ("requirements.txt", include_str!("../template/python/requirements.txt.in")),
    (".gitignore", "/build\n/.venv\n/*.wasm\n__pycache__\n"),
];

/// What a project in another language than Rust has beside its own files.
const COMMON: Files = &[
    ("backend.toml", include_str!("../template/backend.toml.in")),
    ("README.md", include_str!("../template/README-other.md.in")),
    ("wit/world.wit", include_str!("../template/world.wit.in")),
];

/// How the language's tools are installed in the project, for its README and for what is said last.
fn setup(language: Language) -> &'static str {
    match language {
        Language::Rust | Language::Go => "rustup target add wasm32-unknown-unknown",
        Language::C => {
            "apt-get install clang-19 lld-19 libclang-rt-19-dev-wasm32 wasi-libc   # or: pip install ziglang"
        }
        Language::Javascript => "npm install",
        Language::Python => "python3 -m venv .venv && .venv/bin/pip install -r requirements.txt",
    }
}

fn files(language: Language) -> Outcome<Vec<(&'static str, &'static str)>> {
    let own = match language {
        Language::Rust => return Ok([RUST, SDK].concat()),
        Language::C => C,
        Language::Javascript => JAVASCRIPT,
        Language::Python => PYTHON,
        Language::Go => return Err(Failure::unable(Language::GO)),
    };
    let contract = SDK.iter().filter(|(path, _)| *path == CONTRACT);
    let contract = contract.map(|(_, text)| ("wit/deps/kv-store-backend/backend.wit", *text));
    Ok(own.iter().chain(COMMON).copied().chain(contract).collect())
}

pub fn run(arguments: &Arguments) -> Outcome {
    let (name, language) = (arguments.name.as_str(), arguments.language);
    if !project::is_name(name) {
        return Err(Failure::unable(format!(
            "{name:?} can not be a backend's name: a lower-case letter, then lower-case letters, digits and '-'"
        )));
    }
    let files = files(language)?;
    let folder = arguments.r#in.join(name);
    let unable = |path: &Path, error: std::io::Error| Failure::unable(format!("{}: {error}", path.display()));
    std::fs::create_dir(&folder).map_err(|error| unable(&folder, error))?;
    let filled = |text: &str| {
        let values = [
            ("@NAME@", name),
            ("@SDK_VERSION@", env!("CARGO_PKG_VERSION")),
            ("@LANGUAGE@", language.name()),
            ("@SOURCE@", language.source()),
            ("@SETUP@", setup(language)),
        ];
        values.iter().fold(text.to_owned(), |text, (key, value)| text.replace(key, value))
    };
    for (path, text) in files {
        // The SDK and the contract stay as they are.
        let text = if SDK.iter().any(|(_, there)| *there == text) { text.to_owned() } else { filled(text) };
        let path = folder.join(path);
        let made = path.parent().map_or(Ok(()), std::fs::create_dir_all);
        made.and_then(|()| std::fs::write(&path, text)).map_err(|error| unable(&path, error))?;
    }
    if arguments.json {
        show::json(&serde_json::json!({ "name": name, "folder": folder, "language": language }));
    } else {
        let shown = folder.display();
        println!("made {shown}; now:\n  cd {shown}\n  {}\n  kv-store build\n  kv-store check", setup(language));
    }
    Ok(())
}
