//! The filesystem: eCryptfs over a lower folder, through FUSE.
//!
//! ```text
//!   Mount          mounts, starts the threads, unmounts
//!     |  mount.rs       underseal_fuse::Session: the requested features of the kernel
//!     |  threads.rs     the first thread that fails ends the mount
//!     |
//!   Worker         one thread, one underseal_fuse::Channel: a request in, its reply out
//!     |- inbox.rs       the memory of received requests
//!     |- dispatch.rs    which request is which call
//!     |- slow.rs        requests that may take long, on threads of their own
//!     |- rings.rs       a thread whose requests come through io_uring
//!     v
//!   Fs             the calls: entries.rs (long_names.rs)  attributes.rs  folder.rs (batch.rs)  xattrs.rs  files.rs
//!     |- nodes.rs       what the kernel knows of
//!     |- sizes.rs       how long files were that it has forgotten
//!     |- cached.rs      when the kernel's pages of a file are dropped
//!     |- notifications.rs  which of them the kernel waits for
//!     |- times.rs       whether a lower file's times will show its next change
//!     |- kernel_size.rs the size of a file that the kernel has, and the one that it has not
//!     |- handles.rs     what is open
//!     |- failure_log.rs  what the operator is told
//!     |- identity.rs    on whose behalf files are made
//!     |- caller.rs      whether the caller is being killed
//!     v
//!   file::View, file::OpenFile     names and contents: encrypted, or unchanged
//! ```
//!
//! `script` stands in for the kernel, for fuzzing.
//!
//! Bytes to write are received page-aligned, and are encrypted in place.
//!
//! The kernel checks permissions (`default_permissions`), and keeps pages of plaintext, as for any
//! filesystem. The write-back cache is off: an acknowledged write is in the lower file, and
//! survives this process.
//!
//! Without a [`Sealing`] names and contents are unchanged, to measure the cost of FUSE alone.

mod attributes;
mod batch;
mod cached;
mod caller;
mod dispatch;
mod entries;
mod failure_log;
mod files;
mod folder;
mod handles;
#[expect(unsafe_code, reason = "setfsuid(2), setfsgid(2) and unshare(2)")]
mod identity;
mod inbox;
mod kernel_size;
mod long_names;
mod mount;
mod nodes;
mod notifications;
mod pages;
mod rings;
pub mod script;
mod sizes;
mod slow;
mod threads;
mod times;
mod xattrs;

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use rustix::io::Errno;

pub use crate::file::{Crypto, CryptoPolicy, MountKeys, Sealing};
pub(crate) use mount::raise_descriptor_limit;
pub use mount::{Allow, LowerFolder, Mount, MountConfig, Unmounter, unmount};
use underseal_fuse::FuseChannel;
pub use underseal_fuse::MountEntry;

use crate::file::LowerView;
use crate::proc_path;
use failure_log::FailureLog;
use handles::Handles;
use nodes::Nodes;

/// The length of the longest read or write: the most pages that the kernel puts into one request.
const LARGEST: u32 = 1 << 20;

type Answer<T> = Result<T, Errno>;

/// A mounted folder.
struct Fs {
    nodes: Nodes,
    handles: Handles,
    failure_log: FailureLog,
    view: Arc<LowerView>,
    /// Held while long names are created and removed.
    long_names: Mutex<()>,
    /// Files are made on behalf of the caller.
    root: bool,
    /// Only this user and root have access. (The kernel itself checks a mount for one user, and a
    /// mount for all users.)
    owner: Option<u32>,
    /// Where the kernel is told to drop pages; nothing where a script stands in its place.
    kernel: OnceLock<Arc<FuseChannel>>,
}

impl Fs {
    fn new(lower: OwnedFd, path: &Path, sealing: Option<Sealing>, config: &MountConfig) -> Answer<Self> {
        // Half of the descriptors are the nodes', the other half the open files'.
        let half = mount::descriptors();
        Ok(Self {
            nodes: Nodes::new(lower, path.display().to_string(), half)?,
            handles: Handles::new(half, rustix::process::geteuid().as_raw()),
            failure_log: FailureLog::default(),
            view: Arc::new(LowerView { sealing, size_limit: mount::size_limit() }),
            long_names: Mutex::default(),
            root: identity::is_root(),
            owner: (config.allow == Some(Allow::Root)).then(|| rustix::process::geteuid().as_raw()),
            kernel: OnceLock::new(),
        })
    }
}

/// After a panic of another thread no half-finished state here matters.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn reading<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

fn writing<T>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}
