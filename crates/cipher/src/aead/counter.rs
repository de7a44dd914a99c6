//! Counter mode over any block cipher of 16 bytes, for `gcm` and `ccm`.

use cipher::inout::InOutBuf;

use crate::block::{AnyCipher, BlockCipher, blocks, xor};
use crate::mode::GROUP;

/// Adds the key stream to data: the encrypted blocks of the counter, from number `first` on.
pub(super) fn add_stream(
    cipher: &AnyCipher<16>,
    first: u32,
    counter: impl Fn(u32) -> [u8; 16],
    data: InOutBuf<'_, '_, u8>,
) {
    let (mut rest, mut next, mut stream) = (blocks::<16>(data), first, [[0; 16]; GROUP]);
    while !rest.is_empty() {
        let n = GROUP.min(rest.len());
        let group;
        (group, rest) = rest.split_at(n);
        for block in &mut stream[..n] {
            *block = counter(next);
            next += 1;
        }
        cipher.encrypt_untidied(&mut stream[..n]);
        for (mut block, stream) in group.into_iter().zip(&stream) {
            let sum = xor(block.get_in(), stream);
            *block.get_out() = sum;
        }
    }
}
