//! The sentences of a page, to see how long they are.

use super::prose;

/// The words of each sentence of a page that has at least so many, in paragraphs, items of lists and cells of tables. Code, links'
/// targets and headings do not count.
pub fn sentences(page: &str, least: usize) -> Vec<Vec<&str>> {
    let mut all = Vec::new();
    let mut sentence = Vec::new();
    let mut end = |sentence: &mut Vec<_>| {
        let ended = std::mem::take(sentence);
        if ended.len() >= least {
            all.push(ended);
        }
    };
    let mut last = 0;
    for (number, line) in prose(page) {
        let text = line.trim();
        // A fence or an empty line ends a paragraph; items, headings and rows begin on their own.
        if number != last + 1 || text.is_empty() || begins(text) {
            end(&mut sentence);
        }
        last = number;
        if text.starts_with('#') {
            continue;
        }
        let mut in_code = false;
        // The number of an item is no word.
        let item = text.split_once(". ").filter(|_| begins(text) && text.starts_with(|c: char| c.is_ascii_digit()));
        for word in item.map_or(text, |(_, item)| item).split_whitespace() {
            if word == "|" && !in_code {
                end(&mut sentence);
                continue;
            }
            // Code between backticks is one word, whatever is in it.
            let continued = in_code;
            in_code ^= word.matches('`').count() % 2 == 1;
            if !continued && word.contains(char::is_alphanumeric) {
                sentence.push(word);
            }
            let bare = word.trim_end_matches(['*', ')', '"', '_', '`']);
            if !in_code && bare.ends_with(['.', '!', '?']) && !ABBREVIATIONS.contains(&bare) {
                end(&mut sentence);
            }
        }
        if text.starts_with('|') {
            end(&mut sentence);
        }
    }
    end(&mut sentence);
    all
}

/// What ends with a point and no sentence.
const ABBREVIATIONS: &[&str] = &["e.g.", "i.e.", "etc.", "..."];

/// Whether a line begins an item of a list, a heading or a row of a table.
fn begins(text: &str) -> bool {
    let number = text.trim_start_matches(|c: char| c.is_ascii_digit());
    text.starts_with(['#', '|'])
        || text.starts_with("- ")
        || text.starts_with("* ")
        || (number.len() < text.len() && number.starts_with(". "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lengths(page: &str) -> Vec<usize> {
        sentences(page, 1).iter().map(Vec::len).collect()
    }

    #[test]
    fn sentences_end_with_points_paragraphs_items_and_cells() {
        assert_eq!(
            lengths("# A heading\none two three. four\nfive **six.** seven\n\neight\n- nine\n- ten"),
            [3, 3, 1, 1, 1, 1]
        );
        assert_eq!(lengths("| a b | c |\n| --- | --- |\n| d e f. g | |"), [2, 1, 3, 1]);
        assert_eq!(lengths("1. one two\n   three\n2. four"), [3, 1]);
    }

    #[test]
    fn code_counts_as_a_word_and_blocks_and_comments_do_not_count() {
        assert_eq!(lengths("see `a b c.d e` now\n<!-- unrun: one two three -->\n```sh\nls -l a.\n```\nthen"), [3, 1]);
    }

    #[test]
    fn a_number_with_a_point_ends_nothing() {
        assert_eq!(lengths("version 1.2 of x, 3 of y."), [7]);
    }
}
