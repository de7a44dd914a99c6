//! A new LUKS2 header with one keyslot.

use std::ops::Range;

use base64ct::{Base64, Encoding};
use serde_json::{Map, Value, json};
use underseal_cipher::{Key, SectorSize};

use super::activate::NO_JOURNAL;
use super::binary::{self, Binary, SIZES};
use super::integrity;
use super::keyslot::new::{NewSlot, area_size};
use super::metadata::{Crypt, MAX_OBJECTS};
use super::store::Copies;
use crate::format::{self, Parts, bad, leaves_data, try_cipher, try_recipe};
use crate::text::FixedText;
use crate::{FormatOptions, Hash, Result, kdf};

/// The default start of the data, as in cryptsetup.
const DATA_OFFSET: u64 = 16 << 20;

pub(crate) fn format(data_size: u64, passphrase: &Key, mut options: FormatOptions) -> Result<(Parts, Key)> {
    let beside = options.integrity.as_ref().map(|wanted| integrity::new(&options.cipher, wanted));
    let beside = beside.transpose()?;
    let key = match &beside {
        Some((_, integrity, spec)) => options.key_of(&spec.clone(), integrity.mac_key(spec))?,
        None => options.key()?,
    };
    let layout = Layout::new(&options, key.len())?;
    let binary = Binary {
        size: options.metadata_size,
        seqid: 1,
        label: FixedText::new(&options.label, "label")?,
        subsystem: FixedText::new(&options.subsystem, "subsystem")?,
        uuid: FixedText::new(&options.uuid_text()?, "UUID")?,
        checksum: Hash::Sha256,
    };
    leaves_data(data_size, layout.data_offset)?;
    let sector_size = sector_size(&options, &key, data_size - layout.data_offset)?;
    let (encryption, beside) = match beside {
        None => {
            try_cipher(&options.cipher, &key, sector_size)?;
            (options.cipher.to_string(), None)
        }
        Some((object, integrity, cipher)) => {
            let encryption = integrity.encryption.clone();
            let crypt = Crypt { cipher, sector_size, iv_tweak: 0, integrity: Some(integrity) };
            try_recipe(&crypt.cipher_parameters(key.len()), &key)?;
            (encryption, Some(object))
        }
    };
    let number = options.keyslot;
    if number >= MAX_OBJECTS {
        return Err(bad(format!("there is no keyslot {number}: the last is {}", MAX_OBJECTS - 1)));
    }
    let slot = match &options.keyslot_cipher {
        Some((cipher, size)) => NewSlot::settle(cipher, *size, options.hash, &options.pbkdf)?,
        None => NewSlot::settle_like_data(&options.cipher, options.hash, &options.pbkdf)?,
    };
    let digest_iterations = options.pbkdf.digest_iterations(options.hash, options.hash.output_len());
    let mut document = object(json!({
        "keyslots": { number.to_string(): slot.json(key.len(), layout.keyslots.start) },
        "tokens": {},
        "segments": { "0": {
            "type": "crypt",
            "offset": layout.data_offset.to_string(),
            "size": "dynamic",
            "iv_tweak": "0",
            "encryption": encryption,
            "sector_size": sector_size.bytes(),
        } },
        "digests": { "0": digest(&key, number, options.hash, digest_iterations)? },
        "config": {
            "json_size": (options.metadata_size - binary::LEN as u64).to_string(),
            "keyslots_size": (layout.keyslots.end - layout.keyslots.start).to_string(),
        },
    }));
    if let Some(beside) = beside {
        document["segments"]["0"]["integrity"] = beside;
    }
    if options.integrity.as_ref().is_some_and(|integrity| !integrity.has_journal) {
        document["config"]["flags"] = json!([NO_JOURNAL]);
    }
    let copies = Copies::new(binary, &document)?;
    copies.metadata()?;
    let area = (layout.keyslots.start, slot.seal(passphrase, &key)?);
    let Layout { keyslots, data_offset } = layout;
    Ok((Parts { keyslots, data_offset, area, copies: format::Copies::Luks2(copies) }, key))
}

/// Returns the start of the volume's data.
pub(crate) fn data_begins(options: &FormatOptions, key_len: usize) -> Result<u64> {
    Ok(Layout::new(options, key_len)?.data_offset)
}

