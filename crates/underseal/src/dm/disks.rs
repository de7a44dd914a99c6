//! ublk disks, as the back end sees them: those of table servers that have ended are stopped, since
//! their users would wait for ever.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use underseal_dm::{Error, Result, UblkDriver};
use underseal_export::{ErrorKind, ublk};

/// The stack of a thread that waits for the end of one server: there are as many as devices.
const STACK: usize = 128 << 10;

/// The kernel's driver.
pub(super) struct Driver;

impl UblkDriver for Driver {
    fn identity(&self, name: &[u8]) -> u64 {
        ublk::identity(name)
    }

    fn has(&self, id: u32, identity: u64) -> bool {
        ublk::exists(id, identity)
    }

    fn stop(&self, id: u32, identity: u64) -> Result<()> {
        ublk::stop_unserved(id, identity).map_err(|e| {
            let errno = if e.kind() == ErrorKind::DeviceInUse { Errno::BUSY } else { Errno::IO };
            Error::new(errno, underseal_error::with_causes(&e).to_string())
        })
    }
}

/// Returns true where table servers can serve ublk disks: the driver changes their sizes (Linux
/// 6.16), and the kernel makes their nodes.
pub(super) fn are_possible() -> bool {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let makes_nodes = mounts.lines().any(|line| line.split(' ').skip(1).take(2).eq(["/dev", "devtmpfs"]));
    makes_nodes && ublk::changes_sizes()
}

/// The disk of one table server.
pub(super) struct ServedDisk {
    id: u32,
    identity: u64,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    /// True while the disk is its server's only.
    is_served: bool,
    /// The stopped disk of a server that was killed. While this is open, the kernel gives its
    /// device number to no other disk: the device's name in /dev/mapper still leads there.
    stopped: Option<File>,
}

impl ServedDisk {
    /// Watches over a disk whose server has the other end of this socket.
    pub(super) fn watch(id: u32, identity: u64, server: OwnedFd) -> Self {
        let state = Arc::new(Mutex::new(State { is_served: true, stopped: None }));
        let watched = state.clone();
        let watch = move || {
            wait_for_end(&server);
            let mut state = lock(&watched);
            if state.is_served {
                log::error!("the server of /dev/ublkb{id} has ended: the disk is stopped");
                if let Err(e) = state.stop(id, identity) {
                    log::error!("{e}");
                }
            }
        };
        let begun = thread::Builder::new().name("watches".into()).stack_size(STACK).spawn(watch);
        if let Err(e) = begun {
            log::error!("no thread to watch over the server of /dev/ublkb{id}: {e}");
        }
        Self { id, identity, state }
    }

    /// Returns the disk's number and its identity.
    pub(super) fn is(&self) -> (u32, u64) {
        (self.id, self.identity)
    }

    /// Leaves the disk to another server, or to none: its server ends without harm.
    pub(super) fn let_go(&self) {
        lock(&self.state).is_served = false;
    }

    /// Stops the disk, whose server has ended. Fails with `EBUSY` while a process serves the disk.
    pub(super) fn stop(&self) -> Result<()> {
        lock(&self.state).stop(self.id, self.identity)
    }
}

impl State {
    fn stop(&mut self, id: u32, identity: u64) -> Result<()> {
        self.is_served = false;
        let path = PathBuf::from(format!("/dev/ublkb{id}"));
        let opened = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(&path);
        if self.stopped.is_none() {
            self.stopped = opened.inspect_err(|e| log::debug!("{}: {e}", path.display())).ok();
        }
        Driver.stop(id, identity)
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits until a socket's other end is closed.
fn wait_for_end(socket: &OwnedFd) {
    loop {
        let mut polled = [PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::empty())];
        match poll(&mut polled, None) {
            Err(Errno::INTR) => {}
            Ok(_) if !polled[0].revents().intersects(PollFlags::HUP | PollFlags::ERR) => {}
            _ => return,
        }
    }
}
