//! The files of an integrity volume, and work on it with all processors.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use clap::Args;
use underseal_device::OpenOptions;
use underseal_integrity::{Disk, Disks, Overlay, WIPE_STEP};
use underseal_volume::{ReadAt, Target};

use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::lower::{Lower, is_remote};
use crate::progress::Progress;
use crate::reencryption::Bytes;
use crate::size;

/// The image of a volume.
#[derive(Debug, Args)]
pub(crate) struct IntegrityPlaceArgs {
    /// The image or block device, an NBD server's export (nbd://..., nbd+unix://...), or an image
    /// on Ceph (rbd:POOL/IMAGE)
    pub(crate) image: PathBuf,
    /// The data alone are here; IMAGE then has superblock, journal and checksums
    #[arg(long, value_name = "FILE")]
    pub(crate) data_device: Option<PathBuf>,
    /// Where the superblock is ("2048s" is 2048 sectors)
    #[arg(long, value_name = "BYTES", value_parser = size::parse, default_value = "0")]
    pub(crate) start: u64,
    /// In how large pieces the kernel reads checksums; it matters with legacy padding and a small
    /// interleave only
    #[arg(long, value_name = "SECTORS", default_value_t = 128)]
    pub(crate) buffer_sectors: u32,
}

/// The files of a volume, locked.
pub(super) struct Volume {
    image: PathBuf,
    head: Device,
    data: Option<Device>,
    threads: usize,
}

struct Device {
    bytes: Bytes,
    /// The owner of the lock.
    _lower: Lower,
}

impl Volume {
    /// Opens the files. Fails with `InUse`, `Failed`, or the device's error.
    pub(super) fn open(place: &IntegrityPlaceArgs, read_only: bool) -> Result<Self> {
        let options = OpenOptions { read_only, ..OpenOptions::default() };
        Self::with_image(place, Lower::open(&place.image, options)?, options)
    }

    /// Takes over an image that this process has just made, and opens the data device. Fails as
    /// [`Volume::open`].
    pub(super) fn open_new(place: &IntegrityPlaceArgs, image: File) -> Result<Self> {
        Self::with_image(place, Lower::over_new(&place.image, image)?, OpenOptions::default())
    }

    fn with_image(place: &IntegrityPlaceArgs, image: Lower, options: OpenOptions) -> Result<Self> {
        let device = |lower: Lower| Ok::<_, Error>(Device { bytes: lower.again().bytes()?, _lower: lower });
        let data = place.data_device.as_deref();
        // On a server, a block is written by read-modify-write, which two threads must not do at
        // once.
        let is_shared = !is_remote(&place.image) && !data.is_some_and(is_remote);
        Ok(Self {
            image: place.image.clone(),
            head: device(image)?,
            data: data.map(|path| device(Lower::open(path, options)?)).transpose()?,
            threads: if is_shared { thread::available_parallelism().map_or(1, usize::from) } else { 1 },
        })
    }

    /// Returns the disks of the layout: the image has the data, unless there is a data device.
    pub(super) fn disks(&self) -> Disks<'_> {
        match &self.data {
            Some(data) => Disks { data, meta: Some(&self.head) },
            None => Disks::one(&self.head),
        }
    }

    /// Returns the disks, with changes in memory only.
    pub(super) fn over(&self) -> Over<'_> {
        let (data, meta) = match &self.data {
            Some(data) => (data, Some(&self.head)),
            None => (&self.head, None),
        };
        Over { data: Overlay::new(data), meta: meta.map(Overlay::new) }
    }

    /// Converts an error, and adds the volume's name.
    pub(super) fn said(&self, error: underseal_integrity::Error) -> Error {
        said(error).within(self.image.display())
    }

    /// Calls `work` on all of `sectors`, piece by piece, with all processors, and returns the
    /// results in order. Fails with the first error of a piece.
    pub(super) fn each<T: Send>(
        &self,
        sectors: u64,
        progress: &mut Progress,
        work: impl Fn(Range<u64>) -> underseal_integrity::Result<T> + Sync,
    ) -> Result<Vec<T>> {
        let (next, failed) = (AtomicU64::new(0), Mutex::new(None));
        let done = Mutex::new((Vec::new(), progress));
        let run = || loop {
            let start = next.fetch_add(WIPE_STEP, Ordering::Relaxed);
            let end = start.saturating_add(WIPE_STEP).min(sectors);
            if start >= sectors {
                break;
            }
            match work(start..end) {
                Ok(result) => {
                    let (results, progress) = &mut *done.lock().unwrap_or_else(PoisonError::into_inner);
                    results.push((start, result));
                    progress.advance((end - start) * 512);
                }
                Err(e) => {
                    next.store(sectors, Ordering::Relaxed);
                    failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(e);
                    break;
                }
            }
        };
        thread::scope(|scope| {
            (1..self.threads).for_each(|_| {
                scope.spawn(run);
            });
            run();
        });
        if let Some(e) = failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
            return Err(self.said(e));
        }
        let (mut results, _) = done.into_inner().unwrap_or_else(PoisonError::into_inner);
        results.sort_by_key(|(start, _)| *start);
        Ok(results.into_iter().map(|(_, result)| result).collect())
    }
}

/// A volume's disks, with written data in memory.
pub(super) struct Over<'v> {
    data: Overlay<&'v Device>,
    meta: Option<Overlay<&'v Device>>,
}

impl Over<'_> {
    pub(super) fn disks(&self) -> Disks<'_> {
        Disks { data: &self.data, meta: self.meta.as_ref().map(|meta| meta as &dyn Disk) }
    }
}

impl Disk for Device {
    fn size(&self) -> io::Result<u64> {
        ReadAt::size(&*self.bytes)
    }

    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.bytes.read_exact_at(bytes, offset)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.bytes.write_all_at(bytes, offset)
    }

    fn sync(&self) -> io::Result<()> {
        Target::sync_all(&*self.bytes)
    }
}

/// Converts an error to an exit status with these commands' remedy.
pub(super) fn said(error: underseal_integrity::Error) -> Error {
    use underseal_integrity::ErrorKind as Kind;
    let (exit, remedy) = match error.kind() {
        Kind::NoSuperblock => {
            (Exit::BadHeader, "`underseal integrity format` makes a volume; is --start right?")
        }
        Kind::BadSuperblock => (Exit::BadHeader, "`underseal integrity info` shows what the superblock says"),
        Kind::TooSmall => {
            (Exit::BadHeader, "compare the image's size with the original's: was it cut short?")
        }
        Kind::BadOption => {
            (Exit::Usage, "`underseal help integrity` and the command's name shows what it takes")
        }
        Kind::Unsupported => (Exit::Unsupported, ""),
        Kind::BadKey => {
            (Exit::Usage, "--integrity-key-file, --journal-integrity-key-file, --journal-crypt-key-file")
        }
        Kind::BadJournal | Kind::Integrity => {
            (Exit::BadHeader, "the hash and the keys that the volume was made with")
        }
        Kind::Memory => (Exit::Failed, "retry with more memory free"),
        _ => (Exit::Failed, ""),
    };
    Error::of(exit, &error, remedy)
}
