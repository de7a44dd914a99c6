//! From what is on the disks to a running volume.

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

/// What a running volume may use, and how long it waits. Nothing of this is on the disk.
#[derive(Debug, Clone)]
pub struct RunSettings {
    /// Bytes of tags that are kept in memory.
    pub tag_cache: usize,
    /// Bytes of the journal that are kept in memory: of what is in use of it.
    pub journal_memory: usize,
    /// So many percent of the journal are filled before its blocks are copied to their places.
    pub watermark: u8,
    /// What was written is committed after this time, without a flush.
    pub commit_time: Duration,
    /// Bits of the bitmap stay so long after the last write.
    pub bitmap_time: Duration,
    /// Threads that wait for the devices below.
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
    /// Opens the volume on these disks. `tuple`: the bytes that the data device keeps with each
    /// block, in mode I.
    ///
    /// # Errors
    /// What the superblock, the journal or the options do not allow, and `Io`.
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
            // Where none is left the superblock is to say so.
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
            superblock: Mutex::new((opened.superblock, options.journal_mac.clone())),
            mismatches: MismatchLog::default(),
            failed: OnceLock::new(),
            read_only: false,
            closed: false.into(),
            aged: Mutex::new(Instant::now()),
        })
    }
}

/// An error of this crate where a device's is wanted.
pub(super) fn as_device_error(e: Error) -> underseal_device::Error {
    let errno = Errno::from_raw_os_error(e.errno());
    underseal_device::Error::new(underseal_device::ErrorKind::Other, e.to_string()).with_source(errno)
}
