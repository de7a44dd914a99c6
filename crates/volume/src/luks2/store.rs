//! The two copies of a header: read, compare, repair, write.

use super::binary::{self, Binary, HeaderCopy, SIZES};
use super::json;
use super::metadata::Metadata;
use serde_json::{Map, Value};

use crate::lock::LockTo;
use crate::signature::{LOOKED_AT, signature};
use crate::storage::{self, ReadAt, Target};
use crate::{Error, ErrorKind, HeaderDigest, Result};
use underseal_error::with_causes;

/// A sound copy.
pub(super) struct Copy {
    pub(super) binary: Binary,
    pub(super) metadata: Metadata,
    digest: HeaderDigest,
}

/// The header according to its sound copies.
pub(super) struct Stored {
    pub(super) binary: Binary,
    pub(super) metadata: Metadata,
    pub(super) digest: HeaderDigest,
    pub(super) damage: Option<Damage>,
}

/// A bad or old copy, next to a good copy.
#[derive(Debug, Clone)]
pub(super) struct Damage {
    pub(super) place: HeaderCopy,
    pub(super) why: String,
    pub(super) in_place: InPlace,
}

/// The bytes in the place of a bad copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum InPlace {
    /// A damaged copy, or zeros: the copy may be written again.
    Copy,
    /// Other bytes, which may belong to another program.
    Unknown,
    /// The device cannot read the bytes.
    Unreadable,
}

impl Damage {
    /// Checks that the copy may be written again.
    ///
    /// Fails with `Ambiguous` when other bytes than a header's are in its place, and with `Io` when
    /// the device cannot read the place.
    pub(super) fn may_be_overwritten(&self) -> Result<()> {
        match self.in_place {
            InPlace::Copy => Ok(()),
            InPlace::Unknown => {
                let context =
                    "what stands in its place is no LUKS header and no zeros, and may be somebody else's";
                Err(Error::new(ErrorKind::Ambiguous, context))
            }
            // The place of the second copy belongs to the header.
            InPlace::Unreadable if self.place == HeaderCopy::Second => Ok(()),
            InPlace::Unreadable => {
                let context = format!("a header copy that cannot be read is not overwritten: {}", self.why);
                Err(Error::new(ErrorKind::Io, context))
            }
        }
    }
}

/// Reads both copies and returns the newer sound copy, or `None` when neither place has the magic.
pub(super) fn read(from: &(impl ReadAt + ?Sized)) -> Result<Option<Stored>> {
    read_beside(from, in_place_of_first)
}

/// Like [`read`], but the second copy counts whatever the first copy's place contains.
pub(super) fn read_over(from: &(impl ReadAt + ?Sized)) -> Result<Option<Stored>> {
    read_beside(from, |_, _| Ok(true))
}

/// `beside` returns true when the bytes in place of the first copy may belong to another program.
fn read_beside<D: ReadAt + ?Sized>(
    from: &D,
    beside: impl Fn(&D, &Binary) -> Result<bool>,
) -> Result<Option<Stored>> {
    let first = read_copy(from, HeaderCopy::First, None);
    match first {
        Ok(first) => {
            let second = read_copy(from, HeaderCopy::Second, Some(first.binary.size));
            Ok(Some(newer(first, second)))
        }
        Err(first) => {
            // The first copy gives no size, so the second copy may be at any of its places.
            let mut found = SIZES.iter().map(|&size| read_copy(from, HeaderCopy::Second, Some(size)));
            let second = found.find(|copy| !matches!(copy, Err(e) if absent(e)));
            match second {
                Some(Ok(Copy { binary, metadata, digest })) => {
                    let in_place = match first.kind() {
                        ErrorKind::Io => InPlace::Unreadable,
                        _ if beside(from, &binary)? => InPlace::Unknown,
                        _ => InPlace::Copy,
                    };
                    let damage = Some(Damage {
                        place: HeaderCopy::First,
                        why: with_causes(&first).to_string(),
                        in_place,
                    });
                    Ok(Some(Stored { binary, metadata, digest, damage }))
                }
                Some(Err(second)) if absent(&first) => {
                    Err(second.within("only the second header copy is left"))
                }
                // A failing disk is no damaged header, whatever the second copy contains.
                Some(Err(_)) if first.kind() == ErrorKind::Io => Err(first),
                Some(Err(second)) => {
                    let context = format!("both header copies are bad; the second: {}", with_causes(&second));
                    let kind =
                        if second.kind() == ErrorKind::Io { ErrorKind::Io } else { ErrorKind::BadHeader };
                    Err(Error::new(kind, context).with_source(first))
                }
                None if absent(&first) => Ok(None),
                None => Err(first),
            }
        }
    }
}

