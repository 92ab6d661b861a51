//! The library stays in the process: its threads outlive a `dlclose`. Elsewhere than on Linux it sees to that itself
//! (`kv_platform::signals`).

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    match std::env::var("CARGO_CFG_TARGET_OS").as_deref() {
        Ok("linux") => println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete"),
        // What programs that are linked with it look for, in the folders that they name (rpath).
        Ok("macos") => println!("cargo::rustc-cdylib-link-arg=-Wl,-install_name,@rpath/libkv_cache.dylib"),
        _ => {}
    }
}
