//! A file of eCryptfs, written and read in two ways.

use underseal_ecryptfs::{Cipher, Contents, EXTENT, FileKey};

use super::Phase;
use super::lower::{HEADER, LowerFileModel};
use crate::{Error, Result};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FileVariant {
    /// Like crates/ecryptfs: a request is one crypto call, one lower I/O, and the size after
    /// growth.
    Batched,
    /// Like the kernel: each page separately, and the size after every page written.
    OneAtATime,
}

pub(super) struct File {
    lower: Box<dyn LowerFileModel>,
    contents: Contents,
    way: FileVariant,
    /// The largest number of bytes.
    most: u64,
    /// The present number of bytes.
    size: u64,
    random: fastrand::Rng,
    /// The plaintext that programs write.
    plain: Vec<u8>,
    /// The buffer for encryption.
    buffer: Vec<u8>,
}

impl File {
    /// Returns a file of `most` bytes.
    pub(super) fn new(
        lower: Box<dyn LowerFileModel>,
        way: FileVariant,
        most: u64,
        seed: u64,
    ) -> Result<Self> {
        Self::with_key(lower, way, most, seed, &FileKey::random(Cipher::DEFAULT)?)
    }

    fn with_key(
        lower: Box<dyn LowerFileModel>,
        way: FileVariant,
        most: u64,
        seed: u64,
        key: &FileKey,
    ) -> Result<Self> {
        const LONGEST: usize = 1 << 20;
        let mut random = fastrand::Rng::with_seed(seed + 1);
        let mut plain = vec![0; LONGEST];
        random.fill(&mut plain);
        let (contents, buffer) = (key.contents()?, vec![0; LONGEST]);
        Ok(Self { lower, contents, way, most, size: most, random, plain, buffer })
    }

    /// Runs a phase to its end, until all bytes are on the lower medium. Returns the number of
    /// bytes.
    pub(super) fn run(&mut self, phase: Phase, over: impl Fn() -> bool) -> Result<u64> {
        let piece = match self.way {
            FileVariant::Batched => phase.bytes,
            FileVariant::OneAtATime => EXTENT,
        };
        let requests = self.most / phase.bytes as u64;
        let (mut bytes, mut next) = (0, 0);
        if phase.write && !phase.random {
            self.size = 0;
        }
        'all: loop {
            let request = if phase.random { self.random.u64(0..requests) } else { next };
            for at in (0..phase.bytes).step_by(piece) {
                let offset = request * phase.bytes as u64 + at as u64;
                match phase.write {
                    true => self.write(offset, piece)?,
                    false => self.read(offset, piece)?,
                }
                bytes += piece as u64;
                if over() {
                    break 'all;
                }
            }
            next += 1;
            if next == requests {
                // The next file, unknown to every cache.
                next = 0;
                self.size = if phase.write && !phase.random { 0 } else { self.size };
                self.lower.forget()?;
            }
        }
        self.lower.forget()?;
        Ok(bytes)
    }

    fn write(&mut self, offset: u64, len: usize) -> Result<()> {
        let end = offset + len as u64;
        // As in a server: the program's bytes arrive in memory that may be overwritten.
        let run = &mut self.buffer[..len];
        run.copy_from_slice(&self.plain[..len]);
        self.contents.encrypt(offset / EXTENT as u64, run);
        self.lower.write(HEADER + offset, run)?;
        let grows = end > self.size;
        self.size = self.size.max(end);
        if grows || self.way == FileVariant::OneAtATime {
            self.lower.write_size(self.size)?;
        }
        Ok(())
    }

    fn read(&mut self, offset: u64, len: usize) -> Result<()> {
        let run = &mut self.buffer[..len];
        self.lower.read(HEADER + offset, run)?;
        self.contents.decrypt(offset / EXTENT as u64, run);
        Ok(())
    }
}

