//! How the commands of `kv-store` are called and what they say: where the URI stands, what is not made or removed, tables, units and
//! colours, and what shells complete.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test that fails panics")]

use std::path::{Path, PathBuf};
use std::process::Command;

use kv_store_tests::consumer::{Finished, expect, finish};
use kv_store_tests::scratch::Scratch;
use kv_store_tests::{dist, kv_store, skipped};

fn run(arguments: &[&str]) -> Finished {
    finish(kv_store().args(arguments))
}

/// The JSON object that a command that succeeds prints.
#[track_caller]
fn json(arguments: &[&str]) -> serde_json::Value {
    let told = run(arguments);
    expect(0, &told);
    serde_json::from_str(&told.stdout).unwrap()
}

#[test]
fn what_only_reads_or_removes_makes_no_directory() {
    let scratch = Scratch::new();
    let (uri, other, out) = (scratch.uri("mistyped"), scratch.uri("other"), scratch.text("out"));
    for arguments in [
        &["ls", &uri][..],
        &["ls", &uri, "--chunks"],
        &["du", &uri],
        &["verify", &uri],
        &["gc", &uri, "--max-bytes", "1"],
        &["copy", &uri, &other],
        &["copy", &uri, &other, "--dry-run"],
        &["restore", &uri, &out, "--name", "n"],
        &["get", &uri, "--name", "n"],
        &["rm", &uri, "--name", "n"],
        &["sequence", &uri, "--name", "n"],
    ] {
        let refused = run(arguments);
        expect(1, &refused);
        assert!(refused.stderr.contains("there is no directory "), "{arguments:?}: {}", refused.stderr);
        assert!(!scratch.path("mistyped").exists() && !scratch.path("other").exists(), "{arguments:?} made one");
    }
    let file = scratch.write("bytes", "bytes");
    expect(0, &run(&["put", &uri, &file, "--name", "n"]));
    expect(0, &run(&["get", &uri, "--name", "n"]));
}

#[test]
fn the_store_is_the_first_argument_or_of_the_variable_and_former_spellings_warn() {
    let scratch = Scratch::new();
    let (uri, file) = (scratch.uri("kv"), scratch.write("bytes", "bytes"));
    let former = "is a former spelling and goes with 0.4";
    let put = run(&["put", &uri, &file, "--chunk"]);
    expect(0, &put);
    let hash = put.stdout.trim().to_owned();
    let given = run(&["put", &uri, "--chunk=0a0b", &file]);
    assert_eq!((given.status.code(), given.stdout.trim(), given.stderr.as_str()), (Some(0), "0a0b", ""));
    let saved = run(&["save", &uri, &file, "--name", "file"]);
    expect(0, &saved);
    assert!(!saved.stderr.contains("former"), "{}", saved.stderr);

    let by_variable = |arguments: &[&str]| finish(kv_store().args(arguments).env("KV_STORE_URI", &uri));
    let out = scratch.text("out");
    for arguments in [
        &["ls"][..],
        &["du"],
        &["verify"],
        &["doctor", "--offline"],
        &["gc", "--older-than", "1d"],
        &["restore", &out, "--name", "file"],
        &["get", "--name", "file"],
        &["get", "--chunk", &hash],
        &["put", &file, "--name", "n"],
        &["save", &file, "--name", "file"],
        &["rm", "--name", "n"],
    ] {
        expect(0, &by_variable(arguments));
        let none = run(arguments);
        expect(2, &none);
        assert!(none.stderr.contains("which store?"), "{arguments:?}: {}", none.stderr);
    }
    for arguments in [
        &["get", "--uri", &uri, "--name", "file"][..],
        &["get", &uri, "--hash", "0a0b"],
        &["put", "--uri", &uri, "--hash", "0a0b", &file],
        &["save", &file, "--name", "n", "--uri", &uri],
        &["restore", "--name", "n", "--uri", &uri, &out],
        &["rm", "--uri", &uri, "--chunk", "0a0b"],
    ] {
        let old = run(arguments);
        expect(0, &old);
        assert!(old.stderr.contains(former), "{arguments:?}: {}", old.stderr);
    }
    expect(2, &run(&["get", &uri, "--uri", &uri, "--name", "file"]));
    let help = run(&["get", "--help"]);
    assert!(help.stdout.contains("[URI]") && !help.stdout.contains("--uri"), "{}", help.stdout);
    for (arguments, said) in
        [(&["help"][..], "Commands:"), (&["help", "ls"], "--chunks"), (&["help", "cache", "ls"], "most recently used")]
    {
        let help = run(arguments);
        expect(0, &help);
        assert!(help.stdout.contains(said), "{arguments:?}: {}", help.stdout);
    }
}

