//! Times as an S3 server writes them, by the calendar of the ISO.

const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/// The year in which histories are, and its first day.
const LATE_YEAR: u64 = 2033;
const LATE: u64 = 23_011;

/// A moment of the calendar.
struct Date {
    /// Days since 1970.
    day: u64,
    year: u64,
    /// From 0.
    month: usize,
    date: u64,
    /// Of the day.
    second: u64,
}

/// Of the months of a year.
fn lens(year: u64) -> [u64; 12] {
    let is_leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    [31, 28 + u64::from(is_leap), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]
}

impl Date {
    fn of(seconds: u64) -> Self {
        let (day, second) = (seconds / 86_400, seconds % 86_400);
        // Most are in the years of histories: no other year is counted there.
        let (mut left, mut year, mut month) = match day.checked_sub(LATE) {
            Some(left) => (left, LATE_YEAR, 0),
            None => (day, 1970, 0),
        };
        while left >= lens(year).iter().sum() {
            left -= lens(year).iter().sum::<u64>();
            year += 1;
        }
        while left >= lens(year)[month] {
            left -= lens(year)[month];
            month += 1;
        }
        Date { day, year, month, date: left + 1, second }
    }
}

/// Of headers.
pub fn header(seconds: u64) -> String {
    let Date { day, year, month, date, second } = Date::of(seconds);
    let (name, of_year) = (DAYS[(day % 7) as usize], MONTHS[month]);
    format!("{name}, {date:02} {of_year} {year} {}", time(second)) + " GMT"
}

fn time(second: u64) -> String {
    format!("{:02}:{:02}:{:02}", second / 3600, second / 60 % 60, second % 60)
}

/// Of XML.
pub fn xml(micros: u64) -> String {
    let Date { year, month, date, second, .. } = Date::of(micros / 1_000_000);
    format!("{year}-{:02}-{date:02}T{}.{:03}Z", month + 1, time(second), micros / 1000 % 1000)
}

/// As requests are signed with.
pub fn stamp(seconds: u64) -> String {
    let Date { year, month, date, second, .. } = Date::of(seconds);
    format!("{year:04}{:02}{date:02}T{}Z", month + 1, time(second).replace(':', ""))
}

/// Seconds since 1970 of the header with which a request is signed.
pub fn of_stamp(stamp: &str) -> Option<u64> {
    let number = |from: usize, to: usize| stamp.get(from..to)?.parse::<u64>().ok();
    let (year, month, date) = (number(0, 4)?, number(4, 6)?, number(6, 8)?);
    let second = number(9, 11)? * 3600 + number(11, 13)? * 60 + number(13, 15)?;
    let month = usize::try_from(month).ok()?.checked_sub(1)?;
    if !(1970..10_000).contains(&year) || !(1..=*lens(year).get(month)?).contains(&date) || second >= 86_400 {
        return None;
    }
    let (first, before) = if year >= LATE_YEAR { (LATE_YEAR, LATE) } else { (1970, 0) };
    let days: u64 = before + (first..year).map(|year| lens(year).iter().sum::<u64>()).sum::<u64>();
    let days = days + lens(year)[..month].iter().sum::<u64>() + date - 1;
    Some(days * 86_400 + second)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_and_read() {
        assert_eq!(header(1_369_353_600), "Fri, 24 May 2013 00:00:00 GMT");
        assert_eq!(header(951_827_696), "Tue, 29 Feb 2000 12:34:56 GMT");
        assert_eq!(xml(951_827_696_123_456), "2000-02-29T12:34:56.123Z");
        assert_eq!(header(LATE * 86_400), "Sat, 01 Jan 2033 00:00:00 GMT");
        for seconds in [0, 951_827_696, LATE * 86_400 - 1, LATE * 86_400, 2_000_000_000, 1_735_689_599] {
            assert_eq!(of_stamp(&stamp(seconds)), Some(seconds), "{}", stamp(seconds));
        }
        assert_eq!((of_stamp("20130532T000000Z"), of_stamp("x")), (None, None));
    }
}