impl From<underseal_ecryptfs::Error> for Error {
    fn from(e: underseal_ecryptfs::Error) -> Self {
        Self::new(crate::ErrorKind::Path, "the file's cipher cannot be made").with_source(e)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::sync::Arc;

    use super::super::lower::LowerMedium;
    use super::super::{PHASES, Phase};
    use super::*;
    use underseal_device::{Device, RamDevice};
    use underseal_device_lab::{ModelDevice, Profile};

    const MOST: u64 = 1 << 20;
    const ALL: usize = 1 << 20;

    /// A condition that ends a phase after `count` pieces.
    fn pieces(count: usize) -> impl Fn() -> bool {
        let left = Cell::new(count);
        move || {
            left.set(left.get() - 1);
            left.get() == 0
        }
    }

    fn belows() -> Vec<(LowerMedium, &'static str)> {
        let quick = Profile::sata_ssd().scaled(0.01);
        let model =
            || -> Arc<dyn Device> { Arc::new(ModelDevice::new(Arc::new(RamDevice::new(1 << 30)), &quick)) };
        vec![
            (LowerMedium::memory(8 * MOST).unwrap(), "memory"),
            (LowerMedium::Cached(model()), "cached"),
            (LowerMedium::Waited(model()), "waited for"),
        ]
    }

    fn lower_bytes(below: &LowerMedium, nth: u64) -> Vec<u8> {
        let mut bytes = vec![0; ALL];
        below.open(nth, MOST).unwrap().read(HEADER, &mut bytes).unwrap();
        bytes
    }

    #[test]
    fn both_ways_leave_the_same_below_and_read_it_back() {
        let key = FileKey::random(Cipher::DEFAULT).unwrap();
        for (below, name) in belows() {
            for way in [FileVariant::Batched, FileVariant::OneAtATime] {
                let nth = u64::from(way == FileVariant::OneAtATime);
                for phase in PHASES.into_iter().filter(|phase| phase.write) {
                    let piece = if way == FileVariant::Batched { phase.bytes } else { EXTENT };
                    let lower = below.open(nth, MOST).unwrap();
                    let mut file = File::with_key(lower, way, MOST, 3, &key).unwrap();
                    let bytes = file.run(phase, pieces(ALL / piece)).unwrap();
                    assert_eq!((bytes, file.size), (MOST, MOST), "{name}, {}", phase.name);
                }
            }
            let batched = lower_bytes(&below, 0);
            assert_eq!(batched, lower_bytes(&below, 1), "{name}");
            for way in [FileVariant::Batched, FileVariant::OneAtATime] {
                let mut file = File::with_key(below.open(0, MOST).unwrap(), way, MOST, 3, &key).unwrap();
                let len = if way == FileVariant::Batched { 128 << 10 } else { EXTENT };
                // The last phase wrote 4k of the same bytes at random places.
                file.read(128 << 10, len).unwrap();
                assert_eq!(file.buffer[..EXTENT], file.plain[..EXTENT], "{name}, {way:?}");
            }
        }
    }

    #[test]
    fn the_size_is_written_where_it_grows_or_after_every_page() {
        struct Counting(Arc<std::sync::Mutex<(usize, usize)>>);
        impl LowerFileModel for Counting {
            fn read(&mut self, _: u64, _: &mut [u8]) -> Result<()> {
                Ok(())
            }
            fn write(&mut self, _: u64, _: &[u8]) -> Result<()> {
                self.0.lock().unwrap().0 += 1;
                Ok(())
            }
            fn write_size(&mut self, _: u64) -> Result<()> {
                self.0.lock().unwrap().1 += 1;
                Ok(())
            }
            fn forget(&mut self) -> Result<()> {
                Ok(())
            }
        }
        let [sequential, _, random, ..] = PHASES;
        for (phase, way, writes, sizes) in [
            (sequential, FileVariant::Batched, 8, 8),
            (sequential, FileVariant::OneAtATime, 256, 256),
            (random, FileVariant::Batched, 256, 0),
            (random, FileVariant::OneAtATime, 256, 256),
        ] {
            let seen = Arc::default();
            let mut file = File::new(Box::new(Counting(Arc::clone(&seen))), way, MOST, 0).unwrap();
            let piece = if way == FileVariant::Batched { phase.bytes } else { EXTENT };
            let Phase { name, .. } = phase;
            file.run(phase, pieces(ALL / piece)).unwrap();
            assert_eq!(*seen.lock().unwrap(), (writes, sizes), "{name}, {way:?}");
        }
    }
}
