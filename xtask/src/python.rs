//! The wheel `kv-store-wasm`: laid out from what the build of the workspace made, packed, and tested in an environment of its own.
//!
//! maturin is not used: it runs cargo for one package, whose features are others than those of the workspace, and so compiles
//! wasmtime a second time. See `docs/decisions/wheel.md`.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::llama::Llama;
use crate::package::glibc;
use crate::place::Place;
use crate::{dist, llama, packages, step};

/// What packs the wheel and looks at it, kept between runs.
const TOOLS: &[&str] =
    &["hatchling==1.28.*", "mypy==1.19.*", "basedpyright==1.36.*", "check-wheel-contents==0.6.*", "auditwheel==6.*"];

/// What the tests need beside the wheel.
const TESTS: &[&str] = &["pytest==9.*"];

/// The extension module as cargo names it.
const LIBRARY: &str = "libkv_store_python.so";

/// `target/wheels/*.whl`, newly made.
pub fn wheel(place: &Place, tested: bool) -> Result<()> {
    dist::run(place)?;
    if tested {
        packages::install(packages::TESTS)?;
        return test(place).map(drop);
    }
    pack(place).map(drop)
}

/// The wheel of what has been built and laid out.
pub fn pack(place: &Place) -> Result<PathBuf> {
    let tools = Environment::kept(place, "tools", TOOLS)?;
    let (staged, wheels) = (place.work().join("wheel"), place.root.join("target/wheels"));
    for folder in [&staged, &wheels] {
        if folder.exists() {
            std::fs::remove_dir_all(folder)?;
        }
        std::fs::create_dir_all(folder)?;
    }
    let python = place.root.join("bindings/python");
    for file in ["pyproject.toml", "hatch_build.py", "README.md"] {
        copy(&python.join(file), &staged.join(file))?;
    }
    copy(&place.root.join("LICENSE"), &staged.join("LICENSE"))?;
    let package = staged.join("kv_store_wasm");
    for folder in [package.clone(), package.join("components")] {
        std::fs::create_dir_all(folder)?;
    }
    let sources = std::fs::read_dir(python.join("kv_store_wasm"))?;
    for source in sources {
        let source = source?.path();
        if source.is_file() {
            copy(&source, &package.join(source.file_name().context("a file has a name")?))?;
        }
    }
    for component in std::fs::read_dir(place.components())? {
        let component = component?.path();
        copy(&component, &package.join("components").join(component.file_name().context("a file has a name")?))?;
    }
    copy(&place.target.join("release").join(LIBRARY), &package.join("_lib.abi3.so"))?;
    // The library looks for it beside itself.
    copy(&place.dist.join("libexec/kv-store-compile"), &package.join("kv-store-compile"))?;
    // The command of the wheel becomes it: bindings/python/kv_store_wasm/_tool.py.
    copy(&place.dist.join("bin/kv-store"), &package.join("kv-store"))?;
    let linked = ["_lib.abi3.so", "kv-store-compile", "kv-store"].map(|name| package.join(name));
    let glibc = glibc::of_all(&linked, place.rustc_wrapper.is_some())?;
    let mut build = tools.python();
    build.args(["-m", "hatchling", "build", "--target", "wheel", "--directory"]).arg(&wheels).current_dir(&staged);
    build.env("KV_STORE_WHEEL_GLIBC", glibc.to_string());
    step::run(place, "packing the wheel", &mut build)?;
    let wheel = std::fs::read_dir(&wheels)?.next().context("hatchling made no wheel")??.path();
    eprintln!("packed {}", wheel.display());
    Ok(wheel)
}

/// The wheel is what it says, its types are right, and its tests pass in a fresh environment, which is returned.
pub fn test(place: &Place) -> Result<Environment> {
    let wheel = pack(place)?;
    let tools = Environment::kept(place, "tools", TOOLS)?;
    let mut check = tools.program("check-wheel-contents");
    step::run_shown("the wheel's contents", check.arg(&wheel))?;
    let shown = step::output(tools.python().args(["-m", "auditwheel", "show"]).arg(&wheel))?;
    let tag = wheel.file_stem().and_then(|name| name.to_str()?.rsplit('-').next().map(str::to_owned));
    anyhow::ensure!(
        tag.is_some_and(|tag| shown.contains(&tag)),
        "the library needs more than the wheel's tag says:\n{shown}"
    );

    let fresh = Environment::fresh(place, "fresh", &wheel, TESTS)?;
    step::run_shown("pip check", fresh.python().args(["-m", "pip", "check"]))?;
    let sources = place.root.join("bindings/python");
    let within = |mut command: Command| {
        command.current_dir(&sources).env("PYTHONDONTWRITEBYTECODE", "1");
        command
    };
    let mut mypy = within(tools.python());
    mypy.args(["-m", "mypy", "--cache-dir"]).arg(place.work().join("mypy")).args(["kv_store_wasm", "tests"]);
    step::run_shown("mypy --strict", mypy.arg("--python-executable").arg(fresh.path("python")))?;
    let mut pyright = within(tools.program("basedpyright"));
    step::run_shown("pyright", pyright.arg("--pythonpath").arg(fresh.path("python")).arg("kv_store_wasm"))?;
    let mut stubs = within(tools.python());
    stubs.current_dir(place.work()).args(["-m", "mypy.stubtest", "kv_store_wasm._lib"]);
    step::run_shown("stubs beside the module", stubs.env("PYTHONPATH", fresh.packages()?))?;
    let mut tests = within(fresh.python());
    // Not the sources, which lie in this folder: what is installed.
    place.for_consumers(tests.args(["-P", "-m", "pytest"]))?;
    step::run_shown("tests of the wheel", &mut tests)?;
    Ok(fresh)
}

