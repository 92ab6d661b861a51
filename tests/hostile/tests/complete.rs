//! No guest lacks a test: each text, and each thing that a guest in Rust does when it is told to, is named by a test; and the
//! README's table names all of the former, and tests that there are.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test that fails panics")]

use std::collections::BTreeSet;

use kv_store_hostile::names;
use kv_store_tests::root;

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The tests of a folder and what lies below it, as one text.
fn tests(folder: &str) -> String {
    let mut text = String::new();
    let mut folders = vec![root().join(folder)];
    while let Some(folder) = folders.pop() {
        for path in std::fs::read_dir(folder).expect("the tests are there").flatten().map(|entry| entry.path()) {
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") && !path.ends_with("complete.rs") {
                text += &std::fs::read_to_string(path).expect("a test can be read");
            }
        }
    }
    text
}

/// What a guest in Rust can be told to do: the names before the arms of the matches over it, and whether each is told with what.
fn told(source: &str) -> Vec<(String, bool)> {
    let functions = source.split("\nfn ").flat_map(|text| text.split("\npub fn "));
    let bodies = functions.filter_map(|function| {
        let (signature, body) = function.split_once('\n')?;
        let over_it = ["(what: &str", "(how: &str"].iter().any(|first| signature.contains(first));
        over_it.then(|| body.split("\n}").next().unwrap_or(body))
    });
    bodies.flat_map(arms).collect()
}

fn arms(body: &str) -> Vec<(String, bool)> {
    let mut arms: Vec<(String, bool)> = Vec::new();
    for line in body.lines() {
        if let Some((name, _)) = line.strip_prefix("        \"").and_then(|arm| arm.split_once("\" =>")) {
            arms.push((name.to_owned(), false));
        }
        if let Some((_, takes_more)) = arms.last_mut() {
            *takes_more |= line.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| word == "with");
        }
    }
    arms
}

/// The string literals of a test's source, but for what is said when it fails and for comments.
fn literals(source: &str) -> BTreeSet<&str> {
    let mut found = BTreeSet::new();
    for line in source.lines() {
        let code = line.trim_start();
        let mut rest = if code.starts_with("//") { "" } else { code };
        while let Some(begin) = rest.find('"') {
            let (before, literal) = (&rest[..begin], &rest[begin + 1..]);
            // An end that is not escaped; a literal of several lines names nothing.
            let end = literal.match_indices('"').map(|(at, _)| at).find(|at| !literal[..*at].ends_with('\\'));
            let Some(end) = end else { break };
            if !["expect(", "expect_err(", "panic!("].iter().any(|message| before.ends_with(message)) {
                found.insert(&literal[..end]);
            }
            rest = &literal[end + 1..];
        }
    }
    found
}

/// Whether a test names a guest: alone, or as the scheme of a URI.
fn names_guest(literals: &BTreeSet<&str>, name: &str) -> bool {
    let scheme = format!("{name}://");
    literals.iter().any(|literal| *literal == name || literal.starts_with(&scheme))
}

/// Whether a test tells a guest to do this: `"loop"`, `"do:loop"`, and with one or two words more where it takes them:
/// `"read file"`.
fn tells(literals: &BTreeSet<&str>, act: &str, takes_more: bool) -> bool {
    let more = |literal: &str| {
        let rest = literal.strip_prefix(act).and_then(|rest| rest.strip_prefix(' '));
        takes_more && rest.is_some_and(|rest| (1..=2).contains(&rest.split(' ').count()))
    };
    literals.iter().any(|literal| *literal == act || literal.strip_prefix("do:") == Some(act) || more(literal))
}

#[test]
fn no_text_lacks_a_test() {
    let tests = tests("tests/hostile/tests");
    let (names, literals) = (names(), literals(&tests));
    assert!(names.len() > 40, "{names:?}");
    let untested: Vec<&String> = names.iter().filter(|name| !names_guest(&literals, name)).collect();
    assert!(untested.is_empty(), "guests that no test names: {untested:?}");
}

#[test]
fn no_act_of_a_guest_in_rust_lacks_a_test() {
    let tests = tests("tests/hostile/tests") + &tests("tests/blackbox/tests");
    let literals = literals(&tests);
    for guest in ["tests/guests/probe/src/misbehave.rs", "tests/guests/wasi-probe/src/act.rs"] {
        let acts = told(&read(guest));
        assert!(acts.len() > 15, "{guest}: {acts:?}");
        let untested = acts.iter().filter(|(act, takes_more)| !tells(&literals, act, *takes_more));
        let untested: Vec<&String> = untested.map(|(act, _)| act).collect();
        assert!(untested.is_empty(), "{guest}: no test names {untested:?}");
    }
}

#[test]
fn a_word_that_only_begins_so_names_nothing() {
    let source = r#"
        // "sleep"
        thing.expect("loop");
        asked(&store, "make the directories above it"); open("loop-at-start://x"); fails("read a file"); tell("do:nap");
    "#;
    let literals = literals(source);
    for (act, takes_more, named) in [
        ("sleep", false, false),
        ("loop", true, false),
        ("make", true, false),
        ("read", false, false),
        ("read", true, true),
        ("nap", false, true),
    ] {
        assert_eq!(tells(&literals, act, takes_more), named, "{act}");
    }
    assert!(names_guest(&literals, "loop-at-start"));
    assert!(!names_guest(&literals, "loop") && !names_guest(&literals, "read"));
}

#[test]
fn the_table_names_every_guest_and_tests_that_there_are() {
    let readme = read("tests/hostile/README.md");
    let rows: Vec<Vec<&str>> = readme
        .lines()
        .filter(|line| line.starts_with("| ") && !line.starts_with("| misbehaviour") && !line.starts_with("| ---"))
        .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
        .collect();
    assert!(rows.len() > 40, "{} rows", rows.len());
    let missing: Vec<String> =
        names().into_iter().filter(|name| !rows.iter().any(|row| row[1].contains(&format!("`{name}`")))).collect();
    assert!(missing.is_empty(), "README.md names no {missing:?}");
    for row in &rows {
        let [_, _, named] = row.as_slice() else { panic!("{row:?} has no three columns") };
        for test in named.split(", ") {
            let (file, name) = test.trim_matches('`').split_once("::").unwrap_or_else(|| panic!("{test} is no test"));
            let text = match file {
                "hostile" => tests("tests/hostile/tests/hostile"),
                "answers" | "children" | "sequences" => read(&format!("tests/hostile/tests/{file}.rs")),
                unit if unit.starts_with("host/") => read(unit),
                file => read(&format!("tests/blackbox/tests/{file}.rs")),
            };
            let there = match file {
                "hostile" => {
                    let literals = literals(&text);
                    [name, name.trim_start_matches("probe ")].iter().any(|name| names_guest(&literals, name))
                }
                _ => text.contains(&format!("fn {name}(")),
            };
            assert!(there, "{test} is not there");
        }
    }
}
