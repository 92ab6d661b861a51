use wasm_encoder::{
    Alias, CanonicalFunctionSection, CodeSection, Component, ComponentAliasSection, ComponentExportKind,
    ComponentExportSection, ComponentImportSection, ComponentInstanceSection, ComponentOuterAliasKind,
    ComponentTypeRef, CustomSection, DataSection, ElementSection, Elements, EntityType, ExportKind, ExportSection,
    Function, FunctionSection, GlobalSection, GlobalType, ImportSection, InstanceSection, MemorySection, MemoryType,
    Module, ModuleArg, ModuleSection, NestedComponentSection, TypeSection, ValType,
};

use super::*;

const NOP: u8 = 0x01;

fn check(bytes: &[u8]) -> Result<Measured, Error> {
    measure(bytes, |_| {})
}

#[track_caller]
fn refused(bytes: &[u8], said: &str) {
    let error = check(bytes).expect_err(said).to_string();
    assert!(error.contains(said), "{error}; expected: {said}");
}

/// A component around a module.
fn around(module: &Module) -> Vec<u8> {
    let mut component = Component::new();
    component.section(&ModuleSection(module));
    component.finish()
}

/// A module of functions that are all alike.
fn functions(count: usize, function: &Function) -> Module {
    let (mut types, mut functions, mut bodies) = (TypeSection::new(), FunctionSection::new(), CodeSection::new());
    types.ty().function([], []);
    for _ in 0..count {
        functions.function(0);
        bodies.function(function);
    }
    let mut module = Module::new();
    module.section(&types).section(&functions).section(&bodies);
    module
}

/// A component around a module of functions with bodies of so many bytes.
fn component(count: usize, body: usize) -> Vec<u8> {
    let mut function = Function::new([]);
    // All but the number of locals, which is none, and the end.
    function.raw(std::iter::repeat_n(NOP, body - 2)).instructions().end();
    let mut module = functions(count, &function);
    module.section(&CustomSection { name: STAMP.into(), data: b"wish: a\x1bb\nwish: c\n".into() });
    around(&module)
}

/// A module of globals.
fn globals(count: u64) -> Module {
    let ty = GlobalType { val_type: ValType::I32, mutable: true, shared: false };
    let mut section = GlobalSection::new();
    (0..count).for_each(|_| {
        section.global(ty, &wasm_encoder::ConstExpr::i32_const(0));
    });
    let mut module = Module::new();
    module.section(&section);
    module
}

/// A component that instantiates a module so many times.
fn instances(module: &Module, count: u64) -> Component {
    let mut instances = InstanceSection::new();
    for _ in 0..count {
        instances.instantiate(0, std::iter::empty::<(&str, ModuleArg)>());
    }
    let mut component = Component::new();
    component.section(&ModuleSection(module)).section(&instances);
    component
}

/// Levels of components around one, each of which instantiates the one within it so many times.
fn levels(innermost: Component, levels: u32, times: u64) -> Component {
    (0..levels).fold(innermost, |inner, _| {
        let mut instances = ComponentInstanceSection::new();
        for _ in 0..times {
            instances.instantiate(0, std::iter::empty::<(&str, ComponentExportKind, u32)>());
        }
        let mut outer = Component::new();
        outer.section(&NestedComponentSection(&inner)).section(&instances);
        outer
    })
}

#[test]
fn functions_and_the_stamp_are_found_inside_of_modules() {
    let found = check(&component(3, 100)).unwrap();
    assert_eq!((found.functions, found.largest_function), (3, 100));
    let wish = |text: &str| ("wish".to_owned(), text.to_owned());
    assert_eq!(found.stamp, [wish("a b"), wish("c")]);
}

#[test]
fn too_many_or_too_long_functions_are_refused() {
    let most = limits::MAX_FUNCTION_BYTES as usize;
    assert!(check(&component(1, most)).is_ok());
    refused(&component(1, most + 1), "function of");
    let most = limits::MAX_FUNCTIONS as usize;
    assert!(check(&component(most, 2)).is_ok());
    assert_eq!(check(&component(most + 1, 2)).unwrap_err().kind(), ErrorKind::Exhausted);
}

#[test]
fn loops_of_a_function_are_bounded_nested_or_not() {
    let function = |loops: u64, nested: bool| {
        let mut function = Function::new([]);
        let mut code = function.instructions();
        for _ in 0..loops {
            code.loop_(wasm_encoder::BlockType::Empty);
            if !nested {
                code.end();
            }
        }
        for _ in 0..if nested { loops + 1 } else { 1 } {
            code.end();
        }
        around(&functions(3, &function))
    };
    for nested in [false, true] {
        assert!(check(&function(limits::MAX_FUNCTION_LOOPS, nested)).is_ok());
        refused(&function(limits::MAX_FUNCTION_LOOPS + 1, nested), "10001 loops, which would take too long");
    }
}

