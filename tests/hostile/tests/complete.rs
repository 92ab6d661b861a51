//! No guest lacks a test: each text, and each thing that a guest in Rust does when it is told to, is named by a test; and the
//! README's table names all of the former, and tests that there are.

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

/// What a guest in Rust can be told to do: the names before the arms of the match over it.
fn told(source: &str) -> Vec<String> {
    let begin = source.find("pub fn act(").expect("there is an act");
    let body = &source[begin..];
    let body = &body[..body.find("\n}").expect("it ends")];
    let indent = "\n        ";
    let arms = body.split(indent).filter_map(|arm| arm.strip_prefix('"')?.split_once("\" =>"));
    arms.map(|(name, _)| name.to_owned()).collect()
}

/// Whether a test says a word that begins so: `"loop"`, `"do:loop"`, `"read file"`.
fn says(tests: &str, word: &str) -> bool {
    ["\"", "\"do:"].iter().any(|before| {
        [word.to_owned() + "\"", word.to_owned() + " "].iter().any(|word| tests.contains(&format!("{before}{word}")))
    }) || tests.contains(&format!("\"{word}://"))
}

#[test]
fn no_text_lacks_a_test() {
    let tests = tests("tests/hostile/tests");
    let names = names();
    assert!(names.len() > 40, "{names:?}");
    let untested: Vec<&String> = names.iter().filter(|name| !says(&tests, name)).collect();
    assert!(untested.is_empty(), "guests that no test names: {untested:?}");
}

#[test]
fn no_act_of_a_guest_in_rust_lacks_a_test() {
    let tests = tests("tests/hostile/tests") + &tests("tests/blackbox/tests");
    for guest in ["tests/guests/probe/src/misbehave.rs", "tests/guests/wasi-probe/src/act.rs"] {
        let acts = told(&read(guest));
        assert!(acts.len() > 15, "{guest}: {acts:?}");
        let untested: Vec<&String> = acts.iter().filter(|act| !says(&tests, act)).collect();
        assert!(untested.is_empty(), "{guest}: no test names {untested:?}");
    }
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
                "answers" | "sequences" => read(&format!("tests/hostile/tests/{file}.rs")),
                unit if unit.starts_with("host/") => read(unit),
                file => read(&format!("tests/blackbox/tests/{file}.rs")),
            };
            let there = match file {
                "hostile" => [name, name.trim_start_matches("probe ")].iter().any(|name| says(&text, name)),
                _ => text.contains(&format!("fn {name}(")),
            };
            assert!(there, "{test} is not there");
        }
    }
}
