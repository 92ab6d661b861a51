//! What is packed works where it is unpacked: in a root with nothing else but the C library, and for programs that look for it.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use kv_store_tests::redis::RedisServer;

use super::{Release, Verify, assemble, crates, digest, elsewhere, unpack};
use crate::place::{LLAMA_LIBRARY, Place, SONAME};
use crate::{packages, step};

pub fn run(place: &Place, verify: Verify) -> Result<()> {
    packages::install(&["cmake", "dpkg", "pkg-config"])?;
    let release = Release::find(place)?;
    let first = assemble(place)?.iter().map(|path| digest(path)).collect::<Result<Vec<_>>>()?;
    let made = assemble(place)?;
    let second = made.iter().map(|path| digest(path)).collect::<Result<Vec<_>>>()?;
    ensure!(first == second, "two runs differ: {first:?} and {second:?} of {made:?}");
    let work = place.work().join("package");
    if work.exists() {
        std::fs::remove_dir_all(&work)?;
    }
    std::fs::create_dir_all(&work)?;
    let tree = unpack(&release, &work)?;
    symbols(&tree)?;
    weights(&tree)?;
    bare(&release, &work)?;
    linked(place, &tree, &work)?;
    let deb = debian(&release, &work)?;
    unit(&tree)?;
    if verify == Verify::Yes {
        elsewhere::run(place, &release, &deb)?;
    }
    crates::pack(place, verify)?;
    if verify == Verify::Yes {
        crates::used_elsewhere(place, &tree, &work)?;
    }
    container(&release)
}

/// The library's name and the version of its symbols are what is promised to programs that are linked with it.
fn symbols(tree: &Path) -> Result<()> {
    let library = tree.join("lib").join(SONAME);
    let dynamic = step::output(Command::new("readelf").args(["--dynamic", "--wide"]).arg(&library))?;
    ensure!(dynamic.contains(&format!("[{SONAME}]")), "the library has another SONAME:\n{dynamic}");
    let exported = step::output(Command::new("nm").args(["--dynamic", "--defined-only"]).arg(&library))?;
    let wanted = format!(" T kv_store_get_vtable@@{SONAME}");
    ensure!(exported.contains(&wanted), "no {wanted:?} among the exported symbols:\n{exported}");
    eprintln!("ok the library is {SONAME}, and so are its symbols");
    Ok(())
}

/// Bytes that a library may have: the one with the compiler inside, and the one that every program of a server loads. The former is meant to have
/// 20 MB; descriptors, of stores and then of rows and blocks, took it over that, and what segments remember of syncs that failed.
const MOST_BYTES: [(&str, u64); 2] = [(SONAME, 20_350_000), (LLAMA_LIBRARY, 2_000_000)];

fn weights(tree: &Path) -> Result<()> {
    for (name, most) in MOST_BYTES {
        let bytes = std::fs::metadata(tree.join("lib").join(name))?.len();
        ensure!(bytes <= most, "{name} has {bytes} bytes, and at most {most} are meant: what was added?");
        eprintln!("ok {name} has {:.1} MB, of {:.1}", bytes as f64 / 1e6, most as f64 / 1e6);
    }
    Ok(())
}

