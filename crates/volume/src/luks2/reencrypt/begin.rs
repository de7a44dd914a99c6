//! The start of a reencryption to another key, cipher, sector size or place: all in one update of
//! the header.

use serde_json::{Value, json};
use underseal_cipher::{CipherSpec, Key, SectorSize};

use super::arrange::{Arrangement, Document};
use super::shape::ShapeInput;
use super::slot::crypt_of;
use crate::format::{bad, try_cipher};
use crate::keyslots::{free_number, no_room, not_in_use};
use crate::lock::ReencryptionLock;
use crate::luks2::metadata::{Crypt, MAX_OBJECTS, Metadata, Segment};
use crate::luks2::update::keyslots::{Made, free};
use crate::luks2::update::room::Room;
use crate::luks2::update::words;
use crate::luks2::{Header, activate, format, keyslot};
use crate::reencrypt::{Direction, Mode, Protection};
use crate::{
    Cost, Error, ErrorKind, Hash, Kdf, NewKeyslot, Pbkdf, Result, Target, VolumeKey, unlock, volume,
};

/// The target of a reencryption.
#[derive(Debug)]
pub struct BeginOptions {
    /// The new cipher. `None` keeps the old cipher.
    pub cipher: Option<CipherSpec>,
    /// The new sector size. `None` keeps the old sector size.
    pub sector_size: Option<SectorSize>,
    /// The new key.
    pub key: NewKey,
    /// The order of the steps.
    pub direction: Direction,
    /// The protection of a step that is written over its own source; never [`Protection::Source`].
    pub protection: Protection,
    /// The number of bytes by which the data moves towards the end, backward. The volume gets
    /// smaller by this number, and the room for keyslots grows by it.
    pub shift: Option<u64>,
    /// The number of bytes at the volume's start that stay a part of the volume. The rest of the
    /// device keeps its bytes, but its key is removed in the end.
    pub size: Option<u64>,
    /// The header is detached.
    pub detached: bool,
    /// Accepts data that is not encrypted under the name of a cipher (`cipher_null`).
    pub allow_null: bool,
    /// The volume is open. Its server has the lock of reencryptions, shared, and carries out the
    /// reencryption.
    pub is_open: bool,
}

/// The new key of a volume.
#[derive(Debug)]
pub enum NewKey {
    /// The old key.
    Keep,
    /// A random key of this many bytes. `None` stands for the old key's length if the cipher stays,
    /// else for the cipher's largest key.
    Random(Option<usize>),
    /// The given key.
    Given(Key),
}

/// A passphrase that still opens the volume after the reencryption.
#[derive(Debug)]
pub struct Passphrase<'p> {
    /// The keyslot that the passphrase opens now.
    pub slot: u32,
    /// The passphrase.
    pub passphrase: &'p Key,
    /// The keyslot that the passphrase will open; see [`Header::like_keyslot`].
    pub new: NewKeyslot,
}

/// New parts of the header, ready to be written: all slow work is done.
struct New<'p> {
    slots: Vec<(u32, &'p NewKeyslot, Made)>,
    digest: Option<Value>,
    key: Option<Key>,
}

impl Header {
    /// Returns the parameters of a new keyslot as costly as `slot`, for the same passphrase.
    ///
    /// # Errors
    /// `NoKeyslot` when the keyslot does not exist; `Unsupported` for kinds that this build does
    /// not know.
    pub fn like_keyslot(&self, slot: u32) -> Result<NewKeyslot> {
        let old = self.metadata().keyslots.get(&slot).ok_or_else(|| not_in_use(slot))?;
        let old = old.passphrase.as_ref().map_err(|why| Error::new(ErrorKind::Unsupported, why))?;
        let kind = old.kdf.kind();
        let pbkdf = match &old.kdf {
            Kdf::Pbkdf2 { iterations, .. } => {
                Pbkdf { kind, cost: Cost::Iterations(*iterations), memory_kib: 0, lanes: 0 }
            }
            Kdf::Argon2 { passes, memory_kib, lanes, .. } => {
                Pbkdf { kind, cost: Cost::Iterations(*passes), memory_kib: *memory_kib, lanes: *lanes }
            }
        };
        Ok(NewKeyslot::new(pbkdf))
    }

    /// Returns the keyslots of the data's key that are missing in `kept`. Their passphrases are
    /// lost when another key replaces the key.
    pub fn lost_keyslots(&self, kept: &[u32]) -> Vec<u32> {
        let metadata = self.metadata();
        let slots = metadata.keyslots.keys().copied();
        slots.filter(|slot| keyslot::opens_data(metadata, *slot) && !kept.contains(slot)).collect()
    }

    /// Returns the keyslots of the data's other key, which `key` lacks. Empty where one passphrase
    /// opens both keys of a reencryption, and outside of one.
    pub fn keyslots_of_lacking_key(&self, key: &VolumeKey) -> Vec<u32> {
        let digests = self.metadata().digests.iter();
        let lacking = digests.filter(|(number, of)| !of.segments.is_empty() && key.of(**number).is_none());
        lacking.flat_map(|(_, of)| of.keyslots.iter().copied()).collect()
    }

