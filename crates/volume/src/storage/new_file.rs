//! A new file whose name survives a power cut.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use crate::{Error, ErrorKind, Result};

/// Makes a file, for its owner only, which is on stable storage under its name when this returns: a
/// header or a state that goes to a file is not lost with the file's name.
///
/// # Errors
/// `BadOption` when the name is taken; `Io`.
pub fn new_file(path: &Path) -> Result<File> {
    let made = File::options().read(true).write(true).create_new(true).mode(0o600).open(path);
    let file = made.map_err(|e| match e.kind() {
        io::ErrorKind::AlreadyExists => {
            Error::new(ErrorKind::BadOption, format!("{}: is there already", path.display()))
        }
        _ => Error::new(ErrorKind::Io, format!("{}: cannot create", path.display())).with_source(e),
    })?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let synced = File::open(folder).and_then(|folder| folder.sync_all());
    synced.map_err(|e| {
        Error::new(ErrorKind::Io, format!("{}: cannot be synced", folder.display())).with_source(e)
    })?;
    Ok(file)
}

/// Removes a file in which nothing useful is, unless its name is another file's by now.
pub(crate) fn remove_new_file(path: &Path, file: &File) {
    let id = |of: fs::Metadata| (of.dev(), of.ino());
    if let (Ok(named), Ok(own)) = (fs::symlink_metadata(path), file.metadata())
        && id(named) == id(own)
    {
        // The error that led here is the one to report.
        let _ = fs::remove_file(path);
    }
}
