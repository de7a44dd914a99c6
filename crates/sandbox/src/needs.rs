//! The needs of a server after everything is open.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

/// The needs of a server after everything is open. The default is the least: a file or block device
/// over existing sockets.
///
/// Files that are removed later, the log file, and lower servers are not included: the
/// [helper](crate::Helper) handles them.
#[derive(Debug, Clone, Default)]
pub struct Needs {
    /// Files that are opened again: an image, by each client's queue.
    pub images: Vec<PathBuf>,
    /// Images are opened for reading only.
    pub read_only: bool,
    /// The folder of TLS files, which are read again when an operator has changed them.
    pub certificates: Option<PathBuf>,
    /// Whether the image is on a Ceph cluster: Ceph's library has its own threads, and connects to
    /// any machine that has the data.
    pub cluster: bool,
    /// The volume's block device under ublk.
    pub ublk: Option<PathBuf>,
    /// The volume is a virtual machine's disk.
    pub vhost_user: bool,
    /// Another process may take the volume in a handover, or this process has taken it.
    pub hand_over: bool,
    /// Workers run at a high priority.
    pub high_priority: bool,
    /// Headers are locked in this folder, under names that are created and removed.
    pub locks: Option<PathBuf>,
    /// eCryptfs: the folder with the encrypted files. Its path may lead to the mount by now.
    pub tree: Option<Arc<OwnedFd>>,
    /// Device nodes are created in that folder, and opened there.
    pub devices: bool,
    /// The folder that becomes the root of all paths; the paths above are relative to the old root.
    pub root: Option<Arc<OwnedFd>>,
    /// io_uring: the rings that are made later.
    pub rings: Rings,
}

/// The rings (io_uring) that a server makes once it is in its sandbox.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Rings {
    /// The server makes no rings: the system calls for rings fail.
    #[default]
    None,
    /// The server makes no new rings and uses its existing ones.
    There,
    /// The server uses rings that the [helper](crate::Helper) makes, with restrictions.
    OfHelper,
    /// The server makes rings without restrictions: Linux before 5.10 restricts none.
    Any,
}
