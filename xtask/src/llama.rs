//! A real llama.cpp to test with: libllama, models, and the client `llama-kv`.
//!
//! All of it is built under one folder that the caller names, once, and kept
//! between runs. Invariant: a result is there only when it is complete. Each is
//! made under another name and renamed, or gets a stamp file written last, all
//! under one lock file; so a run that was cut short costs time, never a wrong
//! result, and two runs at once wait for each other.
//!
//! ```ignore
//! let llama = llama::ensure(&target.join("llama"), &repo, &|step| println!("{step}"))?;
//! let model = llama.model(&llama::SMALL)?;
//! let status = llama.check(&library, "local-fs:///tmp/kv", None, &model, &[100, 512])
//!     .status()?;
//! ```
//!
//! This file says what is built, `work.rs` how a step is run and kept.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

pub use work::program;
use work::{Work, digest, find_program, remove, write};

pub mod newest;
mod smollm2;
mod work;

/// Debian packages with the programs and headers that [`ensure`] needs.
pub const APT_PACKAGES: &[&str] = &["cmake", "g++", "gcc", "libxxhash-dev", "ninja-build", "python3-venv"];

/// The source of libllama: a Python source package, so no other host is needed.
/// The layout of a state in `tests/llama/state.h` is this version's.
const SOURCE: &str = "llama-cpp-python";
const SOURCE_VERSION: &str = "0.3.36";
const SOURCE_SHA256: &str = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e";

/// For `make_model.py`.
const PYTHON_PACKAGES: &[&str] = &["gguf==0.19.0", "numpy>=2,<3"];

const CMAKE_OPTIONS: &[&str] = &[
    "-DCMAKE_BUILD_TYPE=Release",
    "-DBUILD_SHARED_LIBS=ON",
    // The libraries find each other wherever the folder goes.
    "-DCMAKE_BUILD_RPATH_USE_ORIGIN=ON",
    // The same instructions and the same bits on every machine of a kind.
    "-DGGML_NATIVE=OFF",
    "-DGGML_OPENMP=OFF",
    "-DGGML_CCACHE=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_APP=OFF",
    // What llama-server needs; it is built only where it is asked for.
    "-DLLAMA_BUILD_COMMON=ON",
    "-DLLAMA_BUILD_TOOLS=ON",
    "-DLLAMA_BUILD_SERVER=ON",
    "-DLLAMA_BUILD_UI=OFF",
    "-DLLAMA_USE_PREBUILT_UI=OFF",
    "-DLLAMA_OPENSSL=OFF",
    "-DLLAMA_SUBPROCESS=OFF",
];

const CLIENT_SOURCES: &[&str] = &[
    "main.c",
    "save.c",
    "restore.c",
    "cached.c",
    "bench.c",
    "engine.c",
    "store.c",
    "batch.c",
    "chunks.c",
    "rows.c",
    "state.c",
    "manifest.c",
    "report.c",
];
const SLOTS_SOURCES: &[&str] = &["slots.c"];
const FUZZ_SOURCES: &[&str] = &["fuzz.c", "state.c", "manifest.c"];
const NATIVE_SOURCES: &[&str] = &["native_store.c", "native_files.c"];

/// The shape of a model of random weights, see `make_model.py --help`.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub layers: u32,
    pub embd: u32,
    pub heads: u32,
    pub kv_heads: u32,
    pub ff: u32,
    /// The longest prompt, in tokens.
    pub context: u32,
}

/// 10 MB; 512 tokens are 1 MB of state and 60 ms of prefill.
pub const SMALL: Shape = Shape { layers: 4, embd: 256, heads: 8, kv_heads: 4, ff: 512, context: 1024 };
/// 85 MB; 1024 tokens are 17 MB of state and 700 ms of prefill.
pub const LARGE: Shape = Shape { layers: 8, embd: 512, heads: 8, kv_heads: 8, ff: 1024, context: 2048 };

/// 100 MB; 2560 tokens are 168 MB of state: many layers that compute little.
pub const DEEP: Shape = Shape { layers: 64, embd: 256, heads: 8, kv_heads: 8, ff: 256, context: 4096 };

