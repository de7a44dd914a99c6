//! The header's bytes (LUKS On-Disk Format 1.2.3, section 3): big-endian, 592 bytes, one copy, no
//! checksum.

use underseal_cipher::CipherSpec;

use crate::text::FixedText;
use crate::{Error, ErrorKind, Hash, Kdf, Result, af};

/// The length of the header.
pub(crate) const LEN: usize = 592;
/// Magic and version.
pub(super) const MAGIC: [u8; 8] = *b"LUKS\xba\xbe\x00\x01";
/// The number of keyslots.
pub(crate) const SLOTS: usize = SLOT_COUNT as usize;
/// The number of keyslots, in the type of their numbers.
pub(super) const SLOT_COUNT: u32 = 8;

pub(super) const ACTIVE: u32 = 0x00AC_71F3;
pub(super) const INACTIVE: u32 = 0x0000_DEAD;
pub(super) const FIRST_SLOT: usize = 208;
pub(super) const SLOT_LEN: usize = 48;
/// The longest volume key: keys of every cipher are much shorter.
const MAX_KEY_BYTES: u32 = 1024;
pub(super) const STRIPES: u32 = 4000;
const _: () = assert!(STRIPES as usize == af::STRIPES);

/// The header's fields.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Phdr {
    pub(crate) cipher: CipherSpec,
    pub(crate) hash: Hash,
    /// The start of the data, in bytes; 0 for a detached header.
    pub(crate) payload_offset: u64,
    pub(crate) key_bytes: usize,
    pub(crate) digest: [u8; 20],
    pub(crate) digest_salt: [u8; 32],
    pub(crate) digest_iterations: u32,
    pub(crate) uuid: FixedText<40>,
    /// The keyslots; `None` for those not in use.
    pub(crate) slots: [Option<Slot>; SLOTS],
    /// The bytes as read: those outside the fields are kept when the header is written again.
    pub(crate) bytes: [u8; LEN],
}

/// A keyslot in use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Slot {
    pub(crate) iterations: u32,
    pub(crate) salt: [u8; 32],
    /// The start of its key material, in bytes.
    pub(crate) offset: u64,
}

impl Phdr {
    /// Parses and checks a header that begins with [`MAGIC`].
    pub(super) fn parse(bytes: &[u8; LEN]) -> Result<Self> {
        let text = |at: usize, len: usize| &bytes[at..at + len];
        let name = FixedText::<32>::parse(text(8, 32), "cipher name")?;
        let mode = FixedText::<32>::parse(text(40, 32), "cipher mode")?;
        let hash = FixedText::<32>::parse(text(72, 32), "hash")?;
        let spec = format!("{}-{}", name.as_str(), mode.as_str());
        let cipher = spec.parse().map_err(|e: underseal_cipher::Error| {
            let context = format!("cipher {} is not known", crate::printable(&spec));
            Error::new(ErrorKind::Unsupported, context).with_source(e)
        })?;
        let key_bytes = word(bytes, 108);
        if !(1..=MAX_KEY_BYTES).contains(&key_bytes) {
            return Err(bad(format!("a volume key of {key_bytes} bytes")));
        }
        let header = Self {
            cipher,
            hash: hash.as_str().parse()?,
            payload_offset: u64::from(word(bytes, 104)) * 512,
            key_bytes: key_bytes as usize,
            digest: array(bytes, 112),
            digest_salt: array(bytes, 132),
            digest_iterations: iterations(word(bytes, 164), "digest")?,
            uuid: FixedText::parse(text(168, 40), "UUID")?,
            slots: slots(bytes)?,
            bytes: *bytes,
        };
        header.check_areas()?;
        Ok(header)
    }

