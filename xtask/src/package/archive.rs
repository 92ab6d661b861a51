//! The tarball and the Debian package, by the tools of the system, told to leave out whatever differs between two runs.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use super::Release;
use super::stage::{normalise, walk, write};
use crate::place::{LIBRARY, Place, SONAME};
use crate::step;

/// `kv-store-wasm-VERSION-linux-MACHINE.tar.gz`.
pub fn tarball(release: &Release, tree: &Path) -> Result<PathBuf> {
    let path = release.folder.join(format!("{}.tar.gz", release.name()));
    let mut tar = Command::new("tar");
    tar.args(["--create", "--sort=name", "--format=gnu", "--owner=0", "--group=0", "--numeric-owner"]);
    tar.arg(format!("--mtime=@{}", release.time))
        .arg("--directory")
        .arg(tree.parent().context("the tree has a folder")?);
    let mut tar = tar.arg(release.name()).stdout(Stdio::piped()).spawn().context("cannot run tar")?;
    let packed = tar.stdout.take().context("tar writes")?;
    // Without its name and time, which gzip would note.
    let gzip = Command::new("gzip").args(["--no-name", "-6"]).stdin(packed).stdout(File::create(&path)?).status()?;
    ensure!(tar.wait()?.success() && gzip.success(), "tar or gzip failed");
    Ok(path)
}

/// `kv-store-wasm_VERSION_ARCHITECTURE.deb`: the tree in `/usr/lib/kv-store-wasm`, and links to it where programs are looked for.
pub fn deb(place: &Place, release: &Release, tree: &Path) -> Result<PathBuf> {
    let architecture = match release.machine {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    let root = release.folder.join("stage/deb");
    let home = root.join("usr/lib/kv-store-wasm");
    std::fs::create_dir_all(home.parent().context("it has a folder")?)?;
    step::output(Command::new("cp").arg("--archive").arg(tree).arg(&home))?;
    let libraries = format!("usr/lib/{}-linux-gnu", release.machine);
    // What others look for goes where they look; what is left of `share` is documentation.
    for (from, to) in [
        ("lib/systemd", "usr/lib/systemd"),
        ("lib/tmpfiles.d", "usr/lib/tmpfiles.d"),
        ("share/man", "usr/share/man"),
        ("share/bash-completion", "usr/share/bash-completion"),
        ("share/fish", "usr/share/fish"),
        ("share/zsh/site-functions", "usr/share/zsh/vendor-completions"),
        ("share/kv-store-wasm", "usr/share/doc/kv-store-wasm/examples"),
        ("THIRD-PARTY-LICENCES", "usr/share/doc/kv-store-wasm/THIRD-PARTY-LICENCES"),
        ("CHANGELOG.md", "usr/share/doc/kv-store-wasm/CHANGELOG.md"),
        ("LICENSE", "usr/share/doc/kv-store-wasm/copyright"),
    ] {
        let to = root.join(to);
        std::fs::create_dir_all(to.parent().context("it has a folder")?)?;
        std::fs::rename(home.join(from), to).with_context(|| format!("cannot move {from}"))?;
    }
    for (link, target) in [
        ("usr/bin/kv-store".to_owned(), "../lib/kv-store-wasm/bin/kv-store".to_owned()),
        ("usr/bin/memkv-server".to_owned(), "../lib/kv-store-wasm/bin/memkv-server".to_owned()),
        ("usr/include/kv-store-wasm".to_owned(), "../lib/kv-store-wasm/include".to_owned()),
        (format!("{libraries}/{SONAME}"), format!("../kv-store-wasm/lib/{SONAME}")),
        (format!("{libraries}/{LIBRARY}"), SONAME.to_owned()),
        (format!("{libraries}/libkv_cache.so"), "../kv-store-wasm/lib/libkv_cache.so".to_owned()),
        (format!("{libraries}/libkv_store_llama.so"), "../kv-store-wasm/lib/libkv_store_llama.so".to_owned()),
        (
            format!("{libraries}/pkgconfig/kv-store-wasm.pc"),
            "../../kv-store-wasm/lib/pkgconfig/kv-store-wasm.pc".to_owned(),
        ),
        (format!("{libraries}/cmake/kv-store-wasm"), "../../kv-store-wasm/lib/cmake/kv-store-wasm".to_owned()),
    ] {
        let link = root.join(link);
        std::fs::create_dir_all(link.parent().context("it has a folder")?)?;
        std::os::unix::fs::symlink(target, link)?;
    }
    let bytes: u64 = walk(&root)?.iter().filter_map(|path| path.symlink_metadata().ok()).map(|meta| meta.len()).sum();
    let control = std::fs::read_to_string(place.root.join("packaging/debian-control.in"))?;
    let control = control
        .replace("@VERSION@", &release.version)
        .replace("@ARCHITECTURE@", architecture)
        .replace("@KILOBYTES@", &bytes.div_ceil(1024).to_string())
        .replace("@GLIBC@", &release.glibc.to_string());
    write(&root.join("DEBIAN/control"), &control)?;
    write(&root.join("DEBIAN/triggers"), "activate-noawait ldconfig\n")?;
    normalise(&root, release.time)?;
    let path = release.folder.join(format!("kv-store-wasm_{}_{architecture}.deb", release.version));
    let mut build = Command::new("dpkg-deb");
    // One thread: with several the compressed blocks depend on how many there are.
    build.args(["--root-owner-group", "-Zxz", "-z1", "--threads-max=1", "--build"]).arg(&root).arg(&path);
    step::output(build.env("SOURCE_DATE_EPOCH", release.time.to_string()))?;
    Ok(path)
}
