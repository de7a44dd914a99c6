//! An AES key for one CPU path: the safe interface of the vector code.

use std::marker::PhantomData;

use cipher::inout::InOutBuf;

use super::CryptDirection;
use super::fastest::{self, DirectedFunctions};
#[cfg(target_arch = "aarch64")]
use super::neon;
use super::schedule::{RoundKey, Schedule};
use super::table::{FunctionTable, Functions, SectorsFn};
#[cfg(target_arch = "x86_64")]
use super::{aesni, avx512, vaes256};
use super::{beside, md5};
use crate::iv::{IvGenerator, Plain64};
use crate::sector::{Run, SectorSize};
use crate::wipe::wipe_stack;
use crate::{CpuPath, Locked, Result, SharedDestination, SharedSource};

/// The most stack of most vector code; a test checks it.
const SPILLED: usize = 1792;
/// The most stack of XTS over long requests, which has a ring of tweaks there.
const SPILLED_AHEAD: usize = 2816;
/// The most stack of CBC, which fetches lines of sectors to the stack.
const SPILLED_BY_CBC: usize = 4608;

/// An expanded AES key on locked pages, and the functions that use it.
pub(crate) struct AesKey {
    pub(super) schedule: Locked<Schedule>,
    // Invariant: the functions of a path that the processor has.
    pub(super) functions: &'static Functions,
    /// The functions for encryption and decryption of sectors.
    directed: DirectedFunctions,
    path: CpuPath,
    bytes: usize,
    beside_md5: Option<CbcWithMd5>,
}

/// The source and the destination of whole sectors: the same bytes, or others. One of the two may
/// be shared with another process.
#[derive(Clone, Copy)]
pub(crate) struct SectorBytes<'a> {
    src: *const u8,
    dst: *mut u8,
    len: usize,
    bytes: PhantomData<&'a mut [u8]>,
}

impl<'a> From<InOutBuf<'_, 'a, u8>> for SectorBytes<'a> {
    fn from(data: InOutBuf<'_, 'a, u8>) -> Self {
        let len = data.len();
        let (src, dst) = data.into_raw();
        Self { src, dst, len, bytes: PhantomData }
    }
}

impl<'a> From<&'a mut [u8]> for SectorBytes<'a> {
    fn from(data: &'a mut [u8]) -> Self {
        InOutBuf::from(data).into()
    }
}

impl<'a> SectorBytes<'a> {
    /// Reads shared memory.
    ///
    /// # Panics
    /// When the lengths differ.
    pub(crate) fn from_shared(source: SharedSource<'a>, data: &'a mut [u8]) -> Self {
        assert_eq!(source.len(), data.len(), "source and data differ in length");
        Self { src: source.as_ptr(), dst: data.as_mut_ptr(), len: data.len(), bytes: PhantomData }
    }

    /// Writes shared memory.
    ///
    /// # Panics
    /// When the lengths differ.
    pub(crate) fn to_shared(data: &'a [u8], destination: SharedDestination<'a>) -> Self {
        assert_eq!(destination.len(), data.len(), "data and destination differ in length");
        Self { src: data.as_ptr(), dst: destination.as_mut_ptr(), len: data.len(), bytes: PhantomData }
    }
}

/// CBC of 32 sectors of 512 bytes while MD5 hashes others, for keys of one length.
#[derive(Clone, Copy)]
pub(crate) struct CbcWithMd5(&'static beside::Md5CbcFunctions);

/// At most 32 sectors of 512 bytes to be hashed for LMK: MD5's state before, and the words behind
/// each.
pub(crate) struct Md5Batch<'a> {
    pub(crate) state: &'a [u32; 4],
    pub(crate) sectors: &'a [u8],
    pub(crate) ends: &'a [[u32; 2]],
}

impl Md5Batch<'_> {
    fn batch(&self) -> md5::Batch<'_> {
        md5::Batch::new(self.state, self.sectors, self.ends)
    }
}

impl CbcWithMd5 {
    /// The most stack in use.
    pub(crate) const SPILLED: usize = 10 << 10;

