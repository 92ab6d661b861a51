//! What a component's file says of itself, without running any of it.

use std::path::Path;

use wasmparser::{Parser, Payload};

use crate::failure::{Failure, Outcome};

/// The names of the interfaces that a component imports.
pub fn imports(path: &Path) -> Outcome<Vec<String>> {
    let unable = |error: &dyn std::fmt::Display| Failure::unable(format!("{}: {error}", path.display()));
    let bytes = std::fs::read(path).map_err(|error| unable(&error))?;
    let (mut names, mut depth) = (Vec::new(), 0_usize);
    for payload in Parser::new(0).parse_all(&bytes) {
        match payload.map_err(|error| unable(&error))? {
            Payload::ModuleSection { .. } | Payload::ComponentSection { .. } => depth += 1,
            Payload::End(_) => depth = depth.saturating_sub(1),
            Payload::ComponentImportSection(section) if depth == 0 => {
                for import in section {
                    names.push(import.map_err(|error| unable(&error))?.name.name.to_owned());
                }
            }
            _ => {}
        }
    }
    Ok(names)
}

/// What a component wants to reach, by what it imports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    Nothing,
    Directory,
    Server,
}

pub fn reach(path: &Path) -> Outcome<Reach> {
    let imports = imports(path)?;
    let any = |names: &[&str]| imports.iter().any(|import| names.iter().any(|name| import.starts_with(name)));
    Ok(if any(&["kv-store:backend/net", "wasi:sockets/"]) {
        Reach::Server
    } else if any(&["kv-store:backend/files", "wasi:filesystem/"]) {
        Reach::Directory
    } else {
        Reach::Nothing
    })
}