    /// Begins a reencryption in one update: the header describes the old state, the new state and
    /// the progress. No data is touched. `key` is the volume's key; the result adds the new key.
    /// `data_size` is the size of the data device.
    ///
    /// If the key changes, only the given passphrases open the volume after the end.
    ///
    /// # Errors
    /// `BadOption` for options that do not fit the volume, and for a new key without a passphrase;
    /// `Unsupported` for volumes that cannot be reencrypted, and during another reencryption;
    /// `Busy` when another process starts a reencryption at the same time; `NoRoom` when keyslots
    /// or the protection of a step do not fit the header; `WrongKey`, `BadLayout`, `TooSmall`,
    /// `NullCipher`, `Io`, `Memory`.
    pub fn begin_reencryption(
        &mut self,
        on: &(impl Target + ?Sized),
        key: VolumeKey,
        passphrases: &[Passphrase<'_>],
        data_size: u64,
        options: &BeginOptions,
    ) -> Result<VolumeKey> {
        let _lock = ReencryptionLock::of_start(self.uuid(), options.is_open)?;
        keyslot::confirm(self.metadata(), &key)?;
        let (_, segment, crypt) = eligible(self.metadata())?;
        let cipher = options.cipher.clone().unwrap_or_else(|| crypt.cipher.clone());
        let sector_size = options.sector_size.unwrap_or(crypt.sector_size);
        if sector_size > SectorSize::S4096 {
            return Err(bad(format!("sectors of {} bytes: LUKS has 512 to 4096", sector_size.bytes())));
        }
        let same = cipher == crypt.cipher && sector_size == crypt.sector_size && options.shift.is_none();
        if same && matches!(options.key, NewKey::Keep) {
            return Err(bad(
                "nothing would change: name the key, cipher or sector size that the volume should get",
            ));
        }
        unlock::allow_null(&cipher, options.allow_null)?;
        let new_key = options.new_key(crypt, &cipher, &key.key)?;
        try_cipher(&cipher, new_key.as_ref().unwrap_or(&key.key), sector_size)?;
        let unit = sector_size.max(crypt.sector_size);
        let shift = options.shift(segment)?;
        let all = data_size.saturating_sub(shift);
        let whole = volume::data_length(all, segment.offset, segment.size, unit)?;
        let size = options.size.unwrap_or(whole);
        if size == 0 || size > whole || !size.is_multiple_of(unit.bytes() as u64) {
            return Err(bad(format!("{size} bytes: up to {whole} in sectors of {}", unit.bytes())));
        }
        let part = options.size.filter(|&size| size < whole);
        let open = segment.size.is_none() && part.is_none();
        let new = New::prepare(self.metadata(), new_key, passphrases)?;
        let header_size = self.stored.binary.size;
        let mut key = key;
        let given = ShapeInput {
            data_size,
            hot_zone: None,
            allow_null: options.allow_null,
            detached: options.detached,
        };
        let edit = |document: &mut Document, metadata: &Metadata| {
            let (old_digest, segment, _) = eligible(metadata)?;
            let mut room = Room::of(metadata, header_size);
            let (new_digest, areas) = new.write(document, metadata, &mut room, old_digest)?;
            if let Some(new_key) = &new.key {
                key.other = Some((new_digest, crate::kdf::to_key(new_key.as_bytes())?));
            }
            let previous = document["segments"]["0"].clone();
            let mut last = previous.clone();
            last["encryption"] = cipher.to_string().into();
            last["sector_size"] = sector_size.bytes().into();
            last["offset"] = (segment.offset + shift).to_string().into();
            if let Some(part) = part {
                // So that readers after the end do not take the part under the old key for data.
                last["size"] = part.to_string().into();
            }
            let arrangement = Arrangement {
                mode: Mode::Reencrypt,
                direction: options.direction,
                protection: options.protection,
                shift: options.shift,
                previous: (previous, Some(old_digest)),
                last: (last, Some(new_digest)),
                moved: None,
                size,
                open,
                iterations: iterations(metadata, old_digest),
            };
            arrangement.write(document, header_size, &mut room, &key, given)?;
            Ok(areas)
        };
        self.update(on, edit, |areas| {
            areas.iter().zip(&new.slots).try_for_each(|(area, (_, _, made))| made.write(on, *area))
        })?;
        Ok(key)
    }
}

impl BeginOptions {
    /// Returns the number of bytes by which the data moves. The data moves over the volume's own
    /// end, which is given up.
    fn shift(&self, segment: &Segment) -> Result<u64> {
        match self.shift {
            None => Ok(0),
            Some(_) if self.direction != Direction::Backward => {
                Err(bad("data that moves towards the end of the device is reencrypted backward"))
            }
            Some(_) if self.size.is_some() => Err(bad("data that moves is reencrypted as a whole")),
            Some(_) if segment.size.is_some() => Err(bad(
                "the volume has a size of its own: data that moves would overwrite the bytes behind it",
            )),
            Some(shift) => Ok(shift),
        }
    }

