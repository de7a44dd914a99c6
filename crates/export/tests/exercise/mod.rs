//! The bodies of the fuzz targets, shared between `fuzz/` and the test that replays seeds and
//! findings.
//!
//! Each function returns true when the bytes reached the code to be tested: every seed does.

pub(crate) mod fuse;
pub(crate) mod nbd;
pub(crate) mod vhost_user;

use std::sync::Arc;

use underseal_cipher::{Key, SectorCipher, SectorSize, build};
use underseal_datapath::Mapping;
use underseal_device::RamDevice;
use underseal_export::metrics::answered;
use underseal_volume::{Segment, Volume};

/// The volume's size.
const SIZE: usize = 1 << 20;

/// An encrypted volume of two segments in memory.
fn mapping(large_sectors: bool) -> Arc<Mapping> {
    let key = Key::new(&std::array::from_fn::<u8, 64, _>(|i| i.to_le_bytes()[0])).expect("a page");
    let sector = if large_sectors { SectorSize::S4096 } else { SectorSize::S512 };
    let cipher: Arc<dyn SectorCipher> =
        build(&"aes-xts-plain64".parse().expect("a cipher"), &key, sector).expect("it is built");
    let half = SIZE as u64 / 2;
    let segments = [0, half].map(|start| Segment::stored(start, half, start, start / 512, cipher.clone()));
    let volume = Volume::new(segments.into()).expect("segments follow each other");
    Arc::new(Mapping::new(volume, Arc::new(RamDevice::new(SIZE as u64))).expect("a device as large"))
}

/// Answers a scraper's request. The first byte is the size of the portions that the rest arrives
/// in. Every request gets a complete answer.
pub(crate) fn metrics(bytes: &[u8]) -> bool {
    let Some((&portion, said)) = bytes.split_first() else { return false };
    let answer = answered(said, portion.into()).expect("bytes are there");
    let text = String::from_utf8(answer).expect("text");
    let (head, body) = text.split_once("\r\n\r\n").expect("a head and a body");
    let status = head.split(' ').nth(1).expect("a status");
    assert!(["200", "400", "404", "405"].contains(&status), "{head}");
    let len = head.lines().find_map(|line| line.strip_prefix("Content-Length: ")).expect("a length");
    let len: usize = len.parse().expect("a number");
    // Empty lines before a request are ignored.
    let request = said.trim_ascii_start();
    let only_head = status == "200" && body.is_empty() && request.starts_with(b"HEAD");
    assert!(only_head || len == body.len(), "{text}");
    assert!(!head.contains('\n') || head.lines().all(|line| !line.is_empty()), "{text}");
    // The answer does not depend on the portions.
    assert_eq!(answered(said, usize::MAX).expect("bytes are there"), text.as_bytes());
    status == "200"
}
