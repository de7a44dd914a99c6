//! The numbers of the modelled disks.

use std::time::Duration;

/// A kind of disk. Every number may be changed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Profile {
    /// The medium that stores the data.
    pub medium: Medium,
    /// The clock's time for each second of the model's: 0.1 makes an experiment run in a tenth of
    /// the time. Work that is not modelled (the processor's) does not shrink with it. Between 0.001
    /// and 1000.
    pub time_scale: f64,
}

/// A medium that stores data.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Medium {
    /// Takes no time.
    Memory,
    /// Many parallel commands, with the same time for all places.
    Flash(Flash),
    /// A head over a platter.
    Rotating(Rotating),
}

/// Flash behind an interface.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Flash {
    /// The time from a read command to its first byte.
    pub read_latency: Duration,
    /// The time from a write command until the data is in the drive's cache.
    pub write_latency: Duration,
    /// The duration of a flush after the last write.
    pub flush_latency: Duration,
    /// The number of bytes a second out of the drive.
    pub read_rate: u64,
    /// The number of bytes a second into the drive.
    pub write_rate: u64,
    /// The time of a command on the interface besides its bytes: this bounds the commands a second.
    pub per_command: Duration,
    /// The number of simultaneous commands in the drive.
    pub queue_depth: u32,
}

/// A rotating disk. The media rate determines the length of tracks, which is the same everywhere
/// (zoned recording, which makes the inner half of a real disk slower, is not modelled). Tracks are
/// skewed so that going from one to the next costs nothing.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rotating {
    /// Turns a minute.
    pub rpm: u32,
    /// The number of bytes a second under the head.
    pub media_rate: u64,
    /// The time of the shortest move of the head.
    pub track_seek: Duration,
    /// The time of the longest move, over the whole device. Between them the time grows with the
    /// square root of the distance.
    pub full_seek: Duration,
    /// The time until an idle drive begins with a command.
    pub command_time: Duration,
    /// The number of bytes that the drive reads ahead into its buffer after a read; 0 for none.
    pub read_ahead: u64,
    /// The number of bytes of writes that are acknowledged before they are on the platter; 0 when
    /// the cache is off. A drive with a cache orders the writes itself, so the cost of their order
    /// can only be measured without it.
    pub write_cache: u64,
    /// The number of bytes a second into that cache.
    pub link_rate: u64,
    /// The number of commands from which the drive itself chooses the next (NCQ); 1 when it keeps
    /// their order.
    pub queue_depth: u32,
    /// The system's scheduler in front of it, which merges and sorts. With `None` requests keep
    /// their order.
    pub scheduler: Option<Scheduler>,
}

/// An elevator: of the waiting requests, the next at or after the head is served, with every
/// request that adjoins it. Each part of a merged request ends when it is on the platter, as if the
/// drive had a command for each: one queue's depth is less than a system's, and otherwise all parts
/// would end at once and their successors would come too late for the turn.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scheduler {
    /// The longest request that merging may make, in bytes.
    pub max_merge: u64,
    /// How long the first request to an idle disk waits for further requests.
    pub window: Duration,
}

impl Profile {
    fn new(medium: Medium) -> Self {
        Self { medium, time_scale: 1.0 }
    }

    /// Returns a profile without latency: the device itself.
    pub fn ram() -> Self {
        Self::new(Medium::Memory)
    }

    /// Returns a 7200 rpm disk for desktops, with its write cache off, behind a merging scheduler.
    ///
    /// Data sheets of these disks (1 to 4 TB) give 4.16 ms of average rotational latency, which is
    /// half a turn; 8 to 9 ms of average seek, the model's time for a third of the stroke; up
    /// to 150 to 210 MB/s of sustained transfer. Linux merges up to 1280 KiB (`max_sectors_kb`).
    pub fn rotating_disk() -> Self {
        Self::new(Medium::Rotating(Rotating {
            rpm: 7200,
            media_rate: 180_000_000,
            track_seek: Duration::from_micros(800),
            full_seek: Duration::from_millis(14),
            command_time: Duration::from_micros(100),
            read_ahead: 2 << 20,
            write_cache: 0,
            link_rate: 550_000_000,
            queue_depth: 1,
            scheduler: Some(Scheduler { max_merge: 1280 << 10, window: Duration::ZERO }),
        }))
    }

    /// Returns an SSD on SATA 6 Gb/s.
    ///
    /// The interface has about 550 MB/s and 32 commands (NCQ). Data sheets give up to about 95,000
    /// reads of 4 KiB a second at that depth and 10,000 to 14,000 at depth 1, and 30,000 and more
    /// writes at depth 1.
    pub fn sata_ssd() -> Self {
        Self::new(Medium::Flash(Flash {
            read_latency: Duration::from_micros(80),
            write_latency: Duration::from_micros(30),
            flush_latency: Duration::from_micros(500),
            read_rate: 550_000_000,
            write_rate: 520_000_000,
            per_command: Duration::from_micros(3),
            queue_depth: 32,
        }))
    }

    /// Returns an NVMe SSD on four lanes of PCIe 3.
    ///
    /// Data sheets give up to 3.5 GB/s for reads and 3 GB/s for writes, and 500,000 to 600,000
    /// commands of 4 KiB a second at large depths; 10,000 to 15,000 reads and 50,000 to 60,000
    /// writes a second at depth 1.
    pub fn nvme() -> Self {
        Self::new(Medium::Flash(Flash {
            read_latency: Duration::from_micros(70),
            write_latency: Duration::from_micros(15),
            flush_latency: Duration::from_micros(100),
            read_rate: 3_500_000_000,
            write_rate: 3_000_000_000,
            per_command: Duration::from_nanos(600),
            queue_depth: 256,
        }))
    }

    /// Returns the same profile without the scheduler in front of a rotating disk.
    #[must_use]
    pub fn without_scheduler(mut self) -> Self {
        if let Medium::Rotating(rotating) = &mut self.medium {
            rotating.scheduler = None;
        }
        self
    }

    /// Returns the same profile with another [`time_scale`](Profile::time_scale).
    #[must_use]
    pub fn scaled(self, time_scale: f64) -> Self {
        Self { time_scale, ..self }
    }
}
