//! Restrictions of a ring's operations (`IORING_REGISTER_RESTRICTIONS`): seccomp does not see them,
//! so without restrictions an attacker who can write into a ring could bypass it.
//!
//! ```text
//!   made disabled  ->  allowed operations are registered  ->  enabled, for good
//!   |  the server, or in the sandbox its helper  |        |  the thread that uses it  |
//! ```

#![expect(unsafe_code, reason = "io_uring: registers what a ring may do")]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, IntoRawFd};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use io_uring::register::Restriction;
use io_uring::squeue::EntryMarker;
use io_uring::{Builder, IoUring, Parameters, cqueue, opcode, squeue};
use underseal_sandbox::{RingMade, RingRequest, ring, will_give_commands};

/// Operations of channels and queues, and of a signal, which is an operation without effect. Reads
/// and writes of registered or provided buffers are not among them.
const OF_QUEUES: [u8; 7] = [
    opcode::Nop::CODE,
    opcode::Read::CODE,
    opcode::Write::CODE,
    opcode::Fsync::CODE,
    opcode::Fallocate::CODE,
    opcode::Fadvise::CODE,
    opcode::PollAdd::CODE,
];

/// Rings are restricted, unless the operator forgoes it.
static WANTED: AtomicBool = AtomicBool::new(true);
/// Rings may send commands to drivers: ublk's, and discards of block devices.
static COMMANDS: AtomicBool = AtomicBool::new(false);
/// The state of rings so far; one without restrictions counts for all.
static IN_FORCE: AtomicU8 = AtomicU8::new(UNKNOWN);

const UNKNOWN: u8 = 0;
const YES: u8 = 1;
const NO: u8 = 2;

/// Makes later rings of this process without restrictions.
pub fn forgo() {
    WANTED.store(false, Ordering::Relaxed);
}

/// Allows commands to drivers in later rings of this process. In the sandbox this is too late.
pub fn allow_commands() {
    if !COMMANDS.swap(true, Ordering::Relaxed) {
        will_give_commands();
    }
}

/// Whether the rings of this process are restricted; `None` before the first ring. Kernels before
/// Linux 5.10 have no restrictions.
pub fn in_force() -> Option<bool> {
    match IN_FORCE.load(Ordering::Relaxed) {
        UNKNOWN => None,
        known => Some(known == YES),
    }
}

/// Makes a ring for queues and channels, restricted where the kernel can do that, after `prepare`
/// has made its registrations. `entries`: operations, and completions that are not taken yet.
/// `single_issuer`: for this thread only.
///
/// Fails when the kernel has no rings of this kind; in the sandbox also when the helper is gone.
pub(crate) fn build(
    (entries, completions): (u32, u32),
    single_issuer: bool,
    prepare: impl Fn(&IoUring) -> io::Result<()>,
) -> io::Result<IoUring> {
    let commands = COMMANDS.load(Ordering::Relaxed);
    let request = sized(entries, completions, single_issuer, commands);
    let (made, restricted) = ring(request, || by_itself(request), |made| Ok((over(made)?, true)))?;
    prepare(&made)?;
    enabled(made, restricted)
}

/// As [`build`], with long entries, and always with commands to drivers. Call it before the
/// sandbox: afterwards it fails.
pub(crate) fn build_long(entries: u32, completions: u32) -> io::Result<IoUring<squeue::Entry128>> {
    let request = sized(entries, completions, true, true);
    let none = |_| Err(io::ErrorKind::PermissionDenied.into());
    let (made, restricted) = ring(request, || by_itself(request), none)?;
    enabled(made, restricted)
}

/// A request that the kernel can fulfil: a power of two, and at least twice as many completions.
fn sized(entries: u32, completions: u32, single_issuer: bool, commands: bool) -> RingRequest {
    let entries = entries.next_power_of_two();
    let completions = completions.max(entries.saturating_mul(2));
    RingRequest { entries, completions, single_issuer, commands }
}

/// Makes a ring in this process. The flag is true for a restricted ring, which is not enabled yet.
fn by_itself<S: EntryMarker>(request: RingRequest) -> io::Result<(IoUring<S>, bool)> {
    if WANTED.load(Ordering::Relaxed) {
        match disabled(request) {
            Ok(made) => return Ok((made, true)),
            // The kernel does not know this flag, or another one.
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) => {}
            Err(e) => return Err(e),
        }
    }
    Ok((builder(request).build(request.entries)?, false))
}

fn enabled<S: EntryMarker>(made: IoUring<S>, restricted: bool) -> io::Result<IoUring<S>> {
    if restricted {
        // Enabling the ring makes this thread its only submitter.
        made.submitter().register_enable_rings()?;
        let _ = IN_FORCE.compare_exchange(UNKNOWN, YES, Ordering::Relaxed, Ordering::Relaxed);
    } else {
        IN_FORCE.store(NO, Ordering::Relaxed);
    }
    Ok(made)
}

/// Makes a ring with long entries that only sends commands to a driver. Call it before the sandbox.
///
/// # Errors
/// When the kernel makes none of this kind.
pub fn commands_only(entries: u32) -> io::Result<IoUring<squeue::Entry128, cqueue::Entry>> {
    let builder = IoUring::<squeue::Entry128, cqueue::Entry>::builder();
    if WANTED.load(Ordering::Relaxed) {
        let made = builder.clone().setup_r_disabled().build(entries)?;
        let mut allowed = [Restriction::sqe_op(opcode::UringCmd80::CODE)];
        made.submitter().register_restrictions(&mut allowed)?;
        made.submitter().register_enable_rings()?;
        return Ok(made);
    }
    builder.build(entries)
}

