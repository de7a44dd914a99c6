//! CBC over whole sectors (NIST SP 800-38A, 6.2): C_0 = E(P_0 ^ IV), C_j = E(P_j ^ C_(j-1)).
//!
//! Encryption is a chain inside a sector, so up to 32 sectors advance side by side, one in each
//! lane; decryption has no chain and takes a sector's blocks in their order.

use super::ecb::{finish, rounds};
use super::schedule::RoundKey;
use super::vector::Vector;
use super::{IN_FLIGHT, LANES};

/// Encrypts `sectors` sectors of `bytes` bytes each, with IVs at `ivs`.
///
/// # Safety
/// The processor has the features of `V`; `keys` are `R + 1` round keys for encryption; `bytes` is
/// a positive multiple of 512; `ivs` holds `sectors` blocks; `src` is readable and `dst` writable
/// for all sectors, and they are the same or apart.
#[inline(always)]
pub(super) unsafe fn cbc_encrypt<V: Vector, const R: usize>(
    keys: *const RoundKey,
    ivs: *const u8,
    sectors: usize,
    bytes: usize,
    src: *const u8,
    dst: *mut u8,
) {
    let mut done = 0;
    while done < sectors {
        let left = sectors - done;
        let chains = |n: usize| Lanes::new(done, left.min(n * V::BLOCKS), bytes);
        // SAFETY: the lanes are sectors from `done` to `sectors`.
        unsafe {
            match left.div_ceil(V::BLOCKS) {
                1 => chain::<V, R, 1>(keys, ivs, &chains(1), bytes, src, dst),
                2 => chain::<V, R, 2>(keys, ivs, &chains(2), bytes, src, dst),
                3..=4 => chain::<V, R, 4>(keys, ivs, &chains(4), bytes, src, dst),
                _ => chain::<V, R, IN_FLIGHT>(keys, ivs, &chains(IN_FLIGHT), bytes, src, dst),
            }
        }
        done += left.min(IN_FLIGHT * V::BLOCKS);
    }
}

/// The sector of each lane.
struct Lanes {
    iv: [usize; LANES],
    data: [usize; LANES],
}

impl Lanes {
    /// Lanes for `count` sectors from `first`; surplus lanes repeat the last sector, with the same
    /// result.
    #[inline(always)]
    fn new(first: usize, count: usize, bytes: usize) -> Self {
        let mut lanes = Self { iv: [0; LANES], data: [0; LANES] };
        for lane in 0..LANES {
            let sector = first + if lane < count { lane } else { count - 1 };
            lanes.iv[lane] = sector * 16;
            lanes.data[lane] = sector * bytes;
        }
        lanes
    }
}

/// Sectors a multiple of this apart share sets of the first-level cache.
const PAGE: usize = 4096;
/// Streams that share these sets without evicting each other.
const WAYS: usize = 8;
/// Bytes of each sector that are fetched at once in this case: whole cache lines.
const LINE: usize = 64;

