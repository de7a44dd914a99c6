//! XTS with few registers: the otherwise idle integer units make the tweaks ahead.
//!
//! ```text
//!   ring of 32 vectors of tweaks:   | 11 in use | 11 next | 10 being made |   and so on round
//! ```
//!
//! A tweak in vectors costs instructions of AES's units, and registers: eight blocks in flight just
//! cover AES's latency, so every instruction in between delays them. Tweaks in memory leave
//! registers for eleven. Tweaks are written as words and read as vectors, not before the group
//! after the next, since a vector read waits until both its words are in the cache.

use std::arch::asm;
use std::mem::MaybeUninit;

use super::super::double::double;
use super::super::ecb::{finish, rounds_between};
use super::super::schedule::RoundKey;
use super::super::vector::Vector;
use super::{in_vectors, prefetch_group};

/// Vectors of the ring.
const RING: usize = 32;
/// Vectors of each of its groups: together the ring.
const GROUPS: [usize; 3] = [11, 11, 10];
/// Bytes of which a whole number is in every sector and in every turn of the ring.
const UNIT: usize = 512;
/// Blocks of a unit.
const BLOCKS: usize = UNIT / 16;

/// Tweaks, written as words before they are read.
#[repr(C, align(64))]
struct Ring<V>([V; RING]);

/// As [`super::xts`]. The first unit, or two, go without the ring: the others make whole turns.
///
/// # Safety
/// As [`super::xts`]; there is a sector.
#[inline(always)]
pub(super) unsafe fn xts<V: Vector, const R: usize, const ENCRYPT: bool>(
    keys: *const RoundKey,
    tweaks: *const u8,
    sectors: usize,
    bytes: usize,
    src: *const u8,
    dst: *mut u8,
) {
    const { assert!(GROUPS[0] + GROUPS[1] + GROUPS[2] == RING) };
    let units = sectors * (bytes / UNIT);
    // A turn of the ring is a unit for each block of a vector.
    let head = 1 + (units - 1) % V::BLOCKS;
    let turns = (units - head) / V::BLOCKS;
    // SAFETY: the head is as many sectors, or the beginning of the first; the rest is the caller's
    // promise.
    unsafe {
        let (whole, each) = if bytes == UNIT { (head, UNIT) } else { (1, head * UNIT) };
        in_vectors::<V, R, ENCRYPT>(keys, tweaks, whole, each, src, dst);
        if turns == 0 {
            return;
        }
        let mut ring = MaybeUninit::<Ring<V>>::uninit();
        let at = ring.as_mut_ptr().cast::<[u64; 2]>();
        let mut maker = Maker::behind(tweaks, sectors, bytes / UNIT, head);
        maker.make::<V>(at, 0, (GROUPS[0] + GROUPS[1]) * V::BLOCKS);
        let mut from = head * UNIT;
        for _ in 0..turns {
            let mut group =
                Group { keys, ring: at, maker: &mut maker, src: src.add(from), dst: dst.add(from) };
            group.crypt::<V, R, ENCRYPT, { GROUPS[0] }, { GROUPS[2] }>(0, GROUPS[0] + GROUPS[1]);
            group.crypt::<V, R, ENCRYPT, { GROUPS[1] }, { GROUPS[0] }>(GROUPS[0], 0);
            group.crypt::<V, R, ENCRYPT, { GROUPS[2] }, { GROUPS[1] }>(GROUPS[0] + GROUPS[1], GROUPS[0]);
            from += RING * V::BYTES;
        }
    }
}

/// Makes tweaks, block by block.
struct Maker {
    low: u64,
    high: u64,
    /// Units that its sector still has.
    left: usize,
    /// Units of a sector.
    units: usize,
    /// The next sector's tweak, and how many there are.
    next: *const u8,
    sectors: usize,
}

impl Maker {
    /// At the unit `head` of a run of sectors.
    ///
    /// # Safety
    /// `tweaks` holds `sectors` blocks of `units` units each; there are more units than `head`.
    #[inline(always)]
    unsafe fn behind(tweaks: *const u8, sectors: usize, units: usize, head: usize) -> Self {
        let (past, into) = (head / units, head % units);
        // SAFETY: the sector `past` is one of them.
        let next = unsafe { tweaks.add(past * 16) };
        let mut maker = Self { low: 0, high: 0, left: 0, units, next, sectors: sectors - past };
        if into > 0 {
            // SAFETY: there is this sector.
            unsafe { maker.sector() };
            maker.left -= into;
            for _ in 0..into {
                maker.skip();
            }
        }
        maker
    }

    /// Goes to the next sector.
    ///
    /// # Safety
    /// There is one.
    #[inline(always)]
    unsafe fn sector(&mut self) {
        // SAFETY: the caller's promise.
        unsafe {
            self.low = self.next.cast::<u64>().read_unaligned();
            self.high = self.next.add(8).cast::<u64>().read_unaligned();
            self.next = self.next.add(16);
        }
        self.sectors -= 1;
        self.left = self.units;
    }

    /// Goes a unit further: by x^32.
    #[inline(always)]
    fn skip(&mut self) {
        let over = self.high >> 32;
        self.high = self.high << 32 | self.low >> 32;
        self.low = self.low << 32 ^ over ^ over << 1 ^ over << 2 ^ over << 7;
    }

