//! Whether a project's component is what its sources say, and whether the compiler has what it needs.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Say that a source was changed after the component was made: a build that failed leaves the former one.
pub fn tell_newer(folder: &Path, component: &Path) {
    if let Some(newer) = newer(folder, component) {
        let (component, newer) = (component.display(), newer.display());
        eprintln!("kv-store: {component} is older than {newer}, so it is not what the sources say: run kv-store build");
    }
}

fn newer(folder: &Path, component: &Path) -> Option<PathBuf> {
    let changed = |path: &Path| path.metadata().and_then(|meta| meta.modified()).ok();
    let made = changed(component)?;
    let mut folders = vec![folder.join("src"), folder.join("wit"), folder.join("sdk/src")];
    let mut files = vec![folder.join("Cargo.toml")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let kind = if entry.file_type().is_ok_and(|kind| kind.is_dir()) { &mut folders } else { &mut files };
            kind.push(entry.path());
        }
    }
    files.into_iter().find(|file| changed(file).is_some_and(|at| at > made))
}

/// What to do where the compiler lacks the standard library of a target; empty where it has it, or cannot be asked.
pub fn hint_of_target(target: &str) -> String {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let asked = Command::new(rustc).args(["--print", "target-libdir", "--target", target]).output();
    let folder = asked.map(|output| PathBuf::from(String::from_utf8_lossy(&output.stdout).trim())).unwrap_or_default();
    // One that builds it from source with the program (build-std) needs none that is installed.
    if folder == Path::new("") || folder.is_dir() || std::env::var_os("RUSTC_BOOTSTRAP").is_some() {
        return String::new();
    }
    format!("; the target is missing: rustup target add {target}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, SystemTime};

    #[test]
    fn a_component_is_older_than_a_source_that_was_changed_since() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        std::fs::create_dir_all(path("src/deep")).unwrap();
        let write = |name: &str, age: u64| {
            std::fs::write(path(name), "").unwrap();
            let at = SystemTime::now() - Duration::from_secs(age);
            std::fs::File::options().write(true).open(path(name)).unwrap().set_modified(at).unwrap();
        };
        write("src/lib.rs", 100);
        write("src/deep/other.rs", 100);
        write("a.wasm", 50);
        assert_eq!(newer(folder.path(), &path("a.wasm")), None);
        write("src/deep/other.rs", 10);
        assert_eq!(newer(folder.path(), &path("a.wasm")), Some(path("src/deep/other.rs")));
        assert_eq!(newer(folder.path(), &path("none.wasm")), None);
    }

    #[test]
    fn the_target_is_only_named_where_it_is_missing() {
        assert_eq!(hint_of_target(&format!("{}-unknown-linux-gnu", std::env::consts::ARCH)), "");
        assert_eq!(hint_of_target("no-such-target"), "");
    }
}
