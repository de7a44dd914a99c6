//! What a ring may be told to do (`IORING_REGISTER_RESTRICTIONS`): seccomp does not see the operations of a ring, so whoever
//! could write into one would get past it.
//!
//! ```text
//!   made disabled  ->  what is allowed is registered  ->  enabled, for good
//! ```

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use io_uring::register::Restriction;
use io_uring::{Builder, IoUring, opcode, squeue};

/// What channels and queues do. Reads and writes of registered or chosen buffers are none of it.
const OF_QUEUES: [u8; 6] = [
    opcode::Read::CODE,
    opcode::Write::CODE,
    opcode::Fsync::CODE,
    opcode::Fallocate::CODE,
    opcode::Fadvise::CODE,
    opcode::PollAdd::CODE,
];

/// Rings are restricted, unless somebody wants to have everything.
static WANTED: AtomicBool = AtomicBool::new(true);
/// Rings may be used for drivers' own commands: ublk's, and what block devices call a discard.
static COMMANDS: AtomicBool = AtomicBool::new(false);
/// How rings were made; one without restrictions counts for all.
static IN_FORCE: AtomicU8 = AtomicU8::new(UNKNOWN);

const UNKNOWN: u8 = 0;
const YES: u8 = 1;
const NO: u8 = 2;

/// Rings of this process that are made from now on may do anything.
pub fn forgo() {
    WANTED.store(false, Ordering::Relaxed);
}

/// Rings of this process that are made from now on may give drivers commands of their own.
pub fn allow_commands() {
    COMMANDS.store(true, Ordering::Relaxed);
}

/// Whether the rings of this process are restricted; none was made yet where that is not known. Before Linux 5.10 none can be.
pub fn in_force() -> Option<bool> {
    match IN_FORCE.load(Ordering::Relaxed) {
        UNKNOWN => None,
        known => Some(known == YES),
    }
}

/// Makes a ring as `builder` has it for queues and channels, which is restricted where the kernel can do that.
///
/// # Errors
/// When the kernel makes none of this kind.
pub(crate) fn build(builder: &Builder, entries: u32) -> io::Result<IoUring> {
    let mut allowed = OF_QUEUES.to_vec();
    if COMMANDS.load(Ordering::Relaxed) {
        allowed.push(opcode::UringCmd16::CODE);
    }
    build_with(builder, entries, &allowed, |_| Ok(()))
}

/// As `build`, for `allowed` only, after `prepare` has registered what the ring needs.
pub(crate) fn build_with(
    builder: &Builder,
    entries: u32,
    allowed: &[u8],
    prepare: impl FnOnce(&IoUring) -> io::Result<()>,
) -> io::Result<IoUring> {
    if WANTED.load(Ordering::Relaxed) {
        // Enabling it makes this thread its one submitter.
        match builder.clone().setup_r_disabled().build(entries) {
            Ok(ring) => {
                prepare(&ring)?;
                restrict(&ring, allowed)?;
                let _ = IN_FORCE.compare_exchange(UNKNOWN, YES, Ordering::Relaxed, Ordering::Relaxed);
                return Ok(ring);
            }
            // A kernel that does not know this flag, or another one.
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) => {}
            Err(e) => return Err(e),
        }
    }
    let ring = builder.build(entries)?;
    prepare(&ring)?;
    IN_FORCE.store(NO, Ordering::Relaxed);
    Ok(ring)
}

fn restrict(ring: &IoUring, allowed: &[u8]) -> io::Result<()> {
    let mut allowed: Vec<_> = allowed.iter().map(|&code| Restriction::sqe_op(code)).collect();
    // An operation that was interrupted is tried again by a thread of the kernel's.
    allowed.push(Restriction::sqe_flags_allowed(squeue::Flags::ASYNC.bits()));
    ring.submitter().register_restrictions(&mut allowed)?;
    ring.submitter().register_enable_rings()
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use io_uring::types;

    use super::*;

    /// What the kernel answers to an operation.
    fn result_of(ring: &mut IoUring, entry: &squeue::Entry) -> i32 {
        // SAFETY: the tests' operations refer to no memory, or to memory that outlives the wait.
        unsafe { ring.submission().push(entry).unwrap() };
        ring.submit_and_wait(1).unwrap();
        ring.completion().next().unwrap().result()
    }

    #[test]
    fn what_no_queue_does_is_refused() {
        let mut ring = build(&IoUring::builder(), 4).unwrap();
        let file = tempfile::tempfile().unwrap();
        let fd = types::Fd(file.as_raw_fd());
        let path = c"/etc/passwd";
        let bytes = [7; 16];
        assert_eq!(result_of(&mut ring, &opcode::Write::new(fd, bytes.as_ptr(), 16).build()), 16);
        assert_eq!(result_of(&mut ring, &opcode::Fsync::new(fd).build()), 0);
        let again = opcode::Fsync::new(fd).build().flags(squeue::Flags::ASYNC);
        assert_eq!(result_of(&mut ring, &again), 0);
        for refused in [
            opcode::OpenAt::new(types::Fd(libc::AT_FDCWD), path.as_ptr()).build(),
            opcode::Socket::new(libc::AF_INET, libc::SOCK_STREAM, 0).build(),
            opcode::UringCmd16::new(fd, 0).build(),
            opcode::Nop::new().build(),
            opcode::Fsync::new(fd).build().flags(squeue::Flags::IO_LINK),
        ] {
            assert_eq!(result_of(&mut ring, &refused), -libc::EACCES, "{refused:?}");
        }
        let buffers = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }];
        // SAFETY: it is refused before the buffers are looked at.
        let registered = unsafe { ring.submitter().register_buffers(&buffers) };
        assert_eq!(registered.unwrap_err().raw_os_error(), Some(libc::EACCES));
        assert_eq!(in_force(), Some(true));
    }
}
