//! Components that a program makes, because no text would be as short.

use wasm_encoder::{
    CodeSection, Component, ComponentSection, ConstExpr, Function, FunctionSection, GlobalSection, GlobalType,
    InstanceSection, MemorySection, MemoryType, Module, ModuleArg, ModuleSection, TypeSection, ValType,
};

/// A module that has a memory of one page.
pub fn with_memory() -> Module {
    let mut memories = MemorySection::new();
    memories.memory(MemoryType { minimum: 1, maximum: None, memory64: false, shared: false, page_size_log2: None });
    let mut module = Module::new();
    module.section(&memories);
    module
}

/// A module of so many globals.
pub fn with_globals(count: usize) -> Module {
    let mut globals = GlobalSection::new();
    for _ in 0..count {
        let ty = GlobalType { val_type: ValType::I32, mutable: true, shared: false };
        globals.global(ty, &ConstExpr::i32_const(0));
    }
    let mut module = Module::new();
    module.section(&globals);
    module
}

/// A component, and behind it a module that is instantiated so many times.
pub fn instantiated(component: &[u8], module: &Module, count: usize) -> Vec<u8> {
    let is_module = |payload: &wasmparser::Payload| matches!(payload, wasmparser::Payload::ModuleSection { .. });
    let modules =
        wasmparser::Parser::new(0).parse_all(component).filter(|payload| payload.as_ref().is_ok_and(is_module));
    let index = modules.count() as u32;
    let mut instances = InstanceSection::new();
    for _ in 0..count {
        instances.instantiate(index, std::iter::empty::<(&str, ModuleArg)>());
    }
    let mut bytes = component.to_vec();
    ModuleSection(module).append_to_component(&mut bytes);
    instances.append_to_component(&mut bytes);
    bytes
}

/// A component around a module of so many functions, each of which multiplies its argument with itself so many times.
pub fn with_functions(count: usize, steps: usize) -> Vec<u8> {
    let mut function = Function::new([]);
    let mut code = function.instructions();
    for _ in 0..steps {
        code.local_get(0).local_get(0).i64_mul().local_set(0);
    }
    code.local_get(0).end();
    let (mut types, mut functions, mut bodies) = (TypeSection::new(), FunctionSection::new(), CodeSection::new());
    types.ty().function([ValType::I64], [ValType::I64]);
    for _ in 0..count {
        functions.function(0);
        bodies.function(&function);
    }
    let mut module = Module::new();
    module.section(&types).section(&functions).section(&bodies);
    let mut component = Component::new();
    component.section(&ModuleSection(&module));
    component.finish()
}
