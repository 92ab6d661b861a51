//! Components of few bytes that cost a compiler much.

use wasm_encoder::{
    BlockType, CanonicalOption, CodeSection, Component, ComponentBuilder, ComponentExportKind, ComponentExportSection,
    ComponentInstanceSection, ComponentTypeRef, ComponentValType, ElementSection, Elements, EntityType, ExportKind,
    ExportSection, Function, FunctionSection, ImportSection, MemorySection, MemoryType, Module, ModuleArg,
    ModuleSection, NestedComponentSection, PrimitiveValType, TypeSection, ValType,
};

const NONE: std::iter::Empty<(&str, ComponentExportKind, u32)> = std::iter::empty();

/// A component that has the name of a backend's export, so that it is not refused for what it lacks. `instances`: how many it has.
pub fn named_after(mut component: Component, instances: u32) -> Vec<u8> {
    let (mut nothing, mut exports) = (ComponentInstanceSection::new(), ComponentExportSection::new());
    nothing.export_items(NONE);
    exports.export("kv-store:backend/store@1.1.0", ComponentExportKind::Instance, instances, None);
    component.section(&nothing).section(&exports);
    component.finish()
}

/// Levels of components, each of which instantiates the one within it so many times.
pub fn nested(levels: u32, times: u32) -> Vec<u8> {
    let around = |inner: &Component| {
        let mut instances = ComponentInstanceSection::new();
        for _ in 0..times {
            instances.instantiate(0, NONE);
        }
        let mut outer = Component::new();
        outer.section(&NestedComponentSection(inner)).section(&instances);
        outer
    };
    named_after((0..levels).fold(Component::new(), |inner, _| around(&inner)), times)
}

fn around(module: &Module) -> Vec<u8> {
    let mut component = Component::new();
    component.section(&ModuleSection(module));
    named_after(component, 0)
}

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

/// A function that is a table of branches to places at each of which a local is set: locals times branches is what it costs.
pub fn branches(locals: u32, branches: u32) -> Vec<u8> {
    let places = branches.min(900);
    let mut function = Function::new([(locals, ValType::I64)]);
    let mut code = function.instructions();
    for place in 0..places {
        code.block(BlockType::Empty).i64_const(place.into()).local_set(place % locals);
    }
    code.local_get(0).i32_wrap_i64().br_table((0..branches).map(|branch| branch % places).collect::<Vec<_>>(), 0);
    for place in 0..places {
        code.end().local_get(place % locals).i64_const(3).i64_add().local_set(place * 3 % locals);
    }
    for local in 0..locals {
        code.local_get(local).drop();
    }
    code.end();
    around(&functions(1, &function))
}

/// A function of so many loops within each other: a megabyte of them took the compiler 3.7 GB.
pub fn loops(count: usize) -> Vec<u8> {
    let mut function = Function::new([]);
    let mut code = function.instructions();
    for _ in 0..count {
        code.loop_(BlockType::Empty);
    }
    for _ in 0..=count {
        code.end();
    }
    around(&functions(1, &function))
}

/// Functions each of which multiplies a local with itself so many times.
pub fn long(count: usize, steps: usize) -> Vec<u8> {
    let mut function = Function::new([(1, ValType::I64)]);
    let mut code = function.instructions();
    for _ in 0..steps {
        code.local_get(0).local_get(0).i64_mul().local_set(0);
    }
    code.end();
    around(&functions(count, &function))
}

/// A segment of so many elements.
pub fn elements(count: usize) -> Vec<u8> {
    let mut elements = ElementSection::new();
    elements.passive(Elements::Functions(vec![0; count].into()));
    let mut module = Module::new();
    module.section(&elements);
    around(&module)
}

/// Types that are all different.
pub fn types(count: usize) -> Vec<u8> {
    let mut types = TypeSection::new();
    for n in 0..count {
        let digit = |at: usize| [ValType::I32, ValType::I64, ValType::F32, ValType::F64][n >> (2 * at) & 3];
        types.ty().function((0..12).map(digit), []);
    }
    let mut module = Module::new();
    module.section(&types);
    around(&module)
}

