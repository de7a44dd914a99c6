//! The owner of new files: root's mount acts as the caller.
//!
//! A thread changes to its caller's fsuid, fsgid and umask before it creates a file, so the lower
//! filesystem gives the file to the right owner, with the group of a set-group-id folder and its
//! default ACL, in one step. The kernel has already checked the caller's permissions
//! (`default_permissions`), so the thread keeps its capabilities, but in sticky folders. It need
//! not change back: an identity matters only for a new file.

use std::cell::Cell;
use std::io;

use rustix::fs::Mode;
use rustix::thread::{CapabilitySet, UnshareFlags, capabilities, set_capabilities};
use underseal_fuse::wire::InHeader;

thread_local! {
    static CURRENT: Cell<Option<(u32, u32)>> = const { Cell::new(None) };
}

/// Returns true when this process can change to callers' identities.
pub(super) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Gives this thread a umask of its own, and moves it away from the program's working directory,
/// which can then be unmounted. Changes of directory in other threads no longer affect this thread.
///
/// Fails when the system refuses.
pub(super) fn detach() -> io::Result<()> {
    // SAFETY: only the umask, the root and the working directory are no longer shared with the
    // other threads, and no code here relies on sharing them: paths of a mount are absolute, or
    // relative to descriptors.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::FS)? };
    rustix::process::chdir("/")?;
    // The starting thread may have had a caller's identity, so this thread's identity is unknown.
    CURRENT.set(None);
    Ok(())
}

/// Creates files as the caller from now on, with this umask.
///
/// Fails when the system refuses.
pub(super) fn assume(root: bool, caller: &InHeader, umask: u32) -> io::Result<()> {
    rustix::process::umask(Mode::from_raw_mode(umask & 0o777));
    let wanted = (caller.uid, caller.gid);
    if !root || CURRENT.get() == Some(wanted) {
        return Ok(());
    }
    CURRENT.set(None);
    // SAFETY: these calls change only this thread's identity for files, and access no memory.
    unsafe {
        libc::setfsgid(caller.gid);
        libc::setfsuid(caller.uid);
    }
    // A change from root's fsuid removes the capabilities for files; a change back does not restore
    // them.
    let mut sets = capabilities(None)?;
    let back = sets.permitted & OF_FILES;
    if !sets.effective.contains(back) {
        sets.effective |= back;
        set_capabilities(None, sets)?;
    }
    CURRENT.set(Some(wanted));
    Ok(())
}

/// Exists while this thread may take names in sticky folders only as its caller may.
pub(super) struct OwnFiles(());

/// Removes the right to other users' files until the result is dropped.
///
/// Fails when the system refuses.
pub(super) fn only_own_files() -> io::Result<OwnFiles> {
    let mut sets = capabilities(None)?;
    sets.effective -= CapabilitySet::FOWNER;
    set_capabilities(None, sets)?;
    Ok(OwnFiles(()))
}

impl Drop for OwnFiles {
    fn drop(&mut self) {
        let back = capabilities(None).and_then(|mut sets| {
            sets.effective |= sets.permitted & CapabilitySet::FOWNER;
            set_capabilities(None, sets)
        });
        if back.is_err() {
            // The next caller's identity brings it back.
            CURRENT.set(None);
        }
    }
}

/// The capabilities that setfsuid(2) removes.
const OF_FILES: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::DAC_READ_SEARCH)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::LINUX_IMMUTABLE)
    .union(CapabilitySet::MAC_OVERRIDE)
    .union(CapabilitySet::MKNOD);
