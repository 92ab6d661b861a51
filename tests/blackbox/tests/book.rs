//! The pages: each command and program on them is run, each link leads to something, and they are short enough to be read.
//!
//! A test for each page with blocks, see `book/README.md`, and some for all pages. `UPDATE_DOCS=1` writes the pages that are made of what
//! they refer to.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test that fails panics")]

#[path = "book/formats.rs"]
mod formats;
#[path = "book/promises.rs"]
mod promises;
#[path = "book/reference.rs"]
mod reference;
#[path = "book/run.rs"]
mod run;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use kv_store_tests::book::{Block, anchors, blocks, files, links, mentions, normal, sentences};
use kv_store_tests::root;
use libtest_mimic::{Arguments, Failed, Trial};

/// No page is longer, in lines.
const MAX_LINES: usize = 250;
/// The CHANGELOG has no more.
const MAX_CHANGELOG: usize = 150;
/// A longer sentence, in words, is a long one.
const LONG_SENTENCE: usize = 35;
/// At most one sentence in so many is.
const LONG_SENTENCES: usize = 50;
/// What is shorter is no sentence, but a cell of a table.
const LEAST_WORDS: usize = 4;

fn main() {
    let pages = pages();
    let mut trials = vec![
        Trial::test("links lead to something", || every(&all_links())),
        Trial::test("mentions of pages lead to something", || every(&all_mentions())),
        Trial::test("no page is too long", || every(&too_long())),
        Trial::test("the changelog is short, and names the whole list of each version", || every(&changelog())),
        Trial::test("few sentences are long", few_long_sentences),
        Trial::test("every page is in the table of contents", || every(&unlisted())),
        Trial::test("every example is run", || every(&examples_not_run())),
        Trial::test("the table of formats names tests that there are", formats::name_tests_that_there_are),
        Trial::test("every command is on a page of reference", reference::is_complete),
    ];
    trials.extend(reference::PAGES.iter().map(|page| {
        let name = page.path;
        Trial::test(format!("{name} is what it refers to"), move || reference::is_current(page))
    }));
    for (page, text) in pages {
        match blocks(&text) {
            Ok(found) if !found.is_empty() => {
                let name = page.display().to_string();
                trials.push(Trial::test(name, move || run::page(&page, &found)));
            }
            Ok(_) => {}
            Err((line, why)) => {
                let at = format!("{}:{line}", page.display());
                trials.push(Trial::test(at.clone(), move || Err(format!("{at}: {why}").into())));
            }
        }
    }
    let conclusion = libtest_mimic::run(&Arguments::from_args(), trials);
    run::report();
    conclusion.exit();
}

/// The pages whose blocks are run and whose sentences count, with their text.
fn pages() -> BTreeMap<PathBuf, String> {
    let own = [
        "README.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        "CODE_OF_CONDUCT.md",
        "bindings/python/README.md",
        "examples/README.md",
    ];
    let docs = files(&root(), "docs").into_iter().filter(|path| is_page(path));
    let read = |path: PathBuf| (path.clone(), std::fs::read_to_string(root().join(path)).expect("a page is text"));
    own.into_iter().map(PathBuf::from).chain(docs).map(read).collect()
}

fn is_page(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "md")
}

/// None of it.
fn every(wrong: &[String]) -> Result<(), Failed> {
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n").into()) }
}

/// Links of all pages of the clone that lead to nothing.
fn all_links() -> Vec<String> {
    let mut wrong = Vec::new();
    for page in files(&root(), "").into_iter().filter(|path| is_page(path)) {
        let text = std::fs::read_to_string(root().join(&page)).expect("a page is text");
        for (line, link) in links(&text) {
            let (path, anchor) = link.split_once('#').map_or((link, None), |(path, anchor)| (path, Some(anchor)));
            let target = match path {
                "" => page.clone(),
                path => normal(&page.parent().unwrap_or(Path::new("")).join(path)),
            };
            let there = root().join(&target);
            if !there.exists() {
                wrong.push(format!("{}:{line}: {link} leads to no file", page.display()));
            } else if let Some(anchor) = anchor
                && is_page(&target)
                && !anchors(&std::fs::read_to_string(there).expect("a page is text"))
                    .iter()
                    .any(|known| known == anchor)
            {
                wrong.push(format!("{}:{line}: {} has no heading #{anchor}", page.display(), target.display()));
            }
        }
    }
    wrong
}

