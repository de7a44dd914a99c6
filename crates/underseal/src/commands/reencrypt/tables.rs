//! Volumes without a header: two tables describe the old and the new form, and a state file has the
//! progress.

use std::fs::File;
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;
use underseal_cipher::Key;
use underseal_datapath::Mapping;
use underseal_export::control::Known;
use underseal_export::control::status::{Format, Opened as Described};
use underseal_volume::reencrypt::state::{self, About, State, StateLedger};
use underseal_volume::reencrypt::{self, Direction, Mode, Plan, Protection};
use underseal_volume::table::Target;
use underseal_volume::{ErrorKind, LockTo, Stored};

use super::super::table::{TableFileArgs, devices, parse, refused};
use super::super::{same_file, table};
use super::args::ReencryptArgs;
use super::begin::losing::Losses;
use super::{alone, begin};
use crate::cli::LowerArgs;
use crate::error::{Error, Result};
use crate::lower::Lower;
use crate::output::print;
use crate::reencryption::marker;
use crate::reencryption::{self, Kept, Keys, Place, Stood, Where};
use crate::volume::{Inside, Locks, Opened};

/// The form of a volume in one table.
struct Form {
    stored: Stored,
    key: Option<Key>,
    device: PathBuf,
    /// The length in bytes.
    len: u64,
}

/// Reencrypts a closed volume.
pub(super) fn run(args: &ReencryptArgs, path: &Path, quiet: bool) -> Result<()> {
    let [old, new] = forms(args)?;
    if ![&old, &new].iter().all(|form| same_file(&form.device, &args.image)) {
        let error = Error::usage(format!("{}: the tables name another device", args.image.display()));
        return Err(error.with_remedy("the same image in both tables, and here"));
    }
    let options = underseal_device::OpenOptions::default();
    let lower = Lower::open_unfinished(&args.image, options)?;
    begin::refuse_looped(&args.image)?;
    let data = lower.again();
    let size = reencryption::size(&data.bytes()?)?;
    let (kept, marker) = if path.exists() {
        let on = Where::open(path, false)?;
        let bytes = on.bytes()?;
        let state = State::read(&*bytes, LockTo::Read).map_err(|e| unreadable(e, path))?;
        let about = state.about();
        if about.finished {
            // The state may belong to another image.
            let keys = state::Keys { old: old.key.as_ref(), new: new.key.as_ref() };
            let mut ledger = state.unlock(keys, size).map_err(|e| e.in_file(path))?;
            // Its end may be in memory only.
            reencrypt::Ledger::secure(&mut ledger).map_err(|e| e.in_file(path))?;
            return over(args, path, quiet);
        }
        drop(state);
        begin::fits(args, Some(Mode::Reencrypt), path)?;
        says_nothing_of_steps(args, path)?;
        let marker = match is_of(&args.image, path, &about)? {
            true => marker::open(&args.image)?,
            false => {
                Losses::default().and(not_told(&args.image, path), MOVED).sure(args)?;
                marker::make(&args.image, path, about.identity)?
            }
        };
        (on, marker)
    } else {
        begin::fits(args, None, path)?;
        marker::refuse_unfinished(&args.image)?;
        Losses::default().unprotected(args, &args.image).sure(args)?;
        let plan = plan(args, &old, &new)?;
        let file = begin::new_file(path)?;
        let keys = state::Keys { old: old.key.as_ref(), new: new.key.as_ref() };
        let created = StateLedger::create(
            &file,
            plan,
            keys,
            size,
            args.pbkdf.iterations().unwrap_or(State::ITERATIONS),
        );
        let identity = created.map(|ledger| ledger.about().identity).map_err(|e| e.in_file(path).into());
        let made = identity.and_then(|identity| {
            reserve(file.file(), path)?;
            marker::make(&args.image, path, identity)
        });
        let marker = made.inspect_err(|_| {
            // No marker refers to the state yet.
            underseal_volume::remove_new_file(path, file.file());
        })?;
        (Where::File(file), marker)
    };
    let place = Place::new(data, Kept::State(kept, marker));
    alone::go_on(args, &place, &Keys::Forms(old.key, new.key), quiet)?;
    if args.init_only {
        return Ok(());
    }
    place.is_done();
    over(args, path, quiet)
}

/// Has all of a new state on its disk: a full one is noticed before anything has begun. Fails with
/// `Failed`.
fn reserve(file: &File, path: &Path) -> Result<()> {
    let failed = |e: std::io::Error| Error::io(path, "cannot have all of its bytes", e);
    let len = file.metadata().map_err(failed)?.len();
    match fallocate(file, FallocateFlags::empty(), 0, len) {
        Err(e @ (Errno::NOSPC | Errno::DQUOT)) => {
            let remedy = "nothing has begun: the same when there is room, or --state on another disk";
            Err(failed(e.into()).with_remedy(remedy))
        }
        // Some file systems reserve nothing.
        _ => Ok(()),
    }
}

