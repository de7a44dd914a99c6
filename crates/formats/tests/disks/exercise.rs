//! The fuzzer's operations on bytes. Shared between `fuzz/` and the tests that replay its seeds and
//! findings, or change bytes of images.
//!
//! Derivations that cost a part of a second each are left out: BitLocker's stretch.

use std::io;

use underseal_cipher::{Key, SectorSize};
use underseal_formats::bitlk::{Bitlk, Secret as BitlkSecret};
use underseal_formats::fvault2::{Fvault2, Secret as FvaultSecret};
use underseal_formats::loopaes::{self, KeyFile};
use underseal_formats::{Error, OpenedFormat};
use underseal_volume::{CipherParameters, KdfLimits, ReadAt};

/// Bytes at places of an image, and zeros elsewhere.
pub(crate) struct Sparse {
    size: u64,
    parts: Vec<(u64, Vec<u8>)>,
}

impl ReadAt for Sparse {
    fn size(&self) -> io::Result<u64> {
        Ok(self.size)
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let end = offset.checked_add(buf.len() as u64);
        if end.is_none_or(|end| end > self.size) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        buf.fill(0);
        for (start, part) in &self.parts {
            let far = |from: u64, to: u64| usize::try_from(to.saturating_sub(from)).unwrap_or(usize::MAX);
            let (into, from) = (far(offset, *start), far(*start, offset));
            let len = buf.len().saturating_sub(into).min(part.len().saturating_sub(from));
            if len > 0 {
                buf[into..into + len].copy_from_slice(&part[from..from + len]);
            }
        }
        Ok(())
    }
}

/// Takes the first `len` bytes, filled up with zeros.
fn take(input: &mut &[u8], len: usize) -> Vec<u8> {
    let (taken, rest) = input.split_at(len.min(input.len()));
    *input = rest;
    let mut taken = taken.to_vec();
    taken.resize(len, 0);
    taken
}

/// Takes a run of bytes with a 2-byte length prefix.
fn take_run(input: &mut &[u8]) -> Option<Vec<u8>> {
    let (len, rest) = input.split_first_chunk()?;
    let len = usize::from(u16::from_le_bytes(*len)).min(rest.len());
    *input = &rest[len..];
    Some(rest[..len].to_vec())
}

fn le16(bytes: &[u8], at: usize) -> u16 {
    bytes[at..at + 2].try_into().map_or(0, u16::from_le_bytes)
}

fn le32(bytes: &[u8], at: usize) -> u32 {
    bytes[at..at + 4].try_into().map_or(0, u32::from_le_bytes)
}

fn le64(bytes: &[u8], at: usize) -> u64 {
    bytes[at..at + 8].try_into().map_or(0, u64::from_le_bytes)
}

/// A size of any magnitude, of 9 bytes.
fn size(input: &mut &[u8]) -> u64 {
    let bytes = take(input, 9);
    le64(&bytes, 0) >> (bytes[8] % 64)
}

/// An opened volume lies within its devices, in whole sectors, and contains the ranges that must
/// not be written.
fn check(opened: &OpenedFormat, devices: &[u64]) {
    let volume = &opened.volume;
    for segment in volume.segments() {
        assert!(segment.start % 512 == 0 && segment.len % 512 == 0);
        if let Some((device, at)) = segment.lower(segment.start) {
            assert!(at.checked_add(segment.len).is_some_and(|end| end <= devices[device]));
        }
    }
    assert!(opened.guards.iter().all(|guard| guard.range.end <= volume.size()));
    assert!(!opened.facts.to_string().is_empty());
}

/// BitLocker's sector 0, and a block of metadata wherever sector 0 places one. The first byte says
/// which marks and checksums are made right.
pub(crate) fn bitlk_metadata(input: &[u8]) -> bool {
    bitlk(&bitlk_image(input)).is_ok()
}

