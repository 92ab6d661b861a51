//! The crates as crates.io would take them. Packed together, so that each finds those of ours that it depends on; nothing is published.

use std::process::Command;

use anyhow::Result;

use crate::place::Place;
use crate::step;

/// In the order in which they would be published. Those that are left out are programs, C libraries and tests.
const CRATES: &[&str] = &[
    "kv-size",
    "kv-platform",
    "kv-store-abi",
    "kvx",
    "kv-http-wire",
    "kv-blocks",
    "kv-cache",
    "memkv-wire",
    "kv-store-compiler",
    "kv-store-sdk",
    "kv-store-core",
    "kv-store-wasm",
];

pub fn pack(place: &Place) -> Result<()> {
    let mut package = Command::new("cargo");
    package.current_dir(&place.root).args(["package", "--locked", "--no-verify", "--allow-dirty"]);
    for name in CRATES {
        package.args(["--package", name]);
    }
    step::run(place, "packing the crates", &mut package)?;
    for name in CRATES {
        eprintln!(
            "packed {}",
            place.target.join("package").join(format!("{name}-{}.crate", env!("CARGO_PKG_VERSION"))).display()
        );
    }
    Ok(())
}
