//! `cipher_null`: ciphertext = plaintext. For measuring the path without crypto; it protects nothing.

use cipher::inout::InOutBuf;

use crate::{SectorCipher, SectorSize};

pub(crate) struct Null {
    pub(crate) sector_size: SectorSize,
}

impl SectorCipher for Null {
    fn sector_size(&self) -> SectorSize {
        self.sector_size
    }

    fn encrypt(&self, _first: u64, data: InOutBuf<'_, '_, u8>) {
        let _ = super::blocks(data, self.sector_size).into_out_with_copied_in();
    }

    fn decrypt(&self, first: u64, data: InOutBuf<'_, '_, u8>) {
        self.encrypt(first, data);
    }

    fn is_null(&self) -> bool {
        true
    }
}
