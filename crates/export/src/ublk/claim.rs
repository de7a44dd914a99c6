//! The choice of the device for a volume.
//!
//! ```text
//!   the requested number, or the one that /dev/underseal/NAME leads to
//!     no such device                 make it
//!     its server is alive            in use
//!     its server was killed          recover it, if it is this volume's
//!     it was stopped, not deleted    delete it, if it is this volume's, and make it again
//! ```

use std::io;
use std::thread;
use std::time::{Duration, Instant};

use super::abi as sys;
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};

use super::control::ControlDevice;
use super::{UblkConfig, abandoned, character, link, params};
use crate::{Error, ErrorKind, Result};

/// How long the kernel may take to notice that a server was killed.
const SEEN_OFF: Duration = Duration::from_secs(60);

/// A device that belongs to this server and is not started yet.
pub(super) struct Claimed {
    pub(super) info: sys::ublksrv_ctrl_dev_info,
    /// True when the device is recovered from another server.
    pub(super) recovered: bool,
}

/// Claims a device for a volume with these parameters. Fails with `DeviceInUse` when another server
/// or another volume has the device; with `Ublk` when the kernel refuses.
pub(super) fn claim(
    control: &mut ControlDevice,
    config: &UblkConfig,
    params: &sys::ublk_params,
) -> Result<Claimed> {
    let params = &params::for_config(*params, config);
    let wanted = config.id.or_else(|| if config.unprivileged { None } else { link::lookup(&config.name) });
    if let Some(id) = wanted {
        match control.info(id) {
            Ok(info) if config.id.is_some() || info.ublksrv_flags == config.identity => {
                if let Some(claimed) = take_over(control, config, info, params)? {
                    return Ok(claimed);
                }
            }
            // The link led to a device that belongs to another volume by now.
            Ok(_) => {}
            Err(e) if Errno::from_io_error(&e) == Some(Errno::NODEV) => {}
            Err(e) => return Err(refused(format!("device {id} cannot be looked at"), e)),
        }
    }
    add(control, config, params)
}

/// Claims an existing device; returns `None` when it is deleted instead.
fn take_over(
    control: &mut ControlDevice,
    config: &UblkConfig,
    info: sys::ublksrv_ctrl_dev_info,
    params: &sys::ublk_params,
) -> Result<Option<Claimed>> {
    let id = info.dev_id;
    let in_use = |why: String| Err(Error::new(ErrorKind::DeviceInUse, format!("/dev/ublkb{id} {why}")));
    match u32::from(info.state) {
        sys::UBLK_S_DEV_LIVE if has_server(&info) => {
            in_use(format!("is in use: process {} serves it", info.ublksrv_pid))
        }
        _ if info.ublksrv_flags != config.identity => {
            in_use("was made for another volume, or by another program".into())
        }
        sys::UBLK_S_DEV_DEAD => {
            control
                .delete(id, &|| false)
                .map_err(|e| refused(format!("device {id} cannot be deleted"), e))?;
            Ok(None)
        }
        _ => {
            let was =
                control.params(id).map_err(|e| refused(format!("device {id} cannot be looked at"), e))?;
            if let Some(difference) = params::difference(&was, params) {
                return in_use(format!("waits for its volume as it was: {difference}"));
            }
            recover(control, id, Before::Unknown, Instant::now() + SEEN_OFF)?;
            let info =
                control.info(id).map_err(|e| refused(format!("device {id} cannot be looked at"), e))?;
            Ok(Some(Claimed { info, recovered: true }))
        }
    }
}

/// Returns true when the process lives that the driver knows as a device's server.
pub(super) fn has_server(info: &sys::ublksrv_ctrl_dev_info) -> bool {
    // Linux from 6.15 on says -1 of a device without a server.
    let server = Some(info.ublksrv_pid).filter(|pid| *pid > 0).and_then(Pid::from_raw);
    server.is_some_and(|pid| test_kill_process(pid) != Err(Errno::SRCH))
}

/// The known history of a device that is to be recovered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Before {
    /// A server had all its queues until just now.
    Served,
    /// A process may have begun to recover the device.
    Unknown,
}

