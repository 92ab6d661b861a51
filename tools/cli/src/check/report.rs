//! What a check has found, for machines (`--json`), and for those who look at a vendor's page: a report and a badge.

use std::fmt::Write;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;

use super::times::Times;
use crate::contract;
use crate::failure::{Failure, Outcome};

#[derive(Debug, Serialize)]
pub struct Report {
    pub subject: String,
    /// What the backend says it reached.
    pub label: String,
    /// Of the component, in hex. None: native code.
    pub sha256: Option<String>,
    pub contract: &'static str,
    /// Of the contract's text, in hex.
    pub contract_sha256: String,
    /// The version of the suite.
    pub suite: &'static str,
    /// Of the check, in UTC: `2026-01-31`.
    pub date: String,
    /// How long compiling took. None: native code.
    pub compile_ms: Option<u64>,
    /// With `--times`.
    pub times: Option<Times>,
    /// Only these cases were asked for.
    pub filter: Option<String>,
    pub passed: usize,
    pub failed: usize,
    pub skipped: usize,
    pub cases: Vec<Judged>,
}

/// A case and its verdict.
#[derive(Debug, Serialize)]
pub struct Judged {
    pub name: String,
    pub asks: String,
    #[serde(flatten)]
    pub verdict: Verdict,
}

#[derive(Debug, Serialize)]
#[serde(tag = "verdict", content = "why", rename_all = "lowercase")]
pub enum Verdict {
    Passed,
    Failed(String),
    Skipped(String),
}

impl Report {
    pub fn new(subject: String, label: String, sha256: Option<String>, cases: Vec<Judged>) -> Self {
        let count = |is: fn(&Verdict) -> bool| cases.iter().filter(|case| is(&case.verdict)).count();
        let (passed, failed) = (count(|v| matches!(v, Verdict::Passed)), count(|v| matches!(v, Verdict::Failed(_))));
        let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        Report {
            subject,
            label,
            sha256,
            contract: contract::NAME,
            contract_sha256: contract::sha256(),
            suite: kv_store_conformance::VERSION,
            date: date(seconds / 86_400),
            compile_ms: None,
            times: None,
            filter: None,
            passed,
            failed,
            skipped: cases.len() - passed - failed,
            cases,
        }
    }

    /// Write the report, and the badge beside it: `badge.json` and `badge.svg`.
    pub fn write(&self, path: &Path) -> Outcome {
        if path.extension().is_none_or(|extension| extension != "json") {
            return Err(Failure::unable(format!("{}: the report's name must end in .json", path.display())));
        }
        let text = serde_json::to_string_pretty(self).map_err(Failure::unable)? + "\n";
        for (path, text) in [(path.to_owned(), text), (path.with_extension("svg"), self.badge())] {
            std::fs::write(&path, text).map_err(|error| Failure::unable(format!("{}: {error}", path.display())))?;
        }
        Ok(())
    }

    /// A picture of two lines. Whoever wants to know more, or to be sure, runs the check.
    fn badge(&self) -> String {
        let outcome = match self.failed {
            0 if self.filter.is_some() => format!("{} of the cases passed", self.passed),
            0 => format!("{} passed, {} skipped", self.passed, self.skipped),
            failed => format!("{failed} failed"),
        };
        let colour = if self.failed == 0 { "#2e7d32" } else { "#b71c1c" };
        let short = |digest: &str| digest.chars().take(12).collect::<String>();
        let first = format!("{} ({}) · {outcome}", self.contract, short(&self.contract_sha256));
        let digest = self.sha256.as_deref().map_or("native code".into(), |digest| format!("sha256 {}", short(digest)));
        let second = format!("{digest} · suite {} · {}", self.suite, self.date);
        // Wide enough for the wider of the two in a font that is not known: 6.6 px for each character of 11 px.
        let width = 16.0 + 6.6 * first.chars().count().max(second.chars().count()) as f64;
        let title =
            format!("kv-store check: {outcome}; {} {}", self.contract, self.sha256.as_deref().unwrap_or_default());
        let mut svg = String::new();
        let _ = write!(
            svg,
            r##"<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0}" height="40" role="img" aria-label="{label}">
<title>{label}</title>
<rect width="100%" height="20" fill="{colour}"/><rect y="20" width="100%" height="20" fill="#444"/>
<g fill="#fff" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11"><text x="8" y="14">{first}</text><text x="8" y="34">{second}</text></g>
</svg>
"##,
            label = escaped(&title),
            first = escaped(&first),
            second = escaped(&second),
        );
        svg
    }
}

/// Text between the tags of XML, and within double quotes.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// The date of a day, counted from 1970-01-01, in the Gregorian calendar.
fn date(days: u64) -> String {
    // Days since 0000-03-01, so that leap days come last.
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let (year, month) = (era * 400 + year + u64::from(month >= 10), if month < 10 { month + 3 } else { month - 9 });
    format!("{year:04}-{month:02}-{day:02}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (days, expected) in [
            (0, "1970-01-01"),
            (58, "1970-02-28"),
            (59, "1970-03-01"),
            (11_016, "2000-02-29"),
            (11_017, "2000-03-01"),
            (20_514, "2026-03-02"),
            (47_540, "2100-02-28"),
            (47_541, "2100-03-01"),
        ] {
            assert_eq!(date(days), expected, "{days}");
        }
    }

    #[test]
    fn a_badge_is_well_formed_whatever_is_named() {
        let cases = vec![Judged { name: "a".into(), asks: "b".into(), verdict: Verdict::Passed }];
        let mut report = Report::new("x".into(), "<&\">".into(), Some("0123456789abcdef".into()), cases);
        let badge = report.badge();
        assert!(badge.contains("1 passed, 0 skipped") && badge.contains("sha256 0123456789ab ·"), "{badge}");
        assert!(badge.contains(&report.date) && badge.contains(contract::NAME) && badge.contains(report.suite));
        assert!(badge.contains(&contract::sha256()[..12]), "{badge}");
        report.failed = 1;
        assert!(report.badge().contains("1 failed"));
        assert_eq!(escaped("<&\">"), "&lt;&amp;&quot;&gt;");
    }
}
