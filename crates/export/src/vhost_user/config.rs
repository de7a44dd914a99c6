//! The device's features and configuration space (virtio 1.2, 5.2.3 and 5.2.4).

use underseal_datapath::Mapping;

use super::request::{MOST_DISCARD, MOST_ZEROES, SECTOR, SEGMENT, SEGMENTS};

/// Feature bits.
pub(super) const FLUSH: u64 = 1 << 9;
pub(super) const EVENT_INDEX: u64 = 1 << 29;
pub(super) const PROTOCOL_FEATURES: u64 = 1 << 30;
const SIZE_MAX: u64 = 1 << 1;
const SEG_MAX: u64 = 1 << 2;
const READ_ONLY: u64 = 1 << 5;
const BLOCK_SIZE: u64 = 1 << 6;
const TOPOLOGY: u64 = 1 << 10;
const MULTIQUEUE: u64 = 1 << 12;
const DISCARD: u64 = 1 << 13;
const WRITE_ZEROES: u64 = 1 << 14;
const INDIRECT: u64 = 1 << 28;
const VERSION_1: u64 = 1 << 32;

/// The size of the configuration space; bytes beyond the fields read as zeros.
const SPACE: usize = 256;

/// Returns the device's features.
pub(super) fn features(mapping: &Mapping) -> u64 {
    let always = SIZE_MAX | SEG_MAX | BLOCK_SIZE | FLUSH | TOPOLOGY | MULTIQUEUE;
    let transport = INDIRECT | EVENT_INDEX | PROTOCOL_FEATURES | VERSION_1;
    let kind = match (mapping.read_only(), mapping.discards()) {
        (true, _) => READ_ONLY,
        (false, true) => DISCARD | WRITE_ZEROES,
        (false, false) => WRITE_ZEROES,
    };
    always | transport | kind
}

/// Returns a part of the configuration space, or `None` when it exceeds the space.
pub(super) fn read(mapping: &Mapping, queues: u16, offset: u32, len: u32) -> Option<Vec<u8>> {
    let space = space(mapping, queues);
    let (start, len) = (offset as usize, len as usize);
    Some(space.get(start..start.checked_add(len)?)?.to_vec())
}

fn space(mapping: &Mapping, queues: u16) -> [u8; SPACE] {
    let block = mapping.block();
    // The field is in blocks, and has 16 bits.
    let least = u16::try_from(mapping.preferred_block() / block).unwrap_or(1).max(1);
    let mut fields = Fields { space: [0; SPACE], at: 0 };
    fields
        .put(&(mapping.size() / SECTOR).to_le_bytes()) // capacity
        .put(&SEGMENT.to_le_bytes())
        .put(&SEGMENTS.to_le_bytes())
        .put(&[0; 4]) // geometry
        .put(&block.to_le_bytes())
        .put(&[0, 0]) // a physical block is one logical block; the first is aligned
        .put(&least.to_le_bytes())
        .put(&0_u32.to_le_bytes()) // no best size
        .put(&[1, 0]) // there is a cache to flush
        .put(&queues.to_le_bytes());
    let sectors_of_a_block = block / 512;
    fields
        .put(&(MOST_DISCARD / sectors_of_a_block * sectors_of_a_block).to_le_bytes())
        .put(&1_u32.to_le_bytes()) // ranges of a discard
        .put(&sectors_of_a_block.to_le_bytes())
        .put(&(MOST_ZEROES / sectors_of_a_block * sectors_of_a_block).to_le_bytes())
        .put(&1_u32.to_le_bytes()) // ranges to zero
        .put(&[u8::from(mapping.discards())]); // zeroing may free space
    fields.space
}

struct Fields {
    space: [u8; SPACE],
    at: usize,
}

impl Fields {
    fn put(&mut self, bytes: &[u8]) -> &mut Self {
        self.space[self.at..self.at + bytes.len()].copy_from_slice(bytes);
        self.at += bytes.len();
        self
    }
}
