//! The faults of a header, in words, with remedies.

mod areas;

use serde::Serialize;

use crate::lock::LockTo;
use crate::{Error, ErrorKind, Header, ReadAt, Result, luks1};
use underseal_error::with_causes;

/// The result of checking a header and its keyslots.
#[derive(Debug, Clone, Serialize)]
pub struct Check {
    /// `luks1` or `luks2`; `None` where no header can be read.
    pub format: Option<&'static str>,
    /// True when no finding is damage.
    pub sound: bool,
    /// The findings, the worst first.
    pub findings: Vec<Finding>,
}

/// A fact about a header.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// True for damage; else the finding is a note, and the header is sound.
    pub damage: bool,
    /// The part of the header, by its name in the header.
    pub place: String,
    /// The fact.
    pub what: String,
    /// The remedy.
    pub remedy: String,
}

const REPAIR: &str = "`underseal header repair` makes it good";
const RESTORE: &str = "`underseal header restore`, if there is a backup of the header";

impl Check {
    /// Checks the header on `device`; `data_size` is the size of the data's file or device, if
    /// known.
    ///
    /// # Errors
    /// `Busy`, `Io`: faults of the header itself are findings.
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

/// Returns the finding about a header that cannot be read.
fn unreadable(device: &(impl ReadAt + ?Sized), e: &Error) -> Result<Finding> {
    let remedy = match e.kind() {
        ErrorKind::NoHeader => "name the header's file with --header, or restore a backup of the header",
        ErrorKind::Ambiguous => {
            "`underseal header repair` overwrites the present bytes with the volume's header; inspect them first"
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
                    "both copies are sound and of the same age, but their contents differ; the first counts";
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
        findings.push(note("config.requirements", what, "`underseal info` shows the volume's parameters"));
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

/// Checks that the data lie within their device.
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