/// Starts the recovery of a device whose server has ended. Fails with `Ublk` when the server has
/// not ended by `until`, or the kernel refuses.
pub(super) fn recover(control: &mut ControlDevice, id: u32, before: Before, until: Instant) -> Result<()> {
    let (started, mut pause) = (Instant::now(), Duration::from_millis(1));
    // No other process has begun to recover a device that is still live.
    if before == Before::Unknown
        && abandoned::are_left_behind()
        && let Some(info) = waiting(control, id)
    {
        abandoned::give_tasks(&info, until)
            .map_err(|e| refused(format!("{} cannot be taken over", character::path(id)), e))?;
    }
    loop {
        match control.begin_recovery(id) {
            Ok(()) => return Ok(()),
            Err(e) if Errno::from_io_error(&e) == Some(Errno::BUSY) && Instant::now() < until => {
                thread::sleep(pause);
                if started.elapsed() > Duration::from_secs(1) {
                    pause = Duration::from_millis(20);
                }
            }
            // Before Linux 6.16: a process started the recovery, and ended before it had a queue.
            Err(e) if Errno::from_io_error(&e) == Some(Errno::INVAL) && waiting(control, id).is_some() => {
                return Ok(());
            }
            Err(e) => return Err(refused(format!("/dev/ublkb{id} cannot be taken over"), e)),
        }
    }
}

/// Returns the state of a device that waits for a server.
fn waiting(control: &mut ControlDevice, id: u32) -> Option<sys::ublksrv_ctrl_dev_info> {
    control.info(id).ok().filter(|info| {
        u32::from(info.state) == sys::UBLK_S_DEV_QUIESCED
            && info.flags & u64::from(sys::UBLK_F_USER_RECOVERY) != 0
    })
}

fn add(control: &mut ControlDevice, config: &UblkConfig, params: &sys::ublk_params) -> Result<Claimed> {
    let flags = if config.unprivileged {
        sys::UBLK_F_CMD_IOCTL_ENCODE | sys::UBLK_F_UNPRIVILEGED_DEV
    } else {
        sys::UBLK_F_CMD_IOCTL_ENCODE
            | sys::UBLK_F_USER_COPY
            | sys::UBLK_F_USER_RECOVERY
            | sys::UBLK_F_USER_RECOVERY_REISSUE
    };
    let zoned = params.types & sys::UBLK_PARAM_TYPE_ZONED != 0;
    let mut info = sys::ublksrv_ctrl_dev_info {
        // Appends to a zone are written in the order of their allotted offsets: by one thread.
        nr_hw_queues: if zoned { 1 } else { config.queues },
        queue_depth: config.depth,
        max_io_buf_bytes: params::LONGEST,
        // A number of all ones lets the kernel choose.
        dev_id: config.id.unwrap_or(u32::MAX),
        flags: (flags | if zoned { sys::UBLK_F_ZONED } else { 0 }).into(),
        ublksrv_flags: config.identity,
        ..Default::default()
    };
    control.add(&mut info).map_err(|e| match (Errno::from_io_error(&e), config.id) {
        (Some(Errno::EXIST), Some(id)) => {
            Error::new(ErrorKind::DeviceInUse, format!("/dev/ublkb{id} is in use by another server"))
        }
        (Some(Errno::PERM | Errno::ACCESS), _) => {
            Error::new(ErrorKind::Forbidden, "this user may not make block devices").with_source(e)
        }
        _ => refused("the kernel made no device".into(), e),
    })?;
    if let Err(e) = describe(control, config, info.dev_id, params) {
        let _ = control.delete(info.dev_id, &|| false);
        return Err(refused("the kernel takes no such disk".into(), e));
    }
    Ok(Claimed { info, recovered: false })
}

/// Describes a new disk. A user's device belongs to the user once a udev rule has changed its
/// node's owner.
fn describe(
    control: &mut ControlDevice,
    config: &UblkConfig,
    id: u32,
    params: &sys::ublk_params,
) -> io::Result<()> {
    let started = Instant::now();
    loop {
        match control.set_params(id, *params) {
            Err(e)
                if config.unprivileged
                    && matches!(Errno::from_io_error(&e), Some(Errno::ACCESS | Errno::NOENT))
                    && started.elapsed() < character::APPEARS =>
            {
                thread::sleep(Duration::from_millis(20));
            }
            described => return described,
        }
    }
}

/// Makes the error for a command that the kernel refused.
pub(super) fn refused(what: String, e: io::Error) -> Error {
    Error::new(ErrorKind::Ublk, what).with_source(e)
}
