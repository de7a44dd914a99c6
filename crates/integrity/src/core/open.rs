//! Opening: from the disks to a running volume.

use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::Core;
use super::claims::BlockLocks;
use super::journal::Journal;
use super::recalculate::Recalculation;
use super::regions::Regions;
use super::status::MismatchLog;
use super::tag_cache::TagCache;
use crate::{Disks, Error, OpenSettings, Result, WriteMode};

/// The resources and times of a running volume, which are not on the disk.
#[derive(Debug, Clone)]
pub struct RunSettings {
    /// Bytes of tags in memory.
    pub tag_cache: usize,
    /// Bytes of journal sections in memory.
    pub journal_memory: usize,
    /// The share of the journal, in percent, that is filled before its blocks are copied back.
    pub watermark: u8,
    /// The time after which writes are committed without a flush.
    pub commit_time: Duration,
    /// The time after the last write for which bits of the bitmap stay set.
    pub bitmap_time: Duration,
    /// Threads that wait for the lower devices.
    pub workers: usize,
}

impl Default for RunSettings {
    fn default() -> Self {
        Self {
            tag_cache: 16 << 20,
            journal_memory: 64 << 20,
            watermark: 50,
            commit_time: Duration::from_secs(10),
            bitmap_time: Duration::from_secs(10),
            workers: 8,
        }
    }
}

impl Core {
    /// Opens the volume on these disks. `tuple`: the bytes of the data device's tuples, in mode I.
    /// Returns the errors of superblock, journal and options, and `Io`.
    pub(crate) fn open(
        disks: &Disks<'_>,
        options: &OpenSettings,
        settings: &RunSettings,
        tuple: usize,
    ) -> Result<Self> {
        let mode = options.mode;
        let opened = crate::open(disks, options)?;
        let recalculation = match (&opened.bitmap, opened.recalculation()) {
            _ if mode == WriteMode::Recovery => Recalculation::none(),
            (Some(bitmap), None) if bitmap.dirty().next().is_none() => Recalculation::none(),
            // Without remaining regions the superblock has to record that.
            (Some(_), _) => Recalculation::from(0, true),
            (None, Some(sector)) => Recalculation::from(sector, false),
            (None, None) => Recalculation::none(),
        };
        let geometry = opened.geometry;
        let journal = opened.journal.clone().filter(|_| mode == WriteMode::Journal).map(|sections| {
            let memory = (settings.journal_memory, settings.watermark);
            Journal::new(geometry, sections, opened.next, memory)
        });
        Ok(Self {
            mode,
            geometry,
            hash: opened.tags,
            discards: options.allow_discards,
            tuple,
            settings: settings.clone(),
            claims: Arc::new(BlockLocks::default()),
            cache: TagCache::new(geometry.start() * 512, settings.tag_cache),
            journal,
            sections: opened.journal,
            regions: opened.bitmap.map(Regions::new),
            recalculation,
            recorded: opened.superblock.provided.into(),
            superblock: Mutex::new((opened.superblock, options.journal_mac.clone())),
            mismatches: MismatchLog::default(),
            failed: OnceLock::new(),
            read_only: false,
            closed: false.into(),
            aged: Mutex::new(Instant::now()),
        })
    }
}

/// Turns an error of this crate into a device's.
pub(super) fn as_device_error(e: Error) -> underseal_device::Error {
    let errno = Errno::from_raw_os_error(e.errno());
    underseal_device::Error::new(underseal_device::ErrorKind::Other, e.to_string()).with_source(errno)
}
