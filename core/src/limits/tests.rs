//! The operator guide lists every bound.

use super::given::Bounded;
use super::*;

#[test]
fn the_operator_guide_lists_what_can_be_set_with_its_default_and_range() {
    let guide = include_str!("../../../docs/limits.md");
    for (name, default, least, most) in SETTABLE {
        let row = guide.lines().find(|line| line.starts_with(&format!("| `{name}` |")));
        let row = row.unwrap_or_else(|| panic!("docs/limits.md has no row for `{name}`"));
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        assert_eq!(&cells[2..4], [default.to_string(), format!("{least} to {most}")], "{name}");
    }
}

/// How the guide writes a bound.
pub(super) trait Shown {
    fn shown(&self, name: &str) -> String;
}

impl Shown for u64 {
    fn shown(&self, name: &str) -> String {
        let units = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (1, "bytes")];
        let unit = units.iter().find(|(unit, _)| name.contains("BYTES") && self.is_multiple_of(*unit));
        match (unit, self) {
            (Some((unit, written)), _) => format!("{} {written}", self / unit),
            (None, ..10_000) => self.to_string(),
            (None, 10_000..1_000_000) => format!("{},{:03}", self / 1000, self % 1000),
            (None, _) => format!("{},{:03},{:03}", self / 1_000_000, self / 1000 % 1000, self % 1000),
        }
    }
}

impl Shown for usize {
    fn shown(&self, name: &str) -> String {
        (*self as u64).shown(name)
    }
}

impl Shown for u32 {
    fn shown(&self, name: &str) -> String {
        u64::from(*self).shown(name)
    }
}

impl Shown for Duration {
    fn shown(&self, _name: &str) -> String {
        let units = [(86_400_000, "day"), (3_600_000, "h"), (60_000, "min"), (1000, "s"), (1, "ms")];
        let length = self.as_millis();
        let (unit, written) = units.into_iter().find(|(unit, _)| length.is_multiple_of(*unit)).unwrap();
        let many = if written == "day" && length > unit { "s" } else { "" };
        format!("{} {written}{many}", length / unit)
    }
}

#[test]
fn the_operator_guide_lists_what_is_fixed_with_its_value() {
    let guide = include_str!("../../../docs/limits.md");
    for (name, bound) in FIXED {
        let value = bound.shown(name);
        let row = guide.lines().find(|line| line.starts_with(&format!("| `{name}` |")));
        let row = row.unwrap_or_else(|| panic!("docs/limits.md has no row for `{name}`: {value}"));
        assert_eq!(row.split('|').nth(2).unwrap().trim(), value, "{name}");
    }
}

#[test]
fn what_is_out_of_range_is_refused() {
    assert!(Bounded::<1, 10>::try_from(0).is_err());
    assert!(Bounded::<1, 10>::try_from(11).is_err());
    assert_eq!(Bounded::<1, 10>::try_from(10).unwrap().0, 10);
}

#[test]
fn no_deadline_overflows() {
    let longest = Limits { deadline_ms: 86_400_000, ..Limits::default() };
    assert!(std::time::Instant::now().checked_add(longest.deadline() + time_to_move(u64::MAX)).is_some());
}
