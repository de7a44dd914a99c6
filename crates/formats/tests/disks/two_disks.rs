//! A FileVault 2 volume in two pieces on one disk, made one on two disks. Shared with the command's
//! tests.

use underseal_cipher::{Key, SectorSize};
use underseal_volume::CipherParameters;

/// Where the independent maker lays the disk label, and the encrypted blocks.
const LABEL: usize = 4096;
const BLOCKS: usize = 200 * 4096;
/// Where the list of disks lies, from the label.
const LIST: usize = 8192 + 512;
const BLOCK: usize = 8192;
/// Where the second piece lies on the second disk.
const PIECE: usize = 1 << 20;

/// The images of both disks, the first one with the encrypted metadata.
pub(crate) fn two_disks(image: &[u8]) -> [Vec<u8>; 2] {
    let mut first = image.to_vec();
    let mut second = vec![0x5a; 2 << 20];
    // The second disk's header and label are the first one's but for its size and its own UUID.
    second[..LABEL + BLOCK + 4096].copy_from_slice(&image[..LABEL + BLOCK + 4096]);
    let len = second.len() as u64;
    second[64..72].copy_from_slice(&len.to_le_bytes());
    second[304] ^= 0x80;
    let uuid = |disk: &[u8]| uuid::Uuid::from_slice(&disk[304..320]).unwrap().to_string().to_uppercase();
    let list = format!(
        "<dict><key>com.apple.corestorage.lvg.physicalVolumes</key><array><string>{}</string><string>{}</string></array></dict>",
        uuid(&first),
        uuid(&second)
    );
    // Segments: a count at 64; entries of 40 from 72, with block and disk in the last 8 bytes.
    let cipher = cipher(&first);
    let segments = &mut first[BLOCKS..BLOCKS + BLOCK];
    cipher.decrypt(0, segments.into());
    assert_eq!((&segments[10..12], &segments[64..68]), (&[5, 3][..], &[2, 0, 0, 0][..]));
    let number = |at: usize| u64::from_le_bytes(segments[at..at + 8].try_into().unwrap());
    let (len, from) = (u64::from(u32::from_le_bytes(segments[128..132].try_into().unwrap())), number(144));
    segments[144..152].copy_from_slice(&((PIECE as u64 / 4096) | (1 << 48)).to_le_bytes());
    seal(segments);
    cipher.encrypt(0, (&mut *segments).into());
    let bytes = |blocks: u64| usize::try_from(blocks * 4096).unwrap();
    let piece = bytes(from)..bytes(from + len);
    second[PIECE..PIECE + piece.len()].copy_from_slice(&image[piece.clone()]);
    first[piece].fill(0x5a);
    for disk in [&mut first, &mut second] {
        disk[LABEL + LIST..LABEL + LIST + list.len()].copy_from_slice(list.as_bytes());
        let label = &mut disk[LABEL..LABEL + BLOCK];
        label[224..228].copy_from_slice(&u32::try_from(LIST).unwrap().to_le_bytes());
        label[228..232].copy_from_slice(&u32::try_from(list.len()).unwrap().to_le_bytes());
        seal(label);
        seal(&mut disk[..512]);
        let (header, end) = (disk[..512].to_vec(), disk.len() - 512);
        disk[end..].copy_from_slice(&header);
    }
    [first, second]
}

/// The cipher of the encrypted blocks.
fn cipher(disk: &[u8]) -> std::sync::Arc<dyn underseal_cipher::SectorCipher> {
    let key = [&disk[176..192], &disk[304..320]].concat();
    let cipher_parameters =
        CipherParameters::new(&"aes-xts-plain64".parse().unwrap(), SectorSize::new(8192).unwrap(), 32);
    CipherParameters { iv_large_sectors: true, ..cipher_parameters }.build(&Key::new(&key).unwrap()).unwrap()
}

/// Writes CoreStorage's checksum in front of a block: CRC-32C without the inversion at its end, bit
/// by bit.
fn seal(block: &mut [u8]) {
    let sum = block[8..].iter().fold(u32::MAX, |sum, byte| {
        (0..8).fold(sum ^ u32::from(*byte), |sum, _| (sum >> 1) ^ if sum & 1 == 1 { 0x82f6_3b78 } else { 0 })
    });
    block[..4].copy_from_slice(&sum.to_le_bytes());
    block[4..8].fill(0xff);
}
