//! The start of a reencryption: all that is decided and written before the first step.

use underseal_cipher::{Key, SectorSize};
use underseal_formats::PlainDataDoubt;
use underseal_volume::luks2::{
    self, BeginOptions, DecryptOptions, EncryptOptions, NewKey, NewVolume, Passphrase, UnfinishedStart,
};
use underseal_volume::reencrypt::{
    Direction, Mode, Protection, SectorFit, SectorForm, forms, plain_filesystem_len, volume_filesystem_len,
};
use underseal_volume::{FormatOptions, Header, VolumeKey};

use super::options::{ReencryptionOptions, bad};
use crate::header::new_passphrase;
use crate::lower::Lower;
use crate::open::{Secret, size_of, unlock};
use crate::{Error, ErrorKind, Result};

/// A passphrase and the keyslot that it opens.
type Known<'k> = (u32, &'k Key);

/// The header in which a reencryption is under way, and the volume's keys: begun just now, or
/// before.
pub(super) fn ready(
    data: &Lower,
    passphrase: &Key,
    options: &ReencryptionOptions,
) -> Result<(Lower, VolumeKey)> {
    if options.mode == Some(Mode::Encrypt) && !is_encrypting(data, options) {
        return encrypt(data, passphrase, options);
    }
    if options.mode.is_none() && UnfinishedStart::undo_any(data)? {
        let what =
            "no reencryption is under way: an encryption was cut off as it began, and the data is as it was";
        return Err(bad(what.into()));
    }
    let front =
        options.mode == Some(Mode::Decrypt) && Header::in_front(data, options.header.as_deref())?.is_some();
    let on = match &options.header {
        Some(path) if !front => Lower::open_header(path, true)?,
        _ => data.clone(),
    };
    let header = Header::read(&on)?;
    let under_way = match &header {
        Header::Luks2(header) => header.reencryption()?.map(|status| status.mode),
        _ => {
            let what = "LUKS1 keeps nowhere how far a reencryption is: convert the header to LUKS2 first";
            return Err(Error::new(ErrorKind::Unsupported, what));
        }
    };
    match (options.mode, under_way) {
        (None, None) => return Err(bad("no reencryption is under way".into())),
        (Some(wanted), Some(mode)) if wanted != mode => {
            let what = format!("a reencryption of another kind is under way ({mode:?}): resume that first");
            return Err(bad(what));
        }
        _ => {}
    }
    let (key, known) = unlock_all(&header, &on, passphrase, options)?;
    let Header::Luks2(luks2) = &header else { return Err(bad("not LUKS2".into())) };
    match (under_way, options.mode) {
        (Some(_), _) => Ok((on, key)),
        (None, Some(Mode::Decrypt)) if front => move_header(luks2, data, key, options),
        (None, Some(Mode::Decrypt)) => decrypt(header, (on, data), key, options),
        (None, _) => change(header, (on, data), key, (&known, options)),
    }
}

/// Whether an encryption is under way. One that cannot be read is refused as it begins.
fn is_encrypting(data: &Lower, options: &ReencryptionOptions) -> bool {
    let header = match &options.header {
        Some(path) => Lower::open_header(path, false).ok().map(|on| Header::read(&on)),
        None => Some(Header::read(data)),
    };
    let Some(Ok(Header::Luks2(header))) = header else { return false };
    header.reencryption().ok().flatten().is_some_and(|status| status.mode == Mode::Encrypt)
}

/// The volume's keys, and the keyslots that the passphrases open.
fn unlock_all<'k>(
    header: &Header,
    on: &Lower,
    passphrase: &'k Key,
    options: &'k ReencryptionOptions,
) -> Result<(VolumeKey, Vec<Known<'k>>)> {
    let mut known = vec![];
    let mut open = |passphrase: &'k Key| -> Result<VolumeKey> {
        let secret = Secret::Passphrase(Key::new(passphrase.as_bytes())?);
        let (key, slot) = unlock(header, on, &secret, None, false)?;
        known.extend(slot.map(|slot| (slot, passphrase)));
        Ok(key)
    };
    let mut key = open(passphrase)?;
    for other in &options.others {
        key = key.with(open(other)?);
    }
    Ok((key, known))
}

