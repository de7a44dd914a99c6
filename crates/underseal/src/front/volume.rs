//! `resize`, `luksSuspend` and `luksResume`: an open volume changes.

use underseal_export::control::status::Format;

use super::Words;
use super::args::Args;
use super::call::Call;
use super::failure::{Failure, Result, Status};
use super::place::Place;
use crate::commands::status_of_open;

/// `resize NAME`: to all that its device has, or `--size` sectors, or `--device-size` bytes.
pub(super) fn resize(args: &Args, words: &Words<'_>) -> Result<()> {
    let place = Place::of(words.need(0, "name")?)?;
    let sectors = args.size.filter(|size| *size > 0).map(|size| format!("{size}s"));
    let size = args.device_size.map(|size| size.to_string()).or(sectors);
    Call::new(&["resize"]).word(place.name.to_string()).option("size", size).run()
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
    must_be_luks(&place)?;
    let call = Call::new(&["resume"]).word(place.name.to_string());
    call.option("header", args.header.as_ref()).number("key-slot", args.key_slot).secret(args).run()
}

/// Only a header tells which key is the right one.
fn must_be_luks(place: &Place) -> Result<()> {
    let name = &place.name;
    let not_active = || Failure::new(Status::NoDevice, format!("Device {name} is not active."));
    match status_of_open(name)?.ok_or_else(not_active)?.opened.map(|opened| opened.format) {
        Some(Format::Luks1 | Format::Luks2) => Ok(()),
        _ => Err(Failure::wrong("This operation is supported only for LUKS device.")),
    }
}
