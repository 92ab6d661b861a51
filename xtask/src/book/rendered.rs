//! Whether a page is rendered as it was meant: a parser of CommonMark with GitHub's extensions reads it, and what it finds is compared with
//! what the lines of the page mean.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, Result};
use kv_store_tests::book::{files, links};
use pulldown_cmark::{CodeBlockKind, Event, Options, Parser, Tag, TagEnd, TextMergeWithOffset};

use super::meant::Meant;

/// What GitHub adds to CommonMark.
pub const OPTIONS: Options = Options::ENABLE_TABLES
    .union(Options::ENABLE_STRIKETHROUGH)
    .union(Options::ENABLE_TASKLISTS)
    .union(Options::ENABLE_FOOTNOTES)
    .union(Options::ENABLE_MATH);

/// What a parser leaves in a text only where it is no markup for it.
const MARKUP: &[&str] = &["`", "](", "][", "**", "| ---", "<!--", "-->", "~~~", "## "];

/// How many pages the clone has, templates of pages included, and what a reader would see otherwise than it was meant.
pub fn pages(root: &Path) -> Result<(usize, Vec<String>)> {
    let (mut pages, mut wrong) = (0, Vec::new());
    for page in files(root, "").iter().map(|page| page.display()) {
        let name = page.to_string();
        if name.ends_with(".md") || name.ends_with(".md.in") {
            pages += 1;
            let text = std::fs::read_to_string(root.join(&name)).with_context(|| name.clone())?;
            wrong.extend(garbled(&text).into_iter().map(|(line, why)| format!("{name}:{line}: {why}")));
        }
    }
    Ok((pages, wrong))
}

/// What is wrong with a page, and on which lines.
fn garbled(page: &str) -> Vec<(usize, String)> {
    let page = without_front_matter(page);
    let (meant, rendered) = (Meant::read(&page), Rendered::read(&page));
    let mut wrong = rendered.wrong.clone();
    compare_blocks(&meant, &rendered, &mut wrong);
    compare_tables(&meant, &rendered, &mut wrong);
    let headings = meant.headings.into_iter().collect();
    differences(&headings, &rendered.headings, "heading", |(line, _, _)| *line, &mut wrong);
    let items = meant.items.into_iter().collect();
    differences(&items, &rendered.items, "item of a list", |line| *line, &mut wrong);
    for (line, target) in links(&page) {
        if !rendered.links.contains(&(line, target.to_owned())) {
            wrong.push((line, format!("{target} is no link")));
        }
    }
    wrong.sort();
    wrong
}

/// The page with empty lines for the settings that GitHub takes from the top of a template.
fn without_front_matter(page: &str) -> String {
    let end = page.strip_prefix("---\n").and_then(|rest| rest.find("\n---\n"));
    let Some(end) = end else { return page.to_owned() };
    let (front, rest) = page.split_at("---\n".len() + end + "\n---\n".len());
    "\n".repeat(front.lines().count()) + rest
}

/// What the parser finds.
#[derive(Default)]
struct Rendered {
    /// By the line of the fence: the info string and the content.
    blocks: BTreeMap<usize, (String, String)>,
    /// Line, level and text.
    headings: BTreeSet<(usize, usize, String)>,
    /// The lines of rows; those of headers are true.
    rows: BTreeMap<usize, bool>,
    items: BTreeSet<usize>,
    links: BTreeSet<(usize, String)>,
    /// What is wrong by itself.
    wrong: Vec<(usize, String)>,
}

