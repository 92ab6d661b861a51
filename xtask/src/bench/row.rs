//! A row: one figure of ours and of its peer.

use std::fmt::Write;

#[derive(serde::Deserialize)]
pub struct Row {
    pub name: String,
    pub ours: f64,
    /// None, as the ratio: a figure without a peer, to be reported.
    pub peer: Option<f64>,
    /// As speed: more is better, whatever the unit.
    pub ratio: Option<f64>,
    pub unit: String,
    pub goal: Option<f64>,
}

impl Row {
    /// One line for people.
    pub fn brief(&self) -> String {
        let (peer, ratio) = (or_dash(self.peer, digits), or_dash(self.ratio, hundredths));
        format!("{}: {} {}, peer {peer}, ratio {ratio}", self.name, digits(self.ours), self.unit)
    }

    /// What the ratio comes to: nothing where there is no goal.
    pub fn verdict(&self) -> &'static str {
        match (self.goal, self.ratio) {
            (Some(goal), Some(ratio)) if ratio >= goal => "met",
            (Some(_), _) => "missed",
            (None, _) => "",
        }
    }
}

/// What one call takes, in instructions.
#[derive(serde::Deserialize)]
pub struct Instructions {
    name: String,
    all: u64,
    guest: u64,
    lifting: u64,
    host: u64,
    libc: u64,
    system_calls: f64,
}

impl Instructions {
    /// What stands over the lines.
    pub const HEADER: &str =
        "instructions of a call               all     guest   lifting   library      libc   system calls";

    /// One line for people.
    pub fn line(&self) -> String {
        let Instructions { name, all, guest, lifting, host, libc, system_calls } = self;
        format!("{name:32} {all:>9} {guest:>9} {lifting:>9} {host:>9} {libc:>9} {system_calls:>14.1}")
    }
}

/// A figure with as many digits as were measured.
pub fn digits(value: f64) -> String {
    match value.abs() {
        small if small < 1.0 => format!("{value:.3}"),
        middle if middle < 100.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

pub fn hundredths(value: f64) -> String {
    format!("{value:.2}")
}

/// A figure that may not be there.
pub fn or_dash(value: Option<f64>, show: fn(f64) -> String) -> String {
    value.map_or_else(|| "-".to_owned(), show)
}

/// All rows for a terminal.
pub fn table(rows: &[Row]) -> String {
    let mut text = format!("{:28} {:>9} {:>9} {:6} {:>7} {:>6}\n", "", "ours", "peer", "", "ratio", "goal");
    for row in rows {
        let [goal, ratio] = [row.goal, row.ratio].map(|value| or_dash(value, hundredths));
        let (ours, peer) = (digits(row.ours), or_dash(row.peer, digits));
        // Writing to a string does not fail.
        let _ =
            writeln!(text, "{:28} {ours:>9} {peer:>9} {:6} {ratio:>7} {goal:>6} {}", row.name, row.unit, row.verdict());
    }
    text
}
