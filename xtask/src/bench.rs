//! `cargo xtask bench`: every figure beside its peer, measured in one run.
//!
//! The programs that measure print one JSON object for each row; here they are built, run one after another, and what they
//! say becomes a table, the page `docs/benchmarks.md` and its plots.

mod page;
mod plot;
mod row;

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use kv_store_tests::mooncake::GRANTS;
use kv_store_tests::namespace::{Namespace, isolated};

use crate::place::{LIBRARY, Place};
use crate::step::{self, Progress};
use crate::{demo, dist, engines, guests, llama, packages, servers};
use row::{Instructions, Row};

#[derive(clap::Args)]
pub struct BenchOptions {
    /// Fewer rounds, and without the rows that take longest: less than 3 minutes, and rougher figures
    #[arg(long)]
    quick: bool,
    /// Only JSON on standard output, one object for each row
    #[arg(long)]
    json: bool,
    /// Only rows whose name holds this, which are written into the pages
    #[arg(long, value_name = "NAME")]
    filter: Option<String>,
    /// Only the single calls and opens, against a former libkv_store_wasm.so with what was installed beside it; the page is left as it is
    #[arg(long, value_name = "LIB")]
    against: Option<PathBuf>,
    /// Only the instructions of calls, on files, segments, redis and memkv, by who runs them: the component, wasmtime, the library, the C
    /// library (x86-64); the page is left as it is
    #[arg(long, conflicts_with_all = ["against", "engines", "quick"])]
    instructions: bool,
    /// Only `engines/*`: llama-server, and the adapters in their engines, by the engines' own tools and classes, each beside what it does without the
    /// library; the first time installs them (2.5 GB)
    #[arg(long)]
    engines: bool,
}

impl BenchOptions {
    /// As few rounds of one row as there can be.
    pub fn one_row(name: &str) -> Self {
        BenchOptions {
            quick: true,
            json: false,
            filter: Some(name.to_owned()),
            against: None,
            instructions: false,
            engines: false,
        }
    }
}

/// Programs of other crates that print rows too: the example, what its rows' names begin with, the filter of a quick run.
const EXAMPLES: &[(&str, &str, &str)] = &[
    ("kvx_bench", "kvx/", "16MiB/block16"),
    ("paged_bench", "kvx/fused/", ""),
    ("cache_bench", "cache/", ""),
    ("beside", "hostile/beside/", "loop-in-call"),
    ("shares", "hostile/", "hostile/queue/"),
    ("blocks_bench", "blocks/", ""),
];

/// Beginnings of names that are in no other name: a filter that begins so is for those rows only.
const DISTINCT: &[&str] = &[
    "fs/get",
    "fs/put",
    "fs/small",
    "segments/",
    "prefetch/",
    "threads/",
    "open/",
    "redis/",
    "s3/",
    "cluster/",
    "mooncake/",
    "fence/",
    "descriptor/",
    "save96/",
    "save96-batch/",
    "growth/",
    "llama/",
    "kvx/",
    "cache/",
    "blocks/",
    "hostile/",
    "engines/",
];

/// Whether the filter may be in a name that begins with `names`.
fn may_hold(names: &str, filter: &str) -> bool {
    names.contains(filter) || filter.starts_with(names) || !DISTINCT.iter().any(|own| filter.starts_with(own))
}

pub fn run(place: &Place, options: &BenchOptions) -> Result<()> {
    packages::install(packages::TESTS)?;
    dist::run_for_long(place)?;
    let native = llama::native_store(&place.llama(), &place.root, &|step| eprintln!("   {step}"))?;
    let scratch = place.target.join("bench");
    if scratch.exists() {
        std::fs::remove_dir_all(&scratch)?;
    }
    std::fs::create_dir_all(&scratch)?;
    let run = Run { place, options, native, scratch };
    if options.instructions {
        run.instructions()?;
        return Ok(std::fs::remove_dir_all(&run.scratch)?);
    }
    if let Some(former) = &options.against {
        let rows = run.against(&std::path::absolute(former)?)?;
        if !options.json {
            print!("{}", row::table(&rows));
        }
        return Ok(std::fs::remove_dir_all(&run.scratch)?);
    }

    let mut rows = Vec::new();
    if options.engines {
        let llama = options.filter.as_ref().is_some_and(|filter| filter.contains("llama"));
        if run.may_want("engines/llama-server/") {
            rows.extend(run.llama_server()?);
        }
        if llama {
            rows.extend(run.llama()?);
        } else {
            // Their environments are large, and no row of theirs has llama in its name.
            rows.extend(run.engines()?);
        }
    } else {
        rows.extend(run.library()?);
        rows.extend(run.mooncake()?);
        rows.extend(run.llama()?);
        for (example, names, quick) in EXAMPLES {
            rows.extend(run.example(example, names, quick)?);
        }
    }
    if rows.is_empty() {
        bail!("no row has a name with {:?}; `cargo xtask bench --quick` shows all", options.filter);
    }
    if !options.json {
        print!("{}", row::table(&rows));
    }
    if options.quick {
        eprintln!("docs/benchmarks.md is left as it is: a quick run writes nothing");
    } else if options.filter.is_some() || options.engines {
        page::update(place, rows)?;
        eprintln!("wrote these rows into docs/benchmarks");
    } else {
        page::write(place, &rows, &run.samples())?;
        eprintln!("wrote docs/benchmarks.md");
    }
    std::fs::remove_dir_all(&run.scratch)?;
    Ok(())
}

