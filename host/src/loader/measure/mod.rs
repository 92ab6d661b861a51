//! What can be told of a component without compiling it: what it imports and exports, its stamp, and how much of everything
//! it has that the compiler's time and memory grow with.
//!
//! Invariant: the time is linear in the length of the file, the memory is that of the longest list of names, and what is
//! refused is refused before the compiler, or wasmtime's own validation, has seen a byte.

mod function;
mod graph;
mod tally;

use wasmparser::{BinaryReaderError, Encoding, Parser, Payload, SectionLimited};

use crate::error::{Error, ErrorKind};
use crate::limits;
use graph::{Component, Scope};
use tally::Tally;

/// The custom section that the SDK writes.
pub(super) const STAMP: &str = "kv-store-backend";
/// Lines of a stamp that are read.
pub(super) const MAX_STAMP_LINES: usize = 100;
/// How often the pages that were read are given back.
const RELEASED_BYTES: usize = 8 << 20;

/// A component, seen from outside.
#[derive(Debug, Default)]
pub(crate) struct Measured {
    pub imports: Vec<String>,
    pub exports: Vec<String>,
    /// The lines of the stamp, `key: value`.
    pub stamp: Vec<(String, String)>,
    pub functions: u64,
    pub largest_function: u64,
    /// What an instance costs before it has run, beside its memories and tables: a million globals are 5 MB of component, and
    /// 16 MB in each core instance of it.
    pub instance_bytes: u64,
}

/// Read a component's outlines, and refuse what is over a bound. Nothing of it is run, nor compiled. `done_with` is told
/// now and then that the bytes before an offset are not needed any more.
pub(crate) fn measure(bytes: &[u8], done_with: impl Fn(usize)) -> Result<Measured, Error> {
    let mut walk = Walk::default();
    let mut released = 0;
    for payload in Parser::new(0).parse_all(bytes) {
        let payload = payload.map_err(broken)?;
        let end = end_of(&payload);
        walk.payload(payload)?;
        if end.is_some_and(|end| end > released + RELEASED_BYTES) {
            released = end.unwrap_or_default();
            done_with(released);
        }
    }
    Ok(Measured { functions: walk.tally.functions, largest_function: walk.tally.largest_function, ..walk.found })
}

/// Where the bytes of a payload that may be long end.
fn end_of(payload: &Payload) -> Option<usize> {
    match payload {
        Payload::CodeSectionEntry(body) => Some(body.range().end),
        Payload::DataSection(section) => Some(section.range().end),
        _ => None,
    }
}

fn broken(error: BinaryReaderError) -> Error {
    Error::invalid(format!("is not a valid component: {error}"))
}

/// `what` is more than `most`.
fn exceeds(what: &str, most: u64) -> Error {
    Error::new(
        ErrorKind::Exhausted,
        format!("has more than {most} {what}, the host's bound for compiling: make it smaller"),
    )
}

#[derive(Default)]
struct Walk {
    found: Measured,
    tally: Tally,
    /// The modules and components that are open, the outermost first.
    scopes: Vec<Scope>,
}

impl Walk {
    fn payload(&mut self, payload: Payload) -> Result<(), Error> {
        match payload {
            Payload::Version { encoding, .. } => self.begin(encoding),
            Payload::End(_) => self.end(),
            Payload::CodeSectionEntry(body) => self.tally.function(&body),
            Payload::CustomSection(section) if section.name() == STAMP => {
                self.stamp(section.data());
                Ok(())
            }
            // Its length costs nothing: wasmtime keeps names and debugging information for nobody.
            Payload::CustomSection(_) | Payload::CodeSectionStart { .. } => Ok(()),
            Payload::ModuleSection { .. } | Payload::ComponentSection { .. } => Ok(()),
            Payload::StartSection { .. } | Payload::DataCountSection { .. } => Ok(()),
            Payload::ComponentStartSection { .. } => Err(Error::invalid("has a start function of a component")),
            Payload::UnknownSection { .. } => Err(Error::invalid("has a section that this host does not know")),
            Payload::DataSection(section) => self.tally.data(&section),
            Payload::TypeSection(section) => self.tally.types(&section),
            Payload::CoreTypeSection(section) => self.tally.types(&section),
            Payload::ComponentTypeSection(section) => self.tally.types(&section),
            Payload::TagSection(section) => self.tally.outline(&section),
            Payload::ImportSection(section) => self.module_part(|tally, module| tally.imports(&section, module)),
            Payload::FunctionSection(section) => self.module_part(|tally, module| tally.definitions(&section, module)),
            Payload::TableSection(section) => self.module_part(|tally, module| tally.definitions(&section, module)),
            Payload::GlobalSection(section) => self.module_part(|tally, module| tally.definitions(&section, module)),
            Payload::MemorySection(section) => self.module_part(|tally, module| tally.memories(&section, module)),
            Payload::ExportSection(section) => self.module_part(|tally, module| tally.exports(&section, module)),
            Payload::ElementSection(section) => self.module_part(|tally, module| tally.elements(&section, module)),
            Payload::InstanceSection(section) => self.component_part(&section, Component::core_instance),
            Payload::ComponentInstanceSection(section) => self.component_part(&section, Component::instance),
            Payload::ComponentCanonicalSection(section) => self.component_part(&section, Component::canonical),
            Payload::ComponentAliasSection(section) => self.aliases(&section),
            Payload::ComponentImportSection(section) => {
                if self.scopes.len() == 1 {
                    name_each(&mut self.found.imports, &section, |import| import.name.name)?;
                }
                self.component_part(&section, Component::import)
            }
            Payload::ComponentExportSection(section) => {
                if self.scopes.len() == 1 {
                    name_each(&mut self.found.exports, &section, |export| export.name.name)?;
                }
                self.component_part(&section, Component::export)
            }
            _ => Err(Error::invalid("has a section that this host does not know")),
        }
    }

