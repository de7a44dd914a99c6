//! The parameters of the disk, from the volume's properties.

use super::abi as sys;
use underseal_datapath::{Mapping, Zones};

use super::UblkConfig;
use crate::{Error, ErrorKind, Result};

/// The longest read or write, in bytes.
pub(super) const LONGEST: u32 = 1 << 20;

/// The longest discard or zeroing in one request. Zeros under a cipher are written, and must not
/// delay other requests for long.
const FREED: u32 = 1 << 30;
const ZEROED: u32 = 16 << 20;

/// The sector size that the kernel counts in.
const SECTOR: u64 = 512;

/// Describes the disk. Fails with `Unsupported` when the volume's sectors are larger than the
/// kernel's pages.
pub(super) fn of(mapping: &Mapping) -> Result<sys::ublk_params> {
    let page = rustix::param::page_size();
    if mapping.block() as usize > page {
        let context = format!(
            "sectors of {} bytes: the kernel has no block devices of more than a page ({page} bytes) a block",
            mapping.block()
        );
        return Err(Error::new(ErrorKind::Unsupported, context));
    }
    let block = u64::from(mapping.block()).max(SECTOR);
    let preferred = u64::from(mapping.preferred_block()).max(block).next_power_of_two().min(1 << 20);
    let mut attrs = sys::UBLK_ATTR_VOLATILE_CACHE | sys::UBLK_ATTR_FUA;
    if mapping.read_only() {
        attrs |= sys::UBLK_ATTR_READ_ONLY;
    }
    if let Some(zones) = mapping.zones() {
        return zoned(mapping, zones, block, preferred, attrs);
    }
    let discards = if mapping.discards() { FREED >> 9 } else { 0 };
    let zeroes = if mapping.is_null() { FREED >> 9 } else { ZEROED >> 9 };
    Ok(sys::ublk_params {
        types: sys::UBLK_PARAM_TYPE_BASIC | sys::UBLK_PARAM_TYPE_DISCARD,
        basic: basic(mapping, block, preferred, attrs),
        discard: sys::ublk_param_discard {
            discard_granularity: u32::try_from(preferred).unwrap_or(mapping.block()),
            max_discard_sectors: discards,
            max_write_zeroes_sectors: zeroes,
            max_discard_segments: 1,
            ..Default::default()
        },
        ..Default::default()
    })
}

/// Adds what the configuration asks for, and what a later table may need: whatever a table does not
/// support is answered with `EOPNOTSUPP`.
pub(super) fn for_config(mut params: sys::ublk_params, config: &UblkConfig) -> sys::ublk_params {
    if config.for_tables && params.types & sys::UBLK_PARAM_TYPE_DISCARD != 0 {
        params.discard.max_discard_sectors = FREED >> 9;
    }
    if config.read_only {
        params.basic.attrs |= sys::UBLK_ATTR_READ_ONLY;
    }
    params
}

/// Returns the size in the kernel's sectors. Bytes beyond the last whole block are not accessible.
pub(super) fn sectors(mapping: &Mapping) -> u64 {
    let block = u64::from(mapping.block()).max(SECTOR);
    mapping.size() / block * (block / SECTOR)
}

fn basic(mapping: &Mapping, block: u64, preferred: u64, attrs: u32) -> sys::ublk_param_basic {
    let shift = |bytes: u64| u8::try_from(bytes.ilog2()).unwrap_or(u8::MAX);
    sys::ublk_param_basic {
        attrs,
        logical_bs_shift: shift(block),
        physical_bs_shift: shift(preferred),
        io_opt_shift: shift(preferred),
        io_min_shift: shift(preferred),
        max_sectors: LONGEST >> 9,
        dev_sectors: sectors(mapping),
        ..Default::default()
    }
}

/// Describes a disk with zones. Zones are reset, not discarded in part, and zeros would have to be
/// written sequentially.
fn zoned(
    mapping: &Mapping,
    zones: Zones,
    block: u64,
    preferred: u64,
    attrs: u32,
) -> Result<sys::ublk_params> {
    let limits = mapping.zone_limits();
    let chunk_sectors = u32::try_from(zones.size / SECTOR).map_err(|_| {
        let context = format!("zones of {} bytes are longer than the kernel's", zones.size);
        Error::new(ErrorKind::Unsupported, context)
    })?;
    Ok(sys::ublk_params {
        types: sys::UBLK_PARAM_TYPE_BASIC | sys::UBLK_PARAM_TYPE_ZONED,
        basic: sys::ublk_param_basic { chunk_sectors, ..basic(mapping, block, preferred, attrs) },
        zoned: sys::ublk_param_zoned {
            max_open_zones: limits.open,
            max_active_zones: limits.active,
            max_zone_append_sectors: chunk_sectors.min(LONGEST >> 9),
            ..Default::default()
        },
        ..Default::default()
    })
}

/// Describes how the volume differs from the existing disk, if it does.
pub(super) fn difference(was: &sys::ublk_params, is: &sys::ublk_params) -> Option<String> {
    let bytes = |basic: &sys::ublk_param_basic| basic.dev_sectors.saturating_mul(SECTOR);
    if was.basic.dev_sectors != is.basic.dev_sectors {
        return Some(format!("it had {} bytes, the volume has {}", bytes(&was.basic), bytes(&is.basic)));
    }
    another_disk(was, is, false)
}

/// Describes a difference in other properties than the size, which can change under a server where
/// the kernel cannot notify the disk's users.
///
/// A table may be read-only on a disk that is not: its writes fail.
pub(super) fn another_disk(
    was: &sys::ublk_params,
    is: &sys::ublk_params,
    for_tables: bool,
) -> Option<String> {
    let (was, is) = (&was.basic, &is.basic);
    let (was_read_only, is_read_only) =
        (was.attrs & sys::UBLK_ATTR_READ_ONLY != 0, is.attrs & sys::UBLK_ATTR_READ_ONLY != 0);
    if was.logical_bs_shift != is.logical_bs_shift {
        let size = |shift: u8| 1u64.checked_shl(shift.into()).unwrap_or(0);
        let (was, is) = (size(was.logical_bs_shift), size(is.logical_bs_shift));
        Some(format!("its blocks were of {was} bytes, the volume's are of {is}"))
    } else if was_read_only != is_read_only && !for_tables {
        Some(if is_read_only { "it could be written to" } else { "it was read-only" }.into())
    } else {
        None
    }
}
