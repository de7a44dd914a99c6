//! The start of an encryption: a new header that describes existing data as plaintext so far.
//!
//! A detached header is written at once, and no data is touched. A header in front needs the place
//! of the first data: see `unfinished_start.rs`.

use std::fmt;
use std::path::Path;

use serde_json::{Value, json};
use underseal_cipher::{Key, SectorSize};
use zeroize::Zeroizing;

use super::arrange::Arrangement;
use super::shape::ShapeInput;
use super::unfinished_start::{StartPhase, UnfinishedStart};
use crate::format::{self, Parts, bad};
use crate::luks2::Header;
use crate::luks2::update::room::Room;
use crate::reencrypt::{Direction, Mode, Protection};
use crate::storage::new_file::{new_file, remove_new_file};
use crate::{
    Error, ErrorKind, FormatOptions, NamedFile, NewHeader, Result, Target, VolumeKey, storage, volume,
};

/// How plain data is encrypted in place.
#[derive(Debug)]
pub struct EncryptOptions {
    /// The header's parameters. If the header is in front of the data, its data offset is the
    /// distance by which the data moves.
    pub format: FormatOptions,
    /// The order of the steps; with a header in front always backward.
    pub direction: Direction,
    /// The protection of a step that is written over its own source; never [`Protection::Source`].
    pub protection: Protection,
    /// With a header in front: the number of unused bytes at the end of the device, which are given
    /// up. The number is twice the distance by which the data moves.
    pub reduce: Option<u64>,
    /// With a detached header: the size of the part to encrypt. The rest of the device stays as it
    /// is.
    pub size: Option<u64>,
}

/// An encryption that is ready to start. From here on only reads and writes can fail.
pub struct NewVolume {
    new: NewHeader,
    /// The move of the first data out of the header's way.
    moved: Option<UnfinishedStart>,
}

impl NewVolume {
    /// Makes all decisions about the encryption of data on `data_size` bytes, and derives the keys.
    /// Nothing is written.
    ///
    /// # Errors
    /// `BadOption` when the options contradict each other; `TooSmall` when the header does not fit
    /// before the data's end; `NoRoom`, `BadLayout`, `NullCipher`, `Memory`.
    pub fn prepare(data_size: u64, passphrase: &Key, options: EncryptOptions) -> Result<Self> {
        let EncryptOptions { mut format, mut direction, protection, reduce, size } = options;
        let detached = format.detached;
        let place = match (reduce, detached) {
            (Some(reduce), false) => Some(Place::new(data_size, reduce, &mut format, size)?),
            (None, true) => None,
            (Some(_), true) => return Err(bad("a header apart from the data takes no room from it")),
            (None, false) => {
                return Err(bad(
                    "a header in front of the data needs room: name the bytes to give up at the end of the device",
                ));
            }
        };
        let allow_null = format.allow_null;
        if format.data_offset.is_none() && detached {
            format.data_offset = Some(0);
        }
        let offset = format.data_offset.unwrap_or(0);
        let Some(behind) = data_size.checked_sub(offset).filter(|behind| *behind > 0) else {
            let context = format!("data at byte {offset} lie beyond the end of the device, byte {data_size}");
            return Err(Error::new(ErrorKind::TooSmall, context));
        };
        let (parts, key) = crate::luks2::format(data_size, passphrase, format)?;
        let format::Copies::Luks2(copies) = parts.copies else {
            return Err(bad("LUKS1 cannot be encrypted to where data is"));
        };
        let key = VolumeKey::new(key, 0);
        if place.is_some() {
            direction = Direction::Backward;
        }
        let given = ShapeInput { data_size, hot_zone: None, allow_null, detached };
        let copies = copies.edited(|document, metadata, header_size| {
            let last = document["segments"]["0"].clone();
            let crypt = metadata.segments.get(&0).and_then(|segment| segment.crypt.as_ref().ok());
            let sector_size = crypt.map_or(SectorSize::S512, |crypt| crypt.sector_size);
            let arrangement = Arrangement {
                mode: Mode::Encrypt,
                direction,
                protection,
                shift: place.as_ref().map(|place| place.shift),
                moved: place.as_ref().map(|place| linear(place.moved_to, Some(place.moved))),
                previous: (
                    linear(place.as_ref().map_or(offset, |_| 0), place.as_ref().map(|place| place.size)),
                    None,
                ),
                size: match &place {
                    Some(place) => place.size,
                    None => whole(behind, size, sector_size)?,
                },
                open: place.is_none() && size.is_none(),
                last: (last, Some(0)),
                iterations: super::begin::iterations(metadata, 0),
            };
            arrangement.write(document, header_size, &mut Room::of(metadata, header_size), &key, given)
        })?;
        let parts = Parts { copies: format::Copies::Luks2(copies), ..parts };
        let moved = place.map(|Place { moved, moved_to, .. }| UnfinishedStart {
            len: moved,
            copied_to: moved_to,
            device: data_size,
            phase: StartPhase::Marked,
            superblocks: 0,
        });
        Ok(Self { new: NewHeader::of_parts(parts, key, detached), moved })
    }

    /// Writes a detached header at once.
    ///
    /// # Errors
    /// `BadOption` for a header in front; `Busy`, `TooSmall`, `Io`.
    pub fn write(&self, to: &(impl Target + ?Sized)) -> Result<()> {
        if self.moved.is_some() {
            return Err(bad("this header is in front of its data"));
        }
        self.new.write(to).map(drop)
    }