/// That of `make_model.py`, unless it is given another.
pub const MODEL_SEED: u32 = 7;
/// Layers of tiny models.
pub const TINY_LAYERS: u32 = 4;
pub const DRAFT_LAYERS: u32 = 1;

/// A kind of models that the automatic cache treats in its own way.
pub struct ModelKind {
    pub name: &'static str,
    pub architecture: &'static str,
    /// Whether its states can be shortened. Others share with another prompt what both have up to a multiple of 256 tokens.
    pub shortens: bool,
}

pub const KINDS: &[ModelKind] = &[
    ModelKind { name: "dense", architecture: "llama", shortens: true },
    ModelKind { name: "sliding-window", architecture: "gemma3", shortens: false },
    ModelKind { name: "recurrent", architecture: "mamba", shortens: false },
    ModelKind { name: "hybrid", architecture: "jamba", shortens: false },
];

/// A built llama.cpp and what belongs to it. All paths are absolute.
#[derive(Debug)]
pub struct Llama {
    /// `llama-kv`, see `tests/llama/README.md`.
    pub client: PathBuf,
    /// `llama-kv-fuzz`, built with the sanitizers; run it without arguments.
    pub fuzz: PathBuf,
    /// `llama-slots`, see its `--help`.
    pub slots: PathBuf,
    python: PathBuf,
    tests: PathBuf,
    repo: PathBuf,
    tree: Tree,
    work: Work,
}

/// llama.cpp's sources, and what was built of them.
#[derive(Debug)]
struct Tree {
    source: PathBuf,
    /// llama-cpp-python's.
    package: PathBuf,
    build: PathBuf,
}

impl Tree {
    /// Options of the C compiler that find its headers and its libllama, at run time too.
    fn options(&self) -> Vec<OsString> {
        let lib = self.build.join("bin");
        let include = [self.source.join("include"), self.source.join("ggml/include")];
        let mut options: Vec<OsString> = include.into_iter().flat_map(|dir| ["-I".into(), dir.into()]).collect();
        // Not -Wl: a comma in the path would end it.
        options.extend(["-L".into(), lib.clone().into(), "-Xlinker".into(), "-rpath".into()]);
        options.extend(["-Xlinker".into(), lib.into(), "-lllama".into(), "-ldl".into()]);
        options
    }
}

impl Llama {
    /// A model file of this shape: the one made before, or a new one (seconds).
    ///
    /// # Errors
    /// The Python packages cannot be installed, or the shape makes no sense.
    pub fn model(&self, shape: &Shape) -> Result<PathBuf> {
        let Shape { layers, embd, heads, kv_heads, ff, context } = *shape;
        self.made("llama", [layers, embd, heads, kv_heads, ff, context], MODEL_SEED)
    }

    /// A model of less than a megabyte, of an architecture that `make_model.py` knows.
    ///
    /// # Errors
    /// As [`Llama::model`].
    pub fn tiny(&self, architecture: &str, layers: u32, seed: u32) -> Result<PathBuf> {
        self.made(architecture, [layers, 64, 4, 2, 128, 4096], seed)
    }

    fn made(&self, architecture: &str, sizes: [u32; 6], seed: u32) -> Result<PathBuf> {
        let sizes = sizes.map(|n| n.to_string());
        let seed = seed.to_string();
        let models = self.work.dir.join("models");
        let model = models.join(format!("{architecture}-{}-{seed}.gguf", sizes.join("-")));
        let _lock = self.work.lock(&|_| ())?;
        if model.is_file() {
            return Ok(model);
        }
        self.work.install_python_packages(&self.python)?;
        fs::create_dir_all(&models).with_context(|| format!("make {}", models.display()))?;
        let unfinished = model.with_extension("tmp");
        let mut make = program(&self.python);
        make.arg(self.tests.join("make_model.py")).arg(&unfinished).args(&sizes).args([
            "--arch",
            architecture,
            "--seed",
            &seed,
        ]);
        self.work.run(make, "make-model")?;
        fs::rename(&unfinished, &model).with_context(|| format!("rename to {}", model.display()))?;
        Ok(model)
    }

