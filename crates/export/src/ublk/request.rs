//! What the kernel asks for, checked.

use libublk_rs_sys as sys;
use rustix::io::Errno;

/// A request of the block layer's, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Request {
    Read { offset: u64, len: usize },
    Write { offset: u64, len: usize, durable: bool },
    Flush,
    Discard { offset: u64, len: u64 },
    Zero { offset: u64, len: u64, punch: bool },
}

impl Request {
    /// Reads a descriptor; the longest read or write is of `longest` bytes.
    ///
    /// # Errors
    /// `EOPNOTSUPP` for what is not known, `EINVAL` for what cannot be.
    pub(super) fn parse(descriptor: &sys::ublksrv_io_desc, longest: usize) -> Result<Self, Errno> {
        const OPERATION: u32 = 0xff;
        let flags = descriptor.op_flags;
        // Whose place is none.
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
        assert_eq!(parse(sys::UBLK_IO_OP_REPORT_ZONES, 1, 0), Err(Errno::OPNOTSUPP));
        assert_eq!(parse(99, 1, 0), Err(Errno::OPNOTSUPP));
    }
}
