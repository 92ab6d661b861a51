//! Counts over all modules and components of a file, each with its bound.

use wasmparser::{
    DataSectionReader, ElementItems, ElementSectionReader, ExportSectionReader, FunctionBody, ImportSectionReader,
    Imports, MemorySectionReader, SectionLimited, TypeRef,
};

use super::graph::Module;
use super::{broken, exceeds, function};
use crate::error::{Error, ErrorKind};
use crate::limits;

#[derive(Debug, Default)]
pub(super) struct Tally {
    pub functions: u64,
    pub largest_function: u64,
    /// The slots of the module that has most.
    pub heaviest_module: u64,
    scopes: u64,
    outline_bytes: u64,
    types: u64,
    imports: u64,
    exports: u64,
    definitions: u64,
    elements: u64,
    data_segments: u64,
}

impl Tally {
    pub(super) fn function(&mut self, body: &FunctionBody) -> Result<(), Error> {
        self.functions += 1;
        self.largest_function = self.largest_function.max(body.range().len() as u64);
        if self.functions > limits::MAX_FUNCTIONS {
            return Err(exceeds("functions", limits::MAX_FUNCTIONS));
        }
        if self.largest_function > limits::MAX_FUNCTION_BYTES {
            let (is, most) = (self.largest_function, limits::MAX_FUNCTION_BYTES);
            let message =
                format!("has a function of {is} bytes, which would take too long to compile (at most {most})");
            return Err(Error::new(ErrorKind::Exhausted, message));
        }
        let function::Cost { ways, loops } = function::cost(body)?;
        if loops > limits::MAX_FUNCTION_LOOPS {
            let most = limits::MAX_FUNCTION_LOOPS;
            let message =
                format!("has a function with {loops} loops, which would take too long to compile (at most {most})");
            return Err(Error::new(ErrorKind::Exhausted, message));
        }
        if ways > limits::MAX_FUNCTION_WAYS {
            let most = limits::MAX_FUNCTION_WAYS;
            let message = format!(
                "has a function whose locals times its branches are {ways}, which would take too long to compile (at most \
                 {most})"
            );
            return Err(Error::new(ErrorKind::Exhausted, message));
        }
        Ok(())
    }

    /// A further module or component.
    pub(super) fn scope(&mut self) -> Result<(), Error> {
        add(&mut self.scopes, 1, limits::MAX_COMPONENT_PARTS, "modules and components")
    }

    /// A section of which every byte becomes a structure of the compiler.
    pub(super) fn outline<T>(&mut self, section: &SectionLimited<T>) -> Result<(), Error> {
        let len = section.range().len() as u64;
        add(&mut self.outline_bytes, len, limits::MAX_OUTLINE_BYTES, "bytes outside of code and data")
    }

    pub(super) fn types<T>(&mut self, section: &SectionLimited<T>) -> Result<(), Error> {
        self.outline(section)?;
        add(&mut self.types, section.count().into(), limits::MAX_TYPES, "types")
    }

    pub(super) fn imports(&mut self, section: &ImportSectionReader, module: &mut Module) -> Result<(), Error> {
        self.outline(section)?;
        for imports in section.clone() {
            let (count, memories) = match imports.map_err(broken)? {
                Imports::Single(_, import) => (1, u64::from(matches!(import.ty, TypeRef::Memory(_)))),
                _ => return Err(Error::invalid("has imports in a form that this host does not know")),
            };
            module.memories += memories;
            module.slots += count;
            add(&mut self.imports, count, limits::MAX_IMPORTS, "imports of modules")?;
        }
        one_memory(module)
    }

    pub(super) fn exports(&mut self, section: &ExportSectionReader, _: &mut Module) -> Result<(), Error> {
        self.outline(section)?;
        add(&mut self.exports, section.count().into(), limits::MAX_EXPORTS, "exports of modules")
    }

    /// Functions, tables, globals.
    pub(super) fn definitions<T>(&mut self, section: &SectionLimited<T>, module: &mut Module) -> Result<(), Error> {
        self.outline(section)?;
        module.slots += u64::from(section.count());
        add(&mut self.definitions, section.count().into(), limits::MAX_DEFINITIONS, "functions, tables and globals")
    }

    pub(super) fn memories(&mut self, section: &MemorySectionReader, module: &mut Module) -> Result<(), Error> {
        module.memories += u64::from(section.count());
        self.definitions(section, module)?;
        one_memory(module)
    }

    pub(super) fn elements(&mut self, section: &ElementSectionReader, module: &mut Module) -> Result<(), Error> {
        self.outline(section)?;
        for segment in section.clone() {
            let items = match segment.map_err(broken)?.items {
                ElementItems::Functions(functions) => functions.count(),
                ElementItems::Expressions(_, expressions) => expressions.count(),
            };
            // An empty segment is one, too.
            let items = u64::from(items) + 1;
            module.elements += items;
            add(&mut self.elements, items, limits::MAX_ELEMENTS, "elements in segments")?;
        }
        Ok(())
    }

    pub(super) fn data(&mut self, section: &DataSectionReader) -> Result<(), Error> {
        add(&mut self.data_segments, section.count().into(), limits::MAX_DATA_SEGMENTS, "data segments")
    }
}

/// The engine allows more than one memory only for the adapters that wasmtime makes between components.
fn one_memory(module: &Module) -> Result<(), Error> {
    match module.memories {
        0 | 1 => Ok(()),
        more => Err(Error::invalid(format!("has a module with {more} memories, and a module may have one"))),
    }
}

fn add(count: &mut u64, more: u64, most: u64, what: &str) -> Result<(), Error> {
    *count = count.saturating_add(more);
    if *count > most { Err(exceeds(what, most)) } else { Ok(()) }
}
