//! What is packed for aarch64, run under qemu with the C library and the Python of Debian's arm64: the conformance of the ABI, with wasmtime's own code
//! for aarch64 in it; what a page says first; the wheel. Programs of this machine, a redis-server, are started as always.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::{CROSS, TARGET, cargo};
use crate::package::{arm64, elsewhere};
use crate::place::{LIBRARY, Place};
use crate::python::Environment;
use crate::{guests, packages, step};

/// The variable by which tests are given a library that an emulator runs.
const LIBRARY_VARIABLE: &str = "KV_STORE_TEST_EMULATED";
/// Backends of the conformance that are not run, for minutes: what is different on such a machine is below all of them.
const LEFT_OUT: [&str; 9] =
    ["std-fs::", "c-fs::", "rediss::", "valkey::", "objects::", "buffered::", "batches::", "s3::", "s3-tls::"];
/// What pip is told of the machine.
const PYTHON: [&str; 6] = ["--implementation", "cp", "--abi", "abi3", "--python-version", "3.11"];

pub fn test(place: &Place) -> Result<()> {
    packages::install(packages::TESTS)?;
    let made = arm64::packed(place)?;
    guests::build_for_tests(place)?;
    let system = System::unpack(place)?;
    let tree = unpack(place, &made)?;
    conformance(place, &tree)?;
    pages(place, &system, &tree)?;
    wheel(place, &system)
}

/// Has the kernel start programs for aarch64 by qemu, in a namespace of users that ends with the command: what it knows of kinds of programs is each
/// such namespace's own since Linux 6.7.
const REGISTER: &str = r#"
mount -t binfmt_misc none /proc/sys/fs/binfmt_misc || exit 125
printf '%s' ':qemu-aarch64:M::\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00:\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff:/usr/bin/qemu-aarch64:F' > /proc/sys/fs/binfmt_misc/register || exit 125
exec "$@"
"#;
/// What the kernel says where qemu's own package has done it for the whole machine.
const REGISTERED: &str = "/proc/sys/fs/binfmt_misc/qemu-aarch64";
/// By which qemu is told where the files of the other system are.
const PREFIX: &str = "QEMU_LD_PREFIX";

/// A program where the kernel starts those for aarch64.
fn registered(program: &std::ffi::OsStr) -> Command {
    if Path::new(REGISTERED).exists() {
        return Command::new(program);
    }
    let mut unshare = Command::new("unshare");
    unshare.args(["--user", "--map-root-user", "--mount", "sh", "-c", REGISTER, "sh"]).arg(program);
    unshare
}

/// The same command, where programs for aarch64 can be started, with the C library of the cross compiler unless the command names another.
pub fn within(command: &Command) -> Result<Command> {
    step::output(&mut registered("true".as_ref())).context(
        "the kernel starts no programs for aarch64 here: install qemu-user-binfmt, or take Linux 6.7 with user namespaces",
    )?;
    let mut within = registered(command.get_program());
    within.args(command.get_args()).env(PREFIX, "/usr/aarch64-linux-gnu").env("CROSS_COMPILE", CROSS);
    if let Some(folder) = command.get_current_dir() {
        within.current_dir(folder);
    }
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => within.env(name, value),
            None => within.env_remove(name),
        };
    }
    Ok(within)
}

/// The files of Debian's arm64, as far as programs load them.
struct System(PathBuf);

impl System {
    /// The closure of Python's packages, by apt with lists of its own. It is kept.
    fn unpack(place: &Place) -> Result<Self> {
        let folder = place.work().join("debian-arm64");
        let (root, apt) = (folder.join("root"), folder.join("apt"));
        if folder.join("made").exists() {
            return Ok(System(root));
        }
        if folder.exists() {
            std::fs::remove_dir_all(&folder)?;
        }
        for name in ["lists/partial", "cache/archives/partial"] {
            std::fs::create_dir_all(apt.join(name))?;
        }
        std::fs::create_dir_all(&root)?;
        std::fs::write(apt.join("status"), "")?;
        let get = |words: &[&str]| {
            let mut get = Command::new("apt-get");
            for (name, value) in [
                ("APT::Architecture", "arm64".to_owned()),
                ("APT::Architectures", "arm64".to_owned()),
                ("APT::Sandbox::User", "root".to_owned()),
                ("Dir::State::Lists", apt.join("lists").display().to_string()),
                ("Dir::State::status", apt.join("status").display().to_string()),
                ("Dir::Cache", apt.join("cache").display().to_string()),
                ("Debug::NoLocking", "1".to_owned()),
            ] {
                get.arg("-o").arg(format!("{name}={value}"));
            }
            get.args(words).env("DEBIAN_FRONTEND", "noninteractive");
            get
        };
        let name = "fetching Debian's Python for arm64";
        step::run(place, &format!("{name}: lists"), &mut get(&["update"]))?;
        let install = ["install", "--yes", "--download-only", "--no-install-recommends", "python3"];
        step::run(place, name, &mut get(&install))?;
        for package in std::fs::read_dir(apt.join("cache/archives"))? {
            let package = package?.path();
            if package.extension().is_some_and(|extension| extension == "deb") {
                step::output(Command::new("dpkg-deb").arg("--extract").arg(&package).arg(&root))?;
            }
        }
        std::fs::remove_dir_all(apt)?;
        std::fs::write(folder.join("made"), "")?;
        Ok(System(root))
    }