/// The CHANGELOG is what somebody reads before an upgrade; every change of a version is in a list of its own.
fn changelog() -> Vec<String> {
    let text = std::fs::read_to_string(root().join("CHANGELOG.md")).expect("there is a changelog");
    let mut wrong = Vec::new();
    let lines = text.lines().count();
    if lines > MAX_CHANGELOG {
        wrong.push(format!(
            "CHANGELOG.md has {lines} lines, more than {MAX_CHANGELOG}: see CONTRIBUTING.md, \"Say what changed\""
        ));
    }
    let mut named = BTreeSet::new();
    for section in text.split("\n## [").skip(1) {
        let version = section.split(']').next().unwrap_or_default();
        let list = format!("changes/{}.md", version.to_lowercase());
        if !links(section).iter().any(|(_, link)| *link == list) {
            wrong.push(format!("CHANGELOG.md: {version} does not name {list}"));
        }
        named.insert(list);
    }
    let lists = files(&root(), "changes").into_iter().filter(|path| !named.contains(&path.display().to_string()));
    wrong.extend(lists.map(|path| format!("CHANGELOG.md has no version for {}", path.display())));
    wrong
}

/// `docs/...` in the text of a file that is not a page, or of a page outside of its links, that is not there.
fn all_mentions() -> Vec<String> {
    const KINDS: &[&str] = &["rs", "md", "c", "h", "cpp", "py", "pyi", "toml", "wit", "sh", "in", "wat", "yml"];
    let mut wrong = Vec::new();
    for path in files(&root(), "") {
        let is_text = path.extension().is_some_and(|extension| KINDS.iter().any(|kind| *kind == extension));
        let is_own = path.starts_with("tests/blackbox/src/book") || path.starts_with("tests/blackbox/tests/book");
        if !is_text || is_own {
            continue;
        }
        let Ok(text) = std::fs::read_to_string(root().join(&path)) else { continue };
        for (line, mentioned) in mentions(&text) {
            if !root().join(mentioned).exists() {
                wrong.push(format!("{}:{line}: there is no {mentioned}", path.display()));
            }
        }
    }
    wrong
}

fn too_long() -> Vec<String> {
    let lines = pages().into_iter().map(|(page, text)| (page, text.lines().count()));
    lines
        .filter(|(_, lines)| *lines > MAX_LINES)
        .map(|(page, lines)| format!("{} has {lines} lines, more than {MAX_LINES}: split it", page.display()))
        .collect()
}

fn few_long_sentences() -> Result<(), Failed> {
    let (mut all, mut long) = (0, Vec::new());
    for (page, text) in pages() {
        let found = sentences(&text, LEAST_WORDS);
        all += found.len();
        let too_long = found.into_iter().filter(|words| words.len() > LONG_SENTENCE);
        long.extend(too_long.map(|words| format!("{} ({} words): {}", page.display(), words.len(), words.join(" "))));
    }
    println!("{} of {all} sentences have more than {LONG_SENTENCE} words", long.len());
    if long.len() * LONG_SENTENCES < all { Ok(()) } else { every(&long) }
}

/// Pages of the book that its table of contents does not name.
fn unlisted() -> Vec<String> {
    let summary = std::fs::read_to_string(root().join("docs/SUMMARY.md")).expect("the book has a table of contents");
    let listed: BTreeSet<PathBuf> = links(&summary).into_iter().map(|(_, link)| Path::new("docs").join(link)).collect();
    let pages = files(&root(), "docs").into_iter().filter(|path| is_page(path) && !path.ends_with("SUMMARY.md"));
    pages
        .filter(|page| !listed.contains(page))
        .map(|page| format!("docs/SUMMARY.md does not list {}", page.display()))
        .collect()
}

/// Programs of `examples/` that no block of commands names. `tests/operate.rs` runs the stack in its folder.
fn examples_not_run() -> Vec<String> {
    let all: Vec<Block> = pages().values().filter_map(|text| blocks(text).ok()).flatten().collect();
    let is_run = |name: &str| {
        let stem = name.split('.').next().unwrap_or(name);
        let named = |block: &&Block| block.text.contains(name) || block.text.contains(&format!("examples/{stem} "));
        all.iter().filter(|block| block.language == "sh" && block.how.unrun.is_none()).any(|block| named(&block))
    };
    let is_program = |path: &PathBuf| path.parent() == Some(Path::new("examples")) && !is_page(path);
    let examples = files(&root(), "examples").into_iter().filter(is_program);
    let names = examples.filter_map(|path| path.file_name().map(|name| name.display().to_string()));
    names.filter(|name| !is_run(name)).map(|name| format!("no page runs examples/{name}")).collect()
}
