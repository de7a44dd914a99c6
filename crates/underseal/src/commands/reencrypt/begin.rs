//! What is decided and written before the first step.

mod blocks;
mod decrypt;
mod encrypt;
pub(super) mod losing;

use std::fs::File;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use underseal_cipher::{CipherSpec, Key, SectorSize};
use underseal_volume::info::SegmentInfo;
use underseal_volume::luks2::{self, BeginOptions, NewKey, Passphrase};
use underseal_volume::reencrypt::{self, Direction, Mode, Protection};
use underseal_volume::{Hash, Header, Target, VolumeKey};

pub(super) use self::decrypt::{decrypt, takes_header_away};
pub(super) use self::encrypt::{encrypt, refuse_unfinished};
use self::losing::Losses;
use super::keys::{self, Known};
use crate::cli::{ReencryptArgs, Resilience, Way};
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::passphrase::volume_key_file;

/// The header that a reencryption begins with.
pub(super) struct Place<'p> {
    /// What the header is on, and its name.
    pub(super) on: &'p (dyn Target + Sync),
    pub(super) name: &'p Path,
    /// What holds the data, and its name.
    pub(super) data: &'p (dyn Target + Sync),
    pub(super) image: &'p Path,
    /// The two are not the same.
    pub(super) detached: bool,
    /// Of an open volume, the size that its users know.
    pub(super) size: Option<u64>,
}

impl Place<'_> {
    /// Refuses a header by which an open volume has another size than it has: its server would not
    /// go on with what is begun there.
    fn is_as_its_users_know(&self, header: &Header) -> Result<()> {
        let info = header.info();
        let (Some(known), [of]) = (self.size, &info.segments[..]) else { return Ok(()) };
        let device = self.data.size().map_err(|e| Error::io(self.image, "cannot find out its size", e))?;
        let says = of.size.unwrap_or(device.saturating_sub(of.offset) & !511);
        if says == known {
            return Ok(());
        }
        let what = format!(
            "{}: by its header the volume has {says} bytes, but it is open with {known}",
            self.name.display()
        );
        Err(Error::usage(what).with_remedy("`underseal resize` it back, or `underseal close` it first"))
    }
}

/// Whether the options say what is to become of the volume.
pub(super) fn says_what(args: &ReencryptArgs) -> bool {
    if args.state.is_some() {
        return false;
    }
    let ReencryptArgs { encrypt, decrypt, cipher, key_size, sector_size, keep_key, volume_key_file, .. } =
        args;
    let key = *keep_key || volume_key_file.is_some();
    *encrypt || *decrypt || key || cipher.is_some() || key_size.is_some() || sector_size.is_some()
}

/// Refuses options that do not fit the reencryption that is under way, or that none is. The same
/// command again resumes it, as cryptsetup does: options that only a start reads are ignored, with
/// a warning.
///
/// # Errors
/// `Usage`.
pub(super) fn fits(args: &ReencryptArgs, under_way: Option<Mode>, name: &Path) -> Result<()> {
    let Some(mode) = under_way else {
        if !args.resume_only {
            return Ok(());
        }
        let error = Error::usage(format!("{}: no reencryption is under way", name.display()));
        return Err(error.with_remedy("without --resume-only, to begin one"));
    };
    let is_other_mode = args.encrypt && mode != Mode::Encrypt || args.decrypt && mode != Mode::Decrypt;
    if args.init_only || is_other_mode {
        let error = Error::usage(format!("{}: a reencryption is under way already", name.display()));
        return Err(error.with_remedy("--resume-only, to bring that to its end first"));
    }
    let placed = args.device_size.is_some() || args.reduce_device_size.is_some();
    if placed || args.direction.is_some() || says_what(args) {
        log::warn!(
            "{}: resumes the reencryption that is under way; its cipher, key, sector size, direction and \
             sizes stay as they were begun",
            name.display()
        );
    }
    if args.resilience_hash.is_some() && args.resilience.is_none() {
        let error = Error::usage(format!("{}: its steps are protected as they were begun", name.display()));
        return Err(error.with_remedy("--resilience checksum with --resilience-hash, to change that"));
    }
    Ok(())
}