/// A component with so many adapters between two within it, that pass strings in pairs of pairs of so many levels.
pub fn adapters(count: u32, levels: u32) -> Vec<u8> {
    // What is passed: by a pointer, once it has more than 16 flat values.
    let flat = if levels > 3 { 1 } else { 2_usize << levels };
    let mut outer = ComponentBuilder::default();
    let (text, name) = (ComponentValType::Primitive(PrimitiveValType::String), "take");
    let function = |builder: &mut ComponentBuilder| {
        let mut passed = text;
        for _ in 0..levels {
            let (index, ty) = builder.type_defined(None);
            ty.tuple([passed, passed]);
            passed = ComponentValType::Type(index);
        }
        let (index, mut ty) = builder.type_function(None);
        ty.params([("x", passed)]).result(None);
        index
    };

    let mut taking = ComponentBuilder::default();
    let ty = function(&mut taking);
    let module = taking.core_module(None, &memory_and_functions(flat));
    let instance = taking.core_instantiate(None, module, std::iter::empty::<(&str, ModuleArg)>());
    let memory = taking.core_alias_export(None, instance, "memory", ExportKind::Memory);
    let realloc = taking.core_alias_export(None, instance, "realloc", ExportKind::Func);
    let take = taking.core_alias_export(None, instance, name, ExportKind::Func);
    let options = [CanonicalOption::Memory(memory), CanonicalOption::Realloc(realloc), CanonicalOption::UTF8];
    let lifted = taking.lift_func(None, take, ty, options);
    taking.export(name, ComponentExportKind::Func, lifted, None);

    let mut giving = ComponentBuilder::default();
    let ty = function(&mut giving);
    let given = giving.import(name, ComponentTypeRef::Func(ty));
    let module = giving.core_module(None, &memory_and_functions(flat));
    let instance = giving.core_instantiate(None, module, std::iter::empty::<(&str, ModuleArg)>());
    let memory = giving.core_alias_export(None, instance, "memory", ExportKind::Memory);
    let lowered: Vec<(String, ExportKind, u32)> = (0..count)
        .map(|n| {
            let options = [CanonicalOption::Memory(memory), CanonicalOption::UTF8];
            (n.to_string(), ExportKind::Func, giving.lower_func(None, given, options))
        })
        .collect();
    let all =
        giving.core_instantiate_exports(None, lowered.iter().map(|(name, kind, index)| (name.as_str(), *kind, *index)));
    let mut types = TypeSection::new();
    types.ty().function(vec![ValType::I32; flat], []);
    let mut imports = ImportSection::new();
    for (name, ..) in &lowered {
        imports.import("all", name, EntityType::Function(0));
    }
    let mut using = Module::new();
    using.section(&types).section(&imports);
    let using = giving.core_module(None, &using);
    giving.core_instantiate(None, using, [("all", ModuleArg::Instance(all))]);

    let taking = outer.component(None, taking);
    let taken = outer.instantiate(None, taking, NONE);
    let take = outer.alias_export(taken, name, ComponentExportKind::Func);
    let giving = outer.component(None, giving);
    outer.instantiate(None, giving, [(name, ComponentExportKind::Func, take)]);
    outer.finish()
}

/// A module with a memory, a realloc, and a function of so many parameters.
fn memory_and_functions(parameters: usize) -> Module {
    let (mut types, mut functions, mut bodies) = (TypeSection::new(), FunctionSection::new(), CodeSection::new());
    types.ty().function(vec![ValType::I32; parameters], []);
    types.ty().function([ValType::I32; 4], [ValType::I32]);
    functions.function(0).function(1);
    let mut take = Function::new([]);
    take.instructions().end();
    let mut realloc = Function::new([]);
    realloc.instructions().i32_const(1024).end();
    bodies.function(&take).function(&realloc);
    let mut memories = MemorySection::new();
    memories.memory(MemoryType { minimum: 1, maximum: None, memory64: false, shared: false, page_size_log2: None });
    let mut exports = ExportSection::new();
    exports.export("take", ExportKind::Func, 0).export("realloc", ExportKind::Func, 1);
    exports.export("memory", ExportKind::Memory, 0);
    let mut module = Module::new();
    module.section(&types).section(&functions).section(&memories).section(&exports).section(&bodies);
    module
}