#[test]
fn locals_times_branches_are_bounded() {
    let function = |locals: u32, blocks: u64| {
        let mut function = Function::new([(locals, ValType::I64)]);
        let mut code = function.instructions();
        for _ in 0..blocks {
            code.block(wasm_encoder::BlockType::Empty).end();
        }
        code.end();
        around(&functions(1, &function))
    };
    // One more than its own: the place of a function without locals.
    let blocks = limits::MAX_FUNCTION_WAYS / 10_000;
    assert!(check(&function(9_999, blocks)).is_ok());
    refused(&function(9_999, blocks + 1), "locals times its branches");
    assert!(check(&function(0, blocks + 1)).is_ok());
}

#[test]
fn what_is_instantiated_twice_counts_twice_with_all_that_it_instantiates() {
    let most = limits::MAX_CORE_INSTANCES as u64;
    let empty = Module::new();
    assert!(check(&instances(&empty, most).finish()).is_ok());
    refused(&instances(&empty, most + 1).finish(), "core instances");
    // 2^6 and 2^7 of them, around a limit of 100.
    assert!(check(&levels(instances(&empty, 1), 6, 2).finish()).is_ok());
    refused(&levels(instances(&empty, 1), 7, 2).finish(), "core instances");
    // No core instance at all, and the two forms that were seen: deep, and wide.
    refused(&levels(Component::new(), 28, 2).finish(), "instances of components");
    refused(&levels(Component::new(), 3, 900).finish(), "instances of components");
    // Past 64 bits.
    refused(&levels(instances(&empty, 2), 30, 1000).finish(), "core instances");
}

#[test]
fn an_alias_of_a_component_weighs_what_the_component_does() {
    // The inner component instantiates, through an alias, what lies beside it.
    let heavy = levels(instances(&Module::new(), 60), 0, 1);
    let mut aliases = ComponentAliasSection::new();
    aliases.alias(Alias::Outer { kind: ComponentOuterAliasKind::Component, count: 1, index: 0 });
    let mut twice = ComponentInstanceSection::new();
    twice.instantiate(0, std::iter::empty::<(&str, ComponentExportKind, u32)>());
    let mut inner = Component::new();
    inner.section(&aliases).section(&twice).section(&twice);
    let mut outer = Component::new();
    outer.section(&NestedComponentSection(&heavy)).section(&NestedComponentSection(&inner));
    refused(&outer.finish(), "core instances");
}

#[test]
fn components_are_not_handed_from_one_to_another() {
    let mut aliases = ComponentAliasSection::new();
    let kind = ComponentExportKind::Component;
    aliases.alias(Alias::InstanceExport { instance: 0, kind, name: "c" });
    let mut component = Component::new();
    component.section(&aliases);
    refused(&component.finish(), "hands components from one to another");
}

#[test]
fn globals_count_for_each_instance() {
    let each = limits::MAX_INSTANCE_SLOTS / 50;
    assert!(check(&instances(&globals(each), 50).finish()).is_ok());
    refused(&instances(&globals(each), 51).finish(), "globals and imports in all core instances");
    refused(&around(&globals(limits::MAX_DEFINITIONS + 1)), "functions, tables and globals");
}

#[test]
fn an_instance_costs_what_each_core_instance_has_places_for() {
    let mut elements = ElementSection::new();
    elements.passive(Elements::Functions(vec![0; 7].into()));
    let mut module = Module::new();
    let (mut types, mut functions, mut code) = (TypeSection::new(), FunctionSection::new(), CodeSection::new());
    types.ty().function([], []);
    for _ in 0..3 {
        functions.function(0);
        code.function(&Function::new([]));
    }
    module.section(&types).section(&functions).section(&elements).section(&code);
    let one = (limits::CORE_INSTANCE_BYTES + 3 * limits::SLOT_BYTES + 8 * limits::TABLE_ELEMENT_BYTES) as u64;
    for (component, bytes) in [
        (around(&module), 0),
        (instances(&module, 5).finish(), 5 * one),
        (levels(instances(&module, 2), 3, 2).finish(), 16 * one),
    ] {
        // The second without its code, as where the compiled code is in the cache.
        assert_eq!(check(&component).unwrap().instance_bytes, bytes);
    }
}