    /// Begins a unit. Behind the last sector the tweaks are meaningless, and never read.
    #[inline(always)]
    fn unit(&mut self) {
        if self.left == 0 && self.sectors > 0 {
            // SAFETY: there is a sector.
            unsafe { self.sector() };
        }
        self.left = self.left.wrapping_sub(1);
    }

    /// Makes the tweaks of the ring's blocks `from` to `to`, which is not one of them.
    ///
    /// # Safety
    /// They are within the ring at `ring`.
    #[inline(always)]
    unsafe fn make<V: Vector>(&mut self, ring: *mut [u64; 2], from: usize, to: usize) {
        let mut block = from;
        while block < to {
            if block.is_multiple_of(BLOCKS) {
                self.unit();
            }
            // SAFETY: the caller's promise.
            unsafe {
                ring.add(block).write([self.low, self.high]);
                self.double::<V>();
            }
            block += 1;
        }
    }

    /// By x. With vectors of two blocks the processor has as many instructions to begin as it can,
    /// and BMI2 saves one of these.
    ///
    /// # Safety
    /// The processor has the features of `V`.
    #[inline(always)]
    unsafe fn double<V: Vector>(&mut self) {
        if V::BLOCKS == 1 {
            [self.low, self.high] = double([self.low, self.high]);
            return;
        }
        // SAFETY: registers only; BMI2 is among the features.
        unsafe {
            asm!(
                "sarx {over}, {high}, {by}",
                "and {over:e}, 0x87",
                "add {low}, {low}",
                "adc {high}, {high}",
                "xor {low}, {over}",
                low = inout(reg) self.low,
                high = inout(reg) self.high,
                by = in(reg) 63u64,
                over = out(reg) _,
                options(pure, nomem, nostack),
            );
        }
    }
}

/// Where a group of vectors is taken from.
struct Group<'a> {
    keys: *const RoundKey,
    ring: *mut [u64; 2],
    maker: &'a mut Maker,
    /// Of the ring's first vector.
    src: *const u8,
    dst: *mut u8,
}

impl Group<'_> {
    /// Encrypts or decrypts `N` vectors, from the ring's vector `nth` on, and makes the tweaks of
    /// `M`, from its vector `next` on.
    ///
    /// # Safety
    /// As [`super::xts`], for these vectors, whose tweaks are made.
    #[inline(always)]
    unsafe fn crypt<V: Vector, const R: usize, const ENCRYPT: bool, const N: usize, const M: usize>(
        &mut self,
        nth: usize,
        next: usize,
    ) {
        // SAFETY: the caller's promise; `nth` and `next` are within the ring, with the vectors
        // behind them.
        unsafe {
            let (src, dst) = (self.src.add(nth * V::BYTES), self.dst.add(nth * V::BYTES));
            prefetch_group::<V, N>(src);
            let tweaks = self.ring.cast::<u8>().add(nth * V::BYTES);
            let first = V::key(self.keys);
            let mut x = [first; N];
            let mut k = 0;
            while k < N {
                x[k] = V::load_shared(src.add(k * V::BYTES)).xor3(V::load(tweaks.add(k * V::BYTES)), first);
                k += 1;
            }
            self.quarter::<V, R, ENCRYPT, N, M, 0>(&mut x, next);
            self.quarter::<V, R, ENCRYPT, N, M, 1>(&mut x, next);
            self.quarter::<V, R, ENCRYPT, N, M, 2>(&mut x, next);
            self.quarter::<V, R, ENCRYPT, N, M, 3>(&mut x, next);
            let tweaks = forgotten(tweaks);
            let last = V::key(self.keys.add(R));
            let mut k = 0;
            while k < N {
                let whiten = V::load(tweaks.add(k * V::BYTES)).xor(last);
                finish::<V, ENCRYPT>(x[k], whiten).store(dst.add(k * V::BYTES));
                k += 1;
            }
        }
    }

    /// A quarter of the rounds, and of the tweaks that are made: the processor cannot look so far
    /// ahead that all of them, in one place, would leave it rounds to do.
    ///
    /// # Safety
    /// As [`Group::crypt`].
    #[inline(always)]
    unsafe fn quarter<
        V: Vector,
        const R: usize,
        const ENCRYPT: bool,
        const N: usize,
        const M: usize,
        const NTH: usize,
    >(
        &mut self,
        x: &mut [V; N],
        next: usize,
    ) {
        let rounds = |nth| 1 + (R - 1) * nth / 4;
        let blocks = |nth| next * V::BLOCKS + M * V::BLOCKS * nth / 4;
        // SAFETY: the caller's promise.
        unsafe {
            rounds_between::<V, ENCRYPT, N>(self.keys, rounds(NTH), rounds(NTH + 1), x);
            self.maker.make::<V>(self.ring, blocks(NTH), blocks(NTH + 1));
        }
    }
}

/// The same address, opaque to the compiler, which would otherwise keep the read bytes and has no
/// registers for them.
#[inline(always)]
fn forgotten(mut at: *const u8) -> *const u8 {
    // SAFETY: no instruction.
    unsafe { asm!("/* {0} */", inout(reg) at, options(nostack, preserves_flags)) };
    at
}
