//! A table server: a process for one table, which serves it as a file or as a ublk disk.
//!
//! Orders come over the socket that is its stdin. When the back end is gone, the table server
//! continues, until its file is unmounted, its disk is stopped, or another back end adopts the
//! table (`orphan.rs`).

mod integrity;
mod opened;
mod orphan;
mod shown;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::mm::{MlockAllFlags, mlockall};
use underseal_cipher::Key;
use underseal_datapath::Mapping;
use underseal_dm::UblkDisk;
use underseal_export::control::Line;
use underseal_export::net::Socket;
use underseal_volume::Keyless;
use underseal_volume::table::TableKey;

use super::orders::{Answer, CarriedPlace, Order};
use super::owner::{Owner, Ownership};
use crate::error::{Error, Result};
use crate::exit::Exit;
use opened::Opened;
use shown::Shown;

/// How long requests in flight may take when no more are taken.
const DRAIN: Duration = Duration::from_secs(120);
/// How long the back end may take to receive an answer.
const SOON: Duration = Duration::from_secs(30);
/// How long, and at which interval, a server asks for the file that it has given to another server,
/// which may not have ended yet.
const RETRIEVING: Duration = Duration::from_secs(10);
const LOOK_FOR_OWNER: Duration = Duration::from_millis(20);
/// The longest time between two orders.
const LONG: Duration = Duration::from_secs(365 * 24 * 3600);

/// Serves one table. Fails with `Failed` when stdin is no socket of a back end.
pub(crate) fn run() -> Result<()> {
    stay_in_memory();
    let socket = io::stdin().as_fd().try_clone_to_owned();
    let socket = socket.map_err(|e| Error::new(Exit::Failed, "stdin cannot be used").because(&e))?;
    let mut line = Line::new(Socket::from(socket));
    let mut server = Server::default();
    loop {
        match server.serve_order(&line) {
            Ok(Next::Order) => {}
            // Other names belong to other servers.
            Ok(Next::End) => std::process::exit(0),
            // The order may have been carried out: the next back end learns the state as it is.
            Err(e) => match server.next_back_end(&e) {
                Some(next) => line = next,
                None => return server.alone(),
            },
        }
    }
}

/// The server's state after an order.
enum Next {
    Order,
    End,
}

/// Locks memory: writing out other processes' memory must not wait for this process's own pages,
/// and this process must not wait for memory that only it could free.
pub(super) fn stay_in_memory() {
    if let Err(e) = lock_memory() {
        log::warn!("memory is not locked, so its devices should not carry swap: {e}");
    }
    if let Err(e) = rustix::process::configure_io_flusher_behavior(true) {
        log::warn!("the kernel was not told that this serves I/O, so its devices should not carry swap: {e}");
    }
}

/// Keeps this process's pages in memory: those that it has now, and each that it touches later.
pub(super) fn lock_memory() -> rustix::io::Result<()> {
    mlockall(MlockAllFlags::CURRENT)?;
    mlockall(MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT)
}

/// The state after an order.
struct Done {
    answer: Answer,
    fd: Option<OwnedFd>,
}

impl From<Answer> for Done {
    fn from(answer: Answer) -> Self {
        Self { answer, fd: None }
    }
}

/// The reason why an order is refused.
type Refusal = (Errno, String);
type Obeyed<T = Done> = std::result::Result<T, Refusal>;

fn refused(errno: Errno) -> impl Fn(Error) -> Refusal {
    move |e| (errno, e.what())
}

fn not_owned(e: io::Error) -> Refusal {
    (Errno::IO, format!("the file's owner is not known: {e}"))
}

#[derive(Default)]
struct Server {
    opened: Option<Opened>,
    shown: Option<Shown>,
    /// This server's share in the file.
    owner: Option<Owner>,
    /// Set when the mount was given to another server, which may have taken it: why this one is
    /// suspended.
    given: Option<Suspended>,
    /// The volume without its key, while the key is wiped.
    wiped: Option<Keyless>,
    /// The facts for another back end.
    remembered: Option<Key>,
    /// The locks of the files of loop devices, which last beyond the back end.
    locks: Vec<OwnedFd>,
}

/// Why a server that has given its mount away is suspended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Suspended {
    Before,
    ForGiving,
}

