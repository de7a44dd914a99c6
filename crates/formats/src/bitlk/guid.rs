//! Windows' GUIDs and times, as its tools print them.

use std::fmt;

/// A GUID, as its bytes lie on disk: the first three fields little-endian.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Guid(pub [u8; 16]);

/// In capitals, as in the names of startup key files.
impl fmt::Display for Guid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a0, a1, a2, a3, b0, b1, c0, c1, d @ ..] = self.0;
        write!(f, "{a3:02X}{a2:02X}{a1:02X}{a0:02X}-{b1:02X}{b0:02X}-{c1:02X}{c0:02X}-")?;
        let [d0, d1, rest @ ..] = d;
        write!(f, "{d0:02X}{d1:02X}-")?;
        rest.iter().try_for_each(|byte| write!(f, "{byte:02X}"))
    }
}

impl fmt::Debug for Guid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A FILETIME: units of 100 ns since 1601-01-01, UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileTime(pub u64);

/// 1970-01-01 in these units.
const UNIX: u64 = 116_444_736_000_000_000;

impl FileTime {
    /// Seconds since 1970-01-01, rounded down.
    pub fn unix_seconds(self) -> i64 {
        let seconds = |units: u64| i64::try_from(units / 10_000_000).unwrap_or(i64::MAX);
        if self.0 >= UNIX { seconds(self.0 - UNIX) } else { -seconds(UNIX - self.0 + 9_999_999) }
    }
}

/// As `2019-12-31 23:59:59 UTC`.
impl fmt::Display for FileTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.unix_seconds();
        let (days, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
        let (year, month, day) = date(days);
        let (hour, minute) = (second / 3600, second / 60 % 60);
        write!(f, "{year}-{month:02}-{day:02} {hour:02}:{minute:02}:{:02} UTC", second % 60)
    }
}

/// Year, month and day of a number of days since 1970-01-01, in the Gregorian calendar. Years are
/// counted from March on, so that a leap day ends its year; 400 years have 146,097 days.
fn date(days: i64) -> (i64, i64, i64) {
    let from_march = days + 719_468;
    let (era, day) = (from_march.div_euclid(146_097), from_march.rem_euclid(146_097));
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let in_year = day - (365 * year + year / 4 - year / 100);
    let month = (5 * in_year + 2) / 153;
    let day = in_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (400 * era + year + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_dates_of_the_calendar() {
        for (units, expected) in [
            (UNIX, "1970-01-01 00:00:00 UTC"),
            (132_223_104_000_000_000, "2020-01-01 00:00:00 UTC"),
            (UNIX + 951_782_399 * 10_000_000, "2000-02-28 23:59:59 UTC"),
            (UNIX + 951_782_400 * 10_000_000, "2000-02-29 00:00:00 UTC"),
            (0, "1601-01-01 00:00:00 UTC"),
        ] {
            assert_eq!(FileTime(units).to_string(), expected);
        }
    }

    #[test]
    fn the_first_three_fields_of_a_guid_are_little_endian() {
        let guid = Guid(*b"\x3b\xd6\x67\x49\x29\x2e\xd8\x4a\x83\x99\xf6\xa3\x39\xe3\xd0\x01");
        assert_eq!(guid.to_string(), "4967D63B-2E29-4AD8-8399-F6A339E3D001");
    }
}
