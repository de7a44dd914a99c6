//! A whole request: IVs, tuples, and runs of sectors to an authenticated mode.

use cipher::inout::InOutBuf;

use super::{AnyAead, MANY, Tags, TagsMut, count};
use crate::iv::IvGenerator;
use crate::mode::SectorSplit;
use crate::sector::Run;
use crate::wipe::wipe_stack;
use crate::{BadSector, SectorCipher, SectorSize};

/// The most stack of the modes, where remainders of keys may be.
const SPILLED: usize = 8 << 10;
/// The most stack with block ciphers of libraries, which hold every round key four times where
/// vectors have four blocks (AVX-512).
const SPILLED_BY_LIBRARIES: usize = 16 << 10;

/// The layout of a tuple: the tag, the stored IV if there is one, zeros.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TupleLayout {
    pub(crate) tag: usize,
    pub(crate) tuple: usize,
}

/// An authenticated mode, or one with stored IVs.
pub(crate) struct TupleCipher<const W: usize> {
    pub(crate) mode: AnyAead<W>,
    /// `None`: IVs are random, and stored.
    pub(crate) iv: Option<Box<dyn IvGenerator<W>>>,
    pub(crate) layout: SectorSplit,
    pub(crate) places: TupleLayout,
    /// The IV offset, which is subtracted from authenticated sector numbers.
    pub(crate) iv_offset: u64,
    /// True when the ciphers are a library's.
    pub(crate) portable: bool,
}

impl<const W: usize> TupleCipher<W> {
    /// Makes random IVs in one system call, and puts them into the tuples; the rest becomes zero.
    fn scatter_random(&self, tuples: &mut [u8], count: usize) -> Result<(), BadSector> {
        let TupleLayout { tag, tuple } = self.places;
        getrandom::fill(&mut tuples[..count * W]).map_err(|_| BadSector(0))?;
        // The last IV comes first: no IV that is still to be moved is overwritten, since tuples are
        // no shorter than IVs.
        for nth in (0..count).rev() {
            let mut iv = [0; W];
            iv.copy_from_slice(&tuples[nth * W..][..W]);
            let place = &mut tuples[nth * tuple..][..tuple];
            place.fill(0);
            place[tag..tag + W].copy_from_slice(&iv);
        }
        Ok(())
    }

    fn fill_ivs(&self, run: Run, tuples: &[u8], ivs: &mut [[u8; W]]) {
        match &self.iv {
            Some(iv) => iv.fill(run, ivs),
            None => {
                for (iv, place) in ivs.iter_mut().zip(tuples.chunks_exact(self.places.tuple)) {
                    iv.copy_from_slice(&place[self.places.tag..][..W]);
                }
            }
        }
    }

    /// Wipes the stack of the modes below the caller's frame.
    #[inline(always)]
    fn tidy(&self) {
        if self.portable {
            wipe_stack::<SPILLED_BY_LIBRARIES>();
        } else {
            wipe_stack::<SPILLED>();
        }
    }

    /// The request's run as IVs number it, and as it is authenticated.
    fn runs(&self, first: u64) -> [Run; 2] {
        let SectorSplit { size, large } = self.layout;
        [Run::new(first, size, large), Run::new(first.wrapping_sub(self.iv_offset), size, false)]
    }
}

impl<const W: usize> SectorCipher for TupleCipher<W> {
    fn sector_size(&self) -> SectorSize {
        self.layout.size
    }

    fn encrypt(&self, _first: u64, _data: InOutBuf<'_, '_, u8>) {
        panic!("a cipher with tags is for seal and open");
    }

    fn decrypt(&self, _first: u64, _data: InOutBuf<'_, '_, u8>) {
        panic!("a cipher with tags is for seal and open");
    }

    fn tag_size(&self) -> usize {
        self.places.tuple
    }

