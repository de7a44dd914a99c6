//! Beside an image without a header: a file that tells that the image is in the middle of a
//! reencryption, and where its state is.
//!
//! Nothing in such an image can tell. Each program that opens one looks for
//! `IMAGE.underseal-state`, which is the state itself, or names it
//! (`docs/reencryption-state.md`). Block devices and servers have no place beside them. Through
//! another name of the image (a hard link, a bind mount) an extended attribute leads to the file.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, XattrFlags, fstat};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{About, State};
use crate::storage::new_file::{new_file, remove_new_file};
use crate::{Error, ErrorKind, LockTo, ReadAt, Result, storage};

/// The most bytes of a marker.
const LEN: usize = 8 << 10;
const VERSION: u32 = 1;
/// The end of the file's name, after the image's.
const SUFFIX: &str = ".underseal-state";
/// The most bytes of a file's name on Linux.
const MOST_NAME: usize = 255;

/// The attribute of an image that has the path of the file beside it. It may outlive that file, and
/// says nothing then.
const ATTRIBUTE: &str = "user.underseal.reencryption";

/// The file beside an image whose reencryption goes on.
pub struct Marker {
    path: PathBuf,
    file: File,
}

/// An unfinished reencryption of an image, as the file beside the image names it.
#[derive(Debug)]
pub struct MarkedReencryption {
    /// The reencryption's identity, which its state has, too.
    pub identity: Uuid,
    /// Where its state is.
    pub state: PathBuf,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Text {
    #[serde(rename = "underseal reencryption marker")]
    version: u32,
    identity: Uuid,
    state: PathBuf,
}

/// Where the marker of an image is, if the image can have one.
pub fn place(image: &Path) -> Option<PathBuf> {
    let image = fs::canonicalize(image).ok()?;
    let mut name = image.file_name()?.to_owned();
    name.push(SUFFIX);
    let can_be = name.len() <= MOST_NAME && fs::metadata(&image).is_ok_and(|about| about.is_file());
    can_be.then(|| image.with_file_name(name))
}

/// Whether a name is taken, if only by a link to a file that is not there now: that may be the
/// state, on a disk that is not.
fn is_there(path: &Path) -> bool {
    !fs::symlink_metadata(path).is_err_and(|e| e.kind() == io::ErrorKind::NotFound)
}

fn io_error(path: &Path, doing: &str, e: io::Error) -> Error {
    Error::new(ErrorKind::Io, format!("{}: {doing}", path.display())).with_source(e)
}

/// The reencryption that an image is in the middle of; none where nothing beside the image tells of
/// one, or all is new.
///
/// # Errors
/// `BadOption` when something else is there; `Io` and those of the state when it cannot be read.
pub fn look(image: &Path) -> Result<Option<MarkedReencryption>> {
    match place(image).filter(|path| is_there(path)) {
        Some(path) => look_at(path),
        None => match beside_another_name(image) {
            // The image's owner may have written anything there.
            Some(path) => look_at(path).or_else(|e| if is_other(&e) { Ok(None) } else { Err(e) }),
            None => Ok(None),
        },
    }
}

fn is_other(e: &Error) -> bool {
    e.kind() == ErrorKind::BadOption
}

/// The file beside the image's name of the time when the reencryption began.
fn beside_another_name(image: &Path) -> Option<PathBuf> {
    let mut bytes = [0; LEN];
    let len = rustix::fs::getxattr(image, ATTRIBUTE, &mut bytes[..]).ok()?;
    let path = PathBuf::from(OsString::from_vec(bytes.get(..len)?.to_vec()));
    let is_named_so = path.is_absolute() && path.as_os_str().as_bytes().ends_with(SUFFIX.as_bytes());
    (is_named_so && is_there(&path)).then_some(path)
}

/// Writes the attribute. Where the file system has none, or the user may not write to the image, it
/// is found by its own name alone.
fn lead_from_other_names(image: &Path, to: &Path) -> Result<()> {
    let value = to.as_os_str().as_bytes();
    if rustix::fs::setxattr(image, ATTRIBUTE, value, XattrFlags::empty()).is_err() {
        return Ok(());
    }
    let synced = File::open(image).and_then(|image| image.sync_all());
    synced.map_err(|e| io_error(image, "cannot be synced", e))
}

fn look_at(path: PathBuf) -> Result<Option<MarkedReencryption>> {
    let file = open_regular(&path, OFlags::RDONLY)?;
    if let Some(about) = about_of(&file).map_err(|e| e.in_file(&path))? {
        let marked = MarkedReencryption { identity: about.identity, state: path };
        return Ok((!about.finished).then_some(marked));
    }
    let Some(Text { identity, state, .. }) = read(&file, &path)? else { return Ok(None) };
    // The reencryption may have ended where no program could remove this file.
    let is_file = fs::metadata(&state).is_ok_and(|about| about.is_file());
    let is_over = is_file && about(&state)?.is_some_and(|about| about.finished && about.identity == identity);
    Ok((!is_over).then_some(MarkedReencryption { identity, state }))
}

/// Opens a regular file. The owner of the image's folder chooses what is there: nothing else is
/// opened, since opening a device may do something, and that of a pipe waits.
/// Fails with `BadOption` when something else is there; with `Io`.
fn open_regular(path: &Path, access: OFlags) -> Result<File> {
    let failed = |e: rustix::io::Errno| io_error(path, "cannot open", e.into());
    let follows = access & OFlags::NOFOLLOW;
    let found =
        rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC | follows, Mode::empty()).map_err(failed)?;
    if FileType::from_raw_mode(fstat(&found).map_err(failed)?.st_mode) != FileType::RegularFile {
        return Err(other(path));
    }
    // The file that was looked at, whatever has the name by now.
    let same = format!("/proc/self/fd/{}", found.as_raw_fd());
    let file = rustix::fs::open(same, (access - follows) | OFlags::CLOEXEC, Mode::empty());
    file.map(File::from).map_err(failed)
}

