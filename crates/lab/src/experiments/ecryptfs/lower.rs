//! The lower media of files.

use std::os::unix::fs::FileExt;
use std::sync::Arc;

use rustix::fs::{MemfdFlags, memfd_create};
use underseal_device::Device;

use crate::stream::{Bare, RequestStream};
use crate::{Error, ErrorKind, Result};

/// Bytes of a file's header, before its contents.
pub(super) const HEADER: u64 = 8192;

const PAGE: usize = 4096;
/// The longest run that a page cache writes at once.
const CLUSTER: usize = 1 << 20;
/// The largest number of dirty bytes,
const DIRTY: usize = 4 << 20;
/// and of separate dirty ranges.
const RUNS: usize = 32;
/// Readahead of a sequential read.
const AHEAD: usize = 128 << 10;

/// A model of a lower file. Contents are read and written in whole pages.
pub(super) trait LowerFileModel {
    fn read(&mut self, at: u64, into: &mut [u8]) -> Result<()>;
    fn write(&mut self, at: u64, data: &[u8]) -> Result<()>;
    /// Writes the size into the header's first bytes.
    fn write_size(&mut self, size: u64) -> Result<()>;
    /// Writes cached pages to the disk, and drops them.
    fn forget(&mut self) -> Result<()>;
}

/// The medium of all lower files of a set-up.
pub(super) enum LowerMedium {
    /// A file in memory for all threads.
    Memory(std::fs::File),
    Cached(Arc<dyn Device>),
    Waited(Arc<dyn Device>),
}

impl LowerMedium {
    /// A file as on tmpfs, with room for `bytes` bytes of contents, every one of which was written.
    pub(super) fn memory(bytes: u64) -> Result<Self> {
        const REFUSED: &str = "the system gives no file in memory";
        let fd = memfd_create("underseal-lab", MemfdFlags::CLOEXEC).map_err(Error::system(REFUSED))?;
        let file = std::fs::File::from(fd);
        let piece = vec![0x5a; CLUSTER];
        for at in (0..bytes + CLUSTER as u64).step_by(CLUSTER) {
            file.write_all_at(&piece, at).map_err(Error::system(REFUSED))?;
        }
        Ok(Self::Memory(file))
    }

    /// Opens the file of a thread, with room for `most` bytes of contents.
    pub(super) fn open(&self, nth: u64, most: u64) -> Result<Box<dyn LowerFileModel>> {
        Ok(match self {
            Self::Memory(file) => {
                let file = file.try_clone().map_err(Error::system("there is no descriptor left"))?;
                Box::new(Memory { file, start: nth * (most + HEADER) })
            }
            Self::Cached(device) => Box::new(Cached::new(Part::open(&**device, nth)?, most)),
            Self::Waited(device) => Box::new(Waited(Part::open(&**device, nth)?)),
        })
    }
}

struct Memory {
    file: std::fs::File,
    start: u64,
}

const FAILED: &str = "the file in memory cannot be read or written";

impl LowerFileModel for Memory {
    fn read(&mut self, at: u64, into: &mut [u8]) -> Result<()> {
        self.file.read_exact_at(into, self.start + at).map_err(Error::system(FAILED))
    }

    fn write(&mut self, at: u64, data: &[u8]) -> Result<()> {
        self.file.write_all_at(data, self.start + at).map_err(Error::system(FAILED))
    }

    fn write_size(&mut self, size: u64) -> Result<()> {
        self.write(0, &size.to_be_bytes())
    }

    fn forget(&mut self) -> Result<()> {
        Ok(())
    }
}

/// The part of a device for a file: an eighth of it, so that heads have to move.
struct Part {
    device: Bare,
    start: u64,
    in_flight: usize,
}

impl Part {
    fn open(device: &dyn Device, nth: u64) -> Result<Self> {
        let start = device.geometry().size / super::MOST_THREADS * nth;
        // Room for the largest number of dirty bytes.
        let depth = 2 * RUNS;
        Ok(Self { device: Bare::open(device, depth, DIRTY / depth)?, start, in_flight: 0 })
    }

    /// Begins a write.
    fn begin_write(&mut self, at: u64, data: &[u8]) -> Result<()> {
        let no_memory = || Error::new(ErrorKind::Wrong, "the device has no memory for a write");
        let mut buffer = self.device.alloc(data.len()).ok_or_else(no_memory)?;
        buffer.copy_from_slice(data);
        let tag = u32::try_from(self.in_flight).unwrap_or(u32::MAX);
        self.in_flight += 1;
        match self.device.write(tag, self.start + at, buffer) {
            None => Ok(()),
            Some(_) => Err(Error::new(ErrorKind::Wrong, "the device takes no write")),
        }
    }

