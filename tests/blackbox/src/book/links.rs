//! The links of a page, and the anchors that links of others lead to.

use std::path::{Component, Path, PathBuf};

use super::prose;

/// The targets of a page's links and images in the clone, with their lines: `path`, `path#anchor` or `#anchor`.
pub fn links(page: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    for (number, line) in prose(page) {
        // What is between backticks is no link.
        let mut rest = line;
        while let Some(at) = rest.find(['`', ']']) {
            let (here, after) = (rest.as_bytes()[at], &rest[at + 1..]);
            rest = after;
            if here == b'`' {
                rest = after.split_once('`').map_or("", |(_, rest)| rest);
            } else if let Some(target) = after.strip_prefix('(').and_then(|rest| rest.split(')').next())
                && !["http:", "https:", "mailto:"].iter().any(|scheme| target.starts_with(scheme))
            {
                found.push((number, target));
            }
        }
    }
    found
}

/// The anchors of a page's headings, as GitHub and mdBook make them.
pub fn anchors(page: &str) -> Vec<String> {
    let headings = prose(page).map(|(_, line)| line).filter(|line| line.starts_with('#'));
    let headings = headings.map(|line| line.trim_start_matches('#').trim());
    let mut anchors: Vec<String> = Vec::new();
    for heading in headings {
        // A link counts as its text.
        let mut text = String::new();
        let mut rest = heading;
        while let Some((before, after)) = rest.split_once("](") {
            text += before;
            rest = after.split_once(')').map_or("", |(_, rest)| rest);
        }
        text += rest;
        let text = text.to_lowercase();
        let kept = text.chars().filter_map(|c| match c {
            ' ' => Some('-'),
            '-' | '_' => Some(c),
            _ => c.is_alphanumeric().then_some(c),
        });
        let anchor: String = kept.collect();
        let before =
            anchors.iter().filter(|known| **known == anchor || known.starts_with(&format!("{anchor}-"))).count();
        anchors.push(if anchors.contains(&anchor) { format!("{anchor}-{before}") } else { anchor });
    }
    anchors
}

/// The `docs/...` that a text of any kind mentions, with their lines and without what ends a sentence.
pub fn mentions(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        for (at, _) in line.match_indices("docs/") {
            let before = line[..at].chars().next_back();
            // `../docs/x` and `guests/docs/x` are others' paths, `https://h/docs/x` an address.
            if before.is_some_and(|c| c.is_alphanumeric() || matches!(c, '/' | '-' | '_' | '.')) {
                continue;
            }
            let is_path = |c: char| c.is_ascii_alphanumeric() || matches!(c, '/' | '-' | '_' | '.');
            let path = line[at..].split(|c| !is_path(c)).next().unwrap_or_default().trim_end_matches(['.', '/']);
            found.push((number, path));
        }
    }
    found
}

/// The path with `..` taken off, by its text.
pub fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                normal.pop();
            }
            Component::CurDir => {}
            part => normal.push(part),
        }
    }
    normal
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_found_outside_of_code() {
        let page = "[a](b.md) `[c](d)` ![e](f.svg)\n```sh\n[g](h)\n```\n[i](https://x) [j](k.md#l), x[1](m)";
        assert_eq!(links(page), [(1, "b.md"), (1, "f.svg"), (5, "k.md#l"), (5, "m")]);
    }

    #[test]
    fn anchors_are_those_of_github() {
        let page = "# One, two: `three_4`\n## [A link](x.md) and more\n```\n# no\n```\n## Config\n### Config\n";
        assert_eq!(anchors(page), ["one-two-three_4", "a-link-and-more", "config", "config-1"]);
    }

    #[test]
    fn mentions_are_paths() {
        let text =
            "// see docs/a.md, docs/b-c/d.md.\n include_str!(\"../../docs/e.md\") https://h/docs/x (`docs/decisions/`)";
        assert_eq!(mentions(text), [(1, "docs/a.md"), (1, "docs/b-c/d.md"), (2, "docs/decisions")]);
    }

    #[test]
    fn a_path_is_normal_by_its_text() {
        assert_eq!(normal(Path::new("/a/b/../c/./d")), Path::new("/a/c/d"));
        assert_eq!(normal(Path::new("/../a")), Path::new("/a"));
    }
}
