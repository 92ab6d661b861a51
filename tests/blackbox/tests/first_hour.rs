//! What an operator and a vendor meet in their first hour: a config that is wrong, a directory that is another's, a disk that is full. Each
//! says which operation failed, of what, why, and what to do.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test that fails panics")]

use std::collections::BTreeSet;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use kv_store_tests::consumer::{Finished, expect, finish};
use kv_store_tests::redis::RedisServer;
use kv_store_tests::scratch::Scratch;
use kv_store_tests::{dist, root, shipped};

fn kv_store() -> Command {
    let program = dist().join("bin/kv-store");
    let made = root().join("target/test-consumers");
    std::fs::create_dir_all(&made).unwrap();
    let mut command = Command::new(program);
    command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
    command.env("KV_STORE_WASM_CONFIG", "/dev/null").env("KV_STORE_WASM_CACHE", made.join("cache"));
    command
}

fn run(arguments: &[&str]) -> Finished {
    finish(kv_store().args(arguments))
}

#[test]
fn ten_broken_configs_are_told_what_is_wrong_with_them() {
    let scratch = Scratch::new();
    for (number, (text, said)) in [
        ("[backend.redis]\nverifi = 'off'\n", "config-0.toml:2: unknown field `verifi`"),
        ("[backend.redsi]\n", "did you mean [backend.redis]?"),
        ("[backend.rediss]\n", "write [backend.redis]: rediss:// has the table of redis"),
        ("[backend.local-fs]\noptions = { durabilty = 'full' }\n", "no option `durabilty`; did you mean `durability`?"),
        ("[backend.redis]\nsecrets.pasword = 'REDIS_PASSWORD'\n", "no secret `pasword`; did you mean `password`?"),
        ("[backend.redis]\nsecrets.password = 's3cret'\n", "name the variable that holds it"),
        ("[backend.local-fs]\nlimits.memory_bytes = '1 KB'\n", "'1 KB' is no size"),
        ("[[tenant]]\nuri = 'redis'\n", "scheme"),
        (
            "[backend.redis]\nsha256 = '2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae'\n",
            "accepts only 2c26",
        ),
        ("[backend.redis]\nconnect = ['h']\n", "port"),
    ]
    .into_iter()
    .enumerate()
    {
        let path = scratch.write(&format!("config-{number}.toml"), text);
        let checked = run(&["config", "check", &path]);
        expect(1, &checked);
        let told = format!("{}{}", checked.stdout, checked.stderr);
        assert!(told.contains(said), "{text}\n{told}");
        assert!(!told.contains("s3cret"), "{told}");
    }
    let sample = root().join("packaging/config.toml");
    let checked = run(&["config", "check", sample.to_str().unwrap()]);
    expect(0, &checked);
    assert!(checked.stdout.ends_with("config.toml: 1 backend, 0 tenants, 0 problems\n"), "{}", checked.stdout);
    expect(2, &run(&["config", "check", "/nowhere/config.toml"]));
    let json = run(&["config", "check", &scratch.text("config-1.toml"), "--json"]);
    expect(1, &json);
    assert!(json.stdout.starts_with('{') && json.stdout.contains(r#""fatal":true"#), "{}", json.stdout);
}

/// Of the backends that ship: what `open` takes is what the stamp says, by which `config check` goes.
#[test]
fn the_stamps_list_the_options_that_are_taken() {
    let scratch = Scratch::new();
    let uris = [
        ("local-fs", format!("local-fs://{}", scratch.text("kv"))),
        ("memory", "memory://".to_owned()),
        ("redis", "redis://127.0.0.1:1/0".to_owned()),
        ("memkv", "memkv://127.0.0.1:1/n".to_owned()),
        ("mooncake", "mooncake://127.0.0.1:1/n".to_owned()),
        ("s3", "s3+http://127.0.0.1:1/bucket".to_owned()),
        ("segments", format!("segments://{}", scratch.text("segments"))),
    ];
    let listed: BTreeSet<String> = uris.iter().map(|(scheme, _)| (*scheme).to_owned()).collect();
    assert_eq!(listed, shipped(), "each has a URI here");
    for (scheme, uri) in uris {
        let config = scratch.write("config.toml", &format!("[backend.{scheme}]\noptions = {{ no-such-option = 1 }}\n"));
        let told = finish(kv_store().args(["doctor", "--offline", &uri]).env("KV_STORE_WASM_CONFIG", &config));
        expect(1, &told);
        let known = match told.stdout.split_once("unknown option `no-such-option`, expected one of ") {
            Some((_, list)) => list.split([';', '\n']).next().unwrap_or_default().to_owned(),
            None => {
                assert!(told.stdout.contains("this backend has none"), "{scheme}: {}", told.stdout);
                String::new()
            }
        };
        let mut known: Vec<&str> = known.split('`').skip(1).step_by(2).collect();
        known.sort_unstable();
        let component = dist().join(format!("components/{scheme}.wasm"));
        let inspected = run(&["inspect", component.to_str().unwrap()]);
        let stamped = inspected.stdout.lines().find_map(|line| line.strip_prefix("options ")).expect("it lists them");
        let mut stamped: Vec<&str> = stamped.split_whitespace().collect();
        stamped.sort_unstable();
        assert_eq!(known, stamped, "{scheme}");
    }
}

#[test]
fn doctor_says_where_there_is_no_compile_helper() {
    let scratch = Scratch::new();
    // With compiled code in the cache no helper is needed.
    let cache = scratch.text("cache");
    let asked = |helper: &str| {
        let config = scratch.write("config.toml", &format!("[compile]\nhelper = '{helper}'\n"));
        let mut doctor = kv_store();
        doctor.args(["doctor", "--offline", "memory://x"]).env("KV_STORE_WASM_CACHE", &cache);
        finish(doctor.env("KV_STORE_WASM_CONFIG", &config))
    };
    let guarded = "compiled in the engine's own process, without bounds on memory and time";
    let wrong = asked(&scratch.text("no-such-program"));
    expect(1, &wrong);
    let remedies =
        ["there is no compile helper", "install kv-store-compile beside the library", "`compile = \"in-process\"`"];
    assert!(remedies.iter().all(|remedy| wrong.stdout.contains(remedy)), "{}", wrong.stdout);
    let with = asked(dist().join("libexec/kv-store-compile").to_str().unwrap());
    expect(0, &with);
    assert!(!with.stdout.contains(guarded), "{}", with.stdout);
    let without = asked("off");
    assert!(
        without.stdout.contains(guarded) && without.stdout.contains("compile = \"in-process\""),
        "{}",
        without.stdout
    );
}

#[test]
fn doctor_finds_what_the_backend_would_refuse_and_says_config_valid_and_opened_apart() {
    let scratch = Scratch::new();
    for (uri, said) in
        [("local-fs://cache", "local-fs"), ("redis://127.0.0.1:1/prompts", "prompts"), ("memkv://127.0.0.1:1", "memkv")]
    {
        let told = run(&["doctor", "--offline", uri]);
        expect(1, &told);
        let first = told.stdout.lines().next().unwrap_or_default();
        assert!(first.starts_with("PROBLEM") && first.contains(said), "{uri}: {}", told.stdout);
        assert!(!told.stdout.contains("config valid") && !told.stdout.contains("ready"), "{uri}: {}", told.stdout);
    }
    // What is valid is not opened: nothing is made, and no server is asked.
    let store = scratch.path("kv");
    let uri = format!("local-fs://{}", store.display());
    let told = run(&["doctor", &uri]);
    expect(0, &told);
    assert!(told.stdout.contains("config valid: ") && !told.stdout.contains("opened"), "{}", told.stdout);
    assert!(!store.exists(), "doctor made it");
    let told = run(&["doctor", "--offline", "redis://127.0.0.1:1/3"]);
    expect(0, &told);
    assert!(told.stdout.contains("config valid: "), "{}", told.stdout);
    let opened = run(&["doctor", "--probe", &uri]);
    expect(0, &opened);
    assert!(
        opened.stdout.contains("config valid: ") && opened.stdout.contains("opened   directory "),
        "{}",
        opened.stdout
    );
    // The rest is there for who asks.
    assert!(!opened.stdout.contains("deadline_ms"), "{}", opened.stdout);
    assert!(run(&["doctor", "--offline", "-v", &uri]).stdout.contains("deadline_ms = 10000"));
}

#[test]
fn what_nothing_uses_is_a_line_that_names_what_was_meant() {
    let scratch = Scratch::new();
    let uri = format!("local-fs://{}", scratch.text("kv"));
    std::fs::create_dir(scratch.path("kv")).unwrap();
    let config = scratch.write("config.toml", "[backend.redsi]\n");
    let got = finish(
        kv_store()
            .args(["get", &uri, "--name", "n"])
            .env("KV_STORE_WASM_CONFIG", &config)
            .env("KV_STORE_WASM_LOG", "trace")
            .env("KV_STORE_WASM_PATH", "components"),
    );
    expect(1, &got);
    for said in [
        "KV_STORE_WASM_LOG=trace is no level: set it to debug, info, warn, error or off",
        "KV_STORE_WASM_PATH: components is ignored: a directory must be absolute",
        "did you mean [backend.redis]?",
    ] {
        assert_eq!(got.stderr.matches(said).count(), 1, "{said}\n{}", got.stderr);
    }
    let told = finish(kv_store().args(["doctor", "--offline", &uri]).env("KV_STORE_WASM_PAHT", "/x"));
    assert!(told.stdout.contains("did you mean KV_STORE_WASM_PATH?"), "{}", told.stdout);
    let config = scratch.write("config.toml", "[backend.redis]\nsecrets.password = 'CACHE_PASSWORD'\n");
    let mut doctor = kv_store();
    doctor.args(["doctor", "--offline", "redis://127.0.0.1:1"]).env("KV_STORE_WASM_CONFIG", &config);
    let told = finish(doctor.env("REDIS_PASSWORD", "hunter2").env("CACHE_PASSWORD", "hunter3"));
    let said =
        "REDIS_PASSWORD is set and not used: the config takes the secret password from the variable CACHE_PASSWORD";
    assert!(told.stdout.contains(said) && !told.stdout.contains("hunter"), "{}", told.stdout);
}

#[test]
fn a_missing_secret_is_named_by_the_source_that_the_config_names() {
    let server = RedisServer::start(&["--requirepass", "hunter2"]);
    let scratch = Scratch::new();
    let uri = format!("redis://127.0.0.1:{}/0", server.port);
    for (source, said) in [
        (
            format!("{{ file = '{}' }}", scratch.text("nowhere")),
            format!("the file {} of the config", scratch.text("nowhere")),
        ),
        ("'CACHE_PASSWORD'".to_owned(), "the variable CACHE_PASSWORD of the config".to_owned()),
    ] {
        let config = scratch.write("config.toml", &format!("[backend.redis]\nsecrets.password = {source}\n"));
        let mut get = kv_store();
        get.args(["get", &uri, "--name", "n"]).env("KV_STORE_WASM_CONFIG", &config);
        let refused = finish(get.env("REDIS_PASSWORD", "hunter2"));
        expect(2, &refused);
        assert!(refused.stderr.contains(&said) && refused.stderr.contains("not there"), "{}", refused.stderr);
        assert!(!refused.stderr.contains("hunter2"), "{}", refused.stderr);
    }
}

#[test]
fn a_store_and_a_cache_refuse_each_others_directories() {
    let scratch = Scratch::new();
    let uri = |name: &str| format!("local-fs://{}", scratch.text(name));
    let put = |name: &str| {
        let file = scratch.write("bytes", "bytes");
        run(&["put", &uri(name), "--name", "n", &file])
    };
    expect(0, &put("store"));
    for marked in [true, false] {
        if !marked {
            // As a store of a former version has it.
            std::fs::remove_file(scratch.path("store/.local-fs")).unwrap();
            expect(0, &run(&["put", &uri("store"), "--chunk", &scratch.text("bytes")]));
            std::fs::remove_file(scratch.path("store/.local-fs")).unwrap();
        }
        for command in ["gc", "ls", "stats", "verify"] {
            let refused = run(&["cache", command, &scratch.text("store")]);
            expect(2, &refused);
            assert!(refused.stderr.contains("holds a store of the backend local-fs"), "{}", refused.stderr);
        }
    }
    assert!(!scratch.path("store/.lock").exists());
    // It still opens, and is marked anew.
    expect(0, &put("store"));
    assert!(scratch.path("store/.local-fs").exists());

    std::fs::create_dir(scratch.path("cache")).unwrap();
    expect(0, &run(&["cache", "gc", &scratch.text("cache")]));
    for marked in [true, false] {
        if !marked {
            std::fs::remove_file(scratch.path("cache/.token-cache")).unwrap();
            std::fs::write(scratch.path(&format!("cache/{}.kvc", "ab".repeat(32))), "a row").unwrap();
        }
        let refused = put("cache");
        expect(2, &refused);
        assert!(refused.stderr.contains("holds rows of the token-exact cache"), "{}", refused.stderr);
        assert!(!scratch.path("cache/.local-fs").exists());
    }
    // Nobody lists the marker.
    assert_eq!(run(&["ls", &uri("store")]).stdout.lines().count(), 2, "{}", run(&["ls", &uri("store")]).stdout);
}

/// With a file system of its own, which the test mounts in a namespace of its own.
fn on_tmpfs(options: &str, script: &str) -> Finished {
    let folder = tempfile::tempdir().unwrap();
    let program = dist().join("bin/kv-store");
    let script = format!("mount -t tmpfs -o {options} none {0} && cd {0} && {script}", folder.path().display());
    let mut unshare = Command::new("unshare");
    unshare
        .args(["--map-root-user", "--mount", "sh", "-c"])
        .arg(script.replace("kv-store ", &format!("{} ", program.display())));
    unshare
        .env("KV_STORE_WASM_CONFIG", "/dev/null")
        .env("KV_STORE_WASM_CACHE", root().join("target/test-consumers/cache"));
    finish(&mut unshare)
}

/// What any failure of a command says.
#[track_caller]
fn says_all(finished: &Finished, operation: &str, uri: &str, cause: &str, remedy: &str) {
    let last = finished.stderr.lines().rfind(|line| line.starts_with("kv-store: ")).unwrap_or_default();
    for part in [operation, uri, cause, remedy] {
        assert!(last.contains(part), "no {part:?} in the last line of\n{}", finished.stderr);
    }
}

#[test]
fn a_full_disk_a_denied_write_and_a_full_server_say_what_to_do() {
    let full = on_tmpfs(
        "size=3m",
        "mkdir s && head -c 4000000 /dev/urandom | KV_STORE_WASM_CONFIG=/dev/null kv-store save local-fs://$PWD/s - --name n",
    );
    expect(1, &full);
    // The space that stays free is refused before the disk is full.
    says_all(&full, "save", "local-fs:///", "free", "keep_free");
    let config = Scratch::new();
    let all = config.write("config.toml", "[backend.local-fs]\noptions = { keep_free = 0 }\n");
    let full = on_tmpfs(
        "size=3m",
        &format!(
            "mkdir s && head -c 4000000 /dev/urandom | KV_STORE_WASM_CONFIG={all} kv-store save local-fs://$PWD/s - --name n"
        ),
    );
    expect(1, &full);
    says_all(&full, "save", "local-fs:///", "No space left on device", "free space there");
    let denied = on_tmpfs(
        "size=3m",
        "mkdir s && mount -o remount,ro none . && echo x | kv-store put local-fs://$PWD/s --name n -",
    );
    expect(1, &denied);
    says_all(&denied, "put", "local-fs:///", "Read-only file system", "mount it for writing");

    let server = RedisServer::start(&["--maxmemory", "8mb", "--maxmemory-policy", "noeviction"]);
    let uri = format!("redis://127.0.0.1:{}/0", server.port);
    let scratch = Scratch::new();
    std::fs::write(scratch.path("large"), vec![7; 32 << 20]).unwrap();
    let file = scratch.text("large");
    let full = run(&["save", &uri, &file, "--name", "n", "--chunk", "16MiB"]);
    expect(1, &full);
    says_all(&full, "save", &uri, "full (maxmemory)", "maxmemory-policy");
}

#[test]
fn with_json_a_failure_is_an_object_too() {
    let scratch = Scratch::new();
    let uri = format!("local-fs://{}", scratch.text("kv"));
    for (code, arguments) in [
        (1, vec!["restore", &uri, "copy", "--name", "nobody", "--json"]),
        (2, vec!["ls", "nobody://x", "--json"]),
        (2, vec!["save", &uri, "/nowhere", "--name", "n", "--json"]),
    ] {
        let failed = run(&arguments);
        expect(code, &failed);
        let object: serde_json::Value = serde_json::from_str(&failed.stdout).expect("one object");
        assert_eq!(object["exit_code"].as_i64(), Some(code.into()));
        let why = object["error"].as_str().unwrap();
        assert!(!why.is_empty() && failed.stderr.contains(why), "{}", failed.stderr);
    }
}

fn piped(arguments: &[&str], input: &[u8]) -> std::process::Output {
    let mut command = kv_store();
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_vec();
    let writing = std::thread::spawn(move || drop(stdin.write_all(&input)));
    let output = child.wait_with_output().unwrap();
    writing.join().unwrap();
    output
}

#[test]
fn a_dash_is_standard_input_and_output() {
    let scratch = Scratch::new();
    let uri = format!("local-fs://{}", scratch.text("kv"));
    let data: Vec<u8> = (0..600_000_u32).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    let saved = piped(&["save", &uri, "-", "--name", "n", "--chunk", "64KiB"], &data);
    assert!(saved.status.success(), "{}", String::from_utf8_lossy(&saved.stderr));
    let restored = piped(&["restore", &uri, "-", "--name", "n"], b"");
    assert!(restored.status.success(), "{}", String::from_utf8_lossy(&restored.stderr));
    assert!(restored.stdout == data, "{} bytes of {}", restored.stdout.len(), data.len());
    assert!(String::from_utf8_lossy(&restored.stderr).contains("restored 2.4 MB"));
    assert!(!Path::new("-").exists());
    let both = piped(&["restore", &uri, "-", "--name", "n", "--json"], b"");
    assert_eq!(both.status.code(), Some(2));
}

#[test]
fn an_interrupt_says_what_was_kept() {
    let scratch = Scratch::new();
    let uri = format!("local-fs://{}", scratch.text("kv"));
    let mut command = kv_store();
    command.args(["save", &uri, "-", "--name", "n"]).stdin(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    // More than one batch, and not the end.
    stdin.write_all(&vec![7; 80 << 20]).unwrap();
    let end = Instant::now() + Duration::from_secs(60);
    while !scratch.path("kv/chunks").exists() && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(20));
    }
    let pid = libc::pid_t::try_from(child.id()).unwrap();
    // SAFETY: the child is ours and has not been waited for.
    unsafe { libc::kill(pid, libc::SIGINT) };
    let output = child.wait_with_output().unwrap();
    drop(stdin);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(130), "{said}");
    assert!(said.contains("interrupted: the chunks that were stored are kept, no manifest was written"), "{said}");
    expect(1, &run(&["get", &uri, "--name", "n"]));
}