impl Server {
    /// Carries out one order of the back end. An error is the connection's.
    fn serve_order(&mut self, line: &Line) -> Result<Next> {
        let heard = line.receive::<Order>(Instant::now() + LONG)?;
        let mut bytes = Key::zeroed(usize::try_from(heard.bytes).unwrap_or(usize::MAX))?;
        line.read(bytes.as_mut_bytes(), Instant::now() + SOON)?;
        let (ends, order) = (matches!(heard.message, Order::End | Order::Leave), heard.message);
        let (answer, fd) = match order {
            Order::Adopt => {
                self.present_to(line)?;
                return Ok(Next::Order);
            }
            Order::Remember => {
                self.remembered = Some(bytes);
                (Answer::Done, None)
            }
            order => match self.obey(order, heard.fds, &bytes) {
                Ok(Done { answer, fd }) => (answer, fd),
                Err((errno, why)) => (Answer::Refused { errno: errno.raw_os_error(), why }, None),
            },
        };
        let fds: Vec<_> = fd.iter().map(AsFd::as_fd).collect();
        let sent = line.send(&answer, &fds, &[], Instant::now() + SOON);
        if ends {
            return Ok(Next::End);
        }
        sent?;
        Ok(Next::Order)
    }

    fn obey(&mut self, order: Order, mut fds: Vec<OwnedFd>, bytes: &Key) -> Obeyed {
        match order {
            Order::Open { devices, read_only, late } => {
                let text = std::str::from_utf8(bytes.as_bytes());
                let text = text.map_err(|e| (Errno::INVAL, e.to_string()))?;
                // Descriptors after the devices keep locks, as long as this process lives.
                self.locks = fds.split_off(devices.len().min(fds.len()));
                let opened = Opened::new(text, devices, fds, read_only)?;
                let opened = if late { opened } else { opened.activate()? };
                let (block, layers) = (opened.block(), opened.layers());
                self.opened = Some(opened);
                Ok(Answer::Opened { block, layers }.into())
            }
            Order::Show { file } => self.show(&file).map(|()| Answer::Done.into()),
            Order::ShowDisk { disk } => self.show_disk(disk).map(|()| Answer::Done.into()),
            Order::HideDisk => self.hide_disk().map(|()| Answer::Done.into()),
            Order::Take { place, turn } => self.take(place, turn, fds).map(|()| Answer::Done.into()),
            Order::Give => self.give(),
            Order::Keep | Order::Resume { anyway: false } => self.keep().map(|()| Answer::Done.into()),
            Order::Resume { anyway: true } => self.resume(true).map(|()| Answer::Done.into()),
            Order::Suspend => self.suspend().map(|()| Answer::Done.into()),
            Order::WipeKey => {
                self.wipe_key()?;
                self.remember(bytes.as_bytes())
            }
            Order::SetKey { word } => {
                let parts = bytes.as_bytes().split_at_checked(word);
                let (word, facts) = parts.ok_or((Errno::INVAL, "the key is cut off".to_owned()))?;
                self.set_key(word)?;
                self.remember(facts)
            }
            // The loop handles these.
            Order::Remember | Order::Adopt => Err((Errno::INVAL, "it is not for here".into())),
            Order::Status => Ok(Answer::Status { lines: self.opened()?.status() }.into()),
            Order::Leave => Ok(Answer::Done.into()),
            Order::End => self.end().map(|()| Answer::Done.into()),
        }
    }

    fn opened(&self) -> Obeyed<&Opened> {
        self.opened.as_ref().ok_or((Errno::INVAL, "there is no table".into()))
    }

    fn mapping(&self) -> Obeyed<&Arc<Mapping>> {
        self.opened()?.mapping()
    }

    fn delay(&self, is_up: bool) {
        self.opened.iter().for_each(|opened| opened.delay(is_up));
    }

    /// Mounts the table.
    fn show(&mut self, file: &Path) -> Obeyed<()> {
        let mapping = self.mapping()?.clone();
        let owner = Owner::first(file).map_err(not_owned)?;
        (self.owner, self.shown) = (Some(owner), Some(Shown::mount(mapping, file)?));
        Ok(())
    }

    /// Makes a disk.
    fn show_disk(&mut self, disk: UblkDisk) -> Obeyed<()> {
        let mapping = self.mapping()?.clone();
        let owner = Owner::first(&disk.file).map_err(not_owned)?;
        (self.owner, self.shown) = (Some(owner), Some(Shown::disk(mapping, disk)?));
        Ok(())
    }

