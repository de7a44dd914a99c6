//! FileVault 2: encrypted volumes of CoreStorage, as OS X 10.7 to 10.12 make them.
//!
//! ```text
//!   images --header--> physical volumes --metadata--> label, newest encrypted block of each kind
//!                                                       |
//!                        context (users, wrapped keys) <+> logical volume, segments
//!                          |                                 |
//!   passphrase --unlock--> volume key ------------------> OpenedFormat over one or several devices
//! ```
//! Numbers are little-endian, UUIDs big-endian. Volumes of the system keep their keys in a file of
//! the recovery partition, `EncryptedRoot.plist.wipekey`, which is handed in. Known from libfvde's
//! format notes and from cryptsetup.

mod context;
mod header;
mod metadata;
mod plist;
mod segments;
mod wipekey;

use std::fmt;
use std::ops::Range;

use underseal_cipher::{Key, SectorSize};
use underseal_volume::{CipherParameters, KdfLimits, ReadAt, Segment, Volume};

use context::Context;
use header::Header;
use metadata::{BLOCK, Blocks, Label, Place, kind};
use plist::{Plist, unescaped};
use segments::Piece;

use crate::{Error, ErrorKind, Facts, Format, OpenedFormat, Result};

pub use metadata::MOST_DEVICES;

/// A secret that unlocks a volume.
#[derive(Debug)]
pub enum Secret<'a> {
    /// A user's passphrase, or the recovery key with its dashes.
    Passphrase(&'a Key),
    /// The volume key and the tweak key, 32 bytes.
    VolumeKey(&'a Key),
}

/// A FileVault 2 volume that is locked.
pub struct Fvault2 {
    /// The physical volumes, in the order of their numbers.
    devices: Vec<Header>,
    /// The number of each device in the order in which they were given.
    order: Vec<usize>,
    /// `None` when the keys lie in a wipekey file.
    context: Option<Context>,
    logical: Logical,
    pieces: Vec<Piece>,
    /// Some block that may have been newer fails its checksum.
    damaged: bool,
}

/// The logical volume, from block 0x001a.
struct Logical {
    size: u64,
    family: [u8; 16],
    uuid: String,
    name: String,
}

impl Fvault2 {
    /// Whether the image has CoreStorage's header, at its beginning or its end.
    ///
    /// # Errors
    /// `Io`.
    pub fn is_marked(image: &(impl ReadAt + ?Sized)) -> Result<bool> {
        Header::is_there(image)
    }

    /// Reads the metadata of a volume that lies on these images, in any order. Where the keys lie
    /// on another partition, `wipekey` is the file `EncryptedRoot.plist.wipekey` from there.
    ///
    /// # Errors
    /// `NoHeader` for anything else, `Unsupported` for APFS and for layouts that are not opened
    /// here, `BadHeader` for damaged metadata and images that do not belong together,
    /// `MissingDevice`, `TooCostly` for metadata of sizes that no real volume has, `TooSmall`,
    /// `Io`, `Memory`.
    pub fn read(images: &[&dyn ReadAt], wipekey: Option<&Key>) -> Result<Self> {
        let (devices, order, label) = group(images)?;
        let (blocks, places) = blocks(images, &devices, &order, &label)?;
        let logical = Logical::read(&blocks)?;
        let family =
            blocks.of(kind::FAMILY).first().map(|family| Context::parse(&blocks.family_list(family)?));
        let mut damaged = blocks.damaged > 0;
        let context = match wipekey {
            None => family.transpose()?,
            Some(file) => {
                let mut context = Context::parse(&wipekey::decrypt(file, &devices[0].key)?)?;
                match family {
                    // The file may be older than the metadata.
                    Some(Ok(Context { conversion: Some(status), .. })) => context.conversion = Some(status),
                    Some(Ok(_)) | None => {}
                    Some(Err(_)) => damaged = true,
                }
                Some(context)
            }
        };
        let pieces = segments::pieces(&blocks, logical.size, devices[0].block)?;
        segments::check_places(&pieces, &devices, &places)?;
        if context.is_none() && blocks.damaged > 0 && !blocks.wiped_family {
            let context = "the block with the keys fails its CRC-32C";
            return Err(Error::new(ErrorKind::BadHeader, context));
        }
        Ok(Self { damaged, devices, order, context, logical, pieces })
    }

    /// Finds the volume key.
    ///
    /// # Errors
    /// `WrongPassphrase`, `NoProtector` when the keys are not in the metadata, `BadOption` for a
    /// volume key of another length, `TooCostly`, `Memory`.
    pub fn unlock(&self, secret: &Secret<'_>, limits: &KdfLimits) -> Result<Key> {
        match secret {
            Secret::VolumeKey(key) if key.len() == 32 => Ok(Key::new(key.as_bytes())?),
            Secret::VolumeKey(key) => {
                let context = format!("the volume key of FileVault 2 has 32 bytes, not {}", key.len());
                Err(Error::new(ErrorKind::BadOption, context))
            }
            Secret::Passphrase(passphrase) => {
                let (_, key) = self.keys()?.unlock(passphrase, limits)?;
                context::data_key(&key, &self.logical.family)
            }
        }
    }

    fn keys(&self) -> Result<&Context> {
        self.context.as_ref().ok_or_else(|| {
            let context = "the metadata hold no keys, as on a system volume: give EncryptedRoot.plist.wipekey from the \
                           recovery partition as key file, or the volume key";
            Error::new(ErrorKind::NoProtector, context)
        })
    }

    /// Puts the volume together.
    ///
    /// # Errors
    /// `Unsupported` when the volume is being converted, `Memory`.
    pub fn activate(&self, key: Key) -> Result<OpenedFormat> {
        let conversion = self.context.as_ref().and_then(|context| context.conversion.as_deref());
        if let Some(status @ ("Converting" | "Pending")) = conversion {
            let context = format!("the volume is being encrypted or decrypted ({status}); let macOS finish");
            return Err(Error::new(ErrorKind::Unsupported, context));
        }
        let cipher_parameters =
            CipherParameters::new(&"aes-xts-plain64".parse()?, SectorSize::S512, key.len());
        let built = cipher_parameters.build(&key)?;
        let mut stored = Vec::with_capacity(self.pieces.len());
        for piece in &self.pieces {
            let segment =
                Segment::stored(piece.start, piece.len, piece.lower, piece.start >> 9, built.clone());
            // Devices are numbered as they were given.
            let given = self.order.iter().position(|number| *number == piece.device).unwrap_or(piece.device);
            stored.push(segment.on_device(given).with_recipe(cipher_parameters.clone()));
        }
        let read_only = if self.damaged {
            Some("a block of its metadata is damaged, which may be the newest one")
        } else if self.pieces.len() > 1 {
            Some("it lies in several pieces, and how macOS moves them is not documented")
        } else if !matches!(conversion, None | Some("Complete" | "NoConversion")) {
            Some("its metadata say that it is not converted in full")
        } else {
            None
        };
        Ok(OpenedFormat {
            format: Format::Fvault2,
            volume: Volume::new(stored)?,
            read_only,
            guards: Vec::new(),
            volume_key: key,
            facts: self.facts(),
        })
    }

    /// The UUID of the first physical volume.
    pub fn physical_uuid(&self) -> String {
        uuid_text(&self.devices[0].uuid)
    }

    /// The UUID of the family of logical volumes.
    pub fn family_uuid(&self) -> String {
        uuid_text(&self.logical.family)
    }

    /// The logical volume's size in bytes.
    pub fn size(&self) -> u64 {
        self.logical.size
    }

    /// Where its first byte lies on its physical volume.
    pub fn offset(&self) -> u64 {
        self.pieces.first().map_or(0, |piece| piece.lower)
    }

    /// The iterations and the salt of the first user.
    pub fn pbkdf2(&self) -> Option<(u32, &[u8])> {
        let user = self.context.as_ref()?.users.first()?;
        Some((user.iterations, &user.salt))
    }

    /// The metadata's facts.
    pub fn facts(&self) -> Facts {
        let mut facts = Facts::new(Format::Fvault2);
        facts.add("name", &self.logical.name);
        facts.add("uuid", &self.logical.uuid);
        facts.add("family uuid", self.family_uuid());
        facts.add("group uuid", uuid_text(&self.devices[0].group));
        for device in &self.devices {
            facts.add("physical volume", format_args!("{}, {} bytes", uuid_text(&device.uuid), device.size));
        }
        facts.add("size", format_args!("{} bytes", self.logical.size));
        facts.add("cipher", "aes-xts-plain64");
        for piece in &self.pieces {
            let Piece { start, len, device, lower } = piece;
            facts.add(
                "segment",
                format_args!("{start}, {len} bytes, at byte {lower} of physical volume {device}"),
            );
        }
        match &self.context {
            None => {
                facts.add("users", "none: the keys are on the recovery partition");
            }
            Some(context) => {
                for (nth, user) in context.users.iter().enumerate() {
                    facts.add("user", format_args!("{nth}, PBKDF2 of {} iterations", user.iterations));
                }
                if let Some(status) = &context.conversion {
                    facts.add("conversion", status);
                }
            }
        }
        facts
    }
}

impl fmt::Debug for Fvault2 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fvault2").field("uuid", &self.logical.uuid).finish_non_exhaustive()
    }
}

