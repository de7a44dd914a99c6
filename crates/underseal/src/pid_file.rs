//! A file that tells the process's number to whoever wants to stop it.

use std::fs::{self, File, Permissions};
use std::io::Write;
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// The file; dropping it removes it.
#[derive(Debug)]
pub(crate) struct PidFile(PathBuf);

impl PidFile {
    /// Writes this process's number. Nobody sees the file half written.
    ///
    /// # Errors
    /// `Failed` when it cannot be written.
    pub(crate) fn write(path: &Path) -> Result<Self> {
        let failed = |e| Error::io(path, "cannot write the process's number", e);
        let path = std::path::absolute(path).map_err(failed)?;
        let folder = path.parent().unwrap_or(&path);
        // Under a name that nobody can know before: others may be able to put links into the folder.
        let mut new = tempfile::Builder::new()
            .prefix(".underseal-")
            .permissions(Permissions::from_mode(0o644))
            .tempfile_in(folder)
            .map_err(failed)?;
        writeln!(new, "{}", std::process::id()).map_err(failed)?;
        new.persist(&path).map_err(|e| failed(e.error))?;
        Ok(Self(path))
    }
}

/// Another process's file, which this one's number is written to when it takes the other's place.
#[derive(Debug)]
pub(crate) struct Another {
    path: PathBuf,
    file: File,
}

impl Another {
    /// Opens it, as long as files can be opened.
    ///
    /// # Errors
    /// `Failed` when it cannot be written.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let failed = |e| Error::io(path, "cannot write the process's number", e);
        // A link that somebody has put there is none of ours.
        let file = File::options().write(true).custom_flags(libc::O_NOFOLLOW).open(path).map_err(failed)?;
        Ok(Self { path: std::path::absolute(path).map_err(failed)?, file })
    }

    /// Writes this process's number over the other's, in one call.
    ///
    /// # Errors
    /// `Failed` when it cannot be written.
    pub(crate) fn take(self) -> Result<PidFile> {
        let text = format!("{}\n", std::process::id());
        let written = self.file.write_all_at(text.as_bytes(), 0);
        let written = written.and_then(|()| self.file.set_len(text.len() as u64));
        written.map_err(|e| Error::io(&self.path, "cannot write the process's number", e))?;
        Ok(PidFile(self.path))
    }
}

impl Drop for PidFile {
    fn drop(&mut self) {
        // Another server's number stays.
        let ours =
            fs::read_to_string(&self.0).is_ok_and(|text| text.trim() == std::process::id().to_string());
        if ours && let Err(e) = fs::remove_file(&self.0) {
            log::warn!("{}: cannot remove: {e}", self.0.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn links_that_wait_in_the_folder_are_not_followed() {
        let scratch = tempfile::tempdir().unwrap();
        let (path, victim) = (scratch.path().join("pid"), scratch.path().join("victim"));
        fs::write(&victim, "precious").unwrap();
        symlink(&victim, scratch.path().join(format!("pid.{}", std::process::id()))).unwrap();
        symlink(&victim, &path).unwrap();
        let file = PidFile::write(&path).unwrap();
        assert_eq!(fs::read(&victim).unwrap(), b"precious");
        assert_eq!(fs::read_to_string(&path).unwrap(), format!("{}\n", std::process::id()));
        assert!(fs::symlink_metadata(&path).unwrap().is_file());
        drop(file);
        assert!(fs::symlink_metadata(&path).is_err());
        assert_eq!(fs::read_dir(scratch.path()).unwrap().count(), 2, "no other file is left");
    }
}
