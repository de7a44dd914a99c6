//! The start of a reencryption to another key, cipher, sector size or place: one update of the
//! header brings all of it.

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

/// What a volume is to become.
#[derive(Debug)]
pub struct BeginOptions {
    /// Its cipher; none keeps it.
    pub cipher: Option<CipherSpec>,
    /// Its sector size; none keeps it.
    pub sector_size: Option<SectorSize>,
    /// Its key.
    pub key: NewKey,
    /// In which order.
    pub direction: Direction,
    /// What a step that is written over its own source is protected by; never the source.
    pub protection: Protection,
    /// The data moves so many bytes towards the end, backward, and the volume gets so much smaller:
    /// the room for keyslots grows by it.
    pub shift: Option<u64>,
    /// Only the first so many bytes of the volume, which has no more from now on: the rest of the
    /// device stays as it is, but its key goes in the end.
    pub size: Option<u64>,
    /// The header is in another file than the data.
    pub detached: bool,
    /// Accepts data that is not encrypted under the name of a cipher (`cipher_null`).
    pub allow_null: bool,
    /// The volume is open: its server has the lock of reencryptions, shared, and goes on with what
    /// begins.
    pub is_open: bool,
}

/// The key that a volume gets.
#[derive(Debug)]
pub enum NewKey {
    /// The one that it has.
    Keep,
    /// A random one of so many bytes; none takes the old one's length where the cipher stays, else
    /// the cipher's largest.
    Random(Option<usize>),
    /// This one.
    Given(Key),
}

/// A passphrase that goes on opening the volume.
#[derive(Debug)]
pub struct Passphrase<'p> {
    /// The keyslot that it opens now.
    pub slot: u32,
    /// It itself.
    pub passphrase: &'p Key,
    /// The keyslot that it opens from now on; see [`Header::like_keyslot`].
    pub new: NewKeyslot,
}

/// Ready to be written: all that takes time is done.
struct New<'p> {
    slots: Vec<(u32, &'p NewKeyslot, Made)>,
    digest: Option<Value>,
    key: Option<Key>,
}

impl Header {
    /// A keyslot as costly as one that is there, for the same passphrase.
    ///
    /// # Errors
    /// `NoKeyslot` when it is not there; `Unsupported` for kinds that this build does not know.
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

    /// The keyslots of the data's key whose passphrases are not among these: they are lost when
    /// another key takes its place.
    pub fn lost_keyslots(&self, kept: &[u32]) -> Vec<u32> {
        let metadata = self.metadata();
        let slots = metadata.keyslots.keys().copied();
        slots.filter(|slot| keyslot::opens_data(metadata, *slot) && !kept.contains(slot)).collect()
    }

    /// Begins a reencryption, in one update: the header says what it was, what it will be, and how
    /// far it is. No data is touched. `key` is the volume's, and comes back with the new one;
    /// `data_size` is the size of the device that holds the data.
    ///
    /// Where the key changes, only the passphrases that are given go on opening the volume when it
    /// has come to its end.
    ///
    /// # Errors
    /// `BadOption` for what does not fit the volume, or where no passphrase is given for a new key;
    /// `Unsupported` for volumes that cannot be reencrypted, and while one is under way; `Busy`
    /// when somebody else is about to; `NoRoom` when keyslots or what protects a step do not fit
    /// the header; `WrongKey`, `BadLayout`, `TooSmall`, `NullCipher`, `Io`, `Memory`.
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
                "nothing would change: say which key, cipher or sector size the volume is to have",
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
                // Nobody who opens it in the end takes what still has the old key for data.
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
    /// By how much the data moves: what it moves over is the volume's own end, which it gives up.
    fn shift(&self, segment: &Segment) -> Result<u64> {
        match self.shift {
            None => Ok(0),
            Some(_) if self.direction != Direction::Backward => {
                Err(bad("data that moves towards the end of the device is reencrypted backward"))
            }
            Some(_) if self.size.is_some() => Err(bad("data that moves is reencrypted as a whole")),
            Some(_) if segment.size.is_some() => Err(bad(
                "the volume has a size of its own: data that moves would overwrite what lies behind it",
            )),
            Some(shift) => Ok(shift),
        }
    }

    /// The new key, or none where the old one stays.
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
            return Err(bad("without a passphrase that goes on opening it, nobody could open the volume"));
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

    /// Puts the new keyslots and their digest into the document: its number, and where the areas
    /// go.
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

/// The one segment of a volume that can be reencrypted, with its cipher and the digest of its key.
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

/// As many rounds as the digest of the data's key has.
pub(super) fn iterations(metadata: &Metadata, digest: u32) -> u32 {
    match metadata.digests.get(&digest).map(|digest| &digest.check) {
        Some(Ok(check)) => match check.kdf {
            Kdf::Pbkdf2 { iterations, .. } => iterations,
            Kdf::Argon2 { .. } => crate::kdf::benchmark::MIN_ITERATIONS,
        },
        _ => crate::kdf::benchmark::MIN_ITERATIONS,
    }
}