#[test]
fn what_is_no_component_or_library_is_named_as_what_it_is() {
    let scratch = Scratch::new();
    let text = scratch.write("text.wasm", "#!/bin/sh\necho no component at all\n");
    let so = scratch.write("libkv_store_x.so", "#!/bin/sh\necho no library at all\n");
    std::fs::copy(dist().join("lib/libkv_store_wasm.so"), scratch.path("native.wasm")).unwrap();
    for (file, said) in [
        (text, "a text file, not a component".to_owned()),
        (
            scratch.text("native.wasm"),
            format!("a native library or program (ELF for {})", std::env::consts::ARCH.replace('_', "-")),
        ),
        (so, "a text file, not a library".to_owned()),
    ] {
        let checked = run(&["check", &file, "--uri", "x://y"]);
        expect(2, &checked);
        assert!(checked.stderr.contains(&said), "{file}: {}", checked.stderr);
    }
}

#[test]
fn a_project_begins_with_what_was_asked_for_and_its_contract_is_brought_up_to_date() {
    let scratch = Scratch::new();
    let folder = scratch.text("");
    let new = |name: &str, rest: &[&str]| run(&[&["new", name, "--in", &folder], rest].concat());
    let languages =
        [("rust", "src/lib.rs"), ("c", "src/store.c"), ("javascript", "src/store.js"), ("python", "src/store.py")];
    for (language, source) in languages {
        for (kind, uri) in [("memory", "://"), ("files", ":///DIRECTORY"), ("http", "://HOST:PORT/PREFIX")] {
            let name = format!("acme-{language}-{kind}");
            expect(0, &new(&name, &["--language", language, "--kind", kind]));
            let source = std::fs::read_to_string(scratch.path(&format!("{name}/{source}"))).unwrap();
            assert!(source.contains(&format!("{name}{uri}")) && !source.contains("@NAME@"), "{source}");
            if language != "rust" {
                let read = |file: &str| std::fs::read_to_string(scratch.path(&format!("{name}/{file}"))).unwrap();
                let world = read("wit/world.wit");
                assert_eq!(
                    world.contains(&format!("import kv-store:backend/{kind}@1.1.0;")),
                    kind != "memory",
                    "{world}"
                );
                for file in ["README.md", "backend.toml", "wit/world.wit"] {
                    assert!(!read(file).contains("S@"), "{name}/{file} is filled in: {}", read(file));
                }
            }
        }
    }

    let of_others = "wit/deps/kv-store-backend/backend.wit";
    let contracts =
        [("c", of_others), ("javascript", of_others), ("python", of_others), ("rust", "sdk/wit/backend.wit")];
    for (language, contract) in contracts {
        let name = format!("old-{language}");
        expect(0, &new(&name, &["--language", language]));
        let project = scratch.path(&name);
        let current = std::fs::read(project.join(contract)).unwrap();
        std::fs::write(project.join(contract), "an older text").unwrap();
        for changed in ["1 files changed", "0 files changed"] {
            let updated = run(&["update", "--project", project.to_str().unwrap()]);
            expect(0, &updated);
            assert!(updated.stdout.contains(changed), "{language}: {}", updated.stdout);
            assert_eq!(std::fs::read(project.join(contract)).unwrap(), current);
        }
    }
    // A project of 0.2 names the interfaces by a former version.
    let project = scratch.path("old-javascript");
    let files = ["wit/world.wit", "src/store.js"].map(|file| project.join(file));
    let current = files.each_ref().map(|file| std::fs::read_to_string(file).unwrap());
    for (file, text) in files.iter().zip(&current) {
        let former = text.replace("@1.1.0", "@1.0.0");
        assert_ne!(former, *text);
        std::fs::write(file, former).unwrap();
    }
    expect(0, &run(&["update", "--project", project.to_str().unwrap()]));
    assert_eq!(files.map(|file| std::fs::read_to_string(file).unwrap()), current);
    expect(2, &run(&["update", "--project", &folder]));
}
