//! `underseal header set`, `erase` and `convert`.

use underseal_device::OpenOptions;
use underseal_volume::{ErrorKind, Header, ReencryptionLock, Settings, Target, Version};

use super::{agreed, say, to_change};
use crate::cli::{HeaderConvertArgs, HeaderEraseArgs, HeaderPathArgs, HeaderSetArgs, HeaderVersion};
use crate::error::{Error, Result};
use crate::lower::{DeviceBytes, Lower, open_header};

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
    let _unused = match what.uuid {
        Some(_) => Some(Lower::open(&args.of.image, OpenOptions::default())?),
        None => None,
    };
    let on = to_change(&args.of)?;
    let mut header = Header::read(&*on).map_err(|e| e.in_file(path))?;
    let _closed = match what.uuid {
        Some(_) => closed(&args.of, &header, &*on)?,
        None => None,
    };
    Ok(header.set(&*on, &settings).map_err(|e| e.in_file(path))?)
}

/// Excludes an open volume whose detached header is the image: its server has locked its data only.
/// Fails with `InUse`.
fn closed(of: &HeaderPathArgs, header: &Header, on: &dyn Target) -> Result<Option<ReencryptionLock>> {
    // The image that goes with a header is locked itself.
    if of.header.is_some() {
        return Ok(None);
    }
    ReencryptionLock::of_closed(header, on).map_err(|e| {
        let (is_open, e) = (e.kind() == ErrorKind::Busy, Error::from(e.in_file(of.path())));
        if is_open { e.with_remedy("`underseal close` it first") } else { e }
    })
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

pub(super) fn convert(args: &HeaderConvertArgs, quiet: bool) -> Result<()> {
    let version = match args.to {
        HeaderVersion::Luks1 => Version::Luks1,
        HeaderVersion::Luks2 => Version::Luks2,
    };
    // The volume must be closed, which the image's lock ensures: its server would later read the
    // header again.
    let device = Lower::open(&args.of.image, OpenOptions::default())?;
    let convert = |on: &dyn Target| -> Result<()> {
        let path = args.of.path();
        let header = Header::read(on).map_err(|e| e.in_file(path))?;
        let _closed = closed(&args.of, &header, on)?;
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
