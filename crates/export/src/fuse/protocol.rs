//! The kernel's requests to a mounted volume, parsed.
//!
//! ```text
//!   head:  request header (40) | the operation's arguments (up to 40)     parse()
//!   body:  a write's payload   | the rest of longer arguments
//! ```

use rustix::io::Errno;
use underseal_fuse::wire::{InHeader, RequestArgs, WRITE_DATA, op};

/// The bytes received before the payload: exactly a write's header and arguments.
pub(super) const HEAD: usize = WRITE_DATA;

/// A request of the kernel.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Call<'a> {
    /// The number by which the kernel finds the request again when the reply arrives.
    pub(super) unique: u64,
    /// The node number of the file.
    pub(super) node: u64,
    pub(super) operation: Operation<'a>,
}

/// The operation of a request. `flags` are the open file's, as open(2) takes them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operation<'a> {
    Lookup {
        name: &'a [u8],
    },
    GetAttr,
    SetAttr {
        valid: u32,
        size: u64,
    },
    Open {
        flags: u32,
    },
    OpenDir,
    Read {
        offset: u64,
        size: u32,
    },
    Write {
        offset: u64,
        size: u32,
        flags: u32,
    },
    ReadDir {
        offset: u64,
        size: u32,
    },
    StatFs,
    Fsync,
    Fallocate {
        offset: u64,
        len: u64,
        mode: u32,
    },
    /// The operation has no effect, and succeeds.
    Done,
    /// The operation gets no reply.
    Silent,
    /// The operation wakes a thread that sleeps in a read, and gets no reply.
    Wake,
    Other(u32),
}

/// Returns the client's thread that waits for the request; `None` for requests of the kernel, and
/// of other PID namespaces.
pub(super) fn caller(head: &[u8; HEAD]) -> Option<u32> {
    let word = |at: usize| head[at..].first_chunk().map(|word| u32::from_ne_bytes(*word));
    word(32).filter(|caller| *caller != 0 && word(4) != Some(op::NOTIFY_REPLY))
}

/// Parses a request of `len` bytes, the first of them in `head`; returns `None` when it is
/// incomplete.
pub(super) fn parse(head: &[u8; HEAD], len: usize) -> Option<Call<'_>> {
    let (InHeader { opcode, unique, node, .. }, mut args) = InHeader::read_first(head, len).ok()?;
    let operation = operation(opcode, &mut args, len).ok()?;
    Some(Call { unique, node, operation })
}

fn operation<'a>(opcode: u32, args: &mut RequestArgs<'a>, len: usize) -> Result<Operation<'a>, Errno> {
    Ok(match opcode {
        // No file has a name that is longer than the head.
        op::LOOKUP if len > HEAD => Operation::Lookup { name: &[] },
        op::LOOKUP => Operation::Lookup { name: args.name().unwrap_or_default() },
        // The server counts no lookups, and its requests complete soon without an interrupt.
        op::FORGET | op::INTERRUPT | op::BATCH_FORGET => Operation::Silent,
        op::NOTIFY_REPLY => Operation::Wake,
        op::GETATTR => Operation::GetAttr,
        op::SETATTR => {
            let valid = args.u32()?;
            // Skips padding, and the file's handle.
            args.skip(12)?;
            Operation::SetAttr { valid, size: args.u64()? }
        }
        op::OPEN => Operation::Open { flags: args.u32()? },
        op::READ => {
            let (offset, size, _) = transfer(args)?;
            Operation::Read { offset, size }
        }
        op::WRITE => {
            let (offset, size, flags) = transfer(args)?;
            if len - HEAD != size as usize {
                return Err(Errno::IO);
            }
            Operation::Write { offset, size, flags }
        }
        op::READDIR => {
            let (offset, size, _) = transfer(args)?;
            Operation::ReadDir { offset, size }
        }
        op::STATFS => Operation::StatFs,
        op::FSYNC => Operation::Fsync,
        op::OPENDIR => Operation::OpenDir,
        op::RELEASE | op::RELEASEDIR | op::FSYNCDIR | op::DESTROY => Operation::Done,
        op::FALLOCATE => {
            args.skip(8)?;
            Operation::Fallocate { offset: args.u64()?, len: args.u64()?, mode: args.u32()? }
        }
        other => Operation::Other(other),
    })
}

/// Parses the common arguments of READ, WRITE and READDIR: offset, size, and the open file's flags.
fn transfer(args: &mut RequestArgs<'_>) -> Result<(u64, u32, u32), Errno> {
    args.skip(8)?;
    let (offset, size) = (args.u64()?, args.u32()?);
    // Skips the request's flags, and the lock owner.
    args.skip(12)?;
    let flags = args.u32()?;
    args.skip(4)?;
    Ok((offset, size, flags))
}

#[cfg(test)]
mod tests {
    use underseal_fuse::wire::HEADER;

    use super::*;

    fn request(opcode: u32, args: &[u8], payload: usize) -> ([u8; HEAD], usize) {
        let mut head = [0; HEAD];
        let len = HEADER + args.len() + payload;
        head[..4].copy_from_slice(&u32::try_from(len).unwrap().to_ne_bytes());
        head[4..8].copy_from_slice(&opcode.to_ne_bytes());
        head[8] = 42;
        head[16] = 1;
        head[HEADER..HEADER + args.len()].copy_from_slice(args);
        (head, len)
    }

    fn words(words: &[u64]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    #[test]
    fn a_write_is_its_head_and_its_payload() {
        let (head, len) = request(16, &words(&[0, 4096, 512, 0, 0x4000]), 512);
        let operation = Operation::Write { offset: 4096, size: 512, flags: 0x4000 };
        assert_eq!(parse(&head, len), Some(Call { unique: 42, node: 1, operation }));
    }

    #[test]
    fn what_is_not_whole_is_no_request() {
        let (head, len) = request(16, &words(&[0, 4096, 512, 0, 0]), 512);
        assert_eq!(parse(&head, len - 1), None, "shorter than it says");
        let (head, len) = request(16, &words(&[0, 4096, 512, 0, 0]), 511);
        assert_eq!(parse(&head, len), None, "a payload of another length");
        for opcode in [4, 14, 15, 16, 28, 43] {
            let (head, len) = request(opcode, &[], 0);
            assert_eq!(parse(&head, len), None, "{opcode} without arguments");
        }
        assert_eq!(parse(&[0; HEAD], 8), None, "shorter than a header");
    }

    #[test]
    fn a_name_ends_at_its_nul_and_one_too_long_is_nobodys() {
        let (head, len) = request(1, b"segment0\0", 0);
        assert_eq!(parse(&head, len).unwrap().operation, Operation::Lookup { name: b"segment0" });
        let (head, len) = request(1, &[b'x'; 40], 1);
        assert_eq!(parse(&head, len).unwrap().operation, Operation::Lookup { name: b"" });
    }
}
