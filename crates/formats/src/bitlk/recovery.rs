//! Recovery passwords: eight groups of six digits, each a 16-bit number times 11.

use underseal_cipher::Key;

use crate::Result;

/// Digits and dashes.
const LEN: usize = 55;

/// The outcome of parsing a text as a recovery password.
pub(crate) enum Recovery {
    /// The password's 16 bytes.
    Valid(Key),
    /// The text has the form, but this group, counted from 1, is mistyped.
    Mistyped(usize),
    /// The text has another form.
    Other,
}

/// Reads a recovery password, with or without a line end behind it.
///
/// Returns `Memory`.
pub(crate) fn parse(text: &str) -> Result<Recovery> {
    let text = text.strip_suffix('\n').unwrap_or(text);
    let text = text.strip_suffix('\r').unwrap_or(text);
    let bytes = text.as_bytes();
    let is_form = |(at, byte): (usize, &u8)| if at % 7 == 6 { *byte == b'-' } else { byte.is_ascii_digit() };
    if bytes.len() != LEN || !bytes.iter().enumerate().all(is_form) {
        return Ok(Recovery::Other);
    }
    let mut key = Key::zeroed(16)?;
    for (nth, (group, out)) in bytes.chunks(7).zip(key.as_mut_bytes().as_chunks_mut().0).enumerate() {
        let number = group.iter().take(6).fold(0u32, |number, digit| number * 10 + u32::from(digit - b'0'));
        match u16::try_from(number / 11) {
            Ok(half) if number % 11 == 0 => *out = half.to_le_bytes(),
            _ => return Ok(Recovery::Mistyped(nth + 1)),
        }
    }
    Ok(Recovery::Valid(key))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "042647-302313-590458-071500-554323-116567-412181-516978";

    #[test]
    fn eight_groups_are_sixteen_bytes() {
        for end in ["", "\n", "\r\n"] {
            let Recovery::Valid(key) = parse(&format!("{GOOD}{end}")).unwrap() else { panic!("{end:?}") };
            assert_eq!(hex::encode(key.as_bytes()), "250f5b6baed16419d9c465295f9296b7");
        }
    }

    #[test]
    fn what_is_not_exactly_that_is_no_recovery_password() {
        let swap = |from: &str, to: &str| GOOD.replacen(from, to, 1);
        for (text, mistyped) in [
            (swap("516978", "516979"), Some(8)),
            (swap("302313", "720896"), Some(2)),
            (swap("042647", " 42647"), None),
            (swap("042647", "+42647"), None),
            (swap("042647", "42647"), None),
            (swap("042647-", "042647 "), None),
            (format!("{GOOD}-"), None),
            (format!("{GOOD}\n\n"), None),
            (swap("042647", "04264\u{664}"), None),
            (String::new(), None),
        ] {
            match (parse(&text).unwrap(), mistyped) {
                (Recovery::Mistyped(group), Some(expected)) => assert_eq!(group, expected, "{text}"),
                (Recovery::Other, None) => {}
                _ => panic!("{text}"),
            }
        }
    }
}
