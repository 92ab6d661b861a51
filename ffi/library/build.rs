//! The library stays in the process: its threads outlive a `dlclose`. And it has a name and a version of symbols, for programs that are
//! linked with it rather than loading it.

/// Of the C ABI `kv_store_v1`. Another one would be another library.
const SONAME: &str = "libkv_store_wasm.so.1";
/// The same on macOS: where a program looks for it that is linked with it, in the folders that the program names (rpath).
const INSTALL_NAME: &str = "@rpath/libkv_store_wasm.1.dylib";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let system = std::env::var("CARGO_CFG_TARGET_OS");
    if system.as_deref() == Ok("macos") {
        println!("cargo::rustc-cdylib-link-arg=-Wl,-install_name,{INSTALL_NAME}");
    }
    if system.as_deref() == Ok("linux") {
        println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
        println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,{SONAME}");
        // Each symbol has the version SONAME. rustc's own list of exports is an anonymous version script, beside which no linker takes a
        // named one; this option is GNU ld's.
        println!("cargo::rustc-cdylib-link-arg=-fuse-ld=bfd");
        println!("cargo::rustc-cdylib-link-arg=-Wl,--default-symver");
    }
}