#[test]
fn tables_have_headers_and_sizes_and_numbers_are_for_people() {
    let scratch = Scratch::new();
    let (uri, file) = (scratch.uri("kv"), scratch.text("file"));
    std::fs::write(&file, vec![7; 1_500_000]).unwrap();
    let saved = run(&["save", &uri, &file, "--name", "talk", "--chunk", "4MiB"]);
    assert!(saved.stdout.starts_with("saved 1.5 MB in 1 chunk, 0 already stored"), "{}", saved.stdout);
    let restored = run(&["restore", &uri, &file, "--name", "talk"]);
    assert!(restored.stdout.starts_with("restored 1.5 MB from 1 chunk; "), "{}", restored.stdout);
    assert!(run(&["du", &uri]).stdout.ends_with(" in 1 chunk and 1 manifest\n"));
    assert!(run(&["verify", &uri]).stdout.starts_with("1 chunk and 1 manifest, 1.5 MB: "));
    for (arguments, last, size) in
        [(&["ls", &uri, "--chunks"][..], "HASH", "1.5 MB"), (&["ls", &uri], "NAME", " bytes")]
    {
        let table = run(arguments).stdout;
        let lines: Vec<&str> = table.lines().collect();
        assert!(lines.len() == 2 && lines[0].trim().starts_with("SIZE") && lines[0].ends_with(last), "{table}");
        assert!(lines[1].contains(size) && lines[0].find("STORED") == lines[1].find("20"), "{table}");
    }
    let empty = scratch.path("empty");
    std::fs::create_dir(&empty).unwrap();
    assert_eq!(run(&["ls", &scratch.uri("empty")]).stdout, "", "no header over nothing");
    assert_eq!(json(&["ls", &uri, "--chunks", "--json"])["bytes"], 1_500_000);
}

#[test]
fn colours_are_for_terminals_that_have_them() {
    let scratch = Scratch::new();
    let config = scratch.write("config.toml", "[backend.redsi]\n");
    let plain = run(&["config", "check", &config]);
    assert!(plain.stdout.starts_with("PROBLEM  "), "{}", plain.stdout);
    // It has a terminal for the program that it runs.
    let program = dist().join("bin/kv-store");
    let command = format!("{} config check {config}", program.display());
    let on_terminal = |variables: &[(&str, &str)]| {
        let mut script = Command::new("script");
        script.args(["--quiet", "--return", "--command", &command, "/dev/null"]);
        script.env_remove("NO_COLOR").env("TERM", "xterm").env("KV_STORE_WASM_CONFIG", "/dev/null");
        script.envs(variables.iter().copied()).output()
    };
    let Ok(coloured) = on_terminal(&[]) else { return skipped("script (bsdutils) is not installed") };
    let coloured = String::from_utf8_lossy(&coloured.stdout).into_owned();
    assert!(coloured.contains("\x1b[31mPROBLEM"), "{coloured:?}");
    for variables in [("NO_COLOR", "1"), ("TERM", "dumb")] {
        let told = on_terminal(&[variables]).unwrap();
        assert!(!told.stdout.contains(&0x1b), "{variables:?}: {}", String::from_utf8_lossy(&told.stdout));
    }
}

