//! The online reencryption of an open volume by its server. The passphrases are handled here, and
//! the server gets the keys.

use std::path::Path;
use std::thread;
use std::time::Duration;

use underseal_cipher::Key;
use underseal_export::control::status::{Format, Going, Reencryption};
use underseal_export::control::{Name, Rate, Reencrypt, Request, Status};
use underseal_volume::Header;

use super::super::control::{PATIENCE, ask, ask_status, done, finished, lies_at, without_record};
use super::super::same_file;
use super::args::ReencryptArgs;
use super::{begin, keys, tables};
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::lower::is_remote;
use crate::output::print;
use crate::progress::Progress;
use crate::reencryption::{self, Where};

/// How often the progress is queried.
const LOOK: Duration = Duration::from_millis(500);

pub(super) fn run(args: &ReencryptArgs, name: &Name, status: &Status, quiet: bool) -> Result<()> {
    if args.keep_lost {
        let error = Error::usage(format!("{name}: is open, and no step of it was cut off"));
        return Err(error.with_remedy("--keep-lost when it is closed"));
    }
    let going = status.reencryption.as_ref().map(|of| of.state);
    if matches!(going, Some(Going::Running | Going::Paused)) {
        let Some(rate) = args.rate.filter(|_| !asks_for_more(args)) else {
            let error = Error::usage(format!("{name}: is being reencrypted already"));
            return Err(error.with_remedy(format!(
                "`underseal status {name}` shows how far it is; --pause, --stop, --rate change it"
            )));
        };
        return set_rate(name, rate.0);
    }
    if status.opened.is_none() {
        return Err(without_record(name).with_remedy(format!("`underseal close {name}`, and open it again")));
    }
    if status.opened.as_ref().map(|opened| opened.format) == Some(Format::Table) {
        return table(args, name, quiet);
    }
    if status.opened.as_ref().map(|opened| opened.format) != Some(Format::Luks2) {
        let what = format!("{name}: only LUKS2 volumes and tables are reencrypted while they are open");
        return Err(Error::new(Exit::Unsupported, what).with_remedy("`underseal close` it first"));
    }
    can_be(args, name, status)?;
    let opened = status.opened.as_ref().and_then(|opened| opened.header.as_deref());
    let path = Path::new(opened.unwrap_or(&status.image));
    if let Some(other) = args.header.as_deref().filter(|other| !is_same(other, path)) {
        let what = format!("{name}: is open with the header {}, not {}", path.display(), other.display());
        return Err(Error::usage(what).with_remedy("without --header"));
    }
    let image = Path::new(&status.image);
    let on = Where::open(path, false)?.bytes()?;
    if !lies_at(image, name) {
        let what = format!("{name}: {} is not the file that it was opened from any more", image.display());
        return Err(Error::new(Exit::Failed, what)
            .with_remedy("give that file its name back, or close the volume first"));
    }
    let header = Header::read(&*on).map_err(|e| e.in_file(path))?;
    let under_way = reencryption::status_of(&header).map_err(|e| e.within(path.display()))?;
    begin::fits(args, under_way.map(|status| status.mode), path)?;
    if under_way.is_some() && args.resilience.is_some() {
        let error = Error::usage(format!("{name}: is open, and what protects its steps stays as it is"));
        return Err(error.with_remedy("another --resilience when it is closed"));
    }
    let key = match under_way {
        Some(_) => keys::unlock(args, &header, &*on, path)?.0,
        None => {
            let data = Where::open(Path::new(&status.image), true)?.bytes()?;
            let (detached, size) = (opened.is_some(), Some(status.size));
            let place = begin::Place { on: &*on, name: path, data: &*data, image, detached, size };
            begin::begin(args, header, &place)?
        }
    };
    if args.init_only {
        return say(name, quiet, "all is ready; --resume-only continues");
    }
    let (both, old) = keys::both([Some(key.key()), key.other()])?;
    drop(key);
    start(args, name, (both, old), quiet)
}

fn is_same(one: &Path, other: &Path) -> bool {
    if is_remote(one) || is_remote(other) { one == other } else { same_file(one, other) }
}

