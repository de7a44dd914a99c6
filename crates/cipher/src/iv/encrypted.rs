//! E(IV) with another key: the tweak of XTS, and ESSIV, which is E(`plain64`).

use super::IvGenerator;
use crate::block::BlockCipher;
use crate::kernel::AesKey;
use crate::sector::Run;

/// The IVs of another generator, encrypted.
pub(crate) struct EncryptedIv<I, C> {
    pub(crate) iv: I,
    pub(crate) by: C,
}

impl<I: IvGenerator<W>, C: BlockCipher<W>, const W: usize> IvGenerator<W> for EncryptedIv<I, C> {
    fn fill(&self, run: Run, ivs: &mut [[u8; W]]) {
        self.iv.fill(run, ivs);
        self.by.encrypt(ivs);
    }
}

/// `plain64`, encrypted without a detour through memory.
pub(crate) struct EncryptedNumbers {
    pub(crate) by: AesKey,
}

impl IvGenerator<16> for EncryptedNumbers {
    fn fill(&self, run: Run, ivs: &mut [[u8; 16]]) {
        self.by.encrypt_numbers(run, ivs);
    }
}
