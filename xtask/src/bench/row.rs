//! A row: one figure of ours and of its peer.

use std::fmt::Write;

#[derive(serde::Deserialize)]
pub struct Row {
    pub name: String,
    pub ours: f64,
    /// None: there is nothing to compare with.
    pub peer: Option<f64>,
    /// As speed: more is better, whatever the unit.
    pub ratio: Option<f64>,
    pub unit: String,
    pub goal: Option<f64>,
}

impl Row {
    /// One line for people.
    pub fn brief(&self) -> String {
        let (peer, ratio) = self.beside();
        format!("{}: {} {}, peer {peer}, ratio {ratio}", self.name, digits(self.ours), self.unit)
    }

    /// Peer and ratio, as they are shown.
    pub fn beside(&self) -> (String, String) {
        let ratio = self.ratio.map_or("-".to_owned(), |ratio| format!("{ratio:.2}"));
        (self.peer.map_or("-".to_owned(), digits), ratio)
    }

    /// What the ratio comes to: nothing where there is no goal.
    pub fn verdict(&self) -> &'static str {
        match (self.goal, self.ratio) {
            (Some(goal), Some(ratio)) if ratio >= goal => "met",
            (Some(_), Some(_)) => "missed",
            _ => "",
        }
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

/// All rows for a terminal.
pub fn table(rows: &[Row]) -> String {
    let mut text = format!("{:40} {:>9} {:>9} {:6} {:>7} {:>6}\n", "", "ours", "peer", "", "ratio", "goal");
    for row in rows {
        let goal = row.goal.map_or("-".to_owned(), |goal| format!("{goal:.2}"));
        let (ours, (peer, ratio)) = (digits(row.ours), row.beside());
        // Writing to a string does not fail.
        let _ =
            writeln!(text, "{:40} {ours:>9} {peer:>9} {:6} {ratio:>7} {goal:>6} {}", row.name, row.unit, row.verdict());
    }
    text
}