/// A save and a restore through local-fs and through redis, in a root that holds the tarball, the C library, /proc and nothing else.
fn bare(release: &Release, work: &Path) -> Result<()> {
    let root = work.join("root");
    for folder in ["opt", "proc", "tmp", "store"] {
        std::fs::create_dir_all(root.join(folder))?;
    }
    let tree = unpack(release, &root.join("opt"))?;
    let mut programs = vec![tree.join("bin/kv-store"), tree.join("libexec/kv-store-compile")];
    programs.retain(|program| program.exists());
    for program in &programs {
        let libraries = step::output(Command::new("ldd").arg(program))?;
        for library in libraries.split_whitespace().filter(|word| word.starts_with('/')) {
            let to = root.join(library.trim_start_matches('/'));
            std::fs::create_dir_all(to.parent().context("a library has a folder")?)?;
            std::fs::copy(library, to)?;
        }
    }
    let data: Vec<u8> = (0..3_000_000_u32).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    std::fs::write(root.join("tmp/file"), &data)?;
    let program = format!("/opt/{}/bin/kv-store", release.name());
    let within = |arguments: &[&str], has_network: bool| {
        let mut command = Command::new("unshare");
        // As root without a user namespace of its own, which some systems forbid.
        if step::output(Command::new("id").arg("-u")).is_ok_and(|id| id.trim() != "0") {
            command.arg("--map-root-user");
        }
        command.args(["--mount", "--ipc", "--pid", "--fork", "--root"]).arg(&root);
        if !has_network {
            command.arg("--net");
        }
        // Compiled code is opened by way of /proc, which every machine has.
        command.args(["--wd", "/", "--mount-proc", &program]).args(arguments);
        command.env_clear().env("PATH", "/usr/bin:/bin").env("HOME", "/tmp");
        step::output(&mut command)
    };
    let server = RedisServer::start(&[]);
    let redis = format!("redis://127.0.0.1:{}/0", server.port);
    for (uri, has_network) in [("local-fs:///store/kv", false), (&*redis, true)] {
        let begun = Instant::now();
        within(&["save", uri, "/tmp/file", "--name", "first"], has_network)?;
        within(&["restore", uri, "/tmp/copy", "--name", "first"], has_network)?;
        ensure!(std::fs::read(root.join("tmp/copy"))? == data, "{uri}: what was restored is not what was saved");
        std::fs::remove_file(root.join("tmp/copy"))?;
        let took = begun.elapsed().as_secs_f64();
        let told = within(&["doctor", uri, "--probe"], has_network)?;
        ensure!(told.contains("ready: no problems found"), "{told}");
        eprintln!(
            "ok the tarball saves and restores through {uri} in a root of its own ({took:.1} s, compiling included)"
        );
    }
    Ok(())
}

/// A C++ program that finds the library by CMake, and a C program that does by pkg-config.
fn linked(place: &Place, tree: &Path, work: &Path) -> Result<()> {
    let source = place.root.join("packaging/example");
    let build = work.join("example");
    let mut configure = Command::new("cmake");
    configure.arg("-S").arg(&source).arg("-B").arg(&build).arg(format!("-DCMAKE_PREFIX_PATH={}", tree.display()));
    step::output(configure.arg("-DCMAKE_BUILD_TYPE=Release"))?;
    step::output(Command::new("cmake").arg("--build").arg(&build))?;
    // The example asks for 0.2, the first version that was linked under this SONAME.
    let asks = work.join("asks");
    for (version, is_found) in [(env!("CARGO_PKG_VERSION"), true), ("0.1", false), ("99", false)] {
        let text = format!(
            "cmake_minimum_required(VERSION 3.16)\nproject(asks LANGUAGES NONE)\n\
             find_package(kv-store-wasm {version} CONFIG QUIET)\nmessage(\"found: ${{kv-store-wasm_FOUND}}\")\n"
        );
        super::stage::write(&asks.join("CMakeLists.txt"), &text)?;
        let mut command = Command::new("sh");
        command.args(["-c", "cmake -S \"$1\" -B \"$1/build\" -DCMAKE_PREFIX_PATH=\"$2\" 2>&1", "sh"]);
        let said = step::output(command.arg(&asks).arg(tree))?;
        ensure!(said.contains(&format!("found: {}", u8::from(is_found))), "{version} of the package: {said}");
    }
    let store = work.join("store");
    let uri = format!("local-fs://{}", store.display());
    let mut program = Command::new(build.join("example"));
    place.for_consumers(program.arg(&uri))?;
    let said = step::output(&mut program)?;
    ensure!(said.contains("restored"), "{said}");

    let pkg_config = |arguments: &[&str]| {
        let mut command = Command::new("pkg-config");
        step::output(command.args(arguments).arg("kv-store-wasm").env("PKG_CONFIG_PATH", tree.join("lib/pkgconfig")))
    };
    ensure!(pkg_config(&["--modversion"])?.trim() == env!("CARGO_PKG_VERSION"), "another version");
    let flags = pkg_config(&["--cflags", "--libs"])?;
    let program = work.join("by-pkg-config");
    let mut compiler = Command::new("g++");
    compiler
        .args(["-std=c++17", "-Wall", "-Wextra", "-Werror"])
        .arg(source.join("example.cpp"))
        .arg("-o")
        .arg(&program);
    step::output(compiler.args(flags.split_whitespace()))?;
    let mut program = Command::new(program);
    place.for_consumers(program.arg(&uri))?;
    ensure!(
        step::output(program.env("LD_LIBRARY_PATH", tree.join("lib")))?.contains("restored"),
        "it restored nothing"
    );
    eprintln!("ok a C++ program finds the library by find_package and by pkg-config");
    Ok(())
}

