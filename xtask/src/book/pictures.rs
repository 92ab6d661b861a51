//! Pictures of pages as a browser shows them: those that GitHub shows, pages of the book, and the dashboard.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use pulldown_cmark::{Parser, html};

use super::rendered::OPTIONS;
use crate::place::Place;
use crate::{packages, step};

/// Pages that a reader meets on GitHub, rendered here with its widths and sizes.
const ON_GITHUB: &[&str] = &["README.md", "CONTRIBUTING.md", "bindings/python/README.md", "tests/hostile/README.md"];
/// Pages of the book: one of each kind of content, such as wide tables, lists with code, help texts, pictures.
const IN_THE_BOOK: &[&str] = &[
    "README",
    "llama-server",
    "backends",
    "vendor-guide",
    "memkv-wire",
    "benchmarks",
    "benchmarks/stores",
    "reference/cli-stores",
];
/// Pictures that pages show.
const DRAWINGS: &[&str] = &["docs/dashboard.svg"];

const WIDTH: u32 = 1280;
/// Of a drawing: more than any has.
const HEIGHT: u32 = 2600;
/// A picture has the whole page, and below it what was estimated too much: how high a line of text is with its share of the space between
/// paragraphs, how high a drawing, and how many characters are in a line and in that of a row, whose cells are narrow.
const LINE: u32 = 32;
const DRAWING: u32 = 700;
const CHARACTERS: usize = 95;
const CHARACTERS_OF_A_ROW: usize = 45;
/// Chromium draws nothing that is higher.
const MAX_HEIGHT: u32 = 16_000;
/// More than a picture takes, in seconds.
const PATIENCE: &str = "60";
/// No picture of a page is so small, in bytes: an empty one of this size has a few thousand.
const LEAST: u64 = 20_000;

const STYLE: &str = "body{font:16px/1.5 -apple-system,'Segoe UI','Noto Sans',Helvetica,Arial,sans-serif;max-width:894px;margin:32px auto}\
h1,h2{border-bottom:1px solid #d1d9e0;padding-bottom:.3em}\
code{font:85% ui-monospace,Menlo,Consolas,'Liberation Mono',monospace;background:#818b981f;padding:.2em .4em;border-radius:6px}\
pre{background:#f6f8fa;padding:16px;overflow:auto;border-radius:6px;line-height:1.45}pre code{background:none;padding:0}\
table{border-collapse:collapse;display:block;overflow:auto}td,th{border:1px solid #d1d9e0;padding:6px 13px}tr:nth-child(2n){background:#f6f8fa}\
img{max-width:100%}";

/// Take all of them, into `screenshots` beside the book.
pub fn take(place: &Place, book: &Path) -> Result<()> {
    packages::install(&["chromium"])?;
    let folder = book.join("screenshots");
    std::fs::create_dir_all(&folder)?;
    let progress = step::Progress::start("taking pictures");
    for page in ON_GITHUB {
        let text = std::fs::read_to_string(place.root.join(page))?;
        let shown = folder.join(format!("github-{}.html", name(page)));
        std::fs::write(&shown, as_on_github(place, page, &text)).with_context(|| shown.display().to_string())?;
        picture(&shown, &shown.with_extension("png"), height(&text))?;
    }
    for page in IN_THE_BOOK {
        let text = std::fs::read_to_string(place.root.join(format!("docs/{page}.md")))?;
        let html = if *page == "README" { "index" } else { page };
        let shown = book.join(format!("docs/{html}.html"));
        picture(&shown, &folder.join(format!("book-{}.png", name(html))), height(&text))?;
    }
    for drawing in DRAWINGS {
        picture(&place.root.join(drawing), &folder.join(format!("{}.png", name(drawing))), HEIGHT)?;
    }
    progress.done();
    eprintln!("look at the pictures in {}", folder.display());
    Ok(())
}

/// A path as the name of a file.
fn name(path: &str) -> String {
    path.replace(['/', '.'], "-")
}

fn height(text: &str) -> u32 {
    let lines = text.lines().map(|line| {
        let width = if line.starts_with('|') { CHARACTERS_OF_A_ROW } else { CHARACTERS };
        let drawing = if line.starts_with("![") { DRAWING } else { 0 };
        u32::try_from(line.chars().count() / width + 1).unwrap_or(u32::MAX).saturating_mul(LINE).saturating_add(drawing)
    });
    lines.fold(400, u32::saturating_add).min(MAX_HEIGHT)
}

/// The page with GitHub's widths, whose links and pictures are those of the clone.
fn as_on_github(place: &Place, page: &str, text: &str) -> String {
    let mut body = String::new();
    html::push_html(&mut body, Parser::new_ext(text, OPTIONS));
    let base = place.root.join(page);
    format!(
        "<!DOCTYPE html><meta charset=\"utf-8\"><base href=\"file://{}\"><style>{STYLE}</style>\n{body}",
        base.display()
    )
}

/// One picture, by a browser that knows nothing of others and asks nothing of the network.
fn picture(shown: &Path, picture: &Path, height: u32) -> Result<()> {
    let profile = tempfile::tempdir()?;
    let mut chromium = Command::new("timeout");
    chromium.args([
        PATIENCE,
        "chromium",
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
    ]);
    chromium.args([
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--hide-scrollbars",
    ]);
    chromium
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .arg(format!("--window-size={WIDTH},{height}"));
    chromium.arg(format!("--screenshot={}", picture.display())).arg(format!("file://{}", shown.display()));
    step::run_logged(&mut chromium, &picture.with_extension("log"))?;
    let size = std::fs::metadata(picture).map_or(0, |file| file.len());
    if size < LEAST {
        bail!("{} has {size} bytes: is {} empty?", picture.display(), shown.display());
    }
    Ok(())
}
