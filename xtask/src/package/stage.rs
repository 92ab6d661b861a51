//! The tree that the tarball holds, and that the Debian package puts below `/usr/lib/kv-store-wasm`. It can lie anywhere: what is in it
//! finds the rest from where it lies.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::linked::Linked;
use super::{Release, licences};
use crate::place::{LIBRARY, Place, SONAME};
use crate::step;

/// Lay out the tree, with the libraries and programs of `dist`.
pub fn lay_out(place: &Place, dist: &Path, release: &Release, linked: &Linked) -> Result<PathBuf> {
    let tree = release.folder.join("stage").join(release.name());
    for folder in ["lib", "libexec", "bin"] {
        copy_all(&dist.join(folder), &tree.join(folder))?;
    }
    for folder in ["components", "include"] {
        copy_all(&place.dist.join(folder), &tree.join(folder))?;
    }
    // As in target/dist, whose link is not copied.
    std::os::unix::fs::symlink(SONAME, tree.join("lib").join(LIBRARY))?;

    let filled = |text: &str, prefix: &str| {
        text.replace("@VERSION@", &release.version)
            .replace("@PREFIX@", prefix)
            .replace("@SONAME@", SONAME)
            .replace("@LIBRARY@", SONAME)
    };
    let packaging = place.root.join("packaging");
    for (source, target, prefix) in [
        ("kv-store-wasm.pc.in", "lib/pkgconfig/kv-store-wasm.pc", "../.."),
        ("kv-store-wasmConfig.cmake.in", "lib/cmake/kv-store-wasm/kv-store-wasmConfig.cmake", ""),
        ("kv-store-wasmConfigVersion.cmake.in", "lib/cmake/kv-store-wasm/kv-store-wasmConfigVersion.cmake", ""),
        ("config.toml", "share/kv-store-wasm/config.toml", ""),
        ("memkv-server.service", "lib/systemd/system/memkv-server.service", ""),
        ("kv-store-wasm.tmpfiles", "lib/tmpfiles.d/kv-store-wasm.conf", ""),
    ] {
        let text = std::fs::read_to_string(packaging.join(source)).with_context(|| format!("cannot read {source}"))?;
        write(&tree.join(target), &filled(&text, prefix))?;
    }
    pages(place, &tree)?;
    for (source, target) in [("LICENSE", "LICENSE"), ("CHANGELOG.md", "CHANGELOG.md")] {
        write(&tree.join(target), &std::fs::read_to_string(place.root.join(source))?)?;
    }
    write(&tree.join("THIRD-PARTY-LICENCES"), &licences::text(linked)?)?;
    write(&tree.join("README"), &readme(release))?;
    normalise(&tree, release.time)?;
    Ok(tree)
}

/// Manual pages and completions, which the programs write themselves.
pub fn pages(place: &Place, tree: &Path) -> Result<()> {
    let made = tree.join("made");
    step::output(Command::new(place.dist.join("bin/kv-store")).arg("pages").arg(&made))?;
    copy_all(&made.join("man"), &tree.join("share/man/man1"))?;
    for (made_as, installed) in [
        ("kv-store.bash", "share/bash-completion/completions/kv-store"),
        ("kv-store.fish", "share/fish/vendor_completions.d/kv-store.fish"),
        ("_kv-store", "share/zsh/site-functions/_kv-store"),
    ] {
        write(&tree.join(installed), &std::fs::read_to_string(made.join("completions").join(made_as))?)?;
    }
    std::fs::remove_dir_all(made)?;
    let server = step::output(Command::new(place.dist.join("bin/memkv-server")).arg("--man"))?;
    write(&tree.join("share/man/man1/memkv-server.1"), &server)
}

fn readme(release: &Release) -> String {
    let name = release.name();
    format!(
        "kv-store-wasm {version}, for Linux on {machine} with glibc {least} or later.\n\n\
         Unpack it anywhere; the parts find each other. A first save and restore:\n\n\
         \x20   {name}/bin/kv-store save local-fs://$HOME/kv FILE --name first\n\
         \x20   {name}/bin/kv-store restore local-fs://$HOME/kv COPY --name first\n\n\
         An engine loads lib/{LIBRARY}. lib/pkgconfig and lib/cmake are for programs that are linked with it, share/kv-store-wasm\n\
         has a config to start from, lib/systemd a unit for memkv-server, and THIRD-PARTY-LICENCES what all this is made of.\n",
        version = release.version,
        machine = release.machine,
        least = release.glibc,
    )
}

pub fn write(path: &Path, text: &str) -> Result<()> {
    std::fs::create_dir_all(path.parent().context("a file has a folder")?)?;
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

pub fn copy_all(from: &Path, to: &Path) -> Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from).with_context(|| format!("cannot read {}", from.display()))? {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            std::fs::copy(entry.path(), to.join(entry.file_name()))?;
        }
    }
    Ok(())
}

/// All that is below a folder, and the folder itself last.
pub fn walk(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        match entry.file_type()?.is_dir() {
            true => found.extend(walk(&entry.path())?),
            false => found.push(entry.path()),
        }
    }
    found.sort();
    found.push(folder.to_owned());
    Ok(found)
}

/// Modes and times of all that is below a folder, as every run has them.
pub fn normalise(folder: &Path, time: u64) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let paths = walk(folder)?;
    for path in &paths {
        let meta = path.symlink_metadata()?;
        if !meta.is_symlink() {
            let runs = meta.is_dir() || meta.permissions().mode() & 0o100 != 0;
            let mode = if runs { 0o755 } else { 0o644 };
            std::fs::set_permissions(path, PermissionsExt::from_mode(mode))?;
        }
    }
    let mut touch = Command::new("touch");
    touch.args(["--no-dereference", &format!("--date=@{time}")]).args(paths);
    step::output(&mut touch).map(drop)
}
