//! `authenc(mac,mode)`: a chain mode, and a MAC over number || IV || ciphertext.
//!
//! The authenticated IV is the one that the mode gets: with `essiv` the encrypted one.

use cipher::inout::InOutBuf;

use super::{Aead, Associated, MANY, Tags, TagsMut};
use crate::BadSector;
use crate::mac::{AnyMac, Messages, NO_SUM};
use crate::mode::AnyMode;
use crate::sector::Run;

pub(crate) struct Authenc<const W: usize> {
    pub(crate) mode: AnyMode<W>,
    pub(crate) mac: AnyMac,
}

/// The authenticated bytes of each sector.
fn associated<const W: usize>(run: Run, ivs: &[[u8; W]]) -> [Associated; MANY] {
    let mut all = [Associated::EMPTY; MANY];
    for (nth, (associated, iv)) in all.iter_mut().zip(ivs).enumerate() {
        *associated = Associated::of(run, nth, iv);
    }
    all
}

impl<const W: usize> Aead<W> for Authenc<W> {
    fn seal(&self, run: Run, ivs: &mut [[u8; W]], mut data: InOutBuf<'_, '_, u8>, tags: &mut TagsMut<'_>) {
        let associated = associated(run, ivs);
        self.mode.encrypt(ivs, data.reborrow());
        let mut sums = [NO_SUM; MANY];
        let messages = Messages { heads: &associated[..ivs.len()], head: 8 + W, data: data.get_out() };
        self.mac.sums(&messages, &mut sums[..ivs.len()]);
        tags.set(&sums[..ivs.len()]);
    }

    fn open(
        &self,
        run: Run,
        ivs: &mut [[u8; W]],
        data: InOutBuf<'_, '_, u8>,
        tags: Tags<'_>,
    ) -> Result<(), BadSector> {
        let associated = associated(run, ivs);
        let mut sums = [NO_SUM; MANY];
        let messages = Messages { heads: &associated[..ivs.len()], head: 8 + W, data: data.get_in() };
        self.mac.sums(&messages, &mut sums[..ivs.len()]);
        if let Some(bad) = (0..ivs.len()).find(|&nth| !tags.agrees(nth, &sums[nth])) {
            return Err(BadSector(bad));
        }
        self.mode.decrypt(ivs, data);
        Ok(())
    }
}