    /// Returns the states of the hashed batch; decrypts the data, each sector with its key, with
    /// zero IVs. The caller wipes the stack.
    ///
    /// # Panics
    /// When the data is not 32 sectors of 512 bytes, or a key has another length.
    pub(crate) fn decrypt(
        self,
        keys: &[&AesKey; 32],
        hashed: &Md5Batch<'_>,
        data: InOutBuf<'_, '_, u8>,
    ) -> [[u8; 16]; 32] {
        assert!(data.len() == 32 * 512 && keys.iter().all(|key| self.takes(key)));
        let keys = keys.map(|key| key.schedule.decrypt.as_ptr());
        let (mut states, (src, dst)) = ([[0; 16]; 32], data.into_raw());
        // SAFETY: the processor has this path; the assertion checks the shape; `InOutBuf` is one
        // buffer or two apart, readable and writable.
        unsafe { (self.0.decrypt)(&hashed.batch(), &mut states, &keys, src, dst) }
        states
    }

    /// Returns the states of the hashed batch; encrypts the data. The caller wipes the stack.
    ///
    /// # Panics
    /// As [`Self::decrypt`].
    pub(crate) fn encrypt(
        self,
        key: &AesKey,
        ivs: &[[u8; 16]; 32],
        hashed: &Md5Batch<'_>,
        data: InOutBuf<'_, '_, u8>,
    ) -> [[u8; 16]; 32] {
        assert!(data.len() == 32 * 512 && self.takes(key));
        let (mut states, (src, dst)) = ([[0; 16]; 32], data.into_raw());
        let keys = key.schedule.encrypt.as_ptr();
        // SAFETY: as in `decrypt`.
        unsafe { (self.0.encrypt)(&hashed.batch(), &mut states, keys, ivs, src, dst) }
        states
    }

    fn takes(self, key: &AesKey) -> bool {
        key.beside_md5.is_some_and(|its| std::ptr::eq(its.0, self.0))
    }
}

impl AesKey {
    /// Expands a key of 16, 24 or 32 bytes; `None` for a path without vector code or a processor
    /// that lacks the path. Returns `Memory` when the system has no page.
    pub(crate) fn new(path: CpuPath, key: &[u8]) -> Result<Option<Self>> {
        let (Some(table), Some(nth)) = (table(path), [16, 24, 32].iter().position(|&n| n == key.len()))
        else {
            return Ok(None);
        };
        let mut schedule = Locked::new(Schedule::EMPTY)?;
        // SAFETY: `table` returns functions only for a processor with AES instructions.
        unsafe { schedule.expand(key) };
        wipe_stack::<SPILLED>();
        let functions = &table[nth];
        Ok(Some(Self {
            schedule,
            functions,
            directed: DirectedFunctions::of(path, functions),
            path,
            bytes: key.len(),
            beside_md5: beside_md5(path, nth),
        }))
    }

    /// Encrypts independent blocks, in place.
    pub(crate) fn encrypt_blocks(&self, blocks: &mut [[u8; 16]]) {
        self.encrypt_blocks_untidied(blocks);
        self.tidy::<SPILLED>();
    }

    /// As [`Self::encrypt_blocks`]; the caller wipes the stack.
    pub(crate) fn encrypt_blocks_untidied(&self, blocks: &mut [[u8; 16]]) {
        let at = blocks.as_mut_ptr().cast::<u8>();
        // SAFETY: the processor has this path; the blocks are readable and writable.
        unsafe { (self.functions.ecb_encrypt)(self.schedule.encrypt.as_ptr(), at, at, blocks.len()) }
    }

    /// Decrypts independent blocks, in place.
    pub(crate) fn decrypt_blocks(&self, blocks: &mut [[u8; 16]]) {
        let at = blocks.as_mut_ptr().cast::<u8>();
        // SAFETY: as in `encrypt_blocks`.
        unsafe { (self.functions.ecb_decrypt)(self.schedule.decrypt.as_ptr(), at, at, blocks.len()) }
        self.tidy::<SPILLED>();
    }

    /// Writes the encryption of each sector's number, le64(S) zero-padded: the tweaks of XTS with
    /// `plain64`, the IVs of ESSIV.
    pub(crate) fn encrypt_numbers(&self, run: Run, blocks: &mut [[u8; 16]]) {
        let Some((first, shift)) = run.progression(blocks.len()) else {
            Plain64.fill(run, blocks);
            return self.encrypt_blocks(blocks);
        };
        let at = blocks.as_mut_ptr().cast::<u8>();
        // SAFETY: as in `encrypt_blocks`.
        unsafe {
            (self.functions.encrypt_numbers)(self.schedule.encrypt.as_ptr(), first, shift, at, blocks.len())
        }
    }

