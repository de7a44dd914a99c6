//! CoreStorage's metadata: disk label, volume groups descriptor, encrypted blocks.
//!
//! ```text
//!   header --> label (0x0011), of several copies the newest valid one
//!                |--> plist: the group's physical volumes, in the order of their numbers
//!                +--> descriptor --> encrypted blocks of 8192 bytes, twice:
//!                       0x0019 family (users, keys)   0x0024 rest of a family
//!                       0x001a logical volume         0x0305 its segments   0x0505 segment bases
//! ```
//! Of each kind the block with the highest transaction counts, in either copy of the encrypted
//! blocks. Blocks that are marked `LVFwiped` are retired.

use underseal_cipher::{Key, SectorCipher, SectorSize};
use underseal_volume::{CipherParameters, ReadAt};

use super::context::MOST_LIST;
use super::header::{Header, is_whole};
use super::plist::Plist;
use crate::fields::{self, Fields};
use crate::{Error, ErrorKind, Result};

/// Bytes of a metadata block.
pub(super) const BLOCK: usize = 8192;
/// Bytes before a block's data.
pub(super) const HEAD: usize = 64;
/// The most encrypted blocks of one copy: 64 MiB.
const MOST_BLOCKS: u64 = 8192;
/// The most physical volumes of a group.
pub const MOST_DEVICES: usize = 16;
const WIPED: [u8; 8] = *b"LVFwiped";

/// Types of blocks.
pub(super) mod kind {
    pub(crate) const LABEL: u16 = 0x0011;
    pub(crate) const FAMILY: u16 = 0x0019;
    pub(crate) const VOLUME: u16 = 0x001a;
    pub(crate) const MORE: u16 = 0x0024;
    pub(crate) const SEGMENTS: u16 = 0x0305;
    pub(crate) const BASE: u16 = 0x0505;
}

/// Where one copy of the encrypted blocks lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    /// Number of the block on its physical volume.
    pub(super) block: u64,
    /// Number of the physical volume.
    pub(super) device: usize,
}

/// The fields of the disk label.
pub(super) struct Label {
    /// Encrypted blocks of each copy.
    pub(super) count: u64,
    /// The copies' places.
    pub(super) places: [Place; 2],
    /// UUIDs of the group's physical volumes, as text; none where the label has no list.
    pub(super) devices: Vec<String>,
}

impl Label {
    /// Reads the newest valid copy.
    ///
    /// Returns `BadHeader` when no copy is valid, and `Io` or `Memory`.
    pub(super) fn read(image: &dyn ReadAt, header: &Header) -> Result<Self> {
        let mut newest: Option<(u64, Self)> = None;
        let mut failure = None;
        for &block in &header.labels {
            match Self::read_copy(image, header, block) {
                Ok((transaction, label)) => {
                    if newest.as_ref().is_none_or(|(than, _)| transaction > *than) {
                        newest = Some((transaction, label));
                    }
                }
                Err(e) if matches!(e.kind(), ErrorKind::Io | ErrorKind::Memory) => return Err(e),
                Err(e) => failure = failure.or(Some(e)),
            }
        }
        let none = || Error::new(ErrorKind::BadHeader, "no copy of CoreStorage's disk label is valid");
        newest.map(|(_, label)| label).ok_or_else(|| match failure {
            Some(e) => none().with_source(e),
            None => none(),
        })
    }

    fn read_copy(image: &dyn ReadAt, header: &Header, block: u64) -> Result<(u64, Self)> {
        let bad = |why: &str| Error::new(ErrorKind::BadHeader, why);
        let at = block.checked_mul(header.block).ok_or_else(|| bad("a disk label beyond any device"))?;
        fields::range("disk label", at, BLOCK as u64, header.size)?;
        let mut label = Key::zeroed(BLOCK)?;
        fields::read(image, at, label.as_mut_bytes())?;
        let fields = Fields(label.as_bytes());
        if !is_whole(label.as_bytes()) || fields.le16(10)? != kind::LABEL {
            return Err(bad("the disk label fails its CRC-32C"));
        }
        // A pointer stays within its own copy of the metadata.
        let part = |offset: u32, len: usize| -> Result<Key> {
            let len = u32::try_from(len).map_err(|_| bad("a disk label of another size"))?;
            if offset.checked_add(len).is_none_or(|end| end > header.metadata) {
                return Err(bad("the disk label points beyond its metadata"));
            }
            let from = at.saturating_add(offset.into());
            fields::range("disk label", from, len.into(), header.size)?;
            let mut bytes = Key::zeroed(usize::try_from(len).unwrap_or(0))?;
            fields::read(image, from, bytes.as_mut_bytes())?;
            Ok(bytes)
        };
        let descriptor = part(fields.le32(HEAD + 156)?, 48)?;
        let descriptor = Fields(descriptor.as_bytes());
        let place = |at: usize| -> Result<Place> {
            let block = descriptor.le64(at)? & 0xffff_ffff_ffff;
            Ok(Place { block, device: descriptor.le16(at + 6)?.into() })
        };
        let (offset, len) = (fields.le32(HEAD + 160)?, fields.le32(HEAD + 164)?);
        let devices = match usize::try_from(len) {
            Ok(len) if (1..=BLOCK).contains(&len) => {
                part(offset, len).map_or_else(|_| Vec::new(), |list| uuids(&list))
            }
            _ => Vec::new(),
        };
        let count = descriptor.le64(8)?.min(MOST_BLOCKS);
        Ok((fields.le64(16)?, Self { count, places: [place(32)?, place(40)?], devices }))
    }
}

