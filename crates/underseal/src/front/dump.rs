//! `luksDump`: a header in cryptsetup's layout, since scripts parse it.

use std::fmt::Write as _;

use serde_json::Value;
use underseal_volume::Info;
use underseal_volume::info::{DigestInfo, KdfInfo, KeyslotInfo, SegmentInfo, TokenInfo};

use crate::output::printable;

/// Bytes on one line.
const ROW: usize = 16;
/// LUKS1 lists all of its keyslots, used or not.
const LUKS1_SLOTS: u32 = 8;

/// Returns the output of `luksDump` for a header that was read from `name`.
pub(super) fn text(info: &Info, name: &str) -> String {
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = if info.format == "luks1" { luks1(&mut out, info, name) } else { luks2(&mut out, info) };
    out
}

fn luks1(out: &mut String, info: &Info, name: &str) -> std::fmt::Result {
    let segment = info.segments.first();
    let cipher = segment.and_then(|s| s.cipher.as_deref()).unwrap_or_default();
    let (cipher, mode) = cipher.split_once('-').unwrap_or((cipher, ""));
    let digest = info.digests.first();
    let kdf = digest.and_then(|d| d.kdf.as_ref());
    writeln!(out, "LUKS header information for {}\n", printable(name))?;
    writeln!(out, "Version:       \t1\nCipher name:   \t{cipher}\nCipher mode:   \t{mode}")?;
    writeln!(out, "Hash spec:     \t{}", kdf.and_then(|k| k.hash).unwrap_or_default())?;
    writeln!(out, "Payload offset:\t{}", segment.map_or(0, |s| s.offset / 512))?;
    writeln!(out, "MK bits:       \t{}", segment.and_then(|s| s.key_bits).unwrap_or(0))?;
    let hex = digest.and_then(|d| d.digest.as_deref()).unwrap_or_default();
    // A digest of 20 bytes has its line to itself.
    writeln!(out, "MK digest:     \t{}", rows(hex, hex.len(), ""))?;
    let salt = kdf.map_or("", |k| &k.salt);
    writeln!(out, "MK salt:       \t{}", rows(salt, ROW, "               \t"))?;
    writeln!(out, "MK iterations: \t{}", kdf.map_or(0, |k| k.iterations))?;
    writeln!(out, "UUID:          \t{}\n", printable(&info.uuid))?;
    for number in 0..LUKS1_SLOTS {
        let Some(slot) = info.keyslots.iter().find(|slot| slot.number == number) else {
            writeln!(out, "Key Slot {number}: DISABLED")?;
            continue;
        };
        let kdf = slot.kdf.as_ref();
        writeln!(out, "Key Slot {number}: ENABLED")?;
        writeln!(out, "\tIterations:         \t{}", kdf.map_or(0, |k| k.iterations))?;
        let salt = kdf.map_or("", |k| &k.salt);
        writeln!(out, "\tSalt:               \t{}", rows(salt, ROW, "\t                      \t"))?;
        writeln!(out, "\tKey material offset:\t{}", slot.area_offset / 512)?;
        writeln!(out, "\tAF stripes:            \t{}", slot.af_stripes.unwrap_or(0))?;
    }
    Ok(())
}

fn luks2(out: &mut String, info: &Info) -> std::fmt::Result {
    let or = |text: Option<&str>, none: &str| match text {
        Some(text) if !text.is_empty() => printable(text),
        _ => none.to_owned(),
    };
    writeln!(out, "LUKS header information\nVersion:       \t2")?;
    writeln!(out, "Epoch:         \t{}", info.epoch.unwrap_or(0))?;
    writeln!(out, "Metadata area: \t{} [bytes]", info.metadata_size)?;
    writeln!(out, "Keyslots area: \t{} [bytes]", info.keyslots_size)?;
    writeln!(out, "UUID:          \t{}", or(Some(&info.uuid), "(no UUID)"))?;
    writeln!(out, "Label:         \t{}", or(info.label.as_deref(), "(no label)"))?;
    writeln!(out, "Subsystem:     \t{}", or(info.subsystem.as_deref(), "(no subsystem)"))?;
    writeln!(out, "Flags:       \t{}", or(Some(&info.flags.join(" ")), "(no flags)"))?;
    if !info.requirements.is_empty() {
        writeln!(out, "Requirements:\t{}", printable(&info.requirements.join(" ")))?;
    }
    writeln!(out, "\nData segments:")?;
    info.segments.iter().try_for_each(|segment| data_segment(out, segment))?;
    writeln!(out, "\nKeyslots:")?;
    for slot in &info.keyslots {
        keyslot(out, slot, info)?;
    }
    writeln!(out, "Tokens:")?;
    info.tokens.iter().try_for_each(|token| one_token(out, token, info.metadata.as_ref()))?;
    writeln!(out, "Digests:")?;
    info.digests.iter().try_for_each(|digest| one_digest(out, digest))
}