#[test]
fn what_is_not_there_is_not_removed_and_says_so() {
    let scratch = Scratch::new();
    let (uri, file) = (scratch.uri("kv"), scratch.write("bytes", "bytes"));
    expect(0, &run(&["put", &uri, &file, "--name", "n"]));
    expect(0, &run(&["put", &uri, &file, "--chunk=0a0b"]));
    for (option, value, said) in [("--name", "n", "there is no manifest \"n\""), ("--chunk", "0a0b", "no chunk 0a0b")] {
        assert_eq!(json(&["rm", &uri, option, value, "--json"])["removed"], true);
        let nothing = run(&["rm", &uri, option, value, "--json"]);
        expect(3, &nothing);
        assert!(nothing.stderr.contains(said) && nothing.stderr.contains("nothing was removed"), "{}", nothing.stderr);
        assert!(nothing.stdout.contains(r#""exit_code":3"#), "{}", nothing.stdout);
    }
}

#[test]
fn a_copy_is_rehearsed_and_takes_long_names_to_the_same_backend() {
    let scratch = Scratch::new();
    let (from, to, file) = (scratch.uri("from"), scratch.uri("to"), scratch.write("bytes", "bytes"));
    let long = "a long name ".repeat(60);
    expect(0, &run(&["save", &from, &file, "--name", "talk"]));
    expect(0, &run(&["put", &from, &file, "--name", &long]));
    let counted =
        |told: &serde_json::Value| [&told["chunks"], &told["manifests"], &told["existed"]].map(|n| n.as_u64().unwrap());

    let dry = json(&["copy", &from, &to, "--dry-run", "--json"]);
    assert_eq!(counted(&dry), [1, 2, 0]);
    assert!(!scratch.path("to").exists(), "a rehearsal made the target");
    let told = run(&["copy", &from, &to, "--dry-run"]);
    assert!(told.stdout.starts_with("1 chunk and 2 manifests would be copied, "), "{}", told.stdout);
    let (done, foreseen) = (json(&["copy", &from, &to, "--json"])["bytes"].as_u64(), dry["bytes"].as_u64());
    assert_eq!(done, foreseen);
    assert_eq!(run(&["get", &to, "--name", &long]).stdout, "bytes", "it is there under its name");
    expect(0, &run(&["restore", &to, &scratch.text("out"), "--name", "talk"]));
    assert_eq!(counted(&json(&["copy", &from, &to, "--dry-run", "--json"])), [0, 2, 1]);
    // Another backend makes another key of such a name.
    let memory = run(&["copy", &from, "memory://other", "--json"]);
    expect(1, &memory);
    assert!(memory.stderr.contains("too long to be listed whole"), "{}", memory.stderr);
    // A rehearsal says so of one that is not there yet.
    let other = run(&["copy", &from, &format!("segments://{}", scratch.text("other")), "--dry-run"]);
    expect(1, &other);
    assert!(other.stderr.contains("too long to be listed whole"), "{}", other.stderr);
    assert!(other.stdout.starts_with("1 chunk and 1 manifest would be copied, "), "{}", other.stdout);
}

#[test]
fn a_bound_of_bytes_alone_is_enough_for_gc_and_its_rehearsal_counts_manifests() {
    let scratch = Scratch::new();
    let (uri, file) = (scratch.uri("kv"), scratch.text("file"));
    std::fs::write(&file, vec![7; 100_000]).unwrap();
    expect(0, &run(&["save", &uri, &file, "--name", "talk"]));
    let gc = |rest: &[&str]| json(&[&["gc", &uri, "--max-bytes", "0", "--grace", "0s", "--json"][..], rest].concat());
    let (dry, done) = (gc(&["--dry-run"]), gc(&[]));
    for key in ["bytes", "chunks", "manifests", "excess"] {
        assert_eq!(dry[key], done[key], "{key}: {dry} {done}");
    }
    assert_eq!((done["chunks"].as_u64(), done["manifests"].as_u64()), (Some(1), Some(1)));
}

#[test]
fn config_check_finds_the_values_that_an_open_would_refuse() {
    let scratch = Scratch::new();
    for (number, (text, said)) in [
        ("[backend.local-fs]\noptions.max_bytes = 'lots'\n", "max_bytes"),
        ("[backend.local-fs]\nroot = '/var/cache/kv'\noptions.durability = 'fast'\n", "durability"),
        ("[backend.local-fs]\noptions.ttl_s = 'soon'\n", "ttl_s"),
        ("[backend.s3]\noptions.style = 'odd'\n", "style"),
        ("[[tenant]]\nuri = 'redis://h:99999/0'\n", "\"h:99999\" is no host:port"),
        ("[[tenant]]\nuri = 'redis://h:1/x'\n", "x"),
        ("[[tenant]]\nuri = 'local-fs:///srv/a'\noptions.durability = 'fast'\n", "durability"),
        ("metrics = '127.0.0.1:99999'\n", "a port up to 65535"),
        ("[backend.local-fs]\nlimits.deadline_ms = 'soon'\n", "\"soon\" is text: write a whole number"),
    ]
    .into_iter()
    .enumerate()
    {
        let path = scratch.write(&format!("config-{number}.toml"), text);
        let checked = run(&["config", "check", &path]);
        expect(1, &checked);
        let told = format!("{}{}", checked.stdout, checked.stderr);
        assert!(told.contains(said) && !told.contains(", 0 problems"), "{text}\n{told}");
    }
    for text in [
        "metrics = ':9464'\n[backend.local-fs]\noptions = { max_bytes = '1GiB', durability = 'rename' }\n",
        "[backend.redis]\noptions.prefix = 'kv:'\n[[tenant]]\nuri = 'redis://h:6379/1'\n",
        // Its key is set where the engine runs.
        "[backend.s3]\noptions.style = 'virtual'\n",
        "[backend.memkv]\n",
    ] {
        let path = scratch.write("good.toml", text);
        let checked = run(&["config", "check", &path]);
        expect(0, &checked);
        assert!(checked.stdout.contains(", 0 problems"), "{text}\n{}", checked.stdout);
    }
}

#[test]
fn a_scheme_that_nobody_serves_names_the_one_that_was_meant() {
    for (uri, meant) in [
        ("redsi://h/0", Some("redis")),
        ("file:///var/cache/kv", Some("local-fs")),
        ("localfs:///var/cache/kv", Some("local-fs")),
        ("zzz://h", None),
    ] {
        let refused = run(&["ls", uri]);
        expect(2, &refused);
        let said = meant.map_or_else(|| "did you mean".to_owned(), |meant| format!("did you mean {meant}://?"));
        assert_eq!(refused.stderr.contains(&said), meant.is_some(), "{uri}: {}", refused.stderr);
    }
}

/// What a shell is to offer for a line: words that must be among the answers, and one that must not.
const COMPLETED: &[(&[&str], &[&str], &str)] = &[
    (&["c"], &["cache", "check", "config", "copy"], "check-cases"),
    (&["cache", ""], &["gc", "ls", "stats", "verify"], "copy"),
    (&["ls", "--"], &["--chunks", "--json", "--page"], "--uri"),
    (&["cache", "gc", "--"], &["--budget", "--quick"], "--chunks"),
];

fn pages(scratch: &Scratch) -> PathBuf {
    expect(0, &run(&["pages", &scratch.text("pages")]));
    assert!(scratch.path("pages/man/kv-store-ls.1").is_file() && scratch.path("pages/man/kv-store.1").is_file());
    scratch.path("pages/completions")
}

/// Run a shell on a program of its language. None: it is not installed.
fn shell(name: &str, arguments: &[&str], program: &str) -> Option<String> {
    match Command::new(name).args(arguments).arg(program).output() {
        Ok(output) => {
            let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
            assert!(output.status.success() && err.is_empty(), "{name}: {out}{err}");
            Some(out.into_owned())
        }
        Err(_) => {
            skipped(format_args!("{name} is not installed"));
            None
        }
    }
}

#[track_caller]
fn offers(name: &str, answer: &str, line: &[&str], wanted: &[&str], other: &str) {
    let words: Vec<&str> = answer.split_whitespace().collect();
    let missing: Vec<_> = wanted.iter().filter(|word| !words.contains(word)).collect();
    assert!(missing.is_empty() && !words.contains(&other), "{name} offers for {line:?}: {words:?}");
}

#[test]
fn shells_complete_commands_and_options() {
    let scratch = Scratch::new();
    let folder = pages(&scratch);
    let file = |name: &str| folder.join(name).display().to_string();
    for (line, wanted, other) in COMPLETED {
        let quoted: Vec<String> = line.iter().map(|word| format!("'{word}'")).collect();
        let (words, last) = (quoted.join(" "), line.len());
        // As readline calls it: by the function that was registered for the program.
        let bash = format!(
            "source {}; of=$(complete -p kv-store); [[ $of =~ -F\\ ([^ ]+) ]]; COMP_WORDS=(kv-store {words}); COMP_CWORD={last}; \
             ${{BASH_REMATCH[1]}} kv-store \"${{COMP_WORDS[last]}}\" \"${{COMP_WORDS[{}]}}\"; echo \"${{COMPREPLY[@]}}\"",
            file("kv-store.bash"),
            last - 1,
        )
        .replace("COMP_WORDS[last]", &format!("COMP_WORDS[{last}]"));
        if let Some(answer) = shell("bash", &["--norc", "-c"], &bash) {
            offers("bash", &answer, line, wanted, other);
        }
        let fish = format!("source {}; complete -C 'kv-store {}'", file("kv-store.fish"), line.join(" "));
        if let Some(answer) = shell("fish", &["--no-config", "-c"], &fish) {
            offers("fish", &answer, line, wanted, other);
        }
    }
    // zsh completes only on a terminal; that it loads the function for the program is seen without one.
    let zsh = format!(
        "fpath=({} $fpath); autoload -U compinit; compinit -u -D; autoload +X _kv-store; print $_comps[kv-store]",
        folder.display()
    );
    if let Some(answer) = shell("zsh", &["--no-rcs", "-c"], &zsh) {
        assert_eq!(answer.trim(), "_kv-store");
    }
    let of_zsh = std::fs::read_to_string(Path::new(&file("_kv-store"))).unwrap();
    assert!(of_zsh.starts_with("#compdef kv-store") && !of_zsh.contains("check-cases"));
}

#[test]
fn slots_of_llama_cpp_are_listed_and_removed_by_their_names() {
    let scratch = Scratch::new();
    let (uri, file) = (scratch.uri("store"), scratch.write("record", "a record"));
    let (one, other) = ("0001".repeat(8), "0a0b".repeat(8));
    let names = [
        format!("chat.bin@{one}"),
        format!("chat.bin@{one}.checkpoints"),
        format!("chat.bin@{other}-2"),
        format!("code.bin@{one}"),
        "prompt-1".to_owned(),
    ];
    for name in &names {
        expect(0, &run(&["put", &uri, &file, "--name", name]));
    }
    let listed = |arguments: &[&str]| {
        let told = run(arguments);
        expect(0, &told);
        let mut lines: Vec<String> = told.stdout.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    let lines = listed(&["llama", "ls", &uri, "--json"]);
    let slot = |line: &String| serde_json::from_str::<serde_json::Value>(line).unwrap();
    let found: Vec<_> = lines.iter().map(slot).map(|slot| (slot["slot"].clone(), slot["model"].clone())).collect();
    assert_eq!(found.len(), 3, "{found:?}");
    assert!(found.contains(&("chat.bin".into(), other.clone().into())), "{found:?}");
    let table = listed(&["llama", "ls", &uri]);
    assert!(table.len() == 4 && table.iter().any(|line| line.starts_with("MODEL")), "{table:?}");
    // A model alone, then what is left of the slot with what was appended to it.
    expect(0, &run(&["llama", "rm", &uri, "--slot", "chat.bin", "--model", "0A0B"]));
    let removed = json(&["llama", "rm", &uri, "--slot", "chat.bin", "--json"]);
    assert_eq!(removed["removed"], serde_json::json!([names[0], names[1]]));
    expect(3, &run(&["llama", "rm", &uri, "--slot", "chat.bin"]));
    let left = listed(&["ls", &uri]);
    assert!(left.iter().any(|line| line.contains("code.bin")) && left.iter().any(|line| line.contains("prompt-1")));
    assert_eq!(left.len(), 3, "{left:?}");
}
