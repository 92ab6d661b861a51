//! `cargo xtask demo`: two llama-servers with a trained model and one store (`real`). Where model or server cannot be had, a real llama.cpp
//! with random weights saves the KV state of a conversation through a sandboxed backend, and a fresh process goes on with it. What is
//! printed was measured in this run, or said by the library itself.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::llama::{self, Llama};
use crate::place::Place;
use crate::step::Progress;
use crate::{dist, packages};

mod real;

/// The manifest's name.
const NAME: &str = "conversation";
const FIRST_TOKENS: u32 = 512;
const MORE_TOKENS: u32 = 1024;

pub fn run(place: &Place, json: bool) -> Result<()> {
    dist::run(place)?;
    let llama = prepare(place)?;
    let folder = place.root.join("target/demo");
    match real::Real::prepare(&llama) {
        Ok(real) => {
            let report = real.run(place, &llama, &emptied(&folder)?.join("store"))?;
            if json {
                println!("{report}");
            } else {
                real::print_for_people(place, &report);
            }
            return Ok(());
        }
        Err(error) => eprintln!("   a model with random weights is used: {error:#}"),
    }
    let progress = Progress::start("making a model with random weights");
    let model = llama.model(&llama::LARGE)?;
    progress.done();

    let demo = Demo::new(place, &llama, model, emptied(&folder)?)?;
    let report = demo.run()?;
    if json {
        println!("{report}");
    } else {
        print_for_people(&demo, &report);
    }
    Ok(())
}

/// This folder, with nothing in it.
fn emptied(folder: &Path) -> Result<PathBuf> {
    if folder.exists() {
        std::fs::remove_dir_all(folder).with_context(|| format!("cannot empty {}", folder.display()))?;
    }
    std::fs::create_dir_all(folder)?;
    Ok(folder.to_owned())
}

/// libllama and the client, built if they are not there.
pub fn prepare(place: &Place) -> Result<Llama> {
    packages::install(llama::APT_PACKAGES)?;
    let progress = Progress::start("preparing llama.cpp (the first time takes some minutes)");
    let llama = llama::ensure(&place.llama(), &place.root, &|step| progress.say(step))?;
    progress.done();
    Ok(llama)
}

struct Demo<'a> {
    place: &'a Place,
    llama: &'a Llama,
    model: PathBuf,
    config: PathBuf,
    folder: PathBuf,
}

impl<'a> Demo<'a> {
    fn new(place: &'a Place, llama: &'a Llama, model: PathBuf, folder: PathBuf) -> Result<Self> {
        Ok(Demo { place, llama, model, config: place.empty_config()?, folder })
    }

    fn store(&self) -> PathBuf {
        self.folder.join("store")
    }

    fn uri(&self) -> String {
        format!("wasm://local-fs://{}", self.store().display())
    }

    fn client(&self, command: &str, tokens: u32, options: &[&str]) -> Command {
        let mut client = self.bare_client(command);
        client.arg("--model").arg(&self.model).args(["--name", NAME, "--tokens", &tokens.to_string()]);
        client.arg("--logits").arg(self.folder.join(format!("logits-{tokens}"))).args(options);
        client
    }

    fn bare_client(&self, command: &str) -> Command {
        let mut client = Command::new(&self.llama.client);
        client.arg(command).arg("--lib").arg(self.place.library()).args(["--uri", &self.uri()]);
        client.env("KV_STORE_WASM_CACHE", self.place.work().join("aot"));
        client.env("KV_STORE_WASM_CONFIG", &self.config);
        client.env("KV_STORE_WASM_LOG", "info").env_remove("KV_STORE_WASM_PATH").stdin(Stdio::null());
        client
    }

    /// The client's report, and what the library said when it opened the store.
    fn step(&self, what: &str, command: &str, tokens: u32, options: &[&str]) -> Result<(Value, String)> {
        let progress = Progress::start(what);
        let output = self.client(command, tokens, options).output().context("cannot run the client")?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        if !output.status.success() {
            bail!("{what} failed: {}\n{said}", output.status);
        }
        progress.done();
        let opened = said.lines().find(|line| line.contains(": opened ")).unwrap_or_default();
        Ok((serde_json::from_slice(&output.stdout)?, opened.to_owned()))
    }

