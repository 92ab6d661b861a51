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
    fn what_is_near_is_suggested() {
        let message = "unknown field `verifi`, expected one of `component`, `root`, `verify`";
        assert_eq!(suggestion(message), "; did you mean `verify`?");
        assert_eq!(suggestion("unknown field `zzz`, expected one of `component`, `root`"), "");
        assert_eq!(suggestion("unknown field `x`, there are no fields"), "");
        assert_eq!(suggestion("missing field `uri`"), "");
        assert_eq!(nearest("private-network", ["private_networks", "fs"].into_iter()), Some("private_networks"));
    }
}