/// The group's physical volumes.
fn uuids(list: &Key) -> Vec<String> {
    let list = String::from_utf8_lossy(list.as_bytes());
    let value = Plist(&list)
        .value("com.apple.corestorage.lvg.physicalVolumes")
        .map(|value| value.strings().take(MOST_DEVICES).map(str::to_ascii_uppercase).collect::<Vec<_>>());
    value.unwrap_or_default()
}

/// A block that was decrypted and is whole.
pub(super) struct Found {
    pub(super) kind: u16,
    pub(super) transaction: u64,
    pub(super) object: u64,
    pub(super) bytes: Key,
}

impl Found {
    pub(super) fn fields(&self) -> Fields<'_> {
        Fields(self.bytes.as_bytes())
    }
}

/// The blocks that opening needs.
#[derive(Default)]
pub(super) struct Blocks {
    found: Vec<Found>,
    /// Blocks that fail their checksum and whose kind, possibly damaged as well, is one that is
    /// read.
    pub(super) damaged: usize,
    /// Family blocks that were retired.
    pub(super) wiped_family: bool,
}

/// Kept blocks of one kind: more are no real volume's.
const MOST_KEPT: usize = 512;

impl Blocks {
    /// Reads one copy of the encrypted blocks, and adds its blocks to those of earlier copies.
    ///
    /// Returns `TooSmall` when the copy lies beyond its device, `TooCostly` for more blocks than
    /// any real volume has, and `Io` or `Memory`.
    pub(super) fn read(&mut self, image: &dyn ReadAt, header: &Header, block: u64, count: u64) -> Result<()> {
        let too_far = || Error::new(ErrorKind::TooSmall, "encrypted metadata beyond any device");
        let start = block.checked_mul(header.block).ok_or_else(too_far)?;
        let cipher = cipher(header)?;
        for nth in 0..count.min(MOST_BLOCKS) {
            let at = start.checked_add(nth * BLOCK as u64).ok_or_else(too_far)?;
            fields::range("encrypted metadata", at, BLOCK as u64, header.size)?;
            let mut bytes = Key::zeroed(BLOCK)?;
            fields::read(image, at, bytes.as_mut_bytes())?;
            if bytes.as_bytes().iter().all(|byte| *byte == 0) {
                break;
            }
            // Numbers of sectors count 512 bytes, and the tweak is the number of the block.
            cipher.decrypt(nth * (BLOCK as u64 >> 9), bytes.as_mut_bytes().into());
            self.keep(bytes)?;
        }
        Ok(())
    }

    fn keep(&mut self, bytes: Key) -> Result<()> {
        let fields = Fields(bytes.as_bytes());
        let kind = fields.le16(10)?;
        if fields.array(0)? == WIPED {
            self.wiped_family |= kind == kind::FAMILY;
            return Ok(());
        }
        let needed = [kind::FAMILY, kind::VOLUME, kind::MORE, kind::SEGMENTS, kind::BASE].contains(&kind);
        if !is_whole(bytes.as_bytes()) {
            self.damaged += usize::from(needed);
            return Ok(());
        }
        if !needed {
            return Ok(());
        }
        let (transaction, object) = (fields.le64(16)?, fields.le64(24)?);
        let same = |found: &Found| (found.kind, found.object) == (kind, object);
        match self.found.iter().position(same) {
            // Of the same transaction the later one counts.
            Some(at) if self.found[at].transaction > transaction => {}
            Some(at) => self.found[at] = Found { kind, transaction, object, bytes },
            None if self.found.len() >= MOST_KEPT => {
                let context = format!("CoreStorage metadata with more than {MOST_KEPT} blocks to keep");
                return Err(Error::new(ErrorKind::TooCostly, context));
            }
            None => self.found.push(Found { kind, transaction, object, bytes }),
        }
        Ok(())
    }

