//! What can be told of a component without compiling it: what it imports and exports, its stamp, and how large its functions
//! are, because compiling takes time and memory that grow with them.

use wasmparser::{Parser, Payload};

use crate::error::{Error, ErrorKind};
use crate::limits;

/// The custom section that the SDK writes.
const STAMP: &str = "kv-store-backend";

/// A component as it lies there.
#[derive(Debug, Default)]
pub(crate) struct Measured {
    pub imports: Vec<String>,
    pub exports: Vec<String>,
    /// The lines of the stamp, `key: value`.
    pub stamp: Vec<(String, String)>,
    pub functions: u64,
    pub largest_function: u64,
}

/// Read a component's outlines. Nothing of it is run, nor compiled.
pub(crate) fn measure(bytes: &[u8]) -> Result<Measured, Error> {
    let broken = |error: wasmparser::BinaryReaderError| Error::invalid(format!("is no sound component: {error}"));
    let mut found = Measured::default();
    // How deep in modules and components of the component: its own imports are at the top.
    let mut depth = 0_usize;
    for payload in Parser::new(0).parse_all(bytes) {
        match payload.map_err(broken)? {
            Payload::ModuleSection { .. } | Payload::ComponentSection { .. } => depth += 1,
            Payload::End(_) => depth = depth.saturating_sub(1),
            Payload::CodeSectionEntry(body) => {
                found.functions += 1;
                found.largest_function = found.largest_function.max(body.range().len() as u64);
                check_counts(&found)?;
            }
            Payload::ComponentImportSection(section) if depth == 0 => {
                for import in section {
                    found.imports.push(crate::log::clean(import.map_err(broken)?.name.name));
                }
            }
            Payload::ComponentExportSection(section) if depth == 0 => {
                for export in section {
                    found.exports.push(crate::log::clean(export.map_err(broken)?.name.name));
                }
            }
            Payload::CustomSection(section) if section.name() == STAMP => {
                let text = String::from_utf8_lossy(section.data());
                let lines = text.lines().filter_map(|line| line.split_once(": "));
                // The stamp is a stranger's text too.
                let clean = |(key, value): (&str, &str)| (crate::log::clean(key), crate::log::clean(value));
                found.stamp.extend(lines.take(MAX_STAMP_LINES).map(clean));
            }
            _ => {}
        }
    }
    Ok(found)
}

/// Lines of a stamp that are read.
const MAX_STAMP_LINES: usize = 100;

/// Refuse what would take the compiler too long.
pub(super) fn check(bytes: &[u8]) -> Result<(), Error> {
    measure(bytes).map(drop)
}

fn check_counts(found: &Measured) -> Result<(), Error> {
    let message = if found.functions > limits::MAX_FUNCTIONS {
        format!("has more than {} functions, which would take too long to compile", limits::MAX_FUNCTIONS)
    } else if found.largest_function > limits::MAX_FUNCTION_BYTES {
        let (is, most) = (found.largest_function, limits::MAX_FUNCTION_BYTES);
        format!("has a function of {is} bytes, which would take too long to compile (at most {most})")
    } else {
        return Ok(());
    };
    Err(Error::new(ErrorKind::Exhausted, message))
}

#[cfg(test)]
mod tests {
    use wasm_encoder::{
        CodeSection, Component, CustomSection, Function, FunctionSection, Module, ModuleSection, TypeSection,
    };

    use super::*;

    const NOP: u8 = 0x01;

    /// A component around a module of functions with bodies of so many bytes.
    fn component(count: usize, body: usize) -> Vec<u8> {
        let mut function = Function::new([]);
        // All but the number of locals, which is none, and the end.
        function.raw(std::iter::repeat_n(NOP, body - 2)).instructions().end();
        let (mut types, mut functions, mut bodies) = (TypeSection::new(), FunctionSection::new(), CodeSection::new());
        types.ty().function([], []);
        for _ in 0..count {
            functions.function(0);
            bodies.function(&function);
        }
        let stamp = CustomSection { name: STAMP.into(), data: b"wish: a\x1bb\nwish: c\n".into() };
        let mut module = Module::new();
        module.section(&types).section(&functions).section(&bodies).section(&stamp);
        let mut component = Component::new();
        component.section(&ModuleSection(&module));
        component.finish()
    }

    #[test]
    fn functions_and_the_stamp_are_found_inside_of_modules() {
        let found = measure(&component(3, 100)).unwrap();
        assert_eq!((found.functions, found.largest_function), (3, 100));
        let wish = |text: &str| ("wish".to_owned(), text.to_owned());
        assert_eq!(found.stamp, [wish("a b"), wish("c")]);
    }

    #[test]
    fn what_would_take_the_compiler_too_long_is_refused() {
        let most = limits::MAX_FUNCTION_BYTES as usize;
        assert!(check(&component(1, most)).is_ok());
        assert!(check(&component(1, most + 1)).unwrap_err().to_string().contains("function of"));
        let most = limits::MAX_FUNCTIONS as usize;
        assert!(check(&component(most, 2)).is_ok());
        assert_eq!(check(&component(most + 1, 2)).unwrap_err().kind(), ErrorKind::Exhausted);
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_are_too_strange(mut bytes: Vec<u8>, at: usize, to: u8) {
            let _ = measure(&bytes);
            bytes = component(2, 20);
            let at = at % bytes.len();
            bytes[at] = to;
            let _ = measure(&bytes);
        }
    }
}
