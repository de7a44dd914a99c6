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
        let bytes = self.sector_size.bytes();
        assert!(data.len().is_multiple_of(bytes), "{} bytes are no whole sectors", data.len());
        let _ = data.into_out_with_copied_in();
    }

    fn decrypt(&self, first: u64, data: InOutBuf<'_, '_, u8>) {
        self.encrypt(first, data);
    }

    fn is_null(&self) -> bool {
        true
    }

    fn is_local(&self) -> bool {
        true
    }
}