/// Headers by number, the number of each image, and the newest label.
fn group(images: &[&dyn ReadAt]) -> Result<(Vec<Header>, Vec<usize>, Label)> {
    let bad = |why: String| Error::new(ErrorKind::BadHeader, why);
    if images.is_empty() || images.len() > MOST_DEVICES {
        let context = format!("{} physical volumes, where 1 to {MOST_DEVICES} are taken", images.len());
        return Err(Error::new(ErrorKind::BadOption, context));
    }
    let mut headers = Vec::with_capacity(images.len());
    for image in images {
        let header = Header::read(*image)?;
        let first: &Header = headers.first().unwrap_or(&header);
        if (first.group, first.block) != (header.group, header.block) {
            return Err(bad("the images are of different CoreStorage groups".into()));
        }
        headers.push(header);
    }
    let label = Label::read(images[0], &headers[0])?;
    if label.devices.len() <= 1 && images.len() == 1 {
        return Ok((headers, vec![0], label));
    }
    let mut order = Vec::with_capacity(images.len());
    for header in &headers {
        let uuid = uuid_text(&header.uuid);
        let number = label.devices.iter().position(|device| *device == uuid);
        let number = number.ok_or_else(|| bad(format!("physical volume {uuid} is not of the group's")))?;
        if order.contains(&number) {
            return Err(bad(format!("physical volume {uuid} is there twice")));
        }
        order.push(number);
    }
    if let Some((_, missing)) = label.devices.iter().enumerate().find(|(number, _)| !order.contains(number)) {
        let context =
            format!("the volume lies on {} disks; physical volume {missing} is missing", label.devices.len());
        return Err(Error::new(ErrorKind::MissingDevice, context));
    }
    let mut by_number: Vec<(usize, Header)> = order.iter().copied().zip(headers).collect();
    by_number.sort_by_key(|(number, _)| *number);
    Ok((by_number.into_iter().map(|(_, header)| header).collect(), order, label))
}

