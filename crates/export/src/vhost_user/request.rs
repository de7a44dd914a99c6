//! A block request (virtio 1.2, 5.2.6), parsed from a chain.
//!
//! ```text
//!   to read:    type u32 | reserved u32 | sector u64 | a write's data, or ranges to discard
//!   to write:   a read's data | status u8
//! ```

use vm_memory::{Address, Bytes, GuestAddress, GuestMemory, Permissions};

use super::chain::{Malformed, Segment};
use super::guest::GuestRam;

/// The unit of a request's sector, whatever the volume's sectors are.
pub const SECTOR: u64 = 512;

/// The most segments of a request, as announced to the driver.
pub const SEGMENTS: u32 = 126;
/// The longest segment.
pub const SEGMENT: u32 = 256 << 10;
/// The longest read or write.
pub const LONGEST: u32 = SEGMENTS * SEGMENT;

/// The most sectors that one request may discard or zero.
pub const MOST_DISCARD: u32 = 1 << 22;
/// The most sectors that one request may zero: zeros are encrypted and written.
pub const MOST_ZEROES: u32 = 1 << 16;

/// The length of a serial number.
pub const SERIAL: usize = 20;

const HEADER: u32 = 16;
const RANGE: usize = 16;

const READ: u32 = 0;
const WRITE: u32 = 1;
const FLUSH: u32 = 4;
const GET_ID: u32 = 8;
const DISCARD: u32 = 11;
const WRITE_ZEROES: u32 = 13;

/// The one flag of a range.
const UNMAP: u32 = 1;

/// The operation that a driver requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields are bytes of the volume")]
pub enum Operation {
    Read { offset: u64, len: u32 },
    Write { offset: u64, len: u32 },
    Flush,
    GetId,
    Discard { offset: u64, len: u64 },
    WriteZeroes { offset: u64, len: u64, punch: bool },
}

/// The status of a completed request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
#[expect(missing_docs, reason = "the specification's words")]
pub enum Status {
    Ok = 0,
    IoError = 1,
    Unsupported = 2,
}

/// A request, and the address of its status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// The operation, or the status if the request is answered at once.
    pub operation: Result<Operation, Status>,
    /// The last byte to write.
    pub status: GuestAddress,
    /// Bytes to write before the status.
    pub writable: u32,
}

/// Parses a chain. The segments left in it are the data.
///
/// # Errors
/// `Header` or `Status` when the chain lacks one of them: then no answer is possible.
pub fn parse(ram: &GuestRam, chain: &mut Vec<Segment>, discards: bool) -> Result<Request, Malformed> {
    let status = take_status(ram, chain)?;
    let mut header = [0; HEADER as usize];
    take(ram, chain, &mut header).ok_or(Malformed::Header)?;
    let (kind, sector) = (u32_at(&header, 0), u64_at(&header, 8));
    let writes = chain.iter().filter(|segment| segment.writable).map(|segment| segment.len);
    // The length of the whole chain fits into 32 bits.
    let writable: u32 = writes.sum();
    let operation = operation(ram, chain, kind, sector, discards);
    Ok(Request { operation, status, writable })
}

fn operation(
    ram: &GuestRam,
    chain: &mut Vec<Segment>,
    kind: u32,
    sector: u64,
    discards: bool,
) -> Result<Operation, Status> {
    let offset = || sector.checked_mul(SECTOR).ok_or(Status::IoError);
    match kind {
        READ => Ok(Operation::Read { offset: offset()?, len: data(ram, chain, true)? }),
        WRITE => Ok(Operation::Write { offset: offset()?, len: data(ram, chain, false)? }),
        FLUSH => Ok(Operation::Flush),
        GET_ID => Ok(Operation::GetId),
        DISCARD if discards => match range(ram, chain, MOST_DISCARD)? {
            (offset, len, 0) => Ok(Operation::Discard { offset, len }),
            _ => Err(Status::Unsupported),
        },
        WRITE_ZEROES => match range(ram, chain, MOST_ZEROES)? {
            (offset, len, flags @ (0 | UNMAP)) => {
                Ok(Operation::WriteZeroes { offset, len, punch: flags == UNMAP })
            }
            _ => Err(Status::Unsupported),
        },
        _ => Err(Status::Unsupported),
    }
}

/// Takes the last byte to write.
fn take_status(ram: &GuestRam, chain: &mut Vec<Segment>) -> Result<GuestAddress, Malformed> {
    let last = chain.last_mut().filter(|last| last.writable).ok_or(Malformed::Status)?;
    last.len -= 1;
    let at = last.at.checked_add(last.len.into()).ok_or(Malformed::Status)?;
    if last.len == 0 {
        chain.pop();
    }
    if ram.check_range(at, 1, Permissions::Write) { Ok(at) } else { Err(Malformed::Status) }
}

/// Fills `bytes` with the first bytes to read, and removes them from the chain.
fn take(ram: &GuestRam, chain: &mut Vec<Segment>, mut bytes: &mut [u8]) -> Option<()> {
    let mut gone = 0;
    for segment in chain.iter_mut().take_while(|segment| !segment.writable) {
        let len = bytes.len().min(segment.len as usize);
        let (now, later) = bytes.split_at_mut(len);
        ram.read_slice(now, segment.at).ok()?;
        bytes = later;
        // The rest is no longer than the segment.
        let len = u32::try_from(len).ok()?;
        segment.len -= len;
        segment.at = segment.at.checked_add(len.into())?;
        gone += usize::from(segment.len == 0);
        if bytes.is_empty() {
            break;
        }
    }
    chain.drain(..gone);
    bytes.is_empty().then_some(())
}

/// Returns the length of the data, which have one direction and must be in guest memory.
fn data(ram: &GuestRam, chain: &[Segment], writable: bool) -> Result<u32, Status> {
    let mut total = 0;
    for segment in chain {
        let there = ram.check_range(segment.at, segment.len as usize, Permissions::ReadWrite);
        if segment.writable != writable || !there {
            return Err(Status::IoError);
        }
        total += segment.len;
    }
    let fits = total > 0 && total <= LONGEST && u64::from(total).is_multiple_of(SECTOR);
    if fits { Ok(total) } else { Err(Status::IoError) }
}

/// Returns the single range of a discard or zeroing: offset, length, flags.
fn range(ram: &GuestRam, chain: &mut Vec<Segment>, most: u32) -> Result<(u64, u64, u32), Status> {
    let mut range = [0; RANGE];
    take(ram, chain, &mut range).ok_or(Status::IoError)?;
    let sectors = u32_at(&range, 8);
    if sectors > most || !chain.is_empty() {
        return Err(Status::IoError);
    }
    let offset = u64_at(&range, 0).checked_mul(SECTOR).ok_or(Status::IoError)?;
    Ok((offset, u64::from(sectors) * SECTOR, u32_at(&range, 12)))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}
