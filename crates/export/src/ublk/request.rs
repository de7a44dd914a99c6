//! The kernel's requests, parsed and checked.

use std::fmt;

use super::abi as sys;
use rustix::io::Errno;
use underseal_datapath::ZoneAction;

/// The size of a zone in a report.
pub(super) const ZONE: usize = size_of::<sys::blk_zone>();

/// A request of the block layer, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Request {
    Read {
        offset: u64,
        len: usize,
    },
    Write {
        offset: u64,
        len: usize,
        durable: bool,
    },
    Flush,
    Discard {
        offset: u64,
        len: u64,
    },
    Zero {
        offset: u64,
        len: u64,
        punch: bool,
    },
    /// Report this number of zones from `offset` on.
    Report {
        offset: u64,
        count: usize,
    },
    /// Apply an action to the zone at `offset`, or to all zones.
    Zone {
        offset: u64,
        action: ZoneAction,
    },
    ResetAll,
    /// Append to the zone that begins at `offset`, and return the offset of the data.
    Append {
        offset: u64,
        len: usize,
    },
}

impl fmt::Display for Request {
    /// Describes the request for log lines.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Read { offset, len } => write!(f, "read of {len} bytes at {offset}"),
            Self::Write { offset, len, .. } => write!(f, "write of {len} bytes at {offset}"),
            Self::Flush => f.write_str("flush"),
            Self::Discard { offset, len } => write!(f, "discard of {len} bytes at {offset}"),
            Self::Zero { offset, len, .. } => write!(f, "zeroes on {len} bytes at {offset}"),
            Self::Report { offset, count } => write!(f, "report of {count} zones from {offset} on"),
            Self::Zone { offset, action } => write!(f, "{action:?} of the zone at {offset}"),
            Self::ResetAll => f.write_str("reset of all zones"),
            Self::Append { offset, len, .. } => write!(f, "append of {len} bytes to the zone at {offset}"),
        }
    }
}

impl Request {
    /// Parses a descriptor; the longest read or write is of `longest` bytes. Fails with
    /// `EOPNOTSUPP` for unknown operations, with `EINVAL` for impossible values.
    pub(super) fn parse(descriptor: &sys::ublksrv_io_desc, longest: usize) -> Result<Self, Errno> {
        const OPERATION: u32 = 0xff;
        let flags = descriptor.op_flags;
        // A flush has no offset.
        if flags & OPERATION == sys::UBLK_IO_OP_FLUSH {
            return Ok(Self::Flush);
        }
        let offset = descriptor.start_sector.checked_mul(512).ok_or(Errno::INVAL)?;
        let len = u64::from(descriptor.nr_sectors) * 512;
        let short = || usize::try_from(len).ok().filter(|&len| len <= longest).ok_or(Errno::INVAL);
        Ok(match flags & OPERATION {
            sys::UBLK_IO_OP_READ => Self::Read { offset, len: short()? },
            sys::UBLK_IO_OP_WRITE => {
                Self::Write { offset, len: short()?, durable: flags & sys::UBLK_IO_F_FUA != 0 }
            }
            sys::UBLK_IO_OP_DISCARD => Self::Discard { offset, len },
            sys::UBLK_IO_OP_WRITE_ZEROES => {
                Self::Zero { offset, len, punch: flags & sys::UBLK_IO_F_NOUNMAP == 0 }
            }
            // A number of zones replaces the length.
            sys::UBLK_IO_OP_REPORT_ZONES => Self::Report {
                offset,
                count: usize::try_from(descriptor.nr_sectors).map_err(|_| Errno::INVAL)?.min(longest / ZONE),
            },
            sys::UBLK_IO_OP_ZONE_OPEN => Self::Zone { offset, action: ZoneAction::Open },
            sys::UBLK_IO_OP_ZONE_CLOSE => Self::Zone { offset, action: ZoneAction::Close },
            sys::UBLK_IO_OP_ZONE_FINISH => Self::Zone { offset, action: ZoneAction::Finish },
            sys::UBLK_IO_OP_ZONE_RESET => Self::Zone { offset, action: ZoneAction::Reset },
            sys::UBLK_IO_OP_ZONE_RESET_ALL => Self::ResetAll,
            sys::UBLK_IO_OP_ZONE_APPEND => Self::Append { offset, len: short()? },
            _ => return Err(Errno::OPNOTSUPP),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(op_flags: u32, nr_sectors: u32, start_sector: u64) -> Result<Request, Errno> {
        let descriptor = sys::ublksrv_io_desc { op_flags, nr_sectors, start_sector, addr: 0 };
        Request::parse(&descriptor, 1 << 20)
    }

    #[test]
    fn descriptors_are_read_as_the_kernel_means_them() {
        let fua = sys::UBLK_IO_OP_WRITE | sys::UBLK_IO_F_FUA | sys::UBLK_IO_F_META;
        for (flags, sectors, expected) in [
            (sys::UBLK_IO_OP_READ, 8, Request::Read { offset: 1024, len: 4096 }),
            (sys::UBLK_IO_OP_WRITE, 1, Request::Write { offset: 1024, len: 512, durable: false }),
            (fua, 1, Request::Write { offset: 1024, len: 512, durable: true }),
            (sys::UBLK_IO_OP_DISCARD, 1 << 20, Request::Discard { offset: 1024, len: 512 << 20 }),
            (sys::UBLK_IO_OP_WRITE_ZEROES, 2, Request::Zero { offset: 1024, len: 1024, punch: true }),
        ] {
            assert_eq!(parse(flags, sectors, 2), Ok(expected));
        }
        assert_eq!(
            parse(sys::UBLK_IO_OP_FLUSH, 0, u64::MAX),
            Ok(Request::Flush),
            "as the kernel fills it in"
        );
        let kept = sys::UBLK_IO_OP_WRITE_ZEROES | sys::UBLK_IO_F_NOUNMAP;
        assert_eq!(parse(kept, 2, 2), Ok(Request::Zero { offset: 1024, len: 1024, punch: false }));
    }

    #[test]
    fn what_cannot_be_is_refused() {
        assert_eq!(parse(sys::UBLK_IO_OP_WRITE, 2049, 0), Err(Errno::INVAL), "longer than was agreed");
        assert_eq!(
            parse(sys::UBLK_IO_OP_READ, 1, u64::MAX / 256),
            Err(Errno::INVAL),
            "no byte has that number"
        );
        assert_eq!(parse(sys::UBLK_IO_OP_ZONE_APPEND, 2049, 0), Err(Errno::INVAL));
        let most = Request::Report { offset: 0, count: (1 << 20) / ZONE };
        assert_eq!(parse(sys::UBLK_IO_OP_REPORT_ZONES, u32::MAX, 0), Ok(most));
        assert_eq!(parse(99, 1, 0), Err(Errno::OPNOTSUPP));
    }
}
