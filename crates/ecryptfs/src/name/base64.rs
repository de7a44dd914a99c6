//! eCryptfs's base64: another alphabet, and zeros instead of a padding sign at the end.

const ALPHABET: &[u8; 64] = b"-.0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// Encodes three bytes as four characters, the most significant bits first.
pub(super) fn encode(bytes: &[u8], out: &mut Vec<u8>) {
    for group in bytes.chunks(3) {
        let mut padded = [0; 4];
        padded[1..=group.len()].copy_from_slice(group);
        let bits = u32::from_be_bytes(padded);
        out.extend([18, 12, 6, 0].map(|shift| ALPHABET[(bits >> shift & 63) as usize]));
    }
}

/// Returns `None` for a character of another alphabet, or an incomplete group.
pub(super) fn decode(text: &[u8]) -> Option<Vec<u8>> {
    let (groups, rest) = text.as_chunks::<4>();
    let mut out = Vec::with_capacity(groups.len() * 3);
    for group in groups {
        let mut bits = 0;
        for character in group {
            bits = bits << 6 | u32::from(value(*character)?);
        }
        out.extend_from_slice(&bits.to_be_bytes()[1..]);
    }
    rest.is_empty().then_some(out)
}

fn value(character: u8) -> Option<u8> {
    match character {
        b'-' => Some(0),
        b'.' => Some(1),
        b'0'..=b'9' => Some(character - b'0' + 2),
        b'A'..=b'Z' => Some(character - b'A' + 12),
        b'a'..=b'z' => Some(character - b'a' + 38),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_character_has_its_value() {
        for (nth, &character) in ALPHABET.iter().enumerate() {
            assert_eq!(value(character), u8::try_from(nth).ok());
        }
        assert_eq!((0..=255).filter(|&byte| value(byte).is_some()).count(), 64);
    }
}
