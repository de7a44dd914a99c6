//! The end of validity of a certificate revocation list (RFC 5280, 5.1). rustls checks it, too, but
//! does not report it.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A time in UTC.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Moment {
    since_epoch: Duration,
    /// The time in a form for people.
    pub(super) shown: String,
}

impl Moment {
    pub(super) fn is_past(&self) -> bool {
        SystemTime::now().duration_since(UNIX_EPOCH).is_ok_and(|now| now > self.since_epoch)
    }

    /// Parses a `UTCTime` or `GeneralizedTime`.
    fn parse(tag: u8, text: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(text).ok()?.strip_suffix('Z')?;
        let whole = match tag {
            GENERALIZED_TIME => text.to_owned(),
            // Two-digit years stand for 1950 to 2049.
            _ => format!("{}{text}", if text.as_bytes().first()? < &b'5' { "20" } else { "19" }),
        };
        if whole.len() != 14 || !whole.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        let number = |from: usize, to: usize| whole[from..to].parse::<u64>().ok();
        let (year, month, day) = (number(0, 4)?, number(4, 6)?, number(6, 8)?);
        let (hour, minute, second) = (number(8, 10)?, number(10, 12)?, number(12, 14)?);
        let seconds = days(year, month, day)? * 86400 + hour * 3600 + minute * 60 + second;
        let shown = format!("{year}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC");
        Some(Self { since_epoch: Duration::from_secs(seconds), shown })
    }
}

/// Returns the days from 1970 to a date of the Gregorian calendar.
fn days(year: u64, month: u64, day: u64) -> Option<u64> {
    if year < 1970 || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    // Years are counted from March, so that the leap day is the last.
    let year = if month <= 2 { year - 1 } else { year };
    let days = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    (365 * year + year / 4 - year / 100 + year / 400 + days).checked_sub(719_468)
}

const INTEGER: u8 = 0x02;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
const SEQUENCE: u8 = 0x30;

/// Returns the time of the next list, from which on this list is invalid; `None` where the list has
/// no such field.
pub(super) fn next_update(list: &[u8]) -> Option<Moment> {
    let (list, _) = expect(list, SEQUENCE)?;
    let (rest, _) = expect(list, SEQUENCE)?;
    // version, signature, issuer, thisUpdate, nextUpdate.
    let rest = expect(rest, INTEGER).map_or(rest, |(_, rest)| rest);
    let (_, rest) = expect(rest, SEQUENCE)?;
    let (_, rest) = expect(rest, SEQUENCE)?;
    let (_, _, rest) = time(rest)?;
    let (tag, text, _) = time(rest)?;
    Moment::parse(tag, text)
}

fn time(from: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (tag, content, rest) = element(from)?;
    matches!(tag, UTC_TIME | GENERALIZED_TIME).then_some((tag, content, rest))
}

/// Returns the contents of the first element, if it has the tag `kind`, and the bytes behind it.
fn expect(from: &[u8], kind: u8) -> Option<(&[u8], &[u8])> {
    let (tag, content, rest) = element(from)?;
    (tag == kind).then_some((content, rest))
}

/// Returns the first element's tag and contents, and the bytes behind it.
fn element(from: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, rest) = from.split_first()?;
    let (&first, rest) = rest.split_first()?;
    let (len, rest) = match first {
        0..=0x7f => (usize::from(first), rest),
        0x81..=0x84 => {
            let (len, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
            (len.iter().fold(0, |len, byte| len << 8 | usize::from(*byte)), rest)
        }
        _ => return None,
    };
    let (content, rest) = rest.split_at_checked(len)?;
    Some((tag, content, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_read() {
        for (tag, text, seconds, shown) in [
            (UTC_TIME, "700101000000Z", 0, "1970-01-01 00:00:00 UTC"),
            (UTC_TIME, "250131235959Z", 1_738_367_999, "2025-01-31 23:59:59 UTC"),
            (UTC_TIME, "240229000001Z", 1_709_164_801, "2024-02-29 00:00:01 UTC"),
            (GENERALIZED_TIME, "20500301000000Z", 2_529_705_600, "2050-03-01 00:00:00 UTC"),
        ] {
            let moment = Moment::parse(tag, text.as_bytes()).unwrap();
            assert_eq!((moment.since_epoch.as_secs(), &*moment.shown), (seconds, shown));
        }
        for text in
            ["", "Z", "2501312359Z", "250131235959", "25013123595xZ", "251331235959Z", "500101000000Z"]
        {
            assert_eq!(Moment::parse(UTC_TIME, text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn no_bytes_make_it_panic() {
        for list in [&b""[..], b"\x30", b"\x30\x84\xff\xff\xff\xff", b"\x30\x80", b"\x30\x04\x30\x02\x02\x09"]
        {
            assert_eq!(next_update(list), None);
        }
    }
}