#[test]
fn a_module_that_is_not_known_costs_more_than_any_instance_may() {
    let mut aliases = ComponentAliasSection::new();
    aliases.alias(Alias::InstanceExport { instance: 0, kind: ComponentExportKind::Module, name: "m" });
    let mut unknown = InstanceSection::new();
    unknown.instantiate(0, std::iter::empty::<(&str, ModuleArg)>());
    let mut component = Component::new();
    component.section(&aliases).section(&unknown);
    assert_eq!(check(&component.finish()).unwrap().instance_bytes, u64::MAX);
}

#[test]
fn segments_and_types_are_bounded() {
    let with = |section: &dyn wasm_encoder::Section| {
        let mut module = Module::new();
        struct Part<'a>(&'a dyn wasm_encoder::Section);
        impl wasm_encoder::Encode for Part<'_> {
            fn encode(&self, sink: &mut Vec<u8>) {
                self.0.encode(sink);
            }
        }
        impl wasm_encoder::Section for Part<'_> {
            fn id(&self) -> u8 {
                self.0.id()
            }
        }
        module.section(&Part(section));
        around(&module)
    };
    let mut elements = ElementSection::new();
    elements.passive(Elements::Functions(vec![0; limits::MAX_ELEMENTS as usize].into()));
    refused(&with(&elements), "elements in segments");
    let mut elements = ElementSection::new();
    (0..=limits::MAX_ELEMENTS).for_each(|_| {
        elements.passive(Elements::Functions([][..].into()));
    });
    refused(&with(&elements), "elements in segments");
    let mut data = DataSection::new();
    (0..=limits::MAX_DATA_SEGMENTS).for_each(|_| {
        data.passive([]);
    });
    refused(&with(&data), "data segments");
    let mut types = TypeSection::new();
    (0..=limits::MAX_TYPES).for_each(|_| types.ty().function([], []));
    refused(&with(&types), "types");
    let mut types = TypeSection::new();
    (0..5000).for_each(|_| types.ty().function(vec![ValType::I32; 1000], []));
    refused(&with(&types), "bytes outside of code and data");
}

/// A module of one section.
fn module_of(section: &impl wasm_encoder::Section) -> Vec<u8> {
    let mut module = Module::new();
    module.section(section);
    around(&module)
}

/// A component of one section.
fn component_of(section: &impl wasm_encoder::ComponentSection) -> Vec<u8> {
    let mut component = Component::new();
    component.section(section);
    component.finish()
}

/// What has so many of them.
mod of {
    use super::*;

    pub fn imports(count: u64) -> Vec<u8> {
        let mut section = ImportSection::new();
        (0..count).for_each(|_| {
            section.import("", "", EntityType::Function(0));
        });
        module_of(&section)
    }

    pub fn exports(count: u64) -> Vec<u8> {
        let mut section = ExportSection::new();
        (0..count).for_each(|_| {
            section.export("", ExportKind::Func, 0);
        });
        module_of(&section)
    }

    /// The segment counts too.
    pub fn elements(count: u64) -> Vec<u8> {
        let mut section = ElementSection::new();
        section.passive(Elements::Functions(vec![0; count as usize - 1].into()));
        module_of(&section)
    }

    pub fn data(count: u64) -> Vec<u8> {
        let mut section = DataSection::new();
        (0..count).for_each(|_| {
            section.passive([]);
        });
        module_of(&section)
    }

    pub fn types(count: u64) -> Vec<u8> {
        let mut section = TypeSection::new();
        (0..count).for_each(|_| section.ty().function([], []));
        module_of(&section)
    }

    /// A section of so many bytes: one export, whose name fills it.
    pub fn outline(bytes: u64) -> Vec<u8> {
        const BESIDE_THE_NAME: u64 = 6;
        let mut section = ExportSection::new();
        section.export(&"x".repeat((bytes - BESIDE_THE_NAME) as usize), ExportKind::Func, 0);
        module_of(&section)
    }

    pub fn depth(count: u64) -> Vec<u8> {
        levels(Component::new(), count as u32 - 1, 0).finish()
    }

    pub fn parts(count: u64) -> Vec<u8> {
        let (mut component, module) = (Component::new(), Module::new());
        (1..count).for_each(|_| {
            component.section(&ModuleSection(&module));
        });
        component.finish()
    }

    pub fn named_imports(count: u64) -> Vec<u8> {
        let mut section = ComponentImportSection::new();
        (0..count).for_each(|_| {
            section.import("a", ComponentTypeRef::Func(0));
        });
        component_of(&section)
    }

