//! What is wrong with a header, in words, and what could be done.

mod areas;

use serde::Serialize;

use crate::lock::LockTo;
use crate::{Error, ErrorKind, Header, ReadAt, Result, luks1};
use underseal_error::with_causes;

/// What a look at a header and its keyslots found.
#[derive(Debug, Clone, Serialize)]
pub struct Check {
    /// `luks1` or `luks2`; none where no header could be read.
    pub format: Option<&'static str>,
    /// Nothing of what was found is damage.
    pub sound: bool,
    /// What was found, the worst first.
    pub findings: Vec<Finding>,
}

/// Something to know about a header.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Whether it is damage; else it is told, and the header is sound.
    pub damage: bool,
    /// The part of the header, by its name there.
    pub place: String,
    /// What is the matter with it.
    pub what: String,
    /// What could be done.
    pub remedy: String,
}

const REPAIR: &str = "`underseal header repair` makes it good";
const RESTORE: &str = "`underseal header restore`, if there is a backup of the header";

impl Check {
    /// Looks at the header on `device`; `data_size` is the size of what holds the data, where that
    /// is known.
    ///
    /// # Errors
    /// `Busy`, `Io`: what is wrong with the header itself is found, not failed on.
    pub fn of(device: &(impl ReadAt + ?Sized), data_size: Option<u64>) -> Result<Self> {
        let _lock = device.lock(LockTo::Read)?;
        let mut findings = Vec::new();
        let format = match Header::parse(device) {
            Ok(header) => {
                look(device, &header, data_size, &mut findings)?;
                Some(header.info().format)
            }
            Err(e)
                if matches!(
                    e.kind(),
                    ErrorKind::Io | ErrorKind::Busy | ErrorKind::Locked | ErrorKind::Memory
                ) =>
            {
                return Err(e);
            }
            Err(e) => {
                findings.push(unreadable(device, &e)?);
                None
            }
        };
        findings.sort_by_key(|finding| !finding.damage);
        Ok(Self { format, sound: findings.iter().all(|finding| !finding.damage), findings })
    }
}

fn damage(place: impl Into<String>, what: impl Into<String>, remedy: impl Into<String>) -> Finding {
    Finding { damage: true, place: place.into(), what: what.into(), remedy: remedy.into() }
}

fn note(place: impl Into<String>, what: impl Into<String>, remedy: impl Into<String>) -> Finding {
    Finding { damage: false, ..damage(place, what, remedy) }
}

/// Why there is no header to look at.
fn unreadable(device: &(impl ReadAt + ?Sized), e: &Error) -> Result<Finding> {
    let remedy = match e.kind() {
        ErrorKind::NoHeader => "name the header's file with --header, or restore a backup of the header",
        ErrorKind::Ambiguous => {
            "`underseal header repair` writes the volume's header over what is there now; look at that first"
        }
        ErrorKind::TooSmall => "compare the size with the original's: was it cut short?",
        _ if luks1::repairs(device)?.is_some_and(|repairs| repairs.is_ok()) => REPAIR,
        ErrorKind::Unsupported => "another build may know it",
        _ => RESTORE,
    };
    Ok(damage("header", with_causes(e).to_string(), remedy))
}

fn look(
    device: &(impl ReadAt + ?Sized),
    header: &Header,
    data_size: Option<u64>,
    findings: &mut Vec<Finding>,
) -> Result<()> {
    match header {
        Header::Luks1(_) => {
            if let Some(Ok(repairs)) = luks1::repairs(device)? {
                findings.extend(repairs.into_iter().map(|what| damage("header", what, REPAIR)));
            }
        }
        Header::Luks2(luks2) => {
            if let Some(why) = luks2.damage() {
                let (what, remedy) = (
                    "one of the two copies is bad",
                    "opening the volume for writing, or `underseal header repair`, writes it again from the other",
                );
                findings.push(damage("header", format!("{what}: {why}"), remedy));
            } else if luks2.copies_differ(device)? {
                let what =
                    "both copies are sound and of the same age, but say different things; the first counts";
                findings.push(damage("header", what, REPAIR));
            }
            for place in luks2.leftovers() {
                findings.push(damage(place, "has members of another key derivation", REPAIR));
            }
        }
    }
    let info = header.info();
    for name in &info.requirements {
        let what = format!("the header requires {}", crate::printable(name));
        findings.push(note("config.requirements", what, "`underseal info` shows what the volume asks for"));
    }
    if info.keyslots.is_empty() {
        let what = "no keyslot is in use: no passphrase opens the volume";
        findings.push(note("keyslots", what, RESTORE));
    }
    if let Some(size) = data_size {
        data(&info, size, findings);
    }
    areas::look(device, header, findings)?;
    let unknown = info.segments.iter().filter_map(|s| s.problem.as_ref());
    for why in unknown.chain(info.keyslots.iter().filter_map(|slot| slot.problem.as_ref())) {
        let (place, what) = why.split_once(": ").unwrap_or(("header", why));
        findings.push(note(place, what, "another build may know it"));
    }
    Ok(())
}

/// Whether the data lies where the header says.
fn data(info: &crate::Info, size: u64, findings: &mut Vec<Finding>) {
    const CUT: &str = "compare the image's size with the original's: was it cut short?";
    for segment in info.segments.iter().filter(|s| s.flags.iter().all(|flag| !flag.starts_with("backup-"))) {
        let place = format!("segments.{}", segment.number);
        let begin = segment.offset;
        match segment.size.map(|len| begin.saturating_add(len)) {
            _ if begin >= size => {
                let what = format!("the data begins at byte {begin}, but its device ends at byte {size}");
                findings.push(damage(place + ".offset", what, CUT));
            }
            Some(end) if end > size => {
                let what = format!("the data ends at byte {end}, but its device at byte {size}");
                findings.push(damage(place + ".size", what, CUT));
            }
            None if !(size - begin).is_multiple_of(segment.sector_size.unwrap_or(512) as u64) => {
                let unit = segment.sector_size.unwrap_or(512);
                let what =
                    format!("{} bytes of data are no whole number of {unit}-byte sectors", size - begin);
                findings.push(damage(place, what, CUT));
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests;
