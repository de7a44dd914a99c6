//! The marker beside an image without a header that is in the middle of a reencryption, in the
//! command's words.

use std::path::Path;

use underseal_device::file_below_loop;
use underseal_volume::ErrorKind;
use underseal_volume::reencrypt::state::marker::{self, MarkedReencryption};
pub(crate) use underseal_volume::reencrypt::state::marker::{Marker, place};
use uuid::Uuid;

use crate::error::{Error, Result};
use crate::lower::is_remote;

/// Refuses a lower device that is in the middle of a reencryption where its state was not named. Of
/// a loop device the file below it counts.
///
/// # Errors
/// `Usage`; `Failed` when what is beside the image cannot be read.
pub(crate) fn refuse_unfinished(image: &Path) -> Result<()> {
    if is_remote(image) {
        return Ok(());
    }
    let below = file_below_loop(image);
    let image = below.as_deref().unwrap_or(image);
    let Some(MarkedReencryption { state, .. }) = look(image)? else { return Ok(()) };
    let (image, state) = (image.display(), state.display());
    let what = format!("{image}: is in the middle of a reencryption: {state} says which bytes are old");
    Err(Error::usage(what).with_remedy(format!(
        "underseal reencrypt {image} --resume-only --state {state}, with both tables; or underseal table open with both and --state"
    )))
}

/// Finds the unfinished reencryption of an image in the file beside the image.
///
/// # Errors
/// `Usage` when something else is there; `Failed` when it cannot be read.
pub(crate) fn look(image: &Path) -> Result<Option<MarkedReencryption>> {
    marker::look(image).map_err(named)
}

/// Makes the marker, or says that the image can have none; none too where the state itself is
/// there.
///
/// # Errors
/// `Usage` when something is there; `Failed`.
pub(crate) fn make(image: &Path, state: &Path, identity: Uuid) -> Result<Option<Marker>> {
    if place(image).is_none() {
        log::warn!(
            "{}: nothing beside it can tell that it is being reencrypted: it is opened with its state only, until all is done",
            image.display()
        );
    }
    Marker::make(image, state, identity).map_err(named)
}

/// The marker that is there.
///
/// # Errors
/// As [`look`].
pub(crate) fn open(image: &Path) -> Result<Option<Marker>> {
    Marker::open(image).map_err(named)
}

/// Takes the marker away: all is new.
pub(crate) fn end(marker: &Marker) {
    if let Err(e) = marker.end() {
        log::warn!("{}", underseal_error::with_causes(&e));
    }
}

fn named(e: underseal_volume::Error) -> Error {
    let is_other = e.kind() == ErrorKind::BadOption;
    let error = Error::from(e);
    if is_other {
        return error.with_remedy("move it away, if it has nothing to do with the image");
    }
    error
}