fn bitlk_image(mut input: &[u8]) -> Sparse {
    let input = &mut input;
    let (how, size) = (take(input, 1)[0], size(input));
    let mut sector = take(input, 512);
    let mut block = take(input, 65536);
    if how & 1 == 0 {
        sector[..11].copy_from_slice(b"\xeb\x58\x90-FVE-FS-");
        sector[160..176].copy_from_slice(b"\x3b\xd6\x67\x49\x29\x2e\xd8\x4a\x83\x99\xf6\xa3\x39\xe3\xd0\x01");
    }
    let guid = if &sector[3..11] == b"MSWIN4.1" { 424 } else { 160 };
    let places = [0, 1, 2].map(|nth| le64(&sector, guid + 16 + 8 * nth));
    if how & 2 == 0 {
        block[32..56].copy_from_slice(&sector[guid + 16..guid + 40]);
    }
    if how & 4 == 0 {
        block[..8].copy_from_slice(b"-FVE-FS-");
        block[10..12].copy_from_slice(&[2, 0]);
        let len = usize::from(le16(&block, 8)) * 16;
        if let Some((sealed, validation)) = block.split_at_mut_checked(len)
            && validation.len() >= 88
        {
            validation[..4].copy_from_slice(&[88, 0, 2, 0]);
            validation[4..8].copy_from_slice(&crc32fast::hash(sealed).to_le_bytes());
        }
    }
    let parts = [(0, sector)].into_iter().chain(places.map(|at| (at, block.clone()))).collect();
    Sparse { size, parts }
}

/// Reads, describes, unlocks and activates, with every secret that costs nothing.
pub(crate) fn bitlk(image: &(impl ReadAt + ?Sized)) -> Result<OpenedFormat, Error> {
    let volume = Bitlk::read(image)?;
    assert!(!volume.facts().to_string().is_empty());
    for protector in volume.protectors() {
        assert!(!protector.to_string().is_empty());
    }
    let limits = KdfLimits::default();
    let _ = volume.unlock(&BitlkSecret::Clear, &limits);
    let key = Key::zeroed(volume.method().key_size())?;
    let unlocked = volume.unlock(&BitlkSecret::VolumeKey(&key), &limits)?;
    let opened = volume.activate(unlocked.key)?;
    check(&opened, &[underseal_formats::fields::size(image)?]);
    Ok(opened)
}

/// A startup key file for a volume with a startup key protector.
pub(crate) fn bitlk_startup_key(file: &[u8]) -> bool {
    let volume = include_bytes!("../../../../fuzz/seeds/bitlk_metadata/startup-key");
    let volume = Bitlk::read(&bitlk_image(volume)).unwrap();
    let Ok(key) = Key::new(file) else { return false };
    volume.unlock(&BitlkSecret::StartupKey(&key), &KdfLimits::default()).is_ok()
}

/// CoreStorage's header, disk label, descriptor, list of disks, and encrypted blocks as they are
/// before encryption; checksums are made right.
pub(crate) fn fvault2_metadata(input: &[u8]) -> bool {
    fvault2_image(input).is_some_and(|image| fvault2(&[&image], None).is_ok())
}

fn fvault2_image(mut input: &[u8]) -> Option<Sparse> {
    let input = &mut input;
    let (how, size) = (take(input, 1)[0], size(input));
    let mut header = take(input, 512);
    if how & 1 == 0 {
        seal(&mut header);
    }
    let block = u64::from(le32(&header, 96));
    let mut parts = vec![(if how & 2 == 0 { 0 } else { size.saturating_sub(512) }, header.clone())];
    let mut label = take_run(input)?;
    label.resize(8192, 0);
    seal(&mut label);
    let start = le64(&header, 104).wrapping_mul(block);
    let (descriptor, disks) = (take_run(input)?, take_run(input)?);
    let mut at = descriptor.get(32..40).map_or(0, |place| le64(place, 0) << 16 >> 16).wrapping_mul(block);
    for (pointer, part) in [(220, descriptor), (224, disks)] {
        parts.push((start.wrapping_add(le32(&label, pointer).into()), part));
    }
    parts.push((start, label));
    let mut key = Key::zeroed(32).ok()?;
    key.as_mut_bytes()[..16].copy_from_slice(&header[176..192]);
    key.as_mut_bytes()[16..].copy_from_slice(&header[304..320]);
    let cipher_parameters =
        CipherParameters::new(&"aes-xts-plain64".parse().ok()?, SectorSize::new(8192).ok()?, 32);
    let cipher = CipherParameters { iv_large_sectors: true, ..cipher_parameters }.build(&key).ok()?;
    let mut sector = 0;
    while let Some(mut bytes) = take_run(input) {
        bytes.resize(8192, 0);
        if !bytes.starts_with(b"LVFwiped") {
            seal(&mut bytes);
        }
        cipher.encrypt(sector, bytes.as_mut_slice().into());
        parts.push((at, bytes));
        at = at.wrapping_add(8192);
        sector += 16;
    }
    Some(Sparse { size, parts })
}