/// Encrypts the sectors of `N` vectors of lanes from their first block to their last.
///
/// # Safety
/// As [`cbc_encrypt`], for the sectors of these lanes; `N` vectors have no more blocks than there
/// are lanes.
#[inline(always)]
unsafe fn chain<V: Vector, const R: usize, const N: usize>(
    keys: *const RoundKey,
    ivs: *const u8,
    lanes: &Lanes,
    bytes: usize,
    src: *const u8,
    dst: *mut u8,
) {
    // SAFETY: N * BLOCKS is at most LANES, offsets are of sectors, `at` stays inside them. All
    // lanes read a block, or a line, before any writes it, so a repeated lane reads the same bytes
    // as the first, in place too.
    unsafe {
        let mut x = [V::gather(ivs, lanes.iv.as_ptr()); N];
        let mut k = 1;
        while k < N {
            x[k] = V::gather(ivs, lanes.iv.as_ptr().add(k * V::BLOCKS));
            k += 1;
        }
        let mut at = 0;
        if N * V::BLOCKS <= WAYS || !bytes.is_multiple_of(PAGE) {
            while at < bytes {
                step::<V, R, N>(keys, &mut x, &lanes.data, src.add(at), dst.add(at));
                at += 16;
            }
            return;
        }
        let mut lines = [[0u8; LINE]; LANES];
        let staged: [usize; LANES] = std::array::from_fn(|lane| lane * LINE);
        while at < bytes {
            for (line, offset) in lines.iter_mut().zip(&lanes.data).take(N * V::BLOCKS) {
                src.add(at + offset).copy_to_nonoverlapping(line.as_mut_ptr(), LINE);
            }
            let stage = lines.as_mut_ptr().cast::<u8>();
            let mut block = 0;
            while block < LINE {
                step::<V, R, N>(keys, &mut x, &staged, stage.add(block), stage.add(block));
                block += 16;
            }
            for (line, offset) in lines.iter().zip(&lanes.data).take(N * V::BLOCKS) {
                dst.add(at + offset).copy_from_nonoverlapping(line.as_ptr(), LINE);
            }
            at += LINE;
        }
    }
}

/// Encrypts a block of every lane.
///
/// # Safety
/// As [`cbc_encrypt`], for a block at each lane's offset.
#[inline(always)]
unsafe fn step<V: Vector, const R: usize, const N: usize>(
    keys: *const RoundKey,
    x: &mut [V; N],
    offsets: &[usize; LANES],
    src: *const u8,
    dst: *mut u8,
) {
    // SAFETY: the caller's promise: a block is readable and writable at each lane's offset.
    unsafe {
        let first = V::key(keys);
        let mut k = 0;
        while k < N {
            let block = V::gather(src, offsets.as_ptr().add(k * V::BLOCKS));
            x[k] = x[k].xor3(block, first);
            k += 1;
        }
        rounds::<V, R, true, N>(keys, x);
        let last = V::key(keys.add(R));
        let mut k = 0;
        while k < N {
            x[k] = finish::<V, true>(x[k], last);
            x[k].scatter(dst, offsets.as_ptr().add(k * V::BLOCKS));
            k += 1;
        }
    }
}

/// Decrypts `sectors` sectors of `bytes` bytes each, with IVs at `ivs`.
///
/// # Safety
/// As [`cbc_encrypt`], with `keys` for decryption.
#[inline(always)]
pub(super) unsafe fn cbc_decrypt<V: Vector, const R: usize>(
    keys: *const RoundKey,
    ivs: *const u8,
    sectors: usize,
    bytes: usize,
    src: *const u8,
    dst: *mut u8,
) {
    for sector in 0..sectors {
        // SAFETY: groups tile 512 bytes exactly for every vector. In place, a block is read again
        // as the chain of the next one: later vectors are written first, and the group's last block
        // is kept for the next group.
        unsafe {
            let (src, dst) = (src.add(sector * bytes), dst.add(sector * bytes));
            let mut before = V::repeat(ivs.add(sector * 16));
            let mut at = 0;
            while at < bytes {
                let (src, dst) = (src.add(at), dst.add(at));
                let head = V::load(src);
                let tail = V::load(src.add((IN_FLIGHT - 1) * V::BYTES));
                let first = V::key(keys);
                let mut x = [first; IN_FLIGHT];
                let mut k = 0;
                while k < IN_FLIGHT {
                    x[k] = V::load(src.add(k * V::BYTES)).xor(first);
                    k += 1;
                }
                rounds::<V, R, false, IN_FLIGHT>(keys, &mut x);
                let last = V::key(keys.add(R));
                let mut k = IN_FLIGHT - 1;
                while k > 0 {
                    let chain = V::load(src.add(k * V::BYTES - 16));
                    finish::<V, false>(x[k], last.xor(chain)).store(dst.add(k * V::BYTES));
                    k -= 1;
                }
                finish::<V, false>(x[0], last.xor(head.preceded_by(before))).store(dst);
                before = tail;
                at += IN_FLIGHT * V::BYTES;
            }
        }
    }
}
