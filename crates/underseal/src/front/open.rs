//! `open` and `close`.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use underseal_export::control::Status as About;
use underseal_export::fuse::SOURCE;
use underseal_sandbox::Asked;
use underseal_volume::PersistentFlag;

use super::args::{Args, SERVE};
use super::call::Call;
use super::failure::{Failure, Result, Status};
use super::place::Place;
use super::{Words, foreign, keyslots, tcrypt};
use crate::commands::{CloseLimit, close_open as end, status_of_open};

/// `open DEVICE NAME`.
pub(super) fn open(args: &Args, words: &Words<'_>) -> Result<()> {
    let device = words.need(0, "device")?;
    match (args.test_passphrase, args.kind.as_deref()) {
        (true, Some("tcrypt")) => tcrypt::test(args, device),
        (true, Some("bitlk" | "fvault2")) => foreign::test(args, device),
        (true, _) => keyslots::test(args, device),
        (false, _) => open_as(args, device, words.need(1, "name")?),
    }
}

/// `create NAME DEVICE`, with the older order of arguments for plain volumes.
pub(super) fn create(args: &Args, words: &Words<'_>) -> Result<()> {
    open_as(args, words.need(1, "device")?, words.need(0, "name")?)
}

fn open_as(args: &Args, device: &Path, name: &Path) -> Result<()> {
    let place = Place::of(name)?;
    if args.serve {
        return serve(args, device, place);
    }
    must_exist(device)?;
    let _lock = place.lock()?;
    if is_open(&place) {
        return Err(Failure::new(Status::Busy, format!("Device {} already exists.", place.name)));
    }
    place.make()?;
    // A separate process becomes the server, in the background.
    let itself = std::env::current_exe().map_err(|e| Failure::wrong(&format!("this program: {e}")))?;
    let again = std::env::args_os().skip(1);
    let mut server = Command::new(itself);
    server.arg0("cryptsetup").arg(format!("--{SERVE}")).args(again);
    let status = server.status().map_err(|e| Failure::wrong(&format!("no server: {e}")))?;
    if status.success() {
        if let Some(about) = about(&place)? {
            place.link_up(&about);
        }
        return if args.persistent { persist(args, device) } else { Ok(()) };
    }
    if !is_open(&place) {
        place.clear();
    }
    // The server has printed the message.
    Err(Failure::told(status.code()))
}

/// Writes exactly these flags into the header, for later opens.
fn persist(args: &Args, device: &Path) -> Result<()> {
    let is_set = |flag| match flag {
        PersistentFlag::AllowDiscards => args.allow_discards,
        PersistentFlag::SameCpuCrypt => args.same_cpu_crypt,
        PersistentFlag::SubmitFromCryptCpus => args.submit_from_crypt_cpus,
        PersistentFlag::NoReadWorkqueue => args.no_read_workqueue,
        PersistentFlag::NoWriteWorkqueue => args.no_write_workqueue,
        PersistentFlag::HighPriority => args.high_priority,
        PersistentFlag::NoJournal => args.integrity_no_journal,
    };
    let set = Call::new(&["header", "set"]).word(device).option("header", args.header.as_ref());
    let option = |flag| if is_set(flag) { "flag" } else { "no-flag" };
    PersistentFlag::ALL.into_iter().fold(set, |set, flag| set.option(option(flag), Some(flag.name()))).run()
}

/// Unlocks the volume, and becomes a daemon: this returns only when it fails.
fn serve(args: &Args, device: &Path, place: Place) -> Result<()> {
    let call = volume(Call::new(&["open"]).word(device), args)?
        .flag("read-only", args.readonly)
        .flag("allow-discards", args.allow_discards)
        .flag("integrity-no-journal", args.integrity_no_journal)
        .flag("integrity-recovery-mode", args.integrity_recovery_mode)
        .option("policy", policy(args))
        .option("name", Some(place.name.to_string()))
        .flag("daemon", true);
    let call = match &place.file {
        Some(file) => call.option("fuse", Some(file)),
        None => call.flag("ublk", true),
    };
    // A process serves a single volume.
    let _ = SERVED.set(place);
    call.run()
}

/// The paths of the volume that this process serves.
static SERVED: OnceLock<Place> = OnceLock::new();