/// What dpkg makes of the package, and that no link of it leads nowhere.
fn debian(release: &Release, work: &Path) -> Result<PathBuf> {
    let deb = std::fs::read_dir(&release.folder)?.filter_map(|entry| Some(entry.ok()?.path()));
    let deb =
        deb.into_iter().find(|path| path.extension().is_some_and(|end| end == "deb")).context("there is no .deb")?;
    let fields = step::output(Command::new("dpkg-deb").args(["--field"]).arg(&deb))?;
    ensure!(fields.contains(&format!("Version: {}", release.version)), "{fields}");
    let root = work.join("debian");
    step::output(Command::new("dpkg-deb").arg("--extract").arg(&deb).arg(&root))?;
    for path in super::stage::walk(&root)?.iter().filter(|path| path.is_symlink()) {
        ensure!(path.exists(), "{} leads nowhere", path.display());
    }
    let version = step::output(Command::new(root.join("usr/bin/kv-store")).arg("--version"))?;
    ensure!(version.contains(&release.version), "{version}");
    eprintln!("ok the Debian package unpacks, and its links lead to what they name");
    Ok(deb)
}

/// systemd accepts the unit, where there is one to ask.
fn unit(tree: &Path) -> Result<()> {
    let unit = tree.join("lib/systemd/system/memkv-server.service");
    if step::output(Command::new("systemd-analyze").arg("--version")).is_err() {
        eprintln!("skipped: the unit of memkv-server, because there is no systemd-analyze");
        return Ok(());
    }
    // Its program is not installed here.
    let text = std::fs::read_to_string(&unit)?.replace("/usr/bin/memkv-server", "/bin/true");
    let checked = tree.join("memkv-server.service");
    std::fs::write(&checked, text)?;
    let output = Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&checked).output()?;
    std::fs::remove_file(checked)?;
    let said = String::from_utf8_lossy(&output.stderr);
    let ours: Vec<&str> = said.lines().filter(|line| line.contains("memkv-server.service")).collect();
    ensure!(ours.is_empty(), "systemd-analyze verify: {}", ours.join("\n"));
    eprintln!("ok systemd-analyze accepts the unit");
    Ok(())
}

/// The image builds and the server in it answers, where there is a container tool that runs.
fn container(release: &Release) -> Result<()> {
    let tool = ["docker", "podman"].into_iter().find(|tool| step::output(Command::new(tool).arg("info")).is_ok());
    let Some(tool) = tool else {
        eprintln!("skipped: the container image, because neither docker nor podman runs here");
        return Ok(());
    };
    let tag = format!("kv-store-wasm:{}", release.version);
    let tarball = format!("TARBALL={}.tar.gz", release.name());
    let mut build = Command::new(tool);
    build.args(["build", "--tag", &tag, "--build-arg", &tarball, "--file"]).arg(release.folder.join("Containerfile"));
    step::output(build.arg(&release.folder))?;
    let version =
        step::output(Command::new(tool).args(["run", "--rm", "--entrypoint", "kv-store", &tag, "--version"]))?;
    ensure!(version.contains(&release.version), "{version}");
    step::output(Command::new(tool).args(["run", "--rm", &tag, "--version"]))?;
    eprintln!("ok the image builds, and its programs run");
    Ok(())
}
