//! Sizes as people write them.

/// Parses bytes: `1048576`, `64K`, `10G`, `1TiB` (powers of 1024), `10GB` (powers of 1000), `2048s`
/// (512-byte sectors). The error describes the fault.
pub(crate) fn parse(text: &str) -> Result<u64, String> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().map_err(|_| "want bytes such as 4096, 64K, 10G or 2048s".to_owned())?;
    let factor = unit_bytes(unit).ok_or_else(|| {
        format!("{unit:?} is no unit; K, M, G, T, P are powers of 1024, KB .. of 1000, s is 512")
    })?;
    number.checked_mul(factor).ok_or_else(|| "more bytes than any file has".to_owned())
}

/// Prints bytes for people: `1008 MiB`, and the plain number where no unit divides it.
pub(crate) fn show(bytes: u64) -> String {
    let units = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let power = (bytes.trailing_zeros() / 10).min(6) as usize;
    match power.checked_sub(1) {
        Some(unit) if bytes > 0 => format!("{} {}", bytes >> (10 * power), units[unit]),
        _ => format!("{bytes} bytes"),
    }
}

/// Prints bytes for people in the largest unit that fits, with two decimals: `1.26 GiB`.
pub(crate) fn about(bytes: u64) -> String {
    let Some(unit) = (bytes.checked_ilog2().unwrap_or(0) / 10).checked_sub(1) else {
        return format!("{bytes} B");
    };
    let shift = 10 * (unit + 1);
    let hundredths = (u128::from(bytes) * 100) >> shift;
    let units = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    format!("{}.{:02} {}", hundredths / 100, hundredths % 100, units[unit as usize])
}

fn unit_bytes(unit: &str) -> Option<u64> {
    let lower = unit.to_ascii_lowercase();
    let (prefix, base) = match lower.as_str() {
        "" | "b" => return Some(1),
        "s" => return Some(512),
        unit => match (unit.strip_suffix("ib"), unit.strip_suffix('b')) {
            (Some(prefix), _) => (prefix, 1024_u64),
            (None, Some(prefix)) => (prefix, 1000),
            (None, None) => (unit, 1024),
        },
    };
    let power = ["k", "m", "g", "t", "p", "e"].iter().position(|&p| p == prefix)?;
    Some(base.pow(u32::try_from(power).ok()? + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_for_people_have_two_decimals() {
        let cases = [(0, "0 B"), (1023, "1023 B"), (1024, "1.00 KiB"), (1_353_711_616, "1.26 GiB")];
        for (bytes, text) in cases {
            assert_eq!(about(bytes), text);
        }
        assert_eq!(about(u64::MAX), "15.99 EiB");
    }

    #[test]
    fn sizes_are_read_as_people_write_them() {
        for (text, bytes) in [
            ("0", 0),
            ("512", 512),
            ("4k", 4096),
            ("64K", 64 << 10),
            ("10G", 10 << 30),
            ("1TiB", 1 << 40),
            ("10MB", 10_000_000),
            ("2048s", 1 << 20),
            ("7b", 7),
            ("15E", 15 << 60),
        ] {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn nonsense_is_refused() {
        for text in ["", "G", "-1", "1.5G", "1X", "1 G", "16E", "99999999999999999999", "1ki"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_are_shown_in_the_largest_unit_that_divides_them() {
        for (bytes, text) in [
            (0, "0 bytes"),
            (513, "513 bytes"),
            (4096, "4 KiB"),
            (1008 << 20, "1008 MiB"),
            (1 << 40, "1 TiB"),
        ] {
            assert_eq!(show(bytes), text);
        }
    }
}