/// Begins to give a volume that has a header another key, cipher or sector size, or to decrypt it
/// where it lies.
///
/// # Errors
/// `Usage` for what does not fit the volume, and where passphrases would be lost that nobody has
/// given up; those of the header.
pub(super) fn begin(args: &ReencryptArgs, header: Header, place: &Place<'_>) -> Result<VolumeKey> {
    place.is_as_its_users_know(&header)?;
    let (key, mut known) = keys::unlock(args, &header, place.on, place.name)?;
    if args.decrypt {
        return decrypt(args, luks2_of(header, place.name)?, key, place);
    }
    refuse_datashift(args)?;
    blocks::fit_volume(args, &header, &key, place)?;
    if !args.keep_key {
        keys::others_in_order(args, &header, (place.on, place.name), &mut known)?;
    }
    let mut header = luks2_of(header, place.name)?;
    let options = options(args, &header, place)?;
    let losses = Losses::default().passphrases(args, &header, &known, place.name);
    losses.unprotected(args, place.name).the_end(args, place.image).the_rest(args, place.image).sure(args)?;
    let passphrase = |known: &'_ Known| -> Result<_> {
        let new = header.like_keyslot(known.slot).map_err(|e| e.in_file(place.name))?;
        Ok((known.slot, new))
    };
    let new = known.iter().map(passphrase).collect::<Result<Vec<_>>>()?;
    let kept = new.into_iter().zip(&known);
    let kept = kept.map(|((slot, new), known)| Passphrase { slot, passphrase: &known.passphrase, new });
    let kept: Vec<_> = if args.keep_key { vec![] } else { kept.collect() };
    let size = place.data.size().map_err(|e| Error::io(place.image, "cannot find out its size", e))?;
    let begun = header.begin_reencryption(place.on, key, &kept, size, &options);
    Ok(begun.map_err(|e| e.in_file(place.name))?)
}

/// # Errors
/// `Unsupported` for the older version.
fn luks2_of(header: Header, name: &Path) -> Result<luks2::Header> {
    match header {
        Header::Luks2(header) => Ok(*header),
        _ => {
            let what = format!("{}: LUKS1 keeps nowhere how far a reencryption is", name.display());
            Err(Error::new(Exit::Unsupported, what)
                .with_remedy("`underseal header convert --to luks2` first"))
        }
    }
}

fn options(args: &ReencryptArgs, header: &luks2::Header, place: &Place<'_>) -> Result<BeginOptions> {
    let sector_size = args.sector_size.map(SectorSize::new).transpose()?;
    let stays = |of: &SegmentInfo| {
        let cipher = args.cipher.as_ref().map(ToString::to_string);
        let sectors = sector_size.map(SectorSize::bytes);
        cipher.is_none_or(|new| of.cipher == Some(new))
            && sectors.is_none_or(|new| of.sector_size == Some(new))
    };
    if args.keep_key && args.reduce_device_size.is_none() && header.info().segments.iter().all(stays) {
        let error = Error::usage(format!(
            "{}: with the old key, nothing of it would become another",
            place.name.display()
        ));
        return Err(error.with_remedy("--cipher or --sector-size, or without --keep-key"));
    }
    let key = match (args.keep_key, new_key(args)?) {
        (true, _) => NewKey::Keep,
        (false, Some(key)) => NewKey::Given(key),
        (false, None) => NewKey::Random(key_size(args)?),
    };
    let mut all = forms(&header.info().segments)?;
    if let Some((cipher, sectors)) = all.first().cloned() {
        all.push((args.cipher.clone().unwrap_or(cipher), sector_size.unwrap_or(sectors)));
    }
    // Data that moves keeps its source.
    let protection = match args.reduce_device_size {
        Some(_) => Protection::None,
        None => protection(args, place.image, &all)?,
    };
    Ok(BeginOptions {
        cipher: args.cipher.clone(),
        sector_size,
        key,
        direction: direction(args).unwrap_or(match args.reduce_device_size {
            Some(_) => Direction::Backward,
            None => Direction::Forward,
        }),
        protection,
        shift: args.reduce_device_size,
        size: args.device_size,
        detached: place.detached,
        allow_null: false,
        is_open: place.size.is_some(),
    })
}

/// The one that was given.
fn new_key(args: &ReencryptArgs) -> Result<Option<Key>> {
    let wanted = key_size(args)?;
    let Some(file) = &args.volume_key_file else { return Ok(None) };
    let key = volume_key_file(file, None, wanted.unwrap_or(64))?;
    if let Some(wanted) = wanted.filter(|wanted| *wanted != key.len()) {
        let (file, has, wanted) = (file.display(), key.len() * 8, wanted * 8);
        return Err(Error::usage(format!("{file}: a key of {has} bits, and --key-size says {wanted}")));
    }
    Ok(Some(key))
}

/// In bytes.
fn key_size(args: &ReencryptArgs) -> Result<Option<usize>> {
    if args.key_size.is_some_and(|bits| !bits.is_multiple_of(8)) {
        return Err(Error::usage("the key's bits are no whole number of bytes"));
    }
    Ok(args.key_size.map(|bits| bits / 8))
}