struct Run<'a> {
    place: &'a Place,
    options: &'a BenchOptions,
    native: PathBuf,
    scratch: PathBuf,
}

impl Run<'_> {
    /// Whether a row was asked for.
    fn wants(&self, name: &str) -> bool {
        // What llama.cpp restores does not depend on how it was saved.
        let again = name.starts_with("llama/") && name.contains("-synced") && !name.contains("/save");
        !again && self.options.filter.as_ref().is_none_or(|filter| name.contains(filter.as_str()))
    }

    /// Whether a row may have been asked for whose name begins so.
    fn may_want(&self, names: &str) -> bool {
        self.options.filter.as_ref().is_none_or(|filter| may_hold(names, filter))
    }

    fn samples(&self) -> PathBuf {
        self.scratch.join("samples")
    }

    /// The library through its C ABI, as it is installed.
    fn library(&self) -> Result<Vec<Row>> {
        let mut program = Command::new(self.place.target.join("release/kv-store-bench"));
        program.arg("--library").arg(self.place.library()).arg("--native").arg(&self.native);
        program.arg("--work").arg(&self.scratch).arg("--samples").arg(self.samples());
        if self.may_want("s3/") {
            program.env(servers::VARIABLE, servers::install(self.place)?);
        }
        if self.may_want("s3/") || self.may_want("cluster/") {
            program.env("KV_STORE_FAR_PEERS", servers::peers(self.place)?);
        }
        self.rows("the library", self.pass_on(&mut program))
    }

    /// Mooncake, whose servers bind fixed ports of all addresses: in a network namespace of its own.
    fn mooncake(&self) -> Result<Vec<Row>> {
        if !self.may_want("mooncake/") {
            return Ok(Vec::new());
        }
        if Namespace::start().is_none() {
            // It has said why.
            return Ok(Vec::new());
        }
        let mut program = isolated(self.place.target.join("release/kv-store-bench"));
        program.arg("--library").arg(self.place.library()).arg("--native").arg(&self.native).arg("--isolated");
        program.arg("--work").arg(&self.scratch).arg("--samples").arg(self.scratch.join("mooncake-samples"));
        let config = self.scratch.join("mooncake.toml");
        std::fs::write(&config, format!("[backend.mooncake]\n{GRANTS}\n"))?;
        program.env("KV_STORE_WASM_CONFIG", config).env(servers::VARIABLE, servers::install(self.place)?);
        self.rows("mooncake", self.pass_on(&mut program))
    }

    /// The library beside a former one.
    fn against(&self, former: &std::path::Path) -> Result<Vec<Row>> {
        let mut program = Command::new(self.place.target.join("release/kv-store-bench"));
        program.arg("--library").arg(self.place.library()).arg("--against").arg(former);
        program.arg("--work").arg(&self.scratch);
        self.rows("the former library", self.pass_on(&mut program))
    }

    /// What calls cost in instructions: a line each, as it comes.
    fn instructions(&self) -> Result<()> {
        let mut program = Command::new(self.place.target.join("release/kv-store-bench"));
        program.arg("--library").arg(self.place.library()).arg("--work").arg(&self.scratch);
        program.arg("--instructions").arg(self.place.target.join("release").join(LIBRARY));
        if !self.options.json {
            println!("{}", Instructions::HEADER);
        }
        self.lines("instructions", self.pass_on(&mut program), |line| {
            match self.options.json {
                true => println!("{line}"),
                false => println!("{}", serde_json::from_str::<Instructions>(line)?.line()),
            }
            Ok(())
        })
    }

    /// A real llama.cpp, beside its own state files.
    fn llama(&self) -> Result<Vec<Row>> {
        let mut prepared = None;
        let mut rows = Vec::new();
        for (size, shape, tokens) in [("16MB", &llama::LARGE, 1024), ("160MB", &llama::DEEP, 2560)] {
            for (kind, durability) in [("", "rename"), ("-synced", "full")] {
                let steps = ["save", "restore", "restore-hashed", "save-grown", "grown-bytes"];
                let wanted = steps.iter().any(|step| self.wants(&format!("llama/{step}{kind}/{size}")));
                if !wanted || (self.options.quick && size == "160MB" && kind == "-synced") {
                    continue;
                }
                let llama = match prepared.take() {
                    Some(llama) => prepared.insert(llama),
                    None => prepared.insert(demo::prepare(self.place)?),
                };
                let model = llama.model(shape)?;
                let store = self.scratch.join("llama");
                std::fs::create_dir_all(&store)?;
                let config = self.scratch.join(format!("{durability}.toml"));
                std::fs::write(&config, format!("[backend.local-fs]\noptions.durability = '{durability}'\n"))?;
                let mut client = Command::new(&llama.client);
                client.arg("bench").arg("--lib").arg(self.place.library());
                client.args(["--uri", &format!("local-fs://{}", store.join("store").display())]);
                client.arg("--model").arg(&model).args(["--name", "bench", "--tokens", &tokens.to_string()]);
                client.arg("--file").arg(store.join("state")).arg("--chunks").arg(store.join("store/chunks"));
                client.args(["--rounds", if self.options.quick { "7" } else { "21" }]);
                client.args((durability == "full").then_some("--sync"));
                client.args(["--rows", "llama", "--row-size", size]);
                rows.extend(self.rows(&format!("llama{kind}/{size}"), client.env("KV_STORE_WASM_CONFIG", &config))?);
                std::fs::remove_dir_all(&store)?;
            }
        }
        Ok(rows)
    }

    /// An unmodified llama-server with the library, beside one that keeps its slots in files.
    fn llama_server(&self) -> Result<Vec<Row>> {
        let llama = demo::prepare(self.place)?;
        let progress = Progress::start("preparing llama-server");
        let server = llama.server(&|step| progress.say(step))?;
        progress.done();
        let model = llama.model(&llama::DEEP)?;
        let config = self.scratch.join("rename.toml");
        std::fs::write(&config, "[backend.local-fs]\noptions.durability = 'rename'\n")?;
        let rounds = if self.options.quick { 5 } else { 21 };
        let mut bench = llama.bench_server(&server, &self.place.llama_library(), &model, &self.scratch, rounds);
        let mut rows = self.rows("llama-server", bench.env("KV_STORE_WASM_CONFIG", &config))?;
        match llama.smollm2(&|step| eprintln!("   {step}")) {
            Ok(model) => {
                let rounds = if self.options.quick { 3 } else { 7 };
                let library = self.place.llama_library();
                let mut bench = llama.bench_auto(&server, &library, &model, &self.scratch, rounds);
                rows.extend(self.rows("the automatic cache", &mut bench)?);
            }
            Err(error) => eprintln!("   no rows of the automatic cache: {error:#}"),
        }
        Ok(rows)
    }

    /// The measurements of a crate, one of its examples, which takes a filter.
    fn example(&self, example: &str, names: &str, quick: &str) -> Result<Vec<Row>> {
        if !self.may_want(names) {
            return Ok(Vec::new());
        }
        if matches!(example, "paged_bench" | "beside" | "shares") {
            // They measure with their components.
            guests::build_for_tests(self.place)?;
        }
        let mut build = dist::cargo(self.place, "build");
        step::run(self.place, &format!("building {example}"), build.args(["--example", example]))?;
        let filter = self.options.filter.as_deref();
        let filter = filter.unwrap_or(if self.options.quick { quick } else { "" });
        let mut program = Command::new(self.place.target.join("release/examples").join(example));
        program.arg(filter).current_dir(&self.scratch);
        if example == "kvx_bench" && self.may_want("kvx/numpy/") {
            program.env("KVX_BENCH_PYTHON", llama::python(&self.place.llama(), &|step| eprintln!("   {step}"))?);
        }
        if example == "blocks_bench" && self.may_want("blocks/noop-") {
            match engines::Engines::aibrix_mock(self.place) {
                Some(variables) => {
                    program.envs(variables);
                }
                None => eprintln!(
                    "   blocks/noop-* go without AIBrix's mock connector: `cargo xtask bench --engines` installs it"
                ),
            }
        }
        self.rows(example, &mut program)
    }

    /// Our own options, for a program that takes them too.
    fn pass_on<'a>(&self, program: &'a mut Command) -> &'a mut Command {
        program.args(self.options.quick.then_some("--quick"));
        if let Some(filter) = &self.options.filter {
            program.args(["--filter", filter]);
        }
        program
    }

    /// Adapters in Python engines, by the engines' own tools where they have some.
    fn engines(&self) -> Result<Vec<Row>> {
        let wheel = engines::wheel(self.place)?;
        let engines = engines::Engines::prepare(self.place, &wheel)?;
        let mut rows = Vec::new();
        for program in &engines::benches(self.place)? {
            let (mut bench, _redis) = engines::bench(self.place, &engines, program, &self.scratch)?;
            bench
                .arg(self.options.filter.as_deref().unwrap_or("engines/"))
                .args(self.options.quick.then_some("--quick"));
            rows.extend(self.rows(program, &mut bench)?);
        }
        let filter = self.options.filter.as_deref().unwrap_or("engines/");
        if "engines/vllm/first-token/".contains(filter) || filter.contains("first-token") {
            let vllm = engines::Vllm::prepare(self.place, &wheel)?;
            let mut bench = vllm.python(self.place)?;
            bench.arg(engines::BENCH_VLLM).env("KV_STORE_BENCH_FOLDER", &self.scratch).arg(filter);
            rows.extend(self.rows(engines::BENCH_VLLM, bench.args(self.options.quick.then_some("--quick")))?);
        }
        Ok(rows)
    }

    /// Run a program that prints rows.
    fn rows(&self, name: &str, program: &mut Command) -> Result<Vec<Row>> {
        let progress = Progress::start(&format!("measuring {name}"));
        let mut rows = Vec::new();
        self.lines(name, program, |line| {
            let row: Row = serde_json::from_str(line).with_context(|| format!("{name} printed no row: {line}"))?;
            if !self.wants(&row.name) {
                return Ok(());
            }
            progress.say(&row.brief());
            if self.options.json {
                println!("{line}");
            }
            rows.push(row);
            Ok(())
        })?;
        progress.done();
        Ok(rows)
    }

    /// Run a program that measures, and take each line that it prints.
    fn lines(&self, name: &str, program: &mut Command, mut take: impl FnMut(&str) -> Result<()>) -> Result<()> {
        let config = self.place.empty_config()?;
        let given = program.get_envs().any(|(name, _)| name == "KV_STORE_WASM_CONFIG");
        if !given {
            program.env("KV_STORE_WASM_CONFIG", config);
        }
        program.env("KV_STORE_WASM_CACHE", self.place.work().join("aot")).env_remove("KV_STORE_WASM_PATH");
        let mut running = program
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot run {name}"))?;
        for line in BufReader::new(running.stdout.take().context("its output is piped")?).lines() {
            take(&line?)?;
        }
        let status = running.wait()?;
        if !status.success() {
            bail!("measuring {name} failed: {status}");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::may_hold;

    #[test]
    fn a_filter_is_for_every_program_whose_rows_it_may_be_in() {
        for (names, filter) in [
            ("kvx/", "gather"),
            ("kvx/", "numpy"),
            ("kvx/numpy/", "numpy/nhd/take"),
            ("kvx/", "kvx/nhd/write"),
            ("kvx/fused/", "restore"),
            ("kvx/fused/", "kvx/"),
            ("kvx/fused/", "fs/nhd"),
            ("cache/", "disk-load"),
            ("cache/", ""),
        ] {
            assert!(may_hold(names, filter), "{names} {filter}");
        }
        for (names, filter) in [
            ("kvx/fused/", "fs/get"),
            ("kvx/", "prefetch/hit"),
            ("kvx/fused/", "kvx/nhd"),
            ("cache/", "kvx/"),
            ("kvx/numpy/", "llama/save"),
        ] {
            assert!(!may_hold(names, filter), "{names} {filter}");
        }
    }
}
