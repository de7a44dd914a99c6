//! The handshake: Linux's first request lists its capabilities, and the reply selects from them.

use std::io::{self, IoSliceMut};

use rustix::io::Errno;

use crate::channel::{FuseChannel, ReceivedRequest};
use crate::wire::{Body, InHeader, RequestArgs, op};

/// Capabilities of Linux's FUSE (`FUSE_..` of INIT's flags).
pub mod capability {
    #![expect(missing_docs, reason = "as linux/fuse.h explains them")]

    pub(crate) const ASYNC_READ: u64 = 1 << 0;
    pub const ATOMIC_O_TRUNC: u64 = 1 << 3;
    pub(crate) const BIG_WRITES: u64 = 1 << 5;
    pub const DONT_MASK: u64 = 1 << 6;
    pub const DO_READDIRPLUS: u64 = 1 << 13;
    pub const READDIRPLUS_AUTO: u64 = 1 << 14;
    pub const ASYNC_DIO: u64 = 1 << 15;
    pub const PARALLEL_DIROPS: u64 = 1 << 18;
    pub const POSIX_ACL: u64 = 1 << 20;
    pub(crate) const MAX_PAGES: u64 = 1 << 22;
    pub const CACHE_SYMLINKS: u64 = 1 << 23;
    pub const EXPLICIT_INVAL_DATA: u64 = 1 << 25;
    pub const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    pub const SETXATTR_EXT: u64 = 1 << 29;
    pub(crate) const INIT_EXT: u64 = 1 << 30;
    pub const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
    pub const OVER_IO_URING: u64 = 1 << 41;
}
use capability::{ASYNC_READ, BIG_WRITES, INIT_EXT, MAX_PAGES};

/// The capabilities and limits that a filesystem requests.
#[derive(Debug, Clone, Copy)]
pub struct Init {
    /// Features to use if the kernel has them.
    pub wanted: u64,
    /// Features without which the mount fails.
    pub needed: u64,
    /// The Linux version that introduced the last of the needed capabilities.
    pub since: &'static str,
    /// The longest read or write.
    pub max_write: u32,
    /// Requests that Linux keeps in flight without a waiting caller: readahead, asynchronous direct
    /// I/O.
    pub max_background: u16,
}

/// The protocol version used here, and the oldest supported version.
const MAJOR: u32 = 7;
const MINOR: u32 = 40;
const OLDEST: u32 = 31;

/// The smallest buffer for requests that the kernel accepts, and more than the handshake needs.
const ROOM: usize = 16 << 10;

const PAGE: u32 = 4096;

impl Init {
    /// Answers the first request. Returns the agreed flags.
    pub(crate) fn shake_hands(&self, channel: &FuseChannel) -> io::Result<u64> {
        let mut request = vec![0; ROOM];
        let ReceivedRequest::Request(len) = channel.receive(&mut [IoSliceMut::new(&mut request)])? else {
            return Err(io::Error::other("the mount was gone before it began"));
        };
        let (header, mut args) = InHeader::read(&request[..len])?;
        match self.answer(&header, &mut args) {
            Ok((reply, agreed)) => channel.reply(header.unique, Ok(&reply)).map(|()| agreed),
            Err(e) => {
                // The handshake's error is reported, not the reply's.
                let _ = channel.reply(header.unique, Err(Errno::PROTO));
                Err(e)
            }
        }
    }

    fn answer(&self, header: &InHeader, args: &mut RequestArgs<'_>) -> io::Result<(Vec<u8>, u64)> {
        if header.opcode != op::INIT {
            return Err(io::Error::other("the kernel does not begin with a handshake"));
        }
        let (major, minor, readahead, low) = (args.u32()?, args.u32()?, args.u32()?, args.u32()?);
        let high = if u64::from(low) & INIT_EXT == 0 { 0 } else { args.u32()? };
        let there = u64::from(high) << 32 | u64::from(low);
        if major != MAJOR || minor < OLDEST || self.needed & !there != 0 {
            let context = format!("this kernel's FUSE is too old: Linux {} or later is needed", self.since);
            return Err(io::Error::other(context));
        }
        let flags = there & (self.wanted | self.needed | ASYNC_READ | BIG_WRITES | MAX_PAGES | INIT_EXT);
        let pages = self.max_write.max(readahead).div_ceil(PAGE);
        let congested = self.max_background / 4 * 3;
        let mut reply = Vec::new();
        let mut body = Body(&mut reply);
        body.u32(MAJOR).u32(MINOR).u32(readahead).u32(halves(flags)[0]);
        body.u16(self.max_background).u16(congested).u32(self.max_write);
        // Times have a resolution of a nanosecond.
        body.u32(1).u16(u16::try_from(pages).unwrap_or(u16::MAX)).u16(0).u32(halves(flags)[1]).zeros(28);
        Ok((reply, flags))
    }
}

#[expect(clippy::cast_possible_truncation, reason = "each is a half")]
fn halves(flags: u64) -> [u32; 2] {
    [flags as u32, (flags >> 32) as u32]
}

#[cfg(test)]
mod tests {
    use super::*;

    const INIT: Init = Init {
        wanted: 1 << 36 | 1 << 15,
        needed: 1 << 29,
        since: "5.12",
        max_write: 1 << 20,
        max_background: 64,
    };

    fn asked(minor: u32, low: u32, high: u32) -> io::Result<Vec<u8>> {
        let words = [104, op::INIT, 7, 0, 1, 0, 0, 0, 0, 0, MAJOR, minor, 128 << 10, low, high];
        let mut request: Vec<u8> = words.into_iter().flat_map(u32::to_ne_bytes).collect();
        request.resize(104, 0);
        let (header, mut args) = InHeader::read(&request).unwrap();
        INIT.answer(&header, &mut args).map(|(reply, _)| reply)
    }

    #[test]
    fn what_is_wanted_and_there_is_asked_for() {
        let reply = asked(38, 1 << 30 | 1 << 29 | 1 << 22 | 1, 1 << 4 | 1 << 5).unwrap();
        assert_eq!(reply.len(), 64);
        let word = |at: usize| u32::from_ne_bytes(reply[at..at + 4].try_into().unwrap());
        assert_eq!((word(0), word(8), word(12)), (7, 128 << 10, 1 << 30 | 1 << 29 | 1 << 22 | 1));
        assert_eq!(reply[16..20], [64, 0, 48, 0], "requests in the background");
        assert_eq!((word(20), word(24)), (1 << 20, 1));
        assert_eq!((word(28), word(32)), (256, 1 << 4), "pages of a request; the flags' upper half");
        // Without its mark the upper half is missing.
        let reply = asked(31, 1 << 29, 1 << 4).unwrap();
        assert_eq!(reply[32..36], [0; 4]);
    }

    #[test]
    fn a_kernel_that_lacks_what_is_needed_is_refused() {
        for (minor, low) in [(38, 1 << 30), (30, 1 << 29)] {
            let refused = asked(minor, low, 0).unwrap_err().to_string();
            assert!(refused.contains("Linux 5.12 or later"), "{refused}");
        }
    }
}
