//! The modes by their definitions, over one block of RustCrypto's ciphers after the other.

use cipher::{Array, BlockCipherEncrypt, KeyInit, consts::U16};

/// Encrypts a block under a key.
type OneBlock = Box<dyn Fn([u8; 16]) -> [u8; 16]>;

/// A mode, for one sector.
pub(crate) struct Plain {
    chain: String,
    data: OneBlock,
    /// XTS's second key; in other modes the first again.
    tweak: OneBlock,
}

fn keyed<C: KeyInit + BlockCipherEncrypt<BlockSize = U16> + 'static>(key: &[u8]) -> OneBlock {
    let cipher = C::new_from_slice(key).unwrap();
    Box::new(move |block| {
        let mut block = Array(block);
        cipher.encrypt_block(&mut block);
        block.0
    })
}

fn xor(a: [u8; 16], b: &[u8]) -> [u8; 16] {
    std::array::from_fn(|nth| a[nth] ^ b[nth])
}

impl Plain {
    /// Makes a mode from dm-crypt's names.
    pub(crate) fn new(cipher: &str, chain: &str, key: &[u8]) -> Self {
        let keyed = |key: &[u8]| match cipher {
            "twofish" => keyed::<twofish::Twofish>(key),
            "camellia" => match key.len() {
                16 => keyed::<camellia::Camellia128>(key),
                24 => keyed::<camellia::Camellia192>(key),
                _ => keyed::<camellia::Camellia256>(key),
            },
            "aria" => match key.len() {
                16 => keyed::<aria::Aria128>(key),
                24 => keyed::<aria::Aria192>(key),
                _ => keyed::<aria::Aria256>(key),
            },
            "sm4" => keyed::<sm4::Sm4>(key),
            "cast6" => keyed::<cast6::Cast6>(key),
            _ => keyed::<serpent::Serpent>(key),
        };
        let (data, tweak) = if chain == "xts" { key.split_at(key.len() / 2) } else { (key, key) };
        Self { chain: chain.into(), data: keyed(data), tweak: keyed(tweak) }
    }

    /// Encrypts a sector.
    pub(crate) fn sector(&self, iv: &[u8; 16], data: &[u8]) -> Vec<u8> {
        let mut tweak = u128::from_le_bytes((self.tweak)(*iv));
        let mut chain = *iv;
        let mut counter = u128::from_be_bytes(*iv);
        let block = |block: &[u8]| match &*self.chain {
            "xts" => {
                let mask = tweak.to_le_bytes();
                tweak = (tweak << 1) ^ ((tweak >> 127) * 0x87);
                xor((self.data)(xor(mask, block)), &mask)
            }
            "cbc" => {
                chain = (self.data)(xor(chain, block));
                chain
            }
            "ctr" => {
                let stream = (self.data)(counter.to_be_bytes());
                counter = counter.wrapping_add(1);
                xor(stream, block)
            }
            _ => (self.data)(block.try_into().unwrap()),
        };
        data.chunks(16).flat_map(block).collect()
    }
}