    fn seal(&self, first: u64, data: InOutBuf<'_, '_, u8>, tags: &mut [u8]) -> Result<(), BadSector> {
        let count = count(self.layout.size, self.places.tuple, data.len(), tags.len())?;
        match self.iv {
            None => self.scatter_random(tags, count)?,
            Some(_) => tags.fill(0),
        }
        let TupleLayout { tag, tuple } = self.places;
        let ([numbers, authenticated], mut ivs) = (self.runs(first), [[0; W]; MANY]);
        let mut rest = data;
        for (nth, tuples) in (0..).step_by(MANY).zip(tags.chunks_mut(MANY * tuple)) {
            let ivs = &mut ivs[..tuples.len() / tuple];
            let run;
            (run, rest) = rest.split_at(ivs.len() * self.layout.size.bytes());
            self.fill_ivs(numbers.skip(nth), tuples, ivs);
            self.mode.seal(authenticated.skip(nth), ivs, run, &mut TagsMut { tuples, tuple, tag });
        }
        self.tidy();
        Ok(())
    }

    fn open(&self, first: u64, data: InOutBuf<'_, '_, u8>, tags: &[u8]) -> Result<(), BadSector> {
        count(self.layout.size, self.places.tuple, data.len(), tags.len())?;
        let TupleLayout { tag, tuple } = self.places;
        let ([numbers, authenticated], mut ivs) = (self.runs(first), [[0; W]; MANY]);
        let (mut rest, mut opened) = (data, Ok(()));
        for (nth, tuples) in (0..).step_by(MANY).zip(tags.chunks(MANY * tuple)) {
            let ivs = &mut ivs[..tuples.len() / tuple];
            let run;
            (run, rest) = rest.split_at(ivs.len() * self.layout.size.bytes());
            self.fill_ivs(numbers.skip(nth), tuples, ivs);
            opened = self.mode.open(authenticated.skip(nth), ivs, run, Tags { tuples, tuple, tag });
            if let Err(BadSector(bad)) = opened {
                opened = Err(BadSector(nth + bad));
                break;
            }
        }
        self.tidy();
        opened
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use crate::wipe::left_on_the_stack;
    use crate::{BuildOptions, CpuPath, Integrity, IntegrityKind, Key, SectorSize, build_with};

    #[test]
    fn no_key_is_left_on_the_stack() {
        for (spec, len, bytes) in [
            ("capi:gcm(aes)-random", 32, 28),
            ("capi:rfc7539(chacha20,poly1305)-random", 32, 28),
            ("capi:rfc4309(ccm(aes))-random", 35, 24),
            ("capi:aegis128-random", 16, 32),
            ("capi:authenc(hmac(sha256),xts(aes))-random", 96, 48),
            ("capi:authenc(hmac(sha512),cbc(aes))-plain64", 96, 64),
            ("capi:authenc(cmac(aes),xts(aes))-random", 80, 32),
        ] {
            for path in CpuPath::ALL.into_iter().filter(|path| path.is_available()) {
                let mut key = Key::zeroed(len).unwrap();
                std::fs::File::open("/dev/urandom").unwrap().read_exact(key.as_mut_bytes()).unwrap();
                let kind = IntegrityKind::Aead;
                let cipher = build_with(&BuildOptions {
                    spec: &spec.parse().unwrap(),
                    key: &key,
                    sector_size: SectorSize::S512,
                    iv_large_sectors: false,
                    integrity: Some(Integrity { bytes, tuple: bytes, kind, key_size: None, iv_offset: 0 }),
                    cpu: Some(path),
                });
                let cipher = cipher.unwrap();
                let (mut data, mut tags) = (vec![7; 40 * 512], vec![0; 40 * bytes]);
                // The needles are inverted, so that the list is not found itself.
                let needles: Vec<[u8; 16]> =
                    key.as_bytes().as_chunks::<16>().0.iter().map(|part| part.map(|byte| !byte)).collect();
                for open in [false, true] {
                    let done = match open {
                        false => cipher.seal(0, (&mut data[..]).into(), &mut tags),
                        true => cipher.open(0, (&mut data[..]).into(), &tags),
                    };
                    let stack = left_on_the_stack();
                    done.unwrap();
                    for needle in &needles {
                        let found = |window: &[u8]| window.iter().zip(needle).all(|(a, b)| *a == !*b);
                        assert!(!stack.windows(16).any(found), "{spec} on {}, opening: {open}", path.name());
                    }
                }
            }
        }
    }
}
