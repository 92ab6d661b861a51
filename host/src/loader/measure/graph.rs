//! What a component becomes when all that it instantiates is laid out side by side, which is how wasmtime compiles it: a
//! component that is instantiated twice counts twice, with all that it instantiates itself. The bytes of a file say nothing
//! about that: 28 components, each of which instantiates the one before it twice, are 5 KB and 2^28 instances.

use wasmparser::{
    CanonicalFunction, ComponentAlias, ComponentExport, ComponentExternalKind, ComponentImport, ComponentInstance,
    ComponentOuterAliasKind, ComponentTypeRef, Instance,
};

use super::exceeds;
use crate::error::Error;
use crate::limits;

/// A module or component whose sections are being read.
pub(super) enum Scope {
    Module(Module),
    Component(Component),
}

#[derive(Clone, Copy, Default)]
pub(super) struct Module {
    /// What each instance of it has a place for: functions, globals, tables, memories, imports.
    pub slots: u64,
    /// Elements of its segments, and the segments themselves.
    pub elements: u64,
    pub memories: u64,
}

/// What a component has defined so far.
#[derive(Default)]
pub(super) struct Component {
    pub weight: Weight,
    /// Its index space of components: what one instance of each weighs.
    pub components: Vec<Weight>,
    /// Its index space of core modules. `None`: not known here which module it is.
    pub modules: Vec<Option<Module>>,
}

/// What one instance of a component lays out. Every addition saturates: what is over all bounds stays over them.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub(super) struct Weight {
    pub core_instances: u64,
    pub component_instances: u64,
    /// Functions that are lifted or lowered: each pair between two components is an adapter.
    pub adapters: u64,
    /// Aliases, imports, exports, arguments.
    pub items: u64,
    pub slots: u64,
    pub elements: u64,
    /// Core instances of modules that are not known where they are instantiated.
    pub unknown: u64,
}

impl Weight {
    fn add(&mut self, other: &Weight) {
        self.core_instances = self.core_instances.saturating_add(other.core_instances);
        self.component_instances = self.component_instances.saturating_add(other.component_instances);
        self.adapters = self.adapters.saturating_add(other.adapters);
        self.items = self.items.saturating_add(other.items);
        self.slots = self.slots.saturating_add(other.slots);
        self.elements = self.elements.saturating_add(other.elements);
        self.unknown = self.unknown.saturating_add(other.unknown);
    }

    /// What an instance costs before it has run. No instance fits where it is not known of which modules it consists.
    pub(super) fn instance_bytes(&self) -> u64 {
        let parts = [
            (self.core_instances, limits::CORE_INSTANCE_BYTES),
            (self.slots.saturating_add(self.adapters), limits::SLOT_BYTES),
            (self.elements, limits::TABLE_ELEMENT_BYTES),
            (self.unknown, usize::MAX),
        ];
        parts.iter().fold(0, |sum: u64, (count, each)| sum.saturating_add(count.saturating_mul(*each as u64)))
    }

    /// Refuse a component as soon as one of its own bounds is passed, whether it is instantiated or not.
    pub(super) fn check_so_far(&self) -> Result<(), Error> {
        for (count, most, what) in [
            (self.core_instances, limits::MAX_CORE_INSTANCES as u64, "core instances, those of all its parts together"),
            (self.component_instances, limits::MAX_COMPONENT_INSTANCES, "instances of components within it"),
            (self.adapters, limits::MAX_ADAPTERS, "functions that are lifted or lowered"),
            (self.items, limits::MAX_COMPONENT_ITEMS, "aliases, imports, exports and arguments"),
            (self.slots, limits::MAX_INSTANCE_SLOTS, "functions, globals and imports in all core instances together"),
        ] {
            if count > most {
                return Err(exceeds(what, most));
            }
        }
        Ok(())
    }

    /// The same for the whole, now that the heaviest module is known, which any unknown one may be.
    pub(super) fn check(&self, heaviest_module: u64) -> Result<(), Error> {
        let slots = self.slots.saturating_add(self.unknown.saturating_mul(heaviest_module));
        Weight { slots, ..*self }.check_so_far()
    }
}

