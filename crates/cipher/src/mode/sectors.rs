//! A whole request: runs of sectors, their IVs made together, one call of the mode for each run.

use std::ops::Range;

use cipher::inout::InOutBuf;

use super::many_keys::RotatingModes;
use super::{AnyMode, ChainCipher};
use crate::iv::{IvGenerator, Treatment};
use crate::sector::{Run, whole};
use crate::{BadSector, CpuPath, SectorCipher, SectorSize, SharedDestination, SharedSource};

/// The division of a request into sectors, and their numbering.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SectorSplit {
    pub(crate) size: SectorSize,
    /// `iv_large_sectors`: IVs count sectors of `size`, not of 512 bytes.
    pub(crate) large: bool,
}

/// IVs live on the stack and are zeroed first, so a request of few sectors gets a short array.
const FEW: usize = 8;
/// Sectors whose IVs are made in one call.
const MANY: usize = 32;

impl SectorSplit {
    /// Calls `apply` with runs of sectors and room for their IVs.
    #[inline]
    fn request<const W: usize>(
        self,
        first: u64,
        data: InOutBuf<'_, '_, u8>,
        apply: impl Fn(Run, &mut [[u8; W]], InOutBuf<'_, '_, u8>),
    ) {
        let bytes = self.size.bytes();
        assert!(data.len().is_multiple_of(bytes), "{} bytes are no whole sectors", data.len());
        let run = Run::new(first, self.size, self.large);
        match data.len() / bytes {
            0 => {}
            1 => self.runs::<W, 1>(run, data, apply),
            2..=FEW => self.runs::<W, FEW>(run, data, apply),
            _ => self.runs::<W, MANY>(run, data, apply),
        }
    }

    /// Calls `apply` with the ranges of runs of a request of `len` bytes, and room for their IVs.
    #[inline]
    fn ranges<const W: usize>(
        self,
        first: u64,
        len: usize,
        apply: impl FnMut(Run, &mut [[u8; W]], Range<usize>),
    ) {
        let run = Run::new(first, self.size, self.large);
        match len / self.size.bytes() {
            0 => {}
            1 => self.each_range::<W, 1>(run, len, apply),
            2..=FEW => self.each_range::<W, FEW>(run, len, apply),
            _ => self.each_range::<W, MANY>(run, len, apply),
        }
    }

    #[inline]
    fn each_range<const W: usize, const N: usize>(
        self,
        mut run: Run,
        len: usize,
        mut apply: impl FnMut(Run, &mut [[u8; W]], Range<usize>),
    ) {
        let bytes = self.size.bytes();
        let mut ivs = [[0; W]; N];
        for start in (0..len).step_by(N * bytes) {
            let range = start..len.min(start + N * bytes);
            let sectors = range.len() / bytes;
            apply(run, &mut ivs[..sectors], range);
            run = run.skip(sectors);
        }
    }

    #[inline]
    fn runs<const W: usize, const N: usize>(
        self,
        mut run: Run,
        mut rest: InOutBuf<'_, '_, u8>,
        apply: impl Fn(Run, &mut [[u8; W]], InOutBuf<'_, '_, u8>),
    ) {
        let bytes = self.size.bytes();
        let mut ivs = [[0; W]; N];
        while !rest.is_empty() {
            let sectors = N.min(rest.len() / bytes);
            let data;
            (data, rest) = rest.split_at(sectors * bytes);
            apply(run, &mut ivs[..sectors], data);
            run = run.skip(sectors);
        }
    }
}

/// A chain mode and an IV generator.
pub(crate) struct ChainedSectors<M, I, const W: usize> {
    pub(crate) mode: M,
    pub(crate) iv: I,
    pub(crate) layout: SectorSplit,
}

impl<M: ChainCipher<W>, I: IvGenerator<W>, const W: usize> SectorCipher for ChainedSectors<M, I, W> {
    fn sector_size(&self) -> SectorSize {
        self.layout.size
    }

