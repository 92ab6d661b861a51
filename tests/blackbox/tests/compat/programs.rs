//! Programs as bytes, built with the headers of a release and linked with its libraries: each runs unchanged on this library, and says
//! what it said on that of its release. `tests/compat/programs/README.md` says how they were built.

use std::path::{Path, PathBuf};
use std::process::Command;

use kv_store_tests::consumer::finish;
use kv_store_tests::{dist, library_path, root, skipped};

/// What a program finds of what is installed: the libraries under the names by which programs are linked with them, and beside them what
/// they look for.
fn installed(folder: &Path) -> PathBuf {
    let lib = folder.join("lib");
    std::fs::create_dir(&lib).unwrap();
    for name in ["libkv_store_wasm.so", "libkv_cache.so"] {
        std::os::unix::fs::symlink(dist().join("lib").join(name), lib.join(name)).unwrap();
    }
    // The name of the C ABI `kv_store_v1`, which packages install.
    std::os::unix::fs::symlink(library_path(), lib.join("libkv_store_wasm.so.1")).unwrap();
    for name in ["components", "libexec"] {
        std::os::unix::fs::symlink(dist().join(name), folder.join(name)).unwrap();
    }
    lib
}

/// Run a program of a release, and compare what it says. `{}` in an argument is a folder of its own, which is new.
fn says_what_it_said(release: &str, name: &str, arguments: &[&str]) {
    if cfg!(not(all(target_os = "linux", target_arch = "x86_64"))) {
        skipped("the programs in tests/compat/programs are for x86-64");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let own = folder.path().join("own");
    std::fs::create_dir(&own).unwrap();
    let lib = installed(folder.path());
    let made = root().join("target/test-consumers");
    std::fs::create_dir_all(&made).unwrap();
    let config = folder.path().join("empty.toml");
    std::fs::write(&config, "").unwrap();
    let programs = root().join("tests/compat/programs").join(release);
    let mut program = Command::new(programs.join(name));
    program.args(arguments.iter().map(|argument| argument.replace("{}", own.to_str().unwrap())));
    program.env_clear().env("LD_LIBRARY_PATH", &lib).env("KV_STORE_WASM_CONFIG", config);
    program.env("KV_STORE_WASM_CACHE", made.join("cache"));
    let finished = finish(&mut program);
    let expected = std::fs::read_to_string(programs.join(format!("{name}.out"))).unwrap();
    for (number, (said, expected)) in finished.stdout.lines().zip(expected.lines()).enumerate() {
        assert_eq!(said, expected, "line {} of {name}.out of {release}:\n{}", number + 1, finished.stderr);
    }
    assert!(finished.status.success() && finished.stdout == expected, "{name} of {release}: {finished:?}");
}

#[test]
fn a_program_of_0_2_uses_stores() {
    says_what_it_said("0.2.0", "kv_store_abi", &["local-fs://{}"]);
}

#[test]
fn a_program_of_0_2_uses_batches() {
    says_what_it_said("0.2.0", "kv_store_batch", &["local-fs://{}", "{}/chunks/6/6c6f7374206b6579026b7632"]);
}

#[test]
fn a_program_of_0_2_saves_sequences() {
    says_what_it_said("0.2.0", "kv_store_kvx", &["local-fs://{}"]);
}

#[test]
fn a_program_of_0_2_uses_kernels() {
    says_what_it_said("0.2.0", "kvx", &[]);
}

#[test]
fn a_program_of_0_2_caches_rows() {
    says_what_it_said("0.2.0", "kv_cache", &["{}"]);
}

#[test]
fn a_program_of_0_2_caches_blocks() {
    says_what_it_said("0.2.0", "kv_blocks", &["local-fs://{}"]);
}
