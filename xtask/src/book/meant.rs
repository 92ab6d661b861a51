//! What the source of a page means, line by line, by the forms that the pages use and without a parser of Markdown.
//!
//! It is independent of the parser on purpose: where the two differ, a reader sees something else than the writer meant.

/// What the lines of a page mean.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Meant {
    pub fences: Vec<Fence>,
    /// The line, the level and the text of each heading.
    pub headings: Vec<(usize, usize, String)>,
    /// Each table: the line of each row and its number of cells. The second row separates the header.
    pub tables: Vec<Vec<(usize, usize)>>,
    /// The lines that begin an item of a list.
    pub items: Vec<usize>,
}

/// A fenced block.
#[derive(Debug, PartialEq, Eq)]
pub struct Fence {
    pub line: usize,
    pub info: String,
    pub text: String,
    pub is_closed: bool,
}

impl Meant {
    pub fn read(page: &str) -> Self {
        let mut meant = Meant::default();
        let mut lines = (1..).zip(page.lines());
        let mut last_row = 0;
        while let Some((line, text)) = lines.next() {
            let bare = text.trim_start();
            if bare.starts_with("```") || bare.starts_with("~~~") {
                meant.fences.push(fence(line, text, &mut lines));
            } else if bare.starts_with('|') {
                let row = (line, cells(bare));
                match meant.tables.last_mut().filter(|_| last_row + 1 == line) {
                    Some(table) => table.push(row),
                    None => meant.tables.push(vec![row]),
                }
                last_row = line;
            } else if let Some((level, heading)) = heading(text) {
                meant.headings.push((line, level, heading));
            } else if is_item(bare) {
                meant.items.push(line);
            }
        }
        meant
    }
}

/// The block of an opening fence: up to the same one or a longer one, without the indentation of the first.
fn fence<'a>(line: usize, opening: &str, lines: &mut impl Iterator<Item = (usize, &'a str)>) -> Fence {
    let bare = opening.trim_start();
    let indent = opening.len() - bare.len();
    let info = bare.trim_start_matches(if bare.starts_with('`') { '`' } else { '~' });
    let marks = &bare[..bare.len() - info.len()];
    let mut fence = Fence { line, info: info.trim().to_owned(), text: String::new(), is_closed: false };
    for (_, inner) in lines {
        if inner.trim().strip_prefix(marks).is_some_and(|rest| rest.chars().all(|c| marks.starts_with(c))) {
            fence.is_closed = true;
            break;
        }
        let spaces = inner.len() - inner.trim_start_matches(' ').len();
        fence.text += &inner[spaces.min(indent)..];
        fence.text += "\n";
    }
    fence
}

/// The level of a heading, and its text without the marks of code and links.
fn heading(text: &str) -> Option<(usize, String)> {
    let rest = text.trim_start_matches('#');
    let level = text.len() - rest.len();
    let mut rest = rest.strip_prefix(' ').filter(|_| (1..=6).contains(&level))?.trim();
    let mut heading = String::new();
    while let Some((before, target)) = rest.split_once("](") {
        heading += &before.replacen('[', "", 1);
        rest = target.split_once(')')?.1;
    }
    heading += rest;
    Some((level, heading.replace(['`', '*'], "")))
}

/// The cells of a row. `\|` is no end of a cell, and between backticks a `|` is one, as GitHub has it.
fn cells(row: &str) -> usize {
    let mut escaped = false;
    let ends = row.trim().chars().filter(|c| {
        let is_end = *c == '|' && !escaped;
        escaped = *c == '\\' && !escaped;
        is_end
    });
    ends.count().saturating_sub(1)
}

fn is_item(bare: &str) -> bool {
    let number = bare.trim_start_matches(|c: char| c.is_ascii_digit());
    ["- ", "* ", "+ "].iter().any(|mark| bare.starts_with(mark))
        || (number.len() < bare.len() && number.starts_with(". "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_mean_blocks_headings_tables_and_items() {
        let page = "# One `2` [x](y.md)\n- a\n  ```sh x\n  b\n    c\n\n  ```\n12. d\n\n| a | b \\| `|` |\n| --- | --- |\n\n| e |\n#no\n~~~\n```\n";
        let meant = Meant::read(page);
        let fence =
            |line, info: &str, text: &str, is_closed| Fence { line, info: info.into(), text: text.into(), is_closed };
        assert_eq!(meant.fences, [fence(3, "sh x", "b\n  c\n\n", true), fence(15, "", "```\n", false)]);
        assert_eq!(meant.headings, [(1, 1, "One 2 x".to_owned())]);
        assert_eq!(meant.tables, [vec![(10, 3), (11, 2)], vec![(13, 1)]]);
        assert_eq!(meant.items, [2, 8]);
    }
}
