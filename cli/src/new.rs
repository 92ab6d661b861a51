//! `new`: a guest project that builds and passes `check` as it is.

use std::path::{Path, PathBuf};

use crate::failure::{Failure, Outcome};
use crate::project::{self, Language};
use crate::show;

/// Create a project for a backend, in a new folder
///
/// It contains a small backend that works, the contract, and for Rust the SDK. It passes `kv-store check` as it is.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  kv-store new acme && cd acme && kv-store build && kv-store check\n  kv-store new acme --language python\n  kv-store new acme --kind http\n\n\
    Exit codes: 0 made; 2 the name makes no sense, or the folder is there or can not be written."
)]
pub struct Arguments {
    /// The backend's name and scheme: a lower-case letter, then lower-case letters, digits and '-'
    name: String,
    /// The language of the backend
    #[arg(long, value_enum, default_value = "rust")]
    language: Language,
    /// What the template stores things in; languages other than Rust have only `memory`
    #[arg(long, value_enum, default_value = "memory")]
    kind: Kind,
    /// The folder in which to create the folder NAME
    #[arg(long, default_value = ".", value_name = "FOLDER")]
    r#in: PathBuf,
    /// One JSON object on standard output
    #[arg(long)]
    pub json: bool,
}

/// What a new backend does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
enum Kind {
    /// Keeps everything in the host's memory
    Memory,
    /// Files in the directory that the URI names
    Files,
    /// Objects of a server that takes PUT, GET, HEAD and DELETE over HTTP
    Http,
}

impl Kind {
    /// The backend's source, in Rust.
    fn rust(self) -> &'static str {
        match self {
            Kind::Memory => include_str!("../template/lib.rs.in"),
            Kind::Files => include_str!("../template/files.rs.in"),
            // The example of docs/http-backends.md, which the conformance suite runs on.
            Kind::Http => include_str!("../../tests/guests/objects/src/lib.rs"),
        }
    }

    /// For the README: what the source does, and how a URI of it looks.
    fn explained(self) -> [&'static str; 2] {
        match self {
            Kind::Memory => ["keeps everything in the host's memory", "@NAME@://"],
            Kind::Files => ["keeps files in the directory that the URI names", "@NAME@:///var/cache/kv"],
            Kind::Http => {
                ["keeps objects on a server that takes PUT, GET, HEAD and DELETE", "@NAME@://127.0.0.1:8080/prefix"]
            }
        }
    }

    /// What `check` needs to be told.
    fn check(self, name: &str) -> String {
        match self {
            Kind::Memory | Kind::Files => "kv-store check".to_owned(),
            Kind::Http => format!("kv-store check --uri {name}://127.0.0.1:8080/check   # a server of yours"),
        }
    }
}

/// The SDK and the contract, as this program was built with them.
pub const SDK: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/sdk.rs"));
/// Where the contract lies among them.
const CONTRACT: &str = "sdk/wit/backend.wit";
/// Where it lies in a project in another language than Rust.
pub const CONTRACT_OF_OTHERS: &str = "wit/deps/kv-store-backend/backend.wit";

pub fn contract() -> &'static str {
    SDK.iter().find(|(path, _)| *path == CONTRACT).map_or("", |(_, text)| *text)
}

type Files = &'static [(&'static str, &'static str)];

const RUST: Files = &[
    ("Cargo.toml", include_str!("../template/Cargo.toml.in")),
    ("README.md", include_str!("../template/README.md.in")),
    (".gitignore", "/target\n/*.wasm\n"),
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

fn files(language: Language, kind: Kind) -> Outcome<Vec<(&'static str, &'static str)>> {
    if language != Language::Rust && kind != Kind::Memory {
        let name = language.name();
        return Err(Failure::unable(format!(
            "there is no template of this kind for {name}: take --language rust, or --kind memory and put your storage system there"
        )));
    }
    let own = match language {
        Language::Rust => return Ok([RUST, &[("src/lib.rs", kind.rust())], SDK].concat()),
        Language::C => C,
        Language::Javascript => JAVASCRIPT,
        Language::Python => PYTHON,
        Language::Go => return Err(Failure::unable(Language::GO)),
    };
    Ok(own.iter().chain(COMMON).copied().chain([(CONTRACT_OF_OTHERS, contract())]).collect())
}

pub fn run(arguments: &Arguments) -> Outcome {
    let (name, language) = (arguments.name.as_str(), arguments.language);
    if !project::is_name(name) {
        return Err(Failure::unable(format!(
            "{name:?} can not be a backend's name: a lower-case letter, then lower-case letters, digits and '-'"
        )));
    }
    let files = files(language, arguments.kind)?;
    let folder = arguments.r#in.join(name);
    let unable = |path: &Path, error: std::io::Error| Failure::unable(format!("{}: {error}", path.display()));
    std::fs::create_dir(&folder).map_err(|error| unable(&folder, error))?;
    let check = arguments.kind.check(name);
    let filled = |text: &str| {
        let [does, uri] = arguments.kind.explained();
        let values = [
            ("@DOES@", does),
            ("@URI@", uri),
            ("@CHECK@", check.as_str()),
            ("objects://", "@NAME@://"),
            ("\"objects\"", "\"@NAME@\""),
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
        show::json(
            &serde_json::json!({ "name": name, "folder": folder, "language": language, "kind": arguments.kind }),
        );
    } else {
        let shown = folder.display();
        println!("made {shown}; now:\n  cd {shown}\n  {}\n  kv-store build\n  {check}", setup(language));
    }
    Ok(())
}
