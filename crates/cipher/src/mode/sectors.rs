//! A whole request: runs of sectors, their IVs made together, one call of the mode for each run.

use cipher::inout::InOutBuf;

use super::Mode;
use crate::iv::IvGenerator;
use crate::sector::Run;
use crate::{SectorCipher, SectorSize};

/// A chain mode and an IV generator.
pub(crate) struct Sectors<M, I, const W: usize> {
    pub(crate) mode: M,
    pub(crate) iv: I,
    pub(crate) size: SectorSize,
    /// `iv_large_sectors`: IVs count sectors of `size`, not of 512 bytes.
    pub(crate) large: bool,
}

/// IVs live on the stack and are zeroed first, so a request of few sectors gets a short array.
const FEW: usize = 8;
/// Sectors whose IVs are made together.
const MANY: usize = 32;

impl<M: Mode<W>, I: IvGenerator<W>, const W: usize> Sectors<M, I, W> {
    #[inline]
    fn request(
        &self,
        first: u64,
        data: InOutBuf<'_, '_, u8>,
        apply: impl Fn(&mut [[u8; W]], InOutBuf<'_, '_, u8>),
    ) {
        let bytes = self.size.bytes();
        assert!(data.len().is_multiple_of(bytes), "{} bytes are no whole sectors", data.len());
        let run = Run::new(first, self.size, self.large);
        match data.len() / bytes {
            0 => {}
            1 => self.runs::<1>(run, data, apply),
            2..=FEW => self.runs::<FEW>(run, data, apply),
            _ => self.runs::<MANY>(run, data, apply),
        }
    }

    #[inline]
    fn runs<const N: usize>(
        &self,
        mut run: Run,
        mut rest: InOutBuf<'_, '_, u8>,
        apply: impl Fn(&mut [[u8; W]], InOutBuf<'_, '_, u8>),
    ) {
        let bytes = self.size.bytes();
        let mut ivs = [[0; W]; N];
        while !rest.is_empty() {
            let sectors = N.min(rest.len() / bytes);
            let data;
            (data, rest) = rest.split_at(sectors * bytes);
            let ivs = &mut ivs[..sectors];
            self.iv.fill(run, ivs);
            apply(ivs, data);
            run = run.skip(sectors);
        }
    }
}

impl<M: Mode<W>, I: IvGenerator<W>, const W: usize> SectorCipher for Sectors<M, I, W> {
    fn sector_size(&self) -> SectorSize {
        self.size
    }

    fn encrypt(&self, first: u64, data: InOutBuf<'_, '_, u8>) {
        self.request(first, data, |ivs, data| self.mode.encrypt(ivs, data));
    }

    fn decrypt(&self, first: u64, data: InOutBuf<'_, '_, u8>) {
        self.request(first, data, |ivs, data| self.mode.decrypt(ivs, data));
    }
}