    /// The command that checks a library end to end (`check.py`): prompts of
    /// `tokens` lengths, ascending, saved to the empty store `uri` and restored.
    /// With `files`, the folder where the store keeps its files, these are
    /// damaged too. It inherits the environment: the library's settings are there.
    pub fn check(&self, library: &Path, uri: &str, files: Option<&Path>, model: &Path, tokens: &[u32]) -> Command {
        let mut check = Command::new(&self.python);
        check.arg(self.tests.join("check.py"));
        check.arg("--client").arg(&self.client).arg("--lib").arg(library);
        check.args(["--uri", uri]).arg("--model").arg(model);
        check.arg("--tokens").args(tokens.iter().map(u32::to_string));
        if let Some(files) = files {
            check.arg("--dir").arg(files);
        }
        check
    }

    /// `llama_cpp` of llama-cpp-python, which finds libllama by `LLAMA_CPP_LIB_PATH`: the folder that it lies in, and that path.
    pub fn python_package(&self) -> (PathBuf, PathBuf) {
        (self.tree.package.clone(), self.tree.build.join("bin"))
    }

    /// The command that checks the token-exact cache end to end (`check_cache.py`), in folders of its own.
    pub fn check_cache(&self, library: &Path, model: &Path) -> Command {
        let mut check = Command::new(&self.python);
        check.arg(self.tests.join("check_cache.py")).arg("--client").arg(&self.client);
        check.arg("--lib").arg(library).arg("--model").arg(model);
        // The script reads its neighbour; no trace of that in the clone.
        check.env("PYTHONDONTWRITEBYTECODE", "1");
        check
    }

    /// The command that checks `libkv_store_llama.so` below a program that knows nothing of it (`check_slots.py`), with a
    /// store that is empty. With `files`, the folder where the store keeps its files, these are damaged too.
    ///
    /// # Errors
    /// The program that is linked to the library cannot be compiled.
    pub fn check_slots(&self, library: &Path, uri: &str, files: Option<&Path>, model: &Path) -> Result<Command> {
        let folder = library.parent().context("the library lies in a folder")?;
        let mut options: Vec<OsString> = ["-L".into(), folder.into(), "-Xlinker".into(), "-rpath".into()].into();
        options.extend(["-Xlinker".into(), folder.into(), "-Xlinker".into(), "--no-as-needed".into()]);
        // Before libllama, whose functions it takes the place of.
        options.push("-lkv_store_llama".into());
        options.extend(self.tree.options());
        let options: Vec<&OsStr> = options.iter().map(OsString::as_os_str).collect();
        let _lock = self.work.lock(&|_| ())?;
        let linked =
            self.work.compile("llama-slots-linked", &self.tests, SLOTS_SOURCES, &self.repo, &options, &|_| ())?;
        let mut check = Command::new(&self.python);
        check.arg(self.tests.join("check_slots.py")).arg("--program").arg(&self.slots).arg("--linked").arg(linked);
        check.arg("--lib").arg(library).args(["--uri", uri]).arg("--model").arg(model);
        if let Some(files) = files {
            check.arg("--dir").arg(files);
        }
        Ok(check)
    }

    /// llama-server, built in the tree of libllama: about 5 minutes the first time.
    ///
    /// # Errors
    /// A step failed, see the message.
    pub fn server(&self, say: &dyn Fn(&str)) -> Result<PathBuf> {
        let _lock = self.work.lock(say)?;
        say("building llama-server (the first time 5 minutes on 2 cores)");
        self.work.ninja(&self.tree.build, "llama-server")?;
        Ok(self.tree.build.join("bin/llama-server"))
    }

    /// The command that times a llama-server with the library beside one without (`bench_server.py`), in a folder below `work`.
    pub fn bench_server(&self, server: &Path, library: &Path, model: &Path, work: &Path, rounds: u32) -> Command {
        let mut bench = self.script("bench_server.py", ["--server".as_ref(), server.as_os_str()], library);
        bench.arg("--model").arg(model).arg("--work").arg(work).args(["--rounds", &rounds.to_string()]);
        bench
    }

