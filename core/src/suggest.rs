//! What somebody may have meant by a word that the config does not know.

/// A suggestion, out of an error of serde's: it names the unknown word first and then those that it expected, each in
/// backticks. Empty where nothing is near.
pub fn suggestion(message: &str) -> String {
    if !message.starts_with("unknown ") {
        return String::new();
    }
    // Every second piece is quoted.
    let mut quoted = message.split('`').skip(1).step_by(2);
    let Some(unknown) = quoted.next() else { return String::new() };
    match nearest(unknown, quoted) {
        Some(meant) => format!("; did you mean `{meant}`?"),
        None => String::new(),
    }
}

/// A message of serde's about a value of the wrong type, in the words of who writes a config; any other message as it is.
pub fn plain(message: &str) -> String {
    const TYPES: &[(&str, &str)] = &[
        ("u64", "write a whole number of 0 or more, without quotes"),
        ("u32", "write a whole number from 0 to 4294967295, without quotes"),
        ("u16", "write a whole number from 0 to 65535, without quotes"),
        ("usize", "write a whole number of 0 or more, without quotes"),
        ("f64", "write a number, without quotes"),
        ("a boolean", "write true or false, without quotes"),
        ("a string", "write it in quotes"),
        ("a map", "write a table"),
        ("a sequence", "write a list in brackets"),
    ];
    let of_value = message.strip_prefix("invalid type: ").or_else(|| message.strip_prefix("invalid value: "));
    let parts = of_value.and_then(|rest| rest.rsplit_once(", expected "));
    let known = parts.and_then(|(found, expected)| {
        let (_, advice) = TYPES.iter().find(|(name, _)| *name == expected)?;
        Some((found, advice))
    });
    let Some((found, advice)) = known else { return message.to_owned() };
    let what = match found.split_once(' ') {
        Some(("string", text)) => format!("{text} is text"),
        Some(("integer", number)) if message.starts_with("invalid value") => format!("{number} is out of range"),
        Some(("integer", number)) => format!("{number} is a number"),
        Some(("boolean", value)) => format!("{value} is not allowed here"),
        Some(("floating", rest)) => format!("{} has a fraction", rest.trim_start_matches("point ")),
        _ => format!("a {found} is not allowed here"),
    };
    format!("{what}: {advice}")
}

/// A word without what is often mistaken: case, and which dash.
fn spelling(word: &str) -> String {
    word.to_lowercase().replace('-', "_")
}

/// The known word that is nearest to a word, if it is near enough to have been meant.
pub fn nearest<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let likeness = |known: &str| strsim::jaro_winkler(&spelling(word), &spelling(known));
    let (meant, likeness) = known.map(|known| (known, likeness(known))).max_by(|a, b| a.1.total_cmp(&b.1))?;
    (likeness > 0.8).then_some(meant)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_of_the_wrong_type_is_told_in_plain_words() {
        for (message, said) in [
            (
                "invalid type: string \"a, b\", expected u64",
                "\"a, b\" is text: write a whole number of 0 or more, without quotes",
            ),
            (
                "invalid value: integer `-1`, expected u32",
                "`-1` is out of range: write a whole number from 0 to 4294967295, without quotes",
            ),
            (
                "invalid type: floating point `1.5`, expected u64",
                "`1.5` has a fraction: write a whole number of 0 or more, without quotes",
            ),
            ("invalid type: integer `5`, expected a string", "`5` is a number: write it in quotes"),
            (
                "invalid type: string \"yes\", expected a boolean",
                "\"yes\" is text: write true or false, without quotes",
            ),
            ("invalid type: map, expected a string", "a map is not allowed here: write it in quotes"),
            (
                "invalid type: string \"x\", expected struct Limits",
                "invalid type: string \"x\", expected struct Limits",
            ),
            ("unknown field `x`, expected `y`", "unknown field `x`, expected `y`"),
        ] {
            assert_eq!(plain(message), said);
        }
    }

    #[test]
    fn what_is_near_is_suggested() {
        let message = "unknown field `verifi`, expected one of `component`, `root`, `verify`";
        assert_eq!(suggestion(message), "; did you mean `verify`?");
        assert_eq!(suggestion("unknown field `zzz`, expected one of `component`, `root`"), "");
        assert_eq!(suggestion("unknown field `x`, there are no fields"), "");
        assert_eq!(suggestion("missing field `uri`"), "");
        assert_eq!(nearest("private-network", ["private_networks", "fs"].into_iter()), Some("private_networks"));
    }
}
