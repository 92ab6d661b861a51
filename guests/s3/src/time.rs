//! Dates as S3 writes them.

/// `20130524T000000Z`, whose first eight characters are the day.
pub fn stamp(nanoseconds: u64) -> String {
    let seconds = nanoseconds / 1_000_000_000;
    let (year, month, day) = civil(seconds / 86_400);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year:04}{month:02}{day:02}T{hour:02}{minute:02}{second:02}Z")
}

/// Seconds since 1970 of the header Date: `Fri, 24 May 2013 00:00:00 GMT`.
pub fn of_header(text: &str) -> Option<u64> {
    const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let mut words = text.split_once(", ")?.1.split([' ', ':']);
    let mut number = || words.next()?.parse::<u64>().ok();
    let day = number()?;
    let month = words.next()?;
    let month = MONTHS.iter().position(|name| *name == month)? as u64 + 1;
    let mut number = || words.next()?.parse::<u64>().ok();
    let (year, hour, minute, second) = (number()?, number()?, number()?, number()?);
    if !(1970..10_000).contains(&year) || !is_time(day, hour, minute, second) {
        return None;
    }
    Some(days(year, month, day) * 86_400 + hour * 3600 + minute * 60 + second)
}

/// Nanoseconds since 1970 of a time in XML: `2013-05-24T00:00:00.000Z`.
pub fn of_xml(text: &str) -> Option<u64> {
    let (date, time) = text.strip_suffix('Z')?.split_once('T')?;
    let (time, fraction) = time.split_once('.').unwrap_or((time, ""));
    let three = |text: &str, by: char| {
        let mut parts = text.split(by).map(|part| part.parse::<u64>().ok());
        let three = [parts.next()??, parts.next()??, parts.next()??];
        parts.next().is_none().then_some(three)
    };
    let ([year, month, day], [hour, minute, second]) = (three(date, '-')?, three(time, ':')?);
    let nanoseconds = format!("{fraction:0<9}").get(..9)?.parse::<u64>().ok()?;
    if !(1970..2500).contains(&year) || !(1..=12).contains(&month) || !is_time(day, hour, minute, second) {
        return None;
    }
    Some((days(year, month, day) * 86_400 + hour * 3600 + minute * 60 + second) * 1_000_000_000 + nanoseconds)
}

fn is_time(day: u64, hour: u64, minute: u64, second: u64) -> bool {
    (1..=31).contains(&day) && hour <= 23 && minute <= 59 && second <= 60
}

/// Year, month and day of a day since 1970. Years begin in March here, so that a leap day is the last of its year.
fn civil(day: u64) -> (u64, u64, u64) {
    let day = day + 719_468;
    let (era, day) = (day / 146_097, day % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let (date, month) = (day - (153 * month + 2) / 5 + 1, if month < 10 { month + 3 } else { month - 9 });
    (era * 400 + year + u64::from(month <= 2), month, date)
}

/// Days from 1970 to a date.
fn days(year: u64, month: u64, day: u64) -> u64 {
    let year = year - u64::from(month <= 2);
    let (era, of_era) = (year / 400, year % 400);
    let of_year = (153 * (if month > 2 { month - 3 } else { month + 9 }) + 2) / 5 + day - 1;
    (era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year).saturating_sub(719_468)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_written_and_read() {
        assert_eq!(stamp(1_369_353_600_000_000_000), "20130524T000000Z");
        assert_eq!(stamp(951_827_696_123_456_789), "20000229T123456Z");
        assert_eq!(of_header("Fri, 24 May 2013 00:00:00 GMT"), Some(1_369_353_600));
        assert_eq!(of_header("Tue, 29 Feb 2000 12:34:56 GMT"), Some(951_827_696));
        for text in
            ["", "yesterday", "Fri, 24 Foo 2013 00:00:00 GMT", "Fri, 99 May 2013 00:00:00 GMT", "x, 1 Jan 1 1:1:1 GMT"]
        {
            assert_eq!(of_header(text), None, "{text}");
        }
        assert_eq!(of_xml("2013-05-24T00:00:00.000Z"), Some(1_369_353_600_000_000_000));
        assert_eq!(of_xml("2000-02-29T12:34:56Z"), Some(951_827_696_000_000_000));
        assert_eq!(of_xml("2000-02-29T12:34:56.123456789123Z"), Some(951_827_696_123_456_789));
        for text in [
            "",
            "Z",
            "2013-05-24",
            "2013-05-24T00:00Z",
            "2013-13-24T00:00:00Z",
            "9999-01-01T00:00:00Z",
            "1-1-1-1T1:1:1Z",
        ] {
            assert_eq!(of_xml(text), None, "{text}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_time_is_too_strange(text in "[0-9]{0,5}-[0-9]{0,3}-[0-9]{0,3}T[0-9:]{0,9}\\PC{0,5}Z") {
            let _ = of_xml(&text);
        }

        #[test]
        fn every_day_is_itself(day in 0u64..2_900_000) {
            let (year, month, date) = civil(day);
            proptest::prop_assert_eq!(days(year, month, date), day);
        }
    }
}
