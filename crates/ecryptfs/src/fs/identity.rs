//! Whose files are made: root's mount acts as whoever asks.
//!
//! A thread takes on its caller's fsuid, fsgid and umask before it makes a file, so the lower
//! filesystem gives the file to the right owner, with the group of a set-group-id folder and its
//! default ACL, in one step. The kernel has already checked what the caller may do
//! (`default_permissions`), so the thread keeps its capabilities, and it need not change back: an
//! identity matters only where something is made.

use std::cell::Cell;
use std::io;

use rustix::fs::Mode;
use rustix::thread::{CapabilitySet, UnshareFlags, capabilities, set_capabilities};
use underseal_fuse::wire::InHeader;

thread_local! {
    static CURRENT: Cell<Option<(u32, u32)>> = const { Cell::new(None) };
}

/// Whether callers' identities can be taken on.
pub(super) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Gives this thread a umask of its own, and keeps it out of the folder that the program was
/// started in, which can then be unmounted: where the other threads go does not concern this one
/// any more.
///
/// # Errors
/// When the system refuses.
pub(super) fn detach() -> io::Result<()> {
    // SAFETY: only the umask, the root and the working directory are no longer shared with the
    // other threads, and no code here relies on their being shared: paths of a mount are absolute,
    // or relative to descriptors.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::FS)? };
    rustix::process::chdir("/")?;
    // The thread that started this one may have been a caller, so nothing is known of it yet.
    CURRENT.set(None);
    Ok(())
}

/// Makes files as the caller from now on, with this umask.
///
/// # Errors
/// When the system refuses.
pub(super) fn assume(root: bool, caller: &InHeader, umask: u32) -> io::Result<()> {
    rustix::process::umask(Mode::from_raw_mode(umask & 0o777));
    let wanted = (caller.uid, caller.gid);
    if !root || CURRENT.get() == Some(wanted) {
        return Ok(());
    }
    CURRENT.set(None);
    // SAFETY: these change nothing but this thread's identity for files, and access no memory.
    unsafe {
        libc::setfsgid(caller.gid);
        libc::setfsuid(caller.uid);
    }
    // Leaving root's fsuid has taken away what filesystems ask for; leaving another's has not given
    // it back.
    let mut sets = capabilities(None)?;
    let back = sets.permitted & OF_FILES;
    if !sets.effective.contains(back) {
        sets.effective |= back;
        set_capabilities(None, sets)?;
    }
    CURRENT.set(Some(wanted));
    Ok(())
}

/// What setfsuid(2) takes away.
const OF_FILES: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::DAC_READ_SEARCH)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::LINUX_IMMUTABLE)
    .union(CapabilitySet::MAC_OVERRIDE)
    .union(CapabilitySet::MKNOD);
