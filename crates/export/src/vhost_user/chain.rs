//! A chain of descriptors: the memory of one request.

use vm_memory::{Address, Bytes, GuestAddress};

use super::guest::GuestRam;

/// The most descriptors of one chain, in the ring's table or in an indirect one.
const LONGEST: u16 = 1026;

const DESCRIPTOR: u16 = 16;

/// Flags of a descriptor.
const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;

/// The fault of a ring, or of a chain in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "each one's text explains it")]
pub enum Malformed {
    Ring,
    Lost,
    Index { offered: u16 },
    Head(u16),
    Next(u16),
    Descriptor,
    Loop,
    IndirectTable { len: u32 },
    IndirectTwice,
    Length,
    Order,
    Header,
    Status,
    InUse(u16),
}

impl std::fmt::Display for Malformed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Lost => f.write_str("the file of the memory that it shares was cut short"),
            Self::Ring => f.write_str("a part of the ring is not in guest memory"),
            Self::Index { offered } => write!(f, "{offered} chains are offered, more than the ring holds"),
            Self::Head(head) => write!(f, "a chain begins at descriptor {head}, beyond the table"),
            Self::Next(next) => write!(f, "a chain goes on at descriptor {next}, beyond the table"),
            Self::Descriptor => f.write_str("a descriptor is not in guest memory"),
            Self::Loop => f.write_str("a chain is longer than the ring, or a loop"),
            Self::IndirectTable { len } => write!(f, "an indirect table of {len} bytes"),
            Self::IndirectTwice => f.write_str("an indirect table within an indirect table"),
            Self::Length => f.write_str("a chain of more than 4 GiB"),
            Self::Order => f.write_str("memory to read comes after memory to write"),
            Self::Header => f.write_str("no request header"),
            Self::Status => f.write_str("no place for the status"),
            Self::InUse(head) => write!(f, "descriptor {head} is offered again before it was given back"),
        }
    }
}

/// The result of an access to a ring.
pub type Result<T> = std::result::Result<T, Malformed>;

/// Guest memory of one descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// The address of the first byte.
    pub at: GuestAddress,
    /// The length in bytes.
    pub len: u32,
    /// True when the device writes to the memory; else it reads.
    pub writable: bool,
}

struct Descriptor {
    at: GuestAddress,
    len: u32,
    flags: u16,
    next: u16,
}

impl Descriptor {
    /// Reads a descriptor once: later changes by the guest have no effect.
    fn read(ram: &GuestRam, table: GuestAddress, index: u16) -> Result<Self> {
        let offset = u64::from(DESCRIPTOR) * u64::from(index);
        let at = table.checked_add(offset).ok_or(Malformed::Descriptor)?;
        let mut bytes = [0; DESCRIPTOR as usize];
        ram.read_slice(&mut bytes, at).map_err(|_| Malformed::Descriptor)?;
        let [a, b, c, d, e, f, g, h, rest @ ..] = bytes;
        let [l0, l1, l2, l3, f0, f1, n0, n1] = rest;
        Ok(Self {
            at: GuestAddress(u64::from_le_bytes([a, b, c, d, e, f, g, h])),
            len: u32::from_le_bytes([l0, l1, l2, l3]),
            flags: u16::from_le_bytes([f0, f1]),
            next: u16::from_le_bytes([n0, n1]),
        })
    }
}

/// Follows the chain that begins at `head` of a table of `size` descriptors. Its segments replace
/// those in `chain`; empty ones are left out.
///
/// # Errors
/// When the descriptors are no valid chain.
pub fn follow(
    ram: &GuestRam,
    mut table: GuestAddress,
    mut size: u16,
    head: u16,
    chain: &mut Vec<Segment>,
) -> Result<()> {
    chain.clear();
    let (mut index, mut left, mut indirect, mut total) = (head, size.min(LONGEST), false, 0_u32);
    loop {
        if index >= size {
            return Err(Malformed::Next(index));
        }
        left = left.checked_sub(1).ok_or(Malformed::Loop)?;
        let Descriptor { at, len, flags, next } = Descriptor::read(ram, table, index)?;
        if flags & INDIRECT != 0 {
            if indirect {
                return Err(Malformed::IndirectTwice);
            }
            let entries = u16::try_from(len / u32::from(DESCRIPTOR)).unwrap_or(u16::MAX);
            if entries == 0 || entries > LONGEST || !len.is_multiple_of(DESCRIPTOR.into()) {
                return Err(Malformed::IndirectTable { len });
            }
            (table, size, index, left, indirect) = (at, entries, 0, entries, true);
            continue;
        }
        total = total.checked_add(len).ok_or(Malformed::Length)?;
        let writable = flags & WRITE != 0;
        if !writable && chain.last().is_some_and(|before| before.writable) {
            return Err(Malformed::Order);
        }
        if len > 0 {
            chain.push(Segment { at, len, writable });
        }
        if flags & NEXT == 0 {
            return Ok(());
        }
        index = next;
    }
}
