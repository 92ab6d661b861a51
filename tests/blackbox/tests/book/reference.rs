//! Pages of reference that are made of what they refer to: headers, the contract, what the programs say of themselves.

use std::path::Path;

use crate::promises;
use kv_store_tests::book::{contract, header};
use kv_store_tests::consumer::{commands_in, finish};
use kv_store_tests::{dist, root};
use libtest_mimic::Failed;

/// A page that is made.
pub struct Page {
    /// From the clone.
    pub path: &'static str,
    pub make: fn() -> Result<String, Failed>,
}

pub const PAGES: &[Page] = &[
    Page { path: "docs/reference/abi.md", make: abi },
    Page { path: "docs/reference/contract.md", make: of_contract },
    Page { path: promises::PATH, make: of_promises },
    Page { path: "docs/reference/cli-stores.md", make: || cli("stores", STORES) },
    Page { path: "docs/reference/cli-files.md", make: || cli("files and items", FILES) },
    Page {
        path: "docs/reference/cli-cache.md",
        make: || cli("slots of llama.cpp, and rows of the token-exact cache", CACHE),
    },
    Page { path: "docs/reference/cli-backends.md", make: || cli("backends", BACKENDS) },
    Page { path: "docs/reference/cli-servers.md", make: || cli("config, counters and servers", SERVERS) },
];

const STORES: &[&str] = &["kv-store", "kv-store ls", "kv-store du", "kv-store gc", "kv-store verify", "kv-store copy"];
const FILES: &[&str] =
    &["kv-store save", "kv-store restore", "kv-store get", "kv-store put", "kv-store rm", "kv-store sequence"];
const CACHE: &[&str] = &[
    "kv-store llama",
    "kv-store llama ls",
    "kv-store llama rm",
    "kv-store cache",
    "kv-store cache ls",
    "kv-store cache verify",
    "kv-store cache gc",
    "kv-store cache stats",
];
const BACKENDS: &[&str] = &["kv-store new", "kv-store update", "kv-store build", "kv-store check", "kv-store inspect"];
const SERVERS: &[&str] =
    &["kv-store doctor", "kv-store config", "kv-store config check", "kv-store watch", "memkv-server"];

/// Every command of `kv-store` is on a page.
pub fn is_complete() -> Result<(), Failed> {
    let help = help_of("kv-store")?;
    let names = commands_in(&help);
    let on_pages: Vec<&str> = [STORES, FILES, CACHE, BACKENDS, SERVERS].concat();
    let missing: Vec<&str> = names
        .iter()
        .filter(|name| **name != "help" && !on_pages.contains(&format!("kv-store {name}").as_str()))
        .copied()
        .collect();
    if !names.is_empty() && missing.is_empty() {
        return Ok(());
    }
    Err(format!("tests/blackbox/tests/book/reference.rs puts the commands {missing:?} of {names:?} on no page").into())
}

/// What is at the head of each.
const MADE: &str = "<!-- Made by tests/blackbox/tests/book.rs: UPDATE_DOCS=1 writes it anew. -->\n";

/// The page is what would be made now.
pub fn is_current(page: &Page) -> Result<(), Failed> {
    let made = (page.make)()?;
    let path = root().join(page.path);
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::create_dir_all(path.parent().unwrap_or(Path::new("/")))?;
        std::fs::write(&path, &made)?;
    }
    let there = std::fs::read_to_string(&path).unwrap_or_default();
    if there == made {
        return Ok(());
    }
    let differs = there.lines().zip(made.lines()).find(|(there, made)| there != made);
    Err(format!(
        "{} is not what it refers to; run this test with UPDATE_DOCS=1. The first line that differs: {differs:?}",
        page.path
    )
    .into())
}

fn read(path: &str) -> Result<String, Failed> {
    Ok(std::fs::read_to_string(root().join(path))?)
}