    /// A program of aarch64, about to run here. It meets the system's files wherever it names a path that one of them has.
    fn program(&self, place: &Place, program: &Path) -> Result<Command> {
        let mut emulated = Command::new(program);
        emulated.env(PREFIX, &self.0);
        let config = place.work().join("aarch64.toml");
        std::fs::write(&config, "compile = \"in-process\"\n")?;
        emulated.env("KV_STORE_WASM_CONFIG", config).env("KV_STORE_WASM_CACHE", place.work().join("aot-aarch64"));
        within(&emulated)
    }
}

fn unpack(place: &Place, made: &[PathBuf]) -> Result<PathBuf> {
    let folder = place.work().join("aarch64");
    if folder.exists() {
        std::fs::remove_dir_all(&folder)?;
    }
    std::fs::create_dir_all(&folder)?;
    let [tarball, deb, ..] = made else { anyhow::bail!("not all packages were made: {made:?}") };
    step::output(Command::new("tar").arg("--extract").arg("--file").arg(tarball).arg("--directory").arg(&folder))?;
    let told = step::output(Command::new("dpkg-deb").args(["--field"]).arg(deb).arg("Architecture"))?;
    ensure!(told.trim() == "arm64", "the Debian package is for {told}");
    Ok(folder.join(arm64::release(place)?.name()))
}

/// The suite over the library of the tarball, beside what a native library does under the same emulator.
fn conformance(place: &Place, tree: &Path) -> Result<()> {
    let mut tests = cargo("test", &place.root, &place.target.join("aarch64"));
    tests.args(["--package", "kv-store-tests", "--test", "conformance", "--"]);
    tests.env(LIBRARY_VARIABLE, tree.join("lib").join(LIBRARY));
    for backend in LEFT_OUT {
        tests.args(["--skip", backend]);
    }
    step::run_shown(&format!("conformance of the library for {TARGET}"), &mut within(&tests)?)
}

/// What a page says first: save a file, restore it, look at it, ask the doctor.
fn pages(place: &Place, system: &System, tree: &Path) -> Result<()> {
    let folder = place.work().join("aarch64");
    let (file, copy, store) = (folder.join("file"), folder.join("copy"), format!("local-fs://{}/kv", folder.display()));
    let data = elsewhere::data();
    std::fs::write(&file, &data)?;
    let run = |words: &[&str]| -> Result<String> {
        step::output(system.program(place, &tree.join("bin/kv-store"))?.args(words))
    };
    let path = |path: &Path| path.display().to_string();
    run(&["save", &store, &path(&file), "--name", "first"])?;
    run(&["restore", &store, &path(&copy), "--name", "first"])?;
    ensure!(std::fs::read(&copy)? == data, "what was restored is not what was saved");
    // The same store, read by this machine's program.
    std::fs::remove_file(&copy)?;
    let mut here = Command::new(place.dist.join("bin/kv-store"));
    place.for_consumers(&mut here)?;
    step::output(here.args(["restore", &store, &path(&copy), "--name", "first"]))?;
    ensure!(
        std::fs::read(&copy)? == data,
        "what was saved on aarch64 is not what is restored on {}",
        std::env::consts::ARCH
    );
    run(&["doctor", &store, "--probe"])?;
    run(&["verify", &store])?;
    eprintln!(
        "ok kv-store of the tarball saves, restores, looks and verifies, and that of this machine restores the same"
    );
    // With processes that are killed, and two at once.
    let mut check = system.program(place, &tree.join("bin/kv-store"))?;
    step::run_shown("kv-store check, for aarch64", check.arg("check").arg(tree.join("components/local-fs.wasm")))
}

const PROGRAM: &str = "import platform, sys
import kv_store_wasm as kv
with kv.open(sys.argv[1]) as store:
    keys = kv.keys(['block-0', 'block-1'], 'model-7b', 'bf16')
    store.put_many(keys, [b'first', b'second'], sealed=True)
    blocks = [bytearray(5), bytearray(6)]
    assert store.get_many_into(keys, blocks, sealed=True) == [5, 6]
    print(platform.machine(), *map(bytes, blocks))
";

/// pip takes the wheel for such a machine, and Debian's Python imports and uses it.
fn wheel(place: &Place, system: &System) -> Result<()> {
    let wheel = arm64::pack_wheel(place)?;
    let name = wheel.file_name().and_then(|name| name.to_str()).context("a wheel has a name")?;
    let platform = name.trim_end_matches(".whl").rsplit('-').next().context("a wheel has a tag")?;
    let folder = place.work().join("aarch64");
    let (packages, program) = (folder.join("packages"), folder.join("program.py"));
    let mut pip = Environment::named(place, "foreign").python();
    pip.args([
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-index",
        "--no-deps",
        "--only-binary=:all:",
        "--platform",
        platform,
    ]);
    step::output(pip.args(PYTHON).arg("--target").arg(&packages).arg(&wheel))?;
    std::fs::write(&program, PROGRAM)?;
    let mut python = system.program(place, &system.0.join("usr/bin/python3"))?;
    python.arg(&program).arg(format!("local-fs://{}/kv-python", folder.display()));
    let said = step::output(python.env("PYTHONPATH", &packages).env("PYTHONDONTWRITEBYTECODE", "1"))?;
    ensure!(said.trim() == "aarch64 b'first' b'second'", "{said}");
    eprintln!("ok pip takes {name}, and a Python for aarch64 imports and uses it");
    Ok(())
}
