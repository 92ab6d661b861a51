//! Where things lie: the clone, the build folder, the layout of what is built.

use std::path::PathBuf;

use anyhow::Result;

/// The folders that commands use.
#[derive(Clone)]
pub struct Place {
    /// The clone.
    pub root: PathBuf,
    /// Cargo's target folder: `CARGO_TARGET_DIR`, or `target` in the clone.
    pub target: PathBuf,
    /// What an operator installs. Always in the clone.
    pub dist: PathBuf,
    /// Features of the workspace that are built, beside those that every crate asks for.
    pub features: &'static [&'static str],
    /// What runs rustc for the crates of the workspace, if not cargo.
    pub rustc_wrapper: Option<PathBuf>,
}

impl Place {
    pub fn find() -> Result<Self> {
        let root = kv_store_tests::root();
        let target = match std::env::var_os("CARGO_TARGET_DIR") {
            Some(named) => std::path::absolute(named)?,
            None => root.join("target"),
        };
        let dist = root.join("target/dist");
        Ok(Place { root, target, dist, features: &[], rustc_wrapper: None })
    }

    /// Where long steps keep their work and their logs.
    pub fn work(&self) -> PathBuf {
        self.target.join("xtask")
    }

    /// llama.cpp and what belongs to it, kept between runs.
    pub fn llama(&self) -> PathBuf {
        self.target.join("llama")
    }

    /// A config that says nothing: an operator's own is not for what runs here.
    pub fn empty_config(&self) -> Result<PathBuf> {
        let path = self.work().join("empty.toml");
        std::fs::create_dir_all(self.work())?;
        std::fs::write(&path, "")?;
        Ok(path)
    }

    /// What the environment of a program has that loads the library in a test: no config, a cache of code that is kept.
    pub fn for_consumers(&self, program: &mut std::process::Command) -> Result<()> {
        program.env("KV_STORE_WASM_CONFIG", self.empty_config()?).env_remove("KV_STORE_WASM_PATH");
        program.env("KV_STORE_WASM_CACHE", self.work().join("aot"));
        Ok(())
    }

    pub fn components(&self) -> PathBuf {
        self.dist.join("components")
    }

    pub fn library(&self) -> PathBuf {
        self.dist.join("lib").join(LIBRARY)
    }

    pub fn cache_library(&self) -> PathBuf {
        self.dist.join("lib").join(CACHE_LIBRARY)
    }

    pub fn llama_library(&self) -> PathBuf {
        self.dist.join("lib").join(LLAMA_LIBRARY)
    }
}

/// The name of the library for those who load it, and for a linker. It is a link to [`SONAME`].
pub const LIBRARY: &str = "libkv_store_wasm.so";

/// The library's file: programs that are linked with it look for this name when they start. `ffi/library/build.rs` has it too, and a
/// test compares.
pub const SONAME: &str = "libkv_store_wasm.so.1";

/// That of the token-exact cache.
pub const CACHE_LIBRARY: &str = "libkv_cache.so";

/// That of states of llama.cpp.
pub const LLAMA_LIBRARY: &str = "libkv_store_llama.so";