    /// The command that checks two llama-servers with one store (`check_server.py`). `server` is the option that names it, and its path.
    pub fn check_server(&self, server: [&OsStr; 2], library: &Path, uri: &str, model: &Path) -> Command {
        let mut check = self.script("check_server.py", server, library);
        check.args(["--uri", uri]).arg("--model").arg(model);
        check
    }

    /// The command that checks the automatic cache (`check_auto.py`).
    pub fn check_auto(&self, server: [&OsStr; 2], library: &Path, uri: &str) -> Command {
        let mut check = self.script("check_auto.py", server, library);
        check.args(["--uri", uri]);
        check
    }

    /// The command that asks two servers with one store about a text (`demo_server.py`).
    pub fn demo_server(&self, server: [&OsStr; 2], library: &Path) -> Command {
        self.script("demo_server.py", server, library)
    }

    /// The command that times the automatic cache beside a server without it (`bench_auto.py`), in a folder below `work`.
    pub fn bench_auto(&self, server: &Path, library: &Path, model: &Path, work: &Path, rounds: u32) -> Command {
        let mut bench = self.script("bench_auto.py", ["--server".as_ref(), server.as_os_str()], library);
        bench.arg("--model").arg(model).arg("--work").arg(work).args(["--rounds", &rounds.to_string()]);
        bench
    }

    fn script(&self, name: &str, server: [&OsStr; 2], library: &Path) -> Command {
        let mut script = Command::new(&self.python);
        script.arg(self.tests.join(name)).args(server).arg("--lib").arg(library);
        // The script reads its neighbour; no trace of that in the clone.
        script.env("PYTHONDONTWRITEBYTECODE", "1");
        script
    }
}

/// A Python that has numpy.
pub fn python(work: &Path, say: &dyn Fn(&str)) -> Result<PathBuf> {
    let work = Work::open(work)?;
    let _lock = work.lock(say)?;
    let python = work.python(say)?;
    work.install_python_packages(&python)?;
    Ok(python)
}

/// Build what is missing under `work`; `repo` is the project's root. `say` gets a
/// line before each step that takes longer than a moment. A first run takes about
/// 5 minutes on 2 cores, later ones a moment.
///
/// # Errors
/// A program is missing (the message names the packages), or one failed (the
/// message has the end of its output and the file with all of it).
pub fn ensure(work: &Path, repo: &Path, say: &dyn Fn(&str)) -> Result<Llama> {
    let work = Work::open(work)?;
    let repo = fs::canonicalize(repo).with_context(|| format!("find {}", repo.display()))?;
    let _lock = work.lock(say)?;
    let python = work.python(say)?;
    let tree = work.tree(&python, say)?;
    let tests = repo.join("tests/llama");
    let options = tree.options();
    let options: Vec<&OsStr> = options.iter().map(OsString::as_os_str).collect();
    let client = work.compile("llama-kv", &tests, CLIENT_SOURCES, &repo, &options, say)?;
    let slots = work.compile("llama-slots", &tests, SLOTS_SOURCES, &repo, &options, say)?;

    let sanitizers = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"];
    let fuzz = work.compile("llama-kv-fuzz", &tests, FUZZ_SOURCES, &repo, &sanitizers.map(OsStr::new), say)?;
    Ok(Llama { client, fuzz, slots, python, tests, repo, tree, work })
}

/// Build `libkv_store_native.so`, the plain C store of `tests/native`, under
/// `work`. It needs a C compiler and libxxhash-dev, and no llama.cpp.
///
/// # Errors
/// As [`ensure`].
pub fn native_store(work: &Path, repo: &Path, say: &dyn Fn(&str)) -> Result<PathBuf> {
    let work = Work::open(work)?;
    let repo = fs::canonicalize(repo).with_context(|| format!("find {}", repo.display()))?;
    let _lock = work.lock(say)?;
    let options = ["-fPIC", "-shared", "-fvisibility=hidden", "-pthread"].map(OsStr::new);
    let sources = repo.join("tests/native");
    work.compile("libkv_store_native.so", &sources, NATIVE_SOURCES, &repo, &options, say)
}

