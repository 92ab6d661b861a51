//! What the tests of the Rust API share.

/// Where the components are. Names them, the cache and a config to the library.
pub fn prepare() -> std::path::PathBuf {
    let components = kv_store_tests::dist().join("components");
    let target = components.ancestors().nth(2).expect("it lies in target/dist");
    static PREPARED: std::sync::Once = std::sync::Once::new();
    // SAFETY: nobody reads the environment before this is done: tests open stores only here.
    PREPARED.call_once(|| unsafe {
        // No compile helper stands beside the program of a test.
        let helper = format!("[compile]\nhelper = '{}'\n", target.join("dist/libexec/kv-store-compile").display());
        let config = target.join(format!("api-tests-{}.toml", std::process::id()));
        std::fs::write(&config, helper).expect("the target folder can be written to");
        std::env::set_var("KV_STORE_WASM_PATH", &components);
        std::env::set_var("KV_STORE_WASM_CONFIG", config);
        std::env::set_var("KV_STORE_WASM_CACHE", target.join("test-consumers/cache"));
        std::env::set_var("REDIS_PASSWORD", "hunter2");
    });
    components
}
