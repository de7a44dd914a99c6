//! A toy cipher with tags, which is not secure: it tests the path of tags.

use std::sync::Arc;

use underseal_cipher::{BadSector, InOutBuf, SectorCipher, SectorSize};

/// Another cipher, with a sum over ciphertext and number beside each sector.
pub(crate) struct Toy {
    pub(crate) inner: Arc<dyn SectorCipher>,
    pub(crate) tag_size: usize,
    /// A toy with another number makes other tags.
    pub(crate) key: u64,
}

impl Toy {
    fn tag(&self, sector: u64, data: &[u8], into: &mut [u8]) {
        let start = 0xcbf2_9ce4_8422_2325 ^ self.key;
        let step = |sum: u64, word: u64| (sum.rotate_left(29) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let words = data.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
        let sum = words.fold(step(start, sector), step);
        into.fill(0xa5);
        let len = into.len().min(8);
        into[..len].copy_from_slice(&sum.to_le_bytes()[..len]);
    }
}

impl SectorCipher for Toy {
    fn sector_size(&self) -> SectorSize {
        self.inner.sector_size()
    }

    fn encrypt(&self, _: u64, _: InOutBuf<'_, '_, u8>) {
        panic!("its tags are asked for");
    }

    fn decrypt(&self, _: u64, _: InOutBuf<'_, '_, u8>) {
        panic!("its tags are shown to it");
    }

    fn is_local(&self) -> bool {
        true
    }

    fn tag_size(&self) -> usize {
        self.tag_size
    }

    fn seal(&self, first: u64, mut data: InOutBuf<'_, '_, u8>, tags: &mut [u8]) -> Result<(), BadSector> {
        let size = self.sector_size();
        assert_eq!(tags.len(), data.len() / size.bytes() * self.tag_size, "a tuple for each sector");
        self.inner.encrypt(first, data.reborrow());
        let sectors = data.get_out().chunks(size.bytes());
        for ((sector, data), tag) in
            (first..).step_by(size.bytes() / 512).zip(sectors).zip(tags.chunks_mut(self.tag_size))
        {
            self.tag(sector, data, tag);
        }
        Ok(())
    }

    fn open(&self, first: u64, data: InOutBuf<'_, '_, u8>, tags: &[u8]) -> Result<(), BadSector> {
        let size = self.sector_size();
        assert_eq!(tags.len(), data.len() / size.bytes() * self.tag_size, "a tuple for each sector");
        let mut expected = vec![0; self.tag_size];
        for (nth, (data, tag)) in
            data.get_in().chunks(size.bytes()).zip(tags.chunks(self.tag_size)).enumerate()
        {
            self.tag(first + size.units() * nth as u64, data, &mut expected);
            if expected != tag {
                return Err(BadSector(nth));
            }
        }
        self.inner.decrypt(first, data);
        Ok(())
    }
}
