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

/// One sound copy.
pub(super) struct Copy {
    pub(super) binary: Binary,
    pub(super) metadata: Metadata,
    digest: HeaderDigest,
}

/// The header as its sound copy or copies say.
pub(super) struct Stored {
    pub(super) binary: Binary,
    pub(super) metadata: Metadata,
    pub(super) digest: HeaderDigest,
    pub(super) damage: Option<Damage>,
}

/// A copy that is bad or out of date, next to a good one.
#[derive(Debug, Clone)]
pub(super) struct Damage {
    pub(super) place: HeaderCopy,
    pub(super) why: String,
    pub(super) in_place: InPlace,
}

/// The bytes where a bad copy should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum InPlace {
    /// A damaged copy, or zeros: it may be written again.
    Copy,
    /// Neither: it may belong to another program.
    Unknown,
    /// The device does not read them.
    Unreadable,
}

impl Damage {
    /// Whether the copy may be written again.
    ///
    /// # Errors
    /// `Ambiguous` where other bytes than a header's are in its place; `Io` where the device does
    /// not tell.
    pub(super) fn may_be_overwritten(&self) -> Result<()> {
        match self.in_place {
            InPlace::Copy => Ok(()),
            InPlace::Unknown => {
                let context =
                    "what stands in its place is no LUKS header and no zeros, and may be somebody else's";
                Err(Error::new(ErrorKind::Ambiguous, context))
            }
            InPlace::Unreadable => {
                let context = format!("a header copy that cannot be read is not overwritten: {}", self.why);
                Err(Error::new(ErrorKind::Io, context))
            }
        }
    }
}

/// Reads both copies and takes the newer sound one; none when neither place has the magic.
pub(super) fn read(from: &(impl ReadAt + ?Sized)) -> Result<Option<Stored>> {
    read_beside(from, in_place_of_first)
}

/// As [`read`], where the second copy counts whatever stands in the first one's place.
pub(super) fn read_over(from: &(impl ReadAt + ?Sized)) -> Result<Option<Stored>> {
    read_beside(from, |_, _| Ok(true))
}

/// `beside` tells whether what stands in place of the first copy may be somebody else's.
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
            // The first copy cannot say how long it is, so the second may be at any of its places.
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
                // A disk that fails is no damaged header, whatever the second copy says.
                Some(Err(_)) if first.kind() == ErrorKind::Io => Err(first),
                Some(Err(second)) => {
                    let context = format!("both header copies are bad; the second: {}", with_causes(&second));
                    Err(Error::new(ErrorKind::BadHeader, context).with_source(first))
                }
                None if absent(&first) => Ok(None),
                None => Err(first),
            }
        }
    }
}

/// Whether what stands where the first copy was may be somebody else's: it is neither zeros nor a
/// damaged copy.
///
/// A second copy outlives what is made on a device later: a partition table writes to the first
/// sector only.
///
/// # Errors
/// `Ambiguous` where it is known and no LUKS header; `Io`.
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
    // The second copy lies beyond it.
    let start = &start[..binary::LEN];
    Ok(start.iter().any(|&byte| byte != 0) && !second.is_damaged_in(start))
}

/// Both copies of a header, ready to be written.
pub(crate) struct Copies {
    binary: Binary,
    area: Vec<u8>,
}

impl Copies {
    /// # Errors
    /// `BadOption` when the metadata does not fit its area.
    pub(crate) fn new(binary: Binary, document: &Map<String, Value>) -> Result<Self> {
        let area = json::fill_area(document, binary.json_len())?;
        Ok(Self { binary, area })
    }

    /// Writes one after the other, so that one is whole at every instant: `first` is the place
    /// whose copy may be lost, where one of them is bad already (the caller has the lock).
    pub(crate) fn write(&self, to: &(impl Target + ?Sized), first: HeaderCopy) -> Result<()> {
        let places = match first {
            HeaderCopy::First => [HeaderCopy::First, HeaderCopy::Second],
            HeaderCopy::Second => [HeaderCopy::Second, HeaderCopy::First],
        };
        places.into_iter().try_for_each(|place| write_copy(to, &self.binary, &self.area, place))
    }

    /// Writes both copies over a LUKS1 header, which counts until the first sector is written: the
    /// second copy counts then, and in the end both do (the caller has the lock, and nobody needs
    /// the places any more).
    pub(crate) fn write_over_luks1(&self, to: &(impl Target + ?Sized)) -> Result<()> {
        self.write_from_the_end(to)
    }

    /// Writes the second copy, then the first one, of it the first sector as soon as all but its
    /// binary header is there: what stood in that sector counts until then, and from then on the
    /// second copy, until both do.
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

