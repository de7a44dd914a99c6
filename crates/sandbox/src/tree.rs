//! A folder as a separate mount, and a root folder that contains only /proc.
//!
//! ```text
//!   the tree   a copy of the folder's mounts, attached nowhere: `..` ends at its root, and device
//!              nodes in it cannot be opened
//!   the root   a read-only tmpfs, attached nowhere, with a copy of /proc in it: the root of all
//!              paths of the process
//! ```
//! Landlock restricts files, not mounts, and neither modes nor owners. In a process without
//! descriptors of other folders than these two, no path leads anywhere else.

use std::io;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::thread;

use rustix::fs::{CWD, Mode, mkdirat};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags,
    fsconfig_create, fsmount, fsopen, mount_change, move_mount, open_tree,
};
use rustix::thread::{UnshareFlags, unshare_unsafe};

/// A folder and a root, both attached nowhere. Closing their descriptors removes them.
#[derive(Debug)]
pub struct OwnTree {
    /// The folder (`O_PATH`).
    pub tree: OwnedFd,
    /// The root folder, for [`Needs::root`](crate::Needs::root).
    pub root: OwnedFd,
}

impl OwnTree {
    /// Copies the mounts of an open folder. With `devices`, its device nodes can be opened.
    ///
    /// # Errors
    /// `EPERM` without root's `CAP_SYS_ADMIN`; `ENOSYS` before Linux 5.12; other errors of the
    /// system.
    pub fn of(folder: impl AsFd, devices: bool) -> io::Result<Self> {
        let tree = open_tree(folder, "", COPY | OpenTreeFlags::AT_EMPTY_PATH)?;
        let attributes = if devices { MountAttrFlags::empty() } else { MountAttrFlags::MOUNT_ATTR_NODEV };
        set(&tree, attributes, OpenTreeFlags::AT_RECURSIVE)?;
        // In a thread's own namespace, which ends with the thread.
        let root = thread::Builder::new().name("root".into()).spawn(root)?;
        let root = root.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        Ok(Self { tree, root })
    }
}

const COPY: OpenTreeFlags =
    OpenTreeFlags::OPEN_TREE_CLONE.union(OpenTreeFlags::OPEN_TREE_CLOEXEC).union(OpenTreeFlags::AT_RECURSIVE);

fn root() -> io::Result<OwnedFd> {
    // SAFETY: this thread does nothing that relies on sharing folders and mounts with other
    // threads.
    unsafe { unshare_unsafe(UnshareFlags::FS | UnshareFlags::NEWNS)? };
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    let proc = open_tree(CWD, "/proc", COPY)?;
    let tmpfs = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&tmpfs)?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    let root = fsmount(&tmpfs, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?;
    mkdirat(&root, "proc", Mode::from_raw_mode(0o555))?;
    // Only an attached mount accepts another mount (before Linux 6.15); the folder does not matter.
    let whole = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    move_mount(&root, "", CWD, "/proc", whole)?;
    move_mount(&proc, "", &root, "proc", whole)?;
    let copy = open_tree(&root, "", COPY | OpenTreeFlags::AT_EMPTY_PATH)?;
    set(&copy, MountAttrFlags::MOUNT_ATTR_RDONLY | attributes, OpenTreeFlags::AT_RECURSIVE)?;
    Ok(copy)
}

/// Sets attributes of a mount, or of all below it, and keeps later mounts elsewhere out of it
/// (mount_setattr(2), which rustix does not offer).
fn set(mount: impl AsFd, attributes: MountAttrFlags, flags: OpenTreeFlags) -> io::Result<()> {
    let change = libc::mount_attr {
        attr_set: attributes.bits().into(),
        attr_clr: 0,
        propagation: libc::MS_PRIVATE,
        userns_fd: 0,
    };
    let flags = flags | OpenTreeFlags::AT_EMPTY_PATH;
    // SAFETY: the kernel reads the empty path, and the structure of that size.
    let done = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_fd().as_raw_fd(),
            c"".as_ptr(),
            flags.bits(),
            &raw const change,
            size_of::<libc::mount_attr>(),
        )
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
