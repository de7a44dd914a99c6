//! Several keys: sector cc has the key cc & (N - 1), in 512-byte units whatever the sector size.

use std::sync::Arc;

use cipher::inout::InOutBuf;

use crate::{SectorCipher, SectorSize};

/// One cipher for each key.
pub(crate) struct ManyKeys {
    /// A power of two of them.
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