impl Component {
    pub(super) fn core_instance(&mut self, instance: Instance) -> Result<(), Error> {
        let weight = &mut self.weight;
        match instance {
            Instance::Instantiate { module_index, args } => {
                weight.core_instances = weight.core_instances.saturating_add(1);
                weight.items = weight.items.saturating_add(args.len() as u64);
                match self.modules.get(module_index as usize) {
                    Some(Some(Module { slots, elements, .. })) => {
                        weight.slots = weight.slots.saturating_add(*slots);
                        weight.elements = weight.elements.saturating_add(*elements);
                    }
                    Some(None) => weight.unknown = weight.unknown.saturating_add(1),
                    None => return Err(no_such("module")),
                }
            }
            Instance::FromExports(exports) => weight.items = weight.items.saturating_add(1 + exports.len() as u64),
        }
        Ok(())
    }

    pub(super) fn instance(&mut self, instance: ComponentInstance) -> Result<(), Error> {
        match instance {
            ComponentInstance::Instantiate { component_index, args } => {
                let child = *self.components.get(component_index as usize).ok_or_else(|| no_such("component"))?;
                self.weight.add(&child);
                self.weight.add(&Weight { component_instances: 1, items: args.len() as u64, ..Weight::default() });
            }
            ComponentInstance::FromExports(exports) => {
                self.weight.items = self.weight.items.saturating_add(1 + exports.len() as u64);
                exports.iter().try_for_each(|export| refuse_component(export.kind))?;
            }
        }
        Ok(())
    }

    pub(super) fn canonical(&mut self, function: CanonicalFunction) -> Result<(), Error> {
        let lifted = matches!(function, CanonicalFunction::Lift { .. } | CanonicalFunction::Lower { .. });
        self.weight.add(&Weight { adapters: lifted.into(), items: 1, ..Weight::default() });
        Ok(())
    }

    pub(super) fn import(&mut self, import: ComponentImport) -> Result<(), Error> {
        self.weight.items = self.weight.items.saturating_add(1);
        match import.ty {
            ComponentTypeRef::Module(_) => self.modules.push(None),
            other => refuse_component(other.kind())?,
        }
        Ok(())
    }

    /// An export is a further index of what it exports.
    pub(super) fn export(&mut self, export: ComponentExport) -> Result<(), Error> {
        self.weight.items = self.weight.items.saturating_add(1);
        match export.kind {
            ComponentExternalKind::Module => {
                let module = *self.modules.get(export.index as usize).ok_or_else(|| no_such("module"))?;
                self.modules.push(module);
            }
            ComponentExternalKind::Component => {
                let component = *self.components.get(export.index as usize).ok_or_else(|| no_such("component"))?;
                self.components.push(component);
            }
            _ => {}
        }
        Ok(())
    }
}

/// Note an alias of the innermost component.
pub(super) fn alias(scopes: &mut [Scope], alias: ComponentAlias) -> Result<(), Error> {
    enum Found {
        Module(Option<Module>),
        Component(Weight),
        Other,
    }
    let found = match alias {
        ComponentAlias::Outer { kind, count, index } => {
            let outer = scopes.len().checked_sub(count as usize + 1).and_then(|at| scopes.get(at));
            let Some(Scope::Component(outer)) = outer else { return Err(no_such("outer component")) };
            match kind {
                ComponentOuterAliasKind::CoreModule => {
                    Found::Module(*outer.modules.get(index as usize).ok_or_else(|| no_such("module"))?)
                }
                ComponentOuterAliasKind::Component => {
                    Found::Component(*outer.components.get(index as usize).ok_or_else(|| no_such("component"))?)
                }
                _ => Found::Other,
            }
        }
        ComponentAlias::InstanceExport { kind: ComponentExternalKind::Module, .. } => Found::Module(None),
        ComponentAlias::InstanceExport { kind, .. } => {
            refuse_component(kind)?;
            Found::Other
        }
        ComponentAlias::CoreInstanceExport { .. } => Found::Other,
    };
    let Some(Scope::Component(component)) = scopes.last_mut() else { return Err(no_such("component")) };
    component.weight.items = component.weight.items.saturating_add(1);
    match found {
        Found::Module(module) => component.modules.push(module),
        Found::Component(weight) => component.components.push(weight),
        Found::Other => {}
    }
    component.weight.check_so_far()
}

/// A component that is handed from one to another cannot be counted where it is instantiated. No tool makes such.
fn refuse_component(kind: ComponentExternalKind) -> Result<(), Error> {
    match kind {
        ComponentExternalKind::Component => {
            Err(Error::invalid("hands components from one to another, which this host does not load"))
        }
        _ => Ok(()),
    }
}

fn no_such(what: &str) -> Error {
    Error::invalid(format!("is not a valid component: it refers to a {what} that it does not have"))
}