/// The error of a file that was named as a state.
fn unreadable(e: underseal_volume::Error, path: &Path) -> Error {
    let is_none = matches!(e.kind(), ErrorKind::NoHeader | ErrorKind::BadHeader);
    let error = Error::from(e.in_file(path));
    if !is_none {
        return error;
    }
    error.with_remedy(format!(
        "--state with the state of this image; if nothing has begun, remove {} and begin without --resume-only",
        path.display()
    ))
}

/// Refuses options about steps: the state has their resilience and length. Fails with `Usage`.
pub(super) fn says_nothing_of_steps(args: &ReencryptArgs, name: &Path) -> Result<()> {
    let said = [
        (args.resilience.is_some(), "--resilience"),
        (args.resilience_hash.is_some(), "--resilience-hash"),
        (args.hotzone_size.is_some(), "--hotzone-size"),
        (args.direction.is_some(), "--direction"),
    ];
    let Some((_, option)) = said.into_iter().find(|(is_said, _)| *is_said) else { return Ok(()) };
    let what =
        format!("{}: has begun, and goes on as its state says: {option} changes nothing", name.display());
    Err(Error::usage(what).with_remedy(format!("without {option}")))
}

/// Returns true when a state is the image's, by the marker beside the image; also where the image
/// can have no marker. Fails with `Usage` when the image has another state, or no step has begun
/// yet.
fn is_of(image: &Path, path: &Path, about: &About) -> Result<bool> {
    let shown = image.display();
    match marker::look(image)? {
        Some(found) if found.identity == about.identity => Ok(true),
        Some(found) => {
            let what = format!("{shown}: its state is {}, and not {}", found.state.display(), path.display());
            Err(Error::usage(what).with_remedy("--state with that one"))
        }
        None if marker::place(image).is_none() => Ok(true),
        None if about.done == 0 && !about.hot => {
            let what = format!("{}: was cut off as it was made; nothing has begun", path.display());
            Err(Error::usage(what).with_remedy("remove it, and begin again"))
        }
        None => Ok(false),
    }
}

fn not_told(image: &Path, path: &Path) -> String {
    let beside = marker::place(image).unwrap_or_default();
    format!(
        "{}: there is no {} to tell that {} is the state of this image. If it is another one's, all of this image is lost.",
        image.display(),
        beside.display(),
        path.display()
    )
}

const MOVED: &str = "the image that it is of; or --force, if this one was moved or copied without that file";

/// Opens a volume with an unfinished reencryption, in its present layout. Fails with the errors of
/// the tables, the state file and the device.
pub(crate) fn open(old: &Path, new: &Path, path: &Path, lower: LowerArgs) -> Result<Opened> {
    let [old, new] = [form(old)?, form(new)?];
    if !same_file(&old.device, &new.device) {
        return Err(Error::usage("the tables name two devices").with_remedy("the same image in both tables"));
    }
    let options = lower.options(false);
    let device = Lower::open_unfinished(&old.device, options)?;
    let on = Where::open(path, false)?;
    let about = {
        let bytes = on.bytes()?;
        State::read(&*bytes, LockTo::Read).map_err(|e| unreadable(e, path))?.about()
    };
    if !about.finished && !is_of(&old.device, path, &about)? {
        let remedy =
            format!("`underseal reencrypt {} --resume-only` asks whether it is", old.device.display());
        return Err(Error::usage(not_told(&old.device, path)).with_remedy(remedy));
    }
    let kept = Kept::State(on, marker::open(&old.device)?);
    let place = Place::new(device.again(), kept);
    let keys = Keys::Forms(old.key, new.key);
    let (on, data) = place.bytes()?;
    let (volume, stood) = {
        let ledger = place.ledger(&*on, &keys, reencryption::size(&data)?, None);
        let mut ledger = ledger.map_err(|e| e.in_file(path))?;
        reencryption::mend(&data, &mut *ledger)?;
        // Clients write to the volume in its present layout, so the layout must survive a crash.
        ledger.secure().map_err(|e| e.in_file(path))?;
        (ledger.plan().volume(ledger.progress())?, Stood::of(&*ledger))
    };
    let key_size = crate::volume::key_size(&volume);
    Ok(Opened {
        mapping: Mapping::new(volume, device.into_device())?.with_sectors(stood.sectors()),
        lower: vec![old.device, path.to_owned()],
        opened: Described {
            format: Format::Table,
            header: None,
            header_offset: 0,
            key_size,
            hash: None,
            plain: None,
            discards: false,
        },
        known: Known::default(),
        layers: Vec::new(),
        inside: Some(Inside { place, stood: Some((stood, keys)) }),
        unfinished: false,
        locks: Locks::default(),
        image: None,
    })
}