/// Returns true when the bytes in the first copy's place may belong to another program: when they
/// are neither zeros nor a damaged copy.
///
/// A second copy survives later changes of the device: a partition table writes to the first sector
/// only.
///
/// Fails with `Ambiguous` when the bytes are a known signature other than LUKS, and with `Io`.
fn in_place_of_first(from: &(impl ReadAt + ?Sized), second: &Binary) -> Result<bool> {
    let len = storage::size(from)?.min(LOOKED_AT);
    let start = storage::read(from, 0, usize::try_from(len).unwrap_or(binary::LEN))?;
    if let Some(name) = signature(&start) {
        let context = format!(
            "ambiguous signatures: the device begins with {name}, and a LUKS2 header copy stands at byte {}",
            HeaderCopy::Second.offset(second.size)
        );
        return Err(Error::new(ErrorKind::Ambiguous, context));
    }
    // The second copy is beyond these bytes.
    let start = &start[..binary::LEN];
    Ok(start.iter().any(|&byte| byte != 0) && !second.is_damaged_in(start))
}

/// Both copies of a header, ready to be written.
pub(crate) struct Copies {
    binary: Binary,
    area: Vec<u8>,
}

impl Copies {
    /// Fails with `BadOption` when the metadata does not fit its area.
    pub(crate) fn new(binary: Binary, document: &Map<String, Value>) -> Result<Self> {
        let area = json::fill_area(document, binary.json_len())?;
        Ok(Self { binary, area })
    }

    /// Writes the copies in turn, so that one copy is whole at every instant. `first` is the place
    /// whose copy may be lost, if a copy is already bad (the caller has the lock).
    pub(crate) fn write(&self, to: &(impl Target + ?Sized), first: HeaderCopy) -> Result<()> {
        let places = match first {
            HeaderCopy::First => [HeaderCopy::First, HeaderCopy::Second],
            HeaderCopy::Second => [HeaderCopy::Second, HeaderCopy::First],
        };
        places.into_iter().try_for_each(|place| write_copy(to, &self.binary, &self.area, place))
    }

    /// Writes both copies over a LUKS1 header, which counts until the first sector is written. Then
    /// the second copy counts, and in the end both copies (the caller has the lock, and the places
    /// are not needed any more).
    pub(crate) fn write_over_luks1(&self, to: &(impl Target + ?Sized)) -> Result<()> {
        self.write_from_the_end(to)
    }

    /// Writes the second copy, then the first copy. The first sector of the first copy comes after
    /// the rest of that copy. The old contents of that sector count until then, and from then on
    /// the second copy, until both copies are complete.
    pub(crate) fn write_from_the_end(&self, to: &(impl Target + ?Sized)) -> Result<()> {
        write_copy(to, &self.binary, &self.area, HeaderCopy::Second)?;
        let first = self.binary.encode(HeaderCopy::First, &crate::random::bytes()?, &self.area);
        storage::write(to, binary::LEN as u64, &self.area)?;
        storage::sync(to)?;
        let (sector, rest) = first.split_at(512);
        storage::write(to, 0, sector)?;
        storage::sync(to)?;
        storage::write(to, 512, rest)?;
        storage::sync(to)
    }