/// Writes CoreStorage's checksum in front of a block.
fn seal(block: &mut [u8]) {
    let sum = !crc32c::crc32c(&block[8..]);
    block[..4].copy_from_slice(&sum.to_le_bytes());
    block[4..8].fill(0xff);
}

/// Reads, describes, unlocks with a wrong passphrase, and activates with a key.
pub(crate) fn fvault2(images: &[&dyn ReadAt], wipekey: Option<&Key>) -> Result<OpenedFormat, Error> {
    let volume = Fvault2::read(images, wipekey)?;
    assert!(!volume.facts().to_string().is_empty() && volume.size() > 0);
    let limits = KdfLimits { rounds: 10_000, ..KdfLimits::default() };
    let _ = volume.unlock(&FvaultSecret::Passphrase(&Key::new(b"x")?), &limits);
    let opened = volume.activate(volume.unlock(&FvaultSecret::VolumeKey(&Key::zeroed(32)?), &limits)?)?;
    let sizes: Result<Vec<_>, _> =
        images.iter().map(|image| underseal_formats::fields::size(*image)).collect();
    check(&opened, &sizes?);
    Ok(opened)
}

/// A list of keys as `EncryptedRoot.plist.wipekey`, or as zlib data in the metadata of a volume,
/// followed by the unpacked size; the first byte selects.
pub(crate) fn fvault2_keys(input: &[u8]) -> bool {
    let Some((how, list)) = input.split_first() else { return false };
    let mut volume = include_bytes!("../../../../fuzz/seeds/fvault2_metadata/no-keys").to_vec();
    if how & 1 == 0 {
        let (Some(image), Ok(list)) = (fvault2_image(&volume), Key::new(list)) else { return false };
        return fvault2(&[&image], Some(&list)).is_ok();
    }
    let list = &list[..list.len().min(8000)];
    let Some((packed, unpacked)) = list.split_last_chunk::<4>() else { return false };
    let mut block = vec![0; 128];
    block[10] = 0x19;
    let len = u32::try_from(packed.len()).unwrap_or(0).to_le_bytes();
    for (at, number) in [(104, &len), (108, unpacked), (112, &[128, 0, 0, 0]), (116, &len)] {
        block[at..at + 4].copy_from_slice(number);
    }
    block.extend(packed);
    volume.extend(u16::try_from(block.len()).unwrap_or(0).to_le_bytes());
    volume.extend(block);
    fvault2_metadata(&volume)
}

/// A key file of loop-AES, with options before it.
pub(crate) fn loopaes_key_file(input: &[u8]) -> bool {
    let Some((head, file)) = input.split_first_chunk::<10>() else { return false };
    let Ok(bytes) = Key::new(file) else { return false };
    let Ok(key_file) = KeyFile::parse(&bytes) else { return false };
    assert!(matches!((key_file.version(), key_file.count()), (1, 1) | (2, 64) | (3, 65)));
    let device = 1 << 30;
    let options = loopaes::Options {
        key_bits: [128, 192, 256, 512][usize::from(head[0] % 4)],
        offset: le64(head, 1) >> (head[9] % 64),
        skip: (head[0] & 4 != 0).then(|| le64(head, 1)),
        ..loopaes::Options::default()
    };
    loopaes::open(&key_file, device, &options).is_ok_and(|opened| {
        check(&opened, &[device]);
        true
    })
}
