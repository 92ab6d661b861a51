//! What 1.x may add, and who goes on: components of today load in a host that has one more of each, under the next version. That
//! components of tomorrow are refused here with a clear line is shown by the guests `newer-function`, `newer-method` and
//! `newer-interface`; that a new key in `more` is ignored, by `newer-fact`.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test that fails panics")]

use kv_store_tests::dist;
use wasmtime::Engine;
use wasmtime::component::types::ComponentItem;
use wasmtime::component::{Component, Linker, ResourceType};

/// What a component imports, in the next minor version: a function more in each interface, a method more in each resource, and an
/// interface more.
fn tomorrow(component: &Component, engine: &Engine) -> Linker<()> {
    let mut linker = Linker::new(engine);
    for (name, interface) in component.component_type().imports(engine) {
        let ComponentItem::ComponentInstance(interface) = interface.ty else { panic!("{name} is no interface") };
        let mut instance = linker.instance(&name.replace("@1.1.0", "@1.2.0")).unwrap();
        let mut functions = vec!["of-tomorrow".to_owned()];
        for (item, kind) in interface.exports(engine) {
            match kind.ty {
                ComponentItem::ComponentFunc(_) => functions.push(item.to_owned()),
                ComponentItem::Resource(_) => {
                    instance.resource(item, ResourceType::host::<()>(), |_, _| Ok(())).unwrap();
                    functions.push(format!("[method]{item}.of-tomorrow"));
                }
                _ => {}
            }
        }
        for function in functions {
            instance.func_new(&function, |_, _, _, _| Err(wasmtime::Error::msg("nobody calls it"))).unwrap();
        }
    }
    let mut tape = linker.instance("kv-store:backend/tape@1.2.0").unwrap();
    tape.func_new("rewind", |_, _, _, _| Err(wasmtime::Error::msg("nobody calls it"))).unwrap();
    linker
}

#[test]
fn components_of_today_load_in_a_host_of_tomorrow() {
    let engine = Engine::default();
    for name in ["local-fs", "memkv", "memory", "redis", "segments"] {
        let file = dist().join(format!("components/{name}.wasm"));
        let component = Component::from_file(&engine, file).unwrap();
        let loaded = tomorrow(&component, &engine).instantiate_pre(&component);
        assert!(loaded.is_ok(), "{name}: {:#}", loaded.err().unwrap());
        // And it looks for their export under its own version.
        assert!(component.get_export_index(None, "kv-store:backend/store@1.2.0").is_some(), "{name}");
        assert!(component.get_export_index(None, "kv-store:backend/store@2.0.0").is_none(), "{name}");
        // What it imports must be there.
        assert!(Linker::<()>::new(&engine).instantiate_pre(&component).is_err(), "{name}");
    }
}