    /// Returns copies with another document, which `edit` makes from this document, its parse and
    /// the size of a copy.
    ///
    /// Fails with the errors of `edit`, with `BadOption` when the metadata does not fit its area,
    /// and with `BadHeader` when no reader would accept the document.
    pub(crate) fn edited(
        self,
        edit: impl FnOnce(&mut Map<String, Value>, &Metadata, u64) -> Result<()>,
    ) -> Result<Self> {
        let metadata = self.metadata()?;
        let mut document = metadata.document.clone();
        edit(&mut document, &metadata, self.binary.size)?;
        let edited = Self::new(self.binary, &document)?;
        edited.metadata()?;
        Ok(edited)
    }

    /// Returns the metadata, read back from the bytes that will be written.
    pub(crate) fn metadata(&self) -> Result<Metadata> {
        Metadata::parse(json::parse_area(&self.area)?, self.binary.size)
    }
}

/// Rewrites the bad copy from the good copy, with a fresh salt, under the header's lock.
pub(super) fn repair(to: &(impl Target + ?Sized), stored: &Stored) -> Result<()> {
    let Some(damage) = &stored.damage else { return Ok(()) };
    damage.may_be_overwritten()?;
    let _lock = to.lock(LockTo::Change)?;
    secure(to, &unchanged(to, stored)?)?;
    mend(to, stored)
}

/// Like [`repair`], whatever the bad copy's place contains.
pub(super) fn repair_over(to: &(impl Target + ?Sized), stored: &Stored) -> Result<()> {
    let _lock = to.lock(LockTo::Change)?;
    secure(to, &is_same(read_over(to)?, stored)?)?;
    mend(to, stored)
}

/// Like [`repair`], for a caller that has the lock and knows that the bad copy's place belongs to
/// no other program.
pub(super) fn mend(to: &(impl Target + ?Sized), stored: &Stored) -> Result<()> {
    let Some(damage) = &stored.damage else { return Ok(()) };
    let area = json::fill_area(&stored.metadata.document, stored.binary.json_len())?;
    write_copy(to, &stored.binary, &area, damage.place)
}

/// Puts the good copies on stable storage, one after the other: see [`storage::secure`] (the caller
/// has the lock).
pub(super) fn secure(to: &(impl Target + ?Sized), stored: &Stored) -> Result<()> {
    let size = stored.binary.size;
    let bad = stored.damage.as_ref().map(|damage| damage.place);
    let good = [HeaderCopy::First, HeaderCopy::Second].into_iter().filter(|place| Some(*place) != bad);
    good.map(|place| place.offset(size)).try_for_each(|at| storage::secure(to, at..at + size))
}

impl Stored {
    /// Returns true when the device cannot read the other copy, which may be newer.
    pub(super) fn may_be_older(&self) -> bool {
        self.damage.as_ref().is_some_and(|damage| damage.in_place == InPlace::Unreadable)
    }

    /// Returns the error of a header other than the expected one.
    pub(super) fn unexpected(&self) -> Error {
        match &self.damage {
            Some(Damage { why, .. }) if self.may_be_older() => {
                let context = format!("the newer header copy may be the one that cannot be read: {why}");
                Error::new(ErrorKind::Io, context)
            }
            _ => changed(),
        }
    }
}

pub(super) fn changed() -> Error {
    Error::new(ErrorKind::Busy, "the header was changed meanwhile; try again")
}

/// Fails when the header on disk is no longer the header that was read.
pub(super) fn unchanged(to: &(impl ReadAt + ?Sized), before: &Stored) -> Result<Stored> {
    is_same(read(to)?, before)
}

fn is_same(now: Option<Stored>, before: &Stored) -> Result<Stored> {
    // A header restored from a backup may have the same number and other contents.
    let same =
        |now: &Stored| now.binary == before.binary && now.metadata.document == before.metadata.document;
    match now {
        Some(now) if same(&now) => Ok(now),
        now => Err(now.map_or_else(changed, |now| now.unexpected())),
    }
}

