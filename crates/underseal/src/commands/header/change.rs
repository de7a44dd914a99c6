//! `underseal header set`, `erase` and `convert`.

use std::fs::File;

use clap::{Args, ValueEnum};
use underseal_device::OpenOptions;
use underseal_volume::{Header, PersistentFlag, Settings, Target, Version};
use uuid::Uuid;

use super::{EXAMPLES, agreed, locked, say, to_change};
use crate::cli::HeaderPathArgs;
use crate::error::Result;
use crate::lower::{DeviceBytes, Lower, open_header, same_file};

/// Changes names and persistent flags
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct HeaderSetArgs {
    #[command(flatten)]
    pub(crate) of: HeaderPathArgs,
    #[command(flatten)]
    pub(crate) what: HeaderSettings,
}

/// The settings, of which at least one is given.
#[derive(Debug, Args)]
#[group(required = true, multiple = true)]
pub(crate) struct HeaderSettings {
    /// LUKS2: a name for people, up to 47 bytes
    #[arg(long, value_name = "TEXT")]
    pub(crate) label: Option<String>,
    /// LUKS2: a second name, up to 47 bytes
    #[arg(long, value_name = "TEXT")]
    pub(crate) subsystem: Option<String>,
    /// The UUID, of a closed volume
    #[arg(long, value_name = "UUID")]
    pub(crate) uuid: Option<Uuid>,
    /// LUKS2: set a flag for every program that opens the volume: allow-discards, same-cpu-crypt,
    /// submit-from-crypt-cpus, no-read-workqueue, no-write-workqueue, high-priority, no-journal
    #[arg(long, value_name = "FLAG")]
    pub(crate) flag: Vec<PersistentFlag>,
    /// LUKS2: clear a flag
    #[arg(long, value_name = "FLAG")]
    pub(crate) no_flag: Vec<PersistentFlag>,
}

pub(super) fn set(args: &HeaderSetArgs) -> Result<()> {
    let path = args.of.path();
    let what = &args.what;
    let settings = Settings {
        label: what.label.clone(),
        subsystem: what.subsystem.clone(),
        uuid: what.uuid,
        on: what.flag.clone(),
        off: what.no_flag.clone(),
    };
    // An open volume is kept from cryptsetup's reencryption by its UUID: it must be closed.
    let _closed = match what.uuid {
        Some(_) => Some((Lower::open(&args.of.image, OpenOptions::default())?, detached(&args.of)?)),
        None => None,
    };
    let on = to_change(&args.of)?;
    let mut header = Header::read(&*on).map_err(|e| e.in_file(path))?;
    Ok(header.set(&*on, &settings).map_err(|e| e.in_file(path))?)
}

/// Excludes a server of the detached header, which may have another image than the one that is
/// named here. Fails with `InUse`.
fn detached(of: &HeaderPathArgs) -> Result<Vec<File>> {
    let header = of.header.as_deref().filter(|header| !same_file(header, &of.image));
    header.map_or_else(|| Ok(Vec::new()), locked)
}

/// Destroys all keyslots: only a backup of the header opens the volume again
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct HeaderEraseArgs {
    #[command(flatten)]
    pub(crate) of: HeaderPathArgs,
    /// Do not ask
    #[arg(long)]
    pub(crate) force: bool,
}

pub(super) fn erase(args: &HeaderEraseArgs, quiet: bool) -> Result<()> {
    let path = args.of.path();
    let on = to_change(&args.of)?;
    let mut header = Header::read(&*on).map_err(|e| e.in_file(path))?;
    let slots = header.info().keyslots.len();
    let first = format!(
        "all {slots} keyslots will be destroyed: no passphrase and no key file opens the volume after that."
    );
    agreed(
        args.force,
        &args.of,
        &[first, "Only a backup of the header brings its data back. Really?".into()],
    )?;
    let gone = header.erase(&*on).map_err(|e| e.in_file(path))?;
    say(quiet, &args.of, &format!("{} keyslots were destroyed", gone.len()))
}

/// Makes a LUKS1 header one of LUKS2, or the other way round, where both can say the same
///
/// Passphrases and data stay as they are, and the volume opens after a crash at any moment. It must
/// not be open. LUKS1 has no label, subsystem, flags and priorities: where there are any, it asks.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct HeaderConvertArgs {
    #[command(flatten)]
    pub(crate) of: HeaderPathArgs,
    /// The version to make
    #[arg(long, value_name = "VERSION", value_enum)]
    pub(crate) to: HeaderVersion,
    /// Do not ask before what LUKS1 has no words for is dropped: label, subsystem, flags,
    /// priorities
    #[arg(long)]
    pub(crate) force: bool,
}

/// The version of LUKS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum HeaderVersion {
    /// Version 1
    Luks1,
    /// Version 2
    Luks2,
}

pub(super) fn convert(args: &HeaderConvertArgs, quiet: bool) -> Result<()> {
    let version = match args.to {
        HeaderVersion::Luks1 => Version::Luks1,
        HeaderVersion::Luks2 => Version::Luks2,
    };
    // The volume must be closed, which the image's lock ensures: its server would later read the
    // header again.
    let device = Lower::open(&args.of.image, OpenOptions::default())?;
    let _detached = detached(&args.of)?;
    let convert = |on: &dyn Target| -> Result<()> {
        let path = args.of.path();
        let header = Header::read(on).map_err(|e| e.in_file(path))?;
        let dropped = header.dropped_by(version);
        if !dropped.is_empty() {
            let question =
                format!("LUKS1 has no words for its {}, which will be dropped.", dropped.join(", "));
            agreed(args.force, &args.of, &[question])?;
        }
        header.convert(on, version).map_err(|e| e.in_file(path))?;
        Ok(())
    };
    match (&args.of.header, &device) {
        (Some(header), _) => convert(&*open_header(header, false)?)?,
        (None, Lower::File(device)) => convert(device.file())?,
        (None, Lower::Nbd(device)) => convert(&DeviceBytes::new(&**device)?)?,
        (None, Lower::Rbd(device)) => convert(&DeviceBytes::new(&**device)?)?,
    }
    say(quiet, &args.of, &format!("it is {} now", if version == Version::Luks1 { "LUKS1" } else { "LUKS2" }))
}