    /// The same with another document, which `edit` makes of this one, its parse and the size of a
    /// copy.
    ///
    /// # Errors
    /// Those of `edit`; `BadOption` when the metadata does not fit its area, `BadHeader` when no
    /// reader would take it.
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

    /// The metadata, read back from the bytes that are going to be written.
    pub(crate) fn metadata(&self) -> Result<Metadata> {
        Metadata::parse(json::parse_area(&self.area)?, self.binary.size)
    }
}

/// Writes the bad copy again from the good one, with a fresh salt, under the header's lock.
pub(super) fn repair(to: &(impl Target + ?Sized), stored: &Stored) -> Result<()> {
    let Some(damage) = &stored.damage else { return Ok(()) };
    damage.may_be_overwritten()?;
    let _lock = to.lock(LockTo::Change)?;
    unchanged(to, stored)?;
    mend(to, stored)
}

/// As [`repair`], whatever stands in the bad copy's place.
pub(super) fn repair_over(to: &(impl Target + ?Sized), stored: &Stored) -> Result<()> {
    let _lock = to.lock(LockTo::Change)?;
    is_same(read_over(to)?, stored)?;
    mend(to, stored)
}

/// As [`repair`], for who has the lock and knows that nobody else's bytes are in the bad one's
/// place.
pub(super) fn mend(to: &(impl Target + ?Sized), stored: &Stored) -> Result<()> {
    let Some(damage) = &stored.damage else { return Ok(()) };
    let area = json::fill_area(&stored.metadata.document, stored.binary.json_len())?;
    write_copy(to, &stored.binary, &area, damage.place)
}

/// Writes the good copies again as they are read: after a sync that failed they may be in memory
/// only. Bytes that do not change cannot be torn (the caller has the lock).
pub(super) fn secure(to: &(impl Target + ?Sized), stored: &Stored) -> Result<()> {
    let size = stored.binary.size;
    let bad = stored.damage.as_ref().map(|damage| damage.place);
    for place in [HeaderCopy::First, HeaderCopy::Second].into_iter().filter(|place| Some(*place) != bad) {
        let offset = place.offset(size);
        let bytes = storage::read(to, offset, usize::try_from(size).unwrap_or(usize::MAX))?;
        storage::write(to, offset, &bytes)?;
    }
    storage::sync(to)
}

/// Refuses to go on when the header on disk is no longer the one that was read.
pub(super) fn unchanged(to: &(impl ReadAt + ?Sized), before: &Stored) -> Result<Stored> {
    is_same(read(to)?, before)
}

fn is_same(now: Option<Stored>, before: &Stored) -> Result<Stored> {
    // A header that was put back from a backup may have the same number and other contents.
    let same =
        |now: &Stored| now.binary == before.binary && now.metadata.document == before.metadata.document;
    let changed = || Error::new(ErrorKind::Busy, "the header was changed meanwhile; try again");
    now.filter(same).ok_or_else(changed)
}

/// Whether the second copy of a header, of which nothing is damaged, says something else than the
/// first.
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

/// Invalid header, JSON, valid header, each on disk before the next.
fn write_copy(to: &(impl Target + ?Sized), binary: &Binary, area: &[u8], place: HeaderCopy) -> Result<()> {
    let offset = place.offset(binary.size);
    let bytes = binary.encode(place, &crate::random::bytes()?, area);
    storage::write(to, offset, &[0; binary::LEN])?;
    storage::write(to, offset + binary::LEN as u64, area)?;
    storage::sync(to)?;
    storage::write(to, offset, &bytes[..])?;
    storage::sync(to)
}

/// Reads one copy; `size` is what its size must be.
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
        // What was parsed ends with a zero.
        let text = area.split(|&byte| byte == 0).next().unwrap_or_default();
        let digest = HeaderDigest::of(&[binary.uuid.as_bytes(), &[0], text]);
        Ok(Copy { binary, metadata, digest })
    };
    read().map_err(within)
}

/// Both copies, the first being sound: the newer wins, the first when equal.
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
            let damage = damage(HeaderCopy::Second, &with_causes(&e).to_string());
            Stored { damage, binary, metadata, digest }
        }
    }
}

fn absent(e: &Error) -> bool {
    e.kind() == ErrorKind::NoHeader
}

/// A file that ends before a header could begin has none.
fn nothing_there(e: Error) -> Error {
    if e.kind() == ErrorKind::TooSmall {
        Error::new(ErrorKind::NoHeader, "the file ends before it")
    } else {
        e
    }
}