    fn encrypt(&self, first: u64, data: InOutBuf<'_, '_, u8>) {
        self.layout.request(first, data, |run, ivs, data| {
            self.iv.fill(run, ivs);
            self.mode.encrypt(ivs, data);
        });
    }

    fn decrypt(&self, first: u64, data: InOutBuf<'_, '_, u8>) {
        self.layout.request(first, data, |run, ivs, data| {
            self.iv.fill(run, ivs);
            self.mode.decrypt(ivs, data);
        });
    }

    fn is_local(&self) -> bool {
        self.mode.is_local()
    }

    fn cpu_paths(&self) -> Option<[CpuPath; 2]> {
        self.mode.cpu_paths()
    }

    fn seal_from(
        &self,
        first: u64,
        source: SharedSource<'_>,
        data: &mut [u8],
        tags: &mut [u8],
    ) -> Result<(), BadSector> {
        whole(self.layout.size, data.len(), tags)?;
        let mut rest = source;
        self.layout.ranges(first, data.len(), |run, ivs, range| {
            let source;
            (source, rest) = rest.split_at(range.len());
            self.iv.fill(run, ivs);
            self.mode.encrypt_from(ivs, source, &mut data[range]);
        });
        Ok(())
    }

    fn open_to(
        &self,
        first: u64,
        data: &mut [u8],
        destination: SharedDestination<'_>,
        tags: &[u8],
    ) -> Result<(), BadSector> {
        whole(self.layout.size, data.len(), tags)?;
        let mut rest = destination;
        self.layout.ranges(first, data.len(), |run, ivs, range| {
            let destination;
            (destination, rest) = rest.split_at(range.len());
            self.iv.fill(run, ivs);
            self.mode.decrypt_to(ivs, &mut data[range], destination);
        });
        Ok(())
    }
}

/// A chain mode inside a treatment.
pub(crate) struct TreatedSectors<T, const W: usize> {
    /// A mode for each key; their number is a power of two.
    pub(crate) modes: Vec<AnyMode<W>>,
    pub(crate) by: T,
    pub(crate) layout: SectorSplit,
}

impl<T, const W: usize> TreatedSectors<T, W> {
    /// The modes of a run.
    fn modes(&self, run: Run) -> RotatingModes<'_, W> {
        RotatingModes { modes: &self.modes, run }
    }

    /// Gives a request to `together`, and the rest of it to `each`, run by run.
    fn request<'i, 'o>(
        &self,
        first: u64,
        data: InOutBuf<'i, 'o, u8>,
        together: impl FnOnce(&RotatingModes<'_, W>, InOutBuf<'i, 'o, u8>) -> InOutBuf<'i, 'o, u8>,
        each: impl Fn(&RotatingModes<'_, W>, &mut [[u8; W]], InOutBuf<'_, '_, u8>),
    ) {
        let (len, SectorSplit { size, large }) = (data.len(), self.layout);
        let rest = together(&self.modes(Run::new(first, size, large)), data);
        // Sector numbers count 512 bytes.
        let done = (len - rest.len()) as u64 >> 9;
        let each = |run, ivs: &mut [[u8; W]], data: InOutBuf<'_, '_, u8>| each(&self.modes(run), ivs, data);
        self.layout.request(first.wrapping_add(done), rest, each);
    }
}

impl<T: Treatment<W>, const W: usize> SectorCipher for TreatedSectors<T, W> {
    fn sector_size(&self) -> SectorSize {
        self.layout.size
    }

    fn encrypt(&self, first: u64, data: InOutBuf<'_, '_, u8>) {
        let together = |modes: &RotatingModes<'_, W>, data| self.by.encrypt_together(modes, data);
        self.request(first, data, together, |modes, ivs, data| {
            self.by.encrypt(modes.run, ivs, modes, data);
        });
    }

    fn decrypt(&self, first: u64, data: InOutBuf<'_, '_, u8>) {
        let together = |modes: &RotatingModes<'_, W>, data| self.by.decrypt_together(modes, data);
        self.request(first, data, together, |modes, ivs, data| {
            self.by.decrypt(modes.run, ivs, modes, data);
        });
    }
}