    /// All blocks of a kind, each object's newest, the newest first.
    pub(super) fn of(&self, kind: u16) -> Vec<&Found> {
        let mut found: Vec<_> = self.found.iter().rev().filter(|found| found.kind == kind).collect();
        found.sort_by_key(|found| std::cmp::Reverse(found.transaction));
        found
    }

    /// Whether all kinds that every volume has are there.
    pub(super) fn are_complete(&self) -> bool {
        [kind::FAMILY, kind::VOLUME, kind::SEGMENTS].iter().all(|kind| !self.of(*kind).is_empty())
    }

    /// The text of a list that a block holds, which continues in blocks of type 0x0024, and may be
    /// compressed.
    ///
    /// Returns `BadHeader` for places outside of the block, missing pieces, and data that do not
    /// decompress, `TooCostly` beyond [`MOST_LIST`] bytes, and `Memory`.
    pub(super) fn family_list(&self, family: &Found) -> Result<Key> {
        let bad = |why: &str| Error::new(ErrorKind::BadHeader, format!("the list of keys {why}"));
        let fields = family.fields();
        let size = |at| -> Result<usize> {
            let size = usize::try_from(fields.le32(at)?).unwrap_or(usize::MAX);
            if size > MOST_LIST {
                return Err(Error::new(ErrorKind::TooCostly, format!("a list of keys of {size} bytes")));
            }
            Ok(size)
        };
        let (stored, whole) = (size(HEAD + 40)?, size(HEAD + 44)?);
        let first = fields.bytes(size(HEAD + 48)?, size(HEAD + 52)?)?;
        let mut list = Key::zeroed(stored)?;
        let mut filled = 0;
        let mut piece = first;
        let mut next = fields.le64(HEAD + 32)?;
        // Pieces that refer to each other in a circle come to an end.
        for _ in 0..=MOST_KEPT {
            let len = piece.len().min(stored - filled);
            list.as_mut_bytes()[filled..filled + len].copy_from_slice(&piece[..len]);
            filled += len;
            if filled == stored {
                return if stored == whole {
                    Ok(list)
                } else {
                    inflate(&list, whole).ok_or_else(|| bad("does not decompress"))
                };
            }
            if next == 0 || piece.is_empty() {
                return Err(bad("ends before its length"));
            }
            let more = self.found.iter().find(|found| (found.kind, found.object) == (kind::MORE, next));
            let more = more.ok_or_else(|| bad("has a piece that is missing"))?.fields();
            let len = usize::try_from(more.le32(HEAD + 8)?).unwrap_or(usize::MAX);
            piece = more.bytes(HEAD + 16, len)?;
            next = more.le64(HEAD)?;
        }
        Err(bad("is in more pieces than the metadata have"))
    }
}

/// zlib's data of exactly `whole` bytes, decompressed from locked memory to locked memory.
fn inflate(packed: &Key, whole: usize) -> Option<Key> {
    use miniz_oxide::inflate::TINFLStatus;
    use miniz_oxide::inflate::core::{DecompressorOxide, decompress, inflate_flags};
    let mut out = Key::zeroed(whole).ok()?;
    let mut state = underseal_cipher::Locked::new(DecompressorOxide::new()).ok()?;
    let flags =
        inflate_flags::TINFL_FLAG_PARSE_ZLIB_HEADER | inflate_flags::TINFL_FLAG_USING_NON_WRAPPING_OUTPUT_BUF;
    let (status, _, written) = decompress(&mut state, packed.as_bytes(), out.as_mut_bytes(), 0, flags);
    (status == TINFLStatus::Done && written == whole).then_some(out)
}

/// The cipher of the encrypted blocks: AES-XTS over 8192 bytes.
fn cipher(header: &Header) -> Result<std::sync::Arc<dyn SectorCipher>> {
    let mut key = Key::zeroed(32)?;
    let (data, tweak) = key.as_mut_bytes().split_at_mut(16);
    data.copy_from_slice(header.key.as_bytes());
    tweak.copy_from_slice(&header.uuid);
    let spec = "aes-xts-plain64".parse()?;
    let sector_size = SectorSize::new(8192)?;
    let cipher_parameters =
        CipherParameters { iv_large_sectors: true, ..CipherParameters::new(&spec, sector_size, key.len()) };
    Ok(cipher_parameters.build(&key)?)
}