    pub fn named_exports(count: u64) -> Vec<u8> {
        let mut section = ComponentExportSection::new();
        (0..count).for_each(|_| {
            section.export("a", ComponentExportKind::Func, 0, None);
        });
        component_of(&section)
    }

    pub fn component_instances(count: u64) -> Vec<u8> {
        levels(Component::new(), 1, count).finish()
    }

    pub fn adapters(count: u64) -> Vec<u8> {
        let mut section = CanonicalFunctionSection::new();
        (0..count).for_each(|_| {
            section.lower(0, []);
        });
        component_of(&section)
    }

    pub fn items(count: u64) -> Vec<u8> {
        let mut section = ComponentAliasSection::new();
        (0..count).for_each(|_| {
            section.alias(Alias::Outer { kind: ComponentOuterAliasKind::Type, count: 0, index: 0 });
        });
        component_of(&section)
    }
}

/// Each bound on a count: what has as many passes, what has one more is refused by its name.
#[test]
fn each_count_may_be_at_its_bound_and_not_one_over_it() {
    type Make = fn(u64) -> Vec<u8>;
    let bounds: [(u64, &str, Make); 14] = [
        (limits::MAX_IMPORTS, "imports of modules", of::imports),
        (limits::MAX_EXPORTS, "exports of modules", of::exports),
        (limits::MAX_DEFINITIONS, "functions, tables and globals", |count| around(&globals(count))),
        (limits::MAX_ELEMENTS, "elements in segments", of::elements),
        (limits::MAX_DATA_SEGMENTS, "data segments", of::data),
        (limits::MAX_TYPES, "types", of::types),
        (limits::MAX_OUTLINE_BYTES, "bytes outside of code and data", of::outline),
        (limits::MAX_COMPONENT_DEPTH as u64, "components within each other", of::depth),
        (limits::MAX_COMPONENT_PARTS, "modules and components", of::parts),
        (limits::MAX_COMPONENT_NAMES as u64, "imports or exports", of::named_imports),
        (limits::MAX_COMPONENT_NAMES as u64, "imports or exports", of::named_exports),
        (limits::MAX_COMPONENT_INSTANCES, "instances of components within it", of::component_instances),
        (limits::MAX_ADAPTERS, "functions that are lifted or lowered", of::adapters),
        (limits::MAX_COMPONENT_ITEMS, "aliases, imports, exports and arguments", of::items),
    ];
    for (most, what, make) in bounds {
        let at_bound = check(&make(most));
        assert!(at_bound.is_ok(), "{what}: {}", at_bound.unwrap_err());
        refused(&make(most + 1), &format!("has more than {most} {what}"));
    }
}

#[test]
fn places_in_all_core_instances_may_be_at_their_bound_and_not_one_over_it() {
    let mut component = instances(&globals(limits::MAX_INSTANCE_SLOTS / 50), 50);
    assert!(check(component.as_slice()).is_ok());
    let mut one_more = InstanceSection::new();
    one_more.instantiate(1, std::iter::empty::<(&str, ModuleArg)>());
    component.section(&ModuleSection(&globals(1))).section(&one_more);
    refused(component.as_slice(), "has more than 1000000 functions, globals and imports in all core instances");
}

#[test]
fn adapters_are_bounded_for_all_parts_together() {
    let mut functions = CanonicalFunctionSection::new();
    (0..30).for_each(|_| {
        functions.lower(0, []);
    });
    let mut one = Component::new();
    one.section(&functions);
    assert!(check(&levels(one.clone(), 1, 600).finish()).is_ok());
    refused(&levels(one, 1, 700).finish(), "lifted or lowered");
}

#[test]
fn a_module_has_one_memory() {
    let memories = |count| {
        let mut section = MemorySection::new();
        (0..count).for_each(|_| {
            let ty = MemoryType { minimum: 1, maximum: None, memory64: false, shared: false, page_size_log2: None };
            section.memory(ty);
        });
        let mut module = Module::new();
        module.section(&section);
        around(&module)
    };
    assert!(check(&memories(1)).is_ok());
    refused(&memories(2), "has a module with 2 memories");
}

proptest::proptest! {
    #[test]
    fn no_bytes_are_too_strange(mut bytes: Vec<u8>, at: usize, to: u8) {
        let _ = check(&bytes);
        bytes = levels(instances(&functions(2, &Function::new([])), 2), 2, 2).finish();
        let at = at % bytes.len();
        bytes[at] = to;
        let _ = check(&bytes);
    }
}