/// Returns true when the second copy of a header without damage differs from the first copy.
pub(super) fn copies_differ(from: &(impl ReadAt + ?Sized), stored: &Stored) -> Result<bool> {
    match read_copy(from, HeaderCopy::Second, Some(stored.binary.size)) {
        Ok(second) => {
            let Copy { binary, metadata, .. } = second;
            Ok(binary != stored.binary || metadata.document != stored.metadata.document)
        }
        Err(e) if e.kind() == ErrorKind::Io => Err(e),
        Err(_) => Ok(true),
    }
}

/// Writes an invalid header, the JSON area, and the valid header, each on disk before the next.
fn write_copy(to: &(impl Target + ?Sized), binary: &Binary, area: &[u8], place: HeaderCopy) -> Result<()> {
    let offset = place.offset(binary.size);
    let bytes = binary.encode(place, &crate::random::bytes()?, area);
    storage::write(to, offset, &[0; binary::LEN])?;
    storage::write(to, offset + binary::LEN as u64, area)?;
    storage::sync(to)?;
    storage::write(to, offset, &bytes[..])?;
    storage::sync(to)
}

/// Reads a copy. `size` is the size that it must have.
fn read_copy(from: &(impl ReadAt + ?Sized), place: HeaderCopy, size: Option<u64>) -> Result<Copy> {
    let offset = place.offset(size.unwrap_or(0));
    let within = |e: Error| e.within(format_args!("LUKS2 header copy at byte {offset}"));
    let read = || {
        let mut bytes = Box::new([0; binary::LEN]);
        storage::read_into(from, offset, &mut bytes[..]).map_err(nothing_there)?;
        let binary = Binary::parse(&bytes, place)?;
        if let Some(size) = size
            && binary.size != size
        {
            return Err(Error::new(ErrorKind::BadHeader, format!("its size is {}, not {size}", binary.size)));
        }
        let area = storage::read(from, offset + binary::LEN as u64, binary.json_len())?;
        binary.verify(&bytes, &area)?;
        let metadata = Metadata::parse(json::parse_area(&area)?, binary.size)?;
        // The parsed text ends with a zero.
        let text = area.split(|&byte| byte == 0).next().unwrap_or_default();
        let digest = HeaderDigest::of(&[binary.uuid.as_bytes(), &[0], text]);
        Ok(Copy { binary, metadata, digest })
    };
    read().map_err(within)
}

/// Decides between both copies when the first copy is sound: the newer copy wins, or the first copy
/// of equal copies.
fn newer(first: Copy, second: Result<Copy>) -> Stored {
    let Copy { binary, metadata, digest } = first;
    let damage = |place, why: &str| Some(Damage { place, why: why.into(), in_place: InPlace::Copy });
    match second {
        Ok(second) if second.binary.uuid != binary.uuid => Stored {
            damage: damage(HeaderCopy::Second, "belongs to another volume"),
            binary,
            metadata,
            digest,
        },
        Ok(second) if second.binary.seqid > binary.seqid => Stored {
            binary: second.binary,
            metadata: second.metadata,
            digest: second.digest,
            damage: damage(HeaderCopy::First, "the first header copy is out of date"),
        },
        Ok(second) if second.binary.seqid < binary.seqid => Stored {
            damage: damage(HeaderCopy::Second, "the second header copy is out of date"),
            binary,
            metadata,
            digest,
        },
        Ok(_) => Stored { binary, metadata, digest, damage: None },
        Err(e) => {
            let in_place = if e.kind() == ErrorKind::Io { InPlace::Unreadable } else { InPlace::Copy };
            let why = with_causes(&e).to_string();
            let damage = Some(Damage { place: HeaderCopy::Second, why, in_place });
            Stored { damage, binary, metadata, digest }
        }
    }
}

fn absent(e: &Error) -> bool {
    e.kind() == ErrorKind::NoHeader
}

/// A file that ends before the header's place has no header.
fn nothing_there(e: Error) -> Error {
    if e.kind() == ErrorKind::TooSmall {
        Error::new(ErrorKind::NoHeader, "the file ends before it")
    } else {
        e
    }
}
