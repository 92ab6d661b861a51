//! The library's own functions, and not those of the same name that another library of the process exports.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    match std::env::var("CARGO_CFG_TARGET_OS").as_deref() {
        // There each library names the one that a function is of. Python's are those of the process that loads it.
        Ok("macos") => println!("cargo::rustc-cdylib-link-arg=-Wl,-undefined,dynamic_lookup"),
        _ => println!("cargo::rustc-cdylib-link-arg=-Wl,-Bsymbolic-functions"),
    }
}