impl Rendered {
    fn read(page: &str) -> Self {
        let starts: Vec<usize> = std::iter::once(0).chain(page.match_indices('\n').map(|(at, _)| at + 1)).collect();
        let line_of = |at: usize| starts.partition_point(|start| *start <= at);
        let mut rendered = Rendered::default();
        // What the events are within: a block of code on this line, a block of HTML, a heading.
        let (mut block, mut html): (Option<usize>, String) = (None, String::new());
        let mut heading: Option<String> = None;
        for (event, range) in TextMergeWithOffset::new(Parser::new_ext(page, OPTIONS).into_offset_iter()) {
            let line = line_of(range.start);
            let mut wrong = |why: String| rendered.wrong.push((line, why));
            match event {
                Event::Start(Tag::CodeBlock(CodeBlockKind::Fenced(info))) => {
                    rendered.blocks.insert(line, (info.to_string(), String::new()));
                    block = Some(line);
                }
                Event::Start(Tag::CodeBlock(CodeBlockKind::Indented)) => {
                    wrong("its indentation makes it a block of code".to_owned());
                    block = Some(line);
                }
                Event::End(TagEnd::CodeBlock) => block = None,
                Event::Text(text) => match block {
                    Some(at) => {
                        if let Some((_, content)) = rendered.blocks.get_mut(&at) {
                            *content += &text;
                        }
                    }
                    None => {
                        heading.iter_mut().for_each(|heading| *heading += &text);
                        let markup = MARKUP.iter().filter(|markup| text.contains(**markup));
                        rendered.wrong.extend(markup.map(|markup| (line, format!("a reader sees {markup:?}"))));
                    }
                },
                Event::Start(Tag::HtmlBlock) => html.clear(),
                Event::Html(text) => html += &text,
                Event::End(TagEnd::HtmlBlock) if !is_comment(&html) => {
                    wrong(format!("HTML that is no comment: {html:?}"));
                }
                Event::InlineHtml(text) if !is_comment(&text) => wrong(format!("{text} is HTML, and not shown")),
                Event::InlineMath(text) | Event::DisplayMath(text) => {
                    wrong(format!("GitHub takes what is between two `$` for mathematics: {text:?}"));
                }
                Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
                Event::End(TagEnd::Heading(level)) => {
                    rendered.headings.insert((line, level as usize, heading.take().unwrap_or_default()));
                }
                Event::Code(text) => heading.iter_mut().for_each(|heading| *heading += &text),
                Event::Start(Tag::TableHead) => {
                    rendered.rows.insert(line, true);
                }
                Event::Start(Tag::TableRow) => {
                    rendered.rows.insert(line, false);
                }
                Event::Start(Tag::Item) => {
                    rendered.items.insert(line);
                }
                Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                    rendered.links.insert((line, dest_url.to_string()));
                }
                _ => {}
            }
        }
        rendered
    }
}

/// One comment, and nothing behind it.
fn is_comment(html: &str) -> bool {
    let inner = html.trim().strip_prefix("<!--").and_then(|rest| rest.strip_suffix("-->"));
    inner.is_some_and(|inner| !inner.contains("-->"))
}

fn compare_blocks(meant: &Meant, rendered: &Rendered, wrong: &mut Vec<(usize, String)>) {
    for fence in &meant.fences {
        if !fence.is_closed {
            wrong.push((fence.line, "the fence is not closed".to_owned()));
        }
        if fence.info.contains(|c: char| c.is_whitespace() || c == '`') {
            wrong.push((fence.line, format!("the info string is not the language alone: {}", fence.info)));
        }
        match rendered.blocks.get(&fence.line) {
            None => wrong.push((fence.line, "the fence opens no block".to_owned())),
            Some((info, text)) if (info, text) != (&fence.info, &fence.text) => {
                wrong.push((fence.line, format!("the block is rendered as {info:?}, {text:?}")));
            }
            Some(_) => {}
        }
    }
    let known: BTreeSet<usize> = meant.fences.iter().map(|fence| fence.line).collect();
    let others = rendered.blocks.keys().filter(|line| !known.contains(line));
    wrong.extend(others.map(|line| (*line, "a block begins here that no fence was meant to open".to_owned())));
}

fn compare_tables(meant: &Meant, rendered: &Rendered, wrong: &mut Vec<(usize, String)>) {
    let mut known = BTreeSet::new();
    for table in &meant.tables {
        let wanted = table.first().map_or(0, |(_, cells)| *cells);
        for (row, (line, cells)) in table.iter().enumerate() {
            known.insert(*line);
            if *cells != wanted {
                wrong.push((*line, format!("{cells} cells, and the header has {wanted}: is a | not escaped?")));
            }
            // The second separates the header, and is not shown.
            if row != 1 && rendered.rows.get(line) != Some(&(row == 0)) {
                wrong.push((*line, "this is no row of a table".to_owned()));
            }
        }
    }
    let others = rendered.rows.keys().filter(|line| !known.contains(line));
    wrong.extend(others.map(|line| (*line, "this is rendered as a row of the table before it".to_owned())));
}

