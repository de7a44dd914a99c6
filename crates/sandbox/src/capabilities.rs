//! The capabilities of root that a server keeps.

use rustix::fs::{Access, AtFlags, CWD, accessat};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CapabilitySet as Set, capabilities, set_capabilities};

use crate::Needs;

/// For access to files of all users and changes of their owners and modes, and for extended
/// attributes of all kinds. Without `SYS_RESOURCE`, which exceeds quotas and uses root's reserved
/// blocks.
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

/// For ublk's commands, which are root's, its locked memory, and its threads' I/O flag.
const UBLK: Set = Set::SYS_ADMIN.union(Set::IPC_LOCK).union(Set::SYS_RESOURCE);

/// The names of the capabilities that may be kept.
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

/// The subset of this thread's capabilities that stays.
///
/// Returns an error when the system refuses to read the thread's capabilities.
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

/// Returns the names of capabilities.
pub(crate) fn names(set: Set) -> Vec<&'static str> {
    NAMES.iter().filter(|(one, _)| set.contains(*one)).map(|(_, name)| *name).collect()
}

/// Returns true when every image can be opened according to its modes: root also serves other
/// users' files.
fn reaches_all(needs: &Needs) -> rustix::io::Result<bool> {
    let image = if needs.read_only { Access::READ_OK } else { Access::READ_OK | Access::WRITE_OK };

    // The kernel checks it, since modes are not everything: file systems have ACLs and rules of
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

/// Raises the limit of locked memory: rings and keys lock memory, which root may do without a limit
/// only with the capability.
pub(crate) fn keep_locking() {
    let may = capabilities(None).is_ok_and(|sets| sets.effective.contains(Set::IPC_LOCK));
    if may {
        let unlimited = Rlimit { current: None, maximum: None };
        let most = getrlimit(Resource::Memlock).maximum;
        // If even root may not raise it, the present maximum is used.
        let _ = setrlimit(Resource::Memlock, unlimited)
            .or_else(|_| setrlimit(Resource::Memlock, Rlimit { current: most, maximum: most }));
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::sync::Arc;

    use super::*;

    #[test]
    fn the_capabilities_that_stay_are_those_of_the_exports() {
        let held = capabilities(None).unwrap().permitted;
        let tree = || Some(Arc::new(File::open("/").unwrap().into()));
        let of_tree = held & (ECRYPTFS - Set::MKNOD);
        for (needs, kept_of_them) in [
            (Needs::default(), Set::empty()),
            (Needs { tree: tree(), ..Needs::default() }, of_tree),
            (Needs { tree: tree(), devices: true, ..Needs::default() }, held & ECRYPTFS),
            (Needs { tree: tree(), high_priority: true, ..Needs::default() }, of_tree | held & Set::SYS_NICE),
            (Needs { ublk: Some("/dev/ublkb0".into()), ..Needs::default() }, held & UBLK),
        ] {
            assert_eq!(kept(&needs).unwrap(), kept_of_them, "{needs:?}");
        }
        assert!(ECRYPTFS.contains(Set::MKNOD) && !of_tree.contains(Set::MKNOD));
    }
}