/// Returns the keys of both tables.
pub(super) fn keys(args: &ReencryptArgs) -> Result<[Option<Key>; 2]> {
    Ok(forms(args)?.map(|form| form.key))
}

fn over(args: &ReencryptArgs, path: &Path, quiet: bool) -> Result<()> {
    if marker::look(&args.image)?.is_none()
        && let Some(marker) = marker::open(&args.image)?
    {
        // The program that brought it to its end could not remove it.
        marker::end(&marker);
    }
    if quiet {
        return Ok(());
    }
    let new = args.new_table.as_deref().unwrap_or(Path::new("the new table"));
    print(&format!(
        "{}: the new table opens it now ({}); {} is of no use any more\n",
        args.image.display(),
        new.display(),
        path.display()
    ))
}

/// Reads both tables. Fails with `Usage` where one is missing.
fn forms(args: &ReencryptArgs) -> Result<[Form; 2]> {
    let missing = || {
        Error::usage("a volume without a header wants both tables").with_remedy("--old-table and --new-table")
    };
    let form = |path: &Option<PathBuf>| form(path.as_deref().ok_or_else(missing)?);
    Ok([form(&args.old_table)?, form(&args.new_table)?])
}

fn form(path: &Path) -> Result<Form> {
    let bad = |what: &str| Error::usage(format!("{}: {what}", path.display()));
    let table = parse(&TableFileArgs { table: path.to_owned() })?;
    let [line] = table.lines() else {
        return Err(bad("a volume of one line can be reencrypted, and no other"));
    };
    let key = match &line.target {
        Target::Crypt(crypt) => Some(crypt.key.bytes()?),
        Target::Linear { .. } => None,
        Target::Integrity(_) => return Err(bad("what keeps tags is not rewritten in place")),
        Target::Zero | Target::Error => return Err(bad("nothing is stored there")),
        Target::Striped(_) | Target::Delay(_) | Target::Verity(_) => {
            return Err(bad("a crypt line or a linear one can be rewritten"));
        }
    };
    // The caller opens the devices, once.
    let volume = table.volume(&[u64::MAX]).map_err(table::refused)?;
    let stored = volume.segments().first().and_then(|segment| segment.as_stored()).cloned();
    let stored = stored.ok_or_else(|| bad("nothing is stored there"))?;
    let device = devices(&table).into_iter().next().ok_or_else(|| bad("it names no device"))?;
    Ok(Form { stored, key, device, len: volume.size() })
}

fn plan(args: &ReencryptArgs, old: &Form, new: &Form) -> Result<Plan> {
    if (old.len, old.stored.lower) != (new.len, new.stored.lower) {
        let error = Error::usage("the tables put the data at different places");
        return Err(error.with_remedy("the same length and the same offset in both"));
    }
    let mode = match (&old.key, &new.key) {
        (Some(_), Some(_)) => Mode::Reencrypt,
        (None, Some(_)) => Mode::Encrypt,
        (Some(_), None) => Mode::Decrypt,
        (None, None) => return Err(Error::usage("nothing is encrypted, neither before nor after")),
    };
    let unit = [old, new].iter().map(|form| form.stored.cipher.sector_size().bytes()).max().unwrap_or(512);
    let cipher_parameters =
        [old, new].into_iter().filter_map(|form| form.stored.cipher_parameters.as_deref());
    let forms: Vec<_> = cipher_parameters
        .map(|cipher_parameters| (cipher_parameters.cipher.clone(), cipher_parameters.sector_size))
        .collect();
    begin::refuse_datashift(args)?;
    let protection = begin::protection(args, &args.image, &forms)?;
    let block = if let Protection::Checksum { block, .. } = protection { block } else { 4096 };
    let alignment = block.max(unit as u64);
    let hot_zone = reencrypt::hot_zone(args.hotzone_size, alignment, u64::MAX);
    let plan = Plan {
        mode,
        direction: begin::direction(args).unwrap_or(Direction::Forward),
        size: old.len,
        old: old.stored.clone(),
        new: new.stored.clone(),
        moved: None,
        protection,
        area: reencrypt::room(protection, hot_zone),
        hot_zone,
        alignment,
    };
    plan.check().map_err(|e| match e.kind() {
        ErrorKind::BadLayout => refused(e),
        _ => e.into(),
    })?;
    Ok(plan)
}
