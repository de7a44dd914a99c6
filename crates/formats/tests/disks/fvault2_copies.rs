//! The two copies of FileVault 2's encrypted metadata: the newest valid block of both counts, and
//! what it says of a conversion.

use miniz_oxide::deflate::compress_to_vec_zlib;
use miniz_oxide::inflate::decompress_to_vec_zlib;
use underseal_cipher::{Key, SectorSize};
use underseal_formats::ErrorKind;
use underseal_formats::fvault2::{Fvault2, Secret};
use underseal_volume::{CipherParameters, KdfLimits};

use crate::fvault2::{File, entry, open};
use crate::support::{image, text, texts};

const BLOCK: usize = 8192;
/// Where the second copy is put, in blocks of the volume: beyond the data of the image below.
const SECOND: usize = 300;
/// The types of blocks with the keys, and with segments.
const FAMILY: u16 = 0x0019;
const SEGMENTS: u16 = 0x0305;

fn le64(bytes: &[u8], at: usize) -> usize {
    usize::try_from(u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())).unwrap()
}

/// An image whose second copy of the encrypted blocks is `changed`, block by block.
fn with_second_copy(mut image: Vec<u8>, changed: impl Fn(u16, &mut [u8])) -> Vec<u8> {
    let block = le64(&image, 96) & 0xffff_ffff;
    let key = Key::new(&[&image[176..192], &image[304..320]].concat()).unwrap();
    let sector_size = SectorSize::new(8192).unwrap();
    let spec = "aes-xts-plain64".parse().unwrap();
    let parameters =
        CipherParameters { iv_large_sectors: true, ..CipherParameters::new(&spec, sector_size, key.len()) };
    let cipher = parameters.build(&key).unwrap();
    // Of several newest copies the first one counts.
    let labels = (0..4).rev().map(|nth| le64(&image, 104 + 8 * nth) * block);
    let label = labels.max_by_key(|at| le64(&image, at + 16)).unwrap();
    let descriptor = label + (le64(&image, label + 64 + 156) & 0xffff_ffff);
    let (count, first) = (le64(&image, descriptor + 8), le64(&image, descriptor + 32) * block);
    image[descriptor + 40..descriptor + 48].copy_from_slice(&(SECOND as u64).to_le_bytes());
    for nth in 0..count {
        let mut bytes = image[first + nth * BLOCK..][..BLOCK].to_vec();
        if bytes.iter().all(|byte| *byte == 0) {
            break;
        }
        let sector = nth as u64 * 16;
        cipher.decrypt(sector, bytes.as_mut_slice().into());
        changed(u16::from_le_bytes([bytes[10], bytes[11]]), &mut bytes);
        // The sum begins with ones, and is not inverted at the end.
        let sum = !crc32c::crc32c(&bytes[8..]);
        bytes[..4].copy_from_slice(&sum.to_le_bytes());
        cipher.encrypt(sector, bytes.as_mut_slice().into());
        image[SECOND * block + nth * BLOCK..][..BLOCK].copy_from_slice(&bytes);
    }
    image
}

/// A segment that lies a block further, in metadata that are `newer` than those of the first copy.
fn moved(newer: i64) -> impl Fn(u16, &mut [u8]) {
    move |kind, bytes| {
        let transaction = le64(bytes, 16) as u64;
        bytes[16..24].copy_from_slice(&transaction.saturating_add_signed(newer).to_le_bytes());
        if kind == SEGMENTS {
            let place = le64(bytes, 72 + 32) as u64 + 1;
            bytes[72 + 32..72 + 40].copy_from_slice(&place.to_le_bytes());
        }
    }
}

#[test]
fn the_newest_metadata_count_in_whatever_copy_they_are() {
    let listed = entry("fv-plain.img");
    let plain = image(&listed);
    let block = le64(&plain, 96) as u64 & 0xffff_ffff;
    let offset = |image: Vec<u8>| Fvault2::read(&[&File(image)], None).unwrap().offset();
    let at = offset(plain.clone());
    assert_eq!(offset(with_second_copy(plain.clone(), |_, _| {})), at);
    assert_eq!(offset(with_second_copy(plain.clone(), moved(-1))), at);
    assert_eq!(offset(with_second_copy(plain.clone(), moved(100))), at + block);
}

