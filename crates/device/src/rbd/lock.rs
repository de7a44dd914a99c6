//! The exclusive lock of an image: its owner, and the time limit for a dead one.

use std::path::Path;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::holder::{self, LockHolderFile};
use super::library::Image;
use crate::{Error, ErrorKind, Result};

/// The delay before the log tells of the waiting.
const MOMENT: Duration = Duration::from_secs(2);
/// The time limit for replies of clients with the image open; a dead client never replies, and
/// stays registered for half a minute.
const ANSWERS: Duration = Duration::from_secs(10);

/// The time after which a client that does not answer has the image open no longer, and the
/// interval of looking.
const GONE: Duration = Duration::from_secs(45);
const LOOK: Duration = Duration::from_millis(500);
/// How long requests of an owner that did not answer are refused.
const EXCLUDED: Duration = Duration::from_secs(30 * 24 * 3600);

/// Locks the image for this program alone. A request for the lock would take it from an owner that
/// is less strict than this program: an ordinary client of librbd hands it over, and then fails to
/// write. So no live client is asked.
pub(super) fn lock(image: &Image, name: &str, holders: Option<&Path>) -> Result<Option<LockHolderFile>> {
    if let Some(folder) = holders {
        take_over(image, name, folder);
    }
    let lockers = || {
        let lockers = image.lockers().into_iter();
        lockers.map(|(client, at)| (format!("{client} at {at}"), client)).collect::<Vec<_>>()
    };
    let owners = || {
        let owners = lockers().into_iter().map(|(owner, _)| owner).collect::<Vec<_>>().join(", ");
        if owners.is_empty() { "another client".to_owned() } else { owners }
    };
    let own = image.own();
    let present = image.present(ANSWERS).map_err(|e| {
        Error::new(ErrorKind::Open, format!("{name}: cannot find out which clients have it open"))
            .with_source(e)
    })?;
    let others = present.into_iter().filter(|&client| client != own);
    let others: Vec<_> = others.map(|client| format!("client.{client}")).collect();
    if let Some((owner, _)) = lockers().into_iter().find(|(_, client)| others.contains(client)) {
        return Err(Error::new(ErrorKind::Locked, format!("{name} is in use by {owner}")));
    }
    if !others.is_empty() {
        let others = others.join(", ");
        log::warn!(
            "{name}: {others} has it open, too, and cannot write to it from now on (`rbd status` shows where)"
        );
    }
    let taken = std::thread::scope(|scope| {
        let (tell, told) = mpsc::channel::<()>();
        let taking = scope.spawn(move || {
            let _tell = tell;
            exclude_silent_owner(image, name);
            image.lock()
        });
        if told.recv_timeout(MOMENT) == Err(mpsc::RecvTimeoutError::Timeout) {
            log::warn!(
                "{name}: waiting for its lock, which {} has and does not answer: if it has died, for half a minute",
                owners()
            );
        }
        taking.join().unwrap_or(Err(Errno::IO))
    });
    taken.map_err(|e| match e {
        Errno::ROFS | Errno::BUSY | Errno::AGAIN => {
            Error::new(ErrorKind::Locked, format!("{name} is in use by {}", owners())).with_source(e)
        }
        _ => {
            Error::new(ErrorKind::Open, format!("{name}: its exclusive lock cannot be taken")).with_source(e)
        }
    })?;
    Ok(holders.and_then(|folder| noted(image, name, folder)))
}

/// Waits until the owner, which has not answered, is gone, and has the cluster refuse its requests
/// for longer than librbd has when it takes the lock: what was under way when the owner's machine
/// was cut off is sent again when that is back. An owner of which the cluster does not tell whether
/// it is gone is left to librbd.
fn exclude_silent_owner(image: &Image, name: &str) {
    let until = Instant::now() + GONE;
    while let Ok(Some(address)) = image.owner() {
        if image.watchers().is_ok_and(|watchers| !watchers.contains(&address)) {
            if let Err(e) = image.shut_out(&address, EXCLUDED) {
                log::warn!(
                    "{name}: the client at {address} had the lock and did not answer, and the cluster refuses its requests for an hour only \
                     (mon_osd_blocklist_default_expire), since this user may not say how long: {e}; try: make sure that its machine is down, or let \
                     the user have `profile rbd`"
                );
            }
            return;
        }
        if Instant::now() > until {
            return;
        }
        std::thread::sleep(LOOK);
    }
}

/// Breaks the lock of a process of this machine that was killed.
fn take_over(image: &Image, name: &str, folder: &Path) {
    let (Ok(id), Ok(Some(address))) = (image.id(), image.owner()) else { return };
    let Some(process) = holder::gone(folder, &id, &address) else { return };
    match image.break_lock(&address) {
        Ok(()) => log::info!(
            "{name}: process {process} of this machine had its lock, as the client at {address}, and has been killed: it is shut out, and the lock \
             free"
        ),
        Err(e) => {
            log::warn!("{name}: waiting for the lock of process {process}, which was killed: {e}")
        }
    }
}

/// Writes the file that names this process as the lock's owner.
fn noted(image: &Image, name: &str, folder: &Path) -> Option<LockHolderFile> {
    let noted = image.id().map_err(Into::into).and_then(|id| {
        let address = image.owner()?.ok_or(std::io::ErrorKind::NotFound)?;
        LockHolderFile::note(folder, &id, &address)
    });
    let told = |e: &std::io::Error| {
        log::warn!(
            "{name}: cannot note in {} that this process has its lock: if this process is killed, the next one waits half a minute: {e}",
            folder.display()
        );
    };
    noted.inspect_err(told).ok()
}
