//! What an instance of a component costs before it has run: places for the functions, globals, tables and imports of each of
//! its core instances, those of the components within it included. A million globals are 5 MB of component, and 16 MB in
//! each core instance of it.

use wasmparser::{
    BinaryReaderError, CanonicalFunction, ComponentAlias, ComponentExternalKind, ComponentInstance,
    ComponentOuterAliasKind, ComponentTypeRef, ElementItems, Encoding, Instance, Parser, Payload,
};

use super::measure::{RELEASED_BYTES, end_of};
use crate::error::Error;
use crate::limits::{CORE_INSTANCE_BYTES, SLOT_BYTES, TABLE_ELEMENT_BYTES};

/// A module or component whose sections are being read.
#[derive(Default)]
struct Scope {
    is_module: bool,
    /// What an instance of it costs.
    bytes: u64,
    /// The same of what it has in its index spaces of core modules and of components.
    modules: Vec<u64>,
    components: Vec<u64>,
}

/// What is handed in from outside, of which nothing is known here: no instance of it fits.
const UNKNOWN: u64 = u64::MAX;

/// What an instance of a component costs. Saturates where instances double again and again. `done_with` as in
/// [`measure`](super::measure::measure).
pub(super) fn instance_bytes(component: &[u8], done_with: impl Fn(usize)) -> Result<u64, Error> {
    count(component, done_with).map_err(|error| Error::invalid(format!("is no sound component: {error}")))
}

fn count(component: &[u8], done_with: impl Fn(usize)) -> Result<u64, BinaryReaderError> {
    let mut scopes: Vec<Scope> = Vec::new();
    let mut released = 0;
    for payload in Parser::new(0).parse_all(component) {
        let payload = payload?;
        if let Some(end) = end_of(&payload).filter(|end| *end > released + RELEASED_BYTES) {
            released = end;
            done_with(end);
        }
        if let Payload::Version { encoding, .. } = payload {
            scopes.push(Scope { is_module: encoding == Encoding::Module, ..Scope::default() });
            continue;
        }
        if let Payload::End(_) = payload {
            let ended = scopes.pop().unwrap_or_default();
            match scopes.last_mut() {
                Some(outer) if ended.is_module => outer.modules.push(ended.bytes),
                Some(outer) => outer.components.push(ended.bytes),
                None => return Ok(ended.bytes),
            }
            continue;
        }
        if let Payload::ComponentAliasSection(section) = payload {
            for alias in section {
                alias_of(&mut scopes, &alias?);
            }
            continue;
        }
        if let Some(scope) = scopes.last_mut() {
            scope.read(payload)?;
        }
    }
    Ok(0)
}

impl Scope {
    fn add(&mut self, count: u64, each: u64) {
        self.bytes = self.bytes.saturating_add(count.saturating_mul(each));
    }

