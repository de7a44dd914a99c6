//! The check that key material looks like noise: split and encrypted, it cannot be told from noise.

use std::ops::Range;

use super::{Finding, RESTORE, damage};
use crate::{ErrorKind, Header, ReadAt, Result, af, storage};

const SECTOR: usize = 512;

pub(super) fn look(
    device: &(impl ReadAt + ?Sized),
    header: &Header,
    findings: &mut Vec<Finding>,
) -> Result<()> {
    for slot in header.info().keyslots.iter().filter(|slot| slot.af_stripes.is_some()) {
        let place = format!("keyslots.{}.area", slot.number);
        let key_len = usize::try_from(slot.key_bits / 8).unwrap_or(0);
        // The last sector may be filled in part, with zeros behind.
        let len = key_len * af::STRIPES / SECTOR * SECTOR;
        let bytes = match storage::read(device, slot.area_offset, len) {
            Ok(bytes) => bytes,
            Err(e) if e.kind() == ErrorKind::TooSmall => {
                let what = "reaches beyond the end of the header's device";
                findings.push(damage(place, what, "compare its size with the original's: was it cut short?"));
                continue;
            }
            Err(e) => return Err(e),
        };
        for range in patterns(&bytes) {
            let what = format!(
                "{} bytes at byte {} are {}: key material looks like noise, so this keyslot's passphrase is probably lost",
                range.len(),
                slot.area_offset + range.start as u64,
                kind(&bytes[range.clone()]),
            );
            findings.push(damage(place.clone(), what, format!("another keyslot; {RESTORE}")));
        }
    }
    Ok(())
}

/// Returns runs of sectors that are not noise.
fn patterns(bytes: &[u8]) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    for (at, sector) in (0..).step_by(SECTOR).zip(bytes.chunks_exact(SECTOR)) {
        if is_noise(sector) {
            continue;
        }
        match runs.last_mut() {
            Some(last) if last.end == at => last.end = at + SECTOR,
            _ => runs.push(at..at + SECTOR),
        }
    }
    runs
}

/// Returns true when the bytes of a sector are about equally frequent: Pearson's chi-squared, with
/// 255 degrees of freedom. Noise yields 255 on average and never more than 600 (beyond 10 standard
/// deviations); text yields thousands.
fn is_noise(sector: &[u8]) -> bool {
    let mut counts = [0u32; 256];
    sector.iter().for_each(|&byte| counts[usize::from(byte)] += 1);
    let squares: u32 = counts.iter().map(|count| count * count).sum();
    // The expected count of each byte is SECTOR / 256 = 2.
    squares / 2 - 512 <= 600
}

fn kind(bytes: &[u8]) -> &'static str {
    let text = |&byte: &u8| byte.is_ascii_graphic() || byte.is_ascii_whitespace();
    match bytes {
        [first, rest @ ..] if rest.iter().all(|byte| byte == first) && *first == 0 => "zeros",
        [first, rest @ ..] if rest.iter().all(|byte| byte == first) => "all the same",
        _ if bytes.iter().all(text) => "text",
        _ => "a pattern",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn noise_is_never_suspected_and_patterns_always_are() {
        let mut noise = vec![0; 4 << 20];
        crate::random::fill(&mut noise).unwrap();
        assert_eq!(patterns(&noise), []);
        let text = b"The quick brown fox jumps over the lazy dog. ".repeat(40);
        for (name, pattern) in [
            ("zeros", vec![0; 1024]),
            ("all the same", vec![0xff; 1024]),
            ("text", text[..1024].to_vec()),
            ("a pattern", [0, 1, 2, 3, 0xf0, 0x80].repeat(200)[..1024].to_vec()),
        ] {
            let mut bytes = noise[..8192].to_vec();
            bytes[1024..2048].copy_from_slice(&pattern);
            assert_eq!(patterns(&bytes), vec![1024..2048; 1], "{name}");
            assert_eq!(kind(&bytes[1024..2048]), name);
        }
    }
}