/// Does the part of the server's helper for the paths of a volume that is served under
/// cryptsetup's name: the loop device over the file keeps the volume mounted.
pub(crate) fn before_unmounting(asked: Asked<'_>) {
    let Some(place) = SERVED.get() else { return };
    match asked {
        Asked::Mounted(_) | Asked::Killed => {}
        Asked::Unmount { .. } => place.let_go(),
        // `close` may be doing the same, or another server may have the name by now.
        Asked::Gone if place.is_left() => {
            if let Ok(_lock) = place.lock()
                && !is_open(place)
            {
                place.clear();
            }
        }
        Asked::Gone => {}
    }
}

/// Adds the options that name the volume.
pub(super) fn volume(call: Call, args: &Args) -> Result<Call> {
    let kind = args.kind.as_deref().unwrap_or(if is_plain(args) { "plain" } else { "luks" });
    if kind == "tcrypt" {
        return tcrypt::options(call, args);
    }
    let call = call
        .option("type", Some(kind))
        .option("header", args.header.as_ref())
        .number("token-id", args.token_id)
        .option("token-type", args.token_type.as_ref())
        .flag("token-only", args.token_only);
    // With the volume key no passphrase is needed, and with a token none is asked for.
    let no_token = args.disable_external_tokens && args.token_id.is_none() && args.token_type.is_none();
    let no_token = no_token && !args.token_only;
    let call = call.flag("no-token", no_token).flag("tokens-first", args.asks_tokens() && !no_token);
    let luks = |call: Call| match &args.volume_key_file {
        Some(file) => call.option("volume-key-file", Some(file)).number("volume-key-size", args.key_size),
        None if args.token_only => call.number("key-slot", args.key_slot),
        None => call.number("key-slot", args.key_slot).secret(args),
    };
    let file = |call: Call| {
        let call = call
            .option("volume-key-file", args.volume_key_file.as_ref())
            .number("volume-key-size", args.key_size);
        match args.volume_key_file {
            Some(_) => call,
            None => call.secret(args),
        }
    };
    match kind {
        "luks" | "luks1" | "luks2" => Ok(luks(call)),
        "bitlk" | "fvault2" => Ok(file(call)),
        "loopaes" => loopaes(call, args),
        "plain" => {
            // As in cryptsetup, no more of a key file is read than the key's length.
            let call = match args.key_file.first().filter(|path| path.as_os_str() != "-") {
                Some(file) => call
                    .option("key-file", Some(file))
                    .number("keyfile-offset", args.keyfile_offset)
                    .number("keyfile-size", Some(args.key_size.unwrap_or(256) / 8)),
                None => call.secret(args),
            };
            Ok(plain(call, args))
        }
        _ => Err(Failure::unsupported(&format!("--type {kind} is not supported"))),
    }
}

/// Returns true for the older names of actions that imply a plain volume.
fn is_plain(args: &Args) -> bool {
    args.words.first().is_some_and(|action| action == "plainOpen" || action == "create")
}

fn plain(call: Call, args: &Args) -> Call {
    const SECTOR: &str = "s";
    let sectors = |count: Option<u64>| count.map(|count| format!("{count}{SECTOR}"));
    // A key file is not hashed.
    let hashes = args.key_file.first().is_none_or(|path| path.as_os_str() == "-");
    if args.cipher.is_none() || args.key_size.is_none() || hashes && args.hash.is_none() {
        log::warn!(
            "not all of --cipher, --key-size and --hash are given: the defaults are those of cryptsetup 2.7 (aes-xts-plain64, sha256); before, they were \
             aes-cbc-essiv:sha256 and ripemd160"
        );
    }
    call.option("cipher", args.cipher.as_ref())
        .number("key-size", args.key_size)
        .option("hash", args.hash.as_ref())
        .number("sector-size", args.sector_size)
        .flag("iv-large-sectors", args.iv_large_sectors)
        .option("data-offset", sectors(args.offset))
        .option("data-size", args.device_size.map(|bytes| bytes.to_string()).or(sectors(args.size)))
        .number("skip", args.skip)
}

/// Numbers of sectors begin at the offset, unlike those of plain volumes.
fn loopaes(call: Call, args: &Args) -> Result<Call> {
    let Some(file) = args.key_file.first() else {
        return Err(Failure::wrong("Option --key-file is required."));
    };
    Ok(call
        .option("key-file", Some(file))
        .option("cipher", args.cipher.as_ref())
        .number("key-size", args.key_size)
        .option("hash", args.hash.as_ref())
        .option("data-offset", args.offset.map(|sectors| format!("{sectors}s")))
        .number("skip", args.skip))
}

