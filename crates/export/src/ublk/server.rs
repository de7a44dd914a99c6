//! The server of a block device, from making the device to deleting it.

use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::abi as sys;
use rustix::io::Errno;
use underseal_datapath::Mapping;

use super::claim::{Before, Claimed, claim, refused};
use super::control::ControlDevice;
use super::link::Link;
use super::pause::Gone;
use super::queues::Queues;
use super::{UblkConfig, UblkPlace, character, locking, params, pause};
use crate::{Error, ErrorKind, Result, TellSize};

/// How often a device in use is checked.
const LOOK: Duration = Duration::from_millis(100);

/// How long the users of a stopped device may take to close it.
const CLOSED: Duration = Duration::from_secs(5);

/// How often the resume of a device is retried that another process has.
const AGAIN: Duration = Duration::from_secs(1);

/// How long the users of a device wait for its resume before they get errors.
const WAIT_AT_MOST: Duration = Duration::from_secs(60);

/// How long the kernel may take to stop a device that this process does not serve.
const STOPPED: Duration = Duration::from_secs(10);

/// A volume that is served as a block device.
pub struct UblkServer {
    thread: JoinHandle<Result<()>>,
    stopper: UblkStopper,
    shared: Arc<Shared>,
    device: PathBuf,
    link: Option<PathBuf>,
}

/// The means to stop the server from any thread.
#[derive(Clone)]
pub struct UblkStopper(pub(super) Arc<Mutex<Sender<Message>>>);

/// A message to the device's thread. Its result is sent back.
pub(super) enum Message {
    Stop,
    /// The volume's size has changed.
    Size(Sender<io::Result<()>>),
    /// A queue's thread has ended: [`Queues::end`] has the result, unless the queues were released.
    Ended,
    LetGo(Instant, Sender<Result<()>>),
    Recover(Instant, Sender<Result<()>>),
    GoOn(Sender<Result<()>>),
    /// Stop, unless a program has claimed the device.
    Close(Sender<Result<()>>),
}

/// The state of the device that other threads can see.
pub(super) struct Shared {
    pub(super) place: UblkPlace,
    /// Why the device cannot be released.
    pub(super) stays_not: Option<&'static str>,
    pub(super) is_gone: AtomicBool,
}

/// Checks that ublk is usable, before the volume is unlocked.
///
/// # Errors
/// `UblkDevice` when the kernel has no ublk, or one that is too old; `Forbidden` when this user has
/// no access.
pub fn available() -> Result<()> {
    let mut control = ControlDevice::open(false)?;
    let too_old = || {
        Error::new(ErrorKind::UblkDevice, "this kernel's ublk cannot do what is needed, which Linux 6.5 can")
    };
    let features = control.features().map_err(|e| match Errno::from_io_error(&e) {
        Some(Errno::PERM | Errno::ACCESS) => {
            Error::new(ErrorKind::Forbidden, "this user may not use ublk").with_source(e)
        }
        _ => too_old().with_source(e),
    })?;
    let needed = u64::from(sys::UBLK_F_USER_COPY | sys::UBLK_F_CMD_IOCTL_ENCODE);
    if features & needed == needed { Ok(()) } else { Err(too_old()) }
}

impl UblkServer {
    /// Makes the block device, or recovers the device of a server that was killed. Requests are
    /// served when this returns.
    ///
    /// # Errors
    /// `UblkDevice` when the kernel has no ublk; `Forbidden` when this user has no access;
    /// `DeviceInUse` when another server or volume has the device; `Unsupported` when the kernel
    /// supports no block devices of this kind; `Ublk` when the kernel refuses for another reason.
    pub fn start(mapping: Arc<Mapping>, config: UblkConfig) -> Result<Self> {
        let this = Self::with(|sender| Device::start(mapping, config, sender))?;
        log::info!("serving {}", this.device.display());
        Ok(this)
    }

    /// Prepares to serve the block device of an old server, which will
    /// [release](super::UblkHolder::let_go) it. The device is released until this process's
    /// [holder](Self::holder) resumes it. `served_by` is the old server's process: no device of
    /// another one is taken; `None` where the device has been released already.
    ///
    /// # Errors
    /// The kinds of [`start`](Self::start).
    pub fn take_over(mapping: Arc<Mapping>, place: &UblkPlace, served_by: Option<i32>) -> Result<Self> {
        let place = place.clone();
        Self::with(move |sender| Device::take_over(mapping, &place, served_by, sender))
    }