    /// Waits for the end of all operations.
    fn wait(&mut self, mut read: Option<&mut [u8]>) -> Result<()> {
        let mut result = Ok(());
        while self.in_flight > 0 {
            let Some(done) = self.device.next() else {
                self.device.wait()?;
                continue;
            };
            self.in_flight -= 1;
            if let Some(buffer) = done.buffer {
                if let Some(into) = read.take() {
                    into.copy_from_slice(&buffer[..into.len()]);
                }
                self.device.free(buffer);
            }
            result = result.and(done.result);
        }
        result
    }

    fn read(&mut self, at: u64, into: &mut [u8]) -> Result<()> {
        for (nth, piece) in into.chunks_mut(CLUSTER).enumerate() {
            if !self.device.read(0, self.start + at + (nth * CLUSTER) as u64, piece.len()) {
                return Err(Error::new(ErrorKind::Wrong, "the device takes no read"));
            }
            self.in_flight = 1;
            self.wait(Some(piece))?;
        }
        Ok(())
    }
}

/// Every lower I/O is an I/O of the device.
struct Waited(Part);

impl LowerFileModel for Waited {
    fn read(&mut self, at: u64, into: &mut [u8]) -> Result<()> {
        self.0.read(at, into)
    }

    fn write(&mut self, at: u64, data: &[u8]) -> Result<()> {
        self.0.begin_write(at, data)?;
        self.0.wait(None)
    }

    /// Devices accept no single bytes, so the page with the header is written.
    fn write_size(&mut self, size: u64) -> Result<()> {
        let mut page = [0; PAGE];
        page[..8].copy_from_slice(&size.to_be_bytes());
        self.write(0, &page)
    }

    fn forget(&mut self) -> Result<()> {
        Ok(())
    }
}

/// A page cache between file and device.
struct Cached {
    part: Part,
    pages: Vec<u8>,
    known: Vec<bool>,
    dirty: Vec<bool>,
    dirty_pages: usize,
    /// The number of separate written ranges, and the end of the last.
    runs: usize,
    written_to: usize,
    read_to: usize,
}

impl Cached {
    fn new(part: Part, most: u64) -> Self {
        let pages = usize::try_from(most + HEADER).unwrap_or(usize::MAX) / PAGE;
        Self {
            part,
            pages: vec![0; pages * PAGE],
            known: vec![false; pages],
            dirty: vec![false; pages],
            dirty_pages: 0,
            runs: 0,
            written_to: 0,
            read_to: at(HEADER),
        }
    }

    fn soil(&mut self, page: usize) {
        self.known[page] = true;
        self.dirty_pages += usize::from(!std::mem::replace(&mut self.dirty[page], true));
    }

    fn write_back(&mut self) -> Result<()> {
        let mut page = 0;
        while let Some(first) = (page..self.dirty.len()).find(|&page| self.dirty[page]) {
            let most = self.dirty.len().min(first + CLUSTER / PAGE);
            page = (first..most).find(|&page| !self.dirty[page]).unwrap_or(most);
            self.dirty[first..page].fill(false);
            self.part.begin_write((first * PAGE) as u64, &self.pages[first * PAGE..page * PAGE])?;
        }
        (self.dirty_pages, self.runs) = (0, 0);
        self.part.wait(None)
    }
}

impl LowerFileModel for Cached {
    fn read(&mut self, from: u64, into: &mut [u8]) -> Result<()> {
        let (start, end) = (at(from), at(from) + into.len());
        let goes_on = start == self.read_to;
        self.read_to = end;
        let unknown = (start / PAGE..end / PAGE).find(|&page| !self.known[page]);
        if let Some(first) = unknown {
            let wanted = if goes_on { end.max(first * PAGE + AHEAD) } else { end };
            let last = (first..(wanted / PAGE).min(self.known.len())).find(|&page| self.known[page]);
            let last = last.unwrap_or((wanted / PAGE).min(self.known.len()));
            self.part.read((first * PAGE) as u64, &mut self.pages[first * PAGE..last * PAGE])?;
            // Files are larger than memory: a page that a random read cached is evicted before it
            // is read again.
            self.known[first..last].fill(goes_on);
        }
        into.copy_from_slice(&self.pages[start..end]);
        Ok(())
    }

    fn write(&mut self, from: u64, data: &[u8]) -> Result<()> {
        let (start, end) = (at(from), at(from) + data.len());
        self.pages[start..end].copy_from_slice(data);
        (start / PAGE..end / PAGE).for_each(|page| self.soil(page));
        self.runs += usize::from(start != self.written_to);
        self.written_to = end;
        if self.dirty_pages * PAGE >= DIRTY || self.runs >= RUNS { self.write_back() } else { Ok(()) }
    }

    fn write_size(&mut self, size: u64) -> Result<()> {
        self.pages[..8].copy_from_slice(&size.to_be_bytes());
        self.soil(0);
        Ok(())
    }

    fn forget(&mut self) -> Result<()> {
        self.write_back()?;
        self.known.fill(false);
        Ok(())
    }
}

fn at(offset: u64) -> usize {
    usize::try_from(offset).unwrap_or(usize::MAX)
}
