//! A zoned block device: its zones by sysfs and the kernel's ioctls (linux/blkzoned.h), and actions
//! on them.

#![expect(unsafe_code, reason = "ioctls on zones")]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;

use super::sysfs;
use crate::{Zone, ZoneAction, ZoneLimits, Zones};

/// The kernel's sector size.
const SECTOR: u64 = 512;

/// The number of zones in one report.
const BATCH: usize = 64;

/// `_IOWR(0x12, 130, struct blk_zone_report)`, and `_IOW(0x12, N, struct blk_zone_range)`.
const REPORT: u64 = 3 << 30 | 16 << 16 | 0x12 << 8 | 130;
const RESET: u64 = 1 << 30 | 16 << 16 | 0x12 << 8 | 131;
const OPEN: u64 = 1 << 30 | 16 << 16 | 0x12 << 8 | 134;
const CLOSE: u64 = 1 << 30 | 16 << 16 | 0x12 << 8 | 135;
const FINISH: u64 = 1 << 30 | 16 << 16 | 0x12 << 8 | 136;

/// The kernel reports capacities.
const HAS_CAPACITY: u32 = 1;
/// The type of a zone that can be written at any place.
const CONVENTIONAL: u8 = 1;

#[repr(C)]
#[derive(Clone, Copy)]
struct RawZone {
    start: u64,
    len: u64,
    pointer: u64,
    kind: u8,
    condition: u8,
    non_sequential: u8,
    reset: u8,
    reserved: [u8; 4],
    capacity: u64,
    more: [u8; 24],
}

#[repr(C)]
struct Report {
    sector: u64,
    count: u32,
    flags: u32,
    zones: [RawZone; BATCH],
}

#[repr(C)]
struct Range {
    sector: u64,
    sectors: u64,
}

const _: () = assert!(size_of::<RawZone>() == 64 && size_of::<Report>() == 16 + 64 * BATCH);

/// The zones of a host-managed disk.
pub(super) fn of(file: &File, size: u64) -> Option<Zones> {
    if queue(file, "zoned")? != "host-managed" {
        return None;
    }
    let zone = number(file, "chunk_sectors")?.checked_mul(SECTOR).filter(|&zone| zone > 0)?;
    // Without the permission to ask, no zone counts as conventional: then no write goes to a wrong
    // place.
    Some(Zones { size: zone, conventional: conventional(file, size).unwrap_or(0) })
}

/// The limits on zones in use at a time.
pub(super) fn limits(file: &File) -> ZoneLimits {
    let limit = |name| number(file, name).and_then(|n| u32::try_from(n).ok()).unwrap_or(0);
    ZoneLimits { open: limit("max_open_zones"), active: limit("max_active_zones") }
}

/// A value of the device's queue in sysfs.
fn queue(file: &File, name: &str) -> Option<String> {
    sysfs::queue(file.metadata().ok()?.rdev(), name)
}

fn number(file: &File, name: &str) -> Option<u64> {
    queue(file, name)?.parse().ok()
}

/// The number of zones at the front that can be written at any place.
fn conventional(file: &File, size: u64) -> io::Result<u32> {
    let (mut count, mut at) = (0, 0);
    while at < size {
        let zones = report(file, at, BATCH)?;
        let here = zones.iter().take_while(|zone| zone.kind == CONVENTIONAL).count();
        count += here;
        match zones.last() {
            Some(last) if here == zones.len() => at = last.start + last.len,
            _ => break,
        }
    }
    Ok(u32::try_from(count).unwrap_or(u32::MAX))
}

/// Returns up to `most` zones from `offset` on, at most a report of them.
pub(super) fn report(file: &File, offset: u64, most: usize) -> io::Result<Vec<Zone>> {
    let empty = RawZone {
        start: 0,
        len: 0,
        pointer: 0,
        kind: 0,
        condition: 0,
        non_sequential: 0,
        reset: 0,
        reserved: [0; 4],
        capacity: 0,
        more: [0; 24],
    };
    let count = u32::try_from(most.min(BATCH)).unwrap_or(0);
    let mut report = Box::new(Report { sector: offset / SECTOR, count, flags: 0, zones: [empty; BATCH] });
    // SAFETY: the kernel writes a report of at most `count` zones, for which there is room.
    if unsafe { libc::ioctl(file.as_raw_fd(), REPORT, std::ptr::from_mut(&mut *report)) } < 0 {
        return Err(io::Error::last_os_error());
    }
    let bytes = |sectors: u64| sectors.saturating_mul(SECTOR);
    let zones = report.zones.iter().take(usize::try_from(report.count.min(count)).unwrap_or(0));
    Ok(zones
        .map(|zone| Zone {
            start: bytes(zone.start),
            len: bytes(zone.len),
            capacity: bytes(if report.flags & HAS_CAPACITY != 0 { zone.capacity } else { zone.len }),
            pointer: bytes(zone.pointer),
            kind: zone.kind,
            condition: zone.condition,
        })
        .collect())
}

/// Applies an action to the zones of a range.
pub(super) fn act(file: &File, action: ZoneAction, offset: u64, len: u64) -> io::Result<()> {
    let request = match action {
        ZoneAction::Open => OPEN,
        ZoneAction::Close => CLOSE,
        ZoneAction::Finish => FINISH,
        ZoneAction::Reset => RESET,
    };
    let range = Range { sector: offset / SECTOR, sectors: len / SECTOR };
    // SAFETY: the kernel reads a range.
    if unsafe { libc::ioctl(file.as_raw_fd(), request, std::ptr::from_ref(&range)) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
