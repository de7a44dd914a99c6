//! Several ciphers in one: chains of whole modes, and one CBC around several block ciphers; and LRW
//! over small blocks, which no specification of dm-crypt names either.

use std::sync::Arc;

use super::ciphers::{BlockCipherBuilder, BlockCipherKind};
use super::list;
use crate::block::{AnyCipher, BlockCipher};
use crate::chain::Chain;
use crate::iv::{Benbi, Tcw};
use crate::mode::{Cbc, ChainedSectors, Lrw, SectorSplit, TreatedSectors};
use crate::wipe::wipe_stack;
use crate::{CpuPath, Error, ErrorKind, Result, SectorCipher, SectorSize};

/// The most ciphers of a chain: VeraCrypt's longest has three.
const MOST: usize = 4;

/// Makes one cipher of several over the same sectors. The first one encrypts first, and decrypts
/// last.
///
/// # Errors
/// `Unsupported` without ciphers, with more than four, or with one that has tags; `SectorSize` when
/// their sectors differ.
pub fn chain(ciphers: Vec<Arc<dyn SectorCipher>>) -> Result<Arc<dyn SectorCipher>> {
    let Some(size) = ciphers.first().map(|cipher| cipher.sector_size()) else {
        return Err(Error::new(ErrorKind::Unsupported, "a chain of no ciphers"));
    };
    if ciphers.len() > MOST || ciphers.iter().any(|cipher| cipher.tag_size() > 0) {
        let context = format!("a chain has at most {MOST} ciphers, none of which keeps tags");
        return Err(Error::new(ErrorKind::Unsupported, context));
    }
    if ciphers.iter().any(|cipher| cipher.sector_size() != size) {
        return Err(Error::new(ErrorKind::SectorSize, "the ciphers of a chain have sectors of one size"));
    }
    Ok(if ciphers.len() == 1 { ciphers[0].clone() } else { Arc::new(Chain { ciphers, size }) })
}

/// Makes TrueCrypt's outer CBC over sectors of 512 bytes: one CBC whose block cipher is several in
/// turn, in the order of encryption, with the IVs and the whitening of dm-crypt's `tcw`.
///
/// `ciphers` are names and keys of ciphers of 16-byte blocks; `extra` is the IV's seed of 16 bytes,
/// then 16 of whitening.
///
/// # Errors
/// `Unsupported` for a cipher that is not in this build or has other blocks, or for none or more
/// than four; `KeySize`; `Memory`.
pub fn build_outer_cbc(ciphers: &[(&str, &[u8])], extra: &[u8; 32]) -> Result<Arc<dyn SectorCipher>> {
    let path = CpuPath::chosen()?;
    if !(1..=MOST).contains(&ciphers.len()) {
        let context = format!("one to {MOST} ciphers, not {}", ciphers.len());
        return Err(Error::new(ErrorKind::Unsupported, context));
    }
    let make = |&(name, key): &(&str, &[u8])| -> Result<AnyCipher<16>> {
        let BlockCipherBuilder::Of16(make) = named(name, key)?.make else {
            return Err(Error::new(ErrorKind::Unsupported, format!("{name} has blocks of 8 bytes")));
        };
        make(key, path)
    };
    let data = InTurn(ciphers.iter().map(make).collect::<Result<_>>()?);
    let by = Tcw::<16>::new(extra, path)?;
    wipe_stack::<{ 64 << 10 }>();
    let layout = SectorSplit { size: SectorSize::S512, large: false };
    Ok(Arc::new(TreatedSectors { modes: vec![Box::new(Cbc { data })], by, layout }))
}

/// Makes TrueCrypt's LRW of a cipher of 8-byte blocks over sectors of 512 bytes: in GF(2^64), with
/// `benbi`'s numbers of blocks. dm-crypt's LRW takes ciphers of 16-byte blocks only.
///
/// # Errors
/// `Unsupported` for a cipher that is not in this build or has other blocks; `KeySize`; `Memory`.
pub fn build_truecrypt_lrw(cipher: &str, key: &[u8], tweak: &[u8; 8]) -> Result<Arc<dyn SectorCipher>> {
    let BlockCipherBuilder::Of8(make) = named(cipher, key)?.make else {
        return Err(Error::new(ErrorKind::Unsupported, format!("{cipher} has blocks of 16 bytes")));
    };
    let mode = Lrw::<_, 8>::new(make(key)?, tweak)?;
    wipe_stack::<{ 64 << 10 }>();
    let layout = SectorSplit { size: SectorSize::S512, large: false };
    Ok(Arc::new(ChainedSectors { mode, iv: Benbi { shift: 6 }, layout }))
}

/// The cipher of this name, which takes keys as long as `key`.
fn named(name: &str, key: &[u8]) -> Result<&'static BlockCipherKind> {
    let kind = BlockCipherKind::named(name).map_err(|why| Error::new(ErrorKind::Unsupported, why))?;
    if kind.keys.contains(&key.len()) {
        return Ok(kind);
    }
    let sizes = list(kind.keys);
    let context = format!("{name} takes a key of {sizes} bytes, not {}", key.len());
    Err(Error::new(ErrorKind::KeySize, context))
}

/// Several block ciphers in turn, as one.
struct InTurn(Vec<AnyCipher<16>>);

impl BlockCipher<16> for InTurn {
    fn encrypt(&self, blocks: &mut [[u8; 16]]) {
        self.0.iter().for_each(|cipher| cipher.encrypt(blocks));
    }

    fn decrypt(&self, blocks: &mut [[u8; 16]]) {
        self.0.iter().rev().for_each(|cipher| cipher.decrypt(blocks));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cipher::inout::InOutBuf;

    /// Requests of one sector each, and one of all, also where the numbers of blocks begin again.
    #[test]
    fn truecrypts_lrw_is_the_same_for_a_request_in_parts() {
        let cipher = build_truecrypt_lrw("cast5", &[7; 16], b"tweaking").unwrap();
        let plain: Vec<u8> = (0..4 * 512u32).map(|i| i.to_le_bytes()[0]).collect();
        for first in [0, 5, (1 << 58) - 2] {
            let (mut whole, mut parts) = (plain.clone(), plain.clone());
            cipher.encrypt(first, InOutBuf::from(&mut whole[..]));
            for (nth, part) in (0..).zip(parts.chunks_mut(512)) {
                cipher.encrypt(first + nth, InOutBuf::from(part));
            }
            assert!(whole == parts, "{first}");
            cipher.decrypt(first, InOutBuf::from(&mut whole[..]));
            assert!(whole == plain, "{first}");
        }
    }

    #[test]
    fn truecrypts_lrw_takes_ciphers_of_small_blocks_with_their_keys() {
        let refused = |cipher, key: &[u8]| build_truecrypt_lrw(cipher, key, &[1; 8]).err().unwrap().kind();
        assert_eq!(refused("aes", &[1; 32]), ErrorKind::Unsupported);
        assert_eq!(refused("nosuch", &[1; 32]), ErrorKind::Unsupported);
        assert_eq!(refused("des3_ede", &[1; 16]), ErrorKind::KeySize);
    }
}
