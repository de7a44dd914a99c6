//! Beside an image without a header: a file that tells that it is in the middle of a reencryption,
//! and where its state is.
//!
//! Nothing in such an image can tell. Whoever opens it looks for `IMAGE.underseal-state`, which is
//! the state itself, or names it (`docs/reencryption-state.md`). Block devices and servers have no
//! place beside them.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use underseal_volume::reencrypt::state::{About, State};
use underseal_volume::{ErrorKind, LockTo, ReadAt};
use uuid::Uuid;

use super::Where;
use crate::error::{Error, Result};
use crate::lower::is_remote;

/// What a marker may take.
const LEN: usize = 8 << 10;
const VERSION: u32 = 1;

/// The file of an image whose reencryption goes on.
pub(crate) struct Marker {
    path: PathBuf,
    file: File,
}

/// What was found beside an image.
pub(crate) struct Found {
    /// Which reencryption it is.
    pub(crate) identity: Uuid,
    /// Where its state is.
    pub(crate) state: PathBuf,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Text {
    #[serde(rename = "underseal reencryption marker")]
    version: u32,
    identity: Uuid,
    state: PathBuf,
}

/// Where the marker of an image is, if it can have one.
pub(crate) fn place(image: &Path) -> Option<PathBuf> {
    if is_remote(image) {
        return None;
    }
    let image = fs::canonicalize(image).ok()?;
    let mut name = image.file_name()?.to_owned();
    name.push(".underseal-state");
    fs::metadata(&image).is_ok_and(|about| about.is_file()).then(|| image.with_file_name(name))
}

/// Whether a name is taken, if only by a link to what is not there now: that may be the state, on a
/// disk that is not.
fn is_there(path: &Path) -> bool {
    !fs::symlink_metadata(path).is_err_and(|e| e.kind() == io::ErrorKind::NotFound)
}

/// Refuses an image that is in the middle of a reencryption to who does not know how far that is.
///
/// # Errors
/// `Usage`; `Failed` when what is beside the image cannot be read.
pub(crate) fn refuse(image: &Path) -> Result<()> {
    let Some(Found { state, .. }) = look(image)? else { return Ok(()) };
    let (image, state) = (image.display(), state.display());
    let what = format!("{image}: is in the middle of a reencryption: {state} says which bytes are old");
    Err(Error::usage(what).with_remedy(format!(
        "underseal reencrypt {image} --resume-only --state {state}, with both tables; or underseal table open with both and --state"
    )))
}

/// What tells that an image is in the middle of a reencryption; none where nothing does, or all is
/// new.
///
/// # Errors
/// `Usage` when something else is there; `Failed` when it cannot be read.
pub(crate) fn look(image: &Path) -> Result<Option<Found>> {
    let Some(path) = place(image).filter(|path| is_there(path)) else { return Ok(None) };
    if let Some(about) = about(&path)? {
        return Ok((!about.finished).then_some(Found { identity: about.identity, state: path }));
    }
    let Some(Text { identity, state, .. }) = read(&path)? else { return Ok(None) };
    // It may have come to its end where nobody could remove this.
    let is_over =
        state.exists() && about(&state)?.is_some_and(|about| about.finished && about.identity == identity);
    Ok((!is_over).then_some(Found { identity, state }))
}

/// What a state file says; none where it is no state.
fn about(path: &Path) -> Result<Option<About>> {
    let on = Where::open(path, true)?.into_bytes()?;
    match State::read(&*on, LockTo::Read) {
        Ok(state) => Ok(Some(state.about())),
        Err(e) if matches!(e.kind(), ErrorKind::NoHeader | ErrorKind::TooSmall) => Ok(None),
        Err(e) => Err(e.in_file(path).into()),
    }
}

/// What a marker says; none where it is blank.
fn read(path: &Path) -> Result<Option<Text>> {
    let failed = |e| Error::io(path, "cannot be read", e);
    let file = File::open(path).map_err(failed)?;
    let other = || {
        let error = Error::usage(format!("{}: is neither a state nor a marker of one", path.display()));
        error.with_remedy("move it away, if it has nothing to do with the image")
    };
    let len = usize::try_from(ReadAt::size(&file).map_err(failed)?).ok().filter(|len| *len <= LEN);
    let mut bytes = vec![0; len.ok_or_else(other)?];
    FileExt::read_exact_at(&file, &mut bytes, 0).map_err(failed)?;
    if bytes.iter().all(u8::is_ascii_whitespace) {
        return Ok(None);
    }
    let text: Text = serde_json::from_slice(&bytes).map_err(|_| other())?;
    if text.version == VERSION { Ok(Some(text)) } else { Err(other()) }
}

impl Marker {
    /// Makes it, on stable storage with its name; none where the image can have none, or the state
    /// is there itself.
    ///
    /// # Errors
    /// `Usage` when something is there; `Failed`.
    pub(crate) fn make(
        image: &Path,
        state: &Path,
        identity: Uuid,
        new_file: impl FnOnce(&Path) -> Result<File>,
    ) -> Result<Option<Self>> {
        let Some(path) = place(image) else {
            log::warn!(
                "{}: nothing beside it can tell that it is being reencrypted: it is opened with its state only, until all is done",
                image.display()
            );
            return Ok(None);
        };
        let whole = |path: &Path| fs::canonicalize(path).map_err(|e| Error::io(path, "cannot be found", e));
        let state = whole(state)?;
        if path.exists() {
            if whole(&path)? == state {
                return Ok(None);
            }
            // Of one that has come to its end.
            fs::remove_file(&path).map_err(|e| Error::io(&path, "cannot be removed", e))?;
        }
        let failed = |e| Error::io(&path, "cannot be written", e);
        let text = Text { version: VERSION, identity, state };
        let text = serde_json::to_vec(&text).map_err(|e| failed(e.into()))?;
        let mut file = new_file(&path)?;
        file.write_all(&text).and_then(|()| file.write_all(b"\n")).map_err(failed)?;
        file.sync_all().map_err(failed)?;
        Ok(Some(Self { path, file }))
    }