/// The layout of a new header.
struct Layout {
    keyslots: Range<u64>,
    data_offset: u64,
}

impl Layout {
    fn new(options: &FormatOptions, key_len: usize) -> Result<Self> {
        if !SIZES.contains(&options.metadata_size) {
            return Err(bad("the metadata size is a power of two from 16 KiB to 4 MiB"));
        }
        let keyslots_begin = 2 * options.metadata_size;
        let least = keyslots_begin + area_size(key_len);
        let data_offset = match options.data_offset {
            Some(offset) if !offset.is_multiple_of(512) => {
                return Err(bad(format!("data offset {offset} is no multiple of 512")));
            }
            Some(offset) => offset,
            None if options.detached => 0,
            None => DATA_OFFSET.max(keyslots_begin + options.keyslots_size.unwrap_or(0)).max(least),
        };
        // Without data behind it, the area is as large as usual.
        let limit = if data_offset == 0 { DATA_OFFSET.max(least) } else { data_offset };
        let room = limit.saturating_sub(keyslots_begin).min(128 << 20);
        let keyslots_size = options.keyslots_size.unwrap_or(room - room % 4096);
        let keyslots_end = keyslots_begin.saturating_add(keyslots_size);
        if !options.detached && data_offset == 0 || data_offset != 0 && keyslots_end > data_offset {
            return Err(bad(format!(
                "a header of {keyslots_end} bytes does not fit before data at byte {data_offset}"
            )));
        }
        if keyslots_end < least || !keyslots_size.is_multiple_of(4096) || keyslots_size > 128 << 20 {
            return Err(bad(format!(
                "an area of {keyslots_size} bytes for keyslots: a multiple of 4096 from {} to 128 MiB",
                least - keyslots_begin
            )));
        }
        Ok(Self { keyslots: keyslots_begin..keyslots_end, data_offset })
    }
}

/// Returns the chosen sector size if it fits the data, or the largest that fits data and cipher.
fn sector_size(options: &FormatOptions, key: &Key, data_len: u64) -> Result<SectorSize> {
    let fits = |size: SectorSize| data_len.is_multiple_of(size.bytes() as u64);
    // Sectors across the device's blocks would be slow: they are made on request only.
    let is_aligned = options.data_offset.is_none_or(|offset| offset.is_multiple_of(4096));
    let too_large = |size| {
        let built = underseal_cipher::build(&options.cipher, key, size);
        built.is_err_and(|e| e.kind() == underseal_cipher::ErrorKind::SectorSize)
    };
    // The integrity layer provides whole blocks, and less than the device has.
    let is_authenticated = options.integrity.is_some();
    match options.sector_size {
        None if is_authenticated => Ok(SectorSize::S4096),
        Some(size) if is_authenticated && size <= SectorSize::S4096 => Ok(size),
        Some(size) if size > SectorSize::S4096 => {
            Err(bad(format!("sectors of {} bytes: LUKS has 512 to 4096", size.bytes())))
        }
        Some(size) if !fits(size) => {
            Err(bad(format!("{data_len} bytes of data are no whole number of {}-byte sectors", size.bytes())))
        }
        Some(size) => Ok(size),
        None if is_aligned && fits(SectorSize::S4096) && !too_large(SectorSize::S4096) => {
            Ok(SectorSize::S4096)
        }
        None => Ok(SectorSize::S512),
    }
}

/// Returns the JSON of a digest that confirms the key of one keyslot, for segment 0.
pub(super) fn digest(key: &Key, keyslot: u32, hash: Hash, iterations: u32) -> Result<Value> {
    let salt = crate::random::bytes::<32>()?;
    let mut digest = kdf::new_key(hash.output_len())?;
    hash.pbkdf2(key.as_bytes(), &salt, iterations, digest.as_mut_bytes());
    Ok(json!({
        "type": "pbkdf2",
        "keyslots": [keyslot.to_string()],
        "segments": ["0"],
        "hash": hash.name(),
        "iterations": iterations,
        "salt": Base64::encode_string(&salt),
        "digest": Base64::encode_string(digest.as_bytes()),
    }))
}

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(object) => object,
        _ => unreachable!("json!({{..}}) makes an object"),
    }
}