    /// Takes the disk away, unless a program has claimed it.
    fn hide_disk(&mut self) -> Obeyed<()> {
        let Some(shown) = &self.shown else { return Ok(()) };
        shown.close_disk()?;
        self.shown.take().into_iter().for_each(Shown::wait);
        Ok(())
    }

    /// Takes the mount of another server, unless that server has resumed it.
    fn take(&mut self, place: CarriedPlace, turn: u64, fds: Vec<OwnedFd>) -> Obeyed<()> {
        let mut owner = Owner::join(place.file(), turn).map_err(not_owned)?;
        if owner.claim().map_err(not_owned)? != Ownership::Own {
            return Err((Errno::BUSY, "the live table's server has gone on with the file".into()));
        }
        let taken = self.rest_over(place, fds).and_then(|shown| match owner.settle() {
            Ok(()) => Ok(shown),
            Err(e) => {
                shown.abandon();
                Err(not_owned(e))
            }
        });
        match taken {
            Ok(shown) => {
                self.owner = Some(owner);
                self.go_on_with(shown);
                Ok(())
            }
            Err(e) => {
                // The devices are closed before the other server may open them again.
                self.opened = self.opened.take().map(Opened::inactive);
                drop(owner);
                Err(e)
            }
        }
    }

    /// Opens the devices, if they are not open, and prepares threads for a mount.
    fn rest_over(&mut self, place: CarriedPlace, fds: Vec<OwnedFd>) -> Obeyed<Shown> {
        if self.mapping().is_err() {
            let opened = self.opened.take().ok_or((Errno::INVAL, "there is no table".to_owned()))?;
            self.opened = Some(opened.activate()?);
        }
        Shown::rest_over(self.mapping()?.clone(), place, fds)
    }

    fn go_on_with(&mut self, shown: Shown) {
        self.delay(true);
        shown.go_on();
        // The kernel reads the attributes again, and has no page of a file.
        if let Ok(mapping) = self.mapping() {
            shown.tell_size(mapping.size());
        }
        self.shown = Some(shown);
    }

    fn give(&mut self) -> Obeyed {
        let suspended = if self.mapping()?.is_stopped() { Suspended::Before } else { Suspended::ForGiving };
        self.suspend()?;
        self.given = Some(suspended);
        let given = self.closed_for_giving();
        if given.is_err()
            && suspended == Suspended::ForGiving
            && let Err((_, why)) = self.keep()
        {
            log::error!("the table cannot be resumed: {why}");
        }
        given
    }

    /// Closes the devices that the other server opens, and gives it the file.
    fn closed_for_giving(&mut self) -> Obeyed {
        self.opened()?.close().map_err(refused(Errno::IO))?;
        let none = || (Errno::INVAL, "it is not shown".to_owned());
        let shown = self.shown.as_ref().ok_or_else(none)?;
        let (place, fd) = shown.let_go()?;
        let owner = self.owner.as_mut().ok_or_else(none)?;
        owner.give().map_err(not_owned)?;
        Ok(Done { answer: Answer::Given { place, turn: owner.turn() }, fd })
    }

    /// Resumes a table that was suspended, or given to another server that has not taken it.
    fn keep(&mut self) -> Obeyed<()> {
        if self.given.is_some() {
            self.retrieve(Some(Instant::now() + RETRIEVING))?;
        }
        if self.given.is_some() && self.opened()?.is_closed_for_good() {
            let shown = self.shown.take().ok_or((Errno::INVAL, "it is not shown".to_owned()))?;
            let (place, fds) = shown.pass_on()?;
            self.opened = self.opened.take().map(Opened::inactive);
            let shown = self.rest_over(place, fds)?;
            self.go_on_with(shown);
        } else {
            self.resume(false)?;
        }
        self.given = None;
        Ok(())
    }

    /// Gets the file back from another server. Ends this process when that server has it.
    fn retrieve(&mut self, until: Option<Instant>) -> Obeyed<()> {
        let owner = self.owner.as_mut().ok_or((Errno::INVAL, "it is not shown".to_owned()))?;
        if owner.owns() {
            return Ok(());
        }
        loop {
            match owner.claim().map_err(not_owned)? {
                Ownership::Own => return owner.settle().map_err(not_owned),
                Ownership::Over => {
                    log::info!("another server has the table");
                    std::process::exit(0);
                }
                Ownership::Held if until.is_some_and(|until| Instant::now() > until) => {
                    return Err((Errno::BUSY, "another server has not let go of the file".into()));
                }
                Ownership::Held => thread::sleep(LOOK_FOR_OWNER),
            }
        }
    }

