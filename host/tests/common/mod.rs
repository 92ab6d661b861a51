//! What the tests of the Rust API share.

/// Where the components are. Names them, the cache and an empty config to the library.
pub fn prepare() -> std::path::PathBuf {
    let components = concat!(env!("CARGO_MANIFEST_DIR"), "/../target/dist/components");
    assert!(
        std::path::Path::new(components).exists(),
        "{components} is missing: run `cargo xtask test`, which builds it"
    );
    let components = std::path::Path::new(components).canonicalize().expect("it exists");
    let target = components.ancestors().nth(2).expect("it lies in target/dist");
    std::fs::write(target.join("empty.toml"), "").expect("the target folder can be written to");
    static PREPARED: std::sync::Once = std::sync::Once::new();
    // SAFETY: nobody reads the environment before this is done: tests open stores only here.
    PREPARED.call_once(|| unsafe {
        std::env::set_var("KV_STORE_WASM_PATH", &components);
        std::env::set_var("KV_STORE_WASM_CONFIG", target.join("empty.toml"));
        std::env::set_var("KV_STORE_WASM_CACHE", target.join("test-consumers/cache"));
        std::env::set_var("REDIS_PASSWORD", "hunter2");
    });
    components
}
