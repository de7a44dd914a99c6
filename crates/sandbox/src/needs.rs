//! What a server needs once all is open.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

/// What a server needs once all is open. The default is the least: a file or block device over
/// sockets that are there.
///
/// Files that are removed later, the log file, and lower servers are none of it: the
/// [helper](crate::Helper) sees to them.
#[derive(Debug, Clone, Default)]
pub struct Needs {
    /// Files that are opened again: an image, by each client's queue.
    pub images: Vec<PathBuf>,
    /// Images are opened for reading only.
    pub read_only: bool,
    /// TLS: the folder whose files are read again when an operator has changed them.
    pub certificates: Option<PathBuf>,
    /// The image is on a Ceph cluster: its library has threads of its own, and connects to
    /// whichever machine has the data.
    pub cluster: bool,
    /// The volume is a block device of the kernel's: this one.
    pub ublk: Option<PathBuf>,
    /// The volume is a virtual machine's disk.
    pub vhost_user: bool,
    /// Another process may take the volume over, or it was taken over.
    pub hand_over: bool,
    /// Workers run before others.
    pub high_priority: bool,
    /// Headers are locked in this folder, under names that are made and removed.
    pub locks: Option<PathBuf>,
    /// eCryptfs: the folder with the encrypted files.
    pub tree: Option<PathBuf>,
    /// Device nodes are made in that folder, and opened there.
    pub devices: bool,
    /// The folder that all paths begin in from then on; the paths above are those of before.
    pub root: Option<Arc<OwnedFd>>,
    /// io_uring: which rings are made later.
    pub rings: Rings,
}

/// Which rings (io_uring) a server makes once it is in its sandbox.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Rings {
    /// None: the system calls for rings fail.
    #[default]
    None,
    /// The server makes no rings and uses those that it has.
    There,
    /// Those that the [helper](crate::Helper) makes, with restrictions.
    OfHelper,
    /// Any: the kernel, before 5.10, restricts none.
    Any,
}