fn data_segment(out: &mut String, segment: &SegmentInfo) -> std::fmt::Result {
    let length = segment.size.map_or_else(|| "(whole device)".to_owned(), |size| format!("{size} [bytes]"));
    writeln!(out, "  {}: {}", segment.number, printable(&segment.kind))?;
    writeln!(out, "\toffset: {} [bytes]\n\tlength: {length}", segment.offset)?;
    if let Some(cipher) = &segment.cipher {
        writeln!(out, "\tcipher: {}", printable(cipher))?;
    }
    if let Some(sector) = segment.sector_size {
        writeln!(out, "\tsector: {sector} [bytes]")?;
    }
    if let Some(integrity) = &segment.integrity {
        writeln!(out, "\tintegrity: {}", printable(integrity))?;
    }
    if !segment.flags.is_empty() {
        writeln!(out, "\tflags : {}", printable(&segment.flags.join(", ")))?;
    }
    Ok(())
}

fn keyslot(out: &mut String, slot: &KeyslotInfo, info: &Info) -> std::fmt::Result {
    const ELSEWHERE: &str = "\t            ";
    let digest = info.digests.iter().find(|digest| Some(digest.number) == slot.digest);
    let unbound = if digest.is_some_and(|digest| digest.segments.is_empty()) { " (unbound)" } else { "" };
    writeln!(out, "  {}: {}{unbound}", slot.number, printable(&slot.kind))?;
    writeln!(out, "\tKey:        {} bits\n\tPriority:   {}", slot.key_bits, slot.priority)?;
    if let Some(cipher) = &slot.cipher {
        writeln!(out, "\tCipher:     {}", printable(cipher))?;
        writeln!(out, "\tCipher key: {} bits", slot.cipher_key_bits.unwrap_or(0))?;
    }
    if let Some(kdf) = &slot.kdf {
        writeln!(out, "\tPBKDF:      {}", kdf.kind)?;
        cost(out, kdf)?;
        writeln!(out, "\tSalt:       {}", rows(&kdf.salt, ROW, ELSEWHERE))?;
    }
    if let (Some(stripes), Some(hash)) = (slot.af_stripes, slot.af_hash) {
        writeln!(out, "\tAF stripes: {stripes}\n\tAF hash:    {hash}")?;
    }
    writeln!(out, "\tArea offset:{} [bytes]\n\tArea length:{} [bytes]", slot.area_offset, slot.area_size)?;
    slot.digest.map_or(Ok(()), |digest| writeln!(out, "\tDigest ID:  {digest}"))
}

fn cost(out: &mut String, kdf: &KdfInfo) -> std::fmt::Result {
    match (kdf.hash, kdf.memory_kib, kdf.lanes) {
        (Some(hash), ..) => writeln!(out, "\tHash:       {hash}\n\tIterations: {}", kdf.iterations),
        (None, memory, lanes) => {
            let (memory, lanes) = (memory.unwrap_or(0), lanes.unwrap_or(0));
            writeln!(out, "\tTime cost:  {}\n\tMemory:     {memory}\n\tThreads:    {lanes}", kdf.iterations)
        }
    }
}

fn one_token(out: &mut String, token: &TokenInfo, metadata: Option<&Value>) -> std::fmt::Result {
    writeln!(out, "  {}: {}", token.number, printable(&token.kind))?;
    let own = metadata.and_then(|all| all.get("tokens")?.get(token.number.to_string()));
    if token.kind == "luks2-keyring"
        && let Some(name) = own.and_then(|token| token.get("key_description")?.as_str())
    {
        writeln!(out, "\tKey description: {}", printable(name))?;
    }
    token.keyslots.iter().try_for_each(|slot| writeln!(out, "\tKeyslot:    {slot}"))
}

fn one_digest(out: &mut String, digest: &DigestInfo) -> std::fmt::Result {
    const ELSEWHERE: &str = "\t            ";
    writeln!(out, "  {}: {}", digest.number, printable(&digest.kind))?;
    if let Some(kdf) = &digest.kdf {
        cost(out, kdf)?;
        writeln!(out, "\tSalt:       {}", rows(&kdf.salt, ROW, ELSEWHERE))?;
    }
    let Some(hex) = &digest.digest else { return Ok(()) };
    writeln!(out, "\tDigest:     {}", rows(hex, ROW, ELSEWHERE))
}

/// Formats hex digits as bytes, each followed by a space, `row` of them on a line; further lines
/// begin with `indent`.
fn rows(hex: &str, row: usize, indent: &str) -> String {
    let bytes: Vec<&str> = (0..hex.len() / 2).filter_map(|i| hex.get(2 * i..2 * i + 2)).collect();
    let lines: Vec<String> =
        bytes.chunks(row.max(1)).map(|line| line.iter().map(|byte| format!("{byte} ")).collect()).collect();
    lines.join(&format!("\n{indent}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_stand_in_rows() {
        assert_eq!(rows("0a0b0c", 2, "--"), "0a 0b \n--0c ");
        assert_eq!(rows("", 16, "--"), "");
    }
}