/// Returns the policy for dm-crypt's flags, if any are given.
fn policy(args: &Args) -> Option<String> {
    let flags = underseal_volume::DispatchFlags {
        same_cpu_crypt: args.same_cpu_crypt,
        submit_from_crypt_cpus: args.submit_from_crypt_cpus,
        no_read_workqueue: args.no_read_workqueue,
        no_write_workqueue: args.no_write_workqueue,
        high_priority: args.high_priority,
        ..Default::default()
    };
    (!flags.is_empty()).then(|| underseal_datapath::Policy::from_flags(flags).to_string())
}

/// `close NAME`.
pub(super) fn close(_: &Args, words: &Words<'_>) -> Result<()> {
    let place = Place::of(words.need(0, "name")?)?;
    let Some(about) = about(&place)? else {
        // The remains of a killed server are removed now, unless the volume is just being opened.
        if let Ok(_lock) = place.lock()
            && !is_open(&place)
        {
            place.clear();
        }
        return Err(Failure::new(Status::NoDevice, format!("Device {} is not active.", place.name)));
    };
    let place = place.where_served(&about);
    let _lock = place.lock()?;
    let busy = || Failure::new(Status::Busy, format!("Device {} is still in use.", place.name));
    // A device that a mounted filesystem has claimed, or a program has open, stays.
    if place.device().is_some_and(|device| super::look::is_claimed(&device) || stays_open(&device)) {
        return Err(busy());
    }
    if let Some(file) =
        place.file.as_ref().filter(|file| about.addresses.iter().any(|at| Path::new(at) == *file))
    {
        // A program that was not seen keeps the device until it closes it. Then the kernel gives
        // the device to another file, and the link must not lead there.
        place.detach();
        if is_used(file)? {
            place.lead_to_file();
            return Err(busy());
        }
    }
    end(&place.name, CloseLimit::none())?;
    place.clear();
    Ok(())
}

/// Returns true when a program has a block device open for longer than udev looks at one.
fn stays_open(device: &Path) -> bool {
    (0..20).all(|_| {
        let is_open = underseal_dm::openers(device) > 0;
        if is_open {
            std::thread::sleep(Duration::from_millis(50));
        }
        is_open
    })
}

/// Returns true when a program has the file open. A released loop device takes a moment to
/// disappear.
fn is_used(file: &Path) -> Result<bool> {
    let failed = |e: std::io::Error| Failure::wrong(&format!("{}: {e}", file.display()));
    for _ in 0..20 {
        match is_used_now(file) {
            Ok(true) => std::thread::sleep(Duration::from_millis(50)),
            told => return told.map_err(failed),
        }
    }
    Ok(true)
}

fn is_used_now(file: &Path) -> std::io::Result<bool> {
    let is =
        |e: &std::io::Error, errno: &[Errno]| Errno::from_io_error(e).is_some_and(|e| errno.contains(&e));
    // The mount is gone, or the file as well: the server is about to end.
    let is_gone = |e: &std::io::Error| is(e, &[Errno::INVAL, Errno::NOENT]);
    match underseal_fuse::is_in_use(file) {
        Err(e) if is_gone(&e) => Ok(false),
        // Users other than root find out by unmounting, after which the server ends.
        Err(e) if is(&e, &[Errno::PERM]) => {
            match underseal_fuse::unmount(file, false, |found| found.source == SOURCE) {
                Ok(()) => Ok(false),
                Err(e) if is_gone(&e) => Ok(false),
                Err(e) if is(&e, &[Errno::BUSY]) => Ok(true),
                Err(e) => Err(e),
            }
        }
        told => told,
    }
}

pub(super) fn about(place: &Place) -> Result<Option<About>> {
    let since = Instant::now();
    match status_of_open(&place.name) {
        // A server that is just ending drops its clients.
        Err(_) if since.elapsed() < Duration::from_secs(1) => Ok(status_of_open(&place.name)?),
        about => Ok(about?),
    }
}

fn is_open(place: &Place) -> bool {
    !matches!(about(place), Ok(None))
}

/// Refuses a missing device with cryptsetup's status.
pub(super) fn must_exist(device: &Path) -> Result<()> {
    if crate::lower::is_remote(device) || std::fs::metadata(device).is_ok() {
        return Ok(());
    }
    let line = format!("Device {} does not exist or access denied.", device.display());
    Err(Failure::new(Status::NoDevice, line))
}

/// `refresh DEVICE NAME`.
pub(super) fn refresh(_: &Args, words: &Words<'_>) -> Result<()> {
    words.need(1, "device and name")?;
    Err(Failure::unsupported("refresh: is not supported"))
}