fn other(path: &Path) -> Error {
    Error::new(ErrorKind::BadOption, format!("{}: is neither a state nor a marker of one", path.display()))
}

/// The summary of a state file; none where the file is no state.
fn about(path: &Path) -> Result<Option<About>> {
    about_of(&open_regular(path, OFlags::RDONLY)?).map_err(|e| e.in_file(path))
}

fn about_of(on: &File) -> Result<Option<About>> {
    match State::read(on, LockTo::Read) {
        Ok(state) => Ok(Some(state.about())),
        Err(e) if matches!(e.kind(), ErrorKind::NoHeader | ErrorKind::TooSmall) => Ok(None),
        Err(e) => Err(e),
    }
}

/// The text of a marker; none where the marker is blank.
fn read(file: &File, path: &Path) -> Result<Option<Text>> {
    let failed = |e| io_error(path, "cannot be read", e);
    let other = || other(path);
    let len = usize::try_from(ReadAt::size(file).map_err(failed)?).ok().filter(|len| *len <= LEN);
    let mut bytes = vec![0; len.ok_or_else(other)?];
    FileExt::read_exact_at(file, &mut bytes, 0).map_err(failed)?;
    if bytes.iter().all(u8::is_ascii_whitespace) {
        return Ok(None);
    }
    let text: Text = serde_json::from_slice(&bytes).map_err(|_| other())?;
    if text.version == VERSION { Ok(Some(text)) } else { Err(other()) }
}

impl Marker {
    /// Makes the marker, on stable storage with its name; none where the image can have none, or
    /// the state itself is there.
    ///
    /// # Errors
    /// `BadOption` when something is there; `Io`.
    pub fn make(image: &Path, state: &Path, identity: Uuid) -> Result<Option<Self>> {
        let Some(path) = place(image) else { return Ok(None) };
        let whole = |path: &Path| fs::canonicalize(path).map_err(|e| io_error(path, "cannot be found", e));
        let state = whole(state)?;
        if path.exists() {
            if whole(&path)? == state {
                lead_from_other_names(image, &path)?;
                return Ok(None);
            }
            // Of one that has come to its end.
            fs::remove_file(&path).map_err(|e| io_error(&path, "cannot be removed", e))?;
        }
        let failed = |e| io_error(&path, "cannot be written", e);
        let text = Text { version: VERSION, identity, state };
        let text = serde_json::to_vec(&text).map_err(|e| failed(e.into()))?;
        let file = new_file(&path)?;
        let written = storage::write(&file, 0, &[&*text, b"\n"].concat()).and_then(|()| storage::sync(&file));
        let made = written.map_err(|e| e.in_file(&path)).and_then(|()| lead_from_other_names(image, &path));
        // A caller that has no marker removes the state, too.
        made.inspect_err(|_| remove_new_file(&path, file.file()))?;
        Ok(Some(Self { path, file: file.into_file() }))
    }

    /// The marker that is there, for the program that ends the reencryption; none where the image
    /// has none of its own.
    ///
    /// # Errors
    /// As [`look`].
    pub fn open(image: &Path) -> Result<Option<Self>> {
        let Some(path) = place(image).filter(|path| is_there(path)) else { return Ok(None) };
        // A link leads to the state: a marker is a file of its own, and nothing else is written to.
        if fs::symlink_metadata(&path).is_ok_and(|there| there.is_symlink()) && about(&path)?.is_some() {
            return Ok(None);
        }
        let file = open_regular(&path, OFlags::RDWR | OFlags::NOFOLLOW)?;
        if about_of(&file).map_err(|e| e.in_file(&path))?.is_some() {
            return Ok(None);
        }
        read(&file, &path)?;
        Ok(Some(Self { path, file }))
    }

