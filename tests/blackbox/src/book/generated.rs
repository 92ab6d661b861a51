//! Pages of reference that are made of what they refer to: the functions of a C header, the functions of the contract.

use std::fmt::Write;

/// A table of the functions of a C header, with the first sentence of the comment before each.
pub fn header(text: &str) -> String {
    let mut table = String::from("| function | |\n| --- | --- |\n");
    let (mut comment, mut in_comment) = (String::new(), false);
    for line in text.lines() {
        let bare = line.trim();
        if bare.starts_with("/*") {
            comment.clear();
            in_comment = true;
        }
        if in_comment {
            let words = bare.trim_start_matches("/*").trim_end_matches("*/").trim_start_matches('*').trim();
            // An empty line ends what is said first.
            comment += if words.is_empty() { "\n" } else { " " };
            comment += words;
            in_comment = !bare.ends_with("*/");
        } else if let Some(name) = function(bare) {
            row(&mut table, name, &comment);
        }
    }
    table
}

/// The name of the function that a line declares: a member of a vtable, or a prototype.
fn function(line: &str) -> Option<&str> {
    if ["typedef", "static", "#", "return", "*"].iter().any(|other| line.starts_with(other)) {
        return None;
    }
    let is_name = |name: &str| !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    if let Some((_, rest)) = line.split_once("(*") {
        return rest.split(')').next().filter(|name| is_name(name));
    }
    let (before, _) = line.split_once('(')?;
    // A result's type stands before the name.
    let (kind, name) = before.rsplit_once([' ', '*'])?;
    (is_name(name) && name.starts_with("kv") && !kind.contains('=')).then_some(name)
}

/// A table of the functions of each interface of the contract, with the first sentence of the comment before each.
pub fn contract(text: &str) -> String {
    let mut tables = String::new();
    // Functions that follow one another without a comment share that of the first.
    let (mut comment, mut resource, mut said) = (String::new(), None, String::new());
    for line in text.lines() {
        let bare = line.trim();
        if let Some(words) = bare.strip_prefix("///") {
            comment += if words.trim().is_empty() { "\n" } else { " " };
            comment += words.trim();
            continue;
        }
        if bare.starts_with("@since") {
            continue;
        }
        if let Some(name) = bare.strip_prefix("interface ").and_then(|rest| rest.strip_suffix(" {")) {
            let what = if comment.is_empty() { "What the others use" } else { comment.as_str() };
            let _ = write!(tables, "\n## {name}\n{}\n\n| function | |\n| --- | --- |\n", first_sentence(what));
        } else if let Some(name) = bare.strip_prefix("resource ") {
            resource = Some(name.trim_end_matches(['{', ';', ' ']));
        } else if line == "  }" {
            resource = None;
        } else if let Some((name, rest)) = bare.split_once(": ")
            && ["func(", "static func("].iter().any(|function| rest.starts_with(function))
        {
            let name = resource.map_or_else(|| name.to_owned(), |resource| format!("{resource}.{name}"));
            if !comment.is_empty() {
                said.clone_from(&comment);
            }
            row(&mut tables, &name, &said);
        }
        comment.clear();
    }
    // An interface of types alone has no table.
    tables.replace("\n| function | |\n| --- | --- |\n\n", "\n").trim_start().to_owned()
}

fn row(table: &mut String, name: &str, comment: &str) {
    let _ = writeln!(table, "| `{name}` | {} |", first_sentence(comment).replace('|', "\\|"));
}

/// Up to the first point that ends a sentence, or the first empty line.
fn first_sentence(comment: &str) -> String {
    let paragraph = comment.trim().split('\n').next().unwrap_or_default().trim();
    let end = paragraph.find(". ").map_or(paragraph.len(), |end| end + 1);
    // Which version a function came with says nothing of it.
    match paragraph[end..].trim() {
        rest if paragraph.starts_with("Since version") && !rest.is_empty() => first_sentence(rest),
        _ => paragraph[..end].trim_end_matches('.').to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_has_members_and_prototypes() {
        let text = "/*\n * page. More\n */\ntypedef struct v {\n    /*\n     * Open it. Returns\n     * NULL.\n     */\n    kv *(*open)(int);\n\
                    } v;\n/* Get a | b\n *\n * more */\nsize_t kv_get(char *b,\n             int n);\ntypedef int (*kv_fn)(void);\n";
        assert_eq!(header(text), "| function | |\n| --- | --- |\n| `open` | Open it |\n| `kv_get` | Get a \\| b |\n");
    }

    #[test]
    fn the_contract_has_interfaces_and_resources() {
        let text = "/// Only types.\ninterface types {\n  enum e { a }\n}\n/// Files. More.\n@since(version = 1.0.0)\ninterface files {\n  resource directory {\n    \
                    /// Read. Twice.\n    @since(version = 1.0.0)\n    read: func(a: u32) -> u32;\n  }\n  /// Open\n  open: func();\n}\n";
        assert_eq!(
            contract(text),
            "## types\nOnly types\n\n## files\nFiles\n\n| function | |\n| --- | --- |\n| `directory.read` | Read |\n| `open` | Open |\n"
        );
    }
}
