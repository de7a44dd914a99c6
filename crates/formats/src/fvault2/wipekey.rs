//! `EncryptedRoot.plist.wipekey`: the list of keys of a system volume, as a file of the recovery
//! partition.
//!
//! The whole file is one unit of AES-128-XTS (IEEE 1619) under the key data of the physical
//! volume's header, with a tweak key of zeros and tweak 0. The bytes behind the last whole block
//! are handled by ciphertext stealing.

use aes::Aes128;
use aes::cipher::{BlockCipherDecrypt, BlockCipherEncrypt, KeyInit};
use underseal_cipher::{Key, Locked};

use crate::{Error, ErrorKind, Result};

const BLOCK: usize = 16;

/// Decrypts a file.
///
/// Returns `BadOption` when the file is too short, or decrypts to no list of keys, and `Memory`.
pub(super) fn decrypt(file: &Key, key: &Key) -> Result<Key> {
    let bad = |why: &str| Error::new(ErrorKind::BadOption, format!("no EncryptedRoot.plist.wipekey: {why}"));
    if file.len() < BLOCK {
        return Err(bad("it is too short"));
    }
    let is_list =
        |bytes: &[u8]| bytes.windows(6).take(4096).any(|window| window == b"<plist" || window == b"<dict>");
    let mut list = Key::new(file.as_bytes())?;
    // The volume may have been decrypted before.
    if !is_list(list.as_bytes()) {
        xts(key, list.as_mut_bytes())?;
    }
    if is_list(list.as_bytes()) { Ok(list) } else { Err(bad("it is of another volume, or damaged")) }
}

fn xts(key: &Key, data: &mut [u8]) -> Result<()> {
    let bad = |_| Error::new(ErrorKind::BadHeader, "key data that are not of 16 bytes");
    let cipher = Locked::new(Aes128::new_from_slice(key.as_bytes()).map_err(bad)?)?;
    let mut tweak = [0; BLOCK];
    Aes128::new(&[0; BLOCK].into()).encrypt_block((&mut tweak).into());
    let block = |data: &mut [u8; BLOCK], tweak: &[u8; BLOCK]| {
        let add =
            |data: &mut [u8; BLOCK]| data.iter_mut().zip(tweak).for_each(|(byte, tweak)| *byte ^= tweak);
        add(data);
        cipher.decrypt_block(data.into());
        add(data);
    };
    let left = data.len() % BLOCK;
    let (blocks, rest) = data.as_chunks_mut::<BLOCK>();
    let last = blocks.len().saturating_sub(usize::from(left > 0));
    for data in &mut blocks[..last] {
        block(data, &tweak);
        double(&mut tweak);
    }
    if let Some(stolen) = blocks.get_mut(last) {
        let mut next = tweak;
        double(&mut next);
        block(stolen, &next);
        stolen[..left].swap_with_slice(rest);
        block(stolen, &tweak);
    }
    Ok(())
}

/// Times x in GF(2^128), little-endian.
fn double(tweak: &mut [u8; BLOCK]) {
    let number = u128::from_le_bytes(*tweak);
    let carry = if number >> 127 == 1 { 0x87 } else { 0 };
    *tweak = (number << 1 ^ carry).to_le_bytes();
}

#[cfg(test)]
mod tests {
    use super::*;
    use underseal_cipher::{SectorSize, build};

    #[test]
    fn a_unit_of_whole_blocks_is_as_the_sector_cipher_has_it() {
        let mut both = [0; 32];
        both[..16].fill(7);
        let spec = "aes-xts-plain64".parse().unwrap();
        let cipher = build(&spec, &Key::new(&both).unwrap(), SectorSize::S512).unwrap();
        let plain: Vec<u8> = (0..512u32).map(|nth| nth.to_le_bytes()[0]).collect();
        let mut data = plain.clone();
        cipher.encrypt(0, data.as_mut_slice().into());
        xts(&Key::new(&[7; 16]).unwrap(), &mut data).unwrap();
        assert_eq!(data, plain);
    }

    /// 45 bytes that count from 0, encrypted by OpenSSL.
    #[test]
    fn what_is_left_over_is_stolen_from_the_last_block() {
        let text =
            "c0c4931f1861ef87c8fca46c555231fbc68de815d5d91af2e6c77e1598b0c28906026b515569caf84fcd3c501b";
        let mut data = hex::decode(text).unwrap();
        xts(&Key::new(&[7; 16]).unwrap(), &mut data).unwrap();
        assert!(data.iter().copied().eq(0..45));
    }

    #[test]
    fn a_file_that_holds_no_list_is_refused() {
        let key = Key::new(&[7; 16]).unwrap();
        for bytes in [&[1; 15][..], &[1; 100]] {
            let error = decrypt(&Key::new(bytes).unwrap(), &key).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::BadOption, "{error}");
        }
    }
}