    /// Returns the header's bytes: the fields, over the bytes that were read. Bytes outside the
    /// fields stay, such as the places of slots that are not in use.
    pub(crate) fn encode(&self) -> [u8; LEN] {
        let mut bytes = self.bytes;
        let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
        put(104, &sector(self.payload_offset));
        put(108, &u32::try_from(self.key_bytes).expect("at most 1024").to_be_bytes());
        put(112, &self.digest);
        put(132, &self.digest_salt);
        put(164, &self.digest_iterations.to_be_bytes());
        for (i, slot) in self.slots.iter().enumerate() {
            let at = FIRST_SLOT + i * SLOT_LEN;
            match slot {
                Some(slot) => {
                    put(at, &ACTIVE.to_be_bytes());
                    put(at + 4, &slot.iterations.to_be_bytes());
                    put(at + 8, &slot.salt);
                    put(at + 40, &sector(slot.offset));
                    put(at + 44, &STRIPES.to_be_bytes());
                }
                None if word(&self.bytes, at) != INACTIVE => {
                    put(at, &INACTIVE.to_be_bytes());
                    put(at + 4, &[0; 36]);
                }
                None => {}
            }
        }
        bytes
    }

    /// Sets the UUID.
    pub(super) fn set_uuid(&mut self, uuid: FixedText<40>) {
        let field = &mut self.bytes[168..208];
        field.fill(0);
        field[..uuid.as_bytes().len()].copy_from_slice(uuid.as_bytes());
        self.uuid = uuid;
    }

    /// Makes the bytes of a header with only the names, and the places of its slots, in bytes.
    pub(crate) fn blank(
        cipher: &CipherSpec,
        hash: Hash,
        uuid: &FixedText<40>,
        places: &[u64; SLOTS],
    ) -> [u8; LEN] {
        let mut bytes = [0; LEN];
        let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
        put(0, &MAGIC);
        put(8, cipher.cipher().as_bytes());
        put(40, cipher.mode().as_bytes());
        put(72, hash.name().as_bytes());
        put(168, uuid.as_bytes());
        for (i, place) in places.iter().enumerate() {
            let at = FIRST_SLOT + i * SLOT_LEN;
            put(at, &INACTIVE.to_be_bytes());
            put(at + 40, &sector(*place));
            put(at + 44, &STRIPES.to_be_bytes());
        }
        bytes
    }

    /// Returns the derivation of the volume key's digest.
    pub(super) fn digest_kdf(&self) -> Kdf {
        let (hash, iterations) = (self.hash, self.digest_iterations);
        Kdf::Pbkdf2 { hash, iterations, salt: self.digest_salt.to_vec() }
    }

    /// Returns the start of a keyslot's key material in the header, in bytes; a free slot's value
    /// may be arbitrary.
    pub(super) fn place(&self, number: usize) -> u64 {
        u64::from(word(&self.bytes, FIRST_SLOT + number * SLOT_LEN + 40)) * 512
    }

    /// Returns the places of all eight keyslots, used or not, in bytes.
    pub(crate) fn places(&self) -> [u64; SLOTS] {
        std::array::from_fn(|i| self.slots[i].as_ref().map_or_else(|| self.place(i), |slot| slot.offset))
    }

    /// Sets the place of a keyslot, in use or not.
    pub(super) fn set_place(&mut self, number: usize, place: u64) {
        let at = FIRST_SLOT + number * SLOT_LEN;
        self.bytes[at + 40..at + 44].copy_from_slice(&sector(place));
        if let Some(slot) = &mut self.slots[number] {
            slot.offset = place;
        }
    }

    /// Returns true when cryptsetup accepts the header, too: it requires all eight places, used or
    /// not, before the data and without overlaps.
    pub(crate) fn is_sound(&self) -> bool {
        let len = af::split_len(self.key_bytes) as u64;
        let mut places = self.places();
        places.sort_unstable();
        let stripes = |number: usize| word(&self.bytes, FIRST_SLOT + number * SLOT_LEN + 44);
        let whole = (0..SLOTS).all(|number| self.slots[number].is_some() || stripes(number) == STRIPES);
        let before_data = self.payload_offset == 0 || places[SLOTS - 1] + len <= self.payload_offset;
        whole
            && places[0] >= LEN as u64
            && before_data
            && places.windows(2).all(|pair| pair[0] + len <= pair[1])
    }