/// Makes a ring for a sandboxed server, in the server's helper, with the operations of queues.
///
/// # Errors
/// When the kernel makes none of this kind.
pub fn for_server(request: RingRequest) -> io::Result<RingMade> {
    let ring: IoUring = disabled(request)?;
    // SAFETY: the ring is open while the descriptor is borrowed.
    let fd = unsafe { BorrowedFd::borrow_raw(ring.as_raw_fd()) }.try_clone_to_owned()?;
    Ok(RingMade { fd, parameters: bytes(ring.params()) })
}

fn builder<S: EntryMarker>(request: RingRequest) -> Builder<S> {
    let mut builder = IoUring::<S>::builder();
    builder.setup_clamp().setup_cqsize(request.completions);
    if request.single_issuer {
        // Completions are handled when this thread enters the kernel anyway, instead of by
        // interrupting it.
        builder.setup_coop_taskrun().setup_single_issuer();
    }
    builder
}

/// Makes a restricted ring that is not enabled yet.
fn disabled<S: EntryMarker>(request: RingRequest) -> io::Result<IoUring<S>> {
    let ring = builder(request).setup_r_disabled().build(request.entries)?;
    let commands = request.commands.then_some(opcode::UringCmd16::CODE);
    let mut allowed: Vec<_> = OF_QUEUES.into_iter().chain(commands).map(Restriction::sqe_op).collect();
    // A thread of the kernel repeats an interrupted operation.
    allowed.push(Restriction::sqe_flags_allowed(squeue::Flags::ASYNC.bits()));
    ring.submitter().register_restrictions(&mut allowed)?;
    Ok(ring)
}

const PARAMETERS: usize = size_of::<Parameters>();

fn bytes(parameters: &Parameters) -> Vec<u8> {
    // SAFETY: the type is a transparent wrapper of a structure of integers without gaps.
    unsafe { std::mem::transmute::<Parameters, [u8; PARAMETERS]>(parameters.clone()) }.to_vec()
}

/// Takes over a ring that the helper made.
fn over(made: RingMade) -> io::Result<IoUring> {
    let parameters: [u8; PARAMETERS] =
        made.parameters.try_into().map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?;
    // SAFETY: the type is a transparent wrapper of the kernel's structure, for which any bytes are
    // a value.
    let parameters = unsafe { std::mem::transmute::<[u8; PARAMETERS], Parameters>(parameters) };
    // SAFETY: the descriptor of a ring without another owner, with the kernel's parameters of that
    // ring.
    unsafe { IoUring::from_fd(made.fd.into_raw_fd(), parameters) }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use io_uring::types;

    use super::*;

    /// The kernel's result of an operation.
    fn result_of(ring: &mut IoUring, entry: &squeue::Entry) -> i32 {
        // SAFETY: the tests' operations refer to no memory, or to memory that outlives the wait.
        unsafe { ring.submission().push(entry).unwrap() };
        ring.submit_and_wait(1).unwrap();
        ring.completion().next().unwrap().result()
    }

    #[test]
    fn what_no_queue_does_is_refused() {
        let mut ring = build((4, 0), true, |_| Ok(())).unwrap();
        let file = tempfile::tempfile().unwrap();
        let fd = types::Fd(file.as_raw_fd());
        let path = c"/etc/passwd";
        let bytes = [7; 16];
        assert_eq!(result_of(&mut ring, &opcode::Write::new(fd, bytes.as_ptr(), 16).build()), 16);
        assert_eq!(result_of(&mut ring, &opcode::Fsync::new(fd).build()), 0);
        assert_eq!(result_of(&mut ring, &opcode::Nop::new().build()), 0);
        let again = opcode::Fsync::new(fd).build().flags(squeue::Flags::ASYNC);
        assert_eq!(result_of(&mut ring, &again), 0);
        for refused in [
            opcode::OpenAt::new(types::Fd(libc::AT_FDCWD), path.as_ptr()).build(),
            opcode::Socket::new(libc::AF_INET, libc::SOCK_STREAM, 0).build(),
            opcode::UringCmd16::new(fd, 0).build(),
            opcode::Fsync::new(fd).build().flags(squeue::Flags::IO_LINK),
        ] {
            assert_eq!(result_of(&mut ring, &refused), -libc::EACCES, "{refused:?}");
        }
        let buffers = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }];
        // SAFETY: the kernel refuses the call before it looks at the buffers.
        let registered = unsafe { ring.submitter().register_buffers(&buffers) };
        assert_eq!(registered.unwrap_err().raw_os_error(), Some(libc::EACCES));
        assert_eq!(in_force(), Some(true));
    }

    #[test]
    fn a_ring_for_long_commands_does_what_queues_do_and_gives_commands() {
        let mut ring = build_long(4, 0).unwrap();
        let file = tempfile::tempfile().unwrap();
        let fd = types::Fd(file.as_raw_fd());
        let mut result_of = |entry: &squeue::Entry128| {
            // SAFETY: the operations refer to no memory.
            unsafe { ring.submission().push(entry).unwrap() };
            ring.submit_and_wait(1).unwrap();
            ring.completion().next().unwrap().result()
        };
        assert_eq!(result_of(&opcode::Fsync::new(fd).build().into()), 0);
        // A file has no commands.
        assert_eq!(result_of(&opcode::UringCmd80::new(fd, 0).build()), -libc::EOPNOTSUPP);
        let refused = opcode::Socket::new(libc::AF_INET, libc::SOCK_STREAM, 0).build();
        assert_eq!(result_of(&refused.into()), -libc::EACCES);
    }
}
