//! The description as text, in luksDump's order.

use std::fmt;

use super::{DigestInfo, Info, KdfInfo, KeyslotInfo, SegmentInfo};
use crate::text::visible;

impl fmt::Display for Info {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = |text: &Option<String>, what: &str| match text.as_deref() {
            None | Some("") => format!("(no {what})"),
            Some(text) => visible(text),
        };
        writeln!(f, "Format:         {}", self.format)?;
        writeln!(f, "UUID:           {}", visible(&self.uuid))?;
        if let Some(epoch) = self.epoch {
            writeln!(f, "Epoch:          {epoch}")?;
            writeln!(f, "Label:          {}", named(&self.label, "label"))?;
            writeln!(f, "Subsystem:      {}", named(&self.subsystem, "subsystem"))?;
        }
        writeln!(f, "Metadata area:  {} bytes", self.metadata_size)?;
        writeln!(f, "Keyslots area:  {} bytes", self.keyslots_size)?;
        if let Some(checksum) = self.checksum {
            writeln!(f, "Checksum:       {checksum}")?;
            writeln!(f, "Flags:          {}", list(&self.flags, "(no flags)"))?;
        }
        writeln!(f, "Header digest:  {}", self.header_digest)?;
        if !self.requirements.is_empty() {
            writeln!(f, "Requirements:   {}", list(&self.requirements, ""))?;
        }
        if let Some(damage) = &self.damage {
            writeln!(f, "Damage:         {damage}")?;
        }
        section(f, "Data segments", &self.segments)?;
        section(f, "Keyslots", &self.keyslots)?;
        if !self.tokens.is_empty() {
            writeln!(f, "\nTokens:")?;
        }
        for token in &self.tokens {
            writeln!(f, "  {}: {}", token.number, visible(&token.kind))?;
            row(f, "Keyslots", numbers(&token.keyslots))?;
        }
        section(f, "Digests", &self.digests)
    }
}

impl fmt::Display for SegmentInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "  {}: {}", self.number, visible(&self.kind))?;
        row(f, "Offset", format_args!("{} bytes", self.offset))?;
        match self.size {
            Some(size) => row(f, "Length", format_args!("{size} bytes"))?,
            None => row(f, "Length", "(whole device)")?,
        }
        optional(f, "Cipher", self.cipher.as_ref())?;
        optional(f, "Key bits", self.key_bits)?;
        optional(f, "Sector", self.sector_size.map(|size| format!("{size} bytes")))?;
        optional(f, "IV offset", self.iv_offset.filter(|&offset| offset != 0))?;
        optional(f, "Integrity", self.integrity.as_deref().map(visible))?;
        if !self.flags.is_empty() {
            row(f, "Flags", list(&self.flags, ""))?;
        }
        optional(f, "Problem", self.problem.as_ref())
    }
}

impl fmt::Display for KeyslotInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "  {}: {}", self.number, visible(&self.kind))?;
        row(f, "Key", format_args!("{} bits", self.key_bits))?;
        row(f, "Priority", self.priority)?;
        optional(f, "Cipher", self.cipher.as_ref())?;
        optional(f, "Cipher key", self.cipher_key_bits.map(|bits| format!("{bits} bits")))?;
        kdf(f, "PBKDF", self.kdf.as_ref())?;
        optional(f, "AF stripes", self.af_stripes)?;
        optional(f, "AF hash", self.af_hash)?;
        row(f, "Area offset", format_args!("{} bytes", self.area_offset))?;
        row(f, "Area length", format_args!("{} bytes", self.area_size))?;
        optional(f, "Digest ID", self.digest)?;
        optional(f, "Problem", self.problem.as_ref())
    }
}

impl fmt::Display for DigestInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "  {}: {}", self.number, visible(&self.kind))?;
        kdf(f, "PBKDF", self.kdf.as_ref())?;
        optional(f, "Digest", self.digest.as_ref())?;
        row(f, "Keyslots", numbers(&self.keyslots))?;
        row(f, "Segments", numbers(&self.segments))?;
        optional(f, "Problem", self.problem.as_ref())
    }
}

fn kdf(f: &mut fmt::Formatter<'_>, name: &str, kdf: Option<&KdfInfo>) -> fmt::Result {
    let Some(kdf) = kdf else { return Ok(()) };
    row(f, name, kdf.kind)?;
    optional(f, "Hash", kdf.hash)?;
    row(f, if kdf.memory_kib.is_some() { "Time cost" } else { "Iterations" }, kdf.iterations)?;
    optional(f, "Memory", kdf.memory_kib.map(|kib| format!("{kib} KiB")))?;
    optional(f, "Threads", kdf.lanes)?;
    row(f, "Salt", &kdf.salt)
}

fn section(f: &mut fmt::Formatter<'_>, title: &str, items: &[impl fmt::Display]) -> fmt::Result {
    writeln!(f, "\n{title}:")?;
    items.iter().try_for_each(|item| item.fmt(f))
}

fn optional(f: &mut fmt::Formatter<'_>, name: &str, value: Option<impl fmt::Display>) -> fmt::Result {
    value.map_or(Ok(()), |value| row(f, name, value))
}

fn row(f: &mut fmt::Formatter<'_>, name: &str, value: impl fmt::Display) -> fmt::Result {
    writeln!(f, "     {:<13}{value}", format!("{name}:"))
}

fn list(items: &[String], none: &str) -> String {
    if items.is_empty() {
        return none.into();
    }
    items.iter().map(|item| visible(item)).collect::<Vec<_>>().join(" ")
}

fn numbers(items: &[u32]) -> String {
    items.iter().map(u32::to_string).collect::<Vec<_>>().join(" ")
}
