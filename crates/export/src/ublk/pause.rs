//! The release of a device during a handover, and its resume in this process or another one.
//!
//! ```text
//!   Serves  -- let_go -->  LetGo  -- recover -->  Recovered  -- go_on -->  Serves
//!                            the queues' threads     they fetch again,
//!                            are gone                 and begin nothing
//! ```
//!
//! The old server releases the device, and resumes it if the new server does not take it; the new
//! server begins with a released device. Requests that the driver has handed out and got no answer
//! for are handed out again, to the server that resumes. The disk and its users stay; they wait.

use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::abi as sys;
use rustix::io::Errno;

use super::claim::{self, Before, refused};
use super::control::ControlDevice;
use super::queues::Queues;
use super::server::{At, Device, Message, Shared};
use super::{UblkConfig, UblkPlace, UblkServer, UblkStopper, character, locking, params};
use crate::{Error, ErrorKind, Result};

/// How often the state of the queues is read while the kernel removes them.
const LOOK: Duration = Duration::from_millis(1);
/// How long recovery is retried for a device that another process has.
const TRIES: Duration = Duration::from_secs(1);
/// How long the resume of a device may take.
const GOING_ON: Duration = Duration::from_secs(10);

/// Changes by other programs to a device without a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Gone {
    /// The device is deleted: its number may belong to another device by now.
    Deleted,
    Stopped,
}

impl fmt::Display for Gone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Gone::Deleted => "was deleted",
            Gone::Stopped => "was stopped",
        })
    }
}

/// The means to release a device, and to resume it.
#[derive(Clone)]
pub struct UblkHolder {
    stopper: UblkStopper,
    shared: Arc<Shared>,
}

impl UblkServer {
    /// Returns the means to release the device. The device of an old server is released until
    /// [`UblkHolder::go_on`].
    pub fn holder(&self) -> UblkHolder {
        UblkHolder { stopper: self.stopper(), shared: self.shared().clone() }
    }
}

impl UblkHolder {
    /// Returns true when the device is deleted.
    pub fn is_gone(&self) -> bool {
        self.shared.is_gone.load(Ordering::SeqCst)
    }

    /// Returns the device, for the new server of a handover.
    ///
    /// # Errors
    /// The reason why no other process can resume the device.
    pub fn place(&self) -> std::result::Result<UblkPlace, String> {
        match &self.shared.stays_not {
            Some(why) => Err((*why).to_owned()),
            None => Ok(self.shared.place.clone()),
        }
    }

    /// Releases the device of a suspended volume.
    ///
    /// # Errors
    /// `Drain` when the release takes longer; `Ublk` when the kernel refuses. The device is resumed
    /// by [`go_on`](Self::go_on).
    pub fn let_go(&self, until: Instant) -> Result<()> {
        self.ask(|answer| Message::LetGo(until, answer), until)
    }

    /// Does all steps of [`go_on`](Self::go_on) that can fail. The kernel hands out no request yet.
    ///
    /// # Errors
    /// `Ublk` when the kernel refuses, or another process has the device; `Drain`, `Io`.
    pub fn recover(&self, until: Instant) -> Result<()> {
        self.ask(|answer| Message::Recover(until, answer), until)
    }

    /// Stops and deletes the device, and waits for that.
    ///
    /// # Errors
    /// `DeviceInUse` when a program has claimed it: it is served on. `Ublk` when the kernel
    /// refuses.
    pub fn close(&self, until: Instant) -> Result<()> {
        match self.ask(Message::Close, until) {
            Err(_) if self.is_gone() => Ok(()),
            closed => closed,
        }
    }

    /// Resumes the device in this process.
    pub fn go_on(&self) {
        let until = Instant::now() + GOING_ON;
        if let Err(e) = self.ask(Message::GoOn, until)
            && !self.is_gone()
        {
            let disk = character::disk(self.shared.place.id);
            log::error!("{} does not go on yet: {}", disk.display(), underseal_error::with_causes(&e));
        }
    }

    /// Sends the device's thread a message, and waits for the answer.
    fn ask(&self, message: impl FnOnce(Sender<Result<()>>) -> Message, until: Instant) -> Result<()> {
        let (answer, answered) = mpsc::channel();
        let sent = self.stopper.0.lock().unwrap_or_else(PoisonError::into_inner).send(message(answer));
        let gone = || Err(late("its block device is gone"));
        if sent.is_err() {
            return gone();
        }
        // The thread checks the time itself, and may be a little late.
        let left = until.saturating_duration_since(Instant::now()) + Duration::from_millis(100);
        answered.recv_timeout(left).unwrap_or_else(|e| match e {
            mpsc::RecvTimeoutError::Timeout => Err(late("its block device takes long")),
            mpsc::RecvTimeoutError::Disconnected => gone(),
        })
    }
}

