//! `isLuks`, `luksUUID` and `luksDump`.

use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use underseal_volume::{ErrorKind, Header};

use super::args::Args;
use super::call::Call;
use super::failure::{Failure, Result, Status};
use super::open::must_exist;
use super::{Words, dump as layout};
use crate::error::Error;
use crate::lower::open_header;
use crate::output::{json, print, printable};

/// `isLuks DEVICE`: answers by its status alone.
pub(super) fn is_luks(args: &Args, words: &Words<'_>) -> Result<()> {
    let device = words.need(0, "device")?;
    must_exist(device)?;
    match read(args, device) {
        Ok(header) if fits(args, &header) => Ok(()),
        _ => Err(Failure::quiet(Status::Wrong)),
    }
}

/// `luksUUID DEVICE`: prints the UUID, or sets the one of `--uuid`.
pub(super) fn uuid(args: &Args, words: &Words<'_>) -> Result<()> {
    let device = words.need(0, "device")?;
    if let Some(uuid) = &args.uuid {
        find(args, device)?;
        super::header::sure(args, "Do you really want to change UUID of device?")?;
        let call = Call::new(&["header", "set"]).word(device).option("header", args.header.as_ref());
        return call.option("uuid", Some(uuid)).run();
    }
    let header = find(args, device)?;
    Ok(print(&format!("{}\n", printable(&header.info().uuid)))?)
}

/// `luksDump DEVICE`.
pub(super) fn dump(args: &Args, words: &Words<'_>) -> Result<()> {
    let device = words.need(0, "device")?;
    if args.dump_volume_key {
        return super::key::dump(args, device);
    }
    if let (true, Some(slot)) = (args.unbound, args.key_slot) {
        return super::key::dump_unbound(args, device, slot);
    }
    let header = find(args, device)?;
    let info = header.info();
    if !args.dump_json_metadata {
        return Ok(print(&layout::text(&info, &device.to_string_lossy()))?);
    }
    let metadata = info.metadata.ok_or_else(|| Failure::wrong("Operation is not supported for LUKS1."))?;
    Ok(print(&json(&metadata)?)?)
}

/// Reads the header of a device, which must exist and be of the requested type.
pub(super) fn find(args: &Args, device: &Path) -> Result<Header> {
    must_exist(args.header.as_deref().unwrap_or(device))?;
    let shown = printable(&device.to_string_lossy());
    let header = read(args, device).map_err(|e| match e.kind() {
        ErrorKind::NoHeader => Failure::wrong(&format!("Device {shown} is not a valid LUKS device.")),
        _ => Error::from(e).within(&shown).into(),
    })?;
    if fits(args, &header) {
        return Ok(header);
    }
    let kind = args.kind.as_deref().unwrap_or_default().to_uppercase();
    Err(Failure::wrong(&format!("Device {shown} is not a valid {kind} device.")))
}

/// Reads the header, whatever its version.
pub(super) fn read(args: &Args, device: &Path) -> underseal_volume::Result<Header> {
    let path = args.header.as_deref().unwrap_or(device);
    let on = open_header(path, true).map_err(|e| underseal_volume::Error::new(ErrorKind::Io, e.what()))?;
    Header::read(&*on)
}

fn fits(args: &Args, header: &Header) -> bool {
    let found = if let Header::Luks1(_) = header { "luks1" } else { "luks2" };
    args.kind
        .as_deref()
        .is_none_or(|kind| kind.eq_ignore_ascii_case("luks") || kind.eq_ignore_ascii_case(found))
}

/// Returns true when a filesystem or another program has claimed a block device.
pub(super) fn is_claimed(device: &Path) -> bool {
    let opened = rustix::fs::open(device, OFlags::RDONLY | OFlags::EXCL | OFlags::CLOEXEC, Mode::empty());
    opened.is_err_and(|e| e == Errno::BUSY)
}
