//! `resize`, `luksSuspend` and `luksResume`: an open volume changes.

use super::Words;
use super::args::Args;
use super::call::Call;
use super::failure::Result;
use super::place::Place;

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
    Call::new(&["suspend"]).word(place.name.to_string()).flag("wipe", true).run()
}

/// `luksResume NAME`.
pub(super) fn resume(args: &Args, words: &Words<'_>) -> Result<()> {
    let place = Place::of(words.need(0, "name")?)?;
    Call::new(&["resume"]).word(place.name.to_string()).secret(args).run()
}