impl fmt::Debug for UblkHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("UblkHolder").field(&self.shared.place).finish()
    }
}

impl Device {
    /// Prepares the device of an old server: everything that is possible before the release.
    pub(super) fn take_over(
        mapping: Arc<underseal_datapath::Mapping>,
        place: &UblkPlace,
        served_by: Option<i32>,
        sender: Sender<Message>,
    ) -> Result<Self> {
        let id = place.id;
        let config = UblkConfig {
            id: Some(id),
            queues: 0,
            depth: 0,
            name: place.name.clone(),
            identity: place.identity,
            unprivileged: false,
            drain_timeout: UblkConfig::DRAINS,
            for_tables: place.for_tables,
            read_only: false,
        };
        let mut control = ControlDevice::open(false)?;
        let unknown = |e| refused(format!("device {id} cannot be looked at"), e);
        let info = control.info(id).map_err(unknown)?;
        let was = control.params(id).map_err(unknown)?;
        let is = params::of(&mapping)?;
        let another = another_server(&info, place, served_by)
            .or_else(|| params::another_disk(&was, &is, place.for_tables));
        if let Some(why) = another {
            let context = format!("/dev/ublkb{id} cannot be taken over: {why}");
            return Err(Error::new(ErrorKind::DeviceInUse, context));
        }
        if let Some(why) = stays_not(&info, &config) {
            return Err(Error::new(ErrorKind::Unsupported, why));
        }
        locking::stay_in_memory(&config);
        let queues = Queues::prepare(&mapping, &info, false, &sender)?;
        locking::lock_as_touched(&config);
        let link = place.linked.then(|| super::link::Link::of(&place.name, id));
        Ok(Self {
            mapping,
            control,
            info,
            config,
            sender,
            queues: Some(queues),
            file: None,
            link,
            at: At::LetGo,
        })
    }

    /// Ends the queues' threads, and waits until the kernel has removed the queues.
    pub(super) fn let_go(&mut self, until: Instant) -> Result<()> {
        if self.at == At::LetGo {
            return Ok(());
        }
        self.at = At::LetGo;
        self.queues.take().into_iter().for_each(|queues| queues.let_go(&self.mapping));
        self.file = None;
        let id = self.info.dev_id;
        loop {
            let info =
                self.control.info(id).map_err(|e| refused(format!("device {id} cannot be looked at"), e))?;
            if u32::from(info.state) != sys::UBLK_S_DEV_LIVE {
                return Ok(());
            }
            if Instant::now() >= until {
                return Err(late("the kernel does not see its block device's server off in time"));
            }
            thread::sleep(LOOK);
        }
    }

    /// Lets the queues' threads of a released device fetch.
    pub(super) fn recover(&mut self, before: Before, until: Instant) -> Result<()> {
        if self.at != At::LetGo {
            return Ok(());
        }
        let mut queues = match self.queues.take() {
            Some(queues) => queues,
            None => {
                locking::lock_as_mapped(&self.config);
                let queues = Queues::prepare(&self.mapping, &self.info, false, &self.sender);
                locking::lock_as_touched(&self.config);
                queues?
            }
        };
        let id = self.info.dev_id;
        if let Some(gone) = self.gone() {
            let context = format!("{} {gone} by another program", character::disk(id).display());
            self.queues = Some(queues);
            return Err(Error::new(ErrorKind::Ublk, context));
        }
        let opened = claim::recover(&mut self.control, id, before, until).and_then(|()| {
            character::open(id, until)
                .map_err(|e| refused(format!("{} cannot be opened", character::path(id)), e))
        });
        let file = match opened {
            Ok(file) => Arc::new(file),
            Err(e) => {
                // The threads stay as they were: they have not begun.
                self.queues = Some(queues);
                return Err(e);
            }
        };
        if let Err(e) = queues.begin(&file) {
            queues.let_go(&self.mapping);
            return Err(e);
        }
        (self.queues, self.file, self.at) = (Some(queues), Some(file), At::Recovered);
        Ok(())
    }

