//! What people and machines read: progress on a terminal, sizes, one JSON object on standard output.

use std::io::{IsTerminal, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};

/// A bar on standard error; nothing where that is no terminal.
pub fn bytes_bar(total: Option<u64>) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(total, ProgressDrawTarget::stderr());
    let template = match total {
        Some(_) => "{bar:30} {done:>9} of {whole}  {speed}/s  {eta} left",
        None => "{spinner} {done:>9}  {speed}/s",
    };
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(in_bytes(style));
    }
    bar
}

/// The units of [`bytes`], as the last line of the command has them: indicatif's own are others.
fn in_bytes(style: ProgressStyle) -> ProgressStyle {
    let key = |of: fn(&ProgressState) -> u64| {
        move |state: &ProgressState, to: &mut dyn std::fmt::Write| {
            let _ = to.write_str(&bytes(of(state)));
        }
    };
    let whole = |state: &ProgressState| state.len().unwrap_or_default();
    style
        .with_key("done", key(ProgressState::pos))
        .with_key("whole", key(whole))
        .with_key("speed", key(|state| state.per_sec() as u64))
}

/// A line on standard error that moves while something long is done; nothing where that is no terminal.
pub fn spinner(doing: &str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr()).with_message(doing.to_owned());
    if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} [{elapsed}]") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

/// `12.3 MB`, in powers of ten.
pub fn bytes(number: u64) -> String {
    let units = [("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)];
    // What would be rounded to 1000.0 of a unit is 1.0 of the next one.
    let large = units.iter().find(|(_, unit)| number as f64 >= unit * 0.99995);
    large.map_or_else(|| count(number, "byte"), |(name, unit)| format!("{:.1} {name}", number as f64 / unit))
}

/// `1 chunk`, `2 chunks`.
pub fn count(number: u64, one: &str) -> String {
    format!("{number} {one}{}", if number == 1 { "" } else { "s" })
}

/// What a word says of what comes after it.
#[derive(Clone, Copy)]
pub enum Tone {
    Good,
    Bad,
    Note,
}

/// A word, in colour where standard output is a terminal that has some and NO_COLOR does not forbid it.
pub fn paint(tone: Tone, word: &str) -> String {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    let plain = set("NO_COLOR").is_some() || set("TERM").is_none_or(|term| term == "dumb");
    if plain || !std::io::stdout().is_terminal() {
        return word.to_owned();
    }
    let colour = match tone {
        Tone::Good => 32,
        Tone::Bad => 31,
        Tone::Note => 33,
    };
    format!("\x1b[{colour}m{word}\x1b[0m")
}

/// Bytes a second since a moment.
pub fn rate(count: u64, since: Instant) -> f64 {
    count as f64 / since.elapsed().as_secs_f64().max(1e-9)
}

/// One line of JSON on standard output.
pub fn json(value: &impl serde::Serialize) {
    if let Some(text) = json_line(value) {
        println!("{text}");
    }
}

/// The same as a text. What a terminal would act on, or not show, is escaped: names are whatever others have stored.
pub fn json_line(value: &impl serde::Serialize) -> Option<String> {
    let mut text = Vec::new();
    value.serialize(&mut serde_json::Serializer::with_formatter(&mut text, Visible)).ok()?;
    String::from_utf8(text).ok()
}

/// JSON on one line in which each character is seen.
struct Visible;

impl serde_json::ser::Formatter for Visible {
    fn write_string_fragment<W: ?Sized + Write>(&mut self, to: &mut W, fragment: &str) -> std::io::Result<()> {
        for c in fragment.chars() {
            // Those of ASCII that JSON wants escaped do not come here.
            if c == '\'' || c.escape_debug().count() == 1 {
                write!(to, "{c}")?;
                continue;
            }
            for unit in c.encode_utf16(&mut [0; 2]) {
                write!(to, "\\u{unit:04x}")?;
            }
        }
        Ok(())
    }
}

/// Problems, the fatal ones first, each with what to do.
pub fn problems(problems: &[kv_store_wasm::Problem]) {
    let (fatal, notes): (Vec<_>, Vec<_>) = problems.iter().partition(|problem| problem.fatal);
    for (tone, weight, problems) in [(Tone::Bad, "PROBLEM ", fatal), (Tone::Note, "note    ", notes)] {
        let weight = paint(tone, weight);
        problems.iter().for_each(|problem| println!("{weight} {}; {}", problem.what, problem.remedy));
    }
}

/// A file that appears at its path when it is whole, or not at all.
pub struct Unfinished<'a> {
    path: &'a Path,
    file: tempfile::NamedTempFile,
}

impl<'a> Unfinished<'a> {
    pub fn new(path: &'a Path) -> std::io::Result<Self> {
        if std::fs::metadata(path).is_ok_and(|there| !there.is_file()) {
            return Err(std::io::Error::other("there is something there that is no file"));
        }
        let folder = path.parent().filter(|folder| *folder != Path::new("")).unwrap_or(Path::new("."));
        let file = tempfile::Builder::new().prefix(".kv-store-").tempfile_in(folder)?;
        Ok(Unfinished { path, file })
    }

    /// Where the bytes are until then.
    pub fn temporary(&self) -> std::path::PathBuf {
        self.file.path().to_owned()
    }

    pub fn write(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.file.write_all(bytes)
    }

    pub fn finish(self) -> std::io::Result<()> {
        self.file.as_file().sync_all()?;
        self.file.persist(self.path).map(drop).map_err(|error| error.error)
    }
}

/// The bytes that hex digits stand for.
pub fn from_hex(text: &str) -> Result<Vec<u8>, String> {
    hex::decode(text).map_err(|_| format!("{text:?} is not bytes in hex: write two digits for each byte"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_shows_each_character_and_says_the_same() {
        let name = "a\u{9b}31m\u{202e}txt.exe\u{200b}\u{e0041}\"\\'\n \u{e4}\u{1f600}";
        let line = json_line(&serde_json::json!({ "name": name })).unwrap();
        let escaped = r#"{"name":"a\u009b31m\u202etxt.exe\u200b\udb40\udc41\"\\'\n ä😀"}"#;
        assert_eq!(line, escaped);
        assert_eq!(serde_json::from_str::<serde_json::Value>(&line).unwrap()["name"], name);
    }

    #[test]
    fn sizes_and_numbers_are_for_people() {
        let sizes = [
            (0, "0 bytes"),
            (1, "1 byte"),
            (999, "999 bytes"),
            (1000, "1.0 kB"),
            (999_949, "999.9 kB"),
            (999_950, "1.0 MB"),
        ];
        sizes.iter().for_each(|(number, said)| assert_eq!(bytes(*number), *said));
        assert_eq!(bytes(1_500_000_000_000), "1.5 TB");
        assert_eq!([0, 1, 2].map(|number| count(number, "chunk")), ["0 chunks", "1 chunk", "2 chunks"]);
    }

    #[test]
    fn hex_goes_both_ways_and_nonsense_is_refused() {
        assert_eq!(from_hex(&hex::encode(b"\0\xff/a")).unwrap(), b"\0\xff/a");
        for text in ["a", "zz", "é", "aé", " a"] {
            assert!(from_hex(text).is_err(), "{text}");
        }
    }
}