fn abi() -> Result<String, Failed> {
    const HEADERS: &[(&str, &str)] = &[
        ("kv_store_abi.h", "Stores, chunks and manifests: the ABI `kv_store_v1`"),
        ("kv_store_batch.h", "Batches, saves and queues on the same handle"),
        ("kv_store_describe.h", "What the values of a store are"),
        ("kv_store_kvx.h", "Sequences of a paged cache, straight into and out of a store"),
        ("kv_blocks.h", "Token blocks in memory, over any store"),
        ("kv_cache.h", "The token-exact cache, in `libkv_cache.so`"),
        ("kvx_abi.h", "Kernels for paged caches: the published KVX ABI"),
        ("kv_store_llama.h", "Sequences of llama.cpp, in `libkv_store_llama.so`"),
        ("kv_store_wasm.h", "The process: counters and the log"),
    ];
    let mut page = format!(
        "{MADE}# The C headers\n\nEach header is the full documentation of its functions: ownership, threads, errors, limits. This page lists them.\n\n\
         All but the two published ABIs (`kv_store_v1` and KVX) share [include/kv_store_status.h](../../include/kv_store_status.h): one list of \
         statuses, one table of functions for each header, found by one function, and one way to the text of a failure. \
         [include/kv_store_deprecated.h](../../include/kv_store_deprecated.h) has the names of 0.2.\n"
    );
    for (name, what) in HEADERS {
        let table = header(&read(&format!("include/{name}"))?);
        page += &format!("\n## {what}\n[include/{name}](../../include/{name})\n\n{table}");
    }
    Ok(page)
}

fn of_contract() -> Result<String, Failed> {
    let tables = contract(&read("wit/backend.wit")?);
    Ok(format!(
        "{MADE}# The contract\n\nWhat host and component call of each other. [wit/backend.wit](../../wit/backend.wit) is the contract itself, with types and \
         errors; this page lists its functions. The [vendor guide](../vendor-guide.md) says how to use them.\n\n{tables}"
    ))
}

fn of_promises() -> Result<String, Failed> {
    Ok(format!(
        "{MADE}# Stored, visible, durable\n\nWhat has come of a value when a call of the C interface has answered 0: the program \
         [tests/consumer/promises.c](../../tests/consumer/promises.c) makes the calls and has another client look.\n\n\
         - `buffered`: this handle reads it, and no other client. It is lost with the process.\n\
         - `visible`: every client of the store reads it.\n\
         - `durable`: visible, and it survives what the backend promises to survive. A backend says in `kv_store_info_t.durable` whether it promises \
         that; [Backends](../backends.md) says what each means by it. For local-fs it is a power loss, and `cargo xtask torture --only \
         crash-states` tests it.\n\
         - `unsupported`: the call is refused, because the backend promises nothing.\n\n{}\n\
         `put_manifest` stands for the chunks that `put_chunk` has put on the handle before, and for the manifest. `save_commit` stands for the \
         chunks of its save. Fused saves (`save` of `kv_store_kvx.h`) are saves with a commit.\n",
        promises::table()?
    ))
}

/// What commands say of themselves.
fn cli(what: &str, commands: &[&str]) -> Result<String, Failed> {
    let mut page = format!("{MADE}# Commands: {what}\n");
    for command in commands {
        page += &format!("\n## {command}\n```text\n{}\n```\n", help_of(command)?);
    }
    Ok(page)
}

/// What a command says of itself.
fn help_of(command: &str) -> Result<String, Failed> {
    let mut words = command.split(' ');
    let program = dist().join("bin").join(words.next().unwrap_or_default());
    // Not as wide as the terminal of who runs it.
    let mut help = std::process::Command::new(program);
    let finished = finish(help.args(words).arg("--help").env("COLUMNS", "100"));
    if !finished.status.success() {
        return Err(format!("{command} --help: {}{}", finished.status, finished.stderr).into());
    }
    let text: Vec<&str> = finished.stdout.lines().map(str::trim_end).collect();
    Ok(text.join("\n").trim().to_owned())
}