    fn begin(&mut self, encoding: Encoding) -> Result<(), Error> {
        if self.scopes.len() >= limits::MAX_COMPONENT_DEPTH {
            return Err(exceeds("components within each other", limits::MAX_COMPONENT_DEPTH as u64));
        }
        self.scopes.push(match encoding {
            Encoding::Module => Scope::Module(graph::Module::default()),
            Encoding::Component => Scope::Component(Component::default()),
        });
        self.tally.scope()
    }

    fn end(&mut self) -> Result<(), Error> {
        let ended = self.scopes.pop();
        match (ended, self.scopes.last_mut()) {
            (Some(Scope::Module(module)), Some(Scope::Component(parent))) => {
                parent.modules.push(Some(module));
                self.tally.heaviest_module = self.tally.heaviest_module.max(module.slots);
                Ok(())
            }
            (Some(Scope::Component(component)), Some(Scope::Component(parent))) => {
                parent.components.push(component.weight);
                Ok(())
            }
            (Some(Scope::Component(root)), None) => {
                self.found.instance_bytes = root.weight.instance_bytes();
                root.weight.check(self.tally.heaviest_module)
            }
            _ => Ok(()),
        }
    }

    fn module_part(
        &mut self,
        count: impl FnOnce(&mut Tally, &mut graph::Module) -> Result<(), Error>,
    ) -> Result<(), Error> {
        match self.scopes.last_mut() {
            Some(Scope::Module(module)) => count(&mut self.tally, module),
            _ => Err(Error::invalid("is not a valid component: a section of a module outside of one")),
        }
    }

    fn component_part<'a, T: wasmparser::FromReader<'a>>(
        &mut self,
        section: &SectionLimited<'a, T>,
        note: impl Fn(&mut Component, T) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.tally.outline(section)?;
        let Some(Scope::Component(component)) = self.scopes.last_mut() else {
            return Err(Error::invalid("is not a valid component: a section of a component outside of one"));
        };
        for item in section.clone() {
            note(component, item.map_err(broken)?)?;
            component.weight.check_so_far()?;
        }
        Ok(())
    }

    fn aliases(&mut self, section: &wasmparser::ComponentAliasSectionReader) -> Result<(), Error> {
        self.tally.outline(section)?;
        for alias in section.clone() {
            graph::alias(&mut self.scopes, alias.map_err(broken)?)?;
        }
        Ok(())
    }

    fn stamp(&mut self, data: &[u8]) {
        let left = MAX_STAMP_LINES.saturating_sub(self.found.stamp.len());
        self.found.stamp.extend(stamp_lines(data).take(left));
    }
}

/// The pairs of key and value in a stamp.
pub(super) fn stamp_lines(data: &[u8]) -> impl Iterator<Item = (String, String)> {
    let text = String::from_utf8_lossy(data.get(..MAX_STAMP_BYTES).unwrap_or(data));
    let lines = text.lines().filter_map(|line| line.split_once(": "));
    // The stamp is a stranger's text too.
    let clean = |(key, value): (&str, &str)| (crate::log::clean(key), crate::log::clean(value));
    lines.map(clean).collect::<Vec<_>>().into_iter()
}

/// Bytes of a stamp that are read.
pub(super) const MAX_STAMP_BYTES: usize = 64 << 10;

fn name_each<'a, T: wasmparser::FromReader<'a>>(
    names: &mut Vec<String>,
    section: &SectionLimited<'a, T>,
    name: impl Fn(&T) -> &'a str,
) -> Result<(), Error> {
    for item in section.clone() {
        if names.len() >= limits::MAX_COMPONENT_NAMES {
            return Err(exceeds("imports or exports", limits::MAX_COMPONENT_NAMES as u64));
        }
        names.push(crate::log::clean(name(&item.map_err(broken)?)));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