/// Ranges that metadata take, each with the number of its physical volume.
type Taken = Vec<(usize, Range<u64>)>;

/// The encrypted blocks, and where their copies lie.
fn blocks(
    images: &[&dyn ReadAt],
    devices: &[Header],
    order: &[usize],
    label: &Label,
) -> Result<(Blocks, Taken)> {
    let mut blocks = Blocks::default();
    let mut taken = Vec::new();
    let (mut failure, mut whole) = (None, false);
    for &Place { block, device } in &label.places {
        let Some(given) = order.iter().position(|number| *number == device) else { continue };
        let header = &devices[device];
        let start = block.saturating_mul(header.block);
        taken.push((device, start..start.saturating_add(label.count * BLOCK as u64)));
        // All copies are read: each can have the newest blocks.
        let damaged = blocks.damaged;
        match blocks.read(images[given], header, block, label.count) {
            Ok(()) => whole |= blocks.damaged == damaged && blocks.are_complete(),
            Err(e) if matches!(e.kind(), ErrorKind::TooSmall | ErrorKind::Io) => {
                blocks.damaged += usize::from(e.kind() == ErrorKind::Io);
                failure = failure.or(Some(e));
            }
            Err(e) => return Err(e),
        }
    }
    if whole {
        // An undamaged copy has everything that a damaged copy has lost.
        blocks.damaged = 0;
    }
    match failure {
        Some(e) if blocks.of(kind::VOLUME).is_empty() => Err(e),
        _ => Ok((blocks, taken)),
    }
}

impl Logical {
    fn read(blocks: &Blocks) -> Result<Self> {
        let bad = |why: String| Error::new(ErrorKind::BadHeader, why);
        let mut newest: Option<Self> = None;
        for found in blocks.of(kind::VOLUME) {
            let fields = found.fields();
            let place = |at| -> Result<usize> { Ok(usize::try_from(fields.le32(at)?).unwrap_or(usize::MAX)) };
            let list = fields.bytes(place(128)?, place(132)?)?;
            let list = list.split(|byte| *byte == 0).next().unwrap_or(&[]);
            let text =
                std::str::from_utf8(list).map_err(|_| bad("a logical volume's list is no text".into()))?;
            let list = Plist(text);
            let string = |key| list.value(key).and_then(|element| element.text("string")).unwrap_or_default();
            let size = list.value("com.apple.corestorage.lv.size").and_then(|element| element.integer());
            let family = string("com.apple.corestorage.lv.familyUUID");
            let read = Self {
                size: size
                    .filter(|size| *size > 0 && size.is_multiple_of(512))
                    .ok_or_else(|| bad("a logical volume without a size in whole sectors".into()))?,
                family: uuid::Uuid::try_parse(family)
                    .map_err(|e| bad("a logical volume without its family's UUID".into()).with_source(e))?
                    .into_bytes(),
                uuid: unescaped(string("com.apple.corestorage.lv.uuid")),
                name: unescaped(string("com.apple.corestorage.lv.name")),
            };
            match &newest {
                None => newest = Some(read),
                // The newest block was first.
                Some(newest) if newest.uuid == read.uuid => {}
                Some(newest) => {
                    let context = format!("several logical volumes: {}, {}", newest.uuid, read.uuid);
                    return Err(Error::new(ErrorKind::Unsupported, context));
                }
            }
        }
        newest.ok_or_else(|| bad("the metadata hold no logical volume".into()))
    }
}

fn uuid_text(bytes: &[u8; 16]) -> String {
    uuid::Uuid::from_bytes(*bytes).to_string().to_ascii_uppercase()
}