/// Resumes the reencryption of a table that was opened with a state file.
fn table(args: &ReencryptArgs, name: &Name, quiet: bool) -> Result<()> {
    if !args.resume_only || args.old_table.is_none() {
        let error = Error::usage(format!("{name}: a table is told what it is and will be when it is opened"));
        return Err(error.with_remedy(
            "--resume-only --old-table FILE --new-table FILE, for one that was opened with --state",
        ));
    }
    tables::says_nothing_of_steps(args, Path::new(name.as_str()))?;
    let [old, new] = tables::keys(args)?;
    start(args, name, keys::both([old.as_ref(), new.as_ref()])?, quiet)
}

/// Sends the server both keys, of which the first has `old` bytes.
fn start(args: &ReencryptArgs, name: &Name, (both, old): (Key, usize), quiet: bool) -> Result<()> {
    let rate = args.rate.map(|rate| rate.0).unwrap_or_default();
    let request = Request::Reencrypt(Reencrypt::Start { old, new: both.len() - old, rate });
    // The server waits for requests in flight.
    finished(name, ask(name, &request, Some(&both), 2 * PATIENCE)?)?;
    drop(both);
    if args.no_wait { say(name, quiet, "is being reencrypted") } else { watch(name, quiet) }
}

/// Checks that the server supports this reencryption, before anything is written.
fn can_be(args: &ReencryptArgs, name: &Name, status: &Status) -> Result<()> {
    let moves = args.encrypt || args.reduce_device_size.is_some() || args.decrypt && args.header.is_some();
    let why = match () {
        () if moves => "its data would move",
        () if args.device_size.is_some() => "its users know its size",
        () if args.sector_size.is_some_and(|size| size > status.block) => {
            "its users were told of smaller sectors"
        }
        () if args.hotzone_size.is_some() => {
            let error = Error::usage(format!("{name}: is open, and a step is as long as its users allow"));
            return Err(error.with_remedy("--rate instead of --hotzone-size"));
        }
        () if !status.can_reencrypt => {
            let why = match status.read_only {
                true => "it is open for reading only",
                false => {
                    "it is authenticated, in a part of its image, on a block device with --direct, or open by an older version"
                }
            };
            let what = format!("{name}: its server cannot reencrypt it: {why}");
            return Err(Error::new(Exit::Unsupported, what).with_remedy("`underseal close` it first"));
        }
        () if status.suspended => {
            let error = Error::usage(format!("{name}: is suspended"));
            return Err(error.with_remedy(format!("underseal resume {name}")));
        }
        () => return Ok(()),
    };
    let error = Error::usage(format!("{name}: is open, and {why}"));
    Err(error.with_remedy("begin with --init-only while it is closed, and open it with --reencrypt"))
}

pub(super) fn set_rate(name: &Name, rate: Rate) -> Result<()> {
    done(name, &Request::Reencrypt(Reencrypt::Rate(rate)))
}

/// Returns true when the options request more than another rate.
fn asks_for_more(args: &ReencryptArgs) -> bool {
    args.resume_only || args.init_only || begin::says_what(args)
}

/// Shows the progress until the end. An interrupt ends the display, and the server continues.
fn watch(name: &Name, quiet: bool) -> Result<()> {
    let mut shown: Option<(Progress, u64)> = None;
    loop {
        let Some(of) = ask_status(name)?.reencryption else { return Ok(()) };
        let Reencryption { state, done, total, error, .. } = of;
        let (progress, before) =
            shown.get_or_insert_with(|| (Progress::new("reencrypting", Some(total), quiet), 0));
        progress.advance(done.saturating_sub(*before));
        *before = done;
        let again = || format!("underseal reencrypt {name} --resume-only");
        match state {
            Going::Running | Going::Paused => thread::sleep(LOOK),
            Going::Done => {
                drop(shown);
                return say(name, quiet, "done");
            }
            Going::Stopped => {
                let error = Error::new(Exit::Failed, format!("{name}: was stopped"));
                return Err(error.with_remedy(again()));
            }
            Going::Failed => {
                let why = error.unwrap_or_else(|| "its server says no more".into());
                return Err(Error::new(Exit::Failed, format!("{name}: {why}")).with_remedy(again()));
            }
        }
    }
}

fn say(name: &Name, quiet: bool, what: &str) -> Result<()> {
    if quiet { Ok(()) } else { print(&format!("{name}: {what}\n")) }
}
