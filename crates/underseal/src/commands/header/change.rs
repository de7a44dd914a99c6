//! `underseal header set`, `erase` and `convert`.

use underseal_device::OpenOptions;
use underseal_volume::{Header, Settings, Target, Version};

use super::{agreed, say, to_change};
use crate::cli::{HeaderConvertArgs, HeaderEraseArgs, HeaderSetArgs, HeaderVersion};
use crate::error::Result;
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
    let _closed = match what.uuid {
        Some(_) => Some(Lower::open(&args.of.image, OpenOptions::default())?),
        None => None,
    };
    let on = to_change(&args.of)?;
    let mut header = Header::read(&*on).map_err(|e| e.in_file(path))?;
    Ok(header.set(&*on, &settings).map_err(|e| e.in_file(path))?)
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