    /// Checks that key material lies after the header, before the data, and without overlaps.
    fn check_areas(&self) -> Result<()> {
        let len = af::split_len(self.key_bytes) as u64;
        let slots = self.slots.iter().enumerate().filter_map(|(i, slot)| Some((slot.as_ref()?.offset, i)));
        let mut areas: Vec<(u64, usize)> = slots.collect();
        areas.sort_unstable();
        for &(offset, i) in &areas {
            if offset < LEN as u64 {
                return Err(bad(format!("the key material of slot {i} lies within the header")));
            }
            if self.payload_offset != 0 && offset + len > self.payload_offset {
                let context = format!("the key material of slot {i} runs into the data");
                return Err(bad(format!("{context}, which begins at byte {}", self.payload_offset)));
            }
        }
        match areas.windows(2).find(|pair| pair[0].0 + len > pair[1].0) {
            Some(pair) => {
                Err(bad(format!("the key material of slots {} and {} overlaps", pair[0].1, pair[1].1)))
            }
            None => Ok(()),
        }
    }
}

fn slots(bytes: &[u8; LEN]) -> Result<[Option<Slot>; SLOTS]> {
    let mut slots = [const { None }; SLOTS];
    for (i, slot) in slots.iter_mut().enumerate() {
        let at = FIRST_SLOT + i * SLOT_LEN;
        match word(bytes, at) {
            INACTIVE => continue,
            ACTIVE => {}
            state => return Err(bad(format!("slot {i} is neither in use nor free (state {state:#x})"))),
        }
        let stripes = word(bytes, at + 44);
        if stripes != STRIPES {
            return Err(bad(format!("slot {i} has {stripes} stripes, not {STRIPES}")));
        }
        *slot = Some(Slot {
            iterations: iterations(word(bytes, at + 4), "slot")?,
            salt: array(bytes, at + 8),
            offset: u64::from(word(bytes, at + 40)) * 512,
        });
    }
    Ok(slots)
}

fn sector(byte: u64) -> [u8; 4] {
    u32::try_from(byte / 512).expect("checked against the payload").to_be_bytes()
}

fn iterations(count: u32, what: &str) -> Result<u32> {
    if count == 0 { Err(bad(format!("a {what} of no iterations"))) } else { Ok(count) }
}

pub(super) fn word(bytes: &[u8; LEN], at: usize) -> u32 {
    u32::from_be_bytes(array(bytes, at))
}

fn array<const N: usize>(bytes: &[u8; LEN], at: usize) -> [u8; N] {
    std::array::from_fn(|i| bytes[at + i])
}

fn bad(why: String) -> Error {
    Error::new(ErrorKind::BadHeader, why)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A header with noise in all unused bytes.
    fn odd() -> [u8; LEN] {
        let cipher = "aes-xts-plain64".parse().unwrap();
        let uuid = FixedText::new("11111111-2222-3333-4444-555555555555", "UUID").unwrap();
        let places = std::array::from_fn(|i| 4096 + (256 << 10) * i as u64);
        let mut bytes = Phdr::blank(&cipher, Hash::Sha256, &uuid, &places);
        let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
        put(8, b"aes\0left over");
        put(72, b"SHA256\0\xff\xff");
        put(104, &4096u32.to_be_bytes());
        put(108, &64u32.to_be_bytes());
        put(112, &[7; 52]);
        put(164, &1000u32.to_be_bytes());
        for (i, state) in [INACTIVE, ACTIVE, INACTIVE, ACTIVE].into_iter().enumerate() {
            let at = FIRST_SLOT + i * SLOT_LEN;
            put(at, &state.to_be_bytes());
            put(at + 4, &[0x5a; 36]);
        }
        // A free slot's place and stripes may be arbitrary.
        put(FIRST_SLOT + 40, &[0xff; 8]);
        bytes
    }

    #[test]
    fn what_is_not_understood_is_written_as_it_was_read() {
        let bytes = odd();
        let mut phdr = Phdr::parse(&bytes).unwrap();
        assert_eq!(phdr.encode(), bytes);
        phdr.slots[1] = None;
        let at = FIRST_SLOT + SLOT_LEN;
        let mut freed = bytes;
        freed[at..at + 4].copy_from_slice(&INACTIVE.to_be_bytes());
        freed[at + 4..at + 40].fill(0);
        assert_eq!(phdr.encode(), freed, "its place and stripes stay");
        assert!(Phdr::parse(&freed).unwrap().slots[1].is_none());
        phdr.slots[1] = Some(Slot { iterations: 0x5a5a_5a5a, salt: [0x5a; 32], offset: 4096 + (256 << 10) });
        assert_eq!(phdr.encode(), bytes);
    }
}
