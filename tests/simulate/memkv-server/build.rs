//! What of the server is for simulations alone.

fn main() {
    println!("cargo:rustc-cfg=simulated");
}
