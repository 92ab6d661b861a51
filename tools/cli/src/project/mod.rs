//! A guest project: the language that it is in, the name of its component, and how that is made.
//!
//! Cargo.toml tells it of a project in Rust, `backend.toml` of the others.

mod c;
mod javascript;
mod python;
mod rust;
mod tool;

use std::num::NonZeroU16;
use std::path::{Path, PathBuf};

use kv_store_wasm::StoreUri;
use serde::{Deserialize, Serialize};
use wit_component::ComponentEncoder;

use crate::contract;
use crate::failure::{Failure, Outcome};
use crate::stores::Stores;

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
    /// What it says of itself in the stamp: the schemes that it serves, each perhaps with `:` and a port, the port of the others, and where
    /// what a URI without a server names is.
    #[serde(default)]
    schemes: Vec<String>,
    port: Option<NonZeroU16>,
    endpoint: Option<String>,
    /// What it would like to be granted, for the stamp.
    #[serde(default)]
    wishes: Vec<String>,
}

impl Description {
    /// Why nothing would come of what it says. The host ignores what it does not understand.
    fn check(&self) -> Result<(), String> {
        if !is_name(&self.name) {
            return Err(format!("{:?} can not be a backend's name", self.name));
        }
        let is_scheme = |scheme: &str| StoreUri::parse(&format!("{scheme}://")).is_ok_and(|uri| uri.scheme() == scheme);
        let is_port = |port: &str| port.parse::<NonZeroU16>().is_ok() && !port.starts_with('+');
        let mut lists_its_name = self.schemes.is_empty();
        for entry in &self.schemes {
            let (scheme, port) =
                entry.split_once(':').map_or((entry.as_str(), None), |(scheme, port)| (scheme, Some(port)));
            if !is_scheme(scheme) || !port.is_none_or(is_port) {
                return Err(format!("schemes: {entry:?} is no scheme, nor one with a port (\"acmes:7443\")"));
            }
            lists_its_name |= scheme == self.name;
        }
        if let Some(endpoint) = self.endpoint.as_ref().filter(|endpoint| !kv_store_wasm::is_endpoint(endpoint)) {
            return Err(format!(
                "endpoint: {endpoint:?} is not https://HOST[:PORT], where {{OPTION}} may stand in the host"
            ));
        }
        if self.schemes.len() > MAX_SCHEMES {
            return Err(format!("schemes: a component lists {MAX_SCHEMES} at most"));
        }
        if !lists_its_name {
            return Err(format!(
                "schemes: {:?} is missing; without it the host takes no notice of the others",
                self.name
            ));
        }
        Ok(())
    }
}

/// Those that the host reads.
const MAX_SCHEMES: usize = 16;

pub struct Project {
    pub folder: PathBuf,
    pub name: String,
    pub language: Language,
    pub stores: Option<Stores>,
    schemes: Vec<String>,
    port: Option<NonZeroU16>,
    endpoint: Option<String>,
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
                schemes: Vec::new(),
                port: None,
                endpoint: None,
                wishes: Vec::new(),
            });
        }
        let unable = |what: &dyn std::fmt::Display| Failure::unable(format!("{}: {what}", file.display()));
        let text = std::fs::read_to_string(&file).map_err(|error| unable(&error))?;
        let described: Description =
            toml::from_str(&text).map_err(|error| unable(&error.to_string().trim().replace('\n', " ")))?;
        described.check().map_err(|why| unable(&why))?;
        let Description { name, language, stores, schemes, port, endpoint, wishes } = described;
        Ok(Project { folder: folder.to_owned(), name, language, stores, schemes, port, endpoint, wishes })
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
            format!("contract: {}", contract::NAME),
        ];
        if !self.schemes.is_empty() {
            lines.push(format!("schemes: {}", self.schemes.join(" ")));
        }
        lines.extend(self.port.map(|port| format!("port: {port}")));
        lines.extend(self.endpoint.as_ref().map(|endpoint| format!("endpoint: {endpoint}")));
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A project with these lines in its `backend.toml`, or why it is none.
    fn project(lines: &str) -> Result<Project, String> {
        let folder = tempfile::tempdir().unwrap();
        let text = format!("name = 'acme'\nlanguage = 'c'\n{lines}");
        std::fs::write(folder.path().join("backend.toml"), text).unwrap();
        Project::find(folder.path()).map_err(|failure| match failure {
            Failure::Unable(why) => why,
            other => format!("{other:?}"),
        })
    }

    #[test]
    fn what_a_project_says_of_its_schemes_is_in_its_component() {
        let stamped = |lines: &str| {
            let component = project(lines).unwrap().stamped(wasm_encoder::Component::new().finish());
            let file = tempfile::NamedTempFile::new().unwrap();
            std::fs::write(file.path(), component).unwrap();
            let inspected = kv_store_wasm::inspect(file.path()).unwrap();
            let listed = inspected.schemes.iter().map(|listed| (listed.scheme.clone(), listed.port));
            listed.collect::<Vec<_>>()
        };
        let listed = stamped("schemes = ['acme', 'acmes:7443']\nport = 7000\nwishes = ['peace']");
        assert_eq!(listed, [("acme".to_owned(), Some(7000)), ("acmes".to_owned(), Some(7443))]);
        assert_eq!(stamped("wishes = []"), []);
    }

    #[test]
    fn schemes_that_the_host_would_ignore_are_refused() {
        for (lines, said) in [
            ("schemes = ['Acme']", "\"Acme\" is no scheme"),
            ("schemes = ['acme', 'kv-store-x']", "is no scheme"),
            ("schemes = ['acme', 'a/b']", "is no scheme"),
            ("schemes = ['acme:0']", "is no scheme"),
            ("schemes = ['acme:+7']", "is no scheme"),
            ("schemes = ['acmes']", "\"acme\" is missing"),
            ("endpoint = 'acme.example'", "endpoint: \"acme.example\" is not https://"),
            ("port = 0", "port"),
            ("port = 65536", "port"),
        ] {
            let why = project(lines).map(|_| ()).unwrap_err();
            assert!(why.contains(said) && why.contains("backend.toml"), "{lines}: {why}");
        }
        let many: Vec<String> = (0..20).map(|number| format!("'a{number}'")).collect();
        assert!(project(&format!("schemes = [{}]", many.join(","))).map(|_| ()).unwrap_err().contains("16 at most"));
    }
}
