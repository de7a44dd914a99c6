//! Which of root's capabilities stay.

use rustix::fs::{Access, AtFlags, CWD, accessat};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CapabilitySet as Set, capabilities, set_capabilities};

use crate::Needs;

/// Files of others are made, read, changed and given away; extended attributes of all kinds are
/// written. Not `SYS_RESOURCE`, which passes quotas and the blocks that are reserved for root.
const ECRYPTFS: Set = Set::CHOWN
    .union(Set::DAC_OVERRIDE)
    .union(Set::DAC_READ_SEARCH)
    .union(Set::FOWNER)
    .union(Set::FSETID)
    .union(Set::MKNOD)
    .union(Set::SETUID)
    .union(Set::SETGID)
    .union(Set::SETFCAP)
    .union(Set::SYS_ADMIN);

/// ublk's commands are root's; its memory is locked; its threads say that they serve I/O.
const UBLK: Set = Set::SYS_ADMIN.union(Set::IPC_LOCK).union(Set::SYS_RESOURCE);

/// The names of those that may be kept.
const NAMES: [(Set, &str); 14] = [
    (Set::CHOWN, "chown"),
    (Set::DAC_OVERRIDE, "dac_override"),
    (Set::DAC_READ_SEARCH, "dac_read_search"),
    (Set::FOWNER, "fowner"),
    (Set::FSETID, "fsetid"),
    (Set::MKNOD, "mknod"),
    (Set::SETUID, "setuid"),
    (Set::SETGID, "setgid"),
    (Set::SETFCAP, "setfcap"),
    (Set::SYS_ADMIN, "sys_admin"),
    (Set::IPC_LOCK, "ipc_lock"),
    (Set::SYS_RESOURCE, "sys_resource"),
    (Set::SYS_NICE, "sys_nice"),
    (Set::SETPCAP, "setpcap"),
];

/// Those that stay, of those that this thread has.
///
/// # Errors
/// When the system refuses to tell.
pub(crate) fn kept(needs: &Needs) -> rustix::io::Result<Set> {
    let held = capabilities(None)?.permitted;
    let mut kept = Set::empty();
    if needs.tree.is_some() {
        kept |= ECRYPTFS;
        if !needs.devices {
            kept -= Set::MKNOD;
        }
    }
    if needs.ublk.is_some() {
        kept |= UBLK;
    }
    if needs.high_priority {
        kept |= Set::SYS_NICE;
    }
    if held.contains(Set::DAC_OVERRIDE) && !reaches_all(needs)? {
        kept |= Set::DAC_OVERRIDE;
    }
    Ok(held & kept)
}

/// The names of these.
pub(crate) fn names(set: Set) -> Vec<&'static str> {
    NAMES.iter().filter(|(one, _)| set.contains(*one)).map(|(_, name)| *name).collect()
}

/// Whether every image can be opened without passing over modes: root serves another user's files
/// too.
fn reaches_all(needs: &Needs) -> rustix::io::Result<bool> {
    let image = if needs.read_only { Access::READ_OK } else { Access::READ_OK | Access::WRITE_OK };

    // The kernel is asked, since modes are not all: there are ACLs, and file systems with rules of
    // their own.
    let before = capabilities(None)?;
    let mut without = before;
    without.effective = Set::empty();
    set_capabilities(None, without)?;
    let reached = needs
        .images
        .iter()
        .all(|path| matches!(accessat(CWD, path, image, AtFlags::EACCESS), Ok(()) | Err(Errno::NOENT)));
    set_capabilities(None, before)?;
    Ok(reached)
}

/// Rings and keys lock memory, which is not limited for root. So that it stays so without the
/// capability, the limit goes.
pub(crate) fn keep_locking() {
    let may = capabilities(None).is_ok_and(|sets| sets.effective.contains(Set::IPC_LOCK));
    if may {
        let unlimited = Rlimit { current: None, maximum: None };
        let most = getrlimit(Resource::Memlock).maximum;
        // Where even root may not raise it, there is the rest of it.
        let _ = setrlimit(Resource::Memlock, unlimited)
            .or_else(|_| setrlimit(Resource::Memlock, Rlimit { current: most, maximum: most }));
    }
}