/// The steps that are llama.cpp's own.
impl Work {
    /// The Python of a virtual environment of our own.
    fn python(&self, say: &dyn Fn(&str)) -> Result<PathBuf> {
        let venv = self.dir.join("venv");
        let python = venv.join("bin/python");
        let stamp = venv.join("ready");
        if !stamp.is_file() {
            say("making a Python environment");
            remove(&venv)?;
            let mut make = program("python3");
            make.args(["-m", "venv"]).arg(&venv);
            self.run(make, "venv")?;
            write(&stamp, "")?;
        }
        Ok(python)
    }

    fn install_python_packages(&self, python: &Path) -> Result<()> {
        let stamp = self.dir.join("venv/packages");
        let wanted = PYTHON_PACKAGES.join("\n");
        if fs::read_to_string(&stamp).is_ok_and(|found| found == wanted) {
            return Ok(());
        }
        let mut install = program(python);
        install.args(["-m", "pip", "install"]).args(PYTHON_PACKAGES);
        self.run(install, "pip-install")?;
        write(&stamp, &wanted)
    }

    /// The tree, with libllama built.
    fn tree(&self, python: &Path, say: &dyn Fn(&str)) -> Result<Tree> {
        // Other options make another tree.
        let dir = self.dir.join(format!(
            "llama-cpp-python-{SOURCE_VERSION}-{}",
            digest([SOURCE_SHA256.as_bytes(), CMAKE_OPTIONS.join(" ").as_bytes()])
        ));
        let tree = Tree { source: source_in(&dir), package: dir.join(root()), build: dir.join("build") };
        let stamp = dir.join("ready");
        if stamp.is_file() {
            return Ok(tree);
        }
        // Before the long download, not after it.
        for name in ["cmake", "ninja", "cc", "c++"] {
            find_program(name)?;
        }
        // A tree cannot be moved: its build knows its path.
        remove(&dir)?;
        fs::create_dir_all(&dir).with_context(|| format!("make {}", dir.display()))?;
        say("downloading llama.cpp (75 MB)");
        self.download(python, &dir)?;
        say("building libllama (3 minutes on 2 cores)");
        let mut configure = program("cmake");
        configure.args(["-G", "Ninja", "-S"]).arg(&tree.source).arg("-B").arg(&tree.build);
        configure.args(CMAKE_OPTIONS);
        self.run(configure, "cmake")?;
        self.ninja(&tree.build, "llama")?;
        write(&stamp, "")?;
        Ok(tree)
    }

    fn ninja(&self, build: &Path, target: &str) -> Result<()> {
        // Ninja's own choice is two jobs more than there are cores.
        let jobs = std::thread::available_parallelism().map_or(1, usize::from);
        let mut ninja = program("ninja");
        ninja.arg("-C").arg(build).arg("-j").arg(jobs.to_string()).arg(target);
        self.run(ninja, &format!("ninja-{target}"))
    }

    /// Download and unpack.
    fn download(&self, python: &Path, dir: &Path) -> Result<()> {
        let list = dir.join("requirements.txt");
        write(&list, &format!("{SOURCE}=={SOURCE_VERSION} --hash=sha256:{SOURCE_SHA256}\n"))?;
        let mut pip = program(python);
        // The source for this one package only: with `:all:`, pip would also build
        // from source what it needs to read this package's name, cmake included.
        pip.args(["-m", "pip", "download", "--no-deps", "--no-binary", SOURCE]);
        pip.arg("--dest").arg(dir).arg("--requirement").arg(&list);
        self.run(pip, "pip-download")?;
        let archive = dir.join(format!("{}.tar.gz", root()));
        let mut tar = program("tar");
        tar.arg("-xzf").arg(&archive).arg("-C").arg(dir);
        tar.args(["vendor/llama.cpp", "llama_cpp"].map(|folder| format!("{}/{folder}", root())));
        self.run(tar, "tar")?;
        fs::remove_file(&archive).with_context(|| format!("remove {}", archive.display()))
    }
}

/// The folder that the archive holds.
fn root() -> String {
    format!("{}-{SOURCE_VERSION}", SOURCE.replace('-', "_"))
}

/// llama.cpp's sources where the archive was unpacked.
fn source_in(dir: &Path) -> PathBuf {
    dir.join(root()).join("vendor/llama.cpp")
}
