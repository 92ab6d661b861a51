//! A program that embeds the host: what it says holds in place of the environment. In a test program of its own, because the log
//! and the default host are the process's.

#![allow(clippy::expect_used, clippy::unwrap_used, clippy::indexing_slicing)]

use std::error::Error as _;
use std::path::PathBuf;

use kv_platform::sync::Mutex;
use kv_store_wasm::{Depth, ErrorKind, Host, Store};

#[path = "../examples/embed.rs"]
#[allow(dead_code, reason = "its `main` is the example's")]
mod example;

/// Where the installed components are.
fn components() -> PathBuf {
    kv_store_tests::dist().join("components")
}

/// The cache that the tests share, and the helper to compile with, as a config.
fn cache_and_helper() -> (PathBuf, String) {
    let target = components().ancestors().nth(2).unwrap().to_owned();
    let helper = format!("[compile]\nhelper = '{}'\n", target.join("dist/libexec/kv-store-compile").display());
    (target.join("test-consumers/cache"), helper)
}

/// The log is the process's: tests that set it take turns.
static LOG: Mutex<()> = Mutex::new(());

#[test]
fn the_example_runs() {
    let _turn = LOG.lock();
    let scratch = tempfile::tempdir().unwrap();
    let (cache, _) = cache_and_helper();
    let uri = format!("local-fs://{}", scratch.path().join("store").display());
    example::run(&components(), &cache, &uri).unwrap();
    // What it put is there for another host, and the manifest is gone again.
    let host = Host::builder().config_text("").components([components()]).cache(&cache).build().unwrap();
    let store = host.open(&uri).unwrap();
    assert_eq!(store.get_chunk(b"embed/1").unwrap().as_deref(), Some(&b"what the prompt"[..]));
    assert_eq!(store.get_chunk(b"embed/2").unwrap().as_deref(), Some(&b" came to"[..]));
    assert!(store.get_manifest("prompt").unwrap().is_none());
}

#[test]
fn what_the_program_says_holds_and_not_the_environment() {
    let scratch = tempfile::tempdir().unwrap();
    let place = |name: &str| {
        let folder = scratch.path().join(name);
        std::fs::create_dir(&folder).unwrap();
        folder
    };
    let (cache, helper) = cache_and_helper();
    let uri = format!("local-fs://{}", place("store").display());
    let base = || Host::builder().cache(&cache).config_text(&helper);

    // A component is looked for in its directories, and nowhere else.
    let empty = place("empty");
    let elsewhere = base().components([&empty]).build().unwrap();
    let error = elsewhere.open(&uri).err().expect("there is no component");
    assert_eq!((error.kind(), error.operation(), error.can_retry()), (ErrorKind::Invalid, Some("open"), false));
    let looked = format!("no local-fs.wasm, and no other that lists local-fs, in {}; put it there", empty.display());
    assert!(error.to_string().contains(&looked), "{error}");
    assert!(!error.to_string().contains("KV_STORE_WASM_PATH"), "{error}");

    // The limits and grants of its config are those of its stores alone.
    let given = base().components([components()]);
    let tight = format!("{helper}[backend.local-fs.limits]\ninstances = 3\n");
    let file = scratch.path().join("config.toml");
    std::fs::write(&file, &tight).unwrap();
    let by_file = Host::builder().cache(&cache).components([components()]).config(&file).build().unwrap();
    let by_text = given.build().unwrap();
    let instances = |host: &Host| host.doctor(&uri, Depth::Offline).limits.instances;
    assert_eq!((instances(&by_file), instances(&by_text)), (3, 0));
    assert_eq!(by_file.doctor(&uri, Depth::Offline).config.as_deref(), Some(file.as_path()));
    assert_eq!(by_text.doctor(&uri, Depth::Offline).config, None);
    by_file.open(&uri).unwrap().put_chunk(b"key", b"bytes").unwrap();
    assert_eq!(by_text.open(&uri).unwrap().get_chunk(b"key").unwrap().as_deref(), Some(&b"bytes"[..]));

    // Neither the config nor the cache of a host may be what a store reaches.
    for inside in [file.parent().unwrap(), &cache] {
        let error = by_file.open(&format!("local-fs://{}", inside.display())).err().expect("it lies over ours");
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    }

    // A component is compiled into the host's cache.
    let own = scratch.path().join("own-cache");
    let host = Host::builder().config_text(&helper).components([components()]).cache(&own).build().unwrap();
    let component = scratch.path().join("memory.wasm");
    std::fs::copy(components().join("memory.wasm"), &component).unwrap();
    let compiled = host.compile(&component, std::time::Duration::from_secs(300)).unwrap();
    assert!(
        compiled.kept
            && own.read_dir().unwrap().flatten().any(|file| file.path().extension().is_some_and(|e| e == "cwasm"))
    );
}

