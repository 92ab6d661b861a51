//! Unmodified llama-servers with the preload library: the one that is built, and Debian's newest.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;
use kv_store_tests::redis::RedisServer;

use crate::llama::{self, Llama};
use crate::place::{LLAMA_LIBRARY, Place};
use crate::{demo, package, step};

/// A seed of each run of mixed requests. What is checked must hold for all.
const SEED: u32 = 32;

/// Of the tokens that could be reused, the least that must not be computed. It is far below what is seen (0.7 to 0.95), because a
/// load that would take longer than computing is skipped, and tiny models compute fast: a busy machine loads less.
const SHARE: &str = "0.3";

/// Of SmolLM2, whose tokens take long enough to compute that every load is worth it.
const TRAINED_SHARE: &str = "0.7";
/// Mixed requests to SmolLM2. Each is computed twice: by a server and by the replay.
const TRAINED_REQUESTS: &str = "200";
/// Prompts that SmolLM2 continues after a load as after computing.
const TRAINED_PROMPTS: &str = "6";
/// What prompts of SmolLM2 are pieces of.
const TEXT: &str = "docs/architecture.md";

/// Two llama-servers that are built, one store, and the library of the tarball as it is unpacked.
pub fn test(place: &Place) -> Result<()> {
    let llama = demo::prepare(place)?;
    let progress = step::Progress::start("preparing llama-server");
    let server = llama.server(&|step| progress.say(step))?;
    progress.done();
    let tree = package::unpacked(place, &place.work().join("llama-server"))?;
    slots(
        place,
        &llama,
        ["--server".as_ref(), server.as_os_str()],
        &tree.join("lib").join(LLAMA_LIBRARY),
        "llama-server",
    )
}

/// Debian's llama-server: its slots, and the automatic cache below mixed requests. With `wanted` only if it has this version.
pub fn test_newest(place: &Place, wanted: Option<&str>, requests: u32) -> Result<()> {
    let llama = demo::prepare(place)?;
    let progress = step::Progress::start("preparing Debian's llama-server");
    let found = llama::newest::ensure(&llama, wanted, &|step| progress.say(step))?;
    progress.done();
    let newest = match found {
        Ok(newest) => newest,
        Err(found) => {
            eprintln!(
                "== skipped: Debian's llama-server is {found}, and these checks name {}; --newest runs it",
                wanted.unwrap_or_default()
            );
            return Ok(());
        }
    };
    let name = format!("Debian's llama-server {}", newest.version);
    let server = ["--root".as_ref(), newest.root.as_os_str()];
    slots(place, &llama, server, &place.llama_library(), &name)?;
    let draft = llama.tiny("llama", llama::DRAFT_LAYERS, llama::MODEL_SEED)?;
    let check = |what: &str, model: &Path, more: &dyn Fn(&mut Command, &Path)| -> Result<()> {
        let folder = empty_store(place, "auto")?;
        let uri = format!("wasm://local-fs://{}", folder.display());
        let mut check = llama.check_auto(server, &place.llama_library(), &uri);
        newest.recorders(&mut check);
        check.arg("--model").arg(model).arg("--work").arg(records(place)).args(["--seed", &SEED.to_string()]);
        more(&mut check, &folder);
        place.for_consumers(&mut check)?;
        step::run_shown(&format!("{name}: {what}"), &mut check)
    };
    trained(place, &llama, &check)?;
    let auto = |what: &str, kind: &llama::ModelKind, requests: u32, more: &dyn Fn(&mut Command, &Path)| -> Result<()> {
        let model = llama.tiny(kind.architecture, llama::TINY_LAYERS, llama::MODEL_SEED)?;
        check(&format!("{what}, a {} model", kind.name), &model, &|check, folder| {
            check.arg("--draft").arg(&draft).args(["--requests", &requests.to_string()]);
            more(check, folder);
        })
    };
    for kind in llama::KINDS {
        auto("the automatic cache", kind, requests, &|check, _| {
            check.args(["--share", SHARE, "--servers", "8", "--context", "2048"]);
        })?;
        auto("a store with damaged files, servers that are killed", kind, requests / 4, &|check, store| {
            check.args(["--servers", "4", "--kill", "--damage"]).arg(store);
        })?;
        let other = llama.tiny(kind.architecture, llama::TINY_LAYERS, llama::MODEL_SEED + 1)?;
        auto("two models under one name", kind, requests, &|check, _| {
            check.arg("--swap").arg(&other);
        })?;
    }
    Ok(())
}

/// A check of the automatic cache, with a model: what it is called, and what it is given beside the usual, from the store's folder.
type Check<'a> = &'a dyn Fn(&str, &Path, &dyn Fn(&mut Command, &Path)) -> Result<()>;

/// The automatic cache below a trained model.
fn trained(place: &Place, llama: &Llama, check: Check<'_>) -> Result<()> {
    let progress = step::Progress::start("preparing SmolLM2");
    let model = llama.smollm2(&|step| progress.say(step))?;
    progress.done();
    let text = place.root.join(TEXT);
    check("SmolLM2 goes on after a load as after computing", &model, &|check, _| {
        check.args(["--same", "--context", "512", "--requests", TRAINED_PROMPTS]).arg("--text").arg(&text);
    })?;
    check("the automatic cache, SmolLM2", &model, &|check, _| {
        check.args(["--share", TRAINED_SHARE, "--requests", TRAINED_REQUESTS, "--context", "768"]);
        check.arg("--text").arg(&text);
    })
}

/// Saves and restores of slots, through local-fs and redis.
fn slots(place: &Place, llama: &Llama, server: [&OsStr; 2], library: &Path, name: &str) -> Result<()> {
    let model = llama.model(&llama::SMALL)?;
    let folder = empty_store(place, "server")?;
    let redis = RedisServer::start(&[]);
    for (store, uri) in [
        ("local-fs", format!("local-fs://{}", folder.display())),
        ("redis", format!("redis://127.0.0.1:{}/0", redis.port)),
    ] {
        let mut check = llama.check_server(server, library, &format!("wasm://{uri}"), &model);
        for kind in llama::KINDS.iter().filter(|kind| !kind.shortens) {
            check.arg("--checkpoints").arg(llama.tiny(kind.architecture, llama::TINY_LAYERS, llama::MODEL_SEED)?);
        }
        place.for_consumers(&mut check)?;
        step::run_shown(&format!("{name} through {store}"), &mut check)?;
    }
    Ok(())
}

/// Logs of servers, and what was recorded of them: the last run's.
fn records(place: &Place) -> PathBuf {
    place.work().join("llama-auto")
}

/// A folder for a store, with nothing in it.
pub fn empty_store(place: &Place, name: &str) -> Result<PathBuf> {
    let folder = place.root.join("target/llama-store").join(name);
    if folder.exists() {
        std::fs::remove_dir_all(&folder)?;
    }
    std::fs::create_dir_all(&folder)?;
    Ok(folder)
}