fn protection(data: &Lower, options: &ReencryptionOptions, forms: &[SectorForm]) -> Result<Protection> {
    Ok(options.protection.on(data.blocks()?, options.resilience_hash, forms)?)
}

/// Begins to give a volume another key, cipher or sector size.
fn change(
    header: Header,
    (on, data): (Lower, &Lower),
    key: VolumeKey,
    (known, options): (&[Known<'_>], &ReencryptionOptions),
) -> Result<(Lower, VolumeKey)> {
    let detached = options.header.is_some();
    let sector_size = options.new_sectors()?;
    if let Some(sectors) = sector_size {
        fits(SectorFit::of_volume(sectors, &header, &key, (data, detached)), sectors, options.force)?;
    }
    if let Some(reduce) = options.reduce {
        let len = volume_filesystem_len(&header, &key, (data, detached));
        let start = header.info().segments.iter().map(|segment| segment.offset).min().unwrap_or(0);
        ends_before(reduce, size_of(data)?.saturating_sub(start), len, options)?;
    }
    let Header::Luks2(mut header) = header else { return Err(bad("not LUKS2".into())) };
    let slots: Vec<u32> = known.iter().map(|(slot, _)| *slot).collect();
    let lost = if options.keep_key { vec![] } else { header.lost_keyslots(&slots) };
    if !lost.is_empty() && !options.lose_keyslots {
        let lost = lost.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
        let what = format!(
            "the passphrases of keyslots {lost} were not given and would open nothing: give them to keep, \
             or allow to lose keyslots"
        );
        return Err(bad(what));
    }
    let cipher = options.new_cipher()?;
    let mut all = forms(&header.info().segments)?;
    if let Some((old, sectors)) = all.first().cloned() {
        all.push((cipher.clone().unwrap_or(old), sector_size.unwrap_or(sectors)));
    }
    let begin = BeginOptions {
        cipher,
        sector_size,
        key: if options.keep_key { NewKey::Keep } else { NewKey::Random(options.key_size) },
        direction: if options.reduce.is_some() { Direction::Backward } else { Direction::Forward },
        // Data that move keep their source.
        protection: match options.reduce {
            Some(_) => Protection::None,
            None => protection(data, options, &all)?,
        },
        shift: options.reduce,
        size: None,
        detached,
        allow_null: false,
        is_open: false,
    };
    let kept = known.iter().map(|(slot, passphrase)| {
        Ok(Passphrase { slot: *slot, passphrase, new: header.like_keyslot(*slot)? })
    });
    let kept = if options.keep_key { vec![] } else { kept.collect::<Result<Vec<_>>>()? };
    let key = header.begin_reencryption(&on, key, &kept, size_of(data)?, &begin)?;
    Ok((on, key))
}

/// Begins to encrypt plain data.
fn encrypt(data: &Lower, passphrase: &Key, options: &ReencryptionOptions) -> Result<(Lower, VolumeKey)> {
    NewVolume::find_plain(data)?;
    let passphrase = &new_passphrase(passphrase.as_bytes())?;
    let detached = options.header.is_some();
    if !detached && options.reduce.is_none() {
        let what = "a header in front of the data needs room: give up bytes at the end of the image, or \
                    name a file for the header";
        return Err(bad(what.into()));
    }
    let defaults = FormatOptions::luks2();
    let cipher = options.new_cipher()?.unwrap_or(defaults.cipher);
    // The data may have been made for a disk with these.
    let sector_size = options.new_sectors()?.unwrap_or(SectorSize::S512);
    fits(SectorFit::of_plain(sector_size, data)?, sector_size, true)?;
    if let (false, Some(doubt)) = (options.force, PlainDataDoubt::find(data)?) {
        return Err(bad(format!("{doubt}: pass force to encrypt it as it is")));
    }
    let protection = match options.reduce {
        Some(reduce) => {
            ends_before(reduce, size_of(data)?, plain_filesystem_len(data)?, options)?;
            Protection::None
        }
        None => protection(data, options, &[(cipher.clone(), sector_size)])?,
    };
    let format = FormatOptions {
        cipher,
        key_size: options.key_size,
        sector_size: Some(sector_size),
        pbkdf: options.pbkdf,
        label: options.label.clone(),
        detached,
        ..FormatOptions::luks2()
    };
    let direction = Direction::Forward;
    let encrypt = EncryptOptions { format, direction, protection, reduce: options.reduce, size: None };
    let new = NewVolume::prepare(size_of(data)?, passphrase, encrypt)?;
    let on = new.begin(data, options.header.as_deref())?.map_or_else(|| data.clone(), Lower::of_header);
    Ok((on, new.into_key()))
}

/// Begins to decrypt data whose header is in a file already.
fn decrypt(
    header: Header,
    (on, data): (Lower, &Lower),
    key: VolumeKey,
    options: &ReencryptionOptions,
) -> Result<(Lower, VolumeKey)> {
    let Header::Luks2(mut header) = header else { return Err(bad("not LUKS2".into())) };
    let mut decrypt = decrypt_options(&header, data, options)?;
    if let Some(start) = header.overwritten_start(data)? {
        if let Some(there) = start.signature {
            return Err(bad(format!("the data would move over {there}, which lies in front of them")));
        }
        if !options.force {
            let what = format!(
                "the data move over the first {} bytes of the image, where their header was: pass force where \
                 nothing else lies there",
                start.len
            );
            return Err(bad(what));
        }
        decrypt.over_header = true;
    }
    header.begin_decryption(&on, data, &key, &decrypt)?;
    Ok((on, key))
}

/// Moves the header from in front of the data to its file, and begins to decrypt.
fn move_header(
    header: &luks2::Header,
    data: &Lower,
    key: VolumeKey,
    options: &ReencryptionOptions,
) -> Result<(Lower, VolumeKey)> {
    let Some(path) = &options.header else {
        let what = "the header is in front of the data, which take its place: name a new file for the header";
        return Err(bad(what.into()));
    };
    let decrypt = DecryptOptions { over_header: true, ..decrypt_options(header, data, options)? };
    let file = header.begin_decryption_into(path, data, &key, &decrypt)?;
    Ok((Lower::of_header(file), key))
}

fn decrypt_options(
    header: &luks2::Header,
    data: &Lower,
    options: &ReencryptionOptions,
) -> Result<DecryptOptions> {
    Ok(DecryptOptions {
        direction: Direction::Forward,
        protection: protection(data, options, &forms(&header.info().segments)?)?,
        first: None,
        size: None,
        over_header: false,
        allow_null: false,
        is_open: false,
    })
}

/// Refuses to give up the end of a file system.
fn ends_before(reduce: u64, size: u64, len: Option<u64>, options: &ReencryptionOptions) -> Result<()> {
    match len {
        Some(len) if len > size.saturating_sub(reduce) && !options.force => Err(bad(format!(
            "the file system takes {len} bytes, and {} would be left of {size}: make it smaller first, or pass \
             force to lose its end",
            size.saturating_sub(reduce)
        ))),
        _ => Ok(()),
    }
}

/// Refuses sectors that are larger than the blocks of the file system that is there.
fn fits(fit: SectorFit, sectors: SectorSize, allow_unknown: bool) -> Result<()> {
    let sectors = sectors.bytes();
    match fit {
        SectorFit::Fits => Ok(()),
        SectorFit::Unknown if allow_unknown => Ok(()),
        SectorFit::Unknown => Err(bad(format!(
            "nothing says that what is on the volume can take sectors of {sectors} bytes: pass force if it can"
        ))),
        SectorFit::SmallerBlocks(blocks) => Err(bad(format!(
            "the file system has blocks of {blocks} bytes and could not be mounted on sectors of {sectors}"
        ))),
    }
}
