//! The demo with a trained model and an unmodified llama-server: a question about a text of some thousand tokens, and the same question to
//! a second server with an empty memory, which finds the text in the store.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::llama::{self, Llama};
use crate::place::Place;
use crate::step::Progress;

/// The text that the question is about.
const TEXT: &str = "docs/architecture.md";

/// A trained model and a server to ask.
pub struct Real {
    model: PathBuf,
    /// The option of the scripts that names the server, and its path.
    server: [OsString; 2],
    name: String,
}

impl Real {
    /// The model, and Debian's newest server, or else one that is built.
    ///
    /// # Errors
    /// What this machine cannot get.
    pub fn prepare(llama: &Llama) -> Result<Real> {
        let progress = Progress::start("preparing a trained model and llama-server");
        let say = |step: &str| progress.say(step);
        let model = llama.smollm2(&say)?;
        let (server, name) = match llama::newest::ensure(llama, None, &say) {
            Ok(Ok(newest)) => {
                (["--root".into(), newest.root.into_os_string()], format!("Debian's llama-server {}", newest.version))
            }
            _ => (["--server".into(), llama.server(&say)?.into_os_string()], "llama-server, built here".to_owned()),
        };
        progress.done();
        Ok(Real { model, server, name })
    }

    /// Ask both servers.
    ///
    /// # Errors
    /// A server failed, or the second found nothing.
    pub fn run(&self, place: &Place, llama: &Llama, store: &Path) -> Result<Value> {
        let progress = Progress::start("asking two servers (the first computes, some ten seconds)");
        std::fs::create_dir_all(store)?;
        let mut ask = llama.demo_server(self.server.each_ref().map(OsString::as_os_str), &place.llama_library());
        ask.arg("--model").arg(&self.model).arg("--store").arg(store).arg("--text").arg(place.root.join(TEXT));
        place.for_consumers(&mut ask)?;
        let output = ask.output().context("cannot run the script")?;
        if !output.status.success() {
            bail!("the servers: {}\n{}", output.status, String::from_utf8_lossy(&output.stderr));
        }
        progress.done();
        let mut report: Value = serde_json::from_slice(&output.stdout)?;
        report["engine"] = self.name.clone().into();
        report["store"] = store.display().to_string().into();
        Ok(report)
    }
}

/// What came of it.
pub fn print_for_people(place: &Place, report: &Value) {
    let (first, second) = (&report["first"], &report["second"]);
    let number = |value: &Value| value.as_f64().unwrap_or(f64::NAN);
    let text = |answer: &Value| answer.as_str().unwrap_or_default().to_owned();
    let answer = |server: &Value| text(&server["answer"]);
    let [cold, loaded] = [first, second].map(|server| number(&server["first_words_ms"]));

    println!("\nTwo llama-servers, one store: a text that the first has read is not computed again by the second.\n");
    println!("library    {}", place.llama_library().display());
    println!("engine     {}, SmolLM2-135M-Instruct", report["engine"].as_str().unwrap_or_default());
    println!("text       {TEXT}, {} tokens", first["text_tokens"]);
    println!("question   {}\n", report["question"].as_str().unwrap_or_default());
    println!("first      {:.0} ms until its first words, all of it computed", cold);
    println!("           {}", answer(first));
    println!("again      {:.0} ms, from the first server's own prefix cache", number(&first["again_ms"]));
    println!("           {}", text(&first["again"]));
    let stored = &report["stored"];
    println!("stored     {} files, {:.1} MB", stored["files"], number(&stored["bytes"]) / 1e6);
    println!(
        "second     {loaded:.0} ms until its first words, {} tokens loaded and not computed: {:.0} times faster",
        second["not_computed"],
        cold / loaded
    );
    println!("           {}", answer(second));
    let same = match [answer(first), text(&first["again"])].map(|other| other == answer(second)) {
        [true, true] => "the same answer as both of the first server, to the letter",
        [false, true] => "the same answer as the first server's own prefix cache gives, another one than computed",
        [true, false] => "the same answer as computed, another one than the first server's own prefix cache gives",
        [false, false] => "another answer: llama.cpp rounds batches of other sizes otherwise",
    };
    println!("           {same}");
    println!(
        "\nThe files are in {}. Times are of this machine and this run.",
        report["store"].as_str().unwrap_or_default()
    );
}