    fn with(begin: impl FnOnce(Sender<Message>) -> Result<Device> + Send + 'static) -> Result<Self> {
        underseal_device::restrictions::allow_commands();
        let (sender, messages) = mpsc::channel();
        let (ready, begun) = mpsc::channel();
        let for_queues = sender.clone();
        // All commands come from one thread, because the ring belongs to one thread.
        let thread = thread::Builder::new()
            .name("ublk".into())
            .spawn(move || {
                let device = match begin(for_queues) {
                    Ok(device) => device,
                    Err(e) => {
                        let _ = ready.send(Err(e));
                        return Ok(());
                    }
                };
                let shared = Arc::new(device.shared());
                let _ = ready.send(Ok((shared.clone(), device.disk(), device.link())));
                let served = device.serve(&messages);
                shared.is_gone.store(true, Ordering::SeqCst);
                served
            })
            .map_err(|e| Error::new(ErrorKind::Io, "no thread for ublk").with_source(e))?;
        let begun =
            begun.recv().unwrap_or_else(|_| Err(Error::new(ErrorKind::Io, "the thread of ublk died")));
        let (shared, device, link) = begun?;
        Ok(Self { thread, stopper: UblkStopper(Arc::new(Mutex::new(sender))), shared, device, link })
    }

    /// Returns the path of the block device.
    pub fn device(&self) -> &Path {
        &self.device
    }

