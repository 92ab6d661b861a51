//! A guest project: the language that it is in, the name of its component, and how that is made.
//!
//! Cargo.toml tells it of a project in Rust, `backend.toml` of the others.

mod c;
mod javascript;
mod python;
mod rust;
mod tool;

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use wit_component::ComponentEncoder;

use crate::check::Stores;
use crate::failure::{Failure, Outcome};

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Language {
    Rust,
    C,
    Javascript,
    Python,
    /// Not supported yet: the message says what is missing.
    Go,
}

impl Language {
    pub const GO: &str = "there is no template for Go yet: components in Go need TinyGo, which is in none of the package registries \
        that the other templates build with; take c, javascript, python or rust";

    /// As `--language` and `backend.toml` have it.
    pub fn name(self) -> &'static str {
        match self {
            Language::Rust => "rust",
            Language::C => "c",
            Language::Javascript => "javascript",
            Language::Python => "python",
            Language::Go => "go",
        }
    }

    /// The file that holds the backend.
    pub fn source(self) -> &'static str {
        match self {
            Language::Rust => "src/lib.rs",
            Language::C => "src/store.c",
            Language::Javascript => "src/store.js",
            Language::Python => "src/store.py",
            Language::Go => "store.go",
        }
    }
}

/// Whether this can be the name of a backend: that of its scheme, its component and its package.
pub fn is_name(name: &str) -> bool {
    let tame = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    name.starts_with(|c: char| c.is_ascii_lowercase()) && name.chars().all(tame) && !name.ends_with('-')
}

/// `backend.toml`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Description {
    name: String,
    language: Language,
    /// Where `check` has it store things. None: what it imports tells.
    stores: Option<Stores>,
    /// What it would like to be granted, for the stamp.
    #[serde(default)]
    wishes: Vec<String>,
}

pub struct Project {
    pub folder: PathBuf,
    pub name: String,
    pub language: Language,
    pub stores: Option<Stores>,
    wishes: Vec<String>,
}

/// What `build` hands to the tool of the language.
pub struct Tools<'a> {
    /// For cargo, the C compiler, componentize-js or componentize-py.
    pub options: &'a [String],
}

impl Project {
    pub fn find(folder: &Path) -> Outcome<Self> {
        let unable = |what: &dyn std::fmt::Display| Failure::unable(format!("{}: {what}", folder.display()));
        let file = folder.join("backend.toml");
        if !file.exists() {
            if !folder.join("Cargo.toml").exists() {
                return Err(unable(&"no Cargo.toml and no backend.toml, so no project; kv-store new makes one"));
            }
            let name = rust::package(folder)?.0;
            return Ok(Project {
                folder: folder.to_owned(),
                name,
                language: Language::Rust,
                stores: None,
                wishes: Vec::new(),
            });
        }
        let unable = |what: &dyn std::fmt::Display| Failure::unable(format!("{}: {what}", file.display()));
        let text = std::fs::read_to_string(&file).map_err(|error| unable(&error))?;
        let described: Description =
            toml::from_str(&text).map_err(|error| unable(&error.to_string().trim().replace('\n', " ")))?;
        if !is_name(&described.name) {
            return Err(unable(&format!("{:?} can not be a backend's name", described.name)));
        }
        let Description { name, language, stores, wishes } = described;
        Ok(Project { folder: folder.to_owned(), name, language, stores, wishes })
    }

    /// Where `build` puts the component.
    pub fn component(&self) -> PathBuf {
        self.folder.join(format!("{}.wasm", self.name))
    }

    /// The component's bytes.
    pub fn build(&self, tools: &Tools) -> Outcome<Vec<u8>> {
        let component = match self.language {
            Language::Rust => return rust::build(self, tools),
            Language::C => c::build(self, tools)?,
            Language::Javascript => javascript::build(self, tools)?,
            Language::Python => python::build(self, tools)?,
            Language::Go => return Err(Failure::unable(Language::GO)),
        };
        Ok(self.stamped(component))
    }

    /// Where bindings, logs and what is half made lie.
    fn made(&self) -> Outcome<PathBuf> {
        let made = self.folder.join("build");
        std::fs::create_dir_all(&made)
            .map_err(|error| Failure::unable(format!("{}: {error}", made.display())))
            .map(|()| made)
    }

    /// The component with the custom section in which the SDK for Rust says the same.
    fn stamped(&self, mut component: Vec<u8>) -> Vec<u8> {
        let mut lines = vec![
            format!("component: {}", self.name),
            format!("sdk: kv-store build {}", env!("CARGO_PKG_VERSION")),
            "contract: kv-store:backend@1.0.0".to_owned(),
        ];
        lines.extend(self.wishes.iter().map(|wish| format!("wish: {}", wish.replace('\n', " "))));
        let data = (lines.join("\n") + "\n").into_bytes();
        use wasm_encoder::ComponentSection;
        wasm_encoder::CustomSection { name: "kv-store-backend".into(), data: data.into() }
            .append_to_component(&mut component);
        component
    }
}

/// A component of a core module. One whose libc speaks WASI 0.1 gets the adapter to 0.2.
fn componentize(module: &[u8]) -> Outcome<Vec<u8>> {
    use wasi_preview1_component_adapter_provider as preview1;
    let component = ComponentEncoder::default()
        .validate(true)
        .module(module)
        .and_then(|encoder| {
            let adapter = preview1::WASI_SNAPSHOT_PREVIEW1_REACTOR_ADAPTER;
            encoder.adapter(preview1::WASI_SNAPSHOT_PREVIEW1_ADAPTER_NAME, adapter)
        })
        .and_then(|encoder| encoder.encode());
    component.map_err(|error| Failure::not(format!("build: cannot make a component of the module: {error:#}")))
}

/// Write a component, whole or not at all.
pub fn write(path: &Path, bytes: &[u8]) -> Outcome {
    let unfinished = path.with_extension("wasm.unfinished");
    let written = std::fs::write(&unfinished, bytes).and_then(|()| std::fs::rename(&unfinished, path));
    written.map_err(|error| Failure::unable(format!("{}: {error}", path.display())))
}