    /// Applies XTS to whole sectors, with encrypted tweaks.
    ///
    /// # Panics
    /// When the data is not one sector of a multiple of 512 bytes for each tweak.
    pub(crate) fn xts(&self, direction: CryptDirection, tweaks: &[[u8; 16]], data: SectorBytes<'_>) {
        let functions = self.directed.get(direction);
        let (both, reaches_far) = functions.xts(data.len);
        self.sectors(both[usize::from(direction == CryptDirection::Decrypt)], direction, tweaks, data);
        match (functions.spills, reaches_far) {
            (true, true) => wipe_stack::<SPILLED_AHEAD>(),
            (true, false) => wipe_stack::<SPILLED>(),
            (false, _) => {}
        }
    }

    /// Encrypts whole sectors with CBC.
    ///
    /// # Panics
    /// When the data is not one sector of a multiple of 512 bytes for each IV.
    pub(crate) fn cbc_encrypt(&self, ivs: &[[u8; 16]], data: InOutBuf<'_, '_, u8>) {
        self.cbc(CryptDirection::Encrypt, ivs, data.into());
    }

    /// Decrypts whole sectors with CBC, which may go to memory of another process, too.
    ///
    /// # Panics
    /// As [`Self::cbc_encrypt`].
    pub(crate) fn cbc_decrypt(&self, ivs: &[[u8; 16]], data: SectorBytes<'_>) {
        self.cbc(CryptDirection::Decrypt, ivs, data);
    }

    fn cbc(&self, direction: CryptDirection, ivs: &[[u8; 16]], data: SectorBytes<'_>) {
        let functions = self.directed.get(direction);
        let run = match direction {
            CryptDirection::Encrypt => functions.cbc_encrypt,
            CryptDirection::Decrypt => functions.cbc_decrypt,
        };
        self.sectors(run, direction, ivs, data);
        if functions.spills {
            wipe_stack::<SPILLED_BY_CBC>();
        }
    }

    /// The same key for CBC: encryption uses the path that is fastest for it here, if the key's
    /// path is the processor's best.
    pub(crate) fn for_cbc(self, sector_size: SectorSize) -> Self {
        let nth = [16, 24, 32].iter().position(|&n| n == self.bytes).unwrap_or(0);
        let directed = fastest::cbc(self.path, nth, sector_size.bytes(), table);
        Self { directed: directed.unwrap_or(self.directed), ..self }
    }

    /// The paths for encryption and decryption.
    pub(crate) fn paths(&self) -> [CpuPath; 2] {
        self.directed.0.map(|(path, _)| path)
    }

    /// The functions that run CBC beside MD5, where the path has them.
    pub(crate) fn beside_md5(&self) -> Option<CbcWithMd5> {
        self.beside_md5
    }

    fn sectors(&self, run: SectorsFn, direction: CryptDirection, ivs: &[[u8; 16]], data: SectorBytes<'_>) {
        let SectorBytes { src, dst, len, .. } = data;
        if ivs.is_empty() {
            return;
        }
        let bytes = len / ivs.len();
        assert!(bytes * ivs.len() == len && bytes.is_multiple_of(512) && bytes > 0);
        let keys: *const RoundKey = match direction {
            CryptDirection::Encrypt => self.schedule.encrypt.as_ptr(),
            CryptDirection::Decrypt => self.schedule.decrypt.as_ptr(),
        };
        // SAFETY: the processor has this path; the assertion above checks the shape; `SectorBytes`
        // are one buffer or two apart, readable and writable.
        unsafe { run(keys, ivs.as_ptr().cast(), ivs.len(), bytes, src, dst) }
    }

    /// Wipes round keys from the stack.
    fn tidy<const BYTES: usize>(&self) {
        if self.functions.spills {
            wipe_stack::<BYTES>();
        }
    }
}

/// The functions of a path that run beside MD5, for the `nth` size of keys.
#[cfg_attr(not(target_arch = "x86_64"), expect(unused_variables, reason = "no path has any"))]
fn beside_md5(path: CpuPath, nth: usize) -> Option<CbcWithMd5> {
    match path {
        #[cfg(target_arch = "x86_64")]
        CpuPath::Avx512 => Some(CbcWithMd5(&beside::AVX512[nth])),
        _ => None,
    }
}