pub(super) fn direction(args: &ReencryptArgs) -> Option<Direction> {
    args.direction.map(|way| match way {
        Way::Forward => Direction::Forward,
        Way::Backward => Direction::Backward,
    })
}

/// How a header says that data is encrypted, also what is to come.
///
/// # Errors
/// `Unsupported` where this build knows no such cipher.
pub(super) fn forms(segments: &[SegmentInfo]) -> Result<Vec<Form>> {
    let form = |segment: &SegmentInfo| {
        let cipher = segment.cipher.as_deref().unwrap_or("cipher_null-ecb");
        let sectors = u32::try_from(segment.sector_size.unwrap_or(512)).unwrap_or(u32::MAX);
        Ok((cipher.parse()?, SectorSize::new(sectors)?))
    };
    segments.iter().map(form).collect()
}

/// How data is encrypted.
pub(super) type Form = (CipherSpec, SectorSize);

/// Refuses protection by the place that data move away from where they do not move: it would be
/// none.
pub(super) fn refuse_datashift(args: &ReencryptArgs) -> Result<()> {
    use Resilience::{Datashift, DatashiftChecksum, DatashiftJournal};
    match args.resilience {
        Some(Datashift | DatashiftChecksum | DatashiftJournal) if args.reduce_device_size.is_none() => {
            let what = "the data stay where they are, so --resilience datashift would protect no step";
            Err(Error::usage(format!("{}: {what}", args.image.display()))
                .with_remedy("--resilience checksum or journal"))
        }
        _ => Ok(()),
    }
}

/// What protects steps that are written over their own source, which has these forms: checksums
/// where they are enough, unless something else is asked for.
///
/// # Errors
/// `Failed` when the image cannot be looked at; `Unsupported` for ciphers that this build does not
/// know.
pub(super) fn protection(args: &ReencryptArgs, image: &Path, forms: &[Form]) -> Result<Protection> {
    let disk = Disk::of(image)?;
    let block = forms.iter().map(|(_, sectors)| sectors.bytes() as u64).fold(disk.block(), u64::max);
    let checksum = Protection::Checksum { hash: args.resilience_hash.unwrap_or(Hash::Sha256), block };
    match args.resilience {
        None if block <= disk.written_whole => Ok(checksum),
        None => {
            let mend = |(cipher, sectors): &Form| reencrypt::checksums_mend(block, cipher, *sectors);
            let mend = forms.iter().map(mend).collect::<underseal_volume::Result<Vec<_>>>()?;
            Ok(if mend.into_iter().all(|mends| mends) { checksum } else { Protection::Journal })
        }
        Some(Resilience::Checksum | Resilience::DatashiftChecksum) => Ok(checksum),
        Some(Resilience::Journal | Resilience::DatashiftJournal) => Ok(Protection::Journal),
        Some(Resilience::None | Resilience::Datashift) => Ok(Protection::None),
    }
}

/// How an image is written.
struct Disk {
    /// So many bytes reach it whole or not at all, whatever happens.
    written_whole: u64,
    is_file: bool,
}

impl Disk {
    fn of(image: &Path) -> Result<Self> {
        const SECTOR: u64 = 512;
        let unknown = Self { written_whole: SECTOR, is_file: true };
        let Ok(file) = File::open(image) else { return Ok(unknown) };
        let about = file.metadata().map_err(|e| Error::io(image, "cannot look at it", e))?;
        if !about.file_type().is_block_device() {
            return Ok(unknown);
        }
        let size =
            rustix::fs::ioctl_blksszget(&file).map_err(|e| Error::io(image, "cannot look at it", e))?;
        Ok(Self { written_whole: size.into(), is_file: false })
    }

    /// What is hashed at once: of a file, what its page cache holds.
    fn block(&self) -> u64 {
        const PAGE: u64 = 4096;
        if self.is_file { PAGE } else { self.written_whole }
    }
}

/// A new file, for its owner only, which is on disk under its name when this returns.
///
/// # Errors
/// `Usage` when something is there; `Failed`.
pub(super) fn new_file(path: &Path) -> Result<File> {
    let made = File::options().read(true).write(true).create_new(true).mode(0o600).open(path);
    let file = made.map_err(|e| match e.kind() {
        std::io::ErrorKind::AlreadyExists => Error::usage(format!("{}: is there already", path.display()))
            .with_remedy("another name, or move it away"),
        _ => Error::io(path, "cannot create", e),
    })?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let synced = File::open(folder).and_then(|folder| folder.sync_all());
    synced.map_err(|e| Error::io(folder, "cannot be synced", e))?;
    Ok(file)
}
