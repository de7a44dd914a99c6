//! A new file whose name survives a power cut.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use crate::{Error, ErrorKind, NamedFile, Result};

/// Makes a file, for its owner only, and opens it for reading and writing. Its name is on stable
/// storage when this returns: a header or a state that goes to the file is not lost with the name.
///
/// # Errors
/// `AlreadyExists`, also for a link; the system's errors, after which the file is gone again.
pub fn create_private(path: &Path) -> io::Result<File> {
    let file = File::options().read(true).write(true).create_new(true).mode(0o600).open(path)?;
    sync_name(path, &file).inspect_err(|_| remove_new_file(path, &file))?;
    Ok(file)
}

/// Syncs the folder, or all of the file system where the folder cannot be: it may not be read, or
/// its file system syncs no folders.
fn sync_name(path: &Path, file: &File) -> io::Result<()> {
    use io::ErrorKind::{InvalidInput, PermissionDenied, Unsupported};

    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    match File::open(folder).and_then(|folder| folder.sync_all()) {
        Err(e) if matches!(e.kind(), InvalidInput | PermissionDenied | Unsupported) => {
            Ok(rustix::fs::syncfs(file)?)
        }
        synced => synced,
    }
}

/// Makes a file as [`create_private`] does, for a header or a state, which must keep its name.
///
/// # Errors
/// `BadOption` when the name is taken; `Io`.
pub fn new_file(path: &Path) -> Result<NamedFile> {
    create_private(path).map(NamedFile::made).map_err(|e| match e.kind() {
        io::ErrorKind::AlreadyExists => {
            Error::new(ErrorKind::BadOption, format!("{}: is there already", path.display()))
        }
        _ => Error::new(ErrorKind::Io, format!("{}: cannot create", path.display())).with_source(e),
    })
}

/// Removes a new file after a failure, unless its name leads to another file by now: another user
/// of the folder may have put one there.
pub fn remove_new_file(path: &Path, file: &File) {
    let id = |of: fs::Metadata| (of.dev(), of.ino());
    let (named, new) = (fs::symlink_metadata(path).map(id), file.metadata().map(id));
    if matches!((named, new), (Ok(named), Ok(new)) if named == new) {
        // The failure is reported already.
        let _ = fs::remove_file(path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_new_file_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let [path, other] = ["new", "other"].map(|name| folder.path().join(name));
        let file = new_file(&path).unwrap();
        fs::rename(&path, &other).unwrap();
        fs::write(&path, "precious").unwrap();
        remove_new_file(&path, file.file());
        assert_eq!(fs::read(&path).unwrap(), b"precious");
        // A link in its place is no new file, even to it.
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink(&other, &path).unwrap();
        remove_new_file(&path, file.file());
        assert!(fs::symlink_metadata(&path).is_ok());
        remove_new_file(&other, file.file());
        assert!(!other.exists());
    }
}