    fn run(&self) -> Result<Value> {
        let (first, opened) = self.step("saving a conversation", "save", FIRST_TOKENS, &[])?;
        let (second, _) = self.step("saving the same conversation, grown", "save", MORE_TOKENS, &[])?;
        let prefill = ["--compare-prefill"];
        let (restored, _) = self.step("restoring it in a fresh process", "restore", MORE_TOKENS, &prefill)?;
        if restored["logits_identical"] != true {
            bail!("the logits after the restore differ: {restored}");
        }
        let refusal = self.damage_one_chunk()?;
        Ok(json!({
            "opened": opened, "store": self.store(), "first_save": first, "second_save": second,
            "restore": restored, "damaged_chunk": refusal,
        }))
    }

    /// Change one byte of one stored chunk of the conversation: the restore must be refused. What the library says of it.
    fn damage_one_chunk(&self) -> Result<Value> {
        let progress = Progress::start("restoring with one byte changed in one stored chunk");
        let mut list = self.bare_client("chunks");
        let list = crate::step::output(list.args(["--name", NAME]))?;
        let key = list.split_whitespace().next().context("the conversation has no chunk")?;
        let chunk = self.store().join("chunks").join(&key[..1]).join(key);
        let mut bytes = std::fs::read(&chunk).with_context(|| format!("no file {}", chunk.display()))?;
        let middle = bytes.len() / 2;
        *bytes.get_mut(middle).context("the chunk is empty")? ^= 0x40;
        std::fs::write(&chunk, &bytes)?;
        let output = self.client("restore", MORE_TOKENS, &[]).output().context("cannot run the client")?;
        let said = String::from_utf8_lossy(&output.stderr);
        let why = said.lines().find(|line| line.contains("damaged") && line.contains(key));
        let (Some(1), Some(why)) = (output.status.code(), why) else {
            bail!("a changed byte in {} was not refused: {}\n{said}", chunk.display(), output.status);
        };
        progress.done();
        Ok(json!({ "file": chunk, "refused": true, "said": why }))
    }
}

fn print_for_people(demo: &Demo, report: &Value) {
    let number = |value: &Value| value.as_f64().unwrap_or(f64::NAN);
    let opened = report["opened"].as_str().unwrap_or_default();
    let opened = opened.strip_prefix("kv-store-wasm: info: ").unwrap_or(opened);
    let (first, second, restore) = (&report["first_save"], &report["second_save"], &report["restore"]);
    let component = demo.place.components().join("local-fs.wasm");
    let size = std::fs::metadata(&component).map_or(0, |meta| meta.len());

    println!("\nA real llama.cpp kept its KV state in a sandboxed storage backend.\n");
    println!("library    {}", demo.place.library().display());
    println!("component  {} ({} KB of WebAssembly)", component.display(), size / 1024);
    println!("           {opened}");
    let llama::Shape { layers, embd, .. } = llama::LARGE;
    println!("engine     llama.cpp, {layers} layers of {embd}, random weights, flash attention");
    println!();
    for (title, save) in [("save", first), ("save again", second)] {
        println!(
            "{title:10} {} tokens, {:.1} MB of state: {} chunks, {} new ({:.1} MB), {} already there; {:.1} ms",
            save["state_tokens"],
            number(&save["state_bytes"]) / 1e6,
            save["chunks"],
            save["chunks_new"],
            number(&save["bytes_new"]) / 1e6,
            save["chunks_known"],
            number(&save["save_ms"]),
        );
    }
    let (fetch, take) = (number(&restore["restore_ms"]), number(&restore["set_state_ms"]));
    let prefill = number(&restore["prefill_ms"]);
    println!(
        "restore    in a fresh process: {:.1} ms ({fetch:.1} from the store, {take:.1} into llama.cpp), where a prefill takes \
         {prefill:.0} ms: {:.0} times faster",
        fetch + take,
        prefill / (fetch + take),
    );
    println!("logits     identical, bit for bit");
    println!("damage     one byte changed in one chunk: refused");
    println!("           {}", report["damaged_chunk"]["said"].as_str().unwrap_or_default());
    println!("\nThe files are in {}. Times are of this machine and this run.", demo.store().display());
}