/// What is on one side alone.
fn differences<T: Ord>(
    meant: &BTreeSet<T>,
    rendered: &BTreeSet<T>,
    what: &str,
    line: impl Fn(&T) -> usize,
    wrong: &mut Vec<(usize, String)>,
) {
    wrong.extend(
        meant.difference(rendered).map(|one| (line(one), format!("this is not rendered as the {what} that it is"))),
    );
    wrong.extend(rendered.difference(meant).map(|one| (line(one), format!("this is rendered as a {what}"))));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lines of what is wrong.
    fn lines(page: &str) -> Vec<usize> {
        let mut lines: Vec<usize> = garbled(page).into_iter().map(|(line, _)| line).collect();
        lines.dedup();
        lines
    }

    #[test]
    fn every_page_is_rendered_as_it_was_meant() {
        let (pages, wrong) = pages(&crate::place::Place::find().unwrap().root).unwrap();
        assert!(pages > 100 && wrong.is_empty(), "{pages} pages\n{}", wrong.join("\n"));
    }

    #[test]
    fn what_is_rendered_as_it_was_meant_has_no_fault() {
        let page = "# A `b`\nText with `a | b`, **c** and [d](e.md),\nand `f\ng`.\n- one\n  <!-- needs=`x` -->\n  ```sh\n  | a\n\n    b\n  ```\n\
                    - two\n\n| a | b |\n| --- | --- |\n| `c \\| d` | [e](f#g) |\n<!-- end -->\n\n1. three\n\n<!-- two\nlines -->\n~~~text\n```\n~~~\n";
        assert_eq!(garbled(page), []);
        assert_eq!(garbled("---\nname: a\nabout: b\n---\n\n## c\n"), []);
    }

    #[test]
    fn a_backtick_in_an_info_string_garbles_what_follows() {
        let page = "```sh unrun: `cargo xtask test` does it\nmake\n```\n| a |\n| --- |\n| b |\n\n```sh\nls\n```\n";
        let wrong = garbled(page);
        let at =
            |line: usize| wrong.iter().filter(|(at, _)| *at == line).map(|(_, why)| why.as_str()).collect::<Vec<_>>();
        assert!(at(1).contains(&"the fence opens no block"), "{wrong:?}");
        assert_eq!(at(3), ["a block begins here that no fence was meant to open"]);
        assert_eq!(at(4), ["this is no row of a table"]);
        assert_eq!(at(6), at(4));
        assert!(at(8).contains(&"the fence opens no block"), "{wrong:?}");
    }

    #[test]
    fn each_defect_is_found_on_its_line() {
        for (page, line) in [
            ("a\n\n```sh\nb\n", 3),
            ("```sh x\n```\n", 1),
            ("a\n\n    b\n", 3),
            ("| a | b |\n| --- | --- |\n| `c | d` | e |\n", 3),
            ("| a | b |\n| --- | --- |\n| c |\n", 3),
            ("| a | b |\n| --- |\n", 1),
            ("| a |\n| --- |\n| b |\nText.\n", 4),
            ("see libx_<scheme>.so\n", 1),
            ("<details>\n", 1),
            ("a\n<!-- b --> c\n", 2),
            ("a `b\n", 1),
            ("[a](b c.md)\n", 1),
            ("[a][b]\n", 1),
            ("from $A/b to c/$\n", 1),
            ("a\n---\n", 1),
            ("## a #\n", 1),
            ("a\n  2. b\n", 2),
            ("####### a\n- b\n\n      # c\n", 4),
            ("- a\n\n  ## b\n", 3),
        ] {
            assert!(lines(page).contains(&line), "{page:?}: {:?}", garbled(page));
        }
    }
}