#[test]
fn a_damaged_copy_beside_a_whole_one_does_not_matter() {
    let listed = entry("fv-plain.img");
    let passphrase = &texts(&listed, "passphrases")[0];
    let mut both = with_second_copy(image(&listed), |_, _| {});
    let block = le64(&both, 96) & 0xffff_ffff;
    both[SECOND * block + 100] ^= 1;
    let opened = open(&both, passphrase).unwrap();
    assert_eq!(hex::encode(opened.volume_key.as_bytes()), text(&listed, "volume_key").unwrap());
    assert!(opened.read_only.is_none(), "{:?}", opened.read_only);
    assert!(open(&both, "no user's").is_err_and(|e| e.kind() == ErrorKind::WrongPassphrase));
}

/// The list of keys in a block, as text.
fn list_of(block: &[u8]) -> String {
    let number = |at: usize| u32::from_le_bytes(block[64 + at..][..4].try_into().unwrap()) as usize;
    let (stored, whole, at, len) = (number(40), number(44), number(48), number(52));
    assert_eq!(stored, len, "a list in one piece");
    let list = &block[at..at + len];
    let list = if stored == whole { list.to_vec() } else { decompress_to_vec_zlib(list).unwrap() };
    String::from_utf8(list).unwrap()
}

/// The list of a converted volume with another conversion status.
fn converted(list: &str, status: &str) -> String {
    let key = "<key>ConversionStatus</key><string>";
    assert!(list.contains(&format!("{key}Complete<")));
    list.replace(&format!("{key}Complete<"), &format!("{key}{status}<"))
}

/// Newer metadata with a conversion status.
fn with_status(status: &str) -> impl Fn(u16, &mut [u8]) {
    move |kind, bytes| {
        moved(1)(0, bytes);
        if kind == FAMILY {
            let list = converted(&list_of(bytes), status);
            let packed = compress_to_vec_zlib(list.as_bytes(), 9);
            let at = u32::from_le_bytes(bytes[64 + 48..][..4].try_into().unwrap()) as usize;
            bytes[at..at + packed.len()].copy_from_slice(&packed);
            for (field, len) in [(40, packed.len()), (44, list.len()), (52, packed.len())] {
                bytes[64 + field..][..4].copy_from_slice(&u32::try_from(len).unwrap().to_le_bytes());
            }
        }
    }
}

#[test]
fn a_volume_that_is_not_converted_in_full_is_not_written_to() {
    let listed = entry("fv-plain.img");
    let passphrase = &texts(&listed, "passphrases")[0];
    let with = |status: &str| with_second_copy(image(&listed), with_status(status));
    for (status, is_writable) in
        [("Complete", true), ("NoConversion", true), ("Failed", false), ("Optimizing", false)]
    {
        let opened = open(&with(status), passphrase).unwrap();
        assert_eq!(opened.read_only.is_none(), is_writable, "{status}: {:?}", opened.read_only);
    }
    for status in ["Converting", "Pending"] {
        assert_eq!(open(&with(status), passphrase).unwrap_err().kind(), ErrorKind::Unsupported, "{status}");
    }
}

/// The file of a recovery partition, in which the list may be plain text, is older.
#[test]
fn a_wipekey_file_does_not_hide_that_a_volume_is_being_converted() {
    let listed = entry("fv-plain.img");
    let passphrase = Key::new(texts(&listed, "passphrases")[0].as_bytes()).unwrap();
    let list = std::cell::RefCell::new(String::new());
    let plain = with_second_copy(image(&listed), |kind, bytes| {
        if kind == FAMILY {
            *list.borrow_mut() = list_of(bytes);
        }
    });
    let file = format!("<plist>{}</plist>", converted(&list.borrow(), "Complete"));
    let file = Key::new(file.as_bytes()).unwrap();
    let opened = |image: Vec<u8>| {
        let volume = Fvault2::read(&[&File(image)], Some(&file)).unwrap();
        let key = volume.unlock(&Secret::Passphrase(&passphrase), &KdfLimits::default()).unwrap();
        volume.activate(key)
    };
    assert!(opened(plain).unwrap().read_only.is_none());
    let converting = with_second_copy(image(&listed), with_status("Converting"));
    assert_eq!(opened(converting).unwrap_err().kind(), ErrorKind::Unsupported);
}