    /// Puts the header in front of the data. A start that is cut off is found by
    /// [`UnfinishedStart::find`]. Fails with `BadOption` for a header in a file of its own.
    pub(crate) fn write_in_front(&self, device: &(impl Target + ?Sized)) -> Result<()> {
        let Some(start) = &self.moved else { return Err(bad("this header is apart from its data")) };
        // The mark of an earlier start may be on the disk still, and it names another copy.
        storage::secure(device, 0..UnfinishedStart::LEN)?;
        copy((device, 0), (device, start.copied_to), start.len)?;
        storage::sync(device)?;
        start.mark(device)?;
        self.new.write_from_the_end(device)
    }

    /// Makes sure that the data are plain before their encryption is prepared. Undoes a start that
    /// was cut off; returns whether there was one.
    ///
    /// # Errors
    /// `BadOption` when the data have a header; those of a damaged one, which is no plain data;
    /// `Busy`, `Io`.
    pub fn find_plain(data: &(impl Target + ?Sized)) -> Result<bool> {
        match crate::Header::read(data) {
            Err(e) if e.kind() == ErrorKind::NoHeader => Ok(false),
            Err(e) if e.kind() == ErrorKind::UnfinishedStart => UnfinishedStart::undo_any(data),
            Ok(_) => Err(bad("is encrypted already")),
            Err(e) => Err(e),
        }
    }

    /// Begins: writes the header in front of the data, or to a new file, which is returned.
    ///
    /// # Errors
    /// `BadOption` when the file is there already, or the header is not for that place; `Busy`,
    /// `TooSmall`, `Io`.
    pub fn begin(&self, data: &(impl Target + ?Sized), header: Option<&Path>) -> Result<Option<NamedFile>> {
        let Some(path) = header else {
            self.write_in_front(data)?;
            return Ok(None);
        };
        if self.moved.is_some() {
            return Err(bad("this header is in front of its data"));
        }
        let file = new_file(path)?;
        // The data are as they were.
        self.write(&file).inspect_err(|_| remove_new_file(path, file.file())).map_err(|e| e.in_file(path))?;
        Ok(Some(file))
    }

    /// The volume key.
    pub fn into_key(self) -> VolumeKey {
        self.new.into_key()
    }
}

impl fmt::Debug for NewVolume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NewVolume").field("new", &self.new).field("moved", &self.moved).finish()
    }
}

/// The place of data with a header in front of it.
struct Place {
    shift: u64,
    size: u64,
    moved: u64,
    moved_to: u64,
}

impl Place {
    fn new(data_size: u64, reduce: u64, format: &mut FormatOptions, size: Option<u64>) -> Result<Self> {
        if size.is_some() {
            return Err(bad("data that moves is encrypted as a whole"));
        }
        let shift = format.data_offset.unwrap_or(reduce / 2);
        if shift == 0 || !shift.is_multiple_of(4096) || shift.checked_mul(2).is_none_or(|both| both > reduce)
        {
            return Err(bad(format!(
                "data that moves {shift} bytes, in whole blocks of 4096, takes twice as much from the device"
            )));
        }
        let data_size = data_size & !511;
        let Some(size) = data_size.checked_sub(reduce).filter(|&size| size > 0) else {
            let context = format!("of {data_size} bytes, {reduce} for the header leave nothing");
            return Err(Error::new(ErrorKind::TooSmall, context));
        };
        if format.sector_size.is_none() && !size.is_multiple_of(4096) {
            format.sector_size = Some(SectorSize::S512);
        }
        format.data_offset = Some(shift);
        Ok(Self { shift, size, moved: shift.min(size), moved_to: data_size - shift })
    }
}

pub(super) fn linear(offset: u64, size: Option<u64>) -> Value {
    let size = size.map_or_else(|| "dynamic".into(), |size| size.to_string());
    json!({ "type": "linear", "offset": offset.to_string(), "size": size })
}

/// Returns the size of data that begins at byte 0.
fn whole(data_size: u64, size: Option<u64>, sector_size: SectorSize) -> Result<u64> {
    let whole = volume::data_length(data_size, 0, None, sector_size)?;
    let unit = sector_size.bytes();
    match size {
        Some(size) if size == 0 || size > whole || !size.is_multiple_of(unit as u64) => {
            Err(bad(format!("{size} bytes: up to {whole} in sectors of {unit}")))
        }
        size => Ok(size.unwrap_or(whole)),
    }
}

/// The message about two headers of one volume, when nothing decides which header describes it.
pub(super) fn differ(front: &Header, apart: &Header) -> String {
    format!(
        "the device of the data has a header of this volume, too (its update {}), and so has the file apart (its update {}): only the one \
         that was used last describes the data. Keep both, and go on with that one alone",
        front.stored.binary.seqid, apart.stored.binary.seqid
    )
}

/// Copies bytes to another place that does not overlap. The bytes may be plaintext, so no copy
/// stays in memory.
pub(super) fn copy(
    (from, source): (&(impl Target + ?Sized), u64),
    (to, target): (&(impl Target + ?Sized), u64),
    len: u64,
) -> Result<()> {
    const PIECE: usize = 1 << 20;
    let piece = |left: u64| usize::try_from(left).unwrap_or(PIECE).min(PIECE);
    let mut buffer = Zeroizing::new(vec![0; piece(len)]);
    let mut at = 0;
    while at < len {
        let bytes = &mut buffer[..piece(len - at)];
        storage::read_into(from, source + at, bytes)?;
        storage::write(to, target + at, bytes)?;
        at += bytes.len() as u64;
    }
    Ok(())
}
