//! `integrity:N:none`: sectors are not authenticated. A random IV is stored; a derived one is not,
//! and tuples are zero.

use std::sync::Arc;

use cipher::inout::InOutBuf;

use super::{Aead, Tags, TagsMut, count};
use crate::mode::AnyMode;
use crate::sector::Run;
use crate::{BadSector, SectorCipher, SectorSize};

/// A chain mode with stored IVs.
pub(crate) struct StoredIv<const W: usize>(pub(crate) AnyMode<W>);

impl<const W: usize> Aead<W> for StoredIv<W> {
    fn seal(&self, _run: Run, ivs: &mut [[u8; W]], data: InOutBuf<'_, '_, u8>, _tags: &mut TagsMut<'_>) {
        self.0.encrypt(ivs, data);
    }

    fn open(
        &self,
        _run: Run,
        ivs: &mut [[u8; W]],
        data: InOutBuf<'_, '_, u8>,
        _tags: Tags<'_>,
    ) -> Result<(), BadSector> {
        self.0.decrypt(ivs, data);
        Ok(())
    }
}

/// A cipher that does not use the tuples of its sectors.
pub(crate) struct UnusedTuples {
    pub(crate) cipher: Arc<dyn SectorCipher>,
    pub(crate) tuple: usize,
}

impl SectorCipher for UnusedTuples {
    fn sector_size(&self) -> SectorSize {
        self.cipher.sector_size()
    }

    fn encrypt(&self, first: u64, data: InOutBuf<'_, '_, u8>) {
        self.cipher.encrypt(first, data);
    }

    fn decrypt(&self, first: u64, data: InOutBuf<'_, '_, u8>) {
        self.cipher.decrypt(first, data);
    }

    fn is_null(&self) -> bool {
        self.cipher.is_null()
    }

    fn is_local(&self) -> bool {
        self.cipher.is_local()
    }

    fn tag_size(&self) -> usize {
        self.tuple
    }

    fn seal(&self, first: u64, data: InOutBuf<'_, '_, u8>, tags: &mut [u8]) -> Result<(), BadSector> {
        count(self.sector_size(), self.tuple, data.len(), tags.len())?;
        tags.fill(0);
        self.cipher.encrypt(first, data);
        Ok(())
    }

    fn open(&self, first: u64, data: InOutBuf<'_, '_, u8>, tags: &[u8]) -> Result<(), BadSector> {
        count(self.sector_size(), self.tuple, data.len(), tags.len())?;
        self.cipher.decrypt(first, data);
        Ok(())
    }
}