    /// Resumes the device. While another process has it, this fails, and is repeated until the
    /// server is asked to stop.
    pub(super) fn go_on(&mut self) -> Result<()> {
        if self.at == At::Serves {
            return Ok(());
        }
        // Another process may have begun to recover the device, and have died.
        self.recover(Before::Unknown, Instant::now() + TRIES)?;
        let (id, queues) = (self.info.dev_id, self.queues.as_ref());
        let gives_up = || queues.is_none_or(Queues::have_ended);
        if let Err(e) = self.control.end_recovery(id, &gives_up) {
            let why = match queues.and_then(Queues::end) {
                Some(Err(why)) => why,
                _ => refused(format!("{} does not go on", character::disk(id).display()), e),
            };
            // The next attempt begins with a released device.
            let _ = self.let_go(Instant::now());
            return Err(why);
        }
        queues.iter().for_each(|queues| queues.admit(&self.mapping));
        self.at = At::Serves;
        Ok(())
    }

    /// Returns how another program has removed the device, if it has.
    pub(super) fn gone(&mut self) -> Option<Gone> {
        match self.control.info(self.info.dev_id) {
            Err(e) if Errno::from_io_error(&e) == Some(Errno::NODEV) => Some(Gone::Deleted),
            Ok(info) if info.ublksrv_flags != self.config.identity => Some(Gone::Deleted),
            Ok(info) if u32::from(info.state) == sys::UBLK_S_DEV_DEAD => Some(Gone::Stopped),
            _ => None,
        }
    }

    /// Returns true when the device's users wait for a server.
    pub(super) fn is_unserved(&mut self) -> bool {
        let info = self.control.info(self.info.dev_id);
        info.is_ok_and(|info| u32::from(info.state) == sys::UBLK_S_DEV_QUIESCED)
    }

    /// Ends this server, and leaves the device to the server that recovers it.
    pub(super) fn leave(mut self) -> Result<()> {
        let disk = self.disk();
        self.queues.take().into_iter().for_each(|queues| queues.let_go(&self.mapping));
        self.link.take().into_iter().for_each(super::link::Link::leave);
        Err(Error::new(ErrorKind::Ublk, format!("{} waits for its volume's next server", disk.display())))
    }
}

/// Returns why a device does not outlive its server, or only with a long wait for its users; `None`
/// when it does.
pub(super) fn stays_not(info: &sys::ublksrv_ctrl_dev_info, config: &UblkConfig) -> Option<&'static str> {
    let needed = u64::from(sys::UBLK_F_USER_RECOVERY | sys::UBLK_F_USER_RECOVERY_REISSUE);
    if config.unprivileged {
        return Some("a block device of a user who is not root ends with its server");
    }
    if info.flags & needed != needed {
        return Some("this kernel keeps no block device without its server");
    }
    // Before 6.7 the driver checks only every few seconds whether the server has ended. A version
    // below 6 belongs to a distribution that has backported the driver.
    matches!(kernel(), Some((6, 0..7))).then_some(
        "this kernel notices only after seconds that a block device's server is gone (Linux 6.7 does at once)",
    )
}

/// Returns the running kernel's version.
pub(super) fn kernel() -> Option<(u32, u32)> {
    let kernel = rustix::system::uname().release().to_string_lossy().into_owned();
    let mut numbers = kernel.split(['.', '-']).map_while(|number| number.parse::<u32>().ok());
    numbers.next().zip(numbers.next())
}

fn late(what: &str) -> Error {
    Error::new(ErrorKind::Drain, what)
}

/// Returns why a device is not the one that an old server has told of. `served_by` is the process
/// of that server, unless it has released the device.
fn another_server(
    info: &sys::ublksrv_ctrl_dev_info,
    place: &UblkPlace,
    served_by: Option<i32>,
) -> Option<String> {
    if info.ublksrv_flags != place.identity {
        return Some("it is another volume's".into());
    }
    let is_others = served_by.is_some_and(|server| server != info.ublksrv_pid);
    is_others.then(|| match info.ublksrv_pid {
        pid if pid > 0 => format!("process {pid} serves it, which is not the volume's old server"),
        _ => "the volume's old server does not serve it".into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_server_is_believed_about_its_own_device_only() {
        let place = UblkPlace { id: 3, name: "a".into(), identity: 77, linked: true, for_tables: false };
        let device = |identity, pid| sys::ublksrv_ctrl_dev_info {
            dev_id: 3,
            ublksrv_flags: identity,
            ublksrv_pid: pid,
            ..Default::default()
        };
        let why = |identity, pid, served_by| another_server(&device(identity, pid), &place, served_by);
        assert_eq!(why(77, 500, Some(500)), None);
        assert_eq!(why(77, -1, None), None);
        assert!(why(78, 500, Some(500)).unwrap().contains("another volume's"));
        assert!(why(77, 501, Some(500)).unwrap().contains("process 501"));
        assert!(why(77, -1, Some(500)).unwrap().contains("does not serve"));
    }
}