/// What llama-cpp-python imports, which is taken from its sources and not installed.
pub const LLAMA_NEEDS: &[&str] = &["numpy>=2,<3", "diskcache", "jinja2", "typing_extensions"];

/// llama-cpp-python completes the same with our cache as without one.
pub fn llama(place: &Place, fresh: &Environment, llama: &Llama, model: &Path) -> Result<()> {
    let (package, library) = llama.python_package();
    fresh.install(place, "installing what llama-cpp-python needs", |pip| {
        pip.args(LLAMA_NEEDS);
    })?;
    let store = place.work().join("llama-cpp-python");
    if store.exists() {
        std::fs::remove_dir_all(&store)?;
    }
    std::fs::create_dir_all(&store)?;
    let mut completions = fresh.python();
    completions.arg("-P").arg(place.root.join("bindings/python/tests/llama_completions.py")).arg(model);
    completions.arg(format!("local-fs://{}", store.display()));
    completions.env("PYTHONPATH", package).env("LLAMA_CPP_LIB_PATH", library).env("PYTHONDONTWRITEBYTECODE", "1");
    place.for_consumers(&mut completions)?;
    step::run_shown("llama-cpp-python with a shared cache", &mut completions)
}

/// A virtual environment.
pub struct Environment {
    pub folder: PathBuf,
}

impl Environment {
    /// The one of this name, which may not be there yet.
    pub fn named(place: &Place, name: &str) -> Self {
        Environment { folder: place.target.join("python").join(name) }
    }

    /// One that is kept, with these packages.
    pub fn kept(place: &Place, name: &str, wanted: &[&str]) -> Result<Self> {
        let environment = Environment::named(place, name);
        let (stamp, wanted) = (environment.folder.join("packages"), wanted.join("\n"));
        if std::fs::read_to_string(&stamp).is_ok_and(|found| found == wanted) {
            return Ok(environment);
        }
        environment.make(place)?;
        environment.install(place, &format!("installing Python packages ({name})"), |pip| {
            pip.args(wanted.lines());
        })?;
        std::fs::write(&stamp, &wanted)?;
        Ok(environment)
    }

    /// One that is new, with the wheel.
    fn fresh(place: &Place, name: &str, wheel: &Path, wanted: &[&str]) -> Result<Self> {
        let environment = Environment::named(place, name);
        environment.make(place)?;
        environment.install(place, "installing the wheel into a fresh environment", |pip| {
            pip.arg(wheel).args(wanted);
        })?;
        Ok(environment)
    }

    /// The folder of its programs.
    pub fn programs(&self) -> PathBuf {
        self.folder.join("bin")
    }

    pub fn make(&self, place: &Place) -> Result<()> {
        packages::install(&["python3-venv"])?;
        if self.folder.exists() {
            std::fs::remove_dir_all(&self.folder)?;
        }
        let mut make = llama::program("python3");
        step::run(place, "making a Python environment", make.args(["-m", "venv"]).arg(&self.folder))
    }

    pub fn install(&self, place: &Place, name: &str, what: impl FnOnce(&mut Command)) -> Result<()> {
        let mut pip = self.python();
        pip.args(["-m", "pip", "install", "--disable-pip-version-check"]);
        what(&mut pip);
        step::run(place, name, &mut pip)
    }

    pub fn path(&self, program: &str) -> PathBuf {
        self.folder.join("bin").join(program)
    }

    pub fn program(&self, program: &str) -> Command {
        llama::program(self.path(program))
    }

    /// What PATH is where its programs come first.
    pub fn path_first(&self) -> Result<std::ffi::OsString> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        Ok(std::env::join_paths([self.programs()].into_iter().chain(std::env::split_paths(&path)))?)
    }

    pub fn python(&self) -> Command {
        self.program("python")
    }

    /// Where its packages lie.
    pub fn packages(&self) -> Result<PathBuf> {
        let script = "import sysconfig; print(sysconfig.get_path('platlib'))";
        Ok(step::output(self.python().args(["-c", script]))?.trim().into())
    }
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    std::fs::copy(from, to).map(drop).with_context(|| format!("cannot copy {}", from.display()))
}
