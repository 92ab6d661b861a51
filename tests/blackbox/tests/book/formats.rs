//! `docs/formats.md` beside the tests that there are: each row has a golden test that exists, and each golden test is in a row.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use kv_store_tests::book::{files, normal};
use kv_store_tests::root;
use libtest_mimic::Failed;

const PAGE: &str = "docs/formats.md";
/// What the names of golden tests begin with, in Rust and in Python. Tests of other names may be in the table too.
const GOLDEN: [(&str, &str); 2] = [("rs", "golden_"), ("py", "test_golden_")];
/// Cells of a row, and the one with the tests.
const CELLS: usize = 6;
const TESTS: usize = 3;

/// A test: its file from the clone, and its name.
type Named = (PathBuf, String);

pub fn name_tests_that_there_are() -> Result<(), Failed> {
    let named = named(&std::fs::read_to_string(root().join(PAGE))?)?;
    let mut wrong = Vec::new();
    for (file, name) in &named {
        let text = std::fs::read_to_string(root().join(file)).unwrap_or_default();
        if !tests(&text).contains(&name.as_str()) {
            wrong.push(format!("{PAGE}: {} has no test {name}", file.display()));
        }
    }
    for file in files(&root(), "") {
        let language = |(kind, _): &&(&str, &str)| file.extension().is_some_and(|extension| extension == *kind);
        let Some((_, golden)) = GOLDEN.iter().find(language) else { continue };
        let text = std::fs::read_to_string(root().join(&file)).unwrap_or_default();
        for name in tests(&text).into_iter().filter(|name| name.starts_with(golden)) {
            if !named.contains(&(file.clone(), name.to_owned())) {
                wrong.push(format!("{PAGE} has no row with {name} of {}", file.display()));
            }
        }
    }
    super::every(&wrong)
}

/// The tests that rows of the page's tables name. Each row names one at least.
fn named(page: &str) -> Result<BTreeSet<Named>, Failed> {
    let mut named = BTreeSet::new();
    let is_row = |line: &&str| line.starts_with('|') && !line.starts_with("| --- ") && !line.starts_with("| format |");
    for row in page.lines().filter(is_row) {
        let cells: Vec<&str> = row.trim_matches('|').split(" | ").collect();
        // [`name`](../path/of/its/file.rs), ...
        let tests = |cell: &str| -> Option<Vec<Named>> {
            let links = cell.split("[`").skip(1).map(|link| {
                let (name, rest) = link.split_once("`](")?;
                Some((normal(&Path::new("docs").join(rest.split_once(')')?.0)), name.to_owned()))
            });
            links.collect()
        };
        let found = cells.get(TESTS).and_then(|cell| tests(cell)).unwrap_or_default();
        if cells.len() != CELLS || found.is_empty() {
            return Err(format!("{PAGE}: a row has {CELLS} cells, and a test in number {}: {row}", TESTS + 1).into());
        }
        named.extend(found);
    }
    if named.is_empty() { Err(format!("{PAGE} has no rows").into()) } else { Ok(named) }
}

/// The names of a file's tests: of functions behind `#[test]`, and of those of Python that begin with `test_`.
fn tests(text: &str) -> Vec<&str> {
    let (mut names, mut is_test) = (Vec::new(), false);
    for line in text.lines().map(str::trim) {
        let rust = line.strip_prefix("fn ").filter(|_| is_test);
        let python = line.strip_prefix("def ").filter(|rest| rest.starts_with("test_"));
        names.extend(rust.or(python).and_then(|rest| rest.split('(').next()));
        is_test = line == "#[test]" || (is_test && line.starts_with("#["));
    }
    names
}