#[test]
fn what_cannot_be_a_host_is_refused() {
    let relative = [
        Host::builder().config("config.toml").build(),
        Host::builder().components(["components"]).build(),
        Host::builder().cache("cache").build(),
    ];
    for refused in relative {
        let error = refused.expect_err("a path is relative");
        assert!(
            error.to_string().contains("must be an absolute path") && error.operation() == Some("build"),
            "{error}"
        );
    }
    let error = Host::builder().config_text("[backend.x]\nlimit = 1\n").build().expect_err("no such key");
    assert!(error.to_string().contains("given config:2: unknown field `limit`"), "{error}");
    let missing = Host::builder().config("/no/such/config.toml").build().unwrap();
    let error = missing.open("memory://x").err().expect("there is no file");
    assert_eq!(
        error.source().and_then(|source| source.downcast_ref::<std::io::Error>()?.raw_os_error()),
        Some(libc::ENOENT)
    );
}

#[test]
fn lines_are_records_of_the_programs_logger() {
    let _turn = LOG.lock();
    static SAID: Mutex<Vec<(log::Level, String)>> = Mutex::new(Vec::new());
    struct Kept;
    impl log::Log for Kept {
        fn enabled(&self, line: &log::Metadata<'_>) -> bool {
            line.target() == "kv_store_wasm" && line.level() <= log::Level::Info
        }
        fn log(&self, line: &log::Record<'_>) {
            SAID.lock().push((line.level(), line.args().to_string()));
        }
        fn flush(&self) {}
    }
    log::set_logger(&Kept).unwrap();
    log::set_max_level(log::LevelFilter::Info);
    let (cache, helper) = cache_and_helper();
    let base = Host::builder().config_text(helper).components([components()]).cache(cache);
    let host = base.log(log::logger()).build().unwrap();
    drop(host.open("memory://lines-of-the-log").unwrap());
    let scratch = tempfile::tempdir().unwrap();
    let store = host.open(&format!("local-fs://{}", scratch.path().display())).unwrap();
    let key = xxhash_rust::xxh3::xxh3_64(b"bytes").to_be_bytes();
    store.put_chunk(&key, b"bytes").unwrap();
    let hex = hex::encode(key);
    std::fs::write(scratch.path().join("chunks").join(&hex[..1]).join(&hex), b"other").unwrap();
    assert!(store.get_chunk(&key).unwrap().is_none());
    let said = SAID.lock();
    let has = |level, text: &str| said.iter().any(|(of, line)| *of == level && line.contains(text));
    assert!(has(log::Level::Info, "opened memory://lines-of-the-log: "), "{said:?}");
    assert!(has(log::Level::Error, &format!("chunk {hex} is damaged")), "{said:?}");
}

/// No helper stands beside the program of a test.
#[test]
fn without_a_compile_helper_cached_code_is_used_and_nothing_is_compiled() {
    let scratch = tempfile::tempdir().unwrap();
    let cache = scratch.path().join("cache");
    // A custom section makes it a component that nobody has compiled; each file of it is loaded anew.
    let bytes = [std::fs::read(components().join("memory.wasm")).unwrap(), b"\0\x06\x05alone".to_vec()].concat();
    let place = |name: &str| {
        let folder = scratch.path().join(name);
        std::fs::create_dir(&folder).unwrap();
        std::fs::write(folder.join("memory.wasm"), &bytes).unwrap();
        folder
    };
    let base = |name: &str| Host::builder().config_text("").components([place(name)]).cache(&cache);
    let none = base("none").build().unwrap();
    let refused = none.open("memory://x").err().expect("there is no helper");
    let text = refused.to_string();
    assert_eq!(refused.kind(), ErrorKind::Unsupported, "{text}");
    let remedies =
        ["install kv-store-compile", "`compile = \"in-process\"` in the config", "HostBuilder::compile_in_process"];
    assert!(remedies.iter().all(|remedy| text.contains(remedy)), "{text}");
    let problems = none.doctor("memory://x", Depth::Offline).problems;
    assert!(problems.iter().any(|it| it.fatal && it.what.contains("there is no compile helper")), "{problems:?}");

    let in_process = base("in-process").compile_in_process().build().unwrap();
    drop(in_process.open("memory://x").expect("the program wants it so"));
    drop(base("cached").build().unwrap().open("memory://x").expect("its code is in the cache"));
    let other = Host::builder().components([place("config")]).cache(scratch.path().join("other"));
    let by_config = other.config_text("compile = \"in-process\"").build().unwrap();
    drop(by_config.open("memory://x").expect("the config says so"));
    let error = Host::builder().config_text("compile = \"elsewhere\"").build().expect_err("no such word");
    assert!(error.to_string().contains("is not \"in-process\""), "{error}");
}

/// `Store::open` opens with the default host, which is the first that was made so.
#[test]
fn the_first_default_host_stays() {
    let (cache, helper) = cache_and_helper();
    let host = Host::builder().config_text(helper).components([components()]).cache(cache).build().unwrap();
    assert!(host.make_default() && !Host::default().make_default());
    let store = Store::open("memory://default-host").unwrap();
    store.put_chunk(b"key", b"bytes").unwrap();
    store.put_manifest("m", b"key").unwrap();
}
