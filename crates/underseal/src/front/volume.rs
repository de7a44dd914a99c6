//! `resize`, `luksSuspend` and `luksResume`: changes of an open volume.

use underseal_export::control::Status as About;
use underseal_export::control::status::Format;

use super::Words;
use super::args::Args;
use super::call::Call;
use super::failure::{Failure, Result, Status};
use super::loops;
use super::place::Place;
use crate::commands::status_of_open;

/// `resize NAME`: to the size of its device, or `--size` sectors, or `--device-size` bytes.
pub(super) fn resize(args: &Args, words: &Words<'_>) -> Result<()> {
    let place = Place::of(words.need(0, "name")?)?;
    let sectors = args.size.filter(|size| *size > 0).map(|size| format!("{size}s"));
    let size = args.device_size.map(|size| size.to_string()).or(sectors);
    let about = must_be_open(&place)?;
    Call::new(&["resize"]).word(place.name.to_string()).option("size", size).run()?;
    let place = place.where_served(&about);
    match place.device().filter(|_| place.file.is_some()) {
        None => Ok(()),
        Some(device) => loops::resize(&device)
            .map_err(|e| Failure::wrong(&format!("{}: has its old size: {e}", device.display()))),
    }
}

/// `luksSuspend NAME`.
pub(super) fn suspend(_: &Args, words: &Words<'_>) -> Result<()> {
    let place = Place::of(words.need(0, "name")?)?;
    must_be_luks(&place)?;
    Call::new(&["suspend"]).word(place.name.to_string()).flag("wipe", true).run()
}

/// `luksResume NAME`.
pub(super) fn resume(args: &Args, words: &Words<'_>) -> Result<()> {
    let place = Place::of(words.need(0, "name")?)?;
    if !must_be_luks(&place)?.suspended {
        return Err(Failure::wrong(&format!("Volume {} is not suspended.", place.name)));
    }
    let call = Call::new(&["resume"]).word(place.name.to_string());
    let call = call.option("header", args.header.as_ref()).number("key-slot", args.key_slot).tokens(args);
    if args.token_only { call.run() } else { call.secret(args).run() }
}

/// Returns the state of an open volume.
fn must_be_open(place: &Place) -> Result<About> {
    let name = &place.name;
    let not_active = || Failure::new(Status::NoDevice, format!("Device {name} is not active."));
    status_of_open(name)?.ok_or_else(not_active)
}

/// Refuses volumes without a header, which alone can confirm the key.
fn must_be_luks(place: &Place) -> Result<About> {
    let about = must_be_open(place)?;
    match about.opened.as_ref().map(|opened| opened.format) {
        Some(Format::Luks1 | Format::Luks2) => Ok(about),
        _ => Err(Failure::wrong("This operation is supported only for LUKS device.")),
    }
}