    /// Takes the marker away: all is new. A server that may not remove it leaves it blank.
    ///
    /// # Errors
    /// `Io`: the marker still tells of the reencryption.
    pub fn end(&self) -> Result<()> {
        // Only a marker is made blank.
        read(&self.file, &self.path)?;
        let len = ReadAt::size(&self.file).ok().and_then(|len| usize::try_from(len).ok());
        let blank = vec![b' '; len.unwrap_or(0).min(LEN)];
        let done = self.file.write_all_at(&blank, 0).and_then(|()| self.file.sync_all());
        // A blank marker tells of no reencryption.
        let is_removed = fs::remove_file(&self.path).is_ok();
        let image = self.path.as_os_str().as_bytes().strip_suffix(SUFFIX.as_bytes());
        // A server in a sandbox may do neither.
        if let Some(image) = image.filter(|_| is_removed) {
            let _ = rustix::fs::removexattr(OsStr::from_bytes(image), ATTRIBUTE);
        }
        done.map_err(|e| io_error(&self.path, "tells still that the image is being reencrypted", e))
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
        assert_eq!(look(&image).unwrap_err().kind(), ErrorKind::Io);
        fs::remove_file(&state).unwrap();
        assert!(look(&image).unwrap().is_none());
    }

    #[test]
    fn a_marker_tells_of_its_reencryption_until_that_has_ended() {
        let folder = tempfile::tempdir().unwrap();
        let [image, state] = ["image", "state"].map(|name| folder.path().join(name));
        fs::write(&image, [0; 512]).unwrap();
        fs::write(&state, []).unwrap();
        let identity = Uuid::from_u128(7);
        let marker = Marker::make(&image, &state, identity).unwrap().unwrap();
        let found = look(&image).unwrap().unwrap();
        assert_eq!((found.identity, found.state), (identity, fs::canonicalize(&state).unwrap()));
        marker.end().unwrap();
        assert!(look(&image).unwrap().is_none() && !place(&image).unwrap().exists());
        fs::write(place(&image).unwrap(), "a note").unwrap();
        assert_eq!(look(&image).unwrap_err().kind(), ErrorKind::BadOption);
    }

    #[test]
    fn a_marker_is_found_through_every_name_of_its_image() {
        let folder = tempfile::tempdir_in("/var/tmp").unwrap();
        let [image, state, link] = ["image", "state", "elsewhere/link"].map(|name| folder.path().join(name));
        fs::create_dir(folder.path().join("elsewhere")).unwrap();
        fs::write(&image, [0; 512]).unwrap();
        fs::write(&state, []).unwrap();
        fs::hard_link(&image, &link).unwrap();
        let value = |of: &Path| rustix::fs::getxattr(of, ATTRIBUTE, &mut [0; LEN][..]).is_ok();
        let marker = Marker::make(&image, &state, Uuid::from_u128(7)).unwrap().unwrap();
        assert!(value(&link), "the file system of /var/tmp has attributes");
        assert_eq!(look(&link).unwrap().map(|found| found.identity), Some(Uuid::from_u128(7)));
        marker.end().unwrap();
        assert!(look(&link).unwrap().is_none() && !value(&link));
        // An attribute that is left over, and one of another program.
        for path in [place(&image).unwrap(), "/etc/passwd".into(), folder.path().join("x.underseal-state")] {
            rustix::fs::setxattr(&link, ATTRIBUTE, path.as_os_str().as_bytes(), XattrFlags::empty()).unwrap();
            assert!(look(&link).unwrap().is_none());
            fs::write(folder.path().join("x.underseal-state"), "a note").unwrap();
        }
    }

    #[test]
    fn what_the_owner_of_the_folder_puts_in_its_place_is_neither_written_to_nor_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let [image, state, foreign] = ["image", "state", "foreign"].map(|name| folder.path().join(name));
        fs::write(&image, [0; 512]).unwrap();
        fs::write(&state, []).unwrap();
        let marker = Marker::make(&image, &state, Uuid::from_u128(7)).unwrap().unwrap();
        let text = fs::read(place(&image).unwrap()).unwrap();
        // A link to another file, though that has a marker's text.
        fs::write(&foreign, &text).unwrap();
        fs::remove_file(place(&image).unwrap()).unwrap();
        std::os::unix::fs::symlink(&foreign, place(&image).unwrap()).unwrap();
        assert_eq!(Marker::open(&image).err().map(|e| e.kind()), Some(ErrorKind::BadOption));
        assert_eq!(fs::read(&foreign).unwrap(), text);
        // The marker's own file has other bytes by now.
        marker.file.write_all_at(b"x", 0).unwrap();
        assert!(marker.end().is_err());
        // A pipe without a writer.
        fs::remove_file(place(&image).unwrap()).unwrap();
        let place = place(&image).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, &place, FileType::Fifo, Mode::RUSR, 0).unwrap();
        assert_eq!(look(&image).unwrap_err().kind(), ErrorKind::BadOption);
        // An image whose name leaves no room for a longer one.
        let long = folder.path().join("i".repeat(250));
        fs::write(&long, [0; 512]).unwrap();
        assert!(look(&long).unwrap().is_none() && super::place(&long).is_none());
    }
}
