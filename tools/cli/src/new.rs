//! `new`: a guest project that builds and passes `check` as it is.

use std::path::{Path, PathBuf};

use crate::failure::{Failure, Outcome};
use crate::project::{self, Language};
use crate::sdk::{self, SDK};
use crate::show;

/// Create a project for a backend, in a new folder
///
/// It contains a small backend that works, the contract, and for Rust the SDK. It passes `kv-store check` as it is.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  kv-store new acme && cd acme && kv-store build && kv-store check\n  kv-store new acme --language python\n  kv-store new acme --kind http\n\n\
    Exit codes: 0 made; 2 the name makes no sense, or the folder is there or can not be written."
)]
pub struct NewArguments {
    /// The backend's name and scheme: a lower-case letter, then lower-case letters, digits and '-'
    name: String,
    /// The language of the backend
    #[arg(long, value_enum, default_value = "rust")]
    language: Language,
    /// What the template stores things in
    #[arg(long, value_enum, default_value = "memory")]
    kind: TemplateKind,
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
enum TemplateKind {
    /// Keeps everything in the host's memory
    Memory,
    /// Files in the directory that the URI names
    Files,
    /// Objects of a server that takes PUT, GET, HEAD and DELETE over HTTP
    Http,
}

impl TemplateKind {
    /// The backend's source, in a language that has templates.
    fn source(self, language: Language) -> Outcome<&'static str> {
        Ok(match (language, self) {
            (Language::Rust, TemplateKind::Memory) => include_str!("../template/lib.rs.in"),
            (Language::Rust, TemplateKind::Files) => include_str!("../template/files.rs.in"),
            // The example of docs/http-backends.md, which the conformance suite runs on.
            (Language::Rust, TemplateKind::Http) => include_str!("../../../tests/guests/objects/src/lib.rs"),
            (Language::C, TemplateKind::Memory) => include_str!("../template/c/memory.c.in"),
            (Language::C, TemplateKind::Files) => include_str!("../template/c/files.c.in"),
            (Language::C, TemplateKind::Http) => include_str!("../template/c/http.c.in"),
            (Language::Javascript, TemplateKind::Memory) => include_str!("../template/javascript/memory.js.in"),
            (Language::Javascript, TemplateKind::Files) => include_str!("../template/javascript/files.js.in"),
            (Language::Javascript, TemplateKind::Http) => include_str!("../template/javascript/http.js.in"),
            (Language::Python, TemplateKind::Memory) => include_str!("../template/python/memory.py.in"),
            (Language::Python, TemplateKind::Files) => include_str!("../template/python/files.py.in"),
            (Language::Python, TemplateKind::Http) => include_str!("../template/python/http.py.in"),
            (Language::Go, _) => return Err(Failure::unable(Language::GO)),
        })
    }

    /// For wit/world.wit and backend.toml, which Rust does not have: what the source imports beside `payloads` and `system`, where `check` has
    /// it store things, and what it wishes for.
    fn described(self) -> [&'static str; 3] {
        match self {
            TemplateKind::Memory => ["", "stores = \"names\"", ""],
            TemplateKind::Files => {
                ["\n  import kv-store:backend/files@1.1.0;", "stores = \"directories\"", "\"the directory in the URI\""]
            }
            TemplateKind::Http => [
                "\n  import kv-store:backend/http@1.1.0;",
                "# stores = \"@NAME@://127.0.0.1:8080/check\"",
                "\"the server in the URI\"",
            ],
        }
    }

    /// For the README: what the source does, and how a URI of it looks.
    fn explained(self) -> [&'static str; 2] {
        match self {
            TemplateKind::Memory => ["keeps everything in the host's memory", "@NAME@://"],
            TemplateKind::Files => ["keeps files in the directory that the URI names", "@NAME@:///var/cache/kv"],
            TemplateKind::Http => {
                ["keeps objects on a server that takes PUT, GET, HEAD and DELETE", "@NAME@://127.0.0.1:8080/prefix"]
            }
        }
    }

    /// What `check` needs to be told.
    fn check(self, name: &str) -> String {
        match self {
            TemplateKind::Memory | TemplateKind::Files => "kv-store check".to_owned(),
            TemplateKind::Http => format!("kv-store check --uri {name}://127.0.0.1:8080/check   # a server of yours"),
        }
    }
}

type Files = &'static [(&'static str, &'static str)];

const RUST: Files = &[
    ("Cargo.toml", include_str!("../template/Cargo.toml.in")),
    ("README.md", include_str!("../template/README.md.in")),
    (".gitignore", "/target\n/*.wasm\n"),
];

const C: Files = &[(".gitignore", "/build\n/*.wasm\n")];

const JAVASCRIPT: Files = &[
    ("package.json", include_str!("../template/javascript/package.json.in")),
    (".gitignore", "/build\n/node_modules\n/*.wasm\n"),
];

const PYTHON: Files = &[
    ("requirements.txt", include_str!("../template/python/requirements.txt.in")),
    (".gitignore", "/build\n/.venv\n/*.wasm\n__pycache__\n"),
];

/// What the sources of other kinds than `memory` import.
const JAVASCRIPT_KEYS: Files = &[("src/keys.js", include_str!("../template/javascript/keys.js"))];
const PYTHON_KEYS: Files = &[("src/keys.py", include_str!("../template/python/keys.py"))];

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

fn files(language: Language, kind: TemplateKind) -> Outcome<Vec<(&'static str, &'static str)>> {
    let source = [(language.source(), kind.source(language)?)];
    let (own, keys) = match language {
        Language::Rust => return Ok([RUST, &source, SDK].concat()),
        Language::C | Language::Go => (C, [].as_slice()),
        Language::Javascript => (JAVASCRIPT, JAVASCRIPT_KEYS),
        Language::Python => (PYTHON, PYTHON_KEYS),
    };
    let keys = if kind == TemplateKind::Memory { &[] } else { keys };
    Ok([&source, keys, own, COMMON, &[(sdk::CONTRACT_OF_OTHERS, sdk::contract())]].concat())
}

pub fn run(arguments: &NewArguments) -> Outcome {
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
        let [imports, stores, wishes] = arguments.kind.described();
        let values = [
            ("@IMPORTS@", imports),
            ("@STORES@", stores),
            ("@WISHES@", wishes),
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
