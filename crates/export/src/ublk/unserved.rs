//! Devices whose servers have ended, for the process that has started these.

use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::abi as sys;
use super::claim::{has_server, refused};
use super::control::ControlDevice;
use crate::{Error, ErrorKind, Result};

/// How long the kernel may take to see a server off, to stop a device, and to delete it.
const SEEN_OFF: Duration = Duration::from_secs(10);
const STOPPED: Duration = Duration::from_secs(10);
const DELETED: Duration = Duration::from_secs(1);
/// How often the device is looked at meanwhile.
const LOOK: Duration = Duration::from_millis(20);

/// Returns true when the driver can be used, and can change a device's size (Linux 6.16).
pub fn changes_sizes() -> bool {
    let features = ControlDevice::open(false).ok().and_then(|mut control| control.features().ok());
    let needed = u64::from(
        sys::UBLK_F_UPDATE_SIZE
            | sys::UBLK_F_USER_COPY
            | sys::UBLK_F_CMD_IOCTL_ENCODE
            | sys::UBLK_F_USER_RECOVERY
            | sys::UBLK_F_USER_RECOVERY_REISSUE,
    );
    features.is_some_and(|features| features & needed == needed)
}

/// Returns true when there is a device of this number and identity, stopped or not.
pub fn exists(id: u32, identity: u64) -> bool {
    ControlDevice::open(false)
        .is_ok_and(|mut control| control.info(id).is_ok_and(|info| info.ublksrv_flags == identity))
}

/// Stops and deletes a device whose server has ended, if there is one of this number and identity.
/// Its users get errors.
///
/// # Errors
/// `DeviceInUse` while a process serves it; `Ublk` when the kernel refuses.
pub fn stop_unserved(id: u32, identity: u64) -> Result<()> {
    let mut control = ControlDevice::open(false)?;
    let since = Instant::now();
    loop {
        let info = match control.info(id) {
            Err(e) if Errno::from_io_error(&e) == Some(Errno::NODEV) => return Ok(()),
            info => info.map_err(|e| refused(format!("device {id} cannot be looked at"), e))?,
        };
        if info.ublksrv_flags != identity {
            return Ok(());
        }
        if u32::from(info.state) != sys::UBLK_S_DEV_LIVE {
            break;
        }
        if since.elapsed() > SEEN_OFF {
            if has_server(&info) {
                let why = format!("/dev/ublkb{id} is served by process {}", info.ublksrv_pid);
                return Err(Error::new(ErrorKind::DeviceInUse, why));
            }
            break;
        }
        thread::sleep(LOOK);
    }
    let since = Instant::now();
    control
        .stop(id, &|| since.elapsed() > STOPPED)
        .map_err(|e| refused(format!("/dev/ublkb{id} cannot be stopped"), e))?;
    let since = Instant::now();
    match control.delete(id, &|| since.elapsed() > DELETED) {
        // The last user that closes it deletes it.
        Err(e) if Errno::from_io_error(&e) == Some(Errno::CANCELED) => Ok(()),
        Err(e) if Errno::from_io_error(&e) == Some(Errno::NODEV) => Ok(()),
        deleted => deleted.map_err(|e| refused(format!("/dev/ublkb{id} cannot be deleted"), e)),
    }
}
