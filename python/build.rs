//! The library's own functions, and not those of the same name that another library of the process exports.

fn main() {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-Bsymbolic-functions");
    println!("cargo::rerun-if-changed=build.rs");
}