    /// Suspends: requests from the kernel are answered, further ones stay in the kernel, and all
    /// writes are on disk.
    fn suspend(&mut self) -> Obeyed<()> {
        let mapping = self.mapping()?.clone();
        if mapping.is_stopped() {
            return Ok(());
        }
        self.delay(false);
        if let Some(shown) = &self.shown {
            shown.hold().inspect_err(|_| self.delay(true))?;
        }
        let suspended = mapping.suspend(DRAIN).or_else(|e| {
            if e.kind() == underseal_datapath::ErrorKind::Busy {
                return Err(e);
            }
            // As in the kernel, a device that cannot be flushed can be suspended, and get another
            // table. The lower device reports the failure again in the next table's flush, since
            // the next server has it open already.
            log::error!("suspended all the same: {}", underseal_error::with_causes(&e));
            mapping.hold(DRAIN)
        });
        suspended.map_err(|e| {
            self.delay(true);
            self.shown.iter().for_each(Shown::go_on);
            refused(Errno::IO)(e.into())
        })
    }

    fn resume(&mut self, anyway: bool) -> Obeyed<()> {
        let mapping = self.mapping()?.clone();
        let was_stopped = mapping.is_stopped();
        if was_stopped && anyway {
            mapping.release();
        } else if was_stopped {
            mapping.resume().map_err(|e| refused(Errno::AGAIN)(e.into()))?;
        }
        self.delay(!anyway);
        if was_stopped {
            self.shown.iter().for_each(Shown::go_on);
        }
        Ok(())
    }

    fn wipe_key(&mut self) -> Obeyed<()> {
        let mapping = self.mapping()?.clone();
        let Some(volume) = mapping.volume() else { return Ok(()) };
        let keyless = volume.without_key().map_err(|e| refused(Errno::INVAL)(e.into()))?;
        drop(volume);
        mapping.wipe_key().map_err(|e| refused(Errno::INVAL)(e.into()))?;
        self.wiped = Some(keyless);
        self.opened.iter_mut().for_each(Opened::forget_keys);
        Ok(())
    }

    /// Keeps the facts for the next back end together with the key that belongs to them.
    fn remember(&mut self, facts: &[u8]) -> Obeyed {
        self.remembered = Some(Key::new(facts).map_err(|e| (Errno::NOMEM, e.to_string()))?);
        Ok(Answer::Done.into())
    }

    fn set_key(&mut self, word: &[u8]) -> Obeyed<()> {
        let invalid = |e: underseal_volume::Error| refused(Errno::INVAL)(e.into());
        let word = std::str::from_utf8(word).map_err(|e| (Errno::INVAL, e.to_string()))?;
        let key = TableKey::parse(word).and_then(|key| key.bytes()).map_err(invalid)?;
        let mapping = self.mapping()?.clone();
        let present = mapping.volume().map(|volume| volume.without_key()).transpose().map_err(invalid)?;
        let keyless = present.as_ref().or(self.wiped.as_ref());
        let keyless = keyless.ok_or((Errno::INVAL, "it had no key when it was loaded".to_owned()))?;
        let volume = keyless.with_key(&key).map_err(invalid)?;
        mapping.replace_volume(volume).map_err(|e| refused(Errno::INVAL)(e.into()))?;
        self.wiped = None;
        Ok(())
    }

    /// Takes the file or the disk away, flushes and closes.
    fn end(&mut self) -> Obeyed<()> {
        self.delay(false);
        self.shown.take().into_iter().for_each(Shown::stop);
        let Ok(mapping) = self.mapping().cloned() else { return Ok(()) };
        // Suspended means flushed here, since orders are carried out one by one. The key may be
        // wiped: nothing was written since.
        let flushed = if mapping.is_stopped() { Ok(()) } else { mapping.suspend(DRAIN) };
        let closed = self.opened()?.close().map_err(refused(Errno::IO));
        mapping.let_go();
        flushed.map_err(|e| refused(Errno::IO)(e.into())).and(closed)
    }

    /// Serves until another program takes the file or the disk away.
    fn alone(mut self) -> Result<()> {
        let Some(shown) = self.shown.take() else { return Ok(()) };
        shown.wait();
        self.end().map_err(|(_, why)| Error::new(Exit::Lost, why))
    }
}