    /// The one that is there, for who ends the reencryption; none where there is none of its own.
    ///
    /// # Errors
    /// As [`look`].
    pub(crate) fn open(image: &Path) -> Result<Option<Self>> {
        let Some(path) = place(image).filter(|path| is_there(path)) else { return Ok(None) };
        if about(&path)?.is_some() {
            return Ok(None);
        }
        let file = File::options().read(true).write(true).open(&path);
        file.map(|file| Some(Self { path: path.clone(), file }))
            .map_err(|e| Error::io(&path, "cannot open", e))
    }

    /// All is new. A server that may not remove it leaves it blank.
    pub(crate) fn is_over(&self) {
        let len = ReadAt::size(&self.file).ok().and_then(|len| usize::try_from(len).ok());
        let blank = vec![b' '; len.unwrap_or(0).min(LEN)];
        let done = self.file.write_all_at(&blank, 0).and_then(|()| self.file.sync_all());
        if let Err(e) = done {
            log::warn!("{}: tells still that the image is being reencrypted: {e}", self.path.display());
        }
        // It says nothing any more.
        let _ = fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_to_a_state_that_is_not_there_now_keeps_the_image_closed() {
        let folder = tempfile::tempdir().unwrap();
        let image = folder.path().join("image");
        fs::write(&image, [0; 512]).unwrap();
        assert!(look(&image).unwrap().is_none());
        let state = place(&image).unwrap();
        std::os::unix::fs::symlink(folder.path().join("unplugged"), &state).unwrap();
        assert!(look(&image).is_err() && refuse(&image).is_err());
        fs::remove_file(&state).unwrap();
        refuse(&image).unwrap();
    }
}