    fn read(&mut self, payload: Payload) -> Result<(), BinaryReaderError> {
        let slot = SLOT_BYTES as u64;
        match payload {
            Payload::ImportSection(section) => self.add(section.count().into(), slot),
            Payload::FunctionSection(section) => self.add(section.count().into(), slot),
            Payload::TableSection(section) => self.add(section.count().into(), slot),
            Payload::MemorySection(section) => self.add(section.count().into(), slot),
            Payload::GlobalSection(section) => self.add(section.count().into(), slot),
            Payload::TagSection(section) => self.add(section.count().into(), slot),
            Payload::ElementSection(section) => {
                for segment in section {
                    let items = match segment?.items {
                        ElementItems::Functions(functions) => functions.count(),
                        ElementItems::Expressions(_, expressions) => expressions.count(),
                    };
                    self.add(u64::from(items) + 1, TABLE_ELEMENT_BYTES as u64);
                }
            }
            Payload::InstanceSection(section) => {
                for instance in section {
                    let module = match instance? {
                        Instance::Instantiate { module_index, .. } => at(&self.modules, module_index),
                        Instance::FromExports(_) => 0,
                    };
                    self.add(1, module.saturating_add(CORE_INSTANCE_BYTES as u64));
                }
            }
            Payload::ComponentInstanceSection(section) => {
                for instance in section {
                    if let ComponentInstance::Instantiate { component_index, .. } = instance? {
                        self.add(1, at(&self.components, component_index));
                    }
                }
            }
            Payload::ComponentCanonicalSection(section) => {
                for function in section {
                    if let CanonicalFunction::Lift { .. } | CanonicalFunction::Lower { .. } = function? {
                        self.add(1, slot);
                    }
                }
            }
            Payload::ComponentImportSection(section) => {
                for import in section {
                    match import?.ty {
                        ComponentTypeRef::Module(_) => self.modules.push(UNKNOWN),
                        ComponentTypeRef::Component(_) => self.components.push(UNKNOWN),
                        _ => {}
                    }
                }
            }
            Payload::ComponentExportSection(section) => {
                // An export is a further index of what it exports.
                for export in section {
                    let export = export?;
                    match export.kind {
                        ComponentExternalKind::Module => self.modules.push(at(&self.modules, export.index)),
                        ComponentExternalKind::Component => self.components.push(at(&self.components, export.index)),
                        _ => {}
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }
}

/// Note an alias of the innermost component.
fn alias_of(scopes: &mut [Scope], alias: &ComponentAlias) {
    let (is_module, bytes) = match alias {
        ComponentAlias::Outer { kind, count, index } => {
            let outer = scopes.len().checked_sub(*count as usize + 1).and_then(|at| scopes.get(at));
            match kind {
                ComponentOuterAliasKind::CoreModule => {
                    (true, outer.map_or(UNKNOWN, |outer| at(&outer.modules, *index)))
                }
                ComponentOuterAliasKind::Component => {
                    (false, outer.map_or(UNKNOWN, |outer| at(&outer.components, *index)))
                }
                _ => return,
            }
        }
        ComponentAlias::InstanceExport { kind: ComponentExternalKind::Module, .. } => (true, UNKNOWN),
        ComponentAlias::InstanceExport { kind: ComponentExternalKind::Component, .. } => (false, UNKNOWN),
        _ => return,
    };
    if let Some(scope) = scopes.last_mut() {
        if is_module { &mut scope.modules } else { &mut scope.components }.push(bytes);
    }
}

fn at(space: &[u64], index: u32) -> u64 {
    space.get(index as usize).copied().unwrap_or(UNKNOWN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use wasm_encoder::{
        Alias, Component, ComponentAliasSection, ComponentInstanceSection, ConstExpr, GlobalSection, GlobalType,
        InstanceSection, Module, ModuleArg, ModuleSection, NestedComponentSection, ValType,
    };

    fn module(globals: u32) -> Module {
        let mut section = GlobalSection::new();
        for _ in 0..globals {
            let ty = GlobalType { val_type: ValType::I32, mutable: true, shared: false };
            section.global(ty, &ConstExpr::i32_const(0));
        }
        let mut module = Module::new();
        module.section(&section);
        module
    }

    fn instances(index: u32, count: usize) -> InstanceSection {
        let mut instances = InstanceSection::new();
        for _ in 0..count {
            instances.instantiate(index, std::iter::empty::<(&str, ModuleArg)>());
        }
        instances
    }

    fn nested(index: u32, count: usize) -> ComponentInstanceSection {
        let mut instances = ComponentInstanceSection::new();
        for _ in 0..count {
            instances.instantiate(index, std::iter::empty::<(&str, wasm_encoder::ComponentExportKind, u32)>());
        }
        instances
    }

    const ONE: u64 = CORE_INSTANCE_BYTES as u64;
    const SLOT: u64 = SLOT_BYTES as u64;

    fn cost(component: Component) -> u64 {
        instance_bytes(&component.finish(), |_| {}).unwrap()
    }

    #[test]
    fn each_core_instance_has_its_own_globals() {
        let mut component = Component::new();
        component.section(&ModuleSection(&module(1000))).section(&ModuleSection(&module(1)));
        component.section(&instances(0, 90)).section(&instances(1, 2));
        assert_eq!(cost(component), 90 * (ONE + 1000 * SLOT) + 2 * (ONE + SLOT));
    }

    #[test]
    fn components_within_components_count_as_often_as_they_are_instantiated() {
        let mut inner = Component::new();
        inner.section(&ModuleSection(&module(10))).section(&instances(0, 1));
        let mut bytes = inner.finish();
        for _ in 0..28 {
            let mut outer = Component::new();
            outer.section(&wasm_encoder::RawSection { id: 4, data: &bytes }).section(&nested(0, 2));
            bytes = outer.finish();
        }
        assert_eq!(instance_bytes(&bytes, |_| {}).unwrap(), (1 << 28) * (ONE + 10 * SLOT));
    }

    #[test]
    fn a_module_of_an_outer_component_is_the_one_that_it_is_there() {
        let mut aliases = ComponentAliasSection::new();
        aliases.alias(Alias::Outer { kind: wasm_encoder::ComponentOuterAliasKind::CoreModule, count: 1, index: 1 });
        let mut inner = Component::new();
        inner.section(&aliases).section(&instances(0, 3));
        let mut outer = Component::new();
        outer.section(&ModuleSection(&module(1))).section(&ModuleSection(&module(7)));
        outer.section(&NestedComponentSection(&inner)).section(&nested(0, 1));
        assert_eq!(cost(outer), 3 * (ONE + 7 * SLOT));
    }

    #[test]
    fn what_is_not_known_fits_nowhere() {
        let mut component = Component::new();
        component.section(&instances(5, 1));
        assert_eq!(cost(component), u64::MAX);
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_are_too_strange(mut bytes: Vec<u8>, place: usize, to: u8) {
            let _ = instance_bytes(&bytes, |_| {});
            let mut component = Component::new();
            component.section(&ModuleSection(&module(3))).section(&instances(0, 2));
            bytes = component.finish();
            let place = place % bytes.len();
            bytes[place] = to;
            let _ = instance_bytes(&bytes, |_| {});
        }
    }
}
