//! Where the data of an unlocked header lie.

use std::ops::Range;

use super::place::{AREA, OLD_HIDDEN};
use super::{Chain, HEADER, Header, Mode, Place};
use crate::{Error, ErrorKind, Result, fields};

/// The header of a disk with an encrypted system: its sector 62.
const SYSTEM_HEADER: Range<u64> = 62 * 512..63 * 512;

/// A volume's place in its host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Layout {
    /// The data's bytes in the host.
    pub(super) data: Range<u64>,
    /// dm-crypt's number of the first sector, in units of 512 bytes.
    pub(super) iv_offset: u64,
    /// The ranges of the host that belong to the volume beside its data and must not change: a
    /// hidden volume's headers.
    pub(super) headers: Vec<Range<u64>>,
}

impl Layout {
    /// Locates the data of `header`, found at `place` in a host of `host` bytes. `partition` is the
    /// range of the disk that is opened of a system's encrypted area.
    ///
    /// Returns `TooSmall` for data beyond the host, `BadHeader`, and `BadOption` for a partition
    /// outside of the area.
    pub(super) fn of(
        header: &Header,
        place: Place,
        chain: Chain,
        host: u64,
        partition: Option<&Range<u64>>,
    ) -> Result<Self> {
        let host = host & !511;
        let (data, first) = match place {
            Place::System => {
                let area = area(header, host)?;
                if area.start < SYSTEM_HEADER.end && SYSTEM_HEADER.start < area.end {
                    let context =
                        format!("the encrypted area, from byte {} on, has the header in it", area.start);
                    return Err(Error::new(ErrorKind::BadHeader, context));
                }
                let data = match partition {
                    Some(partition) => within(&area, partition)?,
                    None => area,
                };
                (data.clone(), data.start >> 9)
            }
            _ if chain.mode() == Mode::Xts && header.version >= 4 => {
                if header.start < 2 * AREA {
                    let context = format!("the data begins at byte {}, amid the headers", header.start);
                    return Err(Error::new(ErrorKind::BadHeader, context));
                }
                let data = area(header, host)?;
                (data.clone(), data.start >> 9)
            }
            _ if place.is_hidden() => {
                let size = header.hidden_size;
                let start = host.checked_sub(OLD_HIDDEN).and_then(|end| end.checked_sub(size));
                let Some(start) = start.filter(|start| *start >= HEADER as u64) else {
                    let context = format!("a hidden volume of {size} bytes in a host of {host}");
                    return Err(Error::new(ErrorKind::TooSmall, context));
                };
                (whole_sectors(start..start + size)?, old_number(chain, start))
            }
            _ => {
                let data = fields::range("the data", 512, host.saturating_sub(512), host)?;
                (whole_sectors(data)?, old_number(chain, 512))
            }
        };
        let at = |start: u64| start..start + HEADER as u64;
        let headers = match () {
            () if !place.is_hidden() => vec![],
            () if chain.mode() == Mode::Xts && header.version >= 4 => vec![at(AREA), at(host - AREA)],
            () => vec![at(host - OLD_HIDDEN)],
        };
        Ok(Self { data, iv_offset: first, headers })
    }

    /// The ranges of the host that a volume around this one must not change.
    pub(super) fn protected(&self) -> Vec<Range<u64>> {
        let mut all = vec![self.data.clone()];
        for header in &self.headers {
            // An old hidden header begins where its data end.
            match all.iter_mut().find(|range| range.end == header.start) {
                Some(range) => range.end = header.end,
                None => all.push(header.clone()),
            }
        }
        all
    }
}

/// The number of the first sector before version 4: LRW counts from 0 and CBC from 1, also in
/// hidden volumes.
fn old_number(chain: Chain, start: u64) -> u64 {
    match chain.mode() {
        Mode::Xts => start >> 9,
        Mode::Lrw => 0,
        Mode::Cbc | Mode::OuterCbc | Mode::InnerCbc => 1,
    }
}

fn area(header: &Header, host: u64) -> Result<Range<u64>> {
    whole_sectors(fields::range("the encrypted area", header.start, header.size, host)?)
}

fn whole_sectors(data: Range<u64>) -> Result<Range<u64>> {
    if data.is_empty() || !data.start.is_multiple_of(512) || !data.end.is_multiple_of(512) {
        let context = format!("the data, bytes {} to {}, are no whole sectors", data.start, data.end);
        return Err(Error::new(ErrorKind::BadHeader, context));
    }
    Ok(data)
}

/// The encrypted part of a partition: it begins in the area, and ends with it at the latest.
fn within(area: &Range<u64>, partition: &Range<u64>) -> Result<Range<u64>> {
    if !area.contains(&partition.start) {
        let context = format!(
            "the partition begins at byte {} of the disk, outside of what is encrypted: bytes {} to {}",
            partition.start, area.start, area.end
        );
        return Err(Error::new(ErrorKind::BadOption, context));
    }
    whole_sectors(partition.start..partition.end.min(area.end))
}