    /// Returns the new key, or `None` when the old key stays.
    fn new_key(&self, old: &Crypt, cipher: &CipherSpec, old_key: &Key) -> Result<Option<Key>> {
        let sizes = underseal_cipher::key_sizes(cipher)
            .map_err(|e| bad(format!("cannot use cipher {cipher}")).with_source(e))?;
        let same = || Some(old_key.len()).filter(|len| *cipher == old.cipher || sizes.contains(len));
        let best = || sizes.iter().copied().rfind(|&size| size > 0);
        let len = match &self.key {
            NewKey::Keep => old_key.len(),
            NewKey::Given(key) => key.len(),
            NewKey::Random(size) => size.or_else(same).or_else(best).unwrap_or(0),
        };
        if !sizes.contains(&len) || len == 0 {
            return Err(bad(format!("a key of {} bits does not fit {cipher}", len * 8)));
        }
        match &self.key {
            NewKey::Keep => Ok(None),
            NewKey::Given(key) => crate::kdf::to_key(key.as_bytes()).map(Some),
            NewKey::Random(_) => crate::random::key(len).map(Some),
        }
    }
}

impl<'p> New<'p> {
    fn prepare(metadata: &Metadata, key: Option<Key>, passphrases: &'p [Passphrase<'p>]) -> Result<Self> {
        let Some(key) = key else { return Ok(Self { slots: vec![], digest: None, key: None }) };
        let Some(first) = passphrases.first() else {
            return Err(bad("without a passphrase for the new key, the volume could never be opened"));
        };
        let make = |Passphrase { slot, passphrase, new }: &'p Passphrase<'p>| {
            let old = metadata.keyslots.get(slot).filter(|_| keyslot::opens_data(metadata, *slot));
            let old = old.ok_or_else(|| not_in_use(*slot))?;
            Ok((*slot, new, Made::new(metadata, &key, passphrase, new, Some(old))?))
        };
        let slots = passphrases.iter().map(make).collect::<Result<Vec<_>>>()?;
        let iterations = first.new.pbkdf.digest_iterations(Hash::Sha256, Hash::Sha256.output_len());
        let digest = format::digest(&key, 0, Hash::Sha256, iterations)?;
        Ok(Self { slots, digest: Some(digest), key: Some(key) })
    }

    /// Writes the new keyslots and their digest into the document. Returns the digest's number and
    /// the places of the areas.
    fn write(
        &self,
        document: &mut Document,
        metadata: &Metadata,
        room: &mut Room,
        old_digest: u32,
    ) -> Result<(u32, Vec<u64>)> {
        let Some(digest) = &self.digest else { return Ok((old_digest, vec![])) };
        let number =
            free(&metadata.digests).ok_or_else(|| no_room("no room for another key's digest is left"))?;
        let mut taken: Vec<u32> = metadata.keyslots.keys().copied().collect();
        let (mut numbers, mut areas) = (Vec::new(), Vec::new());
        for (old, new, made) in &self.slots {
            let slot = free_number(MAX_OBJECTS, new.number, |number| !taken.contains(number))?;
            let area = room.take(made.area_size())?;
            words::insert(document, "keyslots", slot, made.json(area))?;
            words::name_in_tokens(document, *old, slot)?;
            taken.push(slot);
            numbers.push(slot.to_string());
            areas.push(area);
        }
        let mut digest = digest.clone();
        digest["keyslots"] = json!(numbers);
        digest["segments"] = json!([]);
        words::insert(document, "digests", number, digest)?;
        Ok((number, areas))
    }
}

/// Returns the segment of a volume that can be reencrypted, with its cipher and the digest of its
/// key.
pub(super) fn eligible(metadata: &Metadata) -> Result<(u32, &Segment, &Crypt)> {
    let unsupported = |why: &str| Error::new(ErrorKind::Unsupported, why);
    activate::requirements(&metadata.config.requirements)?;
    let mut segments = metadata.segments.values();
    let (Some(segment), None) = (segments.next(), segments.next()) else {
        return Err(unsupported("only a volume of one segment can be reencrypted"));
    };
    let crypt =
        crypt_of(segment, "segments.0")?.ok_or_else(|| unsupported("segments.0: is not encrypted"))?;
    if crypt.iv_tweak != 0 {
        return Err(unsupported(
            "segments.0.iv_tweak: a volume whose sectors are not counted from 0 cannot be reencrypted",
        ));
    }
    if !segment.flags.is_empty() {
        return Err(unsupported("segments.0.flags: are not known to this build"));
    }
    let digest = metadata.digests.iter().find(|(_, digest)| digest.segments.contains(&0));
    let digest = digest.ok_or_else(|| unsupported("segments.0: no digest has its key"))?;
    Ok((*digest.0, segment, crypt))
}

/// Returns the number of rounds of the data's digest.
pub(super) fn iterations(metadata: &Metadata, digest: u32) -> u32 {
    match metadata.digests.get(&digest).map(|digest| &digest.check) {
        Some(Ok(check)) => match check.kdf {
            Kdf::Pbkdf2 { iterations, .. } => iterations,
            Kdf::Argon2 { .. } => crate::kdf::benchmark::MIN_ITERATIONS,
        },
        _ => crate::kdf::benchmark::MIN_ITERATIONS,
    }
}
