//! What a server needs once all is open.

use std::path::PathBuf;

/// What a server needs once all is open. The default is the least: a file or block device over sockets that are there.
#[derive(Debug, Clone, Default)]
pub struct Needs {
    /// Files that are opened again: an image, by each client's queue.
    pub images: Vec<PathBuf>,
    /// Images are opened for reading only.
    pub read_only: bool,
    /// Sockets and the like, which are removed at the end.
    pub removed: Vec<PathBuf>,
    /// It is removed too, once its contents were looked at.
    pub pid_file: Option<PathBuf>,
    /// It is made and opened anew when whoever rotates logs says so.
    pub log_file: Option<PathBuf>,
    /// TLS: the folder whose files are read again when an operator has changed them.
    pub certificates: Option<PathBuf>,
    /// Lower servers that are connected to again.
    pub servers: Vec<Server>,
    /// The image is on a Ceph cluster: its library has threads of its own, and connects to whichever machine has the data.
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
}

/// Where a lower server is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Server {
    /// A Unix socket.
    Unix(PathBuf),
    /// A port, of addresses that were looked up already.
    Tcp(u16),
}