    /// Returns the link to the device, if it has one.
    pub fn link(&self) -> Option<&Path> {
        self.link.as_deref()
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Returns the means to stop this server.
    pub fn stopper(&self) -> UblkStopper {
        self.stopper.clone()
    }

    /// Returns a function that sets the device's size to the volume's, where the driver can do that
    /// (`UBLK_F_UPDATE_SIZE`, Linux 6.16).
    pub fn size_teller(&self) -> TellSize {
        let (messages, device) = (self.stopper.0.clone(), self.device.clone());
        Arc::new(move |_, _| {
            let (answer, answered) = mpsc::channel();
            let _ = messages.lock().unwrap_or_else(PoisonError::into_inner).send(Message::Size(answer));
            // No answer arrives while the device is being stopped or is deleted; none is needed
            // then.
            let told = answered.recv_timeout(CLOSED).unwrap_or(Ok(()));
            let why = told.err().map(|e| match Errno::from_io_error(&e) {
                Some(Errno::OPNOTSUPP) => {
                    "this kernel changes the size of no ublk device (Linux 6.16 does)".into()
                }
                _ => e.to_string(),
            });
            why.map(|why| {
                format!("{} has its new size when the volume is opened again: {why}", device.display())
            })
        })
    }

    /// Waits until the device is deleted: by the stopper, or by another program.
    ///
    /// # Errors
    /// `Drain` when the device was still in use [`drain_timeout`](UblkConfig::drain_timeout) after
    /// the stopper was used. Its users wait for another server then.
    pub fn run(self) -> Result<()> {
        self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

impl UblkStopper {
    /// Asks the server to end, and returns at once.
    pub fn stop(&self) {
        // If the server has ended already, the receiver is gone.
        let _ = self.0.lock().unwrap_or_else(PoisonError::into_inner).send(Message::Stop);
    }
}

/// A running device.
pub(super) struct Device {
    pub(super) mapping: Arc<Mapping>,
    pub(super) control: ControlDevice,
    pub(super) info: sys::ublksrv_ctrl_dev_info,
    pub(super) config: UblkConfig,
    /// The sender for the queues' threads.
    pub(super) sender: Sender<Message>,
    pub(super) queues: Option<Queues>,
    /// The file is kept until the queues have ended; after it is closed the device can be deleted.
    pub(super) file: Option<Arc<File>>,
    pub(super) link: Option<Link>,
    pub(super) at: At,
}

/// The process that serves a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum At {
    /// This process serves it.
    Serves,
    /// This process will serve it after a resume.
    Recovered,
    /// Another process serves it, or none.
    LetGo,
}

impl Device {
    fn start(mapping: Arc<Mapping>, config: UblkConfig, sender: Sender<Message>) -> Result<Self> {
        let mut control = ControlDevice::open(config.unprivileged)?;
        let params = params::of(&mapping)?;
        locking::stay_in_memory(&config);
        let Claimed { info, recovered } = claim(&mut control, &config, &params)?;
        let id = info.dev_id;
        let file = match character::open(id, Instant::now() + character::APPEARS) {
            Ok(file) => Some(Arc::new(file)),
            Err(e) => {
                if !recovered {
                    let _ = control.delete(id, &|| false);
                }
                return Err(refused(format!("{} cannot be opened", character::path(id)), e));
            }
        };
        if recovered && mapping.holds_acknowledged() {
            mapping.lose(&format!("the server of /dev/ublkb{id} was killed"));
        }
        let (queues, link, at) = (None, None, At::Serves);
        let mut this = Self { mapping, control, info, config, sender, queues, file, link, at };
        let begun = this.begin(recovered);
        match begun {
            Ok(()) => {
                locking::lock_as_touched(&this.config);
                this.name();
                Ok(this)
            }
            // The device's users wait for a server that succeeds.
            Err(e) if recovered => Err(e),
            Err(e) => {
                let _ = this.delete(None);
                Err(e)
            }
        }
    }

    /// Starts the queues, then the disk.
    fn begin(&mut self, recovered: bool) -> Result<()> {
        let prepared = Queues::prepare(&self.mapping, &self.info, self.config.unprivileged, &self.sender)?;
        let queues = self.queues.insert(prepared);
        self.file.iter().try_for_each(|file| queues.begin(file))?;
        queues.admit(&self.mapping);
        let (id, gives_up) = (self.info.dev_id, || queues.have_ended());
        let started = match recovered {
            true => self.control.end_recovery(id, &gives_up),
            false => self.control.start(id, &gives_up),
        };
        started.map_err(|e| match queues.end() {
            Some(Err(why)) => why,
            _ => refused(format!("{} cannot be started", character::disk(id).display()), e),
        })
    }

    fn shared(&self) -> Shared {
        let UblkConfig { name, identity, .. } = &self.config;
        let (id, linked, for_tables) = (self.info.dev_id, self.link.is_some(), self.config.for_tables);
        Shared {
            place: UblkPlace { id, name: name.clone(), identity: *identity, linked, for_tables },
            stays_not: pause::stays_not(&self.info, &self.config),
            is_gone: AtomicBool::new(false),
        }
    }

    fn name(&mut self) {
        if self.config.unprivileged || self.config.for_tables {
            return;
        }
        match Link::make(&self.config.name, self.info.dev_id) {
            Ok(link) => self.link = Some(link),
            Err(e) => log::warn!("no link /dev/underseal/{}: {e}", self.config.name),
        }
    }

    pub(super) fn disk(&self) -> PathBuf {
        character::disk(self.info.dev_id)
    }

    fn link(&self) -> Option<PathBuf> {
        self.link.as_ref().map(|link| link.path().to_owned())
    }

    /// Handles messages until the device ends.
    fn serve(mut self, messages: &Receiver<Message>) -> Result<()> {
        let mut goes_on = None;
        loop {
            let message = match goes_on.is_some() && self.at != At::Serves {
                true => messages.recv_timeout(AGAIN),
                false => messages.recv().map_err(RecvTimeoutError::from),
            };
            match message {
                Ok(Message::Ended) => match self.queues.as_ref().and_then(Queues::end) {
                    Some(result) if self.at == At::Serves => {
                        match &result {
                            Ok(()) => log::warn!("{} was stopped by another program", self.disk().display()),
                            Err(e) => log::error!("a queue of {} has ended: {e}", self.disk().display()),
                        }
                        return result.and(self.delete(None));
                    }
                    Some(result) => {
                        log::error!(
                            "a queue of {} has ended before it went on: {result:?}",
                            self.disk().display()
                        );
                        let _ = self.let_go(Instant::now());
                    }
                    None => {}
                },
                Ok(Message::Size(answer)) => {
                    // A caller whose time has passed no longer listens.
                    let _ = answer.send(self.update_size());
                }
                Ok(Message::LetGo(until, answer)) => {
                    goes_on = None;
                    let _ = answer.send(self.let_go(until));
                }
                Ok(Message::Recover(until, answer)) => {
                    let _ = answer.send(self.recover(Before::Served, until));
                }
                Ok(Message::GoOn(answer)) => {
                    goes_on = Some(Instant::now());
                    let _ = answer.send(self.go_on());
                }
                Ok(Message::Close(answer)) => match exclusive(&self.disk()) {
                    Err(e) if Errno::from_io_error(&e) == Some(Errno::BUSY) => {
                        let why = format!("{} is in use", self.disk().display());
                        let _ = answer.send(Err(Error::new(ErrorKind::DeviceInUse, why)));
                    }
                    // A device that cannot be opened is not in use.
                    claimed => {
                        let deleted = self.delete(claimed.ok());
                        let said =
                            |e: &Error| Error::new(e.kind(), underseal_error::with_causes(e).to_string());
                        let _ = answer.send(deleted.as_ref().copied().map_err(said));
                        return deleted;
                    }
                },
                Err(RecvTimeoutError::Timeout) => match self.go_on() {
                    Ok(()) => log::info!("{} goes on", self.disk().display()),
                    Err(e) => match self.gone() {
                        None if goes_on.is_some_and(|since| since.elapsed() > WAIT_AT_MOST)
                            && self.is_unserved() =>
                        {
                            return self.give_up(&e);
                        }
                        None => {
                            let why = underseal_error::with_causes(&e);
                            log::debug!("{} does not go on yet: {why}", self.disk().display());
                        }
                        Some(gone) => {
                            log::warn!("{} {gone} by another program", self.disk().display());
                            return if gone == Gone::Deleted { Ok(()) } else { self.delete(None) };
                        }
                    },
                },
                Ok(Message::Stop) | Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        if self.at != At::Serves {
            return self.leave();
        }
        if self.config.for_tables {
            return self.delete(None);
        }
        let claim = match self.drained(messages) {
            Ok(claim) => claim,
            Err(e) if self.config.unprivileged => {
                self.delete(None)?;
                return Err(e);
            }
            Err(e) => {
                if let Some(link) = self.link.take() {
                    link.leave();
                }
                return Err(e);
            }
        };
        self.delete(claim)
    }

    fn update_size(&mut self) -> io::Result<()> {
        if self.control.features()? & u64::from(sys::UBLK_F_UPDATE_SIZE) == 0 {
            return Err(Errno::OPNOTSUPP.into());
        }
        self.control.update_size(self.info.dev_id, params::sectors(&self.mapping))
    }

    /// Waits until no process has the device mounted or opened exclusively.
    fn drained(&self, messages: &Receiver<Message>) -> Result<Option<File>> {
        let (disk, started) = (self.disk(), Instant::now());
        let mut told = false;
        loop {
            match exclusive(&disk) {
                Ok(claim) => return Ok(Some(claim)),
                Err(e) if Errno::from_io_error(&e) == Some(Errno::BUSY) => {}
                // A device that cannot be opened is not in use.
                Err(_) => return Ok(None),
            }
            if !told {
                told = true;
                log::warn!(
                    "{} is in use (mounted, swap, or under another device): it is served on for a while",
                    disk.display()
                );
            }
            let left = self.config.drain_timeout.saturating_sub(started.elapsed());
            if left.is_zero() {
                let context = format!("{} was still in use", disk.display());
                return Err(Error::new(ErrorKind::Drain, context));
            }
            match messages.recv_timeout(left.min(LOOK)) {
                Ok(Message::Ended) if self.queues.as_ref().is_none_or(Queues::have_ended) => return Ok(None),
                // While the server stops, handovers are refused: the caller gets no answer.
                Ok(_) | Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => thread::sleep(LOOK),
            }
        }
    }

    /// Stops a device that cannot be resumed: its users get errors instead of waiting.
    fn give_up(self, why: &Error) -> Result<()> {
        let (disk, wait) = (self.disk(), WAIT_AT_MOST.as_secs());
        log::error!(
            "{} does not go on for {wait} s ({}): it is stopped, and its users get errors",
            disk.display(),
            underseal_error::with_causes(why)
        );
        self.delete(None)?;
        let context = format!("{} did not go on for {wait} s and was stopped", disk.display());
        Err(Error::new(ErrorKind::Ublk, context))
    }

    /// Stops the device, ends the queues, and deletes it. Until the device is stopped, `claimed`
    /// keeps other programs from mounting it.
    fn delete(mut self, claimed: Option<File>) -> Result<()> {
        let disk = self.disk();
        let id = self.info.dev_id;
        // Stopping a device that this process serves may take as long as its requests.
        let (started, serves) = (Instant::now(), self.at == At::Serves);
        let stopped = self.control.stop(id, &|| !serves && started.elapsed() > STOPPED);
        stopped.map_err(|e| refused(format!("{} cannot be stopped", disk.display()), e))?;
        drop(claimed);
        self.queues.take().into_iter().for_each(Queues::join);
        drop(self.file);
        // The device is deleted when its last user has closed it; a user that keeps it open gets
        // errors, and is not waited for.
        let started = Instant::now();
        match self.control.delete(id, &|| started.elapsed() > CLOSED) {
            Err(e) if Errno::from_io_error(&e) == Some(Errno::CANCELED) => {
                log::warn!("{} is stopped, but somebody still has it open", disk.display());
            }
            deleted => deleted.map_err(|e| refused(format!("{} cannot be deleted", disk.display()), e))?,
        }
        log::info!("{} is gone", disk.display());
        Ok(())
    }
}

/// Opens the disk exclusively.
fn exclusive(disk: &Path) -> io::Result<File> {
    let flags = rustix::fs::OFlags::EXCL.bits();
    File::options().read(true).custom_flags(flags.cast_signed()).open(disk)
}
