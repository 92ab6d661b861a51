//! Components of few bytes that cost a compiler much.

use wasm_encoder::{
    BlockType, CodeSection, Component, ComponentExportKind, ComponentExportSection, ComponentInstanceSection,
    ElementSection, Elements, Function, FunctionSection, Module, ModuleSection, NestedComponentSection, TypeSection,
    ValType,
};

const NONE: std::iter::Empty<(&str, ComponentExportKind, u32)> = std::iter::empty();

/// A component that has the name of a backend's export, so that it is not refused for what it lacks. `instances`: how many it has.
fn named(mut component: Component, instances: u32) -> Vec<u8> {
    let (mut nothing, mut exports) = (ComponentInstanceSection::new(), ComponentExportSection::new());
    nothing.export_items(NONE);
    exports.export("kv-store:backend/store@1.0.0", ComponentExportKind::Instance, instances, None);
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
    named((0..levels).fold(Component::new(), |inner, _| around(&inner)), times)
}

fn around(module: &Module) -> Vec<u8> {
    let mut component = Component::new();
    component.section(&ModuleSection(module));
    named(component, 0)
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
