//! Several keys: sector cc has the key cc & (N - 1), in 512-byte units whatever the sector size.

use std::sync::Arc;

use cipher::inout::InOutBuf;

use super::{AnyMode, ChainCipher};
use crate::sector::Run;
use crate::{SectorCipher, SectorSize};

/// A cipher for each key.
pub(crate) struct ManyKeys {
    /// The ciphers; their number is a power of two.
    pub(crate) ciphers: Vec<Arc<dyn SectorCipher>>,
    pub(crate) size: SectorSize,
}

impl ManyKeys {
    fn each(
        &self,
        first: u64,
        data: InOutBuf<'_, '_, u8>,
        apply: impl Fn(&dyn SectorCipher, u64, InOutBuf<'_, '_, u8>),
    ) {
        let bytes = self.size.bytes();
        assert!(data.len().is_multiple_of(bytes), "{} bytes are no whole sectors", data.len());
        let mask = self.ciphers.len() as u64 - 1;
        let (mut cc, mut rest) = (first, data);
        while !rest.is_empty() {
            let sector;
            (sector, rest) = rest.split_at(bytes);
            let nth = usize::try_from(cc & mask).unwrap_or(0);
            apply(&*self.ciphers[nth], cc, sector);
            cc = cc.wrapping_add(self.size.units());
        }
    }
}

impl SectorCipher for ManyKeys {
    fn sector_size(&self) -> SectorSize {
        self.size
    }

    fn encrypt(&self, first: u64, data: InOutBuf<'_, '_, u8>) {
        self.each(first, data, |cipher, cc, sector| cipher.encrypt(cc, sector));
    }

    fn decrypt(&self, first: u64, data: InOutBuf<'_, '_, u8>) {
        self.each(first, data, |cipher, cc, sector| cipher.decrypt(cc, sector));
    }

    fn is_local(&self) -> bool {
        self.ciphers.iter().all(|cipher| cipher.is_local())
    }
}

/// A mode for each key, or one for all, where an IV generator treats all sectors of a run together.
pub(crate) struct RotatingModes<'a, const W: usize> {
    /// The modes; their number is a power of two.
    pub(crate) modes: &'a [AnyMode<W>],
    /// The run of the sectors.
    pub(crate) run: Run,
}

impl<'a, const W: usize> RotatingModes<'a, W> {
    /// The mode of the run's sector `nth`.
    pub(crate) fn mode(&self, nth: usize) -> &'a dyn ChainCipher<W> {
        let mask = self.modes.len() as u64 - 1;
        &*self.modes[usize::try_from(self.run.place(nth) & mask).unwrap_or(0)]
    }

    fn each(
        &self,
        ivs: &mut [[u8; W]],
        data: InOutBuf<'_, '_, u8>,
        apply: impl Fn(&dyn ChainCipher<W>, &mut [[u8; W]], InOutBuf<'_, '_, u8>),
    ) {
        if let [mode] = self.modes {
            return apply(&**mode, ivs, data);
        }
        let bytes = data.len() / ivs.len();
        let mut rest = data;
        for (nth, iv) in ivs.iter_mut().enumerate() {
            let sector;
            (sector, rest) = rest.split_at(bytes);
            apply(self.mode(nth), std::slice::from_mut(iv), sector);
        }
    }
}

impl<const W: usize> ChainCipher<W> for RotatingModes<'_, W> {
    fn encrypt(&self, ivs: &mut [[u8; W]], data: InOutBuf<'_, '_, u8>) {
        self.each(ivs, data, |mode, iv, sector| mode.encrypt(iv, sector));
    }

    fn decrypt(&self, ivs: &mut [[u8; W]], data: InOutBuf<'_, '_, u8>) {
        self.each(ivs, data, |mode, iv, sector| mode.decrypt(iv, sector));
    }
}
