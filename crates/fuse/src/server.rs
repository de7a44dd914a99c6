//! The server of a mount, as far as the mount tells of it.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use rustix::fs::fstatfs;
use rustix::io::Errno;

/// The state of a mount's server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MountServer {
    /// The server answers, or the mount has none.
    Alive,
    /// The server has ended, and every request to the mount fails.
    Ended,
}

/// How long a server may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);

impl MountServer {
    /// Asks the server of a mount, by a descriptor of the mount.
    ///
    /// Fails with `TimedOut` when there is no answer.
    pub(crate) fn of(mount: &OwnedFd) -> io::Result<Self> {
        let mount = mount.try_clone()?;
        let (sender, answer) = mpsc::channel();
        // A request to a server that hangs ends with this process.
        let asking = thread::Builder::new().name("asks-mount".into()).spawn(move || {
            // `statfs` always asks the server; the kernel may still cache attributes of a server
            // that has ended.
            let asked = fstatfs(&mount).map(drop);
            drop(mount);
            let _ = sender.send(asked);
        })?;
        let silent = || io::Error::new(io::ErrorKind::TimedOut, "the server of the mount does not answer");
        let answer = answer.recv_timeout(PATIENCE).map_err(|_| silent())?;
        let _ = asking.join();
        Ok(if answer == Err(Errno::NOTCONN) { Self::Ended } else { Self::Alive })
    }
}