/// The functions of a path that the processor has.
fn table(path: CpuPath) -> Option<&'static FunctionTable> {
    if !path.is_available() {
        return None;
    }
    match path {
        #[cfg(target_arch = "x86_64")]
        CpuPath::AesNi => Some(&aesni::TABLE),
        #[cfg(target_arch = "x86_64")]
        CpuPath::Vaes256 => Some(&vaes256::TABLE),
        #[cfg(target_arch = "x86_64")]
        CpuPath::Avx512 => Some(&avx512::TABLE),
        #[cfg(target_arch = "aarch64")]
        CpuPath::Neon => Some(&neon::TABLE),
        // The remaining paths are other processors'.
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;
    use crate::Key;
    use crate::wipe::{DEEP, left_on_the_stack};

    /// All round keys, inverted, so that the list is not found itself.
    fn needles(key: &AesKey) -> Vec<[u8; 16]> {
        let both = key.schedule.encrypt.iter().chain(&key.schedule.decrypt);
        both.map(|k| k.0[0].map(|b| !b)).filter(|k| *k != [0xff; 16]).collect()
    }

    type Use = fn(&AesKey, &mut [[u8; 16]; 16], &mut [u8]);

    /// Every use of a key, each alone: one use would wipe the remainders of another.
    const USES: [(&str, Use); 13] = [
        ("expansion", |_, _, _| {}),
        ("numbers", |key, ivs, _| key.encrypt_numbers(Run::new(5, SectorSize::S4096, false), ivs)),
        ("numbers that wrap", |key, ivs, _| {
            key.encrypt_numbers(Run::new(u64::MAX - 7, SectorSize::S4096, true), ivs);
        }),
        ("encrypting blocks", |key, ivs, _| key.encrypt_blocks(ivs)),
        ("decrypting blocks", |key, ivs, _| key.decrypt_blocks(ivs)),
        ("xts, encrypting", |key, ivs, data| key.xts(CryptDirection::Encrypt, &ivs[..], data.into())),
        ("xts, decrypting", |key, ivs, data| key.xts(CryptDirection::Decrypt, &ivs[..], data.into())),
        ("xts of a sector, encrypting", |key, ivs, data| {
            key.xts(CryptDirection::Encrypt, &ivs[..1], (&mut data[..4096]).into());
        }),
        ("xts of a sector, decrypting", |key, ivs, data| {
            key.xts(CryptDirection::Decrypt, &ivs[..1], (&mut data[..4096]).into());
        }),
        ("cbc, encrypting", |key, ivs, data| key.cbc_encrypt(&ivs[..], data.into())),
        ("cbc, decrypting", |key, ivs, data| key.cbc_decrypt(&ivs[..], data.into())),
        ("cbc of few sectors", |key, ivs, data| {
            key.cbc_encrypt(&ivs[..3], (&mut data[..3 * 512]).into());
        }),
        ("cbc beside md5", |key, _, data| {
            let Some(beside) = key.beside_md5() else { return };
            let (sectors, data) = data.split_at_mut(32 * 512);
            let (data, hashed) =
                (&mut data[..32 * 512], Md5Batch { state: &[1; 4], sectors, ends: &[[0; 2]; 32] });
            beside.encrypt(key, &[[0; 16]; 32], &hashed, data.into());
            beside.decrypt(&[key; 32], &hashed, data.into());
            wipe_stack::<{ CbcWithMd5::SPILLED }>();
        }),
    ];

    #[test]
    fn no_round_key_is_left_on_the_stack() {
        let (mut data, mut ivs) = (vec![7; 65536], [[0; 16]; 16]);
        for path in CpuPath::ALL {
            for len in [16, 24, 32] {
                let mut key = Key::zeroed(len).unwrap();
                std::fs::File::open("/dev/urandom").unwrap().read_exact(key.as_mut_bytes()).unwrap();
                let Some(key) = AesKey::new(path, key.as_bytes()).unwrap() else { continue };
                for (what, used) in USES {
                    used(&key, &mut ivs, &mut data);
                    let stack = left_on_the_stack();
                    for needle in needles(&key) {
                        let found = |window: &[u8]| window.iter().zip(&needle).all(|(a, b)| *a == !*b);
                        let at = stack.windows(16).position(found);
                        let below = DEEP - at.unwrap_or(0);
                        assert_eq!(at, None, "{what} on {} with {len} bytes: {below} below", path.name());
                    }
                }
            }
        }
    }

    #[test]
    fn a_planted_key_is_found_on_the_stack() {
        #[inline(never)]
        fn plant() {
            let planted = [0x5au8; 4096];
            std::hint::black_box(&planted);
        }
        plant();
        let stack = left_on_the_stack();
        assert!(
            stack.windows(64).any(|window| window == [0x5a; 64]),
            "the search sees what a call left behind"
        );
    }
}
