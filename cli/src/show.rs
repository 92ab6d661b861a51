//! What people and machines read: progress on a terminal, sizes, one JSON object on standard output.

use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A bar on standard error; nothing where that is no terminal.
pub fn bytes_bar(total: Option<u64>) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(total, ProgressDrawTarget::stderr());
    let template = match total {
        Some(_) => "{bar:30} {bytes:>11} of {total_bytes}  {bytes_per_sec}  {eta} left",
        None => "{spinner} {bytes:>11}  {bytes_per_sec}",
    };
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar
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
pub fn bytes(count: u64) -> String {
    let units = [("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)];
    let large = units.iter().find(|(_, unit)| count as f64 >= *unit);
    large.map_or_else(|| format!("{count} bytes"), |(name, unit)| format!("{:.1} {name}", count as f64 / unit))
}

/// Bytes a second since a moment.
pub fn rate(count: u64, since: Instant) -> f64 {
    count as f64 / since.elapsed().as_secs_f64().max(1e-9)
}

/// One line of JSON on standard output.
pub fn json(value: &impl serde::Serialize) {
    if let Ok(text) = serde_json::to_string(value) {
        println!("{text}");
    }
}

/// Problems, the fatal ones first, each with what to do.
pub fn problems(problems: &[kv_store_wasm::Problem]) {
    let (fatal, notes): (Vec<_>, Vec<_>) = problems.iter().partition(|problem| problem.fatal);
    for (weight, problems) in [("PROBLEM", fatal), ("note", notes)] {
        problems.iter().for_each(|problem| println!("{weight:<8} {}; {}", problem.what, problem.remedy));
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

pub fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The bytes that hex digits stand for.
pub fn from_hex(text: &str) -> Result<Vec<u8>, String> {
    let digit = |c: u8| (c as char).to_digit(16).map(|digit| digit as u8);
    let pairs = text.as_bytes().chunks(2).map(|pair| match pair {
        [high, low] => Some(digit(*high)? << 4 | digit(*low)?),
        _ => None,
    });
    pairs
        .collect::<Option<Vec<u8>>>()
        .ok_or_else(|| format!("{text:?} is not bytes in hex: write two digits for each byte"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hex_goes_both_ways_and_nonsense_is_refused() {
        assert_eq!(from_hex(&hex(b"\0\xff/a")).unwrap(), b"\0\xff/a");
        for text in ["a", "zz", "é", "aé", " a"] {
            assert!(from_hex(text).is_err(), "{text}");
        }
    }
}
