//! All volumes of a host: `up`, `down`, `ps`.

mod down;
mod ps;
mod together;
mod up;

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use underseal_export::control::{Directory, Name, Status};

pub(crate) use down::DownArgs;
pub(super) use down::run as down;
pub(crate) use ps::PsArgs;
pub(super) use ps::run as ps;
pub(crate) use up::UpArgs;
pub(super) use up::run as up;

pub(super) use together::side_by_side;

use super::control::{PATIENCE as AT_LAST, PATIENCE_OF_ALL as ANSWERS, status_within};
use super::same_file;
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::lower::is_remote;
use crate::output::printable;
use crate::volumes::{self, Entry, Wrong};

/// The choice of volumes.
#[derive(Debug, Args)]
pub(crate) struct WhichArgs {
    /// The volumes, by the names that the file gives them; all of them unless one is named
    #[arg(value_name = "NAME")]
    pub(crate) names: Vec<Name>,
    /// The list of volumes, and with .d behind it their folder; only root and you may be able to
    /// write to them
    #[arg(long, value_name = "FILE", default_value = volumes::DEFAULT)]
    pub(crate) config: PathBuf,
}

/// Another `up` or `down` of the volume is awaited silently for `TOLD`, and for `PATIENCE` at most.
const TOLD: Duration = Duration::from_secs(1);
const PATIENCE: Duration = Duration::from_secs(60);

/// Returns the state of an open volume; `None` when it is not open. Fails with `InUse` when another
/// volume has its name, or when its server does not answer.
fn status(entry: &Entry, limit: Duration) -> Result<Option<Status>> {
    let Some(status) = status_within(&entry.name, limit)? else { return Ok(None) };
    let served = Path::new(&status.image);
    let same = served == entry.device || !is_remote(served) && same_file(served, &entry.device);
    if same {
        return Ok(Some(status));
    }
    let what = format!("the volume of that name that is open is {}", printable(&status.image));
    Err(Error::new(Exit::InUse, what).with_remedy("another name for one of the two"))
}

/// A lock that excludes every other `up` and `down` of a volume until it is dropped.
struct Locked {
    _file: File,
    path: PathBuf,
}

impl Drop for Locked {
    /// The file is removed while it is locked: a waiting process sees that, and makes another one.
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Locks a volume; waits up to `limit` for another process that opens or closes it: opening may
/// wait for a silent server, or for a passphrase. Fails with `InUse`, which names the process; with
/// `Failed` when the folder of control sockets cannot be used.
fn lock(name: &Name, limit: Duration) -> Result<Locked> {
    let directory = Directory::of_user();
    directory.make()?;
    let path = directory.path().join(format!(".{name}.lock"));
    let failed = |e: io::Error| Error::io(&path, "cannot lock", e);
    let open =
        || File::options().read(true).write(true).create(true).truncate(false).open(&path).map_err(failed);
    let mut file = open()?;
    let begun = Instant::now();
    let mut told = false;
    loop {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) if is_at(&file, &path) => break,
            // The previous owner has removed the file.
            Ok(()) => {
                file = open()?;
                continue;
            }
            Err(Errno::INTR) => continue,
            Err(Errno::WOULDBLOCK) => {}
            Err(e) => return Err(failed(e.into())),
        }
        let waited = begun.elapsed();
        if waited > TOLD && !told || waited > limit {
            let process = fs::read_to_string(&path).unwrap_or_default();
            let who = format!("process {} is opening or closing it", printable(process.trim()));
            if waited > limit {
                return Err(Error::new(Exit::InUse, who).with_remedy("end that process, and then again"));
            }
            let _ = writeln!(io::stderr().lock(), "{name}: waiting: {who}");
            told = true;
        }
        thread::sleep(Duration::from_millis(20));
    }
    let itself = format!("{}\n", std::process::id());
    file.set_len(0).and_then(|()| file.write_all_at(itself.as_bytes(), 0)).map_err(failed)?;
    Ok(Locked { _file: file, path })
}

/// Returns true when the path still leads to the file.
fn is_at(file: &File, path: &Path) -> bool {
    let (Ok(ours), Ok(there)) = (file.metadata(), fs::symlink_metadata(path)) else { return false };
    (ours.dev(), ours.ino()) == (there.dev(), there.ino())
}

/// Reports the volumes that failed, each with a message. Fails with the only error, where there was
/// one volume; else with `Partial`.
fn end(wrong: &[&Wrong], volumes: Vec<(&Entry, Result<()>)>, named: bool) -> Result<()> {
    let of = wrong.len() + volumes.len();
    let mut failed = wrong.len();
    let mut errors: Vec<Error> = wrong.iter().map(|wrong| wrong.error()).collect();
    for (entry, ended) in volumes {
        let Err(error) = ended else { continue };
        // As crypttab defines it, no service waits for this volume.
        failed += usize::from(named || !entry.may_fail());
        // An error from the server's connection names the volume already.
        let named = error.what().starts_with(&format!("{}: ", entry.name));
        errors.push(if named { error } else { error.within(&entry.name) });
    }
    if of == 1 && failed == 1 {
        return errors.pop().map_or(Ok(()), Err);
    }
    for error in &errors {
        let _ = error.report();
    }
    if failed == 0 {
        return Ok(());
    }
    Err(Error::new(Exit::Partial, format!("{failed} of {of} volumes failed; the others are done")))
}
